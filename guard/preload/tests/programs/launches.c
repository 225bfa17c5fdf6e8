/*
 * A program that finds the driver by WAY and then does each ACTION. Prints what the driver returned.
 *
 *   launches WAY ACTION...
 *
 * With -DLINKED it links the driver, and WAY is `linked`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { unsigned id; char pad[4]; unsigned value[16]; } Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    Attribute *attributes;
    unsigned count;
} Config;
typedef int (*Init)(unsigned);
typedef int (*Retain)(void **, int);
typedef int (*Handle)(void *);
typedef int (*Plain)(void);
typedef int (*Load)(void **, const void *);
typedef int (*LoadLibrary)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
typedef int (*Find)(void **, void *, const char *);
typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                      void **, void **);
typedef int (*LaunchEx)(const Config *, void *, void **, void **);
typedef int (*Cooperative)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           void *, void **);
typedef int (*Query)(const char *, void **, int, unsigned long long);
typedef int (*QueryV2)(const char *, void **, int, unsigned long long, int *);

static const char PTX[] = ".version 8.0\n.target sm_90\n.entry _Z5touchPfi() { }\n";
static const char *way;
static void *library;
static Query query;
static QueryV2 query_v2;
static unsigned long long flags;
static void *function;

#ifdef LINKED
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
int cuModuleUnload(void *), cuStreamSynchronize(void *), cuLibraryGetKernel(void **, void *, const char *);
int cuLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                   void **, void **);
int cuLaunchKernelEx(const Config *, void *, void **, void **);
int cuLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              void *, void **);
#define LINK(name) if (!strcmp(symbol, #name)) return (void *)name
static void *linked(const char *symbol) {
    LINK(cuInit);
    LINK(cuDevicePrimaryCtxRetain);
    LINK(cuCtxSetCurrent);
    LINK(cuCtxSynchronize);
    LINK(cuModuleLoadData);
    LINK(cuModuleGetFunction);
    LINK(cuModuleUnload);
    LINK(cuStreamSynchronize);
    LINK(cuLibraryGetKernel);
    LINK(cuLibraryLoadData);
    LINK(cuLaunchKernel);
    LINK(cuLaunchKernelEx);
    LINK(cuLaunchCooperativeKernel);
    return NULL;
}
#endif

/* As a CUDA runtime does: one function by `dlsym`, and by it a newer one of the same name. */
static void find_queries(int version) {
    void *next = NULL;
    int found = 0;
    if (version < 12000) {
        query = (Query)dlsym(library, "cuGetProcAddress");
        if (query && query("cuGetProcAddress", &next, version, 0) == 0) query = (Query)next;
    } else {
        query_v2 = (QueryV2)dlsym(library, "cuGetProcAddress_v2");
        if (query_v2 && query_v2("cuGetProcAddress", &next, version, 0, &found) == 0) query_v2 = (QueryV2)next;
    }
}

static void *find(const char *symbol) {
    void *found = NULL;
    int status;
#ifdef LINKED
    return linked(symbol);
#endif
    if (!strcmp(way, "default")) return dlsym(RTLD_DEFAULT, symbol);
    if (!strcmp(way, "dlvsym")) {
        /* Runtimes look up functions of the C library that way, too. */
        void *libc = dlopen("libc.so.6", RTLD_LAZY);
        if (!dlvsym(libc, "pipe2", "GLIBC_2.9") || dlvsym(libc, "pipe2", "GLIBC_99")) exit(9);
        dlclose(libc);
        return dlvsym(library, symbol, "libcuda.so.1");
    }
    if (query_v2) return query_v2(symbol, &found, strcmp(way, "query-14") ? 13000 : 14000, flags, &status) ? NULL : found;
    if (query) return query(symbol, &found, 11080, flags) ? NULL : found;
    return dlsym(library, symbol);
}

static void *need(const char *symbol) {
    void *found = find(symbol);
    if (found) return found;
    printf("no %s\n", symbol);
    exit(3);
}

static unsigned shared = 4096;

static int launch(unsigned y) {
    return ((Launch)need("cuLaunchKernel"))(function, 1, y, 1, 128, 1, 1, shared, NULL, NULL, NULL);
}

static int launch_ex(unsigned y, unsigned cluster) {
    Attribute attribute = {.id = 4, .value = {1, cluster, 1}};
    Config config = {{1, y, 1}, {128, 1, 1}, 0, NULL, &attribute, 1};
    return ((LaunchEx)need("cuLaunchKernelEx"))(&config, function, NULL, NULL);
}

