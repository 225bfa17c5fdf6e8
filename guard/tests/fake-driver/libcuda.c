/*
 * A fake CUDA driver library, for tests on machines without a GPU. README.md documents its
 * behaviour, environment variables and build options.
 *
 * Small handles (streams, events, modules, graphs) are never freed, so that using one after its
 * destruction returns an error code instead of crashing the test.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The driver's signatures have flags and options that a fake does not need. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* ---- Error codes: those returned here, and those that tests inject ---- */

#define ERRORS(E) \
    E(0, SUCCESS, "no error") \
    E(1, INVALID_VALUE, "invalid argument") \
    E(2, OUT_OF_MEMORY, "out of memory") \
    E(3, NOT_INITIALIZED, "initialization error") \
    E(34, STUB_LIBRARY, "CUDA driver is a stub library") \
    E(46, DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable") \
    E(100, NO_DEVICE, "no CUDA-capable device is detected") \
    E(101, INVALID_DEVICE, "invalid device ordinal") \
    E(200, INVALID_IMAGE, "device kernel image is invalid") \
    E(201, INVALID_CONTEXT, "invalid device context") \
    E(209, NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device") \
    E(218, INVALID_PTX, "a PTX JIT compilation failed") \
    E(222, UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain.") \
    E(301, FILE_NOT_FOUND, "file not found") \
    E(304, OPERATING_SYSTEM, "OS call failed or operation not supported on this OS") \
    E(400, INVALID_HANDLE, "invalid resource handle") \
    E(401, ILLEGAL_STATE, "the operation cannot be performed in the present state") \
    E(500, NOT_FOUND, "named symbol not found") \
    E(700, ILLEGAL_ADDRESS, "an illegal memory access was encountered") \
    E(701, LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch") \
    E(702, LAUNCH_TIMEOUT, "the launch timed out and was terminated") \
    E(709, CONTEXT_IS_DESTROYED, "context is destroyed") \
    E(710, ASSERT, "device-side assert triggered") \
    E(714, HARDWARE_STACK_ERROR, "hardware stack error") \
    E(715, ILLEGAL_INSTRUCTION, "an illegal instruction was encountered") \
    E(716, MISALIGNED_ADDRESS, "misaligned address") \
    E(717, INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space") \
    E(718, INVALID_PC, "invalid program counter") \
    E(719, LAUNCH_FAILED, "unspecified launch failure") \
    E(720, COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch") \
    E(800, NOT_PERMITTED, "operation not permitted") \
    E(801, NOT_SUPPORTED, "operation not supported") \
    E(802, SYSTEM_NOT_READY, "system not yet initialized") \
    E(803, SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination") \
    E(804, COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported HW") \
    E(900, STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing") \
    E(901, STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture") \
    E(902, STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences") \
    E(903, STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began") \
    E(905, STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream") \
    E(907, CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream") \
    E(908, STREAM_CAPTURE_WRONG_THREAD, "attempt to end a thread-local capture from another thread") \
    E(912, INVALID_CLUSTER_SIZE, "a kernel launch error has occurred due to cluster misconfiguration") \
    E(999, UNKNOWN, "unknown error")

#define AS_CONSTANT(code, name, text) name = code,
enum { ERRORS(AS_CONSTANT) };

/* ---- Types ---- */

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct Context *CUcontext;
typedef struct Module *CUmodule;
typedef struct Function *CUfunction;
typedef struct Stream *CUstream;
typedef struct Event *CUevent;
typedef struct Graph *CUgraph, *CUgraphExec;
typedef struct Node *CUgraphNode;
typedef struct { unsigned char bytes[16]; } CUuuid;

typedef struct {
    unsigned id;
    char pad[4];
    union { char pad[64]; unsigned cluster[3]; int cooperative, overlap, priority; } value;
} CUlaunchAttribute;

typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    CUlaunchAttribute *attrs;
    unsigned count;
} CUlaunchConfig;

/* Parameters of a kernel node; those up to CUDA 11 end before `kernel`. */
typedef struct {
    CUfunction function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    CUfunction kernel;
    CUcontext ctx;
} CUkernelNodeParams;

typedef struct {
    int type, reserved[3];
    union { CUkernelNodeParams kernel; char pad[232]; };
    long long more;
} CUgraphNodeParams;

typedef struct { unsigned long long flags; CUstream upload; CUgraphNode failed; int result; } CUinstantiateParams;

/* CUfunction_attribute */
enum {
    FA_MAX_THREADS = 0, FA_SHARED = 1, FA_CONST = 2, FA_LOCAL = 3, FA_REGS = 4, FA_PTX = 5,
    FA_BINARY = 6, FA_MAX_DYNAMIC = 8, FA_CARVEOUT = 9, FA_CLUSTER_MUST_BE_SET = 10,
    FA_CLUSTER_X = 11, FA_CLUSTER_Z = 13, FA_NON_PORTABLE = 14, FA_SCHEDULING = 15, FA_COUNT = 16,
};
enum { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_INVALIDATED }; /* CUstreamCaptureStatus */
enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };      /* CUstreamCaptureMode */
enum { MAX_DEVICES = 16, MAX_PARAMS = 64, MAX_NAME = 256, STACK_DEPTH = 16 };

/* How much work of each stream, by its number, has ended before something else: a vector clock. */
enum { STREAMS = 64, OWN = 16 };
struct Clock { unsigned long long of[STREAMS]; };

/* A handle belongs to one life of its context: resetting a primary context begins another. */
struct Stream {
    CUcontext ctx;
    unsigned life;
    struct Capture *capture;
    bool dead;
    unsigned number;    /* from 1; 0 before the first work, and for streams past the table */
    struct Clock after; /* what the stream's next work comes after, and its own work so far */
};
struct Context {
    CUdevice device;
    bool primary;
    int refs;
    unsigned life;
    CUresult sticky;
    struct Stream legacy, own[OWN]; /* one for each thread that calls */
};
struct Event {
    CUcontext ctx;
    unsigned life;
    struct Capture *capture;
    double ms;
    unsigned number;
    bool timed, recorded, dead;
    struct Clock after;
};
struct Module {
    CUcontext ctx;
    unsigned life;
    char *text;
    CUfunction functions;
    bool dead;
    struct Clock used; /* by the last launches of its functions */
};
struct Block {
    char *at;
    size_t bytes;
    CUcontext ctx;
    struct Block *next;
    bool captured, pinned;
    struct Clock used, written; /* the last work that did */
    struct Use *words;          /* of each 8 bytes of pinned memory, which several streams may copy parts of */
};
struct Use { struct Clock used, written; };

struct Function {
    CUmodule module;
    CUfunction next;
    char name[MAX_NAME];
    CUfunction of_kernel; /* a CUkernel of a library, cast to a CUfunction: the function it stands for */
    int attribute[FA_COUNT];
    bool params_known;
    size_t params, size[MAX_PARAMS], offset[MAX_PARAMS], param_bytes;
};

struct Launch {
    unsigned grid[3], block[3], cluster[3], shared;
    bool cooperative, overlap, prior;
    int priority;
};

struct Op {
    enum { KERNEL, COPY, FILL, RESERVE, CHILD } kind;
    CUfunction function;
    struct Launch launch;
    unsigned char *args; /* laid out at the parameters' offsets; NULL without arguments */
    CUdeviceptr to, from;
    size_t bytes;
    int value;
    CUgraph child;
};

struct Graph { struct Op *ops; size_t count; bool dead; };
struct Node { CUgraph graph; size_t index; };

struct Capture {
    unsigned long long id;
    int status, mode;
    pthread_t thread;
    CUstream origin;
    CUgraph graph;
    struct Capture *next;
};

/* ---- The values of an H200 ---- */

enum { WARP = 32, MAX_THREADS = 1024, BLOCKS_PER_SM = 32, THREADS_PER_SM = 2048, SMS = 132 };
enum { REGISTERS = 65536, SHARED_DEFAULT = 49152, SHARED_OPTIN = 232448, SHARED_RESERVED = 1024 };
enum { SHARED_PER_SM = 233472, CLUSTER_PORTABLE = 8, CLUSTER_MOST = 16, ARCHITECTURE = 90 };

static const size_t TOTAL_MEMORY = (size_t)143155 << 20;
static const unsigned MAX_GRID[3] = {2147483647, 65535, 65535}, MAX_BLOCK[3] = {1024, 1024, 64};

/* The CUdevice_attributes that launches, memory and reports need; 33 depends on the device. */
static const struct { int id, value; } DEVICE_ATTRIBUTES[] = {
    {1, MAX_THREADS}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535},
    {8, SHARED_DEFAULT}, {9, 65536 /* constant memory */}, {10, WARP}, {11, 2147483647 /* pitch */},
    {12, REGISTERS}, {13, 1980000 /* clock, kHz */}, {14, 512 /* texture alignment */}, {15, 1},
    {16, SMS}, {17, 0 /* timeout */}, {18, 0 /* integrated */}, {19, 1}, {20, 0 /* compute mode */},
    {31, 1 /* concurrent kernels */}, {32, 1 /* ECC */}, {34, 0}, {35, 0},
    {36, 3201000 /* memory clock, kHz */}, {37, 6144 /* bus width */}, {38, 62914560 /* L2 */},
    {39, THREADS_PER_SM}, {40, 3 /* copy engines */}, {41, 1 /* unified addresses */}, {50, 0},
    {75, ARCHITECTURE / 10}, {76, ARCHITECTURE % 10}, {78, 1 /* priorities */}, {79, 1}, {80, 1},
    {81, SHARED_PER_SM}, {82, REGISTERS}, {83, 1 /* managed memory */}, {84, 0}, {89, 1},
    {90, 1 /* preemption */}, {95, 1 /* cooperative */}, {97, SHARED_OPTIN}, {102, 1}, {103, 1},
    {106, BLOCKS_PER_SM}, {111, SHARED_RESERVED},
    {119, 1 /* pool handles: file descriptor */}, {120, 1 /* clusters */}, {127, 1 /* tensor maps */},
};

/* ---- State: under one mutex, except for the threads' context stacks ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool initialised;
static int visible[MAX_DEVICES], visible_count; /* visible ordinal to device ordinal */
static struct Context primary[MAX_DEVICES];
static struct Capture *captures;
static struct Block *blocks;
static size_t allocated;
static unsigned long long launches, allocations, capture_ids;
static _Thread_local struct { CUcontext at[STACK_DEPTH]; int depth; } stack;
static struct Clock host, work; /* work that the host has waited for, and all work */
static unsigned numbers;

static void merge(struct Clock *into, const struct Clock *from) {
    for (int i = 0; i < STREAMS; i++)
        if (into->of[i] < from->of[i]) into->of[i] = from->of[i];
}

static unsigned long long setting(const char *name, unsigned long long fallback) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : fallback;
}

static FILE *open_log(void) {
    const char *path = getenv("GRIDGUARD_FAKE_LOG");
    return path && *path ? fopen(path, "a") : NULL;
}

static void *make(size_t bytes) {
    void *made = calloc(1, bytes);
    if (!made) abort(); /* the host is out of memory: no test could give a result */
    return made;
}

static pthread_mutex_t *lock(void) { pthread_mutex_lock(&mutex); return &mutex; }
static void unlock(pthread_mutex_t **held) { pthread_mutex_unlock(*held); }
static CUcontext current(void) { return stack.depth ? stack.at[stack.depth - 1] : NULL; }

static CUresult context_error(CUcontext ctx) {
    if (!initialised) return NOT_INITIALIZED;
    if (!ctx) return INVALID_CONTEXT;
    return ctx->refs ? ctx->sticky : CONTEXT_IS_DESTROYED;
}

