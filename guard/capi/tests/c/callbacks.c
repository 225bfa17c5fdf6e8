/* Callbacks that free handles, launch, change the context and begin captures. */
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
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes);
int cuMemsetD8_v2(unsigned long long at, unsigned char value, size_t bytes);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
#ifdef __cplusplus
}
#endif

static const char PTX[] = "// fake fake_iota_y params=8,8,8\n"
                          ".version 8.0\n.target sm_90\n.address_size 64\n"
                          ".visible .entry fake_iota_y(\n)\n";

enum { ITEMS = 76800, EVENTS = 8 };

static void *context, *module, *stream;

/* What a callback does besides counting, and what it saw. */
struct Actions {
    void (*act)(struct Actions *actions, const gg_event *event);
    gg_guard *guard;
    gg_kernel *kernel, *other;
    void *second_context;
    unsigned calls;
    uint32_t kinds[EVENTS];
    uint64_t launches[EVENTS];
    gg_status statuses[EVENTS];
};

static void listen(const gg_event *event, void *user_data) {
    struct Actions *actions = (struct Actions *)user_data;
    CHECK(actions->calls < EVENTS);
    actions->kinds[actions->calls] = event->kind;
    actions->launches[actions->calls] = event->launches;
    actions->statuses[actions->calls] = event->status;
    actions->calls++;
    if (actions->act != NULL) {
        actions->act(actions, event);
    }
    /* Texts are valid until the callback returns, whatever it freed. */
    CHECK(strcmp(event->kernel, "fake_iota_y") == 0);
    CHECK(event->message != NULL && strlen(event->message) < 4096);
}

static gg_kernel *kernel_of(gg_guard *guard) {
    void *function = NULL;
    gg_kernel *kernel = NULL;
    CHECK(cuModuleGetFunction(&function, module, "fake_iota_y") == 0);
    CHECK_STATUS(GG_OK, gg_kernel_create(guard, function, NULL, NULL, 0, &kernel, NULL));
    return kernel;
}

static void begin(struct Actions *actions, void (*act)(struct Actions *, const gg_event *)) {
    ZEROED(gg_guard_options, options);
    memset(actions, 0, sizeof *actions);
    options.context = context;
    options.on_event = listen;
    options.user_data = actions;
    CHECK_STATUS(GG_OK, gg_guard_create(&options, &actions->guard, NULL));
    actions->kernel = kernel_of(actions->guard);
    actions->act = act;
}

/* A launch of `fake_iota_y` over all items, whose strategy is a preference that is not legal. */
struct Iota {
    unsigned long long out;
    gg_following following[3];
    gg_batch batch;
    gg_config config;
    void *params[3];
};

static void prepare(struct Iota *iota) {
    size_t place;
    memset(iota, 0, sizeof *iota);
    CHECK(cuMemAlloc_v2(&iota->out, ITEMS * 8) == 0);
    CHECK(cuMemsetD8_v2(iota->out, 0xde, ITEMS * 8) == 0);
    for (place = 0; place < 3; place++) {
        iota->following[place].parameter = (uint32_t)place;
    }
    iota->following[0].kind = GG_ITEMS;
    iota->following[0].stride_bytes = 8;
    iota->following[1].kind = GG_OFFSET;
    iota->following[2].kind = GG_LENGTH;
    iota->batch = items_of_five();
    iota->batch.items = ITEMS;
    iota->batch.blocks_per_item = 1;
    iota->batch.strategy = GG_STRATEGY_WHOLE;
    iota->batch.flags = GG_PREFERENCE;
    iota->batch.following = iota->following;
    iota->batch.following_count = 3;
    iota->config = attention();
    iota->config.stream = stream;
    iota->params[0] = &iota->out;
}

static gg_status launch(const gg_kernel *kernel, struct Iota *iota) {
    return gg_launch(kernel, &iota->config, iota->params, &iota->batch, NULL, NULL);
}

static int is_written(const struct Iota *iota) {
    uint64_t last = 0;
    CHECK(cuMemcpyDtoH_v2(&last, iota->out + (ITEMS - 1) * 8, 8) == 0);
    return last == ITEMS - 1;
}

static struct Iota *launched;

static void look(struct Actions *actions, const gg_event *event) {
    (void)actions;
    (void)event;
    CHECK(is_written(launched));
}

static void events_come_after_the_launch(void) {
    struct Actions actions;
    struct Iota iota;
    begin(&actions, look);
    prepare(&iota);
    launched = &iota;
    CHECK_STATUS(GG_OK, launch(actions.kernel, &iota));
    CHECK(actions.calls == 2);
    CHECK(actions.kinds[0] == GG_EVENT_CHOICE_REJECTED && actions.kinds[1] == GG_EVENT_SPLIT);
    CHECK(actions.launches[0] == 2 && actions.launches[1] == 2);
    /* The status of the event is that of the call. */
    iota.config.block.x = 4096;
    actions.act = NULL;
    actions.calls = 0;
    CHECK_STATUS(GG_REJECTED, launch(actions.kernel, &iota));
    CHECK(actions.calls == 2 && actions.kinds[0] == GG_EVENT_CHOICE_REJECTED);
    CHECK(actions.statuses[0] == GG_REJECTED && actions.launches[0] == 0);
    CHECK(actions.kinds[1] == GG_EVENT_REJECTED && actions.statuses[1] == GG_REJECTED);
    CHECK(gg_free(actions.kernel) == GG_OK && gg_free(actions.guard) == GG_OK);
}

