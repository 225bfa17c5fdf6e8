/*
 * gridguard: validates CUDA launches, explains violations and splits launches that are too large.
 *
 * Conventions of all functions:
 * - A function returns a gg_status. If its argument `error` is not NULL, it also writes the handle of an
 *   error object there, NULL on success.
 * - Pointers are NULL or valid for the time of the call. Texts are UTF-8 and end with a zero byte.
 *   Structures begin with their size: set all other bytes to zero, then the fields that you need. A later
 *   version appends fields, for which zero is the default.
 * - Handles are numbers, not addresses: a wrong one, or one that was freed, is refused with
 *   GG_INVALID_HANDLE. Free each with gg_free. Any number of threads may use a handle at the same time,
 *   but none while another one frees it. A callback, and threads that it waits for, may free any handle.
 * - No exception and no panic leaves a function, and none may leave a callback.
 */


#ifndef GRIDGUARD_H
#define GRIDGUARD_H

#include <stddef.h>
#include <stdint.h>

/**
 * All blocks are co-resident and can synchronize.
 */
#define GG_COOPERATIVE 1

/**
 * The launch may start before the previous one in its stream has ended (programmatic dependent launch).
 * Every thread of the kernel must execute `griddepcontrol.wait` before it accesses memory that earlier
 * launches access, and in any case before it ends.
 */
#define GG_DEPENDENT 2

/**
 * `gg_config.priority` applies, instead of the stream's.
 */
#define GG_HAS_PRIORITY 4

/**
 * The items are along x.
 */
#define GG_AXIS_X 0

/**
 * The items are along y.
 */
#define GG_AXIS_Y 1

/**
 * The items are along z.
 */
#define GG_AXIS_Z 2

/**
 * Unsplit if legal, else folded if declared, else the fewest chunks.
 */
#define GG_STRATEGY_AUTOMATIC 0

/**
 * One launch, as requested.
 */
#define GG_STRATEGY_WHOLE 1

/**
 * One launch for each chunk.
 */
#define GG_STRATEGY_CHUNKED 2

/**
 * One launch with the axis moved to x.
 */
#define GG_STRATEGY_FOLDED 3

/**
 * A choice of profiles for kernels that the Rust library rewrote; not legal for others.
 */
#define GG_STRATEGY_SHIFTED 4

/**
 * The kernel computes a flat block index, so that its result is the same with the axis moved to x.
 */
#define GG_FOLDABLE 1

/**
 * `strategy` and `max_items` are a preference, for example a profile's: if they are not legal, the launch
 * is planned automatically.
 */
#define GG_PREFERENCE 2

/**
 * The parameter is a pointer to the items: each chunk gets a pointer to its first item.
 */
#define GG_ITEMS 1

/**
 * The parameter is the chunk's first item, in 32 or 64 bits. The value that is passed is ignored.
 */
#define GG_OFFSET 2

/**
 * The parameter is the chunk's number of items, in 32 or 64 bits. The value that is passed is ignored.
 */
#define GG_LENGTH 3

/**
 * The parameter is the same in every chunk, also if it equals the number of items of the batch.
 *
 * If blocks share items, a split launch is refused when another parameter of 4 or 8 bytes equals this number. A
 * kernel that compares an item's index with it would run past the end of its chunk.
 */
#define GG_CONSTANT 4

/**
 * The rule of a violation has no axis.
 */
#define GG_AXIS_NONE 3

/**
 * A request was split into several launches.
 */
#define GG_EVENT_SPLIT 1

/**
 * A request was rejected before a launch.
 */
#define GG_EVENT_REJECTED 2

/**
 * The driver refused a launch.
 */
#define GG_EVENT_FAILED 3

/**
 * The batch's strategy was not legal and only a preference: the launch was planned automatically. The event
 * of its outcome, if it has one, follows.
 */
#define GG_EVENT_CHOICE_REJECTED 4

/**
 * The kernel opts in to large dynamic shared memory if a launch needs it, as `gg_launch` does.
 */
#define GG_OPTS_IN 1

/**
 * Every launch must specify a cluster, `CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET`.
 */
#define GG_CLUSTER_MUST_BE_SET 2

/**
 * Clusters of more than 8 blocks are allowed,
 * `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`.
 */
#define GG_NON_PORTABLE_CLUSTERS 4

/**
 * The data of a launch was in the L2 cache.
 */
#define GG_HOT_CACHE 1

/**
 * Launches were submitted as a graph.
 */
#define GG_GRAPH 2

/**
 * The sizes are the same.
 */
