/*
 * Stands for an interpreter of Python `VERSION` whose memory is broken: random words, pointers into itself, cycles,
 * unmapped addresses. `SEED` chooses them.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 8192, OFFSETS = 128 };
unsigned long _PyRuntime[WORDS], PyCode_Type[8];
#if VERSION >= 11
const unsigned long Py_Version = 0x030000f0 | VERSION << 16;
#else
void PyCode_NewWithPosOnlyArgs(void) {}
#if VERSION >= 9
void PyFrame_GetCode(void) {}
#endif
#if VERSION >= 10
void PyIter_Send(void) {}
#endif
#endif

__attribute__((constructor)) static void fill(void) {
    const char *seed = getenv("SEED");
    unsigned long state = seed ? strtoul(seed, NULL, 10) + 1 : 1;
    for (int i = 0; i < WORDS; i++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        unsigned long random = state >> 33;
        unsigned long inside = (unsigned long)&_PyRuntime[random / 16 % WORDS];
        switch (random % 16) {
            case 0: _PyRuntime[i] = (unsigned long)PyCode_Type; break;
            case 1: _PyRuntime[i] = (unsigned long)pthread_self(); break;
            case 2: _PyRuntime[i] = random; break;
            case 3: _PyRuntime[i] = -random; break;
            /* The state of a string. */
            case 4: _PyRuntime[i] = 0x64 + (random & 0x1c); break;
            case 5: _PyRuntime[i] = random / 16 % 4096; break;
            default: _PyRuntime[i] = inside;
        }
        if (VERSION >= 13 && i < OFFSETS) _PyRuntime[i] = random / 16 % 64 * 8;
    }
    if (VERSION >= 13) _PyRuntime[2] = 0;
}
