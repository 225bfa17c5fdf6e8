/* Guards, kernels and launches on the fake driver. */
#define _POSIX_C_SOURCE 200112L
#include "check.h"
#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif
int cuInit(unsigned flags);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuCtxSetCurrent(void *context);
int cuCtxGetCurrent(void **context);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuLibraryLoadData(void **library, const void *image, int *jit, void **jit_values,
                      unsigned jit_count, int *options, void **option_values, unsigned count);
int cuLibraryGetKernel(void **kernel, void *library, const char *name);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes);
int cuMemsetD8_v2(unsigned long long at, unsigned char value, size_t bytes);
int cuCtxSynchronize(void);
int cuStreamCreate(void **stream, unsigned flags);
#ifdef __cplusplus
}
#endif

static const char PTX[] = "// fake fake_iota_y params=8,8,8\n"
                          "// fake iota_y params=8,4,4\n"
                          "// fake idle params=8,4,16\n"
                          ".version 8.0\n.target sm_90\n.address_size 64\n"
                          ".visible .entry fake_iota_y(\n)\n"
                          ".visible .entry iota_y(\n)\n"
                          ".visible .entry idle(\n)\n";

enum { ITEMS = 76800 };

static void *context, *module, *stream;

/* What the callback saw last, and how often it was called. */
struct Seen {
    unsigned calls;
    gg_event event;
    char kernel[64], message[512];
};

static void see(const gg_event *event, void *user_data) {
    struct Seen *seen = (struct Seen *)user_data;
    CHECK(event->struct_size == sizeof *event);
    seen->calls++;
    seen->event = *event;
    strncpy(seen->kernel, event->kernel, sizeof seen->kernel - 1);
    strncpy(seen->message, event->message, sizeof seen->message - 1);
}

static gg_guard *guard_with(struct Seen *seen) {
    ZEROED(gg_guard_options, options);
    gg_guard *guard = NULL;
    gg_error *error = NULL;
    options.context = context;
    options.on_event = seen == NULL ? NULL : see;
    options.user_data = seen;
    CHECK_STATUS(GG_OK, gg_guard_create(&options, &guard, &error));
    return guard;
}

static gg_kernel *kernel_of(gg_guard *guard, const char *name) {
    void *function = NULL;
    gg_kernel *kernel = NULL;
    gg_error *error = NULL;
    CHECK(cuModuleGetFunction(&function, module, name) == 0);
    CHECK_STATUS(GG_OK, gg_kernel_create(guard, function, NULL, NULL, 0, &kernel, &error));
    return kernel;
}

static gg_config on_y(uint64_t blocks) {
    gg_config config = attention();
    config.grid.y = blocks;
    config.stream = stream;
    return config;
}

/* A launch of `fake_iota_y` or `iota_y`: out, first, items. */
struct Iota {
    unsigned long long out;
    gg_following following[3];
    gg_batch batch;
    void *params[3];
};

static void prepare(struct Iota *iota) {
    size_t place;
    memset(iota, 0, sizeof *iota);
    CHECK(cuMemAlloc_v2(&iota->out, ITEMS * 8) == 0);
    CHECK(cuMemsetD8_v2(iota->out, 0xde, ITEMS * 8) == 0);
    CHECK(cuCtxSynchronize() == 0);
    for (place = 0; place < 3; place++) {
        iota->following[place].parameter = (uint32_t)place;
    }
    iota->following[0].kind = GG_ITEMS;
    iota->following[0].stride_bytes = 8;
    iota->following[0].reach_bytes = ITEMS * 8;
    iota->following[1].kind = GG_OFFSET;
    iota->following[2].kind = GG_LENGTH;
    iota->batch.struct_size = sizeof iota->batch;
    iota->batch.axis = GG_AXIS_Y;
    iota->batch.items = ITEMS;
    iota->batch.following = iota->following;
    iota->batch.following_count = 3;
    iota->params[0] = &iota->out;
}

