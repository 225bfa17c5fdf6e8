/*
 * A fake CUDA driver library, for tests on machines without a GPU. README.md documents its
 * behaviour, environment variables and build options.
 *
 * It is one translation unit, so that its state stays private: this file has the state and what the
 * parts in libcuda/ share, and includes them in the order in which they build on each other.
 *
 * Small handles (streams, events, modules, graphs) are never freed, so that using one after its
 * destruction returns an error code instead of crashing the test.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* The driver's signatures have flags and options that a fake does not need. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include "libcuda/types.h"

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

static struct Capture *capture_of(CUstream stream) {
    return stream->capture && stream->capture->status != CAPTURE_NONE ? stream->capture : NULL;
}

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

static void release_block(struct Block **link) {
    struct Block *gone = *link;
    *link = gone->next;
    if (!gone->captured && !gone->pinned && !gone->mapped) allocated -= gone->bytes;
    free(gone->words);
    if (!gone->mapped) free(gone->at);
    free(gone);
}

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

/* The parts, each of which uses those before it. */
#include "libcuda/contexts.c"
#include "libcuda/work.c"
#include "libcuda/streams.c"
#include "libcuda/memory.c"
#include "libcuda/launches.c"
#include "libcuda/modules.c"
#include "libcuda/graphs.c"
#include "libcuda/entries.c"
