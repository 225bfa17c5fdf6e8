/* What needs a driver, on a machine without one. */
#include "check.h"

int main(void) {
    ZEROED(gg_guard_options, options);
    gg_limits *limits = NULL;
    gg_guard *guard = NULL;
    gg_error *error = NULL;
    gg_text *text = NULL;
    int local = 0;
    CHECK_STATUS(GG_DRIVER, gg_limits_of_device(0, NULL, &limits, &error));
    CHECK_STATUS(GG_OK, gg_error_explain(error, &text, NULL));
    CHECK(strlen(gg_text_data(text)) > 0);
    CHECK(gg_free(text) == GG_OK);
    check_error(error, GG_DRIVER, "no CUDA driver library found");
    CHECK_STATUS(GG_DRIVER, gg_guard_create(NULL, &guard, &error));
    check_error(error, GG_DRIVER, "no CUDA driver library found");
    options.context = &local;
    CHECK_STATUS(GG_DRIVER, gg_guard_create(&options, &guard, NULL));
    CHECK(limits == NULL && guard == NULL);
    CHECK_STATUS(GG_OK, gg_limits_of_gpu("l4", NULL, &limits, NULL));
    CHECK(gg_free(limits) == GG_OK);
    return 0;
}
