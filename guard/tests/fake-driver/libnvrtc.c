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

/* Writes the PTX of the program's kernel, with these parameters. */
static int kernel_text(nvrtcProgram program, const char *params, char *to, size_t room) {
    int stem = (int)strcspn(program->name, "."), length;
    length = snprintf(to, room, ".version 8.0\n.target sm_90\n.visible .entry %.*s(", stem, program->name);
    for (const char *at = params, *before = ""; *at; before = ", ") {
        int bytes = (int)strtol(at, (char **)&at, 10);
        length += snprintf(to + length, room - length, "%s.param .b%d p%d", before, 8 * bytes, length);
        at += *at == ',';
    }
    return length + snprintf(to + length, room - length, ")\n{\n\t.reg .b32 %%r<2>;\n\tmov.u32 %%r1, %%ctaid.y;\n\tret;\n}\n");
}

/* Writes the image where there is room for it, and returns its size. */
static size_t image(nvrtcProgram program, char *to) {
    const char *params = getenv("GRIDGUARD_FAKE_NVRTC_CUBIN");
    if (!params) {
        if (to) memcpy(to, PTX, sizeof PTX);
        return sizeof PTX;
    }
    char text[4096];
    int length = kernel_text(program, params, text, sizeof text);
    size_t bytes = sizeof ELF_HEADER + (size_t)length + 1;
    if (!to) return bytes;
    memcpy(to, ELF_HEADER, sizeof ELF_HEADER);
    memcpy(to + 32, &bytes, sizeof bytes); /* an empty table of segments at the end shows the size */
    memcpy(to + sizeof ELF_HEADER, text, (size_t)length + 1);
    return bytes;
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
    const char *params = getenv("GRIDGUARD_FAKE_NVRTC_CUBIN");
    char text[4096];
    *size = params ? (size_t)kernel_text(program, params, text, sizeof text) + 1 : sizeof PTX;
    return 0;
}

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *ptx) {
    const char *params = getenv("GRIDGUARD_FAKE_NVRTC_CUBIN");
    char text[4096];
    if (params) memcpy(ptx, text, (size_t)kernel_text(program, params, text, sizeof text) + 1);
    else memcpy(ptx, PTX, sizeof PTX);
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