static Launch launch_kernel;
static Handle use_context;
static void *context;
static void *launch_rows(void *rows) {
    use_context(context);
    return (void *)(long)launch_kernel(function, 1, (unsigned)(long)rows, 1, 128, 1, 1, 4096, NULL, NULL, NULL);
}

static void *many(void *launches) {
    Launch kernel = (Launch)need("cuLaunchKernel");
    void *context;
    ((Retain)need("cuDevicePrimaryCtxRetain"))(&context, 0);
    ((Handle)need("cuCtxSetCurrent"))(context);
    for (long i = 0; i < (long)launches; i++) kernel(function, 1, 1 + (unsigned)i, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    return NULL;
}

static void set_up(void) {
    void *module;
    if (function) return;
    int init = ((Init)need("cuInit"))(0);
    int retain = ((Retain)need("cuDevicePrimaryCtxRetain"))(&context, 0);
    int current = ((Handle)need("cuCtxSetCurrent"))(context);
    int load = ((Load)need("cuModuleLoadData"))(&module, PTX);
    int get = ((Find)need("cuModuleGetFunction"))(&function, module, "_Z5touchPfi");
    launch_kernel = (Launch)need("cuLaunchKernel");
    use_context = (Handle)need("cuCtxSetCurrent");
    printf("set up %d %d %d %d %d\n", init, retain, current, load, get);
}

/* Loads a module, launches its kernel and unloads it, so many times: modules of so many images, whose kernels have
 * so many names. */
static void reload(int count, int images, int names) {
    static char text[256], name[64];
    void *module;
    int accepted = 0;
    set_up();
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "_Z11touch%06dv", i % names);
        snprintf(text, sizeof text, "// %d\n.version 8.0\n.target sm_90\n.entry %s() { }\n", i % images, name);
        if (((Load)need("cuModuleLoadData"))(&module, text)) exit(7);
        if (((Find)need("cuModuleGetFunction"))(&function, module, name)) exit(7);
        accepted += launch(6000) == 0;
        if (((Handle)need("cuModuleUnload"))(module)) exit(7);
    }
    printf("reloaded %d\n", accepted);
}

