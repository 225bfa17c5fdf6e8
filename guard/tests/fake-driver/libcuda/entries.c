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

FORWARD(cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
        cuMemcpyDtoDAsync_v2(to, from, bytes, stream_of_thread(stream, __func__)))

FORWARD(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream),
        cuGraphLaunch(exec, stream_of_thread(stream, __func__)))

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
    CHECK(cuCtxPushCurrent_v2(ctx));
    CUresult answer = cuCtxSynchronize();
    CHECK(cuCtxPopCurrent_v2(NULL));
    return answer;
}

/* A function of a CUDA to come. */
CUresult cuLaunchAnew(void) { return SUCCESS; }

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
    ENTRY("cuLaunchCooperativeKernel", 14000, false, cuLaunchAnew),
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
