/* Limits, validation, plans, checks, explanations and profiles without a GPU. */
#include "check.h"

static gg_limits *h200(void) {
    ZEROED(gg_kernel_info, kernel);
    gg_limits *limits = NULL;
    gg_error *error = NULL;
    kernel.name = "attention";
    kernel.registers_per_thread = 64;
    CHECK_STATUS(GG_OK, gg_limits_of_gpu("h200", &kernel, &limits, &error));
    CHECK(limits != NULL && error == NULL);
    return limits;
}

static void limits_are_those_of_the_catalogue(void) {
    ZEROED(gg_device_info, device);
    gg_limits *limits = h200();
    gg_error *error = NULL;
    CHECK_STATUS(GG_OK, gg_limits_device(limits, &device, NULL));
    CHECK(device.struct_size == sizeof device);
    CHECK(strcmp(device.name, "NVIDIA H200") == 0);
    CHECK(device.capability_major == 9 && device.capability_minor == 0);
    CHECK(device.max_grid.x == 2147483647 && device.max_grid.y == 65535);
    CHECK(device.max_block.z == 64 && device.multiprocessors == 132);
    CHECK(device.cooperative_launch == 1 && device.cluster_launch == 1);
    CHECK(device.max_parameter_bytes == 32764);
    CHECK(gg_free(limits) == GG_OK);

    CHECK_STATUS(GG_OK, gg_limits_of_gpu("sm_75", NULL, &limits, NULL));
    CHECK_STATUS(GG_OK, gg_limits_device(limits, &device, NULL));
    CHECK(strcmp(device.name, "any sm_75") == 0 && device.cluster_launch == 0);
    CHECK(gg_free(limits) == GG_OK);

    CHECK_STATUS(GG_NOT_FOUND, gg_limits_of_gpu("rtx-2080-mobile", NULL, &limits, &error));
    CHECK(limits == NULL);
    check_error(error, GG_NOT_FOUND, "no GPU \"rtx-2080-mobile\" in the catalogue: use 7.5, its compute capability");
}

static void a_launch_is_validated_and_each_violation_is_told(void) {
    ZEROED(gg_violation, violation);
    gg_limits *limits = h200();
    gg_config config = attention();
    gg_error *error = NULL;
    CHECK_STATUS(GG_REJECTED, gg_validate(limits, &config, NULL));
    config.block.x = 2048;
    CHECK_STATUS(GG_REJECTED, gg_validate(limits, &config, &error));
    CHECK(gg_error_violation_count(error) >= 3);
    CHECK(gg_error_driver_code(error) == 1);
    CHECK_STATUS(GG_OK, gg_error_violation(error, 0, &violation));
    CHECK(strcmp(violation.rule, "grid-dim-y") == 0);
    CHECK(violation.axis == GG_AXIS_Y);
    CHECK(violation.requested == 76800 && violation.limit == 65535);
    CHECK(strncmp(violation.message, "grid.y is 76800 blocks", 22) == 0);
    CHECK_STATUS(GG_NOT_FOUND, gg_error_violation(error, 1000, &violation));
    check_error(error, GG_REJECTED, "grid.y is 76800 blocks");

    config = attention();
    config.grid.y = 65535;
    CHECK_STATUS(GG_OK, gg_validate(limits, &config, &error));
    CHECK(error == NULL);
    config.grid.y = UINT64_MAX;
    CHECK_STATUS(GG_REJECTED, gg_validate(limits, &config, &error));
    check_error(error, GG_REJECTED, "grid.y is 18446744073709551615 blocks");
    CHECK(gg_free(limits) == GG_OK);
}