#define GG_MATCH_EXACT 0

/**
 * Each pair of sizes is between the same powers of two.
 */
#define GG_MATCH_BUCKET 1

/**
 * Each size is within a factor of two.
 */
#define GG_MATCH_NEIGHBOUR 2

/**
 * No entry matches: the planner's default applies.
 */
#define GG_MATCH_DEFAULT 3

/**
 * A row of the key's decision list decides.
 */
#define GG_MATCH_ROW 4

/**
 * The kernel was not tuned in this variant, with these types, for this purpose.
 */
#define GG_DEFAULT_NO_ENTRIES 1

/**
 * All entries are for other device code.
 */
#define GG_DEFAULT_OTHER_SOURCE 2

/**
 * The entries have another number of sizes.
 */
#define GG_DEFAULT_SIZE_COUNT 3

/**
 * The first size, which counts the items, is 0.
 */
#define GG_DEFAULT_ZERO_SIZE 4

/**
 * A size is outside the powers of two that were tuned.
 */
#define GG_DEFAULT_OUT_OF_RANGE 5

/**
 * No entry is within a factor of two of each size.
 */
#define GG_DEFAULT_NO_NEIGHBOUR 6

/**
 * Nothing beats the default of the entry that matches.
 */
#define GG_DEFAULT_CONFIRMED 7

/**
 * The caller's file.
 */
#define GG_LAYER_EXPLICIT 0

/**
 * The user's own profile.
 */
#define GG_LAYER_USER 1

/**
 * A folder shipped with the program.
 */
#define GG_LAYER_SHIPPED 2

/**
 * The profile that is built into the library.
 */
#define GG_LAYER_EMBEDDED 3

/**
 * No entry matches.
 */
#define GG_LAYER_NONE 4

/**
 * The result of a call.
 */
enum gg_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * It succeeded.
   */
  GG_OK = 0,
  /**
   * The launch breaks rules: see `gg_error_violation`.
   */
  GG_REJECTED = 1,
  /**
   * An argument is NULL, not UTF-8, malformed or out of range.
   */
  GG_INVALID_ARGUMENT = 2,
  /**
   * A handle is NULL, freed, of another type, or not a handle.
   */
  GG_INVALID_HANDLE = 3,
  /**
   * This version of the library does not know the `struct_size`.
   */
  GG_INVALID_STRUCT = 4,
  /**
   * There is no such GPU, device, violation or explanation.
   */
  GG_NOT_FOUND = 5,
  /**
   * The driver cannot be used, or a call to it failed: see `gg_error_driver_code`.
   */
  GG_DRIVER = 6,
  /**
   * The kernel's parameters do not fit the kernel or the batch.
   */
  GG_PARAMETERS = 7,
  /**
   * The library reached one of its own limits, or has a defect.
   */
  GG_INTERNAL = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum gg_status gg_status;
#else
typedef int32_t gg_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Why a call failed. Immutable; free it with `gg_free`.
 */
typedef struct gg_error gg_error;

/**
 * Launches in one context of the caller's, with its event callback. Immutable; free it with `gg_free`.
 */
typedef struct gg_guard gg_guard;

/**
 * A kernel of the caller's, with its limits. Immutable; free it with `gg_free`.
 */
typedef struct gg_kernel gg_kernel;

/**
 * The key of a profile's choices: kernel, code and purpose. Immutable; free it with `gg_free`.
 */
typedef struct gg_key gg_key;

/**
 * The limits of one kernel on one device. Immutable; free it with `gg_free`.
 */
typedef struct gg_limits gg_limits;

/**
 * The tuned choices for one device. Free it with `gg_free`.
 */
typedef struct gg_profile gg_profile;

/**
 * A text that the library returned. Immutable; free it with `gg_free`.
 */
typedef struct gg_text gg_text;

/**
 * Three sizes in 64 bits. A size beyond 32 bits is reported, not truncated.
 */
typedef struct gg_dim3 {
  /**
   * Along x.
   */
  uint64_t x;
  /**
   * Along y.
   */
  uint64_t y;
  /**
   * Along z.
   */
  uint64_t z;
} gg_dim3;

/**
 * A launch configuration.
 */
