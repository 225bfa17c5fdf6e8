/*
 * A program that loads an image and launches its kernel `rows(out, n)`, or another one with `name=NAME`. Prints what the
 * driver returned.
 *
 *   loads LOOKUP IMAGE ACTION...
 *
 * LOOKUP is `dlsym`, or `thread` for functions whose default stream is the thread's own.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*Call)();
typedef struct { unsigned id; char pad[4]; unsigned value[16]; } Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    Attribute *attributes;
    unsigned count;
} Config;

static void *driver, *context, *container, *function, *stream, *graph, *object;
static const char *lookup, *kernel = "rows";
static char *image;
static size_t image_bytes;
static const char *path;

static Call find(const char *name) {
    void *found = NULL;
    int status;
    if (!strcmp(lookup, "thread")) {
        Call query = (Call)dlsym(driver, "cuGetProcAddress_v2");
        if (query(name, &found, 13000, 2ULL, &status)) found = NULL;
    } else {
        found = dlsym(driver, name);
    }
    if (found) return (Call)found;
    printf("no %s\n", name);
    exit(3);
}

static void *read_file(const char *path) {
    FILE *file = fopen(path, "r");
    long bytes;
    if (!file || fseek(file, 0, SEEK_END) || (bytes = ftell(file)) < 0) exit(4);
    rewind(file);
    char *read = calloc(1, (size_t)bytes + 1);
    if (fread(read, 1, (size_t)bytes, file) != (size_t)bytes) exit(4);
    fclose(file);
    image_bytes = (size_t)bytes;
    return read;
}

/* The structure that compilers write around a fat binary. */
static void *wrapped(void) {
    static struct { uint32_t magic, version; void *data, *other; } wrapper = {0x466243b1, 1, NULL, NULL};
    wrapper.data = image;
    return &wrapper;
}

/* Compiles a program that is named after the kernel, with `NVRTC_OPTION`, and loads its machine code from memory that is freed
 * then. */
#ifdef LINKED
int nvrtcCreateProgram(), nvrtcCompileProgram(), nvrtcGetCUBINSize(), nvrtcGetCUBIN(), nvrtcDestroyProgram();
#define NVRTC(name) ((Call)name)
#else
#define NVRTC(name) ((Call)dlsym(compiler, #name))
#endif
static int compile(void) {
    void *program, *compiler = dlopen("libnvrtc.so.13", RTLD_NOW);
    size_t bytes;
    const char *option = getenv("NVRTC_OPTION");
    if (!compiler) return -1;
    int status = NVRTC(nvrtcCreateProgram)(&program, "{}", kernel, 0, NULL, NULL);
    status |= NVRTC(nvrtcCompileProgram)(program, option ? 1 : 0, &option) | NVRTC(nvrtcGetCUBINSize)(program, &bytes);
    char *cubin = malloc(bytes);
    status |= NVRTC(nvrtcGetCUBIN)(program, cubin);
    status |= NVRTC(nvrtcDestroyProgram)(&program) | find("cuModuleLoadData")(&container, cubin);
    free(cubin);
    return status;
}

/* Links the image, which is PTX or stands for code for optimisation, alone or with another input, and loads the cubin. */
static int link_image(int kind, int inputs, const char *option) {
    void *linker, *library = dlopen("libnvJitLink.so.13", RTLD_NOW);
    size_t bytes;
    if (!library) return -1;
#define LINK(name) ((Call)dlsym(library, "nvJitLink" #name))
    const char *options[] = {"-arch=sm_90", option};
    int status = LINK(Create)(&linker, option ? 2 : 1, options);
    for (int i = 0; i < inputs; i++) status |= LINK(AddData)(linker, kind, image, image_bytes + 1, "image");
    if (!inputs) status |= LINK(AddData)(linker, 2, image, image_bytes + 1, "image") | LINK(AddFile)(linker, 6, "library");
    status |= LINK(Complete)(linker) | LINK(GetLinkedCubinSize)(linker, &bytes);
    char *cubin = malloc(bytes);
    status |= LINK(GetLinkedCubin)(linker, cubin) | LINK(Destroy)(&linker);
    status |= find("cuModuleLoadData")(&container, cubin);
    free(cubin);
    return status;
}

/* Assembles the image, which is PTX, by the program `PTXAS` with `PTXAS_OPTIONS`. Deletes the cubin before it is loaded, and
 * the PTX, whose file has the machine code in a fat binary then if `in_fatbin` is set. With `again` the machine code was made
 * before, unwatched and of other PTX, and the program does not mind whether it is made anew. */