/* Every item was written by its own block. */
static void check_written(const struct Iota *iota) {
    static uint64_t read[ITEMS];
    uint64_t item;
    CHECK(cuCtxSynchronize() == 0);
    CHECK(cuMemcpyDtoH_v2(read, iota->out, sizeof read) == 0);
    for (item = 0; item < ITEMS; item++) {
        CHECK(read[item] == item);
    }
}

static void a_launch_is_split_and_writes_every_item(void) {
    ZEROED(gg_counts, counts);
    struct Seen seen = {0, {0, NULL, NULL, 0, 0, GG_OK, 0, 0}, "", ""};
    gg_guard *guard = guard_with(&seen);
    gg_kernel *kernel = kernel_of(guard, "fake_iota_y");
    gg_config config = on_y(ITEMS);
    gg_error *error = NULL;
    struct Iota iota;
    uint64_t launches = 0;
    prepare(&iota);
    CHECK_STATUS(GG_OK, gg_launch(kernel, &config, iota.params, &iota.batch, &launches, &error));
    CHECK(launches == 2);
    check_written(&iota);
    CHECK(seen.calls == 1 && seen.event.kind == GG_EVENT_SPLIT && seen.event.launches == 2);
    CHECK(strcmp(seen.kernel, "fake_iota_y") == 0 && seen.message[0] == 0);

    iota.batch.max_items = 20000;
    CHECK_STATUS(GG_OK, gg_launch(kernel, &config, iota.params, &iota.batch, &launches, &error));
    CHECK(launches == 4);
    check_written(&iota);
    CHECK_STATUS(GG_OK, gg_synchronize(kernel, stream, &error));
    CHECK_STATUS(GG_OK, gg_kernel_counts(kernel, &counts, &error));
    CHECK(counts.requests == 2 && counts.launches == 6 && counts.split == 2);
    CHECK(gg_free(guard) == GG_OK);
    CHECK_STATUS(GG_OK, gg_launch(kernel, &config, iota.params, &iota.batch, NULL, NULL));
    CHECK(gg_free(kernel) == GG_OK);
}

static void narrow_parameters_follow_too(void) {
    gg_guard *guard = guard_with(NULL);
    gg_kernel *kernel = kernel_of(guard, "iota_y");
    gg_config config = on_y(ITEMS);
    gg_error *error = NULL;
    struct Iota iota;
    prepare(&iota);
    CHECK_STATUS(GG_OK, gg_launch(kernel, &config, iota.params, &iota.batch, NULL, &error));
    check_written(&iota);
    CHECK(gg_free(guard) == GG_OK && gg_free(kernel) == GG_OK);
}

static void a_plain_launch_passes_its_parameters_on(void) {
    struct Seen seen = {0, {0, NULL, NULL, 0, 0, GG_OK, 0, 0}, "", ""};
    gg_guard *guard = guard_with(&seen);
    gg_kernel *kernel = kernel_of(guard, "idle");
    gg_limits *limits = NULL;
    gg_config config = on_y(65536);
    gg_error *error = NULL;
    uint64_t eight = 0x1122334455667788u, sixteen[2] = {1, 2}, launches = 7;
    uint32_t four = 0xaabbccddu;
    void *params[3];
    params[0] = &eight;
    params[1] = &four;
    params[2] = sixteen;
    CHECK_STATUS(GG_REJECTED, gg_launch(kernel, &config, params, NULL, &launches, &error));
    CHECK(launches == 7 && gg_error_violation_count(error) == 1);
    CHECK(gg_error_driver_code(error) == 1);
    check_error(error, GG_REJECTED, "grid.y is 65536 blocks");
    CHECK(seen.calls == 1 && seen.event.kind == GG_EVENT_REJECTED);
    CHECK(seen.event.status == GG_REJECTED && seen.event.driver_code == 1);
    CHECK(strncmp(seen.message, "grid.y is 65536 blocks", 22) == 0);
    config.grid.y = 65535;
    CHECK_STATUS(GG_OK, gg_launch(kernel, &config, params, NULL, &launches, &error));
    CHECK(launches == 1 && seen.calls == 1);
    CHECK_STATUS(GG_OK, gg_kernel_limits(kernel, &limits, &error));
    CHECK_STATUS(GG_OK, gg_validate(limits, &config, &error));
    CHECK(gg_free(limits) == GG_OK && gg_free(kernel) == GG_OK && gg_free(guard) == GG_OK);
}

