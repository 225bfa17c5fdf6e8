/*
 * A program that allocates and frees memory of the driver, and prints what the driver returned.
 *
 *   allocates LOOKUP ACTION...
 *
 * LOOKUP is `dlsym`, or `thread` for functions whose default stream is the thread's own. An ACTION is KIND=BYTES,
 * where KIND is one that `make_layer` knows, or one of those in `act`.
 *
 * With -DPLUGIN it is a library that allocates for the program, which finds it by the variable PLUGIN.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int (*Call)();
typedef unsigned long long Address;

#ifdef PLUGIN
int plugin_layer(Call allocate, Address *at) {
    int status = allocate(at, (size_t)2097152);
    return status;
}
#else
enum { MOST = 4096, THREADS = 8, EACH = 25000, WINDOW = 16 };

static void *driver;
static const char *lookup;
static struct { Address at; Call free; int in_order; } made[MOST];
static int count;
static Call allocate_plain, free_plain;

static Call find(const char *name) {
    void *found = NULL;
    int status;
    if (!strcmp(lookup, "thread")) {
        Call query = (Call)dlsym(driver, "cuGetProcAddress_v2");
        if (query(name, &found, 13000, 2ULL, &status)) found = NULL;
    } else {
        char second[64];
        snprintf(second, sizeof second, "%s_v2", name);
        found = dlsym(driver, second);
        if (!found) found = dlsym(driver, name);
    }
    if (found) return (Call)found;
    printf("no %s\n", name);
    exit(3);
}

/* Has a name that a stack shows. */
__attribute__((noinline)) int make_layer(const char *kind, size_t bytes, Address *at) {
    static struct { int kind, handles, location_kind, location; int rest[4]; } on_device = {1, 0, 1, 0, {0}};
    size_t pitch;
    made[count].in_order = 0;
    made[count].free = find("cuMemFree");
    if (!strcmp(kind, "alloc")) return find("cuMemAlloc")(at, bytes);
    if (!strcmp(kind, "pitch")) return find("cuMemAllocPitch")(at, &pitch, bytes, (size_t)4, 4u);
    if (!strcmp(kind, "managed")) return find("cuMemAllocManaged")(at, bytes, 1u);
    made[count].free = find("cuMemFreeHost");
    if (!strcmp(kind, "pinned")) return find("cuMemHostAlloc")(at, bytes, 0u);
    if (!strcmp(kind, "host")) return find("cuMemAllocHost")(at, bytes);
    made[count].free = find("cuMemRelease");
    if (!strcmp(kind, "create")) return find("cuMemCreate")(at, bytes, &on_device, 0ULL);
    made[count].free = find("cuMemFreeAsync");
    made[count].in_order = 1;
    if (!strcmp(kind, "async")) return find("cuMemAllocAsync")(at, bytes, NULL);
    if (!strcmp(kind, "pool")) return find("cuMemAllocFromPoolAsync")(at, bytes, &driver, NULL);
    return -1;
}

static int free_last(void) {
    if (!count) return -1;
    count--;
    if (made[count].in_order) return made[count].free(made[count].at, NULL);
    return made[count].free(made[count].at);
}

static void launch(unsigned threads) {
    static const char PTX[] = ".version 8.0\n.target sm_90\n// fake touch regs=210\n.entry touch() { }\n";
    static void *module, *function;
    int load = function ? 0 : find("cuModuleLoadData")(&module, PTX);
    int get = function ? 0 : find("cuModuleGetFunction")(&function, module, "touch");
    printf("launch %d %d %d\n", load, get,
           find("cuLaunchKernel")(function, 1, 1, 1, threads, 1, 1, 0, NULL, NULL, NULL));
}

static void use_device(int device) {
    void *context;
    if (find("cuDevicePrimaryCtxRetain")(&context, device) || find("cuCtxSetCurrent")(context)) exit(5);
}

static void *many(void *start) {
    Address at[WINDOW] = {0};
    use_device(0);
    for (long i = 0; i < EACH; i++) {
        Address *one = &at[i % WINDOW];
        if (*one && free_plain(*one)) exit(6);
        if (allocate_plain(one, (size_t)(512 * (1 + (i + (long)start) % 7)))) exit(6);
    }
    for (int i = 0; i < WINDOW; i++)
        if (free_plain(at[i])) exit(6);
    return NULL;
}

/* How long a pair of calls takes, in nanoseconds: the least of many rounds. */
static void measure(const char *kind) {
    enum { ROUNDS = 200, PAIRS = 500 };
    int in_order = !strcmp(kind, "async");
    Call allocate = find(in_order ? "cuMemAllocAsync" : "cuMemAlloc"), release = find(in_order ? "cuMemFreeAsync" : "cuMemFree");
    double least = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        struct timespec begun, ended;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        for (int i = 0; i < PAIRS; i++) {
            Address at;
            if (in_order ? allocate(&at, (size_t)4096, NULL) : allocate(&at, (size_t)4096)) exit(6);
            if (in_order ? release(at, NULL) : release(at)) exit(6);
        }
        clock_gettime(CLOCK_MONOTONIC, &ended);
        double ns = (double)(ended.tv_sec - begun.tv_sec) * 1e9 + (double)(ended.tv_nsec - begun.tv_nsec);
        if (ns / PAIRS < least) least = ns / PAIRS;
    }
    printf("%f\n", least);
}

static void act(const char *action) {
    char kind[16] = "";
    size_t bytes = 0;
    if (sscanf(action, "%15[a-z]=%zu", kind, &bytes) == 2 && !strcmp(kind, "device")) {
        use_device((int)bytes);
        return;
    }
    if (bytes) {
        Address at = 0;
        int status = make_layer(kind, bytes, &at);
        printf("%s %d\n", kind, status);
        if (!status) made[count++].at = at;
    }
    if (!strcmp(action, "free")) printf("free %d\n", free_last());
    if (!strcmp(action, "free-all"))
        while (count) printf("free %d\n", free_last());
    if (!strcmp(action, "free-unknown")) {
        printf("free %d %d\n", find("cuMemFree")(4096ULL), find("cuMemFree")(0ULL));
        printf("free %d %d\n", find("cuMemFreeAsync")(4096ULL, NULL), find("cuMemRelease")(4096ULL));
    }
    if (!strncmp(action, "plugin", 6)) {
        void *plugin = dlopen(getenv("PLUGIN"), RTLD_NOW);
        printf("plugin %d\n", ((Call)dlsym(plugin, "plugin_layer"))(find("cuMemAlloc"), &made[count].at));
        if (!strcmp(action, "plugin-closed")) dlclose(plugin);
    }
    if (!strcmp(action, "reset")) printf("reset %d\n", find("cuDevicePrimaryCtxReset")(0)), count = 0;
    if (!strcmp(action, "launch")) launch(32);
    if (!strcmp(action, "launch-wide")) launch(512);
    if (!strncmp(action, "measure-", 8)) measure(action + 8);
    if (!strcmp(action, "threads")) {
        pthread_t thread[THREADS];
        allocate_plain = find("cuMemAlloc"), free_plain = find("cuMemFree");
        for (long i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, many, (void *)i);
        for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    }
    if (!strcmp(action, "child")) {
        /* The rest happens in a child. */
        int status;
        fflush(stdout);
        if (fork() == 0) return;
        wait(&status);
        exit(WEXITSTATUS(status));
    }
}

int main(int words, char **word) {
    if (words < 3) return 2;
    lookup = word[1];
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return puts("no driver"), 4;
    if (find("cuInit")(0u)) return 4;
    use_device(0);
    for (int i = 2; i < words; i++) act(word[i]);
    return 0;
}
#endif