static CUresult device_error(CUdevice device) {
    if (!initialised) return NOT_INITIALIZED;
    return device >= 0 && device < visible_count ? SUCCESS : INVALID_DEVICE;
}

/* Whether it is the stream of some thread. */
static bool is_of_thread(CUstream stream) {
    return stream >= stream->ctx->own && stream < stream->ctx->own + OWN;
}

static CUstream stream_of(CUcontext ctx, CUstream handle) {
    if ((uintptr_t)handle <= 1) return &ctx->legacy; /* NULL and CU_STREAM_LEGACY */
    if ((uintptr_t)handle == 2) {                    /* CU_STREAM_PER_THREAD */
        static _Thread_local unsigned thread;
        static unsigned threads;
        if (!thread) thread = ++threads;
        return &ctx->own[(thread - 1) % OWN];
    }
    return handle->dead || handle->ctx != ctx || handle->life != ctx->life ? NULL : handle;
}

static bool loaded(CUmodule module) { return module && !module->dead && module->life == module->ctx->life; }
static bool alive(CUevent event) { return event && !event->dead && event->life == event->ctx->life; }

/* How calls begin. LOCKED holds the mutex until the function returns; the other macros also check
 * what they are named after, and return its error. */
#define REQUIRE(condition, code) do { if (!(condition)) return (code); } while (0)
#define CHECK(call) do { CUresult error_ = (call); if (error_) return error_; } while (0)
#define LOCKED __attribute__((cleanup(unlock), unused)) pthread_mutex_t *held = lock()
#define LIBRARY LOCKED; REQUIRE(initialised, NOT_INITIALIZED)
#define DEVICE LOCKED; CHECK(device_error(device))
#define CONTEXT LOCKED; CUcontext ctx = current(); CHECK(context_error(ctx))
#define STREAM CONTEXT; CUstream stream = stream_of(ctx, handle); REQUIRE(stream, INVALID_HANDLE)
#define FUNCTION CONTEXT; REQUIRE(f && loaded(f->module), INVALID_HANDLE)
#define EVENT CONTEXT; REQUIRE(alive(event), INVALID_HANDLE)

/* A whole call: its checks, its effect, success. */
#define CALL(name, parameters, checks, ...) \
    CUresult name parameters { checks; __VA_ARGS__; return SUCCESS; }
#define FORWARD(name, parameters, call) CUresult name parameters { return call; }

/* ---- Library and devices ---- */

/* Parses CUDA_VISIBLE_DEVICES as the driver does: the list ends at the first invalid ordinal, and a
 * repeated one hides every device. */
static void find_devices(void) {
    unsigned long long count = setting("GRIDGUARD_FAKE_DEVICES", 1);
    long devices = count < MAX_DEVICES ? (long)count : MAX_DEVICES;
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    for (visible_count = 0; !list && visible_count < devices; visible_count++)
        visible[visible_count] = visible_count;
    for (bool seen[MAX_DEVICES] = {false}; list;) {
        char *end;
        long ordinal = strtol(list, &end, 10);
        if (end == list || ordinal < 0 || ordinal >= devices) return;
        if (seen[ordinal]) { visible_count = 0; return; }
        seen[ordinal] = true;
        visible[visible_count++] = (int)ordinal;
        list = strchr(end, ',') ? strchr(end, ',') + 1 : NULL;
    }
}

CUresult cuInit(unsigned flags) {
    LOCKED;
    FILE *log = open_log();
    if (log) fprintf(log, "init %d\n", (int)getpid()), fclose(log);
    REQUIRE(flags == 0, INVALID_VALUE);
    CHECK((CUresult)setting("GRIDGUARD_FAKE_INIT", SUCCESS));
    if (!initialised) find_devices();
    initialised = visible_count > 0;
    return initialised ? SUCCESS : NO_DEVICE;
}

static CUresult error_text(CUresult code, const char **text, bool name) {
    /* The toolkit's stub has no error texts either. */
    REQUIRE(setting("GRIDGUARD_FAKE_INIT", SUCCESS) != STUB_LIBRARY, STUB_LIBRARY);
#define AS_CASE(code, constant, words) \
    case code: *text = !name ? words : code ? "CUDA_ERROR_" #constant : "CUDA_SUCCESS"; return SUCCESS;
    switch (code) { ERRORS(AS_CASE) }
    *text = NULL;
    return INVALID_VALUE;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    enum { COMPUTE_MODE = 20, PCI_BUS_ID = 33, MEMORY_POOLS = 115 };
    DEVICE;
    if (attribute == MEMORY_POOLS)
        return *value = (int)setting("GRIDGUARD_FAKE_MEMORY_POOLS", 1), SUCCESS;
    if (attribute == COMPUTE_MODE)
        return *value = (int)setting("GRIDGUARD_FAKE_COMPUTE_MODE", 0), SUCCESS;
    if (attribute == PCI_BUS_ID) return *value = visible[device] + 1, SUCCESS;
    for (size_t i = 0; i < sizeof DEVICE_ATTRIBUTES / sizeof *DEVICE_ATTRIBUTES; i++)
        if (DEVICE_ATTRIBUTES[i].id == attribute) return *value = DEVICE_ATTRIBUTES[i].value, SUCCESS;
    return INVALID_VALUE;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    DEVICE;
    *uuid = (CUuuid){"gridguard-fake"};
    uuid->bytes[15] = (unsigned char)visible[device];
    return SUCCESS;
}

FORWARD(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device), cuDeviceGetUuid_v2(uuid, device))
FORWARD(cuGetErrorName, (CUresult code, const char **text), error_text(code, text, true))
FORWARD(cuGetErrorString, (CUresult code, const char **text), error_text(code, text, false))
CALL(cuDriverGetVersion, (int *version), REQUIRE(version, INVALID_VALUE),
     *version = (int)setting("GRIDGUARD_FAKE_DRIVER_VERSION", 13000))
CALL(cuDeviceGetCount, (int *count), LIBRARY, *count = visible_count)
CALL(cuDeviceGet, (CUdevice *made, int device), DEVICE, *made = device)
CALL(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device), DEVICE, *bytes = TOTAL_MEMORY)
CALL(cuDeviceGetName, (char *name, int length, CUdevice device), DEVICE,
     snprintf(name, (size_t)length, "NVIDIA H200"))

/* ---- Contexts ---- */

static void release_block(struct Block **link) {
    struct Block *gone = *link;
    *link = gone->next;
    if (!gone->captured && !gone->pinned) allocated -= gone->bytes;
    free(gone->words);
    free(gone->at);
    free(gone);
}

static CUcontext open_context(CUcontext ctx, CUdevice device, bool is_primary) {
    if (ctx->refs++) return ctx;
    *ctx = (struct Context){.device = device, .primary = is_primary, .refs = 1, .life = ctx->life + 1};
    ctx->legacy.ctx = ctx;
    for (int i = 0; i < OWN; i++) ctx->own[i].ctx = ctx, ctx->own[i].life = ctx->life;
    ctx->legacy.life = ctx->life;
    return ctx;
}

static void close_context(CUcontext ctx) {
    if (--ctx->refs > 0) return;
    ctx->refs = 0;
    for (struct Block **link = &blocks; *link;)
        if ((*link)->ctx == ctx) release_block(link);
        else link = &(*link)->next;
}

static CUresult push(CUcontext ctx) {
    REQUIRE(stack.depth < STACK_DEPTH, INVALID_VALUE);
    stack.at[stack.depth++] = ctx;
    return SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    LIBRARY;
    REQUIRE(!ctx || ctx->refs, CONTEXT_IS_DESTROYED);
    if (stack.depth) stack.depth--;
    return ctx ? push(ctx) : SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx) {
    LIBRARY;
    REQUIRE(stack.depth, INVALID_CONTEXT);
    if (ctx) *ctx = current();
    stack.depth--;
    return SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
    LIBRARY;
    REQUIRE(ctx && !ctx->primary && ctx->refs, INVALID_CONTEXT);
    close_context(ctx);
    if (current() == ctx) stack.depth--;
    return SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    CONTEXT;
    CUresult answer = SUCCESS;
    for (struct Capture *c = captures; c; c = c->next) {
        if (c->status == CAPTURE_NONE || c->origin->ctx != ctx) continue;
        c->status = CAPTURE_INVALIDATED;
        answer = STREAM_CAPTURE_UNSUPPORTED;
    }
    if (answer == SUCCESS) merge(&host, &work);
    return answer;
}

CALL(cuDevicePrimaryCtxRetain, (CUcontext *ctx, CUdevice device), DEVICE,
     *ctx = open_context(&primary[device], device, true))
CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice device),
     DEVICE; REQUIRE(primary[device].refs, INVALID_CONTEXT), close_context(&primary[device]))
CALL(cuDevicePrimaryCtxReset_v2, (CUdevice device), DEVICE,
     if (primary[device].refs) primary[device].refs = 1, close_context(&primary[device]))
CALL(cuCtxCreate_v2, (CUcontext *ctx, unsigned flags, CUdevice device), DEVICE,
     *ctx = open_context(make(sizeof **ctx), device, false); CHECK(push(*ctx)))
FORWARD(cuCtxCreate_v3, (CUcontext *ctx, void *affinity, int count, unsigned flags, CUdevice device),
        cuCtxCreate_v2(ctx, flags, device))
CALL(cuCtxPushCurrent_v2, (CUcontext ctx), LIBRARY; REQUIRE(ctx && ctx->refs, INVALID_CONTEXT),
     CHECK(push(ctx)))
CALL(cuCtxGetCurrent, (CUcontext *ctx), LIBRARY, *ctx = current())
CALL(cuCtxGetDevice, (CUdevice *device), CONTEXT, *device = ctx->device)
CALL(cuCtxGetStreamPriorityRange, (int *least, int *greatest), CONTEXT, *least = 0, *greatest = -5)

/* ---- Shares of the device ---- */

/* The multiprocessors that `name` leaves. */
static unsigned share(const char *name) { return (unsigned)setting(name, SMS); }
static unsigned sms_of_context(void) {
    unsigned affinity = share("GRIDGUARD_FAKE_AFFINITY"), green = share("GRIDGUARD_FAKE_GREEN_CONTEXT");
    return affinity < green ? affinity : green;
}
/* Streams that were created may be of a green context; default streams are of the current one. */
static bool is_green(CUstream stream) {
    return stream != &stream->ctx->legacy && !is_of_thread(stream)
        && getenv("GRIDGUARD_FAKE_GREEN_STREAMS");
}

#ifndef FAKE_OLD
struct Affinity { int type; unsigned sms; };
struct Resource { int type; unsigned char padding[92]; unsigned sms; unsigned char rest[44]; };
enum { SM_RESOURCE = 1 };

CALL(cuCtxGetExecAffinity, (struct Affinity *affinity, int type),
     CONTEXT; REQUIRE(affinity && !type, INVALID_VALUE),
     *affinity = (struct Affinity){type, share("GRIDGUARD_FAKE_AFFINITY")})
CALL(cuCtxGetDevResource, (CUcontext of, struct Resource *resource, int type),
     LIBRARY; CHECK(context_error(of)); REQUIRE(resource && type == SM_RESOURCE, INVALID_VALUE),
     *resource = (struct Resource){.type = type, .sms = share("GRIDGUARD_FAKE_GREEN_CONTEXT")})
CALL(cuStreamGetGreenCtx, (CUstream handle, void **green), STREAM; REQUIRE(green, INVALID_VALUE),
     *green = is_green(stream) ? stream : NULL)
CALL(cuGreenCtxGetDevResource, (void *green, struct Resource *resource, int type),
     LIBRARY; REQUIRE(green && resource && type == SM_RESOURCE, INVALID_VALUE),
     *resource = (struct Resource){.type = type, .sms = share("GRIDGUARD_FAKE_GREEN_STREAMS")})