static void a_preference_that_is_not_legal_is_planned_automatically(void) {
    struct Seen seen = {0, {0, NULL, NULL, 0, 0, GG_OK, 0, 0}, "", ""};
    gg_guard *guard = guard_with(&seen);
    gg_kernel *kernel = kernel_of(guard, "fake_iota_y");
    gg_config config = on_y(ITEMS);
    gg_error *error = NULL;
    struct Iota iota;
    uint64_t launches = 0;
    prepare(&iota);
    iota.batch.strategy = GG_STRATEGY_WHOLE;
    CHECK_STATUS(GG_REJECTED,
                 gg_launch(kernel, &config, iota.params, &iota.batch, NULL, &error));
    CHECK(gg_free(error) == GG_OK);
    iota.batch.flags = GG_PREFERENCE;
    seen.calls = 0;
    CHECK_STATUS(GG_OK, gg_launch(kernel, &config, iota.params, &iota.batch, &launches, &error));
    CHECK(launches == 2 && seen.calls == 2 && seen.event.kind == GG_EVENT_SPLIT);
    check_written(&iota);
    CHECK(gg_free(kernel) == GG_OK && gg_free(guard) == GG_OK);
}

static void a_refusal_of_the_driver_says_how_far_the_launch_came(void) {
    ZEROED(gg_progress, progress);
    struct Seen seen = {0, {0, NULL, NULL, 0, 0, GG_OK, 0, 0}, "", ""};
    gg_guard *guard = guard_with(&seen);
    gg_kernel *kernel = kernel_of(guard, "fake_iota_y");
    gg_config config = on_y(ITEMS);
    gg_error *error = NULL;
    gg_text *text = NULL;
    struct Iota iota;
    prepare(&iota);
    /* The second one of this process. */
    CHECK(setenv("GRIDGUARD_FAKE_FAIL_LAUNCH", "1", 1) == 0);
    CHECK(setenv("GRIDGUARD_FAKE_FAIL_CODE", "2", 1) == 0);
    CHECK_STATUS(GG_DRIVER, gg_launch(kernel, &config, iota.params, &iota.batch, NULL, &error));
    CHECK(gg_error_driver_code(error) == 2);
    CHECK_STATUS(GG_OK, gg_error_progress(error, &progress));
    CHECK(progress.chunk == 1 && progress.chunks == 2);
    CHECK(progress.items_done == ITEMS / 2 && progress.items == ITEMS);
    CHECK(seen.event.kind == GG_EVENT_FAILED && seen.event.launches == 1);
    CHECK_STATUS(GG_OK, gg_error_explain(error, &text, NULL));
    CHECK(strncmp(gg_text_data(text), "CUDA_ERROR_OUT_OF_MEMORY (2)", 28) == 0);
    CHECK(gg_free(text) == GG_OK);
    check_error(error, GG_DRIVER, "launch 1 of 2 was refused after 38400 of 76800 items: ");
    CHECK(unsetenv("GRIDGUARD_FAKE_FAIL_LAUNCH") == 0);
    CHECK(gg_free(kernel) == GG_OK && gg_free(guard) == GG_OK);
}

