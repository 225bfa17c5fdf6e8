/* ---- Allocations ---- */

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
     if (at) CHECK(release(at));
     merge(&host, &work) /* it synchronises all streams */)
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

/* Reserved addresses are host memory, which is there once access is set. Physical memory only counts. */
CALL(cuMemGetAllocationGranularity, (size_t *bytes, const struct Properties *of, int option),
     REQUIRE(bytes && of, INVALID_VALUE), *bytes = (size_t)2 << 20)
CALL(cuMemAddressReserve, (CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags),
     CONTEXT; REQUIRE(at && bytes && !flags, INVALID_VALUE);
     void *hint = (void *)(uintptr_t)wanted;
     int fixed = hint ? MAP_FIXED_NOREPLACE : 0;
     void *made = mmap(hint, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
     if (made == MAP_FAILED) made = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
     REQUIRE(made != MAP_FAILED, OUT_OF_MEMORY), *at = (uintptr_t)made)
CALL(cuMemAddressFree, (CUdeviceptr at, size_t bytes), LIBRARY, munmap((void *)(uintptr_t)at, bytes))
CALL(cuMemMap, (CUdeviceptr at, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags),
     CONTEXT; REQUIRE(handle & PHYSICAL && !offset && !flags, INVALID_VALUE),
     struct Block *block = make(sizeof *block);
     *block = (struct Block){.at = (char *)(uintptr_t)at, .bytes = bytes, .ctx = ctx, .next = blocks, .mapped = true};
     blocks = block)
CALL(cuMemSetAccess, (CUdeviceptr at, size_t bytes, const void *access, size_t count),
     CONTEXT; REQUIRE(access && count == 1, INVALID_VALUE),
     mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE))
CALL(cuMemUnmap, (CUdeviceptr at, size_t bytes), CONTEXT; struct Block **link = find_block(at, 1);
     REQUIRE(link && (*link)->mapped && (uintptr_t)(*link)->at == at, INVALID_VALUE), release_block(link))

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

/* ---- Copies and fills ---- */

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