typedef struct gg_config {
  /**
   * Set it to `sizeof(gg_config)`.
   */
  size_t struct_size;
  /**
   * Blocks of the grid.
   */
  struct gg_dim3 grid;
  /**
   * Threads of a block.
   */
  struct gg_dim3 block;
  /**
   * Blocks of a cluster; zeros for none.
   */
  struct gg_dim3 cluster;
  /**
   * Dynamic shared memory of a block, in bytes.
   */
  uint64_t dynamic_shared_bytes;
  /**
   * Bytes of all parameters; 0 if unknown.
   */
  uint64_t parameter_bytes;
  /**
   * The `CUstream` that `gg_launch` launches on; NULL for the default one. Other functions ignore it.
   */
  void *stream;
  /**
   * The launch's priority, with `GG_HAS_PRIORITY`.
   */
  int32_t priority;
  /**
   * The sum of some of `GG_COOPERATIVE`, `GG_DEPENDENT` and `GG_HAS_PRIORITY`.
   */
  uint32_t flags;
} gg_config;

/**
 * How one parameter changes from chunk to chunk. This structure never changes.
 */
typedef struct gg_following {
  /**
   * The parameter, from 0.
   */
  uint32_t parameter;
  /**
   * `GG_ITEMS`, `GG_OFFSET`, `GG_LENGTH` or `GG_CONSTANT`.
   */
  uint32_t kind;
  /**
   * For `GG_ITEMS`: bytes from one item to the next.
   */
  uint64_t stride_bytes;
  /**
   * For `GG_ITEMS`: bytes that one item spans; 0 for `stride_bytes`.
   */
  uint64_t span_bytes;
  /**
   * For `GG_ITEMS`: bytes of the memory from the pointer on, beyond which a launch is refused; 0 if
   * unknown.
   */
  uint64_t reach_bytes;
} gg_following;

/**
 * A declaration that the blocks along one axis of the grid work on independent items, so that the
 * launch may be split there.
 *
 * Each chunk is a launch of its own: along the axis, `blockIdx` begins at 0 and `gridDim` is the
 * chunk's. The kernel must find its items by its parameters alone: see `gg_following`.
 */
typedef struct gg_batch {
  /**
   * Set it to `sizeof(gg_batch)`.
   */
  size_t struct_size;
  /**
   * Independent items.
   */
  uint64_t items;
  /**
   * Every `items_per_block` items need `blocks_per_item` blocks along the axis. Both default to 1.
   */
  uint64_t blocks_per_item;
  /**
   * See `blocks_per_item`. Where several items share a block, the last block of a chunk may have
   * fewer: the kernel must take their number from a `GG_LENGTH` parameter.
   */
  uint64_t items_per_block;
  /**
   * Chunks start at multiples of this number of items. Defaults to 1.
   */
  uint64_t align;
  /**
   * For a kernel that computes offsets in signed 32-bit integers: the elements of an item, so that a
   * chunk has at most 2^31 - 1 elements. 0 for 64-bit offsets.
   */
  uint64_t elements_per_item;
  /**
   * Workspace of an item in bytes, out of `memory_bytes`; 0 for none.
   */
  uint64_t workspace_bytes_per_item;
  /**
   * Memory available for workspace in bytes.
   */
  uint64_t memory_bytes;
  /**
   * The most items of a chunk; 0 for as many as are legal.
   */
  uint64_t max_items;
  /**
   * `GG_STRATEGY_AUTOMATIC`, `_WHOLE`, `_CHUNKED`, `_FOLDED` or `_SHIFTED`.
   */
  uint32_t strategy;
  /**
   * The axis of the items: `GG_AXIS_X`, `GG_AXIS_Y` or `GG_AXIS_Z`.
   */
  uint32_t axis;
  /**
   * The sum of some of `GG_FOLDABLE` and `GG_PREFERENCE`.
   */
  uint32_t flags;
  /**
   * The number of `following`.
   */
  uint32_t following_count;
  /**
   * The parameters that change from chunk to chunk, for `gg_launch`. Other functions ignore them.
   */
  const struct gg_following *following;
} gg_batch;

/**
 * The summary of a plan.
 */
typedef struct gg_plan_info {
  /**
   * Set it to `sizeof(gg_plan_info)`.
   */
  size_t struct_size;
  /**
   * Launches; 0 for a batch without items.
   */
  uint64_t launches;
  /**
   * Items of the batch; 1 without a batch.
   */
  uint64_t items;
  /**
   * Items of the largest launch.
   */
  uint64_t largest_items;
  /**
   * `GG_STRATEGY_WHOLE`, `_CHUNKED` or `_FOLDED`.
   */
  uint32_t strategy;
  /**
   * 0.
   */
  uint32_t reserved;
} gg_plan_info;

/**
 * One launch of a plan. Everything else is as in the request, but only the first launch of a `GG_DEPENDENT` request
 * is dependent. This structure never changes.
 */
