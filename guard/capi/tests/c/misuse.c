/* Every function with NULL, wrong handles, wrong sizes and absurd values: a status, and no crash. */
#include "check.h"

/* Handles that are none: a small number, the address of a local variable, all bits, text. */
static void *wrong_handles[5];

static gg_limits *any_limits(void) {
    gg_limits *limits = NULL;
    CHECK_STATUS(GG_OK, gg_limits_of_gpu("any", NULL, &limits, NULL));
    return limits;
}

/* A handle that was valid until now. */
static void *freed_handle(void) {
    gg_limits *limits = any_limits();
    CHECK_STATUS(GG_OK, gg_free(limits));
    return limits;
}

static void a_wrong_handle_is_refused(void *wrong) {
    ZEROED(gg_violation, violation);
    ZEROED(gg_progress, progress);
    ZEROED(gg_device_info, device);
    ZEROED(gg_plan_info, plan);
    ZEROED(gg_tuned, tuned);
    gg_config config = attention();
    gg_text *text = NULL;
    gg_profile *profile = NULL;
    gg_error *error = NULL;
    CHECK_STATUS(GG_INVALID_HANDLE, gg_error_status((gg_error *)wrong));
    CHECK(gg_error_message((gg_error *)wrong) == NULL);
    CHECK(gg_error_driver_code((gg_error *)wrong) == 0);
    CHECK(gg_error_violation_count((gg_error *)wrong) == 0);
    CHECK_STATUS(GG_INVALID_HANDLE, gg_error_violation((gg_error *)wrong, 0, &violation));
    CHECK_STATUS(GG_INVALID_HANDLE, gg_error_progress((gg_error *)wrong, &progress));
    CHECK_STATUS(GG_INVALID_HANDLE, gg_error_explain((gg_error *)wrong, &text, NULL));
    CHECK(gg_text_data((gg_text *)wrong) == NULL);
    CHECK_STATUS(GG_INVALID_HANDLE, gg_limits_device((gg_limits *)wrong, &device, NULL));
    CHECK_STATUS(GG_INVALID_HANDLE, gg_validate((gg_limits *)wrong, &config, NULL));
    CHECK_STATUS(GG_INVALID_HANDLE,
                 gg_plan((gg_limits *)wrong, &config, NULL, &plan, 0, NULL, 0, NULL));
    CHECK_STATUS(GG_INVALID_HANDLE, gg_check_json((gg_limits *)wrong, "{}", &text, NULL));
    CHECK_STATUS(GG_INVALID_HANDLE,
                 gg_explain(1, (gg_limits *)wrong, &config, NULL, &text, NULL));
    CHECK_STATUS(GG_INVALID_HANDLE, gg_profile_load((gg_limits *)wrong, NULL, &profile, NULL));
    CHECK(gg_profile_notice((gg_profile *)wrong, 0) == NULL);
    CHECK_STATUS(GG_INVALID_HANDLE, gg_profile_look_up((gg_profile *)wrong, NULL, NULL, 0,
                                                       &tuned, NULL, 0, &error));
    CHECK(text == NULL && profile == NULL);
    check_error(error, GG_INVALID_HANDLE, wrong == NULL ? "profile is NULL"
                                                        : "profile is not the handle of a live "
                                                          "gg_profile");
}

static void a_handle_of_another_type_is_refused(void) {
    ZEROED(gg_key_info, info);
    gg_key *key = NULL;
    info.kernel = "k";
    CHECK_STATUS(GG_OK, gg_key_create(&info, &key, NULL));
    a_wrong_handle_is_refused(key);
    CHECK_STATUS(GG_OK, gg_free(key));
    a_wrong_handle_is_refused(key);
}

static void a_handle_is_freed_once(void) {
    size_t place;
    for (place = 0; place < 5; place++) {
        CHECK_STATUS(GG_INVALID_HANDLE, gg_free(wrong_handles[place]));
    }
    CHECK_STATUS(GG_INVALID_HANDLE, gg_free(freed_handle()));
    CHECK_STATUS(GG_OK, gg_free(NULL));
}

