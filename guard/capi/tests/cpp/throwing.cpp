// A callback that an exception leaves: the process ends there, instead of going on without the rest of the call.
#include "../c/check.h"
#include <cstdio>

extern "C" {
int cuInit(unsigned flags);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
}

static const char PTX[] = "// fake idle params=8\n"
                          ".version 8.0\n.target sm_90\n.address_size 64\n"
                          ".visible .entry idle(\n)\n";

static void throws(const gg_event *, void *) { throw 7; }

static void call() {
    void *context = nullptr, *module = nullptr, *function = nullptr;
    gg_guard_options options = {};
    gg_guard *guard = nullptr;
    gg_kernel *kernel = nullptr;
    unsigned long long value = 0;
    void *params[1] = {&value};
    CHECK(cuInit(0) == 0 && cuCtxCreate_v2(&context, 0, 0) == 0);
    CHECK(cuModuleLoadData(&module, PTX) == 0);
    CHECK(cuModuleGetFunction(&function, module, "idle") == 0);
    options.struct_size = sizeof options;
    options.on_event = throws;
    CHECK_STATUS(GG_OK, gg_guard_create(&options, &guard, nullptr));
    CHECK_STATUS(GG_OK, gg_kernel_create(guard, function, nullptr, nullptr, 0, &kernel, nullptr));
    gg_config config = attention();
    gg_launch(kernel, &config, params, nullptr, nullptr, nullptr);
}

int main() {
    (void)throws;
    try {
        call();
    } catch (int) {
    }
    std::puts("the exception went on");
    return 0;
}
