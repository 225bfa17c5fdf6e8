/* Tunes functions on the host and on the fake driver, with callbacks of every kind. */
#define _POSIX_C_SOURCE 200112L
#include "check.h"
#include <math.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif
int cuInit(unsigned flags);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuCtxSetCurrent(void *context);
int cuCtxGetCurrent(void **context);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes);
int cuMemsetD8Async(unsigned long long at, unsigned char value, size_t bytes, void *stream);
int cuStreamSynchronize(void *stream);
#ifdef __cplusplus
}
#endif

/* Writes `first` and the number of each block to the block's element of `out`. A device runs it, too. */
static const char PTX[] = "// fake fake_iota_y params=8,8,8\n"
                          ".version 8.0\n.target sm_70\n.address_size 64\n"
                          ".visible .entry fake_iota_y(\n"
                          ".param .u64 out, .param .u64 first, .param .u64 items\n)\n{\n"
                          ".reg .pred %other;\n.reg .b32 %thread, %block;\n"
                          ".reg .b64 %place, %value, %to;\n"
                          "mov.u32 %thread, %tid.x;\nsetp.ne.u32 %other, %thread, 0;\n"
                          "@%other ret;\nmov.u32 %block, %ctaid.y;\n"
                          "ld.param.u64 %value, [first];\nld.param.u64 %to, [out];\n"
                          "cvta.to.global.u64 %to, %to;\nmul.wide.u32 %place, %block, 8;\n"
                          "add.u64 %to, %to, %place;\ncvt.u64.u32 %place, %block;\n"
                          "add.u64 %value, %value, %place;\nst.global.u64 [%to], %value;\n"
                          "ret;\n}\n";

enum { ITEMS = 1000 };

static const uint64_t BLOCKS[] = {64, 128, 256}, CHUNKS[] = {ITEMS, ITEMS / 2};

/* A problem, and what its callback does. */
struct Problem {
    gg_key *key;
    gg_space space;
    gg_parameter size;
    gg_range ranges[2];
    int (*act)(struct Problem *problem, const gg_trial *trial);
    unsigned calls, checks;
    gg_kernel *kernel;
    unsigned long long out;
};

static int32_t call(const gg_trial *trial, void *user_data) {
    struct Problem *problem = (struct Problem *)user_data;
    CHECK(trial->struct_size == sizeof *trial);
    CHECK((trial->stream == NULL) == (problem->space.flags == GG_ON_HOST));
    problem->calls++;
    problem->checks += trial->output != NULL;
    return problem->act(problem, trial);
}

static void begin(struct Problem *problem, int (*act)(struct Problem *, const gg_trial *)) {
    ZEROED(gg_key_info, key);
    memset(problem, 0, sizeof *problem);
    key.kernel = "iota";
    key.flags = GG_HOT_CACHE;
    CHECK_STATUS(GG_OK, gg_key_create(&key, &problem->key, NULL));
    problem->act = act;
    problem->size.name = "items";
    problem->size.value = ITEMS;
    problem->ranges[0].name = "block";
    problem->ranges[0].values = BLOCKS;
    problem->ranges[0].count = 3;
    problem->ranges[1].name = "chunk";
    problem->ranges[1].values = CHUNKS;
    problem->ranges[1].count = 2;
    problem->space.struct_size = sizeof problem->space;
    problem->space.sizes = &problem->size;
    problem->space.size_count = 1;
    problem->space.ranges = problem->ranges;
    problem->space.range_count = 1;
    problem->space.output_count = 1;
    problem->space.flags = GG_ON_HOST;
}

static gg_status tune(struct Problem *problem, gg_tuning *tuning, uint64_t *values,
                      gg_error **error) {
    tuning->struct_size = sizeof *tuning;
    return gg_tune(problem->key, &problem->space, call, problem, tuning, values, NULL, error);
}

static void sleep_us(long microseconds) {
    struct timespec time = {0, 0};
    time.tv_nsec = microseconds * 1000;
    nanosleep(&time, NULL);
}

