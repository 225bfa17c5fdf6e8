/* ---- Images: PTX, machine code and fat binaries ---- */

/* The architecture that PTX names, or the device's if it names none. */
static int target_of(const char *text) {
    const char *target = strstr(text, ".target sm_");
    return target ? atoi(target + strlen(".target sm_")) : ARCHITECTURE;
}

static bool balanced(const char *text, char open, char close) {
    long depth = 0;
    for (; *text && depth >= 0; text++) depth += (*text == open) - (*text == close);
    return depth == 0;
}

/* A cubin has its architecture in the low byte of its ELF flags, or since CUDA 13 in the next byte,
 * and runs on later devices of the same major version. Without an architecture it runs anywhere. */
static CUresult cubin_error(const char *image) {
    enum { ABI_VERSION = 8, FLAGS = 48 };
    int architecture = (unsigned char)image[FLAGS + (image[ABI_VERSION] >= 8)];
    bool same = architecture / 10 == ARCHITECTURE / 10 && architecture <= ARCHITECTURE;
    return same || !architecture ? SUCCESS : NO_BINARY_FOR_GPU;
}

static CUresult image_error(const char *text) {
    if (!strncmp(text, "\177ELF", 4)) return cubin_error(text);
    const char *version = strstr(text, ".version"), *refused = getenv("GRIDGUARD_FAKE_FAIL_TEXT");
    REQUIRE(version, INVALID_IMAGE);
    REQUIRE(!refused || !strstr(text, refused), INVALID_PTX);
    unsigned major = 0, minor = 0, driver = (unsigned)setting("GRIDGUARD_FAKE_DRIVER_VERSION", 13000);
    sscanf(version, ".version %u.%u", &major, &minor);
    /* CUDA 11 came with PTX 7, 12 with 8, 13 with 9; the minor versions are the same. */
    unsigned newest = (driver / 1000 - 4) * 10 + driver % 1000 / 10;
    REQUIRE(major * 10 + minor <= newest, UNSUPPORTED_PTX_VERSION);
    REQUIRE(target_of(text) <= ARCHITECTURE, NO_BINARY_FOR_GPU);
    return balanced(text, '{', '}') && balanced(text, '(', ')') ? SUCCESS : INVALID_PTX;
}

/* Where `stated` is NULL or 0, a parameter is aligned to its size. */
static void set_params(CUfunction f, const unsigned *size, const unsigned *stated, size_t count) {
    f->params_known = true;
    f->param_bytes = 0;
    for (f->params = 0; f->params < count; f->params++) {
        size_t bytes = size[f->params], low = bytes & -bytes, align = low && low < 8 ? low : 8;
        if (stated && stated[f->params]) align = stated[f->params];
        f->size[f->params] = bytes;
        f->offset[f->params] = (f->param_bytes + align - 1) / align * align;
        f->param_bytes = f->offset[f->params] + bytes;
    }
}

/* Reads the `key=number,..` that follow `// fake NAME`, up to the end of the line. */
static void describe(CUfunction f, const char *line) {
    static const struct { const char *key; int attribute; } KEYS[] = {
        {"regs", FA_REGS}, {"max_threads", FA_MAX_THREADS}, {"static_shared", FA_SHARED},
        {"const", FA_CONST}, {"local", FA_LOCAL}, {"cluster", FA_CLUSTER_X},
        {"explicit_cluster", FA_CLUSTER_MUST_BE_SET},
    };
    char text[1024], key[32];
    int used = 0;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(line, "\r\n"), line);
    for (char *at = text; sscanf(at, " %31[a-z_]=%n", key, &used) == 1 && used; used = 0) {
        unsigned number[MAX_PARAMS] = {0};
        size_t count = 0;
        for (at += used; count < MAX_PARAMS && *at >= '0' && *at <= '9'; at += *at == ',')
            number[count++] = (unsigned)strtoul(at, &at, 10);
        if (!strcmp(key, "params")) set_params(f, number, NULL, count);
        for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
            if (!strcmp(key, KEYS[i].key)) f->attribute[KEYS[i].attribute] = (int)number[0];
        for (int axis = 1; !strcmp(key, "cluster") && axis < 3; axis++)
            f->attribute[FA_CLUSTER_X + axis] = number[axis] ? (int)number[axis] : 1;
    }
}

/* Reads the sizes of the parameters that PTX declares behind an entry's name. */
static void read_declaration(CUfunction f, const char *at) {
    unsigned size[MAX_PARAMS] = {0}, align[MAX_PARAMS] = {0};
    size_t count = 0, length = strcspn(at, "){;");
    char list[4096], *rest = list;
    if (at[strspn(at, " \t\r\n")] != '(' || length >= sizeof list) return;
    snprintf(list, sizeof list, "%.*s", (int)length, at);
    for (char *one; count < MAX_PARAMS && (one = strsep(&rest, ",")); count++) {
        unsigned bits = 0, elements = 1;
        for (char *dot = one; (dot = strchr(dot, '.')) && !bits; dot++) sscanf(dot, ".%*1[subf]%u", &bits);
        const char *array = strchr(one, '[');
        /* Of a pointer, it is that of what it points to. */
        const char *stated = array ? strstr(one, ".align") : NULL;
        if (array) sscanf(array, "[%u]", &elements);
        if (stated) sscanf(stated, ".align %u", &align[count]);
        size[count] = bits / 8 * elements;
        if (!size[count]) return;
    }
    set_params(f, size, align, count);
}