static void parameters_that_do_not_fit_are_refused(void) {
    gg_guard *guard = guard_with(NULL);
    gg_kernel *kernel = kernel_of(guard, "fake_iota_y");
    gg_config config = on_y(ITEMS);
    gg_error *error = NULL;
    struct Iota iota;
    uint64_t items = ITEMS, offset = 0;
    prepare(&iota);
    iota.params[1] = &offset;
    iota.params[2] = &items;
#define REFUSED(expected_status, message)                                                      \
    CHECK_STATUS(expected_status,                                                              \
                 gg_launch(kernel, &config, iota.params, &iota.batch, NULL, &error));          \
    check_error(error, expected_status, message)
    iota.following[0].reach_bytes = ITEMS * 8 - 1;
    REFUSED(GG_PARAMETERS, "kernel argument 0 has 614399 bytes, the items of the batch need");
    iota.following[0].reach_bytes = 0;
    iota.following[0].stride_bytes = UINT64_MAX;
    REFUSED(GG_PARAMETERS, "kernel argument 0 has 18446744073709551615 bytes");
    iota.following[0].stride_bytes = 8;
    iota.following[2].parameter = 3;
    REFUSED(GG_INVALID_ARGUMENT, "batch.following.parameter is 3, expected less than");
    iota.following[2].parameter = 1;
    REFUSED(GG_INVALID_ARGUMENT, "batch.following.parameter is 1, expected named once");
    iota.following[2].parameter = 2;
    iota.following[2].kind = 5;
    REFUSED(GG_INVALID_ARGUMENT, "batch.following.kind is 5, expected");
    iota.following[2].kind = 0;
    iota.batch.following_count = 1u << 31;
    REFUSED(GG_INVALID_ARGUMENT, "batch.following is 2147483648, expected");
    iota.batch.following_count = 3;
    iota.batch.following = NULL;
    REFUSED(GG_INVALID_ARGUMENT, "batch.following is NULL");
    /* Eight items share a block, and the total is passed by value. */
    iota.batch.following = iota.following;
    iota.batch.following_count = 2;
    iota.batch.items_per_block = 8;
    iota.batch.max_items = ITEMS / 2;
    config.grid.y = ITEMS / 8;
    REFUSED(GG_PARAMETERS, "kernel argument 2 (76800) looks like the batch size");
    iota.params[0] = NULL;
    REFUSED(GG_INVALID_ARGUMENT, "a pointer in params is NULL");
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_launch(kernel, &config, NULL, NULL, NULL, &error));
    check_error(error, GG_INVALID_ARGUMENT, "params is NULL");
    iota.params[0] = &iota.out;
    iota.batch.following_count = 3;
    iota.following[2].kind = GG_CONSTANT;
    CHECK_STATUS(GG_OK, gg_launch(kernel, &config, iota.params, &iota.batch, NULL, NULL));
    CHECK(gg_free(kernel) == GG_OK && gg_free(guard) == GG_OK);
}

