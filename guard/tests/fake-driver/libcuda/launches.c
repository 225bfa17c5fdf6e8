/* ---- The log, if GRIDGUARD_FAKE_LOGS is set ---- */

typedef void (*CUlogsCallback)(void *data, unsigned level, char *message, size_t length);
static CUlogsCallback log_callback;

CUresult cuLogsRegisterCallback(CUlogsCallback callback, void *data, void **handle) {
    (void)data;
    REQUIRE(setting("GRIDGUARD_FAKE_LOGS", 0), NOT_SUPPORTED);
    REQUIRE(callback, INVALID_VALUE);
    log_callback = callback;
    if (handle) *handle = (void *)callback;
    return SUCCESS;
}

static void log_line(const char *format, ...) {
    char line[300];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (log_callback) log_callback(NULL, 0, line, (size_t)length);
}

/* For the fake runtime. */
void fake_write_log(const char *sentence);
void fake_write_log(const char *sentence) { log_line("%s", sentence); }

/* ---- Checks of launches ---- */

static unsigned round_up(unsigned value, unsigned unit) { return (value + unit - 1) / unit * unit; }
static unsigned least_of(unsigned a, unsigned b) { return a < b ? a : b; }

/* Registers are allocated to warps in units of 256, from four equal parts of the register file. */
static unsigned warps_by_registers(CUfunction f) {
    unsigned a_warp = round_up((unsigned)f->attribute[FA_REGS] * WARP, 256);
    return a_warp ? 4 * (REGISTERS / 4 / a_warp) : UINT_MAX / WARP;
}

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
    for (int axis = 0; axis < 3; axis++) {
        if (l->grid[axis] > MAX_GRID[axis]) {
            log_line("Grid Dimension %c of %u exceeds maximum value of %u", "XYZ"[axis], l->grid[axis], MAX_GRID[axis]);
            log_line("Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLaunchKernel");
        }
        REQUIRE(l->grid[axis] && l->grid[axis] <= MAX_GRID[axis], INVALID_VALUE);
    }
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

/* The checks after those of dimensions and arguments. */
static CUresult configuration_error(CUfunction f, struct Launch *l, bool clustered, unsigned sms) {
    CHECK(settle_cluster(f, l, clustered));
    REQUIRE(!l->cooperative || fits_at_once(f, l, sms), COOPERATIVE_LAUNCH_TOO_LARGE);
    return resource_error(f, l);
}

/* ---- Occupancy ---- */

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

#ifndef FAKE_OLD
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

/* ---- Launches ---- */

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

/* Captures the stream if the environment says so for this launch, as another thread could. */
static void capture_at(const char *name, CUstream stream) {
    if (launches == setting(name, ULLONG_MAX))
        begin_capture(stream, MODE_RELAXED, pthread_self());
}

static void others_go_on(unsigned long long ms) {
    pthread_mutex_unlock(&mutex);
    usleep((useconds_t)(1000 * ms));
    pthread_mutex_lock(&mutex);
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
    if (!answer) capture_at("GRIDGUARD_FAKE_CAPTURE_BEFORE", stream);
    if (!answer) answer = submit(stream, &op);
    if (answer || !capture_of(stream)) free(op.args); /* else the graph owns it */
    unsigned long long ms = setting("GRIDGUARD_FAKE_LAUNCH_MS", 0);
    if (ms) others_go_on(ms);
    while (setting("GRIDGUARD_FAKE_LAUNCH_UNTIL_CAPTURED", 0) && !capture_of(stream)) others_go_on(1);
    if (!answer) capture_at("GRIDGUARD_FAKE_CAPTURE_AFTER", stream);
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
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
    struct Launch l;
    REQUIRE(config && (config->attrs || !config->count), INVALID_VALUE);
    bool clustered = read_config(config, &l);
    return launch(f, l, clustered, config->stream, params, extra);
}
#endif
