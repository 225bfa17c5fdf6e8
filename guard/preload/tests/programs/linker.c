/*
 * A fake nvJitLink: the cubin of a linker is its first input, which the fake driver takes. With `-lto` and `-ptx` it gives the
 * input as PTX, and no cubin.
 */
#include <stdlib.h>
#include <string.h>

typedef struct { char *cubin; size_t bytes; int optimizes, stops; } Linker;

int nvJitLinkCreate(Linker **linker, unsigned count, const char **options) {
    *linker = calloc(1, sizeof **linker);
    for (unsigned i = 0; i < count; i++) {
        (*linker)->optimizes |= !strcmp(options[i], "-lto");
        (*linker)->stops |= !strcmp(options[i], "-ptx");
    }
    return !*linker;
}

int nvJitLinkAddData(Linker *linker, int kind, const void *data, size_t bytes, const char *name) {
    (void)kind, (void)name;
    if (linker->cubin) return 0;
    linker->bytes = 64 + bytes;
    linker->cubin = calloc(1, linker->bytes);
    memcpy(linker->cubin, "\177ELF\2\1\1", 7);
    memcpy(linker->cubin + 32, &linker->bytes, sizeof linker->bytes);
    memcpy(linker->cubin + 48, "FAKE", 4);
    memcpy(linker->cubin + 64, data, bytes);
    return 0;
}

int nvJitLinkAddFile(Linker *linker, int kind, const char *path) { return (void)linker, (void)kind, !path; }
int nvJitLinkComplete(Linker *linker) { return !linker->cubin || (linker->stops && !linker->optimizes); }
int nvJitLinkGetLinkedPtxSize(Linker *linker, size_t *bytes) { return *bytes = linker->bytes - 64, !linker->stops; }
int nvJitLinkGetLinkedPtx(Linker *linker, char *text) { return memcpy(text, linker->cubin + 64, linker->bytes - 64), 0; }
int nvJitLinkGetLinkedCubinSize(Linker *linker, size_t *bytes) { return *bytes = linker->bytes, 0; }
int nvJitLinkGetLinkedCubin(Linker *linker, void *cubin) { return memcpy(cubin, linker->cubin, linker->bytes), 0; }
int nvJitLinkDestroy(Linker **linker) { return free((*linker)->cubin), free(*linker), 0; }
