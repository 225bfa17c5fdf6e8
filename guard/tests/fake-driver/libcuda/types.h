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
    struct Variable *variables;
};
struct Variable { struct Variable *next; char name[MAX_NAME]; CUdeviceptr at; size_t bytes; };
struct Block {
    char *at;
    size_t bytes;
    CUcontext ctx;
    struct Block *next;
    bool captured, pinned, mapped;
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