#endif

/* ---- Modules and functions ---- */

static unsigned round_up(unsigned value, unsigned unit) { return (value + unit - 1) / unit * unit; }
static unsigned least_of(unsigned a, unsigned b) { return a < b ? a : b; }

/* Registers are allocated to warps in units of 256, from four equal parts of the register file. */
static unsigned warps_by_registers(CUfunction f) {
    unsigned a_warp = round_up((unsigned)f->attribute[FA_REGS] * WARP, 256);
    return a_warp ? 4 * (REGISTERS / 4 / a_warp) : UINT_MAX / WARP;
}

/* The architecture that PTX names, or the device's if it names none. */
static int target_of(const char *text) {
    const char *target = strstr(text, ".target sm_");
    return target ? atoi(target + strlen(".target sm_")) : ARCHITECTURE;
}

static bool balanced(const char *text, char open, char close) {
    long depth = 0;
    for (; *text && depth >= 0; text++) depth += (*text == open) - (*text == close);
    return depth == 0;
}

/* A cubin has its architecture in the low byte of its ELF flags, or since CUDA 13 in the next byte,
 * and runs on later devices of the same major version. Without an architecture it runs anywhere. */
static CUresult cubin_error(const char *image) {
    enum { ABI_VERSION = 8, FLAGS = 48 };
    int architecture = (unsigned char)image[FLAGS + (image[ABI_VERSION] >= 8)];
    bool same = architecture / 10 == ARCHITECTURE / 10 && architecture <= ARCHITECTURE;
    return same || !architecture ? SUCCESS : NO_BINARY_FOR_GPU;
}

static CUresult image_error(const char *text) {
    if (!strncmp(text, "\177ELF", 4)) return cubin_error(text);
    const char *version = strstr(text, ".version"), *refused = getenv("GRIDGUARD_FAKE_FAIL_TEXT");
    REQUIRE(version, INVALID_IMAGE);
    REQUIRE(!refused || !strstr(text, refused), INVALID_PTX);
    unsigned major = 0, minor = 0, driver = (unsigned)setting("GRIDGUARD_FAKE_DRIVER_VERSION", 13000);
    sscanf(version, ".version %u.%u", &major, &minor);
    /* CUDA 11 came with PTX 7, 12 with 8, 13 with 9; the minor versions are the same. */
    unsigned newest = (driver / 1000 - 4) * 10 + driver % 1000 / 10;
    REQUIRE(major * 10 + minor <= newest, UNSUPPORTED_PTX_VERSION);
    REQUIRE(target_of(text) <= ARCHITECTURE, NO_BINARY_FOR_GPU);
    return balanced(text, '{', '}') && balanced(text, '(', ')') ? SUCCESS : INVALID_PTX;
}

/* Where `stated` is NULL or 0, a parameter is aligned to its size. */
static void set_params(CUfunction f, const unsigned *size, const unsigned *stated, size_t count) {
    f->params_known = true;
    f->param_bytes = 0;
    for (f->params = 0; f->params < count; f->params++) {
        size_t bytes = size[f->params], low = bytes & -bytes, align = low && low < 8 ? low : 8;
        if (stated && stated[f->params]) align = stated[f->params];
        f->size[f->params] = bytes;
        f->offset[f->params] = (f->param_bytes + align - 1) / align * align;
        f->param_bytes = f->offset[f->params] + bytes;
    }
}

/* Reads the `key=number,..` that follow `// fake NAME`, up to the end of the line. */
static void describe(CUfunction f, const char *line) {
    static const struct { const char *key; int attribute; } KEYS[] = {
        {"regs", FA_REGS}, {"max_threads", FA_MAX_THREADS}, {"static_shared", FA_SHARED},
        {"const", FA_CONST}, {"local", FA_LOCAL}, {"cluster", FA_CLUSTER_X},
        {"explicit_cluster", FA_CLUSTER_MUST_BE_SET},
    };
    char text[1024], key[32];
    int used = 0;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(line, "\r\n"), line);
    for (char *at = text; sscanf(at, " %31[a-z_]=%n", key, &used) == 1 && used; used = 0) {
        unsigned number[MAX_PARAMS] = {0};
        size_t count = 0;
        for (at += used; count < MAX_PARAMS && *at >= '0' && *at <= '9'; at += *at == ',')
            number[count++] = (unsigned)strtoul(at, &at, 10);
        if (!strcmp(key, "params")) set_params(f, number, NULL, count);
        for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
            if (!strcmp(key, KEYS[i].key)) f->attribute[KEYS[i].attribute] = (int)number[0];
        for (int axis = 1; !strcmp(key, "cluster") && axis < 3; axis++)
            f->attribute[FA_CLUSTER_X + axis] = number[axis] ? (int)number[axis] : 1;
    }
}

/* Reads the sizes of the parameters that PTX declares behind an entry's name. */
static void read_declaration(CUfunction f, const char *at) {
    unsigned size[MAX_PARAMS] = {0}, align[MAX_PARAMS] = {0};
    size_t count = 0, length = strcspn(at, "){;");
    char list[4096], *rest = list;
    if (at[strspn(at, " \t\r\n")] != '(' || length >= sizeof list) return;
    snprintf(list, sizeof list, "%.*s", (int)length, at);
    for (char *one; count < MAX_PARAMS && (one = strsep(&rest, ",")); count++) {
        unsigned bits = 0, elements = 1;
        for (char *dot = one; (dot = strchr(dot, '.')) && !bits; dot++) sscanf(dot, ".%*1[subf]%u", &bits);
        const char *array = strchr(one, '[');
        /* Of a pointer, it is that of what it points to. */
        const char *stated = array ? strstr(one, ".align") : NULL;
        if (array) sscanf(array, "[%u]", &elements);
        if (stated) sscanf(stated, ".align %u", &align[count]);
        size[count] = bits / 8 * elements;
        if (!size[count]) return;
    }
    set_params(f, size, align, count);
}

/* The end of the first occurrence of `before`, blanks and the whole word `name`. */
static const char *find_name(const char *text, const char *before, const char *name) {
    for (size_t length = strlen(name); (text = strstr(text, before));) {
        text += strlen(before);
        const char *word = text + strspn(text, " \t\r\n");
        if (!strncmp(word, name, length) && strchr(" \t\r\n({;", word[length])) return word + length;
    }
    return NULL;
}

/* Functions of unloaded modules, whose handles are reused. */
static CUfunction retired;

static CUfunction make_function(CUmodule module, const char *name) {
    CUfunction f = retired ? retired : make(sizeof *f);
    if (retired) retired = f->next, *f = (struct Function){0};
    const char *line = find_name(module->text, "// fake", name);
    f->module = module;
    snprintf(f->name, sizeof f->name, "%s", name);
    f->attribute[FA_REGS] = 32;
    f->attribute[FA_PTX] = target_of(module->text);
    f->attribute[FA_BINARY] = ARCHITECTURE;
    f->attribute[FA_CARVEOUT] = -1;
    read_declaration(f, find_name(module->text, ".entry", name));
    if (line) describe(f, line);
    f->attribute[FA_CLUSTER_MUST_BE_SET] |= f->attribute[FA_CLUSTER_X] > 0;
    if (!f->attribute[FA_MAX_THREADS])
        f->attribute[FA_MAX_THREADS] = (int)least_of(MAX_THREADS, warps_by_registers(f) * WARP);
    if (f->attribute[FA_SHARED] < SHARED_DEFAULT)
        f->attribute[FA_MAX_DYNAMIC] = SHARED_DEFAULT - f->attribute[FA_SHARED];
    f->next = module->functions;
    return module->functions = f;
}

/* How fat binaries begin. */
static const char FATBIN[] = "\x50\xed\x55\xba";

/* The PTX of a fat binary, which names its kernels also where it has machine code; NULL without any. */
static const char *text_of_fatbin(const char *image) {
    uint16_t header, kind;
    uint32_t entry;
    uint64_t content, bytes;
    memcpy(&header, image + 6, sizeof header);
    memcpy(&content, image + 8, sizeof content);
    for (const char *at = image + header, *end = at + content; at < end; at += entry + bytes) {
        memcpy(&kind, at, sizeof kind);
        memcpy(&entry, at + 4, sizeof entry);
        memcpy(&bytes, at + 8, sizeof bytes);
        if (kind == 1) return at + entry;
    }
    return NULL;
}

/* The machine code of the fake NVRTC: PTX behind an ELF header whose flags mark it. */
static const char *text_of(const char *image) {
    if (!memcmp(image, FATBIN, 4)) return text_of_fatbin(image);
    return !strncmp(image, "\177ELF", 4) && !strncmp(image + 48, "FAKE", 4) ? image + 64 : image;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CONTEXT;
    REQUIRE(module && image, INVALID_VALUE);
    image = text_of(image);
    REQUIRE(image, INVALID_IMAGE);
    CHECK(image_error(image));
    *module = make(sizeof **module);
    **module = (struct Module){.ctx = ctx, .life = ctx->life, .text = strdup(image)};
    return SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options,
                            void **values) {
    enum { ERROR_LOG_BUFFER = 5, ERROR_LOG_BYTES = 6 };
    CUresult answer = cuModuleLoadData(module, image);
    char *log = NULL;
    void *no_bytes = NULL, **bytes = &no_bytes;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == ERROR_LOG_BUFFER) log = values[i];
        if (options[i] == ERROR_LOG_BYTES) bytes = &values[i];
    }
    if (log && *bytes) snprintf(log, (size_t)*bytes, answer ? "fake: image refused (%d)" : "", answer);
    if (log && *bytes) *bytes = (void *)strlen(log);
    return answer;
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    FILE *file = fopen(path, "r");
    REQUIRE(file, FILE_NOT_FOUND);
    long bytes = fseek(file, 0, SEEK_END) ? 0 : ftell(file);
    char *image = make((size_t)bytes + 1);
    rewind(file);
    bool any = bytes > 0 && fread(image, 1, (size_t)bytes, file) == (size_t)bytes;
    CUresult answer = any ? cuModuleLoadData(module, image) : INVALID_IMAGE;
    fclose(file);
    free(image);
    return answer;
}

/* Takes the structure that compilers write around a fat binary, too, but no text. */
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    struct { uint32_t magic, version; const void *fatbin; } around;
    REQUIRE(image, INVALID_VALUE);
    memcpy(&around.magic, image, sizeof around.magic);
    if (around.magic == 0x466243b1) memcpy(&around, image, sizeof around), image = around.fatbin;
    return memcmp(image, FATBIN, 4) ? INVALID_IMAGE : cuModuleLoadData(module, image);
}

static bool covers(const struct Clock *clock, const struct Clock *work);
static void expect_order(bool ordered, const char *what);

CUresult cuModuleUnload(CUmodule module) {
    CONTEXT;
    REQUIRE(loaded(module), INVALID_HANDLE);
    expect_order(covers(&host, &module->used), "unload of code in use");
    module->dead = true;
    for (CUfunction f = module->functions, next; f && setting("GRIDGUARD_FAKE_REUSE", 0); f = next)
        next = f->next, f->next = retired, retired = f, module->functions = next;
    FILE *log = open_log();
    if (log) fprintf(log, "unload %d\n", ctx->device), fclose(log);
    return SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CONTEXT;
    REQUIRE(function && name && *name && strlen(name) < MAX_NAME, INVALID_VALUE);
    REQUIRE(loaded(module), INVALID_HANDLE);
    REQUIRE(find_name(module->text, ".entry", name), NOT_FOUND);
    for (CUfunction f = module->functions; f; f = f->next)
        if (!strcmp(f->name, name)) return *function = f, SUCCESS;
    *function = make_function(module, name);
    return SUCCESS;
}

