/* Modules, libraries and the handles of their kernels.
 *
 * A module image is text. Each line `kernel NAME median_ns sigma tail_prob tail_factor quantum_ns` (all but NAME
 * and median_ns may be left out; `// ` may stand before it, so that an image can pass for PTX) declares a kernel;
 * a line `seed N` seeds the kernels after it. Other lines are ignored.
 *
 * As in the real driver, a CUfunction or CUkernel points to a heap object that holds, at byte 8, a pointer to the
 * mangled name. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define MODULE_MAGIC 0x4d4f444cu
#define HANDLE_MAGIC 0x48414e44u
#define HANDLE_WORDS 32
#define SLAB_HANDLES 64
#define NAME_MAX_BYTES 4096

struct module;

struct handle {
    uintptr_t words[HANDLE_WORDS]; /* what a probe may look at */
    uint32_t magic;                /* HANDLE_MAGIC while alive */
    struct kernel *kernel;
    struct handle *next; /* older handle of the same module, or next on the free list */
};

struct entry {
    struct kernel *kernel;
    struct handle *as_function, *as_kernel; /* made on first request */
};

struct module {
    uint32_t magic;
    uint32_t id;
    size_t count;
    struct entry *entries;
    struct handle *handles; /* the newest first */
    struct module *next;
};

static size_t name_word;
static struct handle *free_handles; /* last freed, first reused */
static struct module *loaded;
static uint32_t module_ids;

void modules_open(void)
{
    long offset = env_number("KDIFF_STANDIN_NAME_OFFSET", 8);
    name_word = (size_t)offset / sizeof(uintptr_t);
    if (offset % (long)sizeof(uintptr_t) || name_word >= HANDLE_WORDS) {
        fprintf(stderr, "KDIFF_STANDIN_NAME_OFFSET: not the offset of a word in a handle\n");
        exit(2);
    }
}

/* ---- handles ---- */

static struct handle *handle_new(struct module *module, struct kernel *kernel)
{
    if (!free_handles) {
        struct handle *slab = must(calloc(SLAB_HANDLES, sizeof *slab));
        for (size_t i = SLAB_HANDLES; i-- > 0; free_handles = &slab[i])
            slab[i].next = free_handles;
    }
    struct handle *handle = free_handles;
    free_handles = handle->next;
    size_t length = strlen(kernel->name);
    for (size_t i = 0; i < HANDLE_WORDS; i++) /* no word but the name's may lead to text */
        handle->words[i] = i % 3 == 0 ? (uintptr_t)module : (uintptr_t)(length << 32 | (i * 16 + 1));
    handle->words[1] = 0;
    handle->words[name_word] = (uintptr_t)kernel->name;
    handle->kernel = kernel;
    handle->magic = HANDLE_MAGIC;
    handle->next = module->handles;
    module->handles = handle;
    return handle;
}

/* Freeing the newest first makes the next module get the oldest address first: kernels of a module and of its
 * replacement, asked for in the same order, have the same handles. */
static void handles_free(struct module *module)
{
    struct handle *handle;
    while ((handle = module->handles)) {
        module->handles = handle->next;
        memset(handle, 0, sizeof *handle);
        handle->next = free_handles;
        free_handles = handle;
    }
}

struct kernel *kernel_of_handle(CUfunction function)
{
    struct handle *handle = function;
    return handle && handle->magic == HANDLE_MAGIC ? handle->kernel : NULL;
}

/* ---- durations ---- */

static uint64_t random_bits(struct kernel *kernel)
{
    uint64_t bits = kernel->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return bits ^ bits >> 31;
}

static double random_unit(struct kernel *kernel) /* in (0, 1) */
{
    return ((double)(random_bits(kernel) >> 11) + 0.5) * 0x1p-53;
}

