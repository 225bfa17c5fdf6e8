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

/* ---- Logs ---- */

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
#endif

/* ---- Work: executed at once, or recorded in a capture's graph ---- */

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