CALL(cuFuncGetModule, (CUmodule *module, CUfunction f),
     FUNCTION; REQUIRE(module, INVALID_VALUE),
     *module = f->module)

CALL(cuFuncGetAttribute, (int *value, int attribute, CUfunction f),
     FUNCTION; REQUIRE(value && attribute >= 0 && attribute < FA_COUNT, INVALID_VALUE),
     *value = f->attribute[attribute])

CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value) {
    static unsigned long long settings;
    FUNCTION;
    REQUIRE(settings++ != setting("GRIDGUARD_FAKE_FAIL_ATTRIBUTE", ULLONG_MAX), UNKNOWN);
    int least = attribute == FA_CARVEOUT ? -1 : 0, most = -1; /* empty range: cannot be set */
    switch (attribute) {
    case FA_MAX_DYNAMIC: most = SHARED_OPTIN - f->attribute[FA_SHARED]; break;
    case FA_CARVEOUT: most = 100; break;
    case FA_CLUSTER_X: case FA_CLUSTER_X + 1: case FA_CLUSTER_Z:
        REQUIRE(!f->attribute[FA_CLUSTER_MUST_BE_SET], NOT_PERMITTED);
        most = CLUSTER_MOST;
        break;
    case FA_NON_PORTABLE: most = 1; break;
    case FA_SCHEDULING: most = 2; break;
    }
    REQUIRE(value >= least && value <= most, INVALID_VALUE);
    f->attribute[attribute] = value;
    FILE *log = open_log();
    if (log) fprintf(log, "attribute %s %d=%d\n", f->name, attribute, value), fclose(log);
    return SUCCESS;
}

#ifndef FAKE_OLD
CALL(cuFuncGetName, (const char **name, CUfunction f),
     FUNCTION; REQUIRE(name, INVALID_VALUE); REQUIRE(!f->of_kernel, INVALID_HANDLE),
     *name = f->name)

CALL(cuKernelGetName, (const char **name, CUfunction f),
     CONTEXT; REQUIRE(f && f->of_kernel, INVALID_HANDLE); REQUIRE(name, INVALID_VALUE),
     *name = f->name)

CALL(cuKernelGetFunction, (CUfunction *function, CUfunction f),
     CONTEXT; REQUIRE(f && f->of_kernel, INVALID_HANDLE); REQUIRE(function, INVALID_VALUE),
     *function = f->of_kernel)

CUresult cuLibraryLoadData(CUmodule *library, const void *image, int *jit, void **jit_values,
                           unsigned jit_count, int *options, void **values, unsigned count) {
    return cuModuleLoadData(library, image);
}

FORWARD(cuLibraryLoadFromFile, (CUmodule *library, const char *path, int *jit, void **jit_values,
        unsigned jit_count, int *options, void **values, unsigned count), cuModuleLoad(library, path))
CALL(cuLibraryGetModule, (CUmodule *module, CUmodule library),
     CONTEXT; REQUIRE(module, INVALID_VALUE); REQUIRE(loaded(library), INVALID_HANDLE),
     *module = library)

CUresult cuLibraryGetKernel(CUfunction *kernel, CUmodule library, const char *name) {
    CUfunction function;
    CHECK(cuModuleGetFunction(&function, library, name));
    *kernel = make(sizeof **kernel);
    **kernel = (struct Function){.of_kernel = function};
    strcpy((*kernel)->name, name);
    return SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size) {
    FUNCTION;
    CHECK((CUresult)setting("GRIDGUARD_FAKE_FAIL_PARAMETERS", SUCCESS));
    REQUIRE(offset && index < f->params, INVALID_VALUE);
    *offset = f->offset[index];
    if (size) *size = f->size[index];
    return SUCCESS;
}
#endif

static unsigned blocks_per_sm(CUfunction f, unsigned threads, size_t dynamic) {
    unsigned warps = round_up(threads, WARP) / WARP;
    size_t shared = (size_t)f->attribute[FA_SHARED] + dynamic + SHARED_RESERVED;
    /* Not a size that needs an opt-in first (H200). */
    if (dynamic > (size_t)f->attribute[FA_MAX_DYNAMIC] || shared > SHARED_PER_SM) return 0;
    if (threads > (unsigned)f->attribute[FA_MAX_THREADS]) return 0;
    unsigned by_shared = SHARED_PER_SM / round_up((unsigned)shared, 128);
    unsigned by_warps = least_of(THREADS_PER_SM / WARP, warps_by_registers(f)) / warps;
    return least_of(BLOCKS_PER_SM, least_of(by_shared, by_warps));
}

/* Logs an occupancy query, or fails it. */
static CUresult account_question(CUfunction f, const char *what) {
    CHECK((CUresult)setting("GRIDGUARD_FAKE_FAIL_OCCUPANCY", SUCCESS));
    FILE *log = open_log();
    if (log) fprintf(log, "occupancy %s %s\n", f->name, what), fclose(log);
    return SUCCESS;
}

CALL(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
     (int *most, CUfunction f, int threads, size_t dynamic, unsigned flags),
     FUNCTION; REQUIRE(most && threads > 0, INVALID_VALUE); CHECK(account_question(f, "blocks")),
     *most = (int)blocks_per_sm(f, (unsigned)threads, dynamic))
FORWARD(cuOccupancyMaxActiveBlocksPerMultiprocessor,
        (int *most, CUfunction f, int threads, size_t dynamic),
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(most, f, threads, dynamic, 0))

/* ---- Capture ---- */

static struct Capture *capture_of(CUstream stream) {
    return stream->capture && stream->capture->status != CAPTURE_NONE ? stream->capture : NULL;
}

/* For calls that are illegal during a capture: they fail, and invalidate the capture. */
static CUresult capture_error(void) {
    CUresult answer = SUCCESS;
    for (struct Capture *c = captures; c; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self());
        if (c->status == CAPTURE_NONE || c->mode == MODE_RELAXED) continue;
        if (c->mode == MODE_THREAD_LOCAL && !mine) continue;
        c->status = CAPTURE_INVALIDATED;
        answer = STREAM_CAPTURE_UNSUPPORTED;
    }
    return answer;
}

static CUresult capture_error_unlocked(void) { LOCKED; return capture_error(); }

CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
    STREAM;
    REQUIRE(mode >= MODE_GLOBAL && mode <= MODE_RELAXED, INVALID_VALUE);
    REQUIRE(stream != &ctx->legacy, STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(!capture_of(stream), ILLEGAL_STATE);
    struct Capture *c = make(sizeof *c);
    *c = (struct Capture){++capture_ids, CAPTURE_ACTIVE, mode, pthread_self(), stream,
                          make(sizeof *c->graph), captures};
    captures = stream->capture = c;
    return SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    STREAM;
    struct Capture *c = capture_of(stream);
    REQUIRE(graph, INVALID_VALUE);
    REQUIRE(c, ILLEGAL_STATE);
    REQUIRE(c->origin == stream, STREAM_CAPTURE_UNMATCHED);
    REQUIRE(c->mode == MODE_RELAXED || pthread_equal(c->thread, pthread_self()),
            STREAM_CAPTURE_WRONG_THREAD);
    bool whole = c->status == CAPTURE_ACTIVE;
    c->status = CAPTURE_NONE;
    *graph = whole ? c->graph : NULL;
    return whole ? SUCCESS : STREAM_CAPTURE_INVALIDATED;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, unsigned long long *id, CUgraph *graph,
                                   const void ***dependencies, size_t *count) {
    STREAM;
    struct Capture *c = capture_of(stream);
    REQUIRE(status, INVALID_VALUE);
    *status = c ? c->status : CAPTURE_NONE;
    if (c && id) *id = c->id;
    if (c && graph) *graph = c->graph;
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    return SUCCESS;
}

FORWARD(cuStreamIsCapturing, (CUstream handle, int *status),
        cuStreamGetCaptureInfo_v2(handle, status, NULL, NULL, NULL, NULL))

/* ---- Memory ---- */

/* Bytes that can still be allocated: of `most`, unless the environment sets a limit. */
static size_t room(size_t most) {
    size_t limit = (size_t)setting("GRIDGUARD_FAKE_ALLOC_LIMIT", most);
    return allocated < limit ? limit - allocated : 0;
}

static struct Block **find_block(CUdeviceptr at, size_t bytes) {
    for (struct Block **link = &blocks; *link; link = &(*link)->next) {
        CUdeviceptr start = (uintptr_t)(*link)->at, room = (*link)->bytes;
        if (at >= start && at - start <= room && bytes <= room - (at - start)) return link;
    }
    return NULL;
}

static bool owned(CUdeviceptr at, size_t bytes) { return bytes == 0 || find_block(at, bytes); }

/* A captured allocation has its address at once, and counts when its graph is launched. */
static CUresult allocate(CUcontext ctx, CUdeviceptr *at, size_t bytes, bool captured) {
    if (allocations++ == setting("GRIDGUARD_FAKE_FAIL_ALLOC", ULLONG_MAX))
        return (CUresult)setting("GRIDGUARD_FAKE_FAIL_ALLOC_CODE", OUT_OF_MEMORY);
    REQUIRE(captured || bytes <= room(TOTAL_MEMORY), OUT_OF_MEMORY);
    char *memory = aligned_alloc(512, (bytes + 511) / 512 * 512);
    REQUIRE(memory, OUT_OF_MEMORY);
    struct Block *block = make(sizeof *block);
    *block = (struct Block){.at = memory, .bytes = bytes, .ctx = ctx, .next = blocks, .captured = captured};
    blocks = block;
    if (!captured) allocated += bytes;
    *at = (uintptr_t)memory;
    return SUCCESS;
}

static CUresult release(CUdeviceptr at) {
    struct Block **link = find_block(at, 1);
    REQUIRE(link && (uintptr_t)(*link)->at == at, INVALID_VALUE);
    release_block(link);
    return SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CONTEXT;
    char name[40];
    size_t used = 0, rest;
    snprintf(name, sizeof name, "GRIDGUARD_FAKE_FREE_%d", visible[ctx->device]);
    for (struct Block *b = blocks; b; b = b->next)
        if (b->ctx->device == ctx->device && !b->pinned) used += b->bytes;
    rest = TOTAL_MEMORY - used < room(SIZE_MAX) ? TOTAL_MEMORY - used : room(SIZE_MAX);
    if (free_bytes) *free_bytes = (size_t)setting(name, rest);
    if (total) *total = TOTAL_MEMORY;
    return SUCCESS;
}

static CUresult submit(CUstream stream, const struct Op *op);

/* ---- Order: work of different streams that nothing orders is a race, which the log tells ---- */

static bool covers(const struct Clock *clock, const struct Clock *work) {
    for (int i = 1; i < STREAMS; i++)
        if (clock->of[i] < work->of[i]) return false;
    return true;
}

/* What the stream's next work comes after. */
static struct Clock *clock_of(CUstream stream) {
    if (!stream->number && numbers + 1 < STREAMS) stream->number = ++numbers;
    merge(&stream->after, &host);
    /* The default stream waits for the streams that block it, and they for it. */
    CUcontext ctx = stream->ctx;
    for (int i = 0; i < OWN; i++) {
        if (stream == &ctx->legacy) merge(&stream->after, &ctx->own[i].after);
        if (stream == &ctx->own[i]) merge(&stream->after, &ctx->legacy.after);
    }
    return &stream->after;
}

/* Logs what the stream was given, if the environment asks for it. */
__attribute__((format(printf, 2, 3))) static void note(CUstream stream, const char *format, ...) {
    FILE *log = setting("GRIDGUARD_FAKE_LOG_WORK", 0) ? open_log() : NULL;
    if (!log) return;
    clock_of(stream);
    va_list values;
    va_start(values, format);
    fprintf(log, "work %u ", stream->number);
    vfprintf(log, format, values);
    fprintf(log, "%s\n", capture_of(stream) ? " captured" : "");
    va_end(values);
    fclose(log);
}

