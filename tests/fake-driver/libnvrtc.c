/*
 * A stand-in for NVRTC, for tests on machines without one: whatever it is given compiles to PTX of
 * `gridguard_invert`, which the fake driver runs, but for braces that do not match. README.md says
 * what it answers.
 */
#include <stdlib.h>
#include <string.h>

typedef int nvrtcResult;
typedef struct Program { int depth; } *nvrtcProgram;

static const char PTX[] =
    ".version 8.0\n.target sm_90\n.address_size 64\n"
    "// fake gridguard_invert params=8,8\n"
    ".visible .entry gridguard_invert(.param .u64 values, .param .u64 items)\n{ ret; }\n";

nvrtcResult nvrtcVersion(int *major, int *minor) {
    const char *text = getenv("GRIDGUARD_FAKE_NVRTC_VERSION");
    int version = text ? atoi(text) : 13000;
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
    (void)name, (void)headers, (void)texts, (void)names;
    *program = calloc(1, sizeof **program);
    for (; *source; source++) (*program)->depth += (*source == '{') - (*source == '}');
    return 0;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    free(*program);
    return 0;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options) {
    (void)count, (void)options;
    return program->depth ? NVRTC_ERROR_COMPILATION : NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) {
    (void)program;
    *size = sizeof PTX;
    return 0;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin) {
    (void)program;
    memcpy(cubin, PTX, sizeof PTX);
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