typedef struct gg_chunk {
  /**
   * The first item.
   */
  uint64_t start;
  /**
   * The number of items.
   */
  uint64_t items;
  /**
   * Blocks of the grid along x, y and z.
   */
  uint32_t grid[3];
  /**
   * 0.
   */
  uint32_t reserved;
} gg_chunk;

/**
 * One rule that a launch breaks.
 */
typedef struct gg_violation {
  /**
   * Set it to `sizeof(gg_violation)`.
   */
  size_t struct_size;
  /**
   * The rule's stable id, for example `grid-dim-y`. Valid until the error is freed, as `message`.
   */
  const char *rule;
  /**
   * What is wrong, whose limit it is, and how to make the launch legal.
   */
  const char *message;
  /**
   * The requested value, in the rule's unit; `UINT64_MAX` if it is larger.
   */
  uint64_t requested;
  /**
   * The limit, in the rule's unit.
   */
  uint64_t limit;
  /**
   * The axis, `GG_AXIS_X` to `GG_AXIS_Z`, or `GG_AXIS_NONE`.
   */
  uint32_t axis;
  /**
   * 0.
   */
  uint32_t reserved;
} gg_violation;

/**
 * The progress of a launch until the driver refused one of its chunks.
 */
typedef struct gg_progress {
  /**
   * Set it to `sizeof(gg_progress)`.
   */
  size_t struct_size;
  /**
   * The refused chunk, from 0.
   */
  uint64_t chunk;
  /**
   * Chunks of the whole plan.
   */
  uint64_t chunks;
  /**
   * Items of the chunks before it, which were submitted.
   */
  uint64_t items_done;
  /**
   * Items of the batch.
   */
  uint64_t items;
} gg_progress;

/**
 * An event of a launch.
 */
typedef struct gg_event {
  /**
   * The size of the structure, which a later version may append to.
   */
  size_t struct_size;
  /**
   * The kernel's name. All texts are valid during the callback.
   */
  const char *kernel;
  /**
   * What failed; empty if nothing did.
   */
  const char *message;
  /**
   * Launches that were submitted.
   */
  uint64_t launches;
  /**
   * `GG_EVENT_SPLIT`, `_REJECTED`, `_FAILED` or `_CHOICE_REJECTED`.
   */
  uint32_t kind;
  /**
   * The status that `gg_launch` returns.
   */
  gg_status status;
  /**
   * The driver's code, as `gg_error_driver_code` returns it.
   */
  int32_t driver_code;
  /**
   * 0.
   */
  uint32_t reserved;
} gg_event;

/**
 * Called by `gg_launch`, on the thread that launches, once all launches were submitted or refused.
 *
 * The callback may call any function of this library and of CUDA. It may free any handle, also the kernel's:
 * the handle is wrong at once, and the object lives until `gg_launch` returns. A context that the callback makes
 * current stays current. The callback must return: an exception that leaves it ends the process, and `longjmp`
 * out of it is undefined.
 */
typedef void (*gg_event_callback)(const struct gg_event *event, void *user_data);

/**
 * The options of a guard. Zeros are the defaults.
 */
typedef struct gg_guard_options {
  /**
   * Set it to `sizeof(gg_guard_options)`.
   */
  size_t struct_size;
  /**
   * The `CUcontext`; NULL for the calling thread's current context, for example the CUDA runtime's.
   */
  void *context;
  /**
   * Called for events of launches; NULL for none.
   */
  gg_event_callback on_event;
  /**
   * Passed to the callback, on any thread that launches.
   */
  void *user_data;
} gg_guard_options;

/**
 * Numbers of all launches of the kernels of a guard.
 */
typedef struct gg_counts {
  /**
   * Set it to `sizeof(gg_counts)`.
   */
  size_t struct_size;
  /**
   * Requests that were launched, whole or split.
   */
  uint64_t requests;
  /**
   * Launches that were submitted.
   */
  uint64_t launches;
  /**
   * Requests that took more than one launch.
   */
  uint64_t split;
  /**
   * Requests that stopped at a launch which the driver refused.
   */
  uint64_t refused_by_driver;
  /**
   * Broken rules of rejected requests.
   */
  uint64_t broken_rules;
} gg_counts;

/**
 * The known properties of a kernel. A property that is not known is zero.
 */