enum access { READ, WRITE, USE /* either */, FREE };

static void expect_order(bool ordered, const char *what) {
    FILE *log = ordered ? NULL : open_log();
    if (log) fprintf(log, "race %s\n", what), fclose(log);
}

/* Work of the stream, which `used` comes before from now on. */
static struct Clock *count_work(CUstream stream, struct Clock *used) {
    struct Clock *clock = clock_of(stream);
    work.of[stream->number] = ++clock->of[stream->number];
    merge(used, clock);
    return clock;
}

static void access_words(CUstream stream, const struct Block *block, size_t from, size_t bytes,
                         enum access how, const char *what) {
    bool ordered = true;
    const struct Clock *before = clock_of(stream);
    for (size_t i = from / 8; i < (from + bytes + 7) / 8; i++) {
        struct Use *word = &block->words[i];
        ordered = ordered && covers(before, how == WRITE ? &word->used : &word->written);
        struct Clock after = *before;
        after.of[stream->number]++;
        merge(&word->used, &after);
        if (how == WRITE) merge(&word->written, &after);
    }
    expect_order(ordered, what);
}

/* Work of the stream touches memory at this address; of pinned memory so many bytes. */
static void access_memory(CUstream stream, CUdeviceptr at, size_t bytes, enum access how) {
    static const char *const WHAT[] = {
        "read of memory that another stream uses", "write of memory that another stream uses",
        "use of memory that another stream uses", "free of memory that another stream uses"};
    struct Block **link = find_block(at, 1);
    if (!link) return;
    struct Block *block = *link;
    if (block->pinned) {
        access_words(stream, block, at - (uintptr_t)block->at, bytes, how, WHAT[how]);
        count_work(stream, &block->used);
        return;
    }
    const struct Clock *before = how == WRITE || how == FREE ? &block->used : &block->written;
    expect_order(covers(clock_of(stream), before), WHAT[how]);
    const struct Clock *clock = count_work(stream, &block->used);
    if (how == WRITE) merge(&block->written, clock);
}

/* The name of a kernel that does something, without the prefix. */
static const char *known_name(CUfunction f) { return f->name + (strncmp(f->name, "fake_", 5) ? 0 : 5); }

/* A kernel reads or writes what its arguments point to. What these are is known of few. */
static void access_arguments(CUstream stream, const struct Op *op) {
    CUfunction f = op->function;
    const char *name = known_name(f);
    bool spill = !strcmp(name, "spill_y"), writes = spill || !strncmp(name, "iota_", 5);
    count_work(stream, &f->module->used);
    for (size_t i = 0; f->params_known && op->args && i < f->params; i++) {
        CUdeviceptr at;
        if (f->size[i] != sizeof at) continue;
        memcpy(&at, op->args + f->offset[i], sizeof at);
        access_memory(stream, at, 8, (writes && i == 0) || (spill && i == 3) ? WRITE : USE);
    }
}

/* Stream-ordered memory is allocated at once; memory freed during a capture is kept for replays. */
CALL(cuMemAllocAsync, (CUdeviceptr *at, size_t bytes, CUstream handle), STREAM,
     *at = 0; if (bytes) CHECK(allocate(ctx, at, bytes, capture_of(stream)));
     if (bytes) CHECK(submit(stream, &(struct Op){.kind = RESERVE, .bytes = bytes})))
CALL(cuMemFreeAsync, (CUdeviceptr at, CUstream handle), STREAM,
     if (at && !capture_of(stream)) { access_memory(stream, at, 0, FREE); CHECK(release(at)); note(stream, "free"); })
CALL(cuMemAlloc_v2, (CUdeviceptr *at, size_t bytes), CONTEXT; REQUIRE(at && bytes, INVALID_VALUE),
     CHECK(capture_error()); CHECK(allocate(ctx, at, bytes, false)))
CALL(cuMemAllocManaged, (CUdeviceptr *at, size_t bytes, unsigned flags),
     CONTEXT; REQUIRE(at && bytes && (flags == 1 || flags == 2), INVALID_VALUE),
     CHECK(capture_error()); CHECK(allocate(ctx, at, bytes, false)))
CALL(cuMemFree_v2, (CUdeviceptr at), CONTEXT, CHECK(capture_error());
     struct Block **link = find_block(at, 1);
     expect_order(!link || covers(&host, &(*link)->used), "free of memory in use");
     if (at) CHECK(release(at)))
CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element) {
    REQUIRE(pitch && width && height, INVALID_VALUE);
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(at, *pitch * height);
}

FORWARD(cuMemAllocFromPoolAsync, (CUdeviceptr *at, size_t bytes, void *pool, CUstream handle),
        cuMemAllocAsync(at, bytes, handle))
/* Physical memory: a handle is the address of a block, with a bit that no address has. */
struct Properties { int kind, handles, location_kind, location; };
static const unsigned long long PHYSICAL = 1;
CALL(cuMemCreate, (unsigned long long *handle, size_t bytes, const struct Properties *of, unsigned long long flags),
     CONTEXT; REQUIRE(handle && bytes && of && !flags && !device_error(of->location), INVALID_VALUE),
     CHECK(allocate(ctx, handle, bytes, false)); *handle |= PHYSICAL)
CALL(cuMemRelease, (unsigned long long handle), LIBRARY; REQUIRE(handle & PHYSICAL, INVALID_VALUE),
     CHECK(release(handle & ~PHYSICAL)))

/* The pool of a device keeps what the environment says. */
CALL(cuDeviceGetMemPool, (void **pool, CUdevice device), DEVICE, *pool = &primary[device])
CALL(cuMemPoolGetAttribute, (void *pool, int attribute, unsigned long long *value),
     LIBRARY; REQUIRE(pool && (attribute == 5 || attribute == 7), INVALID_VALUE), /* reserved, used */
     *value = attribute == 5 ? setting("GRIDGUARD_FAKE_POOL_UNUSED", 0) : 0)

CALL(cuMemHostAlloc, (void **at, size_t bytes, unsigned flags),
     CONTEXT; REQUIRE(at && bytes, INVALID_VALUE); CHECK(capture_error());
     REQUIRE(bytes <= setting("GRIDGUARD_FAKE_PINNED_LIMIT", SIZE_MAX), OUT_OF_MEMORY), *at = make(bytes);
     struct Block *block = make(sizeof *block);
     *block = (struct Block){.at = *at, .bytes = bytes, .ctx = ctx, .next = blocks, .pinned = true,
                             .words = make((bytes + 7) / 8 * sizeof(struct Use))};
     blocks = block)
FORWARD(cuMemAllocHost_v2, (void **at, size_t bytes), cuMemHostAlloc(at, bytes, 0))
CALL(cuMemFreeHost, (void *at), CONTEXT; struct Block **link = find_block((uintptr_t)at, 1);
     REQUIRE(link && (*link)->pinned && (*link)->at == at, INVALID_VALUE),
     expect_order(covers(&host, &(*link)->used), "free of memory in use"); release_block(link))

/* ---- Work: executed at once, or recorded in a capture's graph ---- */

/* A little-endian integer of any size, in hexadecimal without leading zeros. */
static void print_integer(FILE *log, const unsigned char *bytes, size_t size) {
    while (size > 1 && !bytes[size - 1]) size--;
    for (size_t i = size; i-- > 0;) fprintf(log, i + 1 == size ? "%x" : "%02x", bytes[i]);
}

static void log_launch(const struct Op *op, const char *how) {
    const CUfunction f = op->function;
    const struct Launch *l = &op->launch;
    FILE *log = open_log();
    if (!log) return;
    fprintf(log, "launch %s grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%s args=%s", f->name,
            l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared, how,
            f->params_known ? "" : "?");
    for (size_t i = 0; i < f->params; i++) {
        if (i) fputc(',', log);
        print_integer(log, op->args + f->offset[i], f->size[i]);
    }
    if (l->cluster[0]) fprintf(log, " cluster=%u,%u,%u", l->cluster[0], l->cluster[1], l->cluster[2]);
    if (l->cooperative) fputs(" cooperative=1", log);
    if (l->overlap) fputs(" overlap=1", log);
    if (l->prior) fprintf(log, " priority=%d", l->priority);
    if (f->module->ctx->device) fprintf(log, " device=%d", f->module->ctx->device);
    fputc('\n', log);
    fclose(log);
}

/* The driver's log of rejected calls, cut to the buffer. */
static char words[4096];
static size_t words_length;

static void say(const char *call) {
    const char *text = getenv("GRIDGUARD_FAKE_DRIVER_LOG");
    if (!text) return;
    unsigned long long thread = setting("GRIDGUARD_FAKE_DRIVER_LOG_THREAD", (unsigned long long)gettid());
    int written = snprintf(words + words_length, sizeof words - words_length,
                           "[12:00:00.000][%llu][CUDA][E][%s] %s\n", thread, call, text);
    if (written > 0 && (size_t)written < sizeof words - words_length) words_length += (size_t)written;
}

/* Counts and logs a launch, or fails the launch that the environment chooses. A faulting launch is
 * accepted, and every later call of its context fails. */
static CUresult account(const struct Op *op, const char *how) {
    unsigned long long launch = launches++;
    CUcontext ctx = op->function->module->ctx;
    if (launch == setting("GRIDGUARD_FAKE_FAIL_LAUNCH", ULLONG_MAX)) {
        CUresult code = (CUresult)setting("GRIDGUARD_FAKE_FAIL_CODE", LAUNCH_FAILED);
        if (setting("GRIDGUARD_FAKE_STICKY", 0)) ctx->sticky = code;
        say("cuLaunchKernel");
        return code;
    }
    log_launch(op, how);
    if (launch == setting("GRIDGUARD_FAKE_FAULT_LAUNCH", ULLONG_MAX))
        ctx->sticky = (CUresult)setting("GRIDGUARD_FAKE_FAULT_CODE", ILLEGAL_ADDRESS);
    return SUCCESS;
}

/* `iota_x` and `iota_y` write out[b] = first + b for each block b along the axis; `spill_y` writes it
 * to its workspace too. `fault_..` does what `iota_y` does, and faults if it has the item `faulty`. */
static CUresult run_kernel(const struct Op *op) {
    CUfunction f = op->function;
    const char *name = known_name(f);
    bool spill = !strcmp(name, "spill_y"), faulty = !strncmp(name, "fault_", 6);
    bool y = spill || faulty || !strcmp(name, "iota_y");
    int axis = !strcmp(name, "iota_x") ? 0 : y ? 1 : -1;
    if (axis < 0 || f->params != (faulty ? 7 : spill ? 4 : 3)) return SUCCESS;
    unsigned long long arg[7] = {0}; /* out, first, items, workspace or faulty, how, cycles, code */
    for (size_t i = 0; i < f->params; i++) {
        if (f->size[i] != 8 && (f->size[i] != 4 || i == 0)) return SUCCESS;
        memcpy(&arg[i], op->args + f->offset[i], f->size[i]);
    }
    size_t bytes = 8 * (size_t)op->launch.grid[axis];
    if (!owned(arg[0], bytes) || (spill && !owned(arg[3], bytes)))
        return f->module->ctx->sticky = ILLEGAL_ADDRESS;
    for (unsigned long long b = 0; b < op->launch.grid[axis]; b++) {
        unsigned long long item = arg[1] + b;
        memcpy((char *)(uintptr_t)arg[0] + 8 * b, &item, sizeof item);
        if (spill) memcpy((char *)(uintptr_t)arg[3] + 8 * b, &item, sizeof item);
        if (faulty && item == arg[3]) f->module->ctx->sticky = (CUresult)arg[6];
    }
    return SUCCESS;
}