static void null_is_refused(void) {
    ZEROED(gg_key_info, info);
    ZEROED(gg_plan_info, plan);
    ZEROED(gg_tuned, tuned);
    gg_limits *limits = any_limits(), *other = NULL;
    gg_config config = attention();
    gg_profile *profile = NULL;
    gg_error *error = NULL;
    gg_text *text = NULL;
    gg_key *key = NULL;
    uint64_t size = 1;
    config.grid.y = 1;
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_limits_of_gpu(NULL, NULL, &other, &error));
    check_error(error, GG_INVALID_ARGUMENT, "gpu is NULL");
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_limits_of_gpu("any", NULL, NULL, &error));
    check_error(error, GG_INVALID_ARGUMENT, "out is NULL");
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_limits_device(limits, NULL, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_validate(limits, NULL, &error));
    check_error(error, GG_INVALID_ARGUMENT, "config is NULL");
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_plan(limits, NULL, NULL, &plan, 0, NULL, 0, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_plan(limits, &config, NULL, NULL, 0, NULL, 0, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_plan(limits, &config, NULL, &plan, 0, NULL, 1, &error));
    check_error(error, GG_INVALID_ARGUMENT, "chunks is NULL");
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_check_json(limits, NULL, &text, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_check_json(limits, "{}", NULL, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_explain(1, NULL, NULL, NULL, NULL, NULL));
    CHECK_STATUS(GG_INVALID_HANDLE, gg_explain(1, NULL, &config, NULL, &text, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_profile_load(limits, NULL, NULL, NULL));
    CHECK_STATUS(GG_OK, gg_profile_load(limits, NULL, &profile, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_key_create(NULL, &key, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_key_create(&info, &key, &error));
    check_error(error, GG_INVALID_ARGUMENT, "info.kernel is NULL");
    info.kernel = "k";
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_key_create(&info, NULL, NULL));
    CHECK_STATUS(GG_OK, gg_key_create(&info, &key, NULL));
    CHECK_STATUS(GG_INVALID_HANDLE,
                 gg_profile_look_up(profile, NULL, &size, 1, &tuned, NULL, 0, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT,
                 gg_profile_look_up(profile, key, NULL, 1, &tuned, NULL, 0, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT,
                 gg_profile_look_up(profile, key, &size, 1, NULL, NULL, 0, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT,
                 gg_profile_look_up(profile, key, &size, 1, &tuned, NULL, 1, NULL));
    CHECK_STATUS(GG_REJECTED, (config.grid.y = 0, gg_validate(limits, &config, &error)));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_error_violation(error, 0, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_error_explain(error, NULL, NULL));
    CHECK(other == NULL && text == NULL);
    CHECK(gg_free(error) == GG_OK && gg_free(key) == GG_OK);
    CHECK(gg_free(profile) == GG_OK && gg_free(limits) == GG_OK);
}

/* Calls with each wrong size of a structure. */
#define WRONG_SIZES(structure, call)                                                           \
    do {                                                                                       \
        const size_t right = (structure).struct_size;                                          \
        const size_t wrong[] = {0, 1, 7, right - 1, right + 1, right + 4096, SIZE_MAX / 2,     \
                                SIZE_MAX};                                                     \
        size_t place;                                                                          \
        for (place = 0; place < sizeof wrong / sizeof wrong[0]; place++) {                     \
            (structure).struct_size = wrong[place];                                            \
            CHECK_STATUS(GG_INVALID_STRUCT, call);                                             \
            CHECK((structure).struct_size == wrong[place]);                                    \
        }                                                                                      \
        (structure).struct_size = right;                                                       \
    } while (0)

static void a_wrong_size_of_a_structure_is_refused(void) {
    ZEROED(gg_kernel_info, kernel);
    ZEROED(gg_device_info, device);
    ZEROED(gg_violation, violation);
    ZEROED(gg_plan_info, plan);
    ZEROED(gg_key_info, info);
    ZEROED(gg_tuned, tuned);
    gg_limits *limits = any_limits(), *other = NULL;
    gg_config config = attention();
    gg_batch batch = items_of_five();
    gg_profile *profile = NULL;
    gg_text *text = NULL;
    gg_key *key = NULL;
    gg_error *error = NULL;
    info.kernel = "k";
    CHECK_STATUS(GG_OK, gg_profile_load(limits, NULL, &profile, NULL));
    CHECK_STATUS(GG_OK, gg_key_create(&info, &key, NULL));
    WRONG_SIZES(kernel, gg_limits_of_gpu("any", &kernel, &other, NULL));
    WRONG_SIZES(device, gg_limits_device(limits, &device, NULL));
    WRONG_SIZES(config, gg_validate(limits, &config, NULL));
    WRONG_SIZES(config, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    WRONG_SIZES(batch, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    WRONG_SIZES(plan, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    WRONG_SIZES(config, gg_explain(1, limits, &config, NULL, &text, NULL));
    WRONG_SIZES(batch, gg_explain(1, limits, &config, &batch, &text, NULL));
    WRONG_SIZES(info, gg_key_create(&info, &key, NULL));
    CHECK(key == NULL);
    CHECK_STATUS(GG_OK, gg_key_create(&info, &key, NULL));
    WRONG_SIZES(tuned, gg_profile_look_up(profile, key, NULL, 0, &tuned, NULL, 0, NULL));
    CHECK_STATUS(GG_REJECTED, gg_validate(limits, &config, &error));
    WRONG_SIZES(violation, gg_error_violation(error, 0, &violation));
    CHECK(gg_free(error) == GG_OK);
    config.struct_size = 3;
    CHECK_STATUS(GG_INVALID_STRUCT, gg_validate(limits, &config, &error));
    check_error(error, GG_INVALID_STRUCT, "config.struct_size is 3, this library takes 112: ");
    CHECK(other == NULL && text == NULL);
    CHECK(gg_free(profile) == GG_OK && gg_free(limits) == GG_OK);
}

static void absurd_values_are_refused(void) {
    ZEROED(gg_kernel_info, kernel);
    ZEROED(gg_plan_info, plan);
    ZEROED(gg_key_info, info);
    ZEROED(gg_tuned, tuned);
    gg_limits *limits = any_limits(), *other = NULL;
    gg_config config = attention();
    gg_batch batch = items_of_five();
    gg_profile *profile = NULL;
    gg_key *key = NULL;
    gg_text *text = NULL;
    gg_error *error = NULL;
    uint64_t size = 1;
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_limits_of_gpu("\xff\xfe", NULL, &other, &error));
    check_error(error, GG_INVALID_ARGUMENT, "gpu is not UTF-8");
    CHECK_STATUS(GG_NOT_FOUND, gg_limits_of_gpu("", NULL, &other, NULL));
    kernel.flags = 0x80000000u;
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_limits_of_gpu("any", &kernel, &other, &error));
    check_error(error, GG_INVALID_ARGUMENT, "kernel.flags is 2147483648, expected a sum of its ");
    kernel.flags = GG_OPTS_IN | GG_CLUSTER_MUST_BE_SET | GG_NON_PORTABLE_CLUSTERS;
    memset(&kernel.max_threads_per_block, 0xff, 6 * sizeof(uint64_t));
    CHECK_STATUS(GG_OK, gg_limits_of_gpu("any", &kernel, &other, NULL));
    CHECK_STATUS(GG_REJECTED, gg_validate(other, &config, NULL));
    CHECK(gg_free(other) == GG_OK);

    config.flags = 8;
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_validate(limits, &config, NULL));
    config.flags = 0;
    memset(&config.grid, 0xff, 11 * sizeof(uint64_t));
    CHECK_STATUS(GG_REJECTED, gg_validate(limits, &config, NULL));
    CHECK_STATUS(GG_REJECTED, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    config = attention();
    batch.axis = 3;
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    batch.axis = GG_AXIS_Y;
    batch.strategy = 5;
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    batch.strategy = 0;
    batch.flags = 4;
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    batch.flags = 0;
    memset(&batch.items, 0xff, 8 * sizeof(uint64_t));
    CHECK_STATUS(GG_REJECTED, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));

    CHECK_STATUS(GG_OK, gg_explain(-2147483647 - 1, limits, NULL, NULL, &text, NULL));
    CHECK(gg_free(text) == GG_OK);
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_check_json(limits, "\xff", &text, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_check_json(limits, "", &text, NULL));

    info.kernel = "k";
    info.flags = 4;
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_key_create(&info, &key, NULL));
    info.flags = GG_GRAPH | GG_HOT_CACHE;
    info.max_launch_us = 1;
    info.workspace_bytes_per_item = 1;
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_key_create(&info, &key, NULL));
    info.max_launch_us = 0;
    CHECK_STATUS(GG_OK, gg_key_create(&info, &key, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_profile_load(limits, "\xff", &profile, NULL));
    CHECK_STATUS(GG_OK, gg_profile_load(limits, "", &profile, NULL));
    CHECK_STATUS(GG_INVALID_ARGUMENT,
                 gg_profile_look_up(profile, key, &size, SIZE_MAX, &tuned, NULL, 0, NULL));
    CHECK(gg_free(profile) == GG_OK && gg_free(key) == GG_OK && gg_free(limits) == GG_OK);
}

/* A long text of opening brackets must not exhaust the stack. */
static void deep_json_is_refused(void) {
    const size_t depth = 1 << 20;
    char *deep = (char *)malloc(depth + 1);
    gg_limits *limits = any_limits();
    gg_text *text = NULL;
    CHECK(deep != NULL);
    memset(deep, '[', depth);
    deep[depth] = 0;
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_check_json(limits, deep, &text, NULL));
    memcpy(deep, "{\"name\":", 8);
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_check_json(limits, deep, &text, NULL));
    free(deep);
    CHECK(gg_free(limits) == GG_OK);
}

int main(void) {
    size_t place;
    int local = 0;
    wrong_handles[0] = (void *)(size_t)1;
    wrong_handles[1] = &local;
    wrong_handles[2] = (void *)~(size_t)0;
    wrong_handles[3] = (void *)(size_t)0x6474726967646972u;
    wrong_handles[4] = (void *)(size_t)0x1000040u;
    a_wrong_handle_is_refused(NULL);
    for (place = 0; place < 5; place++) {
        a_wrong_handle_is_refused(wrong_handles[place]);
    }
    a_wrong_handle_is_refused(freed_handle());
    a_handle_of_another_type_is_refused();
    a_handle_is_freed_once();
    null_is_refused();
    a_wrong_size_of_a_structure_is_refused();
    absurd_values_are_refused();
    deep_json_is_refused();
    return 0;
}