/* The end of the first occurrence of `before`, blanks and the whole word `name`. */
static const char *find_name(const char *text, const char *before, const char *name) {
    for (size_t length = strlen(name); (text = strstr(text, before));) {
        text += strlen(before);
        const char *word = text + strspn(text, " \t\r\n");
        if (!strncmp(word, name, length) && strchr(" \t\r\n({;", word[length])) return word + length;
    }
    return NULL;
}

/* How fat binaries begin. */
static const char FATBIN[] = "\x50\xed\x55\xba";

/* The PTX of a fat binary, which names its kernels also where it has machine code; NULL without any. */
static const char *text_of_fatbin(const char *image) {
    uint16_t header, kind;
    uint32_t entry;
    uint64_t content, bytes;
    memcpy(&header, image + 6, sizeof header);
    memcpy(&content, image + 8, sizeof content);
    for (const char *at = image + header, *end = at + content; at < end; at += entry + bytes) {
        memcpy(&kind, at, sizeof kind);
        memcpy(&entry, at + 4, sizeof entry);
        memcpy(&bytes, at + 8, sizeof bytes);
        if (kind == 1) return at + entry;
    }
    return NULL;
}

/* The machine code of the fake NVRTC: PTX behind an ELF header whose flags mark it. */
static const char *text_of(const char *image) {
    if (!memcmp(image, FATBIN, 4)) return text_of_fatbin(image);
    return !strncmp(image, "\177ELF", 4) && !strncmp(image + 48, "FAKE", 4) ? image + 64 : image;
}

/* ---- Modules and functions ---- */

/* Functions of unloaded modules, whose handles are reused. */
static CUfunction retired;

static CUfunction make_function(CUmodule module, const char *name) {
    CUfunction f = retired ? retired : make(sizeof *f);
    if (retired) retired = f->next, *f = (struct Function){0};
    const char *line = find_name(module->text, "// fake", name);
    f->module = module;
    snprintf(f->name, sizeof f->name, "%s", name);
    f->attribute[FA_REGS] = 32;
    f->attribute[FA_PTX] = target_of(module->text);
    f->attribute[FA_BINARY] = ARCHITECTURE;
    f->attribute[FA_CARVEOUT] = -1;
    read_declaration(f, find_name(module->text, ".entry", name));
    if (line) describe(f, line);
    f->attribute[FA_CLUSTER_MUST_BE_SET] |= f->attribute[FA_CLUSTER_X] > 0;
    if (!f->attribute[FA_MAX_THREADS])
        f->attribute[FA_MAX_THREADS] = (int)least_of(MAX_THREADS, warps_by_registers(f) * WARP);
    if (f->attribute[FA_SHARED] < SHARED_DEFAULT)
        f->attribute[FA_MAX_DYNAMIC] = SHARED_DEFAULT - f->attribute[FA_SHARED];
    f->next = module->functions;
    return module->functions = f;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CONTEXT;
    REQUIRE(module && image, INVALID_VALUE);
    image = text_of(image);
    REQUIRE(image, INVALID_IMAGE);
    CHECK(image_error(image));
    *module = make(sizeof **module);
    **module = (struct Module){.ctx = ctx, .life = ctx->life, .text = strdup(image)};
    return SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options,
                            void **values) {
    enum { ERROR_LOG_BUFFER = 5, ERROR_LOG_BYTES = 6 };
    CUresult answer = cuModuleLoadData(module, image);
    char *log = NULL;
    void *no_bytes = NULL, **bytes = &no_bytes;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == ERROR_LOG_BUFFER) log = values[i];
        if (options[i] == ERROR_LOG_BYTES) bytes = &values[i];
    }
    if (log && *bytes) snprintf(log, (size_t)*bytes, answer ? "fake: image refused (%d)" : "", answer);
    if (log && *bytes) *bytes = (void *)strlen(log);
    return answer;
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    FILE *file = fopen(path, "r");
    REQUIRE(file, FILE_NOT_FOUND);
    long bytes = fseek(file, 0, SEEK_END) ? 0 : ftell(file);
    char *image = make((size_t)bytes + 1);
    rewind(file);
    bool any = bytes > 0 && fread(image, 1, (size_t)bytes, file) == (size_t)bytes;
    CUresult answer = any ? cuModuleLoadData(module, image) : INVALID_IMAGE;
    fclose(file);
    free(image);
    return answer;
}