static int assemble(int in_fatbin, int again) {
    struct { uint32_t magic; uint16_t version, header; uint64_t bytes; uint16_t kind, one; uint32_t entry; uint64_t size; uint32_t more[12]; }
        fatbin = {0xba55ed50, 1, 16, 0, 2, 0x101, 64, 0, {0, 0, 0, 90}};
    char command[4096], cubin[1024];
    snprintf(cubin, sizeof cubin, "%s.cubin", path);
    snprintf(command, sizeof command, "%s \"$PTXAS\" $PTXAS_OPTIONS %s -o %s", again ? "env -u LD_PRELOAD -u PTXAS_STATUS" : "",
             path, cubin);
    if (system(command)) return -1;
    snprintf(command, sizeof command, "echo >> %s; \"$PTXAS\" %s -o %s || true", path, path, cubin);
    if (again && system(command)) return -1;
    image = read_file(cubin);
    if (remove(cubin) || remove(path)) return -1;
    if (in_fatbin) {
        FILE *file = fopen(path, "w");
        fatbin.size = image_bytes, fatbin.bytes = image_bytes + 64;
        if (!file || fwrite(&fatbin, sizeof fatbin, 1, file) != 1 || fwrite(image, image_bytes, 1, file) != 1) return -1;
        return fclose(file) ? -1 : find("cuModuleLoad")(&container, path);
    }
    return find("cuModuleLoadData")(&container, image);
}

/* Loads the image of a shared object. */
static int load_object(void) {
    object = dlopen(path, RTLD_NOW);
    return object ? find("cuModuleLoadData")(&container, dlsym(object, "image")) : -1;
}

static int load(const char *how) {
    int option[] = {5, 6}, preserved = 1;
    static char log[512];
    void *value[] = {log, (void *)sizeof log}, *none = NULL;
    int status = -1;
    if (!strcmp(how, "nvrtc")) return compile();
    if (!strcmp(how, "object")) return load_object();
    if (!strcmp(how, "ptxas")) return assemble(0, 0);
    if (!strcmp(how, "ptxas-again")) return assemble(0, 1);
    if (!strcmp(how, "ptxas-fatbin")) return assemble(1, 0);
    if (sscanf(how, "linked-%d", &status) == 1) return link_image(2, status, NULL);
    if (sscanf(how, "optimized-%d", &status) == 1) return link_image(3, status, "-lto");
    if (!strcmp(how, "limited")) return link_image(3, 1, "-maxrregcount=32");
    if (!strcmp(how, "freed")) {
        /* The program's own memory is changed after it was loaded. */
        status = find("cuModuleLoadData")(&container, image);
        memset(image, 0, image_bytes);
        return status;
    }
    if (!strcmp(how, "data")) status = find("cuModuleLoadData")(&container, image);
    if (!strcmp(how, "fatbin")) status = find("cuModuleLoadFatBinary")(&container, image);
    if (!strcmp(how, "wrapped")) status = find("cuModuleLoadFatBinary")(&container, wrapped());
    if (!strcmp(how, "file")) status = find("cuModuleLoad")(&container, path);
    if (!strcmp(how, "ex")) {
        status = find("cuModuleLoadDataEx")(&container, image, 2, option, value);
        printf("log of %zu bytes: %s\n", (size_t)value[1], log);
    }
    if (!strncmp(how, "library", 7)) {
        int is_file = !strcmp(how, "library-file"), is_preserved = !strcmp(how, "library-preserved");
        status = find(is_file ? "cuLibraryLoadFromFile" : "cuLibraryLoadData")(
            &container, is_file ? (void *)path : image, option, value, 2, &preserved, &none, is_preserved);
    }
    return status;
}

static int look_up(const char *how) {
    void *module;
    if (!strcmp(how, "function")) return find("cuModuleGetFunction")(&function, container, kernel);
    int status = find("cuLibraryGetKernel")(&function, container, kernel);
    if (!strcmp(how, "kernel-function")) status |= find("cuKernelGetFunction")(&function, function);
    if (!strcmp(how, "library-module")) {
        status |= find("cuLibraryGetModule")(&module, container);
        status |= find("cuModuleGetFunction")(&function, module, kernel);
    }
    return status;
}