#ifndef OLD_DRIVER
static void kernels_are_made_of_either_kind_of_handle(void) {
    const size_t right[3] = {8, 8, 8}, wrong[3] = {8, 8, 4};
    gg_guard *guard = guard_with(NULL);
    gg_kernel *kernel = NULL;
    gg_error *error = NULL;
    void *function = NULL, *library = NULL, *of_library = NULL, *before = NULL, *after = NULL;
    CHECK(cuModuleGetFunction(&function, module, "fake_iota_y") == 0);
    CHECK(cuLibraryLoadData(&library, PTX, NULL, NULL, 0, NULL, NULL, 0) == 0);
    CHECK(cuLibraryGetKernel(&of_library, library, "fake_iota_y") == 0);
    CHECK(cuCtxGetCurrent(&before) == 0);
    CHECK_STATUS(GG_OK, gg_kernel_create(guard, of_library, "mine", right, 3, &kernel, &error));
    CHECK(gg_free(kernel) == GG_OK);
    CHECK_STATUS(GG_PARAMETERS,
                 gg_kernel_create(guard, function, NULL, wrong, 3, &kernel, &error));
    check_error(error, GG_PARAMETERS, "kernel fake_iota_y has parameters of [8, 8, 8] bytes, but ");
    CHECK_STATUS(GG_INVALID_ARGUMENT,
                 gg_kernel_create(guard, NULL, NULL, NULL, 0, &kernel, &error));
    check_error(error, GG_INVALID_ARGUMENT, "function is NULL");
    CHECK_STATUS(GG_INVALID_ARGUMENT,
                 gg_kernel_create(guard, function, NULL, right, SIZE_MAX, &kernel, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT,
                 gg_kernel_create(guard, function, "\xff", right, 3, &kernel, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT,
                 gg_kernel_create(guard, function, NULL, right, 3, NULL, NULL));
    CHECK(kernel == NULL);
    CHECK(cuCtxGetCurrent(&after) == 0 && before == after);
    CHECK(gg_free(guard) == GG_OK);
}
#endif

static void the_current_context_is_the_default(void) {
    gg_guard *guard = NULL;
    gg_error *error = NULL;
    CHECK_STATUS(GG_OK, gg_guard_create(NULL, &guard, &error));
    CHECK(gg_free(guard) == GG_OK);
    CHECK(cuCtxSetCurrent(NULL) == 0);
    CHECK_STATUS(GG_NOT_FOUND, gg_guard_create(NULL, &guard, &error));
    check_error(error, GG_NOT_FOUND, "no context is current on this thread");
    CHECK(guard == NULL);
    CHECK(cuCtxSetCurrent(context) == 0);
}

static void limits_of_devices_are_queried(void) {
    ZEROED(gg_device_info, device);
    gg_limits *limits = NULL;
    gg_error *error = NULL;
    CHECK_STATUS(GG_OK, gg_limits_of_device(0, NULL, &limits, &error));
    CHECK_STATUS(GG_OK, gg_limits_device(limits, &device, &error));
    CHECK(strcmp(device.name, "NVIDIA H200") == 0);
    CHECK(gg_free(limits) == GG_OK);
    CHECK_STATUS(GG_NOT_FOUND, gg_limits_of_device(UINT32_MAX, NULL, &limits, &error));
    check_error(error, GG_NOT_FOUND, "there is no device 4294967295");
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_limits_of_device(0, NULL, NULL, NULL));
}

static void wrong_handles_and_sizes_are_refused(void) {
    ZEROED(gg_counts, counts);
    ZEROED(gg_guard_options, options);
    gg_guard *guard = guard_with(NULL), *no_guard = NULL;
    gg_kernel *kernel = kernel_of(guard, "fake_iota_y");
    gg_config config = on_y(1);
    gg_limits *limits = NULL;
    gg_kernel *no_kernel = NULL;
    struct Iota iota;
    void *wrong[5];
    size_t place;
    int local = 0;
    wrong[0] = NULL;
    wrong[1] = &local;
    wrong[2] = guard;
    wrong[3] = (void *)~(size_t)0;
    wrong[4] = (void *)(size_t)0x1000001u;
    prepare(&iota);
    for (place = 0; place < 5; place++) {
        gg_kernel *bad = (gg_kernel *)wrong[place];
        CHECK_STATUS(GG_INVALID_HANDLE, gg_launch(bad, &config, iota.params, NULL, NULL, NULL));
        CHECK_STATUS(GG_INVALID_HANDLE, gg_kernel_limits(bad, &limits, NULL));
        CHECK_STATUS(GG_INVALID_HANDLE, gg_kernel_counts(bad, &counts, NULL));
        CHECK_STATUS(GG_INVALID_HANDLE, gg_synchronize(bad, NULL, NULL));
    }
    CHECK_STATUS(GG_INVALID_HANDLE,
                 gg_kernel_create((gg_guard *)kernel, module, NULL, NULL, 0, &no_kernel, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_guard_create(NULL, NULL, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_kernel_limits(kernel, NULL, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_kernel_counts(kernel, NULL, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_launch(kernel, NULL, iota.params, NULL, NULL, NULL));
    options.struct_size = 1;
    CHECK_STATUS(GG_INVALID_STRUCT, gg_guard_create(&options, &no_guard, NULL));
    counts.struct_size = SIZE_MAX;
    CHECK_STATUS(GG_INVALID_STRUCT, gg_kernel_counts(kernel, &counts, NULL));
    config.struct_size = sizeof config + 8;
    CHECK_STATUS(GG_INVALID_STRUCT, gg_launch(kernel, &config, iota.params, NULL, NULL, NULL));
    config.struct_size = sizeof config;
    iota.batch.struct_size = 0;
    CHECK_STATUS(GG_INVALID_STRUCT,
                 gg_launch(kernel, &config, iota.params, &iota.batch, NULL, NULL));
    CHECK(gg_free(kernel) == GG_OK);
    CHECK_STATUS(GG_INVALID_HANDLE, gg_launch(kernel, &config, iota.params, NULL, NULL, NULL));
    CHECK_STATUS(GG_INVALID_HANDLE, gg_free(kernel));
    CHECK(gg_free(guard) == GG_OK);
}

static gg_kernel *shared;

static void *launch_often(void *unused) {
    gg_config config = on_y(ITEMS);
    struct Iota iota;
    int time;
    (void)unused;
    prepare(&iota);
    for (time = 0; time < 50; time++) {
        uint64_t launches = 0;
        CHECK_STATUS(GG_OK,
                     gg_launch(shared, &config, iota.params, &iota.batch, &launches, NULL));
        CHECK(launches == 2);
    }
    return NULL;
}

static void *launch_in_context(void *unused) {
    CHECK(cuCtxSetCurrent(context) == 0);
    return launch_often(unused);
}

static void threads_share_a_kernel(void) {
    pthread_t threads[4];
    size_t place;
    gg_guard *guard = guard_with(NULL);
    shared = kernel_of(guard, "fake_iota_y");
    for (place = 0; place < 4; place++) {
        CHECK(pthread_create(&threads[place], NULL, launch_in_context, NULL) == 0);
    }
    for (place = 0; place < 4; place++) {
        CHECK(pthread_join(threads[place], NULL) == 0);
    }
    CHECK(gg_free(shared) == GG_OK && gg_free(guard) == GG_OK);
}

/* A driver that does not know the parameters of kernels. */
static void an_old_driver_needs_the_sizes_of_parameters(void) {
    const size_t sizes[3] = {8, 8, 8};
    gg_guard *guard = guard_with(NULL);
    gg_kernel *kernel = NULL;
    gg_config config = on_y(ITEMS);
    gg_error *error = NULL;
    void *function = NULL;
    struct Iota iota;
    prepare(&iota);
    CHECK(cuModuleGetFunction(&function, module, "fake_iota_y") == 0);
    CHECK_STATUS(GG_PARAMETERS,
                 gg_kernel_create(guard, function, "iota", NULL, 0, &kernel, &error));
    check_error(error, GG_PARAMETERS, "the driver does not know the parameters of kernel iota");
    CHECK_STATUS(GG_OK, gg_kernel_create(guard, function, "iota", sizes, 3, &kernel, &error));
    CHECK_STATUS(GG_OK, gg_launch(kernel, &config, iota.params, &iota.batch, NULL, &error));
    check_written(&iota);
    CHECK(gg_free(kernel) == GG_OK && gg_free(guard) == GG_OK);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    CHECK(cuInit(0) == 0);
    CHECK(cuCtxCreate_v2(&context, 0, 0) == 0);
    CHECK(cuModuleLoadData(&module, PTX) == 0);
    CHECK(cuStreamCreate(&stream, 0) == 0);
    if (strcmp(arguments[1], "old") == 0) {
        an_old_driver_needs_the_sizes_of_parameters();
        return 0;
    }
    a_refusal_of_the_driver_says_how_far_the_launch_came();
    a_launch_is_split_and_writes_every_item();
    narrow_parameters_follow_too();
    a_plain_launch_passes_its_parameters_on();
    a_preference_that_is_not_legal_is_planned_automatically();
    parameters_that_do_not_fit_are_refused();
#ifndef OLD_DRIVER
    kernels_are_made_of_either_kind_of_handle();
#endif
    the_current_context_is_the_default();
    limits_of_devices_are_queried();
    wrong_handles_and_sizes_are_refused();
    threads_share_a_kernel();
    return 0;
}
