/*
 * A program that launches through a CUDA runtime that is a shared library. Prints what the runtime returned.
 *
 *   runtime ACTION...
 *
 * With -DLINKED it links the runtime; else it loads `libcudart.so.13` and looks its functions up. With -DPLUGIN it
 * is a library that links a runtime and exports `plugin_act`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned x, y, z; } Size;
typedef struct {
    Size grid, block;
    size_t shared;
    void *stream, *attributes;
    unsigned count;
} Config;
typedef int (*Launch)(void *, Size, Size, void **, size_t, void *);
typedef int (*LaunchEx)(const Config *, void *, void **);
typedef int (*GetKernel)(void **, const void *);
typedef int (*Plain)(void);

#if defined LINKED || defined PLUGIN
int cudaLaunchKernel(void *, Size, Size, void **, size_t, void *);
int cudaLaunchKernel_ptsz(void *, Size, Size, void **, size_t, void *);
int cudaLaunchCooperativeKernel(void *, Size, Size, void **, size_t, void *);
int __cudaLaunchKernel(void *, Size, Size, void **, size_t, void *);
int cudaLaunchKernelExC(const Config *, void *, void **);
int __cudaGetKernel(void **, const void *), cudaGetLastError(void);
#define FIND(name) name
#else
static void *runtime;
static void *find(const char *name) {
    void *found = dlsym(runtime, name);
    if (found) return found;
    printf("no %s\n", name);
    exit(3);
}
#define FIND(name) find(#name)
#endif

/* The host function that stands for the kernel. */
void _Z9host_stubPfi(void) { puts("never called"); }

/* ACTION is the size of a launch, and after a dash how it is made; or `last` for the last error. */
static int act(const char *action) {
    static const struct { const char *name; Size grid, block; } sizes[] = {
        {"good", {1, 1, 1}, {128, 1, 1}},        {"refused", {1, 70000, 1}, {128, 1, 1}},
        {"zero", {1, 0, 1}, {128, 1, 1}},        {"empty", {1, 1, 1}, {1, 0, 1}},
        {"threads", {1, 1, 1}, {1024, 2, 1}},    {"two", {2, 70000, 1}, {128, 1, 1}},
    };
    void *stub = (void *)_Z9host_stubPfi, *handle;
    const char *way = strchr(action, '-');
    if (!strcmp(action, "last")) return ((Plain)FIND(cudaGetLastError))();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Size grid = sizes[i].grid, block = sizes[i].block;
        size_t length = strlen(sizes[i].name);
        if (strncmp(action, sizes[i].name, length) || (action[length] && action[length] != '-')) continue;
        if (!way) return ((Launch)FIND(cudaLaunchKernel))(stub, grid, block, NULL, 4096, NULL);
        if (!strcmp(way, "-thread")) {
            return ((Launch)FIND(cudaLaunchKernel_ptsz))(stub, grid, block, NULL, 4096, NULL);
        }
        if (!strcmp(way, "-cooperative")) {
            return ((Launch)FIND(cudaLaunchCooperativeKernel))(stub, grid, block, NULL, 4096, NULL);
        }
        if (!strcmp(way, "-handle")) {
            if (((GetKernel)FIND(__cudaGetKernel))(&handle, stub)) return -1;
            return ((Launch)FIND(__cudaLaunchKernel))(handle, grid, block, NULL, 4096, NULL);
        }
        struct { unsigned id; char pad[4]; unsigned value[16]; } attribute = {.id = 4, .value = {1, 2, 1}};
        Config config = {grid, block, 4096, NULL, &attribute, 1};
        if (!strcmp(way, "-ex")) return ((LaunchEx)FIND(cudaLaunchKernelExC))(&config, stub, NULL);
    }
    return -1;
}

#ifdef PLUGIN
int plugin_act(const char *action) { return act(action); }
#else
int main(int count, char **words) {
#ifndef LINKED
    runtime = dlopen("libcudart.so.13", RTLD_NOW);
    if (!runtime) return 4;
#endif
    int (*plugin)(const char *) = NULL;
    void *library = NULL;
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "close")) {
            dlclose(library);
        } else if (!strncmp(words[i], "plugin=", 7)) {
            library = dlopen(words[i] + 7, RTLD_NOW | RTLD_LOCAL);
            plugin = library ? (int (*)(const char *))dlsym(library, "plugin_act") : NULL;
            if (!plugin) return puts(dlerror()), 5;
        } else {
            int in_plugin = !strncmp(words[i], "in-", 3);
            printf("%s %d\n", words[i], in_plugin ? plugin(words[i] + 3) : act(words[i]));
        }
    }
    return 0;
}
#endif