static void special_launches_are_validated(void) {
    gg_limits *limits = h200();
    gg_config config = attention();
    gg_error *error = NULL;
    config.grid.y = 9;
    config.cluster.x = 1;
    config.cluster.y = 2;
    config.cluster.z = 1;
    CHECK_STATUS(GG_REJECTED, gg_validate(limits, &config, &error));
    CHECK(gg_error_driver_code(error) == 912);
    check_error(error, GG_REJECTED, "grid.y (9) is not a multiple of the cluster size (2)");
    config.grid.y = 8;
    config.flags = GG_HAS_PRIORITY | GG_DEPENDENT;
    config.priority = -1;
    CHECK_STATUS(GG_OK, gg_validate(limits, &config, NULL));
    config.flags = GG_COOPERATIVE;
    config.grid.y = 65534;
    CHECK_STATUS(GG_REJECTED, gg_validate(limits, &config, &error));
    CHECK(gg_error_driver_code(error) == 720);
    CHECK(gg_free(error) == GG_OK);
    CHECK(gg_free(limits) == GG_OK);
}

static void shared_memory_needs_opt_in(void) {
    ZEROED(gg_kernel_info, kernel);
    gg_limits *limits = NULL;
    gg_config config = attention();
    config.grid.y = 1;
    config.dynamic_shared_bytes = 65536;
    CHECK_STATUS(GG_OK, gg_limits_of_gpu("h200", &kernel, &limits, NULL));
    CHECK_STATUS(GG_REJECTED, gg_validate(limits, &config, NULL));
    CHECK(gg_free(limits) == GG_OK);
    kernel.flags = GG_OPTS_IN;
    CHECK_STATUS(GG_OK, gg_limits_of_gpu("h200", &kernel, &limits, NULL));
    CHECK_STATUS(GG_OK, gg_validate(limits, &config, NULL));
    CHECK(gg_free(limits) == GG_OK);
}

static void a_plan_is_read_in_parts(void) {
    ZEROED(gg_plan_info, plan);
    gg_chunk chunks[3];
    gg_limits *limits = h200();
    gg_config config = attention();
    gg_batch batch = items_of_five();
    gg_error *error = NULL;
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, 0, chunks, 3, &error));
    CHECK(plan.launches == 2 && plan.items == 15360 && plan.largest_items == 7680);
    CHECK(plan.strategy == GG_STRATEGY_CHUNKED);
    CHECK(chunks[0].start == 0 && chunks[0].items == 7680 && chunks[0].grid[1] == 38400);
    CHECK(chunks[1].start == 7680 && chunks[1].items == 7680 && chunks[1].grid[0] == 1);

    batch.max_items = 100;
    memset(chunks, 0, sizeof chunks);
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, 152, chunks, 3, &error));
    CHECK(plan.launches == 154);
    CHECK(chunks[1].start + chunks[1].items == 15360 && chunks[2].items == 0);
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, UINT64_MAX, chunks, 3, NULL));
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));

    CHECK_STATUS(GG_REJECTED, gg_plan(limits, &config, NULL, &plan, 0, NULL, 0, &error));
    check_error(error, GG_REJECTED, "grid.y is 76800 blocks");
    batch.strategy = GG_STRATEGY_WHOLE;
    CHECK_STATUS(GG_REJECTED, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    batch.flags = GG_PREFERENCE;
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    CHECK(plan.launches == 2 && plan.strategy == GG_STRATEGY_CHUNKED);
    batch.flags = GG_FOLDABLE;
    batch.strategy = GG_STRATEGY_FOLDED;
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, 0, chunks, 1, NULL));
    CHECK(plan.launches == 1 && chunks[0].grid[0] == 76800 && chunks[0].grid[1] == 1);
    CHECK(gg_free(limits) == GG_OK);
}

static void a_batch_has_all_its_limits(void) {
    ZEROED(gg_plan_info, plan);
    gg_limits *limits = h200();
    gg_config config = attention();
    gg_batch batch = items_of_five();
    batch.items = 1000;
    config.grid.y = 5000;
    batch.workspace_bytes_per_item = 1 << 20;
    batch.memory_bytes = 300 << 20;
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    CHECK(plan.launches == 4 && plan.largest_items == 250);
    batch.workspace_bytes_per_item = 0;
    batch.elements_per_item = 4294968;
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    CHECK(plan.launches == 3);
    batch.elements_per_item = 0;
    batch.max_items = 300;
    batch.align = 64;
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    CHECK(plan.largest_items == 256);
    batch.items = 0;
    batch.max_items = 0;
    config.grid.y = 0;
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    CHECK(plan.launches == 0);
    CHECK(gg_free(limits) == GG_OK);
}