static void act(const char *action) {
    int number;
    if (!strcmp(action, "refused")) set_up(), printf("refused %d\n", launch(70000));
    if (!strcmp(action, "good")) set_up(), printf("good %d\n", launch(6000));
    if (!strcmp(action, "again"))
        for (int i = 0; i < 1000; i++)
            if (launch(70000) != 1) puts("accepted");
    if (!strcmp(action, "ex")) set_up(), printf("ex %d %d\n", launch_ex(8, 8), launch_ex(9, 8));
    if (!strcmp(action, "cooperative"))
        set_up(), printf("cooperative %d\n", ((Cooperative)need("cuLaunchCooperativeKernel"))(
                                                 function, 100000, 1, 1, 1024, 1, 1, 0, NULL, NULL));
    if (sscanf(action, "cluster=%d", &number) == 1)
        set_up(), printf("cluster %d\n", launch_ex((unsigned)number, (unsigned)number));
    if (sscanf(action, "shared=%u", &shared) == 1) printf("shared %u\n", shared);
    if (!strcmp(action, "anew")) printf("anew %d\n", ((Plain)need("cuLaunchAnew"))());
    if (!strcmp(action, "kernel")) {
        void *module;
        set_up();
        int load = ((LoadLibrary)need("cuLibraryLoadData"))(&module, PTX, NULL, NULL, 0, NULL, NULL, 0);
        int get = ((Find)need("cuLibraryGetKernel"))(&function, module, "_Z5touchPfi");
        printf("kernel %d %d\n", load, get);
    }
    if (sscanf(action, "reload=%d", &number) == 1) reload(number, 1, 1);
    if (sscanf(action, "images=%d", &number) == 1) reload(2 * number, number, 1);
    if (sscanf(action, "names=%d", &number) == 1) reload(number, 1, number);
    if (!strcmp(action, "wait")) printf("wait %d\n", ((Handle)need("cuStreamSynchronize"))(NULL));
    if (!strncmp(action, "watch=", 6)) {
        /* Watches the refused launches of these actions, and others before and after them. */
        unsigned long long (*begin)(void) = (unsigned long long (*)(void))dlsym(RTLD_DEFAULT, "gridguard_watch_begin");
        size_t (*read)(unsigned long long, char *, size_t) =
            (size_t (*)(unsigned long long, char *, size_t))dlsym(RTLD_DEFAULT, "gridguard_watch_read");
        void (*end)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "gridguard_watch_end");
        if (!begin || !read || !end) { puts("not preloaded"); return; }
        static char text[65536], start[9];
        unsigned long long begun = begin();
        for (char *word = strtok(strdup(action + 6), ","); word; word = strtok(NULL, ",")) act(word);
        size_t size = read(begun, text, sizeof text);
        if (read(begun, NULL, 0) != size || read(begun, start, sizeof start) != size) puts("another size");
        if (strncmp(text, start, 8) || strlen(start) != (size < 8 ? size : 8)) puts("another text");
        puts(text);
        end();
        if (read(begun, start, sizeof start) != 2 || strcmp(start, "[]")) puts("still kept");
        end();
    }
    if (!strcmp(action, "wait-all")) printf("wait-all %d\n", ((Plain)need("cuCtxSynchronize"))());
    if (!strcmp(action, "threads")) {
        pthread_t thread[8];
        set_up();
        for (int i = 0; i < 8; i++) pthread_create(&thread[i], NULL, many, (void *)1000L);
        for (int i = 0; i < 8; i++) pthread_join(thread[i], NULL);
    }
    if (!strcmp(action, "fork")) {
        /* The child ends as programs do. */
        fflush(stdout);
        if (fork() == 0) exit(0);
        wait(NULL);
    }
    if (!strcmp(action, "child")) {
        /* The rest happens in a child. */
        int status;
        fflush(stdout);
        if (fork() == 0) return;
        wait(&status);
        exit(WEXITSTATUS(status));
    }
    if (!strcmp(action, "exec")) {
        fflush(stdout);
        execl("/proc/self/exe", "launches", way, "refused", NULL);
    }
    if (!strncmp(action, "closed=", 7)) {
        close(2);
        if (open(action + 7, O_WRONLY | O_CREAT | O_TRUNC, 0600) != 2) exit(8);
    }
    if (!strcmp(action, "pipe")) {
        /* A pipe that nobody reads in place of standard error. */
        int end[2];
        if (pipe(end)) exit(8);
        dup2(end[1], 2), close(end[0]), close(end[1]);
        execl("/proc/self/exe", "launches", way, "refused", "good", NULL);
    }
    if (!strncmp(action, "full=", 5)) {
        /* A full pipe in place of standard error. */
        int end[2];
        if (pipe(end) || fcntl(end[1], F_SETFL, O_NONBLOCK)) exit(8);
        while (write(end[1], "full", 4) > 0);
        if (fcntl(end[1], F_SETFL, 0)) exit(8);
        dup2(end[1], 2), close(end[1]);
        execl("/proc/self/exe", "launches", way, action + 5, NULL);
    }
    if (!strcmp(action, "small")) {
        /* Threads with the smallest stack. */
        pthread_attr_t small;
        pthread_t thread;
        void *status;
        set_up();
        pthread_attr_init(&small);
        if (pthread_attr_setstacksize(&small, 16384)) exit(8);
        for (long rows = 60000; rows < 80000; rows += 10000) {
            if (pthread_create(&thread, &small, launch_rows, (void *)rows)) exit(8);
            pthread_join(thread, &status);
            printf("small %ld\n", (long)status);
        }
    }
    if (!strcmp(action, "no-memory")) {
        struct rlimit none = {0, 0};
        set_up();
        if (setrlimit(RLIMIT_AS, &none)) exit(8);
        for (size_t bytes = 1 << 20; bytes; bytes /= 2)
            while (malloc(bytes));
    }
    if (!strncmp(action, "other=", 6)) {
        /* From here on another driver library. */
        library = dlopen(action + 6, RTLD_NOW);
        if (!library) exit(8);
        function = NULL;
    }
    if (!strcmp(action, "signal")) raise(SIGUSR1);
    if (!strcmp(action, "end-at-once")) fflush(stdout), _exit(0);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    way = words[1];
    int mode = RTLD_NOW | (strcmp(way, "default") ? RTLD_LOCAL : RTLD_GLOBAL);
    library = strcmp(way, "linked") ? dlopen("libcuda.so.1", mode) : NULL;
    if (!library && strcmp(way, "linked")) return puts("no driver"), 4;
    if (!strcmp(way, "query-11")) find_queries(11030);
    if (!strncmp(way, "query-12", 8) || !strcmp(way, "query-14")) find_queries(12000);
    if (!strcmp(way, "query-12-thread")) flags = 2;
    for (int i = 2; i < count; i++) act(words[i]);
    return 0;
}
