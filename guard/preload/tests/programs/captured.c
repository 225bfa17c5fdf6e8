/*
 * A program whose launches read and change memory, for captures. Prints each ACTION and what the driver returned.
 *
 *   captured ACTION...
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*Call)();
typedef unsigned long long Word;

enum { ITEMS = 512, BLOCKS = 16 };

/* The fake driver knows what `gridguard_invert` and `iota_x` do. */
static const char PTX[] =
    ".version 8.0\n.target sm_90\n.visible .global .align 8 .u64 counter;\n.const .align 4 .f32 scale[2];\n"
    ".visible .entry gridguard_invert(.param .u64 values, .param .u64 items) { ret; }\n"
    ".visible .entry iota_x(.param .u64 out, .param .u64 first, .param .u64 items) { ret; }\n"
    ".visible .entry _Z6lookupPPyi(.param .u64 table, .param .u32 items) { ret; }\n";

static void *driver, *module, *stream;
static Word values, table, large;

static int call(const char *name, Word a, Word b, Word c, Word d, Word e) {
    Call found = (Call)dlsym(driver, name);
    if (!found) printf("no %s\n", name), exit(3);
    return found(a, b, c, d, e);
}

static int launch(const char *name, unsigned grid, unsigned block, void **parameters) {
    void *function;
    int (*kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int status = call("cuModuleGetFunction", (Word)&function, (Word)module, (Word)name, 0, 0);
    kernel = (int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                      void **))dlsym(driver, "cuLaunchKernel");
    return status ? status : kernel(function, grid, 1, 1, block, 1, 1, 0, stream, parameters, NULL);
}

static int invert(void) {
    Word items = ITEMS;
    return launch("gridguard_invert", ITEMS / 64, 64, (void *[]){&values, &items});
}

static int iota(void) {
    /* An address within the allocation. */
    Word out = values + 64, first = 5, items = BLOCKS;
    return launch("iota_x", BLOCKS, 64, (void *[]){&out, &first, &items});
}

static int lookup(Word *of) {
    int items = 1;
    return launch("_Z6lookupPPyi", 1, 32, (void *[]){of, &items});
}

static int set_counter(void) {
    Word at, seven = 7;
    size_t bytes;
    int status = call("cuModuleGetGlobal_v2", (Word)&at, (Word)&bytes, (Word)module, (Word) "counter", 0);
    return status ? status : call("cuMemcpyHtoD_v2", at, (Word)&seven, sizeof seven, 0, 0);
}

static int in_graph(void) {
    void *graph;
    if (call("cuStreamCreate", (Word)&stream, 1, 0, 0, 0)) return -1;
    int status = call("cuStreamBeginCapture_v2", (Word)stream, 2, 0, 0, 0);
    if (!status) status = invert();
    int ended = call("cuStreamEndCapture", (Word)stream, (Word)&graph, 0, 0, 0);
    stream = NULL;
    return status ? status : ended;
}

static int act(const char *action) {
    if (!strcmp(action, "invert")) return invert();
    if (!strcmp(action, "iota")) return iota();
    if (!strcmp(action, "lookup")) return lookup(&table);
    if (!strcmp(action, "large")) return lookup(&large);
    if (!strcmp(action, "counter")) return set_counter();
    if (!strcmp(action, "graph")) return in_graph();
    if (!strcmp(action, "die")) kill(getpid(), 9);
    return -1;
}

int main(int count, char **actions) {
    Word numbers[ITEMS];
    void *context;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    int status = call("cuInit", 0, 0, 0, 0, 0);
    status |= call("cuDevicePrimaryCtxRetain", (Word)&context, 0, 0, 0, 0);
    status |= call("cuCtxSetCurrent", (Word)context, 0, 0, 0, 0);
    status |= call("cuModuleLoadData", (Word)&module, (Word)PTX, 0, 0, 0);
    status |= call("cuMemAlloc_v2", (Word)&values, sizeof numbers, 0, 0, 0);
    status |= call("cuMemAlloc_v2", (Word)&table, 64, 0, 0, 0);
    status |= call("cuMemAlloc_v2", (Word)&large, 64 << 20, 0, 0, 0);
    for (int i = 0; i < ITEMS; i++) numbers[i] = (Word)i;
    status |= call("cuMemcpyHtoD_v2", values, (Word)numbers, sizeof numbers, 0, 0);
    /* A table of one address. */
    Word addresses[8] = {values + 8};
    status |= call("cuMemcpyHtoD_v2", table, (Word)addresses, sizeof addresses, 0, 0);
    printf("set up %d\n", status);
    fflush(stdout);
    for (int i = 1; i < count; i++) printf("%s %d\n", actions[i], act(actions[i]));
    return 0;
}