static void a_request_is_checked_as_json(void) {
    gg_limits *limits = h200();
    gg_text *verdict = NULL;
    gg_error *error = NULL;
    CHECK_STATUS(GG_OK,
                 gg_check_json(limits,
                               "{\"name\": \"a\", \"grid\": [1, 76800, 1], \"block\": [128, 1, 1],"
                               " \"batch\": {\"axis\": \"y\", \"items\": 15360, "
                               "\"blocks_per_item\": 5}}",
                               &verdict, &error));
    CHECK(strstr(gg_text_data(verdict), "\"name\":\"a\",\"verdict\":\"chunked\"") != NULL);
    CHECK(strstr(gg_text_data(verdict), "\"rule\":\"grid-dim-y\"") != NULL);
    CHECK(gg_free(verdict) == GG_OK);
    CHECK_STATUS(GG_OK, gg_check_json(limits, "{\"grid\": [1, 70000, 1], \"block\": [1, 1, 1]}",
                                      &verdict, &error));
    CHECK(strstr(gg_text_data(verdict), "\"verdict\":\"rejected\"") != NULL);
    CHECK(gg_free(verdict) == GG_OK);
    CHECK_STATUS(GG_INVALID_ARGUMENT, gg_check_json(limits, "{\"grid\": [1]}", &verdict, &error));
    CHECK(verdict == NULL);
    check_error(error, GG_INVALID_ARGUMENT, "the request is malformed: ");
    CHECK(gg_free(limits) == GG_OK);
}

static void failures_are_explained(void) {
    gg_limits *limits = h200();
    gg_config config = attention();
    gg_error *error = NULL, *other = NULL;
    gg_text *text = NULL;
    CHECK_STATUS(GG_OK, gg_explain(700, NULL, NULL, NULL, &text, NULL));
    CHECK(strncmp(gg_text_data(text), "CUDA_ERROR_ILLEGAL_ADDRESS (700)", 32) == 0);
    CHECK(gg_free(text) == GG_OK);
    CHECK_STATUS(GG_OK, gg_explain(1, limits, &config, NULL, &text, NULL));
    CHECK(strstr(gg_text_data(text), "grid.y is 76800 blocks") != NULL);
    CHECK(gg_free(text) == GG_OK);
    CHECK_STATUS(GG_OK, gg_diagnose("step 1\nCUDA error: CUBLAS_STATUS_EXECUTION_FAILED\n", &text, NULL));
    CHECK(strstr(gg_text_data(text), "\"id\":\"cublas-13\"") != NULL);
    CHECK(gg_free(text) == GG_OK);
    CHECK_STATUS(GG_NOT_FOUND, gg_diagnose("all is well\nat last", &text, NULL));
    CHECK_STATUS(GG_NOT_FOUND, gg_explain(0, NULL, NULL, NULL, &text, &error));
    check_error(error, GG_NOT_FOUND, "0 is success");

    CHECK_STATUS(GG_REJECTED, gg_validate(limits, &config, &error));
    CHECK_STATUS(GG_OK, gg_error_explain(error, &text, &other));
    CHECK(strncmp(gg_text_data(text), "CUDA_ERROR_INVALID_VALUE (1)", 28) == 0);
    CHECK(gg_free(text) == GG_OK);
    CHECK(gg_free(error) == GG_OK);
    CHECK_STATUS(GG_NOT_FOUND, gg_limits_of_gpu("none", NULL, &limits, &error));
    CHECK_STATUS(GG_NOT_FOUND, gg_error_explain(error, &text, &other));
    CHECK(text == NULL);
    check_error(other, GG_NOT_FOUND, "CUDA has no error for this failure");
    CHECK(gg_free(error) == GG_OK);
}

