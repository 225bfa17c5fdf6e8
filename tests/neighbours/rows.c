/*
 * rows COUNT [fork]: launches a kernel of COUNT blocks on y by the CUDA runtime, each of which writes 1, and prints their sum.
 * With `fork`, a child does so first. With -DPLUGIN it is a library with the function `work`, which `opener.c` opens.
 *
 * It registers the fat binary IMAGE as nvcc's host code does, but by functions that all runtimes since 11 have: one source
 * links with each of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { unsigned x, y, z; } Size;

int cudaMalloc(void **, size_t), cudaMemset(void *, int, size_t), cudaMemcpy(void *, const void *, size_t, int);
int cudaLaunchKernel(const void *, Size, Size, void **, size_t, void *), cudaGetLastError(void), cudaFree(void *);
const char *cudaGetErrorString(int);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **), __cudaUnregisterFatBinary(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);

__asm__(".pushsection .nv_fatbin, \"a\"\n.p2align 3\nrows_image: .incbin \"" IMAGE "\"\n.popsection");
extern const char rows_image[];
static struct { int magic, version; const void *image, *other; } wrapper
    __attribute__((section(".nvFatBinSegment"), used)) = {0x466243b1, 1, rows_image, NULL};
static void **registered;

/* Its address names the kernel. */
static void rows(float *out) { (void)out; }

__attribute__((constructor)) static void begin(void) {
    registered = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(registered, (const char *)rows, "rows", "rows", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(registered);
}

__attribute__((destructor)) static void end(void) { __cudaUnregisterFatBinary(registered); }

int work(unsigned count) {
    float *out = NULL, *host = calloc(count, sizeof *host), sum = 0;
    void *arguments[] = {&out};
    int status = cudaMalloc((void **)&out, count * sizeof *out);
    if (!status) status = cudaMemset(out, 0, count * sizeof *out);
    if (status || !host) return printf("no memory: %s\n", cudaGetErrorString(status)), 2;
    int launched = cudaLaunchKernel((const void *)rows, (Size){1, count, 1}, (Size){1, 1, 1}, arguments, 0, NULL);
    int last = cudaGetLastError();
    status = cudaMemcpy(host, out, count * sizeof *out, 2);
    for (unsigned i = 0; i < count; i++) sum += host[i];
    printf("launch %s, last error %d, copy %d, sum %g\n", launched ? "refused" : "accepted", last, status, sum);
    fflush(stdout);
    cudaFree(out);
    free(host);
    return launched ? 1 : status;
}

#ifndef PLUGIN
int main(int words, char **word) {
    if (words < 2) return 2;
    if (words > 2 && !strcmp(word[2], "fork")) {
        int status = 0;
        if (!fork()) exit(work((unsigned)atoi(word[1])));
        wait(&status);
        printf("child %d\n", WEXITSTATUS(status));
        fflush(stdout);
    }
    return work((unsigned)atoi(word[1]));
}
#endif