/* `gridguard_invert`: values[i] = ~values[i] for every item. */
static CUresult invert(const struct Op *op) {
    unsigned long long arg[2]; /* values, items */
    memcpy(arg, op->args, sizeof arg);
    if (!owned(arg[0], 8 * (size_t)arg[1])) return op->function->module->ctx->sticky = ILLEGAL_ADDRESS;
    unsigned long long *values = (unsigned long long *)(uintptr_t)arg[0];
    for (unsigned long long i = 0; i < arg[1]; i++) values[i] = ~values[i];
    return SUCCESS;
}

static CUresult perform(const struct Op *op, const char *how) {
    void *to = (void *)(uintptr_t)op->to;
    if (op->kind == COPY) memmove(to, (const void *)(uintptr_t)op->from, op->bytes);
    if (op->kind == FILL) memset(to, op->value, op->bytes);
    if (op->kind == RESERVE && !strcmp(how, "graph")) REQUIRE(op->bytes <= room(TOTAL_MEMORY), OUT_OF_MEMORY);
    for (size_t i = 0; op->kind == CHILD && i < op->child->count; i++) CHECK(perform(&op->child->ops[i], how));
    if (op->kind == KERNEL) CHECK(account(op, how));
    if (op->kind != KERNEL) return SUCCESS;
    bool inverts = !strcmp(op->function->name, "gridguard_invert") && op->function->params == 2;
    return inverts ? invert(op) : run_kernel(op);
}

static void append(CUgraph graph, const struct Op *op) {
    graph->ops = realloc(graph->ops, (graph->count + 1) * sizeof *op);
    if (!graph->ops) abort();
    graph->ops[graph->count++] = *op;
}

/* Host memory: pinned, or not of the driver. */
static bool is_host(CUdeviceptr at) {
    struct Block **link = find_block(at, 1);
    return !link || (*link)->pinned;
}

static void note_op(CUstream stream, const struct Op *op) {
    const char *way = is_host(op->from) ? " in" : is_host(op->to) ? " out" : "";
    if (op->kind == KERNEL) note(stream, "launch %s", op->function->name);
    if (op->kind == COPY) note(stream, "copy%s %zu", way, op->bytes);
    if (op->kind == FILL) note(stream, "fill %zu", op->bytes);
    if (op->kind == RESERVE) note(stream, "allocate %zu", op->bytes);
}

/* The stream's accesses to memory, for the order between streams. */
static void access_op(CUstream stream, const struct Op *op) {
    if (op->kind == KERNEL) access_arguments(stream, op);
    if (op->kind == COPY) access_memory(stream, op->from, op->bytes, READ);
    if (op->kind == COPY || op->kind == FILL) access_memory(stream, op->to, op->bytes, WRITE);
}

static CUresult submit(CUstream stream, const struct Op *op) {
    struct Capture *c = capture_of(stream);
    note_op(stream, op);
    if (!c) access_op(stream, op);
    if (!c) return perform(op, "eager");
    REQUIRE(c->status == CAPTURE_ACTIVE, STREAM_CAPTURE_INVALIDATED);
    if (op->kind == KERNEL) CHECK(account(op, "capturing"));
    append(c->graph, op);
    return SUCCESS;
}

#define COPY_OP(dst, src, n) &(struct Op){.kind = COPY, .to = dst, .from = src, .bytes = n}
#define FILL_OP(dst, byte, n) &(struct Op){.kind = FILL, .to = dst, .value = byte, .bytes = n}

CALL(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream handle),
     STREAM; REQUIRE(owned(to, bytes) && (from || !bytes), INVALID_VALUE),
     CHECK(submit(stream, COPY_OP(to, (uintptr_t)from, bytes))))
CALL(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream handle),
     STREAM; REQUIRE(owned(from, bytes) && (to || !bytes), INVALID_VALUE),
     CHECK(submit(stream, COPY_OP((uintptr_t)to, from, bytes)));
     struct Block **link = find_block((uintptr_t)to, 1);
     bool pinned = link && (*link)->pinned;
     if (!pinned && !capture_of(stream)) merge(&host, &stream->after) /* pageable: the call waits */)
CALL(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle),
     STREAM; REQUIRE(owned(from, bytes) && owned(to, bytes), INVALID_VALUE),
     CHECK(submit(stream, COPY_OP(to, from, bytes))))
CALL(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle),
     STREAM; REQUIRE(owned(to, bytes), INVALID_VALUE), CHECK(submit(stream, FILL_OP(to, value, bytes))))
FORWARD(cuMemcpyPeerAsync, (CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx,
        size_t bytes, CUstream handle), cuMemcpyDtoDAsync_v2(to, from, bytes, handle))

CALL(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes),
     CHECK(capture_error_unlocked()), CHECK(cuMemcpyHtoDAsync_v2(to, from, bytes, NULL)))
CALL(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes),
     CHECK(capture_error_unlocked()), CHECK(cuMemcpyDtoHAsync_v2(to, from, bytes, NULL)))
CALL(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
     CHECK(capture_error_unlocked()), CHECK(cuMemcpyDtoDAsync_v2(to, from, bytes, NULL)))
CALL(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t bytes),
     CHECK(capture_error_unlocked()), CHECK(cuMemsetD8Async(to, value, bytes, NULL)))

/* ---- Launches ---- */

static unsigned threads_of(const struct Launch *l) { return l->block[0] * l->block[1] * l->block[2]; }

static bool registers_fit(CUfunction f, const struct Launch *l) {
    return round_up(threads_of(l), WARP) / WARP <= warps_by_registers(f);
}

/* The checks before those of clusters, in the order of an H200. */
static CUresult dimension_error(CUfunction f, const struct Launch *l, bool clustered) {
    for (int axis = 0; axis < 3; axis++)
        REQUIRE(l->block[axis] && l->block[axis] <= MAX_BLOCK[axis], INVALID_VALUE);
    REQUIRE(threads_of(l) <= MAX_THREADS, INVALID_VALUE);
    /* Many registers lower the kernel's own limit too; they are checked later. */
    unsigned own = (unsigned)f->attribute[FA_MAX_THREADS];
    bool bounded = own < warps_by_registers(f) * WARP || registers_fit(f, l);
    REQUIRE(!bounded || threads_of(l) <= own, INVALID_VALUE);
    for (int axis = 0; axis < 3 && clustered; axis++)
        REQUIRE(l->cluster[axis], INVALID_CLUSTER_SIZE);
    for (int axis = 0; axis < 3; axis++)
        REQUIRE(l->grid[axis] && l->grid[axis] <= MAX_GRID[axis], INVALID_VALUE);
    return SUCCESS;
}

/* The checks after those of clusters and cooperative launches. */
static CUresult resource_error(CUfunction f, const struct Launch *l) {
    REQUIRE(l->shared <= (unsigned)f->attribute[FA_MAX_DYNAMIC], INVALID_VALUE);
    REQUIRE(registers_fit(f, l), LAUNCH_OUT_OF_RESOURCES);
    /* A new context has 1,024 bytes per thread; more is allocated for every thread that can run. */
    size_t local = (size_t)f->attribute[FA_LOCAL];
    REQUIRE(local <= 512 * 1024 - 576, INVALID_VALUE);
    REQUIRE(local <= 1024 || local * THREADS_PER_SM * SMS <= room(TOTAL_MEMORY), OUT_OF_MEMORY);
    return SUCCESS;
}

/* Blocks of the largest cluster. */
static unsigned max_cluster(CUfunction f) {
    unsigned most = f->attribute[FA_NON_PORTABLE] ? CLUSTER_MOST : CLUSTER_PORTABLE;
    return least_of(most, (unsigned)setting("GRIDGUARD_FAKE_MAX_CLUSTER", CLUSTER_MOST));
}

/* A plain launch takes the kernel's own cluster size; any other size is rejected. */
static CUresult settle_cluster(CUfunction f, struct Launch *l, bool asked) {
    const int *own = &f->attribute[FA_CLUSTER_X];
    unsigned most = max_cluster(f), size = 1;
    if (!asked && !own[0])
        return f->attribute[FA_CLUSTER_MUST_BE_SET] ? INVALID_CLUSTER_SIZE : SUCCESS;
    for (int axis = 0; axis < 3; axis++) {
        unsigned fixed = own[axis] > 0 ? (unsigned)own[axis] : 1;
        if (!asked) l->cluster[axis] = fixed;
        unsigned dim = l->cluster[axis];
        REQUIRE(!own[0] || dim == fixed, INVALID_CLUSTER_SIZE);
        REQUIRE(dim && l->grid[axis] % dim == 0, INVALID_CLUSTER_SIZE);
        size = dim <= most ? size * dim : most + 1;
    }
    /* If the kernel allows large clusters, only occupancy limits them. */
    bool by_occupancy = l->cooperative && f->attribute[FA_NON_PORTABLE];
    REQUIRE(size <= most || !by_occupancy, COOPERATIVE_LAUNCH_TOO_LARGE);
    return size <= most ? SUCCESS : INVALID_CLUSTER_SIZE;
}

static bool fits_at_once(CUfunction f, const struct Launch *l, unsigned sms) {
    unsigned long long room = (unsigned long long)blocks_per_sm(f, threads_of(l), l->shared) * sms;
    unsigned long long wanted = l->grid[0];
    for (int axis = 1; axis < 3 && wanted <= room; axis++) wanted *= l->grid[axis];
    return wanted <= room;
}

/* The buffer of all parameters, which a launch may pass instead of their addresses. */
static CUresult read_extra(CUfunction f, void **extra, const unsigned char **buffer) {
    enum { END, POINTER, SIZE };
    size_t size = 0;
    for (; (uintptr_t)*extra != END; extra += 2) {
        if ((uintptr_t)*extra == POINTER) *buffer = extra[1];
        else if ((uintptr_t)*extra == SIZE) size = *(size_t *)extra[1];
        else return INVALID_VALUE;
    }
    REQUIRE(*buffer && size >= f->param_bytes, INVALID_VALUE);
    return SUCCESS;
}

/* Gives an operation its arguments. */
static CUresult pack(struct Op *op, void **params, void **extra) {
    const CUfunction f = op->function;
    const unsigned char *buffer = NULL;
    if (extra) CHECK(read_extra(f, extra, &buffer));
    for (size_t i = 0; !buffer && i < f->params; i++) REQUIRE(params && params[i], INVALID_VALUE);
    if (f->params) op->args = make(f->param_bytes);
    for (size_t i = 0; i < f->params; i++)
        memcpy(op->args + f->offset[i], buffer ? buffer + f->offset[i] : params[i], f->size[i]);
    return SUCCESS;
}

/* The checks after those of dimensions and arguments. */
static CUresult configuration_error(CUfunction f, struct Launch *l, bool clustered, unsigned sms) {
    CHECK(settle_cluster(f, l, clustered));
    REQUIRE(!l->cooperative || fits_at_once(f, l, sms), COOPERATIVE_LAUNCH_TOO_LARGE);
    return resource_error(f, l);
}

static CUresult launch(CUfunction f, struct Launch l, bool clustered, CUstream handle, void **params,
                       void **extra) {
    STREAM;
    if (f && f->of_kernel) f = f->of_kernel;
    REQUIRE(f && loaded(f->module) && f->module->ctx == ctx, INVALID_HANDLE);
    CHECK(dimension_error(f, &l, clustered));
    struct Op op = {.kind = KERNEL, .function = f};
    CHECK(pack(&op, params, extra));
    unsigned sms = is_green(stream) ? share("GRIDGUARD_FAKE_GREEN_STREAMS") : sms_of_context();
    CUresult answer = configuration_error(f, &l, clustered, sms);
    op.launch = l;
    if (!answer) answer = submit(stream, &op);
    if (answer || !capture_of(stream)) free(op.args); /* else the graph owns it */
    return answer;
}

