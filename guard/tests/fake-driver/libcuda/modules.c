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

/* A section of a cubin by its name, and its number. */
static const Elf64_Shdr *section_of(const char *cubin, const char *name, unsigned *number) {
    const Elf64_Ehdr *header = (const void *)cubin;
    const Elf64_Shdr *all = (const void *)(cubin + header->e_shoff);
    if (!header->e_shoff || header->e_shstrndx >= header->e_shnum) return NULL;
    const char *names = cubin + all[header->e_shstrndx].sh_offset;
    for (unsigned i = 0; i < header->e_shnum; i++) {
        if (strcmp(names + all[i].sh_name, name)) continue;
        if (number) *number = i;
        return &all[i];
    }
    return NULL;
}

/* The parameters of a kernel of a cubin, as PTX declares them. */
static void declare_params(FILE *out, const char *cubin, const char *kernel) {
    enum { SIZED = 4, KPARAM_INFO = 0x17 };
    char name[MAX_NAME + 16];
    unsigned size[MAX_PARAMS] = {0}, offset[MAX_PARAMS] = {0}, count = 0;
    snprintf(name, sizeof name, ".nv.info.%s", kernel);
    const Elf64_Shdr *info = section_of(cubin, name, NULL);
    for (size_t at = 0; info && at + 4 <= info->sh_size;) {
        const unsigned char *record = (const unsigned char *)cubin + info->sh_offset + at;
        unsigned words[3], bytes = record[2] + 256u * record[3];
        at += record[0] == SIZED ? 4 + bytes : 4;
        if (record[0] != SIZED || record[1] != KPARAM_INFO || bytes < sizeof words) continue;
        memcpy(words, record + 4, sizeof words);
        unsigned ordinal = words[1] & 0xffff;
        if (ordinal >= MAX_PARAMS) continue;
        size[ordinal] = words[2] >> 18, offset[ordinal] = words[1] >> 16;
        if (count <= ordinal) count = ordinal + 1;
    }
    for (unsigned i = 0; i < count; i++) {
        unsigned align = size[i] & -size[i];
        while (align > 1 && offset[i] % align) align /= 2;
        fprintf(out, "%s.param .align %u .b8 p[%u]", i ? ", " : "", align < 8 ? align : 8, size[i]);
    }
}

/* Kernels and variables of a real cubin, as PTX declares them. It lives as long as the process. */
static const char *text_of_cubin(const char *cubin) {
    char *text = NULL;
    size_t length;
    const Elf64_Shdr *symbols = section_of(cubin, ".symtab", NULL);
    if (!symbols) return NULL;
    FILE *out = open_memstream(&text, &length);
    const Elf64_Shdr *all = (const void *)(cubin + ((const Elf64_Ehdr *)cubin)->e_shoff);
    const char *names = cubin + all[symbols->sh_link].sh_offset;
    const Elf64_Sym *symbol = (const void *)(cubin + symbols->sh_offset);
    fprintf(out, ".version 8.0\n.target sm_%d\n", ARCHITECTURE);
    for (size_t i = 0; i < symbols->sh_size / sizeof *symbol; i++, symbol++) {
        const char *name = names + symbol->st_name;
        char code[MAX_NAME + 16];
        unsigned number = 0;
        snprintf(code, sizeof code, ".text.%s", name);
        bool kernel = ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && section_of(cubin, code, &number);
        if (kernel) fprintf(out, ".entry %s(", name), declare_params(out, cubin, name), fputs(")\n", out);
        if (ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT)
            fprintf(out, ".global .b8 %s[%llu];\n", name, (unsigned long long)symbol->st_size);
    }
    fclose(out);
    return text;
}

/* Of a fat binary, its machine code if that is real; else its PTX, which names its kernels also where it has machine
 * code; NULL without any. */
static const char *text_of_fatbin(const char *image) {
    uint16_t header, kind;
    uint32_t entry;
    uint64_t content, bytes;
    const char *text = NULL;
    memcpy(&header, image + 6, sizeof header);
    memcpy(&content, image + 8, sizeof content);
    for (const char *at = image + header, *end = at + content; at < end; at += entry + bytes) {
        memcpy(&kind, at, sizeof kind);
        memcpy(&entry, at + 4, sizeof entry);
        memcpy(&bytes, at + 8, sizeof bytes);
        const char *code = kind == 2 && bytes > 64 && !memcmp(at + entry, "\177ELF", 4) ? at + entry : NULL;
        if (code) return memcmp(code + 48, "FAKE", 4) ? text_of_cubin(code) : code + 64;
        if (kind == 1 && !text) text = at + entry;
    }
    return text;
}

/* The machine code of the fake NVRTC: PTX behind an ELF header whose flags mark it. */
static const char *text_of(const char *image) {
    if (!memcmp(image, FATBIN, 4)) return text_of_fatbin(image);
    if (strncmp(image, "\177ELF", 4)) return image;
    if (!strncmp(image + 48, "FAKE", 4)) return image + 64;
    const char *text = cubin_error(image) ? NULL : text_of_cubin(image);
    return text ? text : image;
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

/* The bytes of a variable that a text declares; 0 without one. */
static size_t variable_bytes(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *at = text; (at = strstr(at, name)); at += length) {
        bool whole = at > text && strchr(" \t", at[-1]) && strchr("[; ", at[length]);
        const char *line = at, *element, *array = at + length;
        while (line > text && line[-1] != '\n') line--;
        bool declared = whole && (strstr(line, ".global") == line || strstr(line, ".const") == line
                                  || strstr(line, ".visible") == line);
        unsigned bits = 0, count = 1;
        if (!declared) continue;
        for (element = line; element < at && !bits; element++) sscanf(element, ".%*1[subf]%u", &bits);
        if (*array == '[') sscanf(array, "[%u]", &count);
        return bits / 8 * count;
    }
    return 0;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name) {
    CONTEXT;
    REQUIRE(at && bytes && name && strlen(name) < MAX_NAME, INVALID_VALUE);
    REQUIRE(loaded(module), INVALID_HANDLE);
    struct Variable *v = module->variables;
    while (v && strcmp(v->name, name)) v = v->next;
    if (!v) {
        size_t size = variable_bytes(module->text, name);
        REQUIRE(size, NOT_FOUND);
        v = make(sizeof *v);
        *v = (struct Variable){.next = module->variables, .bytes = size};
        strcpy(v->name, name);
        CHECK(allocate(ctx, &v->at, size, false));
        module->variables = v;
    }
    *at = v->at, *bytes = v->bytes;
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