typedef struct gg_kernel_info {
  /**
   * Set it to `sizeof(gg_kernel_info)`.
   */
  size_t struct_size;
  /**
   * The name in messages; NULL for none.
   */
  const char *name;
  /**
   * Threads of a block by launch bounds, `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
   */
  uint64_t max_threads_per_block;
  /**
   * Registers of a thread, `CU_FUNC_ATTRIBUTE_NUM_REGS`.
   */
  uint64_t registers_per_thread;
  /**
   * Static shared memory in bytes, `CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`.
   */
  uint64_t static_shared_bytes;
  /**
   * Dynamic shared memory that the kernel opted in to,
   * `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`; 0 if it did not.
   */
  uint64_t max_dynamic_shared_bytes;
  /**
   * Local memory of a thread in bytes, `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
   */
  uint64_t local_bytes_per_thread;
  /**
   * The cluster of `__cluster_dims__`; zeros for none.
   */
  struct gg_dim3 required_cluster;
  /**
   * The sum of some of `GG_OPTS_IN`, `GG_CLUSTER_MUST_BE_SET` and `GG_NON_PORTABLE_CLUSTERS`.
   */
  uint32_t flags;
  /**
   * 0.
   */
  uint32_t reserved;
} gg_kernel_info;

/**
 * The limits and resources of a device, by the names of their `CU_DEVICE_ATTRIBUTE_`.
 */
typedef struct gg_device_info {
  /**
   * Set it to `sizeof(gg_device_info)`.
   */
  size_t struct_size;
  /**
   * The device's name. Valid until the limits are freed.
   */
  const char *name;
  /**
   * Compute capability: the generation.
   */
  uint32_t capability_major;
  /**
   * Compute capability: the variant.
   */
  uint32_t capability_minor;
  /**
   * Blocks along each axis of a grid.
   */
  struct gg_dim3 max_grid;
  /**
   * Threads along each axis of a block.
   */
  struct gg_dim3 max_block;
  /**
   * Threads of a block.
   */
  uint64_t max_threads_per_block;
  /**
   * Threads of a warp.
   */
  uint64_t warp_size;
  /**
   * Registers of a block.
   */
  uint64_t max_registers_per_block;
  /**
   * Registers are allocated to a warp in multiples of this.
   */
  uint64_t register_allocation_unit;
  /**
   * Warps of a block are rounded up to a multiple of this for registers.
   */
  uint64_t warp_allocation_granularity;
  /**
   * Shared memory of a block in bytes without opt-in.
   */
  uint64_t max_shared_bytes_per_block;
  /**
   * Shared memory of a block in bytes with opt-in.
   */
  uint64_t max_shared_bytes_per_block_opt_in;
  /**
   * Shared memory in bytes that the system reserves for each block.
   */
  uint64_t reserved_shared_bytes_per_block;
  /**
   * Shared memory of a multiprocessor in bytes.
   */
  uint64_t shared_bytes_per_multiprocessor;
  /**
   * Multiprocessors; 0 if unknown.
   */
  uint64_t multiprocessors;
  /**
   * Resident threads of a multiprocessor.
   */
  uint64_t max_threads_per_multiprocessor;
  /**
   * Resident blocks of a multiprocessor.
   */
  uint64_t max_blocks_per_multiprocessor;
  /**
   * Registers of a multiprocessor.
   */
  uint64_t registers_per_multiprocessor;
  /**
   * L2 cache in bytes.
   */
  uint64_t l2_bytes;
  /**
   * Memory in bytes.
   */
  uint64_t memory_bytes;
  /**
   * Blocks of a portable cluster; 0 without clusters.
   */
  uint64_t max_portable_cluster_blocks;
  /**
   * Bytes of all kernel parameters.
   */
  uint64_t max_parameter_bytes;
  /**
   * 1 if the device supports cooperative launches, else 0.
   */
  uint32_t cooperative_launch;
  /**
   * 1 if the device supports clusters, else 0.
   */
  uint32_t cluster_launch;
} gg_device_info;

/**
 * The fields of a key. Zeros are their defaults.
 */
typedef struct gg_key_info {
  /**
   * Set it to `sizeof(gg_key_info)`.
   */
  size_t struct_size;
  /**
   * The kernel's name.
   */
  const char *kernel;
  /**
   * A hash of the device code in hexadecimal digits; NULL for none.
   */
  const char *source;
  /**
   * Which of several implementations; NULL if there is only one.
   */
  const char *variant;
  /**
   * The element types of the tensors, for example `f16`; NULL for none.
   */
  const char *dtypes;
  /**
   * Measured for the largest chunk whose launch takes at most this many microseconds; 0 otherwise.
   */
  uint64_t max_launch_us;
  /**
   * Measured within a workspace of this many bytes for each item; 0 otherwise.
   */
  uint64_t workspace_bytes_per_item;
  /**
   * The whole workspace in bytes.
   */
  uint64_t workspace_bytes;
  /**
   * The sum of some of `GG_HOT_CACHE` and `GG_GRAPH`: how times were measured.
   */
  uint32_t flags;
  /**
   * 0.
   */
  uint32_t reserved;
} gg_key_info;