#ifndef FAKE_BROKEN
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
    struct Launch l = {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared};
    return launch(f, l, false, stream, params, extra);
}
#endif

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                   void **params) {
    struct Launch l = {{gx, gy, gz}, {bx, by, bz}, .shared = shared, .cooperative = true};
    return launch(f, l, false, stream, params, NULL);
}

#ifndef FAKE_OLD
CALL(cuLogsCurrent, (unsigned *position, unsigned flags),
     LOCKED; REQUIRE(position && !flags, INVALID_VALUE), *position = (unsigned)words_length)

CUresult cuLogsDumpToMemory(unsigned *position, char *buffer, size_t *size, unsigned flags) {
    LOCKED;
    REQUIRE(buffer && size && *size && !flags, INVALID_VALUE);
    size_t from = position ? *position : 0, fresh = words_length - from;
    REQUIRE(fresh < *size, INVALID_VALUE);
    memcpy(buffer, words + from, fresh);
    buffer[*size = fresh] = 0;
    if (position) *position = (unsigned)words_length;
    return SUCCESS;
}

/* Whether the attributes have a cluster size. */
static bool read_config(const CUlaunchConfig *config, struct Launch *l) {
    enum { COOPERATIVE = 2, CLUSTER_DIMENSION = 4, PROGRAMMATIC_STREAM_SERIALIZATION = 6, PRIORITY = 8 };
    bool clustered = false;
    *l = (struct Launch){.shared = config->shared};
    memcpy(l->grid, config->grid, sizeof l->grid);
    memcpy(l->block, config->block, sizeof l->block);
    for (unsigned i = 0; i < config->count; i++) {
        const CUlaunchAttribute *a = &config->attrs[i];
        if (a->id == COOPERATIVE) l->cooperative = a->value.cooperative != 0;
        if (a->id == PROGRAMMATIC_STREAM_SERIALIZATION) l->overlap = a->value.overlap != 0;
        if (a->id == PRIORITY) l->prior = true, l->priority = a->value.priority;
        if (a->id != CLUSTER_DIMENSION) continue;
        memcpy(l->cluster, a->value.cluster, sizeof l->cluster);
        /* A size of zeros means no cluster (H200). */
        clustered = l->cluster[0] || l->cluster[1] || l->cluster[2];
    }
    return clustered;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
    struct Launch l;
    REQUIRE(config && (config->attrs || !config->count), INVALID_VALUE);
    bool clustered = read_config(config, &l);
    return launch(f, l, clustered, config->stream, params, extra);
}

CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction f, const CUlaunchConfig *config) {
    FUNCTION;
    struct Launch l;
    REQUIRE(size && config, INVALID_VALUE);
    CHECK(account_question(f, "cluster"));
    bool must = f->attribute[FA_CLUSTER_MUST_BE_SET] && !f->attribute[FA_CLUSTER_X];
    REQUIRE(read_config(config, &l) || !must, INVALID_CLUSTER_SIZE);
    *size = (int)max_cluster(f);
    return SUCCESS;
}

/* An upper bound: a real device loses blocks where a cluster does not fill its multiprocessors. */
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction f, const CUlaunchConfig *config) {
    FUNCTION;
    struct Launch l;
    bool clustered = read_config(config, &l);
    CHECK(account_question(f, "clusters"));
    CHECK(dimension_error(f, &l, clustered));
    CHECK(resource_error(f, &l));
    CHECK(settle_cluster(f, &l, clustered));
    unsigned size = l.cluster[0] ? l.cluster[0] * l.cluster[1] * l.cluster[2] : 1;
    *clusters = (int)(blocks_per_sm(f, threads_of(&l), l.shared) * sms_of_context() / size);
    return SUCCESS;
}
#endif

/* ---- Graphs ---- */

enum { NODE_KERNEL = 0, NODE_COPY = 1, NODE_FILL = 2, NODE_CHILD = 4, NODE_ALLOCATION = 10 }; /* CUgraphNodeType */

/* Nodes are checked when they are added or set, or when their graph is instantiated. */
static bool checks_late(void) { return setting("GRIDGUARD_FAKE_LATE_NODES", 0); }

static CUresult node_error(const struct Op *op) {
    struct Launch l = op->launch;
    CHECK(dimension_error(op->function, &l, l.cluster[0]));
    return configuration_error(op->function, &l, l.cluster[0], sms_of_context());
}

/* The operation of a node with these parameters, which keeps its cluster. */
static CUresult set_node(struct Op *op, const CUkernelNodeParams *p, bool is_new) {
    REQUIRE(p, INVALID_VALUE);
    CUfunction f = p->function ? p->function : is_new ? p->kernel : NULL;
    if (f && f->of_kernel) f = f->of_kernel;
    REQUIRE(f && loaded(f->module), INVALID_VALUE);
    struct Op fresh = {.kind = KERNEL, .function = f, .launch = op->launch};
    memcpy(fresh.launch.grid, p->grid, sizeof p->grid);
    memcpy(fresh.launch.block, p->block, sizeof p->block);
    fresh.launch.shared = p->shared;
    if (!checks_late()) CHECK(node_error(&fresh));
    CHECK(pack(&fresh, p->params, p->extra));
    *op = fresh;
    return SUCCESS;
}

static CUgraphNode node_of(CUgraph graph, size_t index) {
    CUgraphNode node = make(sizeof *node);
    *node = (struct Node){graph, index};
    return node;
}

static CUresult add_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                         const CUkernelNodeParams *p, bool is_new) {
    CONTEXT;
    REQUIRE(node && graph && !graph->dead && (after || !count), INVALID_VALUE);
    struct Op op = {0};
    CHECK(set_node(&op, p, is_new));
    append(graph, &op);
    *node = node_of(graph, graph->count - 1);
    return SUCCESS;
}

/* Sets a node of a graph, or the one that stands for it in an executable graph. */
static CUresult change_node(CUgraph graph, CUgraphNode node, const CUkernelNodeParams *p, bool is_new) {
    CONTEXT;
    REQUIRE(node && graph && !graph->dead && node->index < graph->count, INVALID_VALUE);
    return set_node(&graph->ops[node->index], p, is_new);
}

static CUresult read_node(CUgraphNode node, CUkernelNodeParams *p, size_t bytes) {
    LOCKED;
    REQUIRE(node && p && node->graph->ops[node->index].kind == KERNEL, INVALID_VALUE);
    const struct Op *op = &node->graph->ops[node->index];
    CUkernelNodeParams whole = {.function = op->function, .shared = op->launch.shared};
    memcpy(whole.grid, op->launch.grid, sizeof whole.grid);
    memcpy(whole.block, op->launch.block, sizeof whole.block);
    memcpy(p, &whole, bytes);
    return SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph) {
    REQUIRE(exec && graph && !graph->dead, INVALID_VALUE);
    for (size_t i = 0; i < graph->count; i++) {
        CUgraphExec child;
        if (graph->ops[i].kind == KERNEL) CHECK(node_error(&graph->ops[i]));
        if (graph->ops[i].kind == CHILD) CHECK(instantiate(&child, graph->ops[i].child));
    }
    *exec = make(sizeof **exec);
    for (size_t i = 0; i < graph->count; i++) append(*exec, &graph->ops[i]);
    return SUCCESS;
}

CALL(cuGraphCreate, (CUgraph *graph, unsigned flags), LIBRARY; REQUIRE(graph && !flags, INVALID_VALUE),
     *graph = make(sizeof **graph))
FORWARD(cuGraphAddKernelNode, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
        const CUkernelNodeParams *p), add_node(node, graph, after, count, p, false))
FORWARD(cuGraphKernelNodeSetParams, (CUgraphNode node, const CUkernelNodeParams *p),
        change_node(node ? node->graph : NULL, node, p, false))
FORWARD(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode node, const CUkernelNodeParams *p),
        change_node(exec, node, p, false))
FORWARD(cuGraphKernelNodeGetParams, (CUgraphNode node, CUkernelNodeParams *p),
        read_node(node, p, offsetof(CUkernelNodeParams, kernel)))
CALL(cuGraphAddChildGraphNode,
     (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child),
     LIBRARY; REQUIRE(node && graph && child && (after || !count), INVALID_VALUE),
     append(graph, (&(struct Op){.kind = CHILD, .child = child})); *node = node_of(graph, graph->count - 1))
CALL(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph *child),
     LIBRARY; REQUIRE(node && child && node->graph->ops[node->index].kind == CHILD, INVALID_VALUE),
     *child = node->graph->ops[node->index].child)

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    LIBRARY;
    REQUIRE(graph && !graph->dead && count, INVALID_VALUE);
    size_t most = *count;
    for (size_t i = 0; nodes && i < most; i++) nodes[i] = i < graph->count ? node_of(graph, i) : NULL;
    *count = nodes && most < graph->count ? most : graph->count;
    return SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    static const int TYPES[] = {NODE_KERNEL, NODE_COPY, NODE_FILL, NODE_ALLOCATION, NODE_CHILD};
    LIBRARY;
    REQUIRE(node && type, INVALID_VALUE);
    *type = TYPES[node->graph->ops[node->index].kind];
    return SUCCESS;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, unsigned id, const void *value) {
    LIBRARY;
    REQUIRE(node && value && id == 4 /* cluster */, INVALID_VALUE);
    memcpy(node->graph->ops[node->index].launch.cluster, value, 3 * sizeof(unsigned));
    return SUCCESS;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, unsigned id, void *value) {
    LIBRARY;
    REQUIRE(node && value && (id == 2 || id == 4 || id == 8), INVALID_VALUE);
    const struct Launch *l = &node->graph->ops[node->index].launch;
    memset(value, 0, 64);
    if (id == 4) memcpy(value, l->cluster, sizeof l->cluster);
    if (id == 2) *(int *)value = l->cooperative;
    if (id == 8) *(int *)value = l->priority;
    return SUCCESS;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *log, size_t bytes) {
    CONTEXT;
    CUresult answer = instantiate(exec, graph);
    if (failed) *failed = NULL;
    if (log && bytes) snprintf(log, bytes, answer ? "fake: not instantiated" : "");
    return answer;
}

FORWARD(cuGraphInstantiate, (CUgraphExec *exec, CUgraph graph, CUgraphNode *failed, char *log, size_t bytes),
        cuGraphInstantiate_v2(exec, graph, failed, log, bytes))

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    enum { AUTO_FREE = 1, DEVICE_LAUNCH = 4, ALL = 15 };
    CONTEXT;
    REQUIRE(flags <= ALL && (~flags & (AUTO_FREE | DEVICE_LAUNCH)), INVALID_VALUE);
    return instantiate(exec, graph);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
    STREAM;
    REQUIRE(exec && !exec->dead, INVALID_VALUE);
    REQUIRE(!capture_of(stream), STREAM_CAPTURE_UNSUPPORTED); /* no graphs within graphs */
    note(stream, "graph %zu", exec->count);
    for (size_t i = 0; i < exec->count; i++) access_op(stream, &exec->ops[i]);
    for (size_t i = 0; i < exec->count; i++) CHECK(perform(&exec->ops[i], "graph"));
    return SUCCESS;
}

CALL(cuGraphUpload, (CUgraphExec exec, CUstream handle), STREAM,
     REQUIRE(exec && !exec->dead, INVALID_VALUE))
CALL(cuGraphDestroy, (CUgraph graph), LOCKED; REQUIRE(graph && !graph->dead, INVALID_VALUE),
     graph->dead = true)