/* Takes the structure that compilers write around a fat binary, too, but no text. */
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    struct { uint32_t magic, version; const void *fatbin; } around;
    REQUIRE(image, INVALID_VALUE);
    memcpy(&around.magic, image, sizeof around.magic);
    if (around.magic == 0x466243b1) memcpy(&around, image, sizeof around), image = around.fatbin;
    return memcmp(image, FATBIN, 4) ? INVALID_IMAGE : cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(CUmodule module) {
    CONTEXT;
    REQUIRE(loaded(module), INVALID_HANDLE);
    expect_order(covers(&host, &module->used), "unload of code in use");
    module->dead = true;
    for (CUfunction f = module->functions, next; f && setting("GRIDGUARD_FAKE_REUSE", 0); f = next)
        next = f->next, f->next = retired, retired = f, module->functions = next;
    FILE *log = open_log();
    if (log) fprintf(log, "unload %d\n", ctx->device), fclose(log);
    return SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CONTEXT;
    REQUIRE(function && name && *name && strlen(name) < MAX_NAME, INVALID_VALUE);
    REQUIRE(loaded(module), INVALID_HANDLE);
    REQUIRE(find_name(module->text, ".entry", name), NOT_FOUND);
    for (CUfunction f = module->functions; f; f = f->next)
        if (!strcmp(f->name, name)) return *function = f, SUCCESS;
    *function = make_function(module, name);
    return SUCCESS;
}

CALL(cuFuncGetModule, (CUmodule *module, CUfunction f),
     FUNCTION; REQUIRE(module, INVALID_VALUE),
     *module = f->module)

CALL(cuFuncGetAttribute, (int *value, int attribute, CUfunction f),
     FUNCTION; REQUIRE(value && attribute >= 0 && attribute < FA_COUNT, INVALID_VALUE),
     *value = f->attribute[attribute])

CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value) {
    static unsigned long long settings;
    FUNCTION;
    REQUIRE(settings++ != setting("GRIDGUARD_FAKE_FAIL_ATTRIBUTE", ULLONG_MAX), UNKNOWN);
    int least = attribute == FA_CARVEOUT ? -1 : 0, most = -1; /* empty range: cannot be set */
    switch (attribute) {
    case FA_MAX_DYNAMIC: most = SHARED_OPTIN - f->attribute[FA_SHARED]; break;
    case FA_CARVEOUT: most = 100; break;
    case FA_CLUSTER_X: case FA_CLUSTER_X + 1: case FA_CLUSTER_Z:
        REQUIRE(!f->attribute[FA_CLUSTER_MUST_BE_SET], NOT_PERMITTED);
        most = CLUSTER_MOST;
        break;
    case FA_NON_PORTABLE: most = 1; break;
    case FA_SCHEDULING: most = 2; break;
    }
    REQUIRE(value >= least && value <= most, INVALID_VALUE);
    f->attribute[attribute] = value;
    FILE *log = open_log();
    if (log) fprintf(log, "attribute %s %d=%d\n", f->name, attribute, value), fclose(log);
    return SUCCESS;
}

#ifndef FAKE_OLD
CALL(cuFuncGetName, (const char **name, CUfunction f),
     FUNCTION; REQUIRE(name, INVALID_VALUE); REQUIRE(!f->of_kernel, INVALID_HANDLE),
     *name = f->name)

CALL(cuKernelGetName, (const char **name, CUfunction f),
     CONTEXT; REQUIRE(f && f->of_kernel, INVALID_HANDLE); REQUIRE(name, INVALID_VALUE),
     *name = f->name)

CALL(cuKernelGetFunction, (CUfunction *function, CUfunction f),
     CONTEXT; REQUIRE(f && f->of_kernel, INVALID_HANDLE); REQUIRE(function, INVALID_VALUE),
     *function = f->of_kernel)

CALL(cuKernelGetLibrary, (CUmodule *library, CUfunction f),
     CONTEXT; REQUIRE(f && f->of_kernel, INVALID_HANDLE); REQUIRE(library, INVALID_VALUE),
     *library = f->of_kernel->module)

FORWARD(cuLibraryUnload, (CUmodule library), cuModuleUnload(library))

CUresult cuLibraryLoadData(CUmodule *library, const void *image, int *jit, void **jit_values,
                           unsigned jit_count, int *options, void **values, unsigned count) {
    return cuModuleLoadData(library, image);
}

FORWARD(cuLibraryLoadFromFile, (CUmodule *library, const char *path, int *jit, void **jit_values,
        unsigned jit_count, int *options, void **values, unsigned count), cuModuleLoad(library, path))
CALL(cuLibraryGetModule, (CUmodule *module, CUmodule library),
     CONTEXT; REQUIRE(module, INVALID_VALUE); REQUIRE(loaded(library), INVALID_HANDLE),
     *module = library)

CUresult cuLibraryGetKernel(CUfunction *kernel, CUmodule library, const char *name) {
    CUfunction function;
    CHECK(cuModuleGetFunction(&function, library, name));
    *kernel = make(sizeof **kernel);
    **kernel = (struct Function){.of_kernel = function};
    strcpy((*kernel)->name, name);
    return SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size) {
    FUNCTION;
    CHECK((CUresult)setting("GRIDGUARD_FAKE_FAIL_PARAMETERS", SUCCESS));
    REQUIRE(offset && index < f->params, INVALID_VALUE);
    *offset = f->offset[index];
    if (size) *size = f->size[index];
    return SUCCESS;
}
#endif