/**
 * The result of a lookup.
 */
typedef struct gg_tuned {
  /**
   * Set it to `sizeof(gg_tuned)`.
   */
  size_t struct_size;
  /**
   * For `gg_batch.max_items`.
   */
  uint64_t max_items;
  /**
   * For `gg_batch.strategy`; `GG_STRATEGY_AUTOMATIC` if no entry matches.
   */
  uint32_t strategy;
  /**
   * `GG_MATCH_EXACT`, `_ROW`, `_BUCKET`, `_NEIGHBOUR` or `_DEFAULT`.
   */
  uint32_t matched;
  /**
   * For `GG_MATCH_DEFAULT`, why no entry matches: `GG_DEFAULT_NO_ENTRIES` and others.
   */
  uint32_t default_reason;
  /**
   * For `GG_MATCH_NEIGHBOUR`, the distance in thousandths of an octave, summed over the sizes.
   */
  uint32_t distance_millioctaves;
  /**
   * Where the entry comes from: `GG_LAYER_EXPLICIT`, `_USER`, `_SHIPPED`, `_EMBEDDED` or `_NONE`.
   */
  uint32_t layer;
  /**
   * 1 if the entry was measured with another major version of the driver, else 0.
   */
  uint32_t degraded;
  /**
   * Launch parameters of the entry.
   */
  size_t parameter_count;
} gg_tuned;

/**
 * A launch parameter of an entry, for example the warps of a block. This structure never changes.
 */
typedef struct gg_parameter {
  /**
   * Its name. Valid until the profile is freed.
   */
  const char *name;
  /**
   * Its value.
   */
  uint64_t value;
} gg_parameter;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library: 1000000 * major + 1000 * minor + patch. Within a major version, and
 * within a minor version before 1.0, programs compiled with an older header work with a newer library.
 *
 * Thread-safe.
 */
uint32_t gg_version(void);

/**
 * Checks that a launch breaks no rule: `GG_OK`, or `GG_REJECTED` with every violation. The check of a legal
 * launch neither allocates nor locks.
 *
 * Thread-safe.
 */
gg_status gg_validate(const struct gg_limits *limits,
                      const struct gg_config *config,
                      struct gg_error **error);

/**
 * Plans a launch: unsplit if legal, else in chunks of `batch`, which may be NULL.
 *
 * Writes a summary to `out`, and up to `capacity` launches to `chunks`, from number `first` on. To read a
 * long plan in parts, call again with a larger `first`. `chunks` may be NULL if `capacity` is 0.
 * `GG_REJECTED` with the reasons if no plan is legal. A legal plan needs neither an allocation nor a lock.
 *
 * Thread-safe.
 */
gg_status gg_plan(const struct gg_limits *limits,
                  const struct gg_config *config,
                  const struct gg_batch *batch,
                  struct gg_plan_info *out,
                  uint64_t first,
                  struct gg_chunk *chunks,
                  size_t capacity,
                  struct gg_error **error);

/**
 * Checks one JSON request of `gridguard check --requests` on the device of `limits`. The request describes the
 * kernel; the kernel of `limits` is ignored.
 *
 * Returns the verdict as JSON: `{"name", "verdict": "legal" | "chunked" | "rejected", "opts_in", "violations",
 * "plan"}`.
 *
 * `GG_OK` for every verdict, `GG_INVALID_ARGUMENT` for a malformed request.
 *
 * Thread-safe.
 */
gg_status gg_check_json(const struct gg_limits *limits,
                        const char *request,
                        struct gg_text **out,
                        struct gg_error **error);

/**
 * The status of the error; `GG_INVALID_HANDLE` for a wrong handle.
 *
 * Thread-safe.
 */
gg_status gg_error_status(const struct gg_error *error);

/**
 * The message in UTF-8; NULL for a wrong handle. It is valid until the error is freed.
 *
 * Thread-safe.
 */
const char *gg_error_message(const struct gg_error *error);

/**
 * The `CUresult` that the driver returned, or would return for a launch that breaks rules; 0 where
 * there is none, and for a wrong handle.
 *
 * Thread-safe.
 */
int32_t gg_error_driver_code(const struct gg_error *error);

