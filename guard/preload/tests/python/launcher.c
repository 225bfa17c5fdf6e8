/*
 * An extension module with the launcher of Triton 3.6, with -DLATER that of Triton 3.9, or with -DPYTORCH that of PyTorch
 * 2.11: the same arguments and the same check of the grid. Declares what it needs of Python, whose headers may be missing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

typedef void Object;
typedef struct { const char *name; Object *(*function)(Object *, Object *); int flags; const char *doc; } Method;
typedef struct { unsigned id; char pad[4]; unsigned value[16]; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; void *stream; Attribute *attributes; unsigned count; } Config;
typedef int (*LaunchEx)(const Config *, void *, void **, void **);

extern Object *PyExc_RuntimeError;
extern char _Py_NoneStruct[];
int PyArg_ParseTuple(Object *, const char *, ...);
Object *PyModule_Create2(void *, int), *PyErr_Format(Object *, const char *, ...);
void Py_IncRef(Object *);

static Object *launch(Object *self, Object *args) {
    int x, y, z, cooperative, dependent, warps, ctas, shared;
    unsigned long long stream, function;
    Object *rest[6], *metadata;
    (void)self, (void)rest, (void)metadata, (void)cooperative, (void)dependent;
#ifdef PYTORCH
    const char *types;
    ctas = 1;
    if (!PyArg_ParseTuple(args, "KiiiiisOK", &function, &x, &y, &z, &warps, &shared, &types, &rest[0], &stream)) return NULL;
#elif defined(LATER)
    if (!PyArg_ParseTuple(args, "iiiKKpp(iii)OOOOO", &x, &y, &z, &stream, &function, &cooperative, &dependent, &warps,
                          &ctas, &shared, &rest[0], &rest[1], &rest[2], &rest[3], &rest[4]))
        return NULL;
#else
    if (!PyArg_ParseTuple(args, "iiiKKppOOOOOO", &x, &y, &z, &stream, &function, &cooperative, &dependent, &rest[0],
                          &rest[1], &metadata, &rest[2], &rest[3], &rest[4]) ||
        !PyArg_ParseTuple(metadata, "iii", &warps, &ctas, &shared))
        return NULL;
#endif
    if (x * y * z > 0) {
        LaunchEx driver = (LaunchEx)dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuLaunchKernelEx");
        Attribute cluster = {.id = 4, .value = {(unsigned)ctas, 1, 1}};
        Config config = {{(unsigned)(x * ctas), (unsigned)y, (unsigned)z}, {32 * (unsigned)warps, 1, 1}, (unsigned)shared,
                         (void *)stream, &cluster, ctas != 1};
        int status = driver(&config, (void *)function, NULL, NULL);
        if (status) return PyErr_Format(PyExc_RuntimeError, "Triton Error [CUDA]: %d", status);
    }
    Py_IncRef(_Py_NoneStruct);
    return _Py_NoneStruct;
}

#ifdef PYTORCH
static Method methods[] = {{"_launch_kernel", launch, 0x20 | 1, NULL}, {NULL, NULL, 0, NULL}};
#else
static Method methods[] = {{"launch", launch, 1, NULL}, {NULL, NULL, 0, NULL}};
#endif
static struct {
    ptrdiff_t references;
    void *type, *init;
    ptrdiff_t index;
    void *copy;
    const char *name, *doc;
    ptrdiff_t size;
    Method *methods;
    void *slots, *traverse, *clear, *free;
} module = {
    .references = 1,
    .name = "launcher",
    .size = -1,
#ifndef PYTORCH
    .methods = methods,
#endif
};

#ifdef PYTORCH
int PyObject_SetAttrString(Object *, const char *, Object *);
Object *PyType_FromSpec(void *);

/* A class that Python does not let anyone change. */
static struct { int slot; void *value; } slots[] = {{64, methods}, {0, NULL}};
static struct { const char *name; int size, item_size; unsigned flags; void *slots; } class = {"_C._StaticCudaLauncher", 16, 0, 1 << 8, slots};

Object *PyInit__C(void) {
    Object *outside = PyModule_Create2(&module, 1013);
    PyObject_SetAttrString(outside, "_StaticCudaLauncher", PyType_FromSpec(&class));
    return outside;
}
#elif defined(LATER)
Object *PyInit_cuda_utils(void) { return PyModule_Create2(&module, 1013); }
#else
Object *PyInit___triton_launcher(void) { return PyModule_Create2(&module, 1013); }
#endif
