/*
 * plugin FLAGS: opens a plugin with RTLD_LOCAL, and with RTLD_DEEPBIND if FLAGS is `deep`. The plugin launches an oversized
 * grid.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*Call)();

#ifdef PLUGIN
#define FIND(name) ((Call)dlsym(driver, #name))
int work(void) {
    static const char PTX[] = ".version 8.0\n.target sm_90\n.entry rows() { }\n";
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *function;
    int status = FIND(cuInit)(0) | FIND(cuDevicePrimaryCtxRetain)(&context, 0) | FIND(cuCtxSetCurrent)(context);
    status |= FIND(cuModuleLoadData)(&module, PTX) | FIND(cuModuleGetFunction)(&function, module, "rows");
    printf("setup %d\n", status);
    printf("launch %d\n", FIND(cuLaunchKernel)(function, 1, 70000, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    return 0;
}
#else
int main(int count, char **words) {
    int deep = count > 1 && !strcmp(words[1], "deep") ? RTLD_DEEPBIND : 0;
    void *plugin = dlopen(getenv("PLUGIN"), RTLD_NOW | RTLD_LOCAL | deep);
    if (!plugin) return puts(dlerror());
    return ((Call)dlsym(plugin, "work"))();
}
#endif