/**
 * How many rules the launch breaks; 0 for errors of another status, and for a wrong handle.
 *
 * Thread-safe.
 */
size_t gg_error_violation_count(const struct gg_error *error);

/**
 * Writes the violation at `index`, from 0, to `out`.
 *
 * Thread-safe.
 */
gg_status gg_error_violation(const struct gg_error *error, size_t index, struct gg_violation *out);

/**
 * Writes the progress of a split launch to `out`; `GG_NOT_FOUND` for errors before the first launch.
 *
 * Thread-safe.
 */
gg_status gg_error_progress(const struct gg_error *error,
                            struct gg_progress *out);

/**
 * Explains a `CUresult` or `cudaError_t`, which have the same numbers for most errors. If you pass the launch that
 * returned it, the explanation begins with the rules that the launch breaks. `limits`, `config` and `batch` may
 * each be NULL, but a `config` needs `limits`.
 *
 * Thread-safe.
 */
gg_status gg_explain(int32_t code,
                     const struct gg_limits *limits,
                     const struct gg_config *config,
                     const struct gg_batch *batch,
                     struct gg_text **out,
                     struct gg_error **error);

/**
 * Explains a message or a whole log in UTF-8, and writes the diagnosis as JSON: `platform`, `lines` and `failures`, the
 * deciding one first, each with a stable `id`, `confidence`, `fault`, `memory`, `cause`, `remedy` and `evidence`, as
 * `gridguard explain --format json` does. `GG_NOT_FOUND` if no failure is recognized. A launch in the text is
 * checked on the compute capability that the text states, and without one against the GPUs of the catalogue. A text that
 * shows a failure which no explanation fits has a failure of confidence `unknown`, which quotes the deciding line. Takes
 * time linear in the text.
 *
 * Thread-safe.
 */
gg_status gg_diagnose(const char *text,
                      struct gg_text **out,
                      struct gg_error **error);

/**
 * Explains an error of this library: CUDA's name of the failure, its cause or possible causes, and the remedies.
 * `GG_NOT_FOUND` if CUDA has no error for it; the error's message is then complete.
 *
 * Thread-safe.
 */
gg_status gg_error_explain(const struct gg_error *failed,
                           struct gg_text **out,
                           struct gg_error **error);

/**
 * Frees the object of a handle of any type. NULL is ignored.
 *
 * Objects keep each other alive, so they can be freed in any order. Returns `GG_INVALID_HANDLE` for a handle that was
 * freed already, and for a number that is not a handle.
 *
 * Thread-safe, but no other thread may be using the same handle, unless it waits in a callback.
 */
gg_status gg_free(void *handle);

/**
 * Makes a guard for launches in the caller's context. The context must outlive the guard's kernels. `options`
 * may be NULL. `GG_NOT_FOUND` if no context is given or current, `GG_DRIVER` if there is no driver.
 *
 * Thread-safe. The callback must be thread-safe too.
 */
gg_status gg_guard_create(const struct gg_guard_options *options,
                          struct gg_guard **out,
                          struct gg_error **error);

/**
 * Makes a kernel from its `CUfunction` or `CUkernel`, which must belong to the guard's context and
 * outlive the kernel. Queries its limits and parameters once.
 *
 * Messages use `name`; NULL for the driver's name. `parameter_sizes` are the sizes of its
 * `parameter_count` parameters in bytes. With NULL the driver is asked, which needs CUDA 12.4.
 * The calling thread's current context is the same afterwards.
 *
 * Thread-safe.
 */
gg_status gg_kernel_create(const struct gg_guard *guard,
                           void *function,
                           const char *name,
                           const size_t *parameter_sizes,
                           size_t parameter_count,
                           struct gg_kernel **out,
                           struct gg_error **error);

/**
 * The limits of a kernel on its device, for `gg_validate` and `gg_plan`. They include the shared memory
 * that needs opt-in, since `gg_launch` opts in.
 *
 * Thread-safe.
 */
gg_status gg_kernel_limits(const struct gg_kernel *kernel,
                           struct gg_limits **out,
                           struct gg_error **error);

/**
 * Writes the counts of the kernel's guard to `out`.
 *
 * Thread-safe.
 */
gg_status gg_kernel_counts(const struct gg_kernel *kernel,
                           struct gg_counts *out,
                           struct gg_error **error);

