/* A fake CUDA runtime: its launches of any function launch one kernel through the driver that is loaded by
 * name, except that a dimension of zero is refused here. See README.md. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned x, y, z; } dim3;
typedef struct {
    dim3 grid, block;
    size_t shared;
    void *stream, *attributes;
    unsigned count;
} cudaLaunchConfig_t;
typedef int (*Call)();

enum { SUCCESS = 0, INITIALIZATION_ERROR = 3, INVALID_CONFIGURATION = 9, INVALID_DEVICE_FUNCTION = 98 };

static const char PTX[] = ".version 8.0\n.target sm_90\n.entry _Z5touchPfi() { }\n";
static void *driver, *kernel;
static _Thread_local int last;

/* The last error is that of the last call that failed. */
static int keep(int status) {
    if (status) last = status;
    return status;
}

static int is_on(const char *name) {
    const char *text = getenv(name);
    return !text || strcmp(text, "0");
}

static Call find(const char *name) {
    void *found = NULL;
    int status;
    Call query = (Call)dlsym(driver, "cuGetProcAddress_v2");
    if (!query || query(name, &found, 13000, 0ULL, &status)) abort();
    return (Call)found;
}

/* 0 if the driver checks everything, 1 if zeros are refused here, 2 if what exceeds the device's limits is too. */
static int checks(void) {
    const char *text = getenv("GRIDGUARD_FAKE_RUNTIME_CHECKS");
    return text ? atoi(text) : 1;
}

/* As a runtime does, at the first call that needs the driver. */
static int start(void) {
    void *context, *library;
    if (kernel) return SUCCESS;
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver || find("cuInit")(0)) return INITIALIZATION_ERROR;
    /* Only a runtime before CUDA 13 asks for this function. */
    if (checks() > 1) ((Call)dlsym(driver, "cuGetProcAddress_v2"))("cuLaunchCooperativeKernelMultiDevice", &library, 9000, 0ULL, &(int){0});
    int failed = find("cuDevicePrimaryCtxRetain")(&context, 0) || find("cuCtxSetCurrent")(context) ||
                 find("cuLibraryLoadData")(&library, PTX, NULL, NULL, 0, NULL, NULL, 0) ||
                 find("cuLibraryGetKernel")(&kernel, library, "_Z5touchPfi");
    return failed ? INITIALIZATION_ERROR : SUCCESS;
}

/* Whether a launch is refused without a call of the driver. */
static int is_refused(const cudaLaunchConfig_t *launch) {
    static const unsigned most[] = {0x7fffffff, 65535, 65535, 1024, 1024, 64};
    int level = checks(), refused = 0;
    const unsigned sizes[] = {launch->grid.x,  launch->grid.y,  launch->grid.z,
                              launch->block.x, launch->block.y, launch->block.z};
    for (int i = 0; i < 6; i++) refused |= level && (!sizes[i] || (level > 1 && sizes[i] > most[i]));
    return refused || (level > 1 && sizes[3] * sizes[4] * sizes[5] > 1024);
}

static int launch(const char *entry, cudaLaunchConfig_t launch, void **arguments) {
    const char *path = getenv("GRIDGUARD_FAKE_LOG");
    FILE *log = path && *path ? fopen(path, "a") : NULL;
    Dl_info own;
    if (log && dladdr(&kernel, &own)) fprintf(log, "runtime %s %s\n", strrchr(own.dli_fname, '/') + 1, entry);
    if (log) fclose(log);
    static int launches;
    if (!launches++ && getenv("GRIDGUARD_FAKE_RUNTIME_REFUSES")) return keep(INVALID_CONFIGURATION);
    if ((checks() > 1 || !is_refused(&launch)) && start()) return keep(INITIALIZATION_ERROR);
    if (is_refused(&launch)) {
        /* Runtimes since CUDA 12.9 write to the driver's log. */
        Call write_log = driver ? (Call)dlsym(driver, "fake_write_log") : NULL;
        char text[128];
        snprintf(text, sizeof text, "Grid Dimensions (%u,%u,%u) include one or more values that exceed the limit",
                 launch.grid.x, launch.grid.y, launch.grid.z);
        if (write_log && checks() > 1) write_log(text);
        return keep(INVALID_CONFIGURATION);
    }
    dim3 grid = launch.grid, block = launch.block;
    unsigned shared = (unsigned)launch.shared;
    if (strstr(entry, "Cooperative")) {
        return keep(find("cuLaunchCooperativeKernel")(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                      shared, launch.stream, arguments));
    }
    if (launch.attributes) {
        struct { dim3 grid, block; unsigned shared; void *stream, *attributes; unsigned count; } config = {
            grid, block, shared, launch.stream, launch.attributes, launch.count};
        return keep(find("cuLaunchKernelEx")(&config, kernel, arguments, NULL));
    }
    return keep(find("cuLaunchKernel")(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
                                       launch.stream, arguments, NULL));
}

#define LAUNCH(name)                                                                                        \
    int name(void *function, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {        \
        cudaLaunchConfig_t config = {grid, block, shared, stream, NULL, 0};                                 \
        return (void)function, launch(#name, config, arguments);                                            \
    }
LAUNCH(cudaLaunchKernel)
LAUNCH(cudaLaunchKernel_ptsz)
LAUNCH(cudaLaunchCooperativeKernel)
LAUNCH(__cudaLaunchKernel)

int cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    return (void)function, launch("cudaLaunchKernelExC", *config, arguments);
}

int cudaGetKernel(void **found, const void *function) {
    if (!function || !is_on("GRIDGUARD_FAKE_RUNTIME_NAMES") || start()) return keep(INVALID_DEVICE_FUNCTION);
    /* In the first runtimes of CUDA 12, handles are the host functions. */
    *found = checks() > 1 ? (void *)function : kernel;
    return SUCCESS;
}

int cudaGetFuncBySymbol(void **found, const void *function) {
    if (!function || !is_on("GRIDGUARD_FAKE_RUNTIME_NAMES") || start()) return keep(INVALID_DEVICE_FUNCTION);
    *found = kernel;
    return SUCCESS;
}

int cudaFuncGetName(const char **name, const void *function) {
    if (!function || !is_on("GRIDGUARD_FAKE_RUNTIME_NAMES") || checks() > 1) return keep(INVALID_DEVICE_FUNCTION);
    *name = "_Z5touchPfi";
    return SUCCESS;
}

int __cudaGetKernel(void **found, const void *function) { return cudaGetKernel(found, function); }

int cudaGetLastError(void) {
    int status = last;
    last = SUCCESS;
    return status;
}