/* The environment names a profile with one entry, of shape 15360, 5, and the parameter warps = 4. */
static void tuned_choices_are_looked_up(void) {
    ZEROED(gg_key_info, info);
    ZEROED(gg_tuned, tuned);
    ZEROED(gg_plan_info, plan);
    uint64_t sizes[2] = {15360, 5};
    gg_parameter parameters[4];
    gg_limits *limits = h200();
    gg_config config = attention();
    gg_batch batch = items_of_five();
    gg_profile *profile = NULL;
    gg_key *key = NULL, *other = NULL;
    gg_error *error = NULL;
    CHECK_STATUS(GG_OK, gg_profile_load(limits, getenv("PROFILE"), &profile, &error));
    CHECK(gg_profile_notice(profile, 0) == NULL);
    CHECK(strlen(gg_profile_digest(profile)) == 64 && gg_profile_digest(NULL) == NULL);
    info.kernel = "attention";
    info.dtypes = "f16";
    CHECK_STATUS(GG_OK, gg_key_create(&info, &key, &error));
    CHECK_STATUS(GG_OK, gg_profile_look_up(profile, key, sizes, 2, &tuned, parameters, 4, &error));
    CHECK(tuned.matched == GG_MATCH_EXACT && tuned.layer == GG_LAYER_EXPLICIT);
    CHECK(tuned.strategy == GG_STRATEGY_CHUNKED && tuned.max_items == 4096);
    CHECK(tuned.parameter_count == 1 && tuned.degraded == 0);
    CHECK(strcmp(parameters[0].name, "warps") == 0 && parameters[0].value == 4);
    batch.strategy = tuned.strategy;
    batch.max_items = tuned.max_items;
    batch.flags = GG_PREFERENCE;
    CHECK_STATUS(GG_OK, gg_plan(limits, &config, &batch, &plan, 0, NULL, 0, NULL));
    CHECK(plan.launches == 4);

    sizes[0] = 16000;
    CHECK_STATUS(GG_OK, gg_profile_look_up(profile, key, sizes, 2, &tuned, NULL, 0, &error));
    CHECK(tuned.matched == GG_MATCH_BUCKET && tuned.parameter_count == 1);
    sizes[0] = 0;
    CHECK_STATUS(GG_OK, gg_profile_look_up(profile, key, sizes, 2, &tuned, NULL, 0, &error));
    CHECK(tuned.matched == GG_MATCH_DEFAULT && tuned.default_reason == GG_DEFAULT_ZERO_SIZE);
    CHECK_STATUS(GG_OK, gg_profile_look_up(profile, key, sizes, 1, &tuned, NULL, 0, &error));
    CHECK(tuned.default_reason == GG_DEFAULT_SIZE_COUNT);
    info.max_launch_us = 50;
    CHECK_STATUS(GG_OK, gg_key_create(&info, &other, &error));
    CHECK_STATUS(GG_OK, gg_profile_look_up(profile, other, sizes, 2, &tuned, NULL, 0, &error));
    CHECK(tuned.default_reason == GG_DEFAULT_NO_ENTRIES && tuned.layer == GG_LAYER_NONE);
    CHECK(tuned.strategy == GG_STRATEGY_AUTOMATIC && tuned.max_items == 0);
    CHECK(gg_free(profile) == GG_OK && gg_free(other) == GG_OK);

    CHECK_STATUS(GG_OK, gg_profile_load(limits, "/no/such/file", &profile, &error));
    CHECK(strstr(gg_profile_notice(profile, 0), "/no/such/file") != NULL);
    CHECK(gg_profile_notice(profile, 1) == NULL);
    CHECK(gg_free(profile) == GG_OK && gg_free(key) == GG_OK && gg_free(limits) == GG_OK);
}

int main(void) {
    CHECK(gg_version() == 1000);
    limits_are_those_of_the_catalogue();
    a_launch_is_validated_and_each_violation_is_told();
    special_launches_are_validated();
    shared_memory_needs_opt_in();
    a_plan_is_read_in_parts();
    a_batch_has_all_its_limits();
    a_request_is_checked_as_json();
    failures_are_explained();
    tuned_choices_are_looked_up();
    return 0;
}