FORWARD(cuGraphExecDestroy, (CUgraphExec exec), cuGraphDestroy(exec))

#ifndef FAKE_OLD
FORWARD(cuGraphAddKernelNode_v2, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
        const CUkernelNodeParams *p), add_node(node, graph, after, count, p, true))
FORWARD(cuGraphKernelNodeSetParams_v2, (CUgraphNode node, const CUkernelNodeParams *p),
        change_node(node ? node->graph : NULL, node, p, true))
FORWARD(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode node, const CUkernelNodeParams *p),
        change_node(exec, node, p, true))
FORWARD(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUkernelNodeParams *p), read_node(node, p, sizeof *p))

/* Of generic nodes those of kernels. */
static const CUkernelNodeParams *kernel_of(const CUgraphNodeParams *p) {
    return p && p->type == NODE_KERNEL ? &p->kernel : NULL;
}

FORWARD(cuGraphAddNode, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
        CUgraphNodeParams *p), add_node(node, graph, after, count, kernel_of(p), true))
FORWARD(cuGraphAddNode_v2, (CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
        size_t count, CUgraphNodeParams *p), ((void)edges, add_node(node, graph, after, count, kernel_of(p), true)))
FORWARD(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *p),
        change_node(node ? node->graph : NULL, node, kernel_of(p), true))
FORWARD(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p),
        change_node(exec, node, kernel_of(p), true))

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUinstantiateParams *p) {
    CONTEXT;
    REQUIRE(p, INVALID_VALUE);
    CUresult answer = instantiate(exec, graph);
    p->result = answer != SUCCESS;
    p->failed = NULL;
    return answer;
}
#endif

/* ---- Streams and events ---- */

CUresult cuStreamSynchronize(CUstream handle) {
    STREAM;
    if (!capture_of(stream)) {
        merge(&host, clock_of(stream));
        return SUCCESS;
    }
    stream->capture->status = CAPTURE_INVALIDATED;
    return STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    STREAM;
    REQUIRE(alive(event), INVALID_HANDLE);
    struct Capture *here = capture_of(stream), *there = event->capture;
    note(stream, "wait %u", event->number);
    if (event->recorded && !here && !there) merge(&stream->after, &event->after);
    if (!event->recorded || here == there) return SUCCESS;
    if (here) {
        here->status = CAPTURE_INVALIDATED;
        return there ? STREAM_CAPTURE_MERGE : STREAM_CAPTURE_ISOLATION;
    }
    REQUIRE(there->status != CAPTURE_NONE, CAPTURED_EVENT);
    stream->capture = there; /* waiting for captured work makes this stream part of the capture */
    return SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
    STREAM;
    REQUIRE(alive(event) && event->ctx == ctx, INVALID_HANDLE);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    event->capture = capture_of(stream);
    event->recorded = true;
    event->after = *clock_of(stream);
    note(stream, "record %u", event->number);
    return SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent event, CUevent end) {
    EVENT;
    REQUIRE(alive(end) && event->recorded && end->recorded, INVALID_HANDLE);
    REQUIRE(event->timed && end->timed, INVALID_HANDLE);
    REQUIRE(!event->capture && !end->capture, CAPTURED_EVENT);
    *ms = (float)(end->ms - event->ms);
    return SUCCESS;
}

FORWARD(cuEventElapsedTime, (float *ms, CUevent event, CUevent end),
        cuEventElapsedTime_v2(ms, event, end))
CALL(cuEventQuery, (CUevent event), EVENT, REQUIRE(!event->capture, CAPTURED_EVENT);
     merge(&host, &event->after))
FORWARD(cuEventSynchronize, (CUevent event), cuEventQuery(event))
CALL(cuEventDestroy_v2, (CUevent event), EVENT, event->dead = true)
CALL(cuEventCreate, (CUevent *event, unsigned flags), CONTEXT; REQUIRE(event, INVALID_VALUE),
     *event = make(sizeof **event);
     static unsigned events;
     **event = (struct Event){.ctx = ctx, .life = ctx->life, .number = ++events};
     (*event)->timed = !(flags & 2 /* CU_EVENT_DISABLE_TIMING */))
CALL(cuStreamCreate, (CUstream *stream, unsigned flags),
     CONTEXT; REQUIRE(stream && flags <= 1, INVALID_VALUE),
     *stream = make(sizeof **stream);
     **stream = (struct Stream){.ctx = ctx, .life = ctx->life})
FORWARD(cuStreamCreateWithPriority, (CUstream *stream, unsigned flags, int priority),
        cuStreamCreate(stream, flags))
FORWARD(cuStreamQuery, (CUstream handle), cuStreamSynchronize(handle))
CALL(cuStreamDestroy_v2, (CUstream handle), STREAM; REQUIRE(stream == handle, INVALID_HANDLE),
     stream->dead = true)

/* ---- Entry points whose default stream is the thread's own, and lookups by name ---- */

/* The stream that such an entry point means by a handle; the log tells which entry point was called. */
static CUstream stream_of_thread(CUstream handle, const char *entry) {
    FILE *log = open_log();
    if (log) fprintf(log, "entry %s\n", entry), fclose(log);
    return handle ? handle : (CUstream)2;
}

FORWARD(cuStreamSynchronize_ptsz, (CUstream handle),
        cuStreamSynchronize(stream_of_thread(handle, __func__)))
FORWARD(cuMemAllocAsync_ptsz, (CUdeviceptr *at, size_t bytes, CUstream handle),
        cuMemAllocAsync(at, bytes, stream_of_thread(handle, __func__)))
FORWARD(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *at, size_t bytes, void *pool, CUstream handle),
        cuMemAllocFromPoolAsync(at, bytes, pool, stream_of_thread(handle, __func__)))
FORWARD(cuMemFreeAsync_ptsz, (CUdeviceptr at, CUstream handle),
        cuMemFreeAsync(at, stream_of_thread(handle, __func__)))
FORWARD(cuLaunchCooperativeKernel_ptsz,
        (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
         unsigned shared, CUstream stream, void **params),
        cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared, stream_of_thread(stream, __func__),
                                  params))

#if !defined FAKE_OLD && !defined FAKE_BROKEN
FORWARD(cuLaunchKernel_ptsz,
        (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
         unsigned shared, CUstream stream, void **params, void **extra),
        cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream_of_thread(stream, __func__), params, extra))

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
    REQUIRE(config, INVALID_VALUE);
    CUlaunchConfig own = *config;
    own.stream = stream_of_thread(own.stream, __func__);
    return cuLaunchKernelEx(&own, f, params, extra);
}

FORWARD(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream),
        cuGraphLaunch(exec, stream_of_thread(stream, __func__)))

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
    CHECK(cuCtxPushCurrent_v2(ctx));
    CUresult answer = cuCtxSynchronize();
    CHECK(cuCtxPopCurrent_v2(NULL));
    return answer;
}

CUresult cuGetProcAddress(const char *name, void **address, int version, unsigned long long flags);
CUresult cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long long flags,
                             int *found);

/* Functions of which there is more than one, in the order of their versions. */
#define ENTRY(name, version, thread, function) {name, version, thread, (void *)function}
static const struct { const char *name; int version; bool thread; void *address; } ENTRIES[] = {
    ENTRY("cuCtxSynchronize", 2000, false, cuCtxSynchronize),
    ENTRY("cuCtxSynchronize", 13000, false, cuCtxSynchronize_v2),
    ENTRY("cuGetProcAddress", 11030, false, cuGetProcAddress),
    ENTRY("cuGetProcAddress", 12000, false, cuGetProcAddress_v2),
    ENTRY("cuGraphAddKernelNode", 10000, false, cuGraphAddKernelNode),
    ENTRY("cuGraphAddKernelNode", 12000, false, cuGraphAddKernelNode_v2),
    ENTRY("cuGraphAddNode", 12020, false, cuGraphAddNode),
    ENTRY("cuGraphAddNode", 12030, false, cuGraphAddNode_v2),
    ENTRY("cuGraphExecKernelNodeSetParams", 10010, false, cuGraphExecKernelNodeSetParams),
    ENTRY("cuGraphExecKernelNodeSetParams", 12000, false, cuGraphExecKernelNodeSetParams_v2),
    ENTRY("cuGraphInstantiate", 10000, false, cuGraphInstantiate),
    ENTRY("cuGraphInstantiate", 11000, false, cuGraphInstantiate_v2),
    ENTRY("cuGraphInstantiate", 12000, false, cuGraphInstantiateWithFlags),
    ENTRY("cuGraphKernelNodeSetParams", 10000, false, cuGraphKernelNodeSetParams),
    ENTRY("cuGraphKernelNodeSetParams", 12000, false, cuGraphKernelNodeSetParams_v2),
    ENTRY("cuGraphLaunch", 10000, false, cuGraphLaunch),
    ENTRY("cuGraphLaunch", 10000, true, cuGraphLaunch_ptsz),
    ENTRY("cuLaunchCooperativeKernel", 9000, false, cuLaunchCooperativeKernel),
    ENTRY("cuLaunchCooperativeKernel", 9000, true, cuLaunchCooperativeKernel_ptsz),
    ENTRY("cuLaunchKernel", 4000, false, cuLaunchKernel),
    ENTRY("cuLaunchKernel", 7000, true, cuLaunchKernel_ptsz),
    ENTRY("cuLaunchKernelEx", 11060, false, cuLaunchKernelEx),
    ENTRY("cuLaunchKernelEx", 11060, true, cuLaunchKernelEx_ptsz),
    ENTRY("cuMemAllocAsync", 11020, false, cuMemAllocAsync),
    ENTRY("cuMemAllocAsync", 11020, true, cuMemAllocAsync_ptsz),
    ENTRY("cuMemAllocFromPoolAsync", 11020, false, cuMemAllocFromPoolAsync),
    ENTRY("cuMemAllocFromPoolAsync", 11020, true, cuMemAllocFromPoolAsync_ptsz),
    ENTRY("cuMemFreeAsync", 11020, false, cuMemFreeAsync),
    ENTRY("cuMemFreeAsync", 11020, true, cuMemFreeAsync_ptsz),
    ENTRY("cuStreamSynchronize", 2000, false, cuStreamSynchronize),
    ENTRY("cuStreamSynchronize", 7000, true, cuStreamSynchronize_ptsz),
};

/* The function of this name, of the newest version up to the one asked for. */
static void *entry_of(const char *name, int version, bool thread) {
    void *found = NULL, *other = NULL;
    for (size_t i = 0; i < sizeof ENTRIES / sizeof *ENTRIES; i++) {
        if (strcmp(ENTRIES[i].name, name) || ENTRIES[i].version > version) continue;
        if (ENTRIES[i].thread == thread) found = ENTRIES[i].address;
        else if (!ENTRIES[i].thread) other = ENTRIES[i].address;
    }
    return found ? found : other;
}

CUresult cuGetProcAddress_v2(const char *name, void **address, int version, unsigned long long flags,
                             int *found) {
    enum { THREAD = 2, NOT_THERE = 1 };
    char second[MAX_NAME];
    Dl_info own;
    REQUIRE(name && address, INVALID_VALUE);
    *address = entry_of(name, version, flags & THREAD);
    if (!*address && dladdr((void *)cuGetProcAddress_v2, &own)) {
        void *library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        snprintf(second, sizeof second, "%s_v2", name);
        if (library) *address = dlsym(library, second);
        if (library && !*address) *address = dlsym(library, name);
        if (library) dlclose(library);
    }
    if (found) *found = *address ? 0 : NOT_THERE;
    return *address || found ? SUCCESS : NOT_FOUND;
}

FORWARD(cuGetProcAddress, (const char *name, void **address, int version, unsigned long long flags),
        cuGetProcAddress_v2(name, address, version, flags, NULL))
#endif
