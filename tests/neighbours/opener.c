/* opener COUNT PLUGIN local|deep: opens a plugin of `rows.c` for itself alone, and calls it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int words, char **word) {
    if (words < 4) return 2;
    int deep = strcmp(word[3], "deep") ? 0 : RTLD_DEEPBIND;
    void *plugin = dlopen(word[2], RTLD_NOW | RTLD_LOCAL | deep);
    int (*work)(unsigned) = NULL;
    if (plugin) *(void **)&work = dlsym(plugin, "work");
    if (!work) return puts(dlerror()), 2;
    return work((unsigned)atoi(word[1]));
}
