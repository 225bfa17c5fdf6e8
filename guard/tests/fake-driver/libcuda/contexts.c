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
#ifndef FAKE_OLD
/* Each life of a context has its number. */
CUresult cuCtxGetId(CUcontext of, unsigned long long *id) {
    CONTEXT;
    REQUIRE(id && !of, INVALID_VALUE);
    *id = ((unsigned long long)(uintptr_t)ctx << 8) + ctx->life;
    return SUCCESS;
}
#endif
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