static double random_normal(struct kernel *kernel)
{
    if (kernel->has_spare_normal) {
        kernel->has_spare_normal = false;
        return kernel->spare_normal;
    }
    double radius = sqrt(-2 * log(random_unit(kernel)));
    double sine, cosine;
    sincos(2 * M_PI * random_unit(kernel), &sine, &cosine);
    kernel->spare_normal = radius * sine;
    kernel->has_spare_normal = true;
    return radius * cosine;
}

uint64_t kernel_draw_ns(struct kernel *kernel)
{
    double drawn = kernel->median_ns * kernel->factor;
    if (kernel->sigma > 0)
        drawn *= exp(kernel->sigma * random_normal(kernel));
    if (kernel->tail_probability > 0 && random_unit(kernel) < kernel->tail_probability)
        drawn *= kernel->tail_factor;
    uint64_t quantum = kernel->quantum_ns ? kernel->quantum_ns : 1;
    uint64_t ticks = (uint64_t)(drawn / (double)quantum + 0.5);
    return (ticks ? ticks : 1) * quantum; /* a kernel that ran took some time */
}

/* ---- loading ---- */

void kernel_release(struct kernel *kernel)
{
    if (--kernel->references == 0) {
        free(kernel->name);
        free(kernel);
    }
}

static uint64_t seed_for(const char *name, uint64_t seed)
{
    uint64_t hash = 0xcbf29ce484222325u ^ seed * 0x9e3779b97f4a7c15u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

static bool parse_kernel(struct module *module, const char *line, uint64_t seed)
{
    char name[NAME_MAX_BYTES];
    double median, sigma = 0, tail_probability = 0, tail_factor = 1;
    unsigned long long quantum = 0;
    int fields = sscanf(line, "kernel %4095s %lf %lf %lf %lf %llu", name, &median, &sigma, &tail_probability,
                        &tail_factor, &quantum);
    if (fields < 2 || !(median >= 0))
        return false;
    struct kernel *kernel = must(malloc(sizeof *kernel));
    *kernel = (struct kernel){
        .name = must(strdup(name)),
        .median_ns = median,
        .sigma = sigma,
        .tail_probability = tail_probability,
        .tail_factor = tail_factor,
        .quantum_ns = quantum,
        .factor = 1,
        .random = seed_for(name, seed),
        .name_line = truth_name(name),
        .module_id = module->id,
        .references = 1,
    };
    module->entries = must(realloc(module->entries, (module->count + 1) * sizeof *module->entries));
    module->entries[module->count++] = (struct entry){.kernel = kernel};
    return true;
}

static void module_free(struct module *module)
{
    module->magic = 0;
    handles_free(module);
    for (size_t i = 0; i < module->count; i++)
        kernel_release(module->entries[i].kernel);
    free(module->entries);
    free(module);
}

static struct module *module_parse(const char *image)
{
    struct module *module = must(calloc(1, sizeof *module));
    module->magic = MODULE_MAGIC;
    module->id = ++module_ids;
    unsigned long long seed = 0;
    bool good = true;
    for (const char *line = image; good && *line;) {
        const char *text = strncmp(line, "// ", 3) == 0 ? line + 3 : line;
        if (strncmp(text, "kernel ", 7) == 0)
            good = parse_kernel(module, text, seed);
        else
            sscanf(text, "seed %llu", &seed);
        const char *end = strchr(line, '\n');
        line = end ? end + 1 : line + strlen(line);
    }
    if (good && module->count)
        return module;
    module_free(module);
    return NULL;
}

static void record(enum truth_kind kind, enum truth_api api, uint64_t call, const struct module *module)
{
    struct truth_record *record = truth_add(kind, api);
    if (!record)
        return;
    record->call_ns = call;
    record->return_ns = now_ns();
    record->handle = (uintptr_t)module;
    record->module = module->id;
    record->kernel = module->entries[0].kernel->name_line;
}

static CUresult module_load(enum truth_api api, void **out, const char *image)
{
    uint64_t call = now_ns();
    CUresult status = context_check();
    if (status != CUDA_SUCCESS)
        return status;
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    device_lock();
    struct module *module = module_parse(image);
    if (module) {
        module->next = loaded;
        loaded = module;
        record(TRUTH_MODULE_LOAD, api, call, module);
    }
    device_unlock();
    *out = module;
    return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

static CUresult module_unload(enum truth_api api, void *handle)
{
    uint64_t call = now_ns();
    struct module *module = handle;
    CUresult status = CUDA_ERROR_INVALID_HANDLE;
    device_lock();
    for (struct module **link = &loaded; *link; link = &(*link)->next)
        if (*link == module) {
            *link = module->next;
            record(TRUTH_MODULE_UNLOAD, api, call, module);
            module_free(module);
            status = CUDA_SUCCESS;
            break;
        }
    device_unlock();
    return status;
}

static CUresult module_get(void **out, void *handle, const char *name, bool as_kernel)
{
    struct module *module = handle;
    if (!out || !name || !module)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = CUDA_ERROR_NOT_FOUND;
    device_lock();
    if (module->magic != MODULE_MAGIC)
        status = CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; status == CUDA_ERROR_NOT_FOUND && i < module->count; i++) {
        struct entry *entry = &module->entries[i];
        if (strcmp(entry->kernel->name, name) != 0)
            continue;
        struct handle **made = as_kernel ? &entry->as_kernel : &entry->as_function;
        if (!*made)
            *made = handle_new(module, entry->kernel);
        *out = *made;
        status = CUDA_SUCCESS;
    }
    device_unlock();
    return status;
}

static CUresult function_of_kernel(CUfunction *out, CUkernel kernel)
{
    CUresult status = CUDA_ERROR_INVALID_HANDLE;
    device_lock();
    struct kernel *wanted = kernel_of_handle(kernel);
    for (struct module *module = loaded; wanted && module; module = module->next)
        for (size_t i = 0; i < module->count; i++) {
            struct entry *entry = &module->entries[i];
            if (entry->kernel != wanted)
                continue;
            if (!entry->as_function)
                entry->as_function = handle_new(module, wanted);
            *out = entry->as_function;
            status = CUDA_SUCCESS;
        }
    device_unlock();
    return status;
}

static char *file_read(const char *path)
{
    FILE *file = path ? fopen(path, "rbe") : NULL;
    if (!file)
        return NULL;
    char *text = NULL;
    size_t room = 0;
    if (getdelim(&text, &room, '\0', file) < 0) {
        free(text);
        text = NULL;
    }
    fclose(file);
    return text;
}

/* ---- the driver's entry points ---- */

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return module_load(API_MODULE_LOAD_DATA, module, image);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, void *options,
                                   void **values)
{
    (void)count, (void)options, (void)values;
    return module_load(API_MODULE_LOAD_DATA_EX, module, image);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return module_load(API_MODULE_LOAD_FATBIN, module, image);
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    char *image = file_read(path);
    CUresult status = image ? module_load(API_MODULE_LOAD, module, image) : CUDA_ERROR_FILE_NOT_FOUND;
    free(image);
    return status;
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    return module_unload(API_MODULE_UNLOAD, module);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    return module_get(function, module, name, false);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, void *jit_options, void **jit_values,
                                  unsigned int jit_count, void *options, void **values, unsigned int count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return module_load(API_LIBRARY_LOAD_DATA, library, code);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return module_get(kernel, library, name, true);
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    return function ? function_of_kernel(function, kernel) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    return module_unload(API_LIBRARY_UNLOAD, library);
}

/* Not CUDA's: makes the loaded kernels of this name slower or faster from the next launch on. */
EXPORT CUresult kdiffStandinSetFactor(const char *name, double factor)
{
    CUresult status = CUDA_ERROR_NOT_FOUND;
    device_lock();
    for (struct module *module = loaded; module; module = module->next)
        for (size_t i = 0; i < module->count; i++)
            if (strcmp(module->entries[i].kernel->name, name) == 0) {
                module->entries[i].kernel->factor = factor;
                status = CUDA_SUCCESS;
            }
    device_unlock();
    return status;
}