/* Block 128 is fastest. */
static int work(struct Problem *problem, const gg_trial *trial) {
    (void)problem;
    if (trial->output != NULL) {
        trial->output[0] = 1.5;
    } else {
        sleep_us(trial->values[0] == 128 ? 100 : 5000);
    }
    return 0;
}

static void the_fastest_value_wins_and_a_lookup_finds_it(const char *folder) {
    struct Problem problem;
    gg_tuning tuning;
    uint64_t values[2] = {0, 7};
    gg_text *report = NULL;
    begin(&problem, work);
    problem.space.folder = folder;
    tuning.struct_size = sizeof tuning;
    CHECK_STATUS(GG_OK, gg_tune(problem.key, &problem.space, call, &problem, &tuning, values,
                                &report, NULL));
    CHECK(values[0] == 128 && values[1] == 7 && tuning.stored == 1);
    CHECK(tuning.candidates == 3 && tuning.failures == 0);
    CHECK(tuning.median_ns > 0 && tuning.median_ns < tuning.default_ns);
    CHECK(strstr(gg_text_data(report), "block 128") != NULL);
    CHECK(gg_free(report) == GG_OK && gg_free(problem.key) == GG_OK);
}

/* The fastest one is wrong, and another one fails. */
static int cheat(struct Problem *problem, const gg_trial *trial) {
    work(problem, trial);
    if (trial->output != NULL && trial->values[0] == 128) {
        trial->output[0] = 1.25;
    }
    return trial->values[0] == 256 ? -1 : 0;
}

static void a_candidate_that_fails_or_is_wrong_never_wins(void) {
    struct Problem problem;
    gg_tuning tuning;
    uint64_t value = 0;
    begin(&problem, cheat);
    CHECK_STATUS(GG_OK, tune(&problem, &tuning, &value, NULL));
    /* Without a folder for profiles nothing is stored. */
    CHECK(value == 64 && tuning.failures == 2 && tuning.stored == 0);
    CHECK(gg_free(problem.key) == GG_OK);
}

static int fail(struct Problem *problem, const gg_trial *trial) {
    (void)problem;
    (void)trial;
    return 7;
}

/* Leaves the output as it is. */
static int write_nothing(struct Problem *problem, const gg_trial *trial) {
    (void)problem;
    CHECK(trial->output == NULL || isnan(trial->output[0]));
    return 0;
}

static int write_another_each_time(struct Problem *problem, const gg_trial *trial) {
    if (trial->output != NULL) {
        trial->output[0] = problem->calls;
    }
    return 0;
}

static void a_default_that_fails_or_returns_nonsense_is_an_error(void) {
    static const struct {
        int (*act)(struct Problem *, const gg_trial *);
        const char *message;
    } CASES[] = {
        {fail, "the default failed: the callback returned 7"},
        {write_nothing, "the default failed: the default's second run gave another output"},
        {write_another_each_time, "the default failed: the default's second run gave another"},
    };
    size_t place;
    for (place = 0; place < sizeof CASES / sizeof *CASES; place++) {
        struct Problem problem;
        gg_tuning tuning;
        gg_error *error = NULL;
        uint64_t value = 3;
        begin(&problem, CASES[place].act);
        CHECK_STATUS(GG_TUNING, tune(&problem, &tuning, &value, &error));
        check_error(error, GG_TUNING, CASES[place].message);
        CHECK(value == 3 && gg_free(problem.key) == GG_OK);
    }
}

/* Calls the library from within, also another tuning, and frees the key that is used. */
static int reenter(struct Problem *problem, const gg_trial *trial) {
    if (problem->calls == 1) {
        struct Problem inner;
        gg_tuning tuning;
        gg_limits *limits = NULL;
        gg_config config = attention();
        uint64_t value = 0;
        CHECK(gg_free(problem->key) == GG_OK);
        CHECK_STATUS(GG_OK, gg_limits_of_gpu("any", NULL, &limits, NULL));
        CHECK_STATUS(GG_REJECTED, gg_validate(limits, &config, NULL));
        CHECK(gg_free(limits) == GG_OK);
        begin(&inner, work);
        inner.space.max_ms = 1;
        CHECK_STATUS(GG_OK, tune(&inner, &tuning, &value, NULL));
        CHECK(tuning.stored == 0 && gg_free(inner.key) == GG_OK);
    }
    return work(problem, trial);
}

