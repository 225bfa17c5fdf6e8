/*
 * A fake NVRTC, for tests on machines without one. A program with matching braces compiles to PTX of
 * `gridguard_invert`, which the fake driver runs, or to machine code of a kernel with the program's
 * name. README.md documents it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvrtcResult;
typedef struct Program { int depth; char name[256]; } *nvrtcProgram;

static const char PTX[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    "// fake gridguard_invert params=8,8\n"
    ".visible .entry gridguard_invert(.param .u64 values, .param .u64 items)\n{ ret; }\n";

/* A 64-bit CUDA ELF without sections; its flags tell the fake driver that PTX follows. */
static const unsigned char ELF_HEADER[64] = {
    0x7f, 'E', 'L', 'F', 2, 1, 1, [16] = 2, [18] = 190, [48] = 'F', 'A', 'K', 'E', [52] = 64,
};

static int setting(const char *name, int fallback) {
    const char *text = getenv(name);
    return text ? atoi(text) : fallback;
}

nvrtcResult nvrtcVersion(int *major, int *minor) {
    int version = setting("GRIDGUARD_FAKE_NVRTC_VERSION", 13000);
    *major = version / 1000;
    *minor = version % 1000 / 10;
    return 0;
}

enum { NVRTC_SUCCESS, NVRTC_ERROR_COMPILATION = 6 };

const char *nvrtcGetErrorString(nvrtcResult code) {
    if (code == NVRTC_ERROR_COMPILATION) return "NVRTC_ERROR_COMPILATION";
    return code ? "NVRTC_ERROR_FAKE" : "NVRTC_SUCCESS";
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int headers,
                               const char *const *texts, const char *const *names) {
    (void)headers, (void)texts, (void)names;
    *program = calloc(1, sizeof **program);
    if (!*program) abort();
    snprintf((*program)->name, sizeof (*program)->name, "%s", name ? name : "");
    for (; *source; source++) (*program)->depth += (*source == '{') - (*source == '}');
    return 0;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    free(*program);
    return 0;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options) {
    (void)count, (void)options;
    const char *path = getenv("GRIDGUARD_FAKE_LOG");
    FILE *log = path && *path ? fopen(path, "a") : NULL;
    if (log) fprintf(log, "compile %s\n", program->name), fclose(log);
    usleep((useconds_t)setting("GRIDGUARD_FAKE_NVRTC_MS", 0) * 1000);
    return program->depth ? NVRTC_ERROR_COMPILATION : NVRTC_SUCCESS;
}

/* Writes the image where there is room for it, and returns its size. */
static size_t image(nvrtcProgram program, char *to) {
    const char *params = getenv("GRIDGUARD_FAKE_NVRTC_CUBIN");
    if (!params) {
        if (to) memcpy(to, PTX, sizeof PTX);
        return sizeof PTX;
    }
    char text[1024];
    int stem = (int)strcspn(program->name, ".");
    int length = snprintf(text, sizeof text,
                          ".version 8.0\n.target sm_90\n// fake %.*s params=%.64s\n.visible .entry %.*s(\n)\n",
                          stem, program->name, params, stem, program->name);
    if (to) memcpy(to, ELF_HEADER, sizeof ELF_HEADER), memcpy(to + sizeof ELF_HEADER, text, length + 1);
    return sizeof ELF_HEADER + (size_t)length + 1;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) {
    *size = image(program, NULL);
    return 0;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin) {
    image(program, cubin);
    return 0;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size) {
    (void)program;
    *size = sizeof PTX;
    return 0;
}

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *ptx) {
    (void)program;
    memcpy(ptx, PTX, sizeof PTX);
    return 0;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) {
    (void)program;
    *size = 1;
    return 0;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log) {
    (void)program;
    *log = 0;
    return 0;
}