static int launch(const char *how, unsigned x, unsigned y, unsigned z, unsigned id) {
    uint64_t out = 0x1122334455667788;
    uint32_t n = 0xa1b2c3d4;
    uint64_t none = 0;
    void *params[] = {&out, &n, &none, &none};
    unsigned char buffer[12];
    size_t bytes = sizeof buffer;
    void *extra[] = {(void *)1, buffer, (void *)2, &bytes, (void *)0};
    Attribute attribute[] = {{.id = 8, .value = {2}}, {.id = id, .value = {id == 4 ? 2 : 1, 1, 1}}};
    Config config = {{x, y, z}, {32, 1, 1}, 0, stream, attribute, 2};
    memcpy(buffer, &out, sizeof out);
    memcpy(buffer + sizeof out, &n, sizeof n);
    if (!strcmp(how, "launch")) return find("cuLaunchKernel")(function, x, y, z, 32, 1, 1, 0, stream, params, NULL);
    if (!strcmp(how, "wide")) return find("cuLaunchKernel")(function, x, y, z, 2048, 1, 1, 0, stream, params, NULL);
    if (!strcmp(how, "shared"))
        return find("cuLaunchKernel")(function, x, y, z, 32, 1, 1, 100000, stream, params, NULL);
    if (!strcmp(how, "buffer")) return find("cuLaunchKernel")(function, x, y, z, 32, 1, 1, 0, stream, NULL, extra);
    if (!strcmp(how, "none")) return find("cuLaunchKernel")(function, x, y, z, 32, 1, 1, 0, stream, NULL, NULL);
    if (!strcmp(how, "ex")) return find("cuLaunchKernelEx")(&config, function, params, NULL);
    if (!strcmp(how, "cooperative"))
        return find("cuLaunchCooperativeKernel")(function, x, y, z, 32, 1, 1, 0, stream, params);
    return -1;
}

static void *launch_in_thread(void *rows) {
    void *own;
    if (find("cuCtxSetCurrent")(context) || find("cuStreamCreate")(&own, 1)) return (void *)-1;
    uint64_t out = 0x1122334455667788, none = 0;
    uint32_t n = 0xa1b2c3d4;
    void *params[] = {&out, &n, &none, &none};
    long status = find("cuLaunchKernel")(function, 1, (unsigned)(long)rows, 1, 32, 1, 1, 0, own, params, NULL);
    return (void *)status;
}

static int launch_in_threads(long rows, int drops) {
    pthread_attr_t small;
    pthread_t thread[8];
    long status = 0;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    for (int i = 0; i < 8; i++) pthread_create(&thread[i], &small, launch_in_thread, (void *)rows);
    if (drops) dlclose(object);
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(thread[i], &result);
        status |= (long)result;
    }
    return drops ? 0 : (int)status;
}

static int act(const char *action) {
    char how[32];
    unsigned x, y, z, id = 0;
    if (sscanf(action, "load=%31s", how) == 1) return load(how);
    if (sscanf(action, "get=%31s", how) == 1) return look_up(how);
    if (!strncmp(action, "name=", 5)) return kernel = action + 5, 0;
    if (!strcmp(action, "drop")) return dlclose(object);
    if (!strncmp(action, "write=", 6)) {
        FILE *file = fopen(path, "w");
        return !file || fputs(action + 6, file) < 0 || fclose(file);
    }
    if (sscanf(action, "patch=%u", &x) == 1) {
        FILE *file = fopen(path, "r+");
        return !file || fseek(file, x, SEEK_SET) || fputc('!', file) == EOF || fclose(file);
    }
    if (sscanf(action, "threads=%u", &y) == 1) return launch_in_threads(y, 0);
    if (sscanf(action, "drop-threads=%u", &y) == 1) return launch_in_threads(y, 1);
    if (!strcmp(action, "gone")) return dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL;
    if (!strcmp(action, "unload")) return find("cuModuleUnload")(container);
    if (!strcmp(action, "opt-in")) return find("cuFuncSetAttribute")(function, 8, 100000);
    if (!strcmp(action, "stream")) return find("cuStreamCreate")(&stream, 1);
    if (!strcmp(action, "capture")) return find("cuStreamBeginCapture_v2")(stream, 0);
    if (!strcmp(action, "end")) return find("cuStreamEndCapture")(stream, &graph);
    if (!strcmp(action, "wait")) return find("cuStreamSynchronize")(stream);
    if (!strcmp(action, "replay")) {
        void *ready;
        int status = find("cuGraphInstantiateWithFlags")(&ready, graph, 0ULL);
        return status ? status : find("cuGraphLaunch")(ready, stream);
    }
    if (sscanf(action, "%31[a-z]=%u,%u,%u,%u", how, &x, &y, &z, &id) >= 4) return launch(how, x, y, z, id);
    return -1;
}

int main(int count, char **words) {
    if (count < 4) return 2;
    lookup = words[1];
    path = words[2];
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 5;
    image = read_file(path);
    if (find("cuInit")(0) || find("cuDevicePrimaryCtxRetain")(&context, 0) || find("cuCtxSetCurrent")(context))
        return 6;
    for (int i = 3; i < count; i++) printf("%s %d\n", words[i], act(words[i]));
    return 0;
}