static void free_kernel_and_guard(struct Actions *actions, const gg_event *event) {
    int is_first = actions->calls == 1;
    (void)event;
    CHECK_STATUS(is_first ? GG_OK : GG_INVALID_HANDLE, gg_free(actions->kernel));
    CHECK_STATUS(GG_INVALID_HANDLE, gg_free(actions->kernel));
    CHECK_STATUS(is_first ? GG_OK : GG_INVALID_HANDLE, gg_free(actions->guard));
    CHECK_STATUS(GG_INVALID_HANDLE, launch(actions->kernel, launched));
}

static void a_callback_frees_the_kernel_that_is_launched(void) {
    struct Actions actions;
    struct Iota iota;
    begin(&actions, free_kernel_and_guard);
    prepare(&iota);
    launched = &iota;
    CHECK_STATUS(GG_OK, launch(actions.kernel, &iota));
    CHECK(actions.calls == 2 && is_written(&iota));
    CHECK_STATUS(GG_INVALID_HANDLE, launch(actions.kernel, &iota));
}

static void *free_on_a_thread(void *handle) {
    CHECK(gg_free(handle) == GG_OK);
    return NULL;
}

static void free_elsewhere(struct Actions *actions, const gg_event *event) {
    pthread_t thread;
    (void)event;
    if (actions->calls == 1) {
        CHECK(pthread_create(&thread, NULL, free_on_a_thread, actions->kernel) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

static void a_thread_that_a_callback_waits_for_frees_the_kernel(void) {
    struct Actions actions;
    struct Iota iota;
    begin(&actions, free_elsewhere);
    prepare(&iota);
    CHECK_STATUS(GG_OK, launch(actions.kernel, &iota));
    CHECK(actions.calls == 2 && is_written(&iota));
    CHECK(gg_free(actions.guard) == GG_OK);
}

static void launch_again(struct Actions *actions, const gg_event *event) {
    (void)event;
    if (actions->calls == 1) {
        struct Iota iota;
        prepare(&iota);
        CHECK_STATUS(GG_OK, launch(actions->kernel, &iota));
        CHECK(actions->calls == 3 && is_written(&iota));
        CHECK_STATUS(GG_OK, launch(actions->other, &iota));
        CHECK(actions->calls == 5);
    }
    /* In a launch of its own within the first event of the outer one. */
    if (actions->calls == 2) {
        CHECK(gg_free(actions->kernel) == GG_OK);
    }
    if (actions->calls == 4) {
        CHECK(gg_free(actions->other) == GG_OK);
    }
}

static void a_callback_launches_and_frees_both_kernels_within(void) {
    struct Actions actions;
    struct Iota iota;
    begin(&actions, launch_again);
    actions.other = kernel_of(actions.guard);
    prepare(&iota);
    CHECK_STATUS(GG_OK, launch(actions.kernel, &iota));
    CHECK(actions.calls == 6 && is_written(&iota));
    CHECK_STATUS(GG_INVALID_HANDLE, gg_free(actions.kernel));
    CHECK_STATUS(GG_INVALID_HANDLE, gg_free(actions.other));
    CHECK(gg_free(actions.guard) == GG_OK);
}

static void change_context(struct Actions *actions, const gg_event *event) {
    (void)event;
    CHECK(cuCtxSetCurrent(actions->second_context) == 0);
}

static void a_context_that_a_callback_makes_current_stays_so(void) {
    struct Actions actions;
    struct Iota iota;
    void *current = NULL;
    begin(&actions, change_context);
    prepare(&iota);
    CHECK(cuCtxCreate_v2(&actions.second_context, 0, 0) == 0);
    CHECK(cuCtxSetCurrent(context) == 0);
    CHECK_STATUS(GG_OK, launch(actions.kernel, &iota));
    CHECK(cuCtxGetCurrent(&current) == 0 && current == actions.second_context);
    CHECK(cuCtxSetCurrent(context) == 0);
    CHECK(is_written(&iota));
    CHECK(gg_free(actions.kernel) == GG_OK && gg_free(actions.guard) == GG_OK);
}

static void begin_capture(struct Actions *actions, const gg_event *event) {
    (void)event;
    if (actions->calls == 1) {
        CHECK(cuStreamBeginCapture_v2(stream, 2) == 0);
    }
}

static void a_capture_that_a_callback_begins_has_nothing_of_the_launch(void) {
    struct Actions actions;
    struct Iota iota;
    void *graph = NULL;
    begin(&actions, begin_capture);
    prepare(&iota);
    CHECK_STATUS(GG_OK, launch(actions.kernel, &iota));
    CHECK(cuStreamEndCapture(stream, &graph) == 0);
    CHECK(is_written(&iota));
    CHECK(gg_free(actions.kernel) == GG_OK && gg_free(actions.guard) == GG_OK);
}

int main(void) {
    CHECK(cuInit(0) == 0);
    CHECK(cuCtxCreate_v2(&context, 0, 0) == 0);
    CHECK(cuModuleLoadData(&module, PTX) == 0);
    CHECK(cuStreamCreate(&stream, 0) == 0);
    events_come_after_the_launch();
    a_callback_frees_the_kernel_that_is_launched();
    a_thread_that_a_callback_waits_for_frees_the_kernel();
    a_callback_launches_and_frees_both_kernels_within();
    a_context_that_a_callback_makes_current_stays_so();
    a_capture_that_a_callback_begins_has_nothing_of_the_launch();
    return 0;
}