/**
 * Validates a launch and submits it to `config.stream`, as `cuLaunchKernel` does: unsplit if legal, else in
 * chunks of `batch`, which may be NULL.
 *
 * `params` points to the value of each parameter. `batch.following` names the parameters that change from chunk to
 * chunk; a parameter with the number of items must be among them. All chunks are validated before the first is
 * launched. If the driver still refuses a chunk, the error has a `gg_progress`. `launches`, which may be NULL, gets
 * the number of launches.
 *
 * The call returns before the launches have run. The arguments must match the kernel's parameters, and memory must
 * live until the launches have run. The stream must be of the kernel's context. The calling thread's current
 * context is the same afterwards. A legal launch neither allocates nor locks, once the kernel was launched with its
 * shared memory before.
 *
 * Thread-safe, as `cuLaunchKernel` is: launches of one stream are in the order of the calls.
 */
gg_status gg_launch(const struct gg_kernel *kernel,
                    const struct gg_config *config,
                    void *const *params,
                    const struct gg_batch *batch,
                    uint64_t *launches,
                    struct gg_error **error);

/**
 * Waits for all launches on a `CUstream`, NULL for the default one, of the kernel's context.
 * `GG_DRIVER` if one of them failed: the message names the launches that may have caused it.
 *
 * Thread-safe.
 */
gg_status gg_synchronize(const struct gg_kernel *kernel, void *stream, struct gg_error **error);

/**
 * The limits of a kernel on a GPU of the catalogue. `gpu` is a name or an alias, for example `h200` or `NVIDIA L4`;
 * `sm_86` for any GPU of a compute capability; `any` for the lowest limits of all. `kernel` may be NULL.
 * `GG_NOT_FOUND` with the known names if there is no such GPU. Needs no driver.
 *
 * Thread-safe.
 */
gg_status gg_limits_of_gpu(const char *gpu,
                           const struct gg_kernel_info *kernel,
                           struct gg_limits **out,
                           struct gg_error **error);

/**
 * The limits of a kernel on a device of this machine, by its ordinal. `kernel` may be NULL.
 * `GG_NOT_FOUND` if there is no such device, `GG_DRIVER` if there is no driver.
 *
 * Thread-safe.
 */
gg_status gg_limits_of_device(uint32_t ordinal,
                              const struct gg_kernel_info *kernel,
                              struct gg_limits **out,
                              struct gg_error **error);

/**
 * Writes the limits and resources of the device to `out`.
 *
 * Thread-safe.
 */
gg_status gg_limits_device(const struct gg_limits *limits,
                           struct gg_device_info *out,
                           struct gg_error **error);

/**
 * The text in UTF-8, which ends with a zero byte; NULL for a wrong handle. It is valid until the
 * handle is freed.
 *
 * Thread-safe.
 */
const char *gg_text_data(const struct gg_text *text);

/**
 * Loads the tuned choices for the device of `limits`. The file or folder `path`, which may be NULL, comes first, then
 * the user's folder (`GRIDGUARD_PROFILES`), then the profiles built into the library.
 *
 * A file or an entry that cannot be used is left out with a notice. Entries of another device are never used.
 *
 * Thread-safe.
 */
gg_status gg_profile_load(const struct gg_limits *limits,
                          const char *path,
                          struct gg_profile **out,
                          struct gg_error **error);

/**
 * The notice at `index`, from 0, about an entry or file that was left out or may be stale. NULL past the last
 * notice, and for a wrong handle. The notice is valid until the profile is freed.
 *
 * Thread-safe.
 */
const char *gg_profile_notice(const struct gg_profile *profile,
                              size_t index);

/**
 * The digest of all choices, 64 hexadecimal digits. Profiles with equal digests choose alike for every launch, so the
 * ranks of a job can compare theirs at the start. NULL for a wrong handle. Valid until the profile is freed.
 *
 * Thread-safe.
 */
const char *gg_profile_digest(const struct gg_profile *profile);

/**
 * Makes a key for lookups.
 *
 * Thread-safe.
 */
gg_status gg_key_create(const struct gg_key_info *info,
                        struct gg_key **out,
                        struct gg_error **error);

/**
 * Looks up the tuned choice for a shape of `count` sizes, in the order of the profile's entries, and writes it to
 * `out`. Up to `capacity` of its launch parameters are written to `parameters`, which may be NULL if `capacity`
 * is 0. The lookup neither allocates nor locks.
 *
 * A choice is a preference: set `GG_PREFERENCE` with it.
 *
 * Thread-safe.
 */
gg_status gg_profile_look_up(const struct gg_profile *profile,
                             const struct gg_key *key,
                             const uint64_t *sizes,
                             size_t count,
                             struct gg_tuned *out,
                             struct gg_parameter *parameters,
                             size_t capacity,
                             struct gg_error **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GRIDGUARD_H */