static void a_callback_may_call_the_library(void) {
    struct Problem problem;
    gg_tuning tuning;
    uint64_t value = 0;
    begin(&problem, reenter);
    CHECK_STATUS(GG_OK, tune(&problem, &tuning, &value, NULL));
    CHECK(value == 128);
    CHECK_STATUS(GG_INVALID_HANDLE, tune(&problem, &tuning, &value, NULL));
}

static void refused(const struct Problem *problem, gg_status status, const char *message) {
    gg_tuning tuning;
    gg_error *error = NULL;
    uint64_t values[2];
    struct Problem copy = *problem;
    CHECK_STATUS(status, tune(&copy, &tuning, values, &error));
    check_error(error, status, message);
    CHECK(copy.calls == 0);
}

static void wrong_arguments_are_refused_before_a_call(void) {
    ZEROED(gg_key_info, latency);
    ZEROED(gg_tuning, tuning);
    struct Problem problem, good;
    gg_range many[2];
    uint64_t value = 0, *values = (uint64_t *)calloc(5000, sizeof value);
    begin(&good, work);
#define REFUSED(status, change, message)                                                   \
    do {                                                                                   \
        problem = good;                                                                    \
        problem.space.sizes = &problem.size;                                               \
        problem.space.ranges = problem.ranges;                                             \
        change;                                                                            \
        refused(&problem, status, message);                                                \
    } while (0)
    REFUSED(GG_INVALID_STRUCT, problem.space.struct_size = 80, "space.struct_size is 80");
    REFUSED(GG_INVALID_ARGUMENT, problem.space.flags = 2, "space.flags");
    REFUSED(GG_INVALID_ARGUMENT, problem.space.sizes = NULL, "space.sizes is NULL");
    REFUSED(GG_INVALID_ARGUMENT, problem.space.size_count = SIZE_MAX, "space.sizes is 1844");
    REFUSED(GG_INVALID_ARGUMENT, problem.space.size_count = 0, "there are no items");
    REFUSED(GG_INVALID_ARGUMENT, problem.size.value = 0, "there are no items");
    REFUSED(GG_INVALID_ARGUMENT, problem.size.name = NULL, "space.sizes.name is NULL");
    REFUSED(GG_INVALID_ARGUMENT, problem.size.name = "\xff", "space.sizes.name is not UTF-8");
    REFUSED(GG_INVALID_ARGUMENT, problem.size.name = "", "\"\" cannot be a name");
    REFUSED(GG_INVALID_ARGUMENT, problem.space.ranges = NULL, "space.ranges is NULL");
    REFUSED(GG_INVALID_ARGUMENT, problem.ranges[0].values = NULL, "space.ranges.values is NULL");
    REFUSED(GG_INVALID_ARGUMENT, problem.ranges[0].count = 0, "the values of block are not");
    REFUSED(GG_INVALID_ARGUMENT, problem.ranges[0].count = SIZE_MAX, "space.ranges.values is");
    REFUSED(GG_INVALID_ARGUMENT, problem.ranges[0].name = "items", "items is given twice");
    REFUSED(GG_INVALID_ARGUMENT,
            (problem.space.range_count = 2, problem.ranges[0].name = "chunk"),
            "space.ranges is 1, expected a range with another name");
    REFUSED(GG_INVALID_ARGUMENT, problem.space.output_count = 0, "space.output_count is 0");
    REFUSED(GG_INVALID_ARGUMENT, problem.space.output_count = SIZE_MAX, "space.output_count is");
    REFUSED(GG_INVALID_ARGUMENT, problem.space.tolerance = -1, "the tolerance is -1");
    REFUSED(GG_INVALID_ARGUMENT, problem.space.tolerance = nan(""), "the tolerance is NaN");
    REFUSED(GG_TUNING, problem.space.journal = "/proc/none/journal", "journal /proc/none");
    REFUSED(GG_INVALID_HANDLE, problem.key = NULL, "key is NULL");
    for (value = 0; value < 5000; value++) {
        values[value] = value + 1;
    }
    memset(many, 0, sizeof many);
    many[0].name = "a";
    many[0].values = values;
    many[0].count = 5000;
    REFUSED(GG_INVALID_ARGUMENT, problem.space.ranges = many, "there are more than 4096");
    latency.kernel = "iota";
    latency.max_launch_us = 5;
    CHECK_STATUS(GG_OK, gg_key_create(&latency, &good.key, NULL));
    REFUSED(GG_INVALID_ARGUMENT, (void)0, "a function is timed with all of its launches");
    problem = good;
    problem.space.ranges = problem.ranges;
    CHECK_STATUS(GG_INVALID_ARGUMENT,
                 gg_tune(problem.key, &problem.space, NULL, NULL, &tuning, &value, NULL, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_tune(problem.key, &problem.space, call, &problem,
                                              &tuning, NULL, NULL, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_tune(problem.key, &problem.space, call, &problem, NULL,
                                              &value, NULL, NULL));
    free(values);
}

/* Launches over all items, in chunks. */
static gg_status launch_chunks(struct Problem *problem, const gg_trial *trial) {
    uint64_t first, chunk = trial->values[1];
    gg_status status = GG_OK;
    gg_config config = attention();
    config.stream = trial->stream;
    config.block.x = trial->values[0];
    for (first = 0; first < ITEMS && status == GG_OK; first += chunk) {
        unsigned long long to = problem->out + first * 8;
        uint64_t items = chunk < ITEMS - first ? chunk : ITEMS - first;
        void *params[3];
        params[0] = &to;
        params[1] = &first;
        params[2] = &items;
        config.grid.y = items;
        status = gg_launch(problem->kernel, &config, params, NULL, NULL, NULL);
    }
    return status;
}

/* Launches through a guard on the stream of the trial. All candidates but one do so many times. */
static int launch(struct Problem *problem, const gg_trial *trial) {
    static uint64_t host[ITEMS];
    int repeats = trial->values[0] == 128 && trial->values[1] == ITEMS / 2 ? 1 : 20;
    if (problem->kernel == NULL) {
        void *module = NULL, *function = NULL;
        gg_guard *guard = NULL;
        CHECK(cuModuleLoadData(&module, PTX) == 0);
        CHECK(cuModuleGetFunction(&function, module, "fake_iota_y") == 0);
        CHECK(cuMemAlloc_v2(&problem->out, sizeof host) == 0);
        CHECK_STATUS(GG_OK, gg_guard_create(NULL, &guard, NULL));
        CHECK_STATUS(GG_OK,
                     gg_kernel_create(guard, function, NULL, NULL, 0, &problem->kernel, NULL));
        CHECK(gg_free(guard) == GG_OK);
    }
    if (trial->output != NULL) {
        CHECK(cuMemsetD8Async(problem->out, 0xff, sizeof host, trial->stream) == 0);
    }
    for (; repeats > 0; repeats--) {
        if (launch_chunks(problem, trial) != GG_OK) {
            return 1;
        }
    }
    if (trial->output != NULL) {
        size_t item;
        if (cuStreamSynchronize(trial->stream) != 0) {
            return 2;
        }
        CHECK(cuMemcpyDtoH_v2(host, problem->out, sizeof host) == 0);
        for (item = 0; item < ITEMS; item++) {
            trial->output[item] = (double)host[item];
        }
    }
    return 0;
}

static void of_launches(struct Problem *problem) {
    begin(problem, launch);
    problem->space.range_count = 2;
    problem->space.output_count = ITEMS;
    problem->space.flags = 0;
}

static void launches_on_a_device_are_tuned(const char *folder) {
    ZEROED(gg_tuned, tuned);
    ZEROED(gg_key_info, key);
    struct Problem problem;
    gg_tuning tuning;
    gg_limits *limits = NULL;
    gg_profile *profile = NULL;
    gg_parameter parameter;
    uint64_t values[2], size = ITEMS;
    void *context = NULL, *current = NULL;
    /* Not the context of the stream. */
    CHECK(cuCtxCreate_v2(&context, 0, 0) == 0 && cuCtxSetCurrent(context) == 0);
    of_launches(&problem);
    problem.space.folder = folder;
    CHECK_STATUS(GG_OK, tune(&problem, &tuning, values, NULL));
    CHECK(cuCtxGetCurrent(&current) == 0 && current == context);
    CHECK(values[0] == 128 && values[1] == ITEMS / 2);
    CHECK(tuning.candidates == 6 && tuning.failures == 0 && tuning.stored == 1);
    CHECK_STATUS(GG_OK, gg_limits_of_device(0, NULL, &limits, NULL));
    CHECK_STATUS(GG_OK, gg_profile_load(limits, folder, &profile, NULL));
    CHECK_STATUS(GG_OK,
                 gg_profile_look_up(profile, problem.key, &size, 1, &tuned, &parameter, 1, NULL));
    CHECK(tuned.matched == GG_MATCH_EXACT && tuned.max_items == ITEMS / 2);
    CHECK(strcmp(parameter.name, "block") == 0 && parameter.value == 128);
    CHECK(gg_free(profile) == GG_OK && gg_free(limits) == GG_OK);
    /* As graphs. The context ended with the call, as nothing else retains it. */
    CHECK(gg_free(problem.key) == GG_OK && gg_free(problem.kernel) == GG_OK);
    problem.kernel = NULL;
    key.kernel = "iota";
    key.flags = GG_HOT_CACHE | GG_GRAPH;
    CHECK_STATUS(GG_OK, gg_key_create(&key, &problem.key, NULL));
    CHECK_STATUS(GG_OK, tune(&problem, &tuning, values, NULL));
    CHECK(tuning.candidates == 6 && tuning.failures == 0 && tuning.stored == 1);
    problem.space.device = 99;
    CHECK_STATUS(GG_NOT_FOUND, tune(&problem, &tuning, values, NULL));
    CHECK(gg_free(problem.kernel) == GG_OK && gg_free(problem.key) == GG_OK);
}

/* Leaves no context, which the next call has again. */
static int wander(struct Problem *problem, const gg_trial *trial) {
    void *context = NULL;
    int code;
    CHECK(cuCtxGetCurrent(&context) == 0 && context != NULL);
    code = launch(problem, trial);
    CHECK(cuCtxSetCurrent(NULL) == 0);
    return code;
}

static void a_callback_may_change_the_current_context(void) {
    struct Problem problem;
    gg_tuning tuning;
    uint64_t values[2];
    of_launches(&problem);
    problem.act = wander;
    CHECK_STATUS(GG_OK, tune(&problem, &tuning, values, NULL));
    CHECK(values[0] == 128 && tuning.failures == 0);
    CHECK(gg_free(problem.kernel) == GG_OK && gg_free(problem.key) == GG_OK);
}

/* A launch breaks the context. */
static void a_broken_context_is_an_error(void) {
    struct Problem problem;
    gg_tuning tuning;
    gg_error *error = NULL;
    uint64_t values[2];
    of_launches(&problem);
    CHECK_STATUS(GG_TUNING, tune(&problem, &tuning, values, &error));
    check_error(error, GG_TUNING, "the default failed: ");
}

int main(int count, char **arguments) {
    CHECK(count == 2 && cuInit(0) == 0);
    if (strcmp(arguments[1], "broken") == 0) {
        a_broken_context_is_an_error();
        return 0;
    }
    the_fastest_value_wins_and_a_lookup_finds_it(arguments[1]);
    a_candidate_that_fails_or_is_wrong_never_wins();
    a_default_that_fails_or_returns_nonsense_is_an_error();
    a_callback_may_call_the_library();
    wrong_arguments_are_refused_before_a_call();
    launches_on_a_device_are_tuned(arguments[1]);
    a_callback_may_change_the_current_context();
    return 0;
}
