/*
 * A program that builds a graph with kernel nodes by hand. Prints what the driver returned.
 *
 *   graphs LOOKUP ACTION...
 *
 * LOOKUP is `dlsym`, or the version for which functions are asked of the driver: 11080, 12020, 13000.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*Call)();
typedef struct {
    void *function;
    unsigned grid[3], block[3], shared;
    void **params, **extra, *kernel, *context;
} KernelNode;
typedef struct {
    int type, reserved[3];
    union { KernelNode kernel; char bytes[232]; } of;
    long long more;
} Node;

static const char PTX[] = ".version 8.0\n.target sm_90\n.entry _Z5touchPfi() { }\n";
static void *driver, *function, *kernel, *graph, *node, *ready;
static int version;
static unsigned shared = 4096;

static Call find(const char *name) {
    void *found = NULL;
    int status;
    Call query = version ? (Call)dlsym(driver, "cuGetProcAddress_v2") : NULL;
    if (query && query(name, &found, version, 0ULL, &status)) found = NULL;
    if (!query) found = dlsym(driver, name);
    if (found) return (Call)found;
    printf("no %s\n", name);
    exit(3);
}

static int set_up(void) {
    void *context, *module, *library;
    return find("cuInit")(0) || find("cuDevicePrimaryCtxRetain")(&context, 0) || find("cuCtxSetCurrent")(context) ||
           find("cuModuleLoadData")(&module, PTX) || find("cuModuleGetFunction")(&function, module, "_Z5touchPfi") ||
           find("cuGraphCreate")(&graph, 0) ||
           (version >= 12000 && (find("cuLibraryLoadData")(&library, PTX, NULL, NULL, 0, NULL, NULL, 0) ||
                                 find("cuLibraryGetKernel")(&kernel, library, "_Z5touchPfi")));
}

static int act(const char *action) {
    unsigned y = 1;
    char how[32];
    struct { unsigned long long flags; void *stream, *failed; int result; } params = {0};
    if (sscanf(action, "%31[a-z-]=%u", how, &y) < 1) return -1;
    KernelNode old = {.function = function, .grid = {1, y, 1}, .block = {128, 1, 1}, .shared = shared};
    Node any = {.of.kernel = old};
    if (version < 12000) old.kernel = (void *)1; /* not part of the older structure */
    if (!strcmp(how, "add")) return find("cuGraphAddKernelNode")(&node, graph, NULL, (size_t)0, &old);
    if (!strcmp(how, "many")) {
        Call add = find("cuGraphAddKernelNode");
        int status = 0;
        old.grid[1] = 1;
        while (y-- && !status) status = add(&node, graph, NULL, (size_t)0, &old);
        return status;
    }
    if (!strcmp(how, "set")) return find("cuGraphKernelNodeSetParams")(node, &old);
    if (!strcmp(how, "update")) return find("cuGraphExecKernelNodeSetParams")(ready, node, &old);
    if (!strcmp(how, "no-kernel")) {
        old.function = NULL;
        return find("cuGraphAddKernelNode")(&node, graph, NULL, (size_t)0, &old);
    }
    if (!strcmp(how, "no-dependencies")) return find("cuGraphAddKernelNode")(&node, graph, NULL, (size_t)1, &old);
    if (!strcmp(how, "add-handle")) {
        any.of.kernel.function = NULL;
        any.of.kernel.kernel = kernel;
    }
    if (!strncmp(how, "add-", 4)) {
        if (version == 12020) return find("cuGraphAddNode")(&node, graph, NULL, (size_t)0, &any);
        return find("cuGraphAddNode")(&node, graph, NULL, NULL, (size_t)0, &any);
    }
    if (!strcmp(how, "set-any")) return find("cuGraphNodeSetParams")(node, &any);
    if (!strcmp(how, "update-any")) return find("cuGraphExecNodeSetParams")(ready, node, &any);
    if (!strcmp(how, "cluster")) {
        unsigned value[16] = {1, y, 1};
        return find("cuGraphKernelNodeSetAttribute")(node, 4, value);
    }
    if (!strcmp(how, "child")) {
        void *outer;
        if (find("cuGraphCreate")(&outer, 0)) return -1;
        int status = find("cuGraphAddChildGraphNode")(&node, outer, NULL, (size_t)0, graph);
        graph = outer;
        return status;
    }
    if (!strcmp(how, "instantiate")) {
        if (version >= 12000) return find("cuGraphInstantiate")(&ready, graph, 0ULL);
        return find("cuGraphInstantiate")(&ready, graph, NULL, NULL, (size_t)0);
    }
    if (!strcmp(how, "instantiate-flags")) return find("cuGraphInstantiateWithFlags")(&ready, graph, 0ULL);
    if (!strcmp(how, "instantiate-params")) return find("cuGraphInstantiateWithParams")(&ready, graph, &params);
    if (!strcmp(how, "no-flags")) return find("cuGraphInstantiateWithFlags")(&ready, graph, 1ULL << 40);
    if (!strcmp(how, "launch")) return find("cuGraphLaunch")(ready, NULL);
    if (!strcmp(how, "plain")) return find("cuLaunchKernel")(function, 1, y, 1, 128, 1, 1, 0, NULL, NULL, NULL);
    if (!strcmp(how, "shared")) return shared = y, 0;
    if (!strcmp(how, "wait")) return find("cuStreamSynchronize")(NULL);
    return -1;
}

int main(int count, char **words) {
    if (count < 2) return 2;
    version = atoi(words[1]);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || set_up()) return 5;
    for (int i = 2; i < count; i++) printf("%s %d\n", words[i], act(words[i]));
    return 0;
}
