/* SPDX-License-Identifier: Apache-2.0 */
#include "cupti.h"

#include <dlfcn.h>
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "leaving.h"

/*
 * CUpti_ActivityKernel9 (CUDA 12) to 13 (CUDA 13.4): later ones have more fields at the end, these stay where they
 * are. A record of CUDA 11 or of a CUDA not yet known is not read at all.
 */
enum {
    AT_KIND = 0,
    AT_REGISTERS = 6,
    AT_START = 16,
    AT_END = 24,
    AT_DEVICE = 40,
    AT_CONTEXT = 44,
    AT_STREAM = 48,
    AT_GRID = 52,
    AT_BLOCK = 64,
    AT_STATIC_SHARED = 76,
    AT_DYNAMIC_SHARED = 80,
    AT_LOCAL = 84,
    AT_CORRELATION = 92,
    AT_NAME = 104,
    AT_GRAPH_NODE = 144,
    AT_GRAPH = 156,
};

static const struct {
    u32 first, last; /* cuptiGetVersion */
    size_t record_bytes;
    bool may_be_longer;
} layouts[] = {
    {18, 28, 208, false},          /* CUDA 12.0 to 12.9 */
    {130000, 130099, 216, false},  /* 13.0 */
    {130100, 130299, 224, false},  /* 13.1, 13.2 */
    {130300, 130399, 232, false},  /* 13.3 */
    {130400, 130599, 248, false},  /* 13.4, 13.5 */
    {130600, 139999, 248, true},   /* within a major release fields are added at the end only */
};

bool cupti_is_kernel(const u8 *record)
{
    u32 kind;
    memcpy(&kind, record + AT_KIND, sizeof kind);
    return kind == KIND_CONCURRENT_KERNEL;
}

#define FETCH(to, at) memcpy(&(to), record + (at), sizeof(to))

void cupti_read_kernel(const u8 *record, struct execution_record *execution, const char **name)
{
    uint16_t registers;
    FETCH(registers, AT_REGISTERS);
    execution->registers = registers;
    FETCH(execution->start, AT_START);
    FETCH(execution->end, AT_END);
    FETCH(execution->device, AT_DEVICE);
    FETCH(execution->context, AT_CONTEXT);
    FETCH(execution->stream, AT_STREAM);
    FETCH(execution->grid, AT_GRID);
    FETCH(execution->block, AT_BLOCK);
    FETCH(execution->static_shared, AT_STATIC_SHARED);
    FETCH(execution->dynamic_shared, AT_DYNAMIC_SHARED);
    FETCH(execution->local_bytes, AT_LOCAL);
    FETCH(execution->correlation, AT_CORRELATION);
    FETCH(*name, AT_NAME);
    FETCH(execution->graph_node_id, AT_GRAPH_NODE);
    FETCH(execution->graph_id, AT_GRAPH);
}

/* ---- finding it ---- */

static bool fits(const char *path)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    return strncmp(base, "libcupti.so", 11) == 0;
}

static bool load(struct cupti *cupti, const char *path, int flags)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | flags); /* never closed: CUPTI does not survive that */
    if (!library)
        return false;
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"cuptiGetVersion", &cupti->get_version},
        {"cuptiGetTimestamp", &cupti->get_timestamp},
        {"cuptiSubscribe", &cupti->subscribe},
        {"cuptiUnsubscribe", &cupti->unsubscribe},
        {"cuptiEnableDomain", &cupti->enable_domain},
        {"cuptiFinalize", &cupti->finalize},
        {"cuptiActivityRegisterCallbacks", &cupti->register_callbacks},
        {"cuptiActivityEnable", &cupti->enable},
        {"cuptiActivityDisable", &cupti->disable},
        {"cuptiActivityFlushAll", &cupti->flush_all},
        {"cuptiActivityGetNextRecord", &cupti->next_record},
        {"cuptiActivityGetNumDroppedRecords", &cupti->dropped_records},
        {"cuptiActivityGetAttribute", &cupti->get_attribute},
        {"cuptiActivitySetAttribute", &cupti->set_attribute},
        {"cuptiGetResultString", &cupti->result_string},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(library, wanted[i].name);
        if (!found)
            return false;
        memcpy(wanted[i].function, &found, sizeof found);
    }
    struct link_map *map;
    snprintf(cupti->path, sizeof cupti->path, "%s",
             dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : path);
    return true;
}

struct mapped {
    char cupti[512];
    bool proton; /* Triton's profiler, which brings a CUPTI of its own and loads it when it begins */
    char directories[64][512]; /* of the libraries that CUDA programs map */
    int count;
};

static int note_mapped(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct mapped *mapped = data;
    const char *path = info->dlpi_name, *slash = path ? strrchr(path, '/') : NULL;
    if (!slash)
        return 0;
    if (fits(path) && !*mapped->cupti)
        snprintf(mapped->cupti, sizeof mapped->cupti, "%s", path);
    if (strncmp(slash, "/libproton.so", 13) == 0)
        mapped->proton = true;
    bool cuda = strstr(slash, "libcudart") || strstr(slash, "libtorch") || strstr(slash, "libcublas") ||
                strstr(slash, "libnvrtc") || strstr(slash, "xla_cuda") || strstr(slash, "libonnxruntime");
    if (cuda && mapped->count < 64) {
        char *directory = mapped->directories[mapped->count];
        snprintf(directory, sizeof mapped->directories[0], "%.*s", (int)(slash - path), path);
        for (int i = 0; i < mapped->count; i++)
            if (strcmp(mapped->directories[i], directory) == 0)
                return 0;
        mapped->count++;
    }
    return 0;
}

static bool load_first(struct cupti *cupti, const char *pattern)
{
    glob_t found;
    bool loaded = false;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = found.gl_pathc; i-- > 0 && !loaded;) /* the highest release first */
            loaded = load(cupti, found.gl_pathv[i], 0);
    globfree(&found);
    return loaded;
}

static bool load_any(struct cupti *cupti, const struct mapped *mapped)
{
    if (*mapped->cupti && load(cupti, mapped->cupti, RTLD_NOLOAD))
        return true;
    /* Beside the runtime; in the packages that pip brings (nvidia/cuda_cupti for CUDA 12, nvidia/cu13); in a toolkit. */
    static const char *const beside[] = {"%s/libcupti.so.1[23]", "%s/../../cuda_cupti/lib/libcupti.so.1[23]",
                                         "%s/../../nvidia/cu13/lib/libcupti.so.13",
                                         "%s/../../nvidia/cuda_cupti/lib/libcupti.so.12",
                                         "%s/../extras/CUPTI/lib64/libcupti.so.1[23]"};
    for (int i = 0; i < mapped->count; i++)
        for (size_t j = 0; j < sizeof beside / sizeof *beside; j++) {
            char pattern[1024];
            snprintf(pattern, sizeof pattern, beside[j], mapped->directories[i]);
            if (load_first(cupti, pattern))
                return true;
        }
    static const char *const installed[] = {"/usr/local/cuda/lib64/libcupti.so.1[23]",
                                            "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.1[23]",
                                            "/usr/local/cuda-1[23]*/lib64/libcupti.so.1[23]",
                                            "/usr/local/cuda-1[23]*/extras/CUPTI/lib64/libcupti.so.1[23]"};
    if (load(cupti, "libcupti.so.13", 0) || load(cupti, "libcupti.so.12", 0))
        return true;
    for (size_t i = 0; i < sizeof installed / sizeof *installed; i++)
        if (load_first(cupti, installed[i]))
            return true;
    return false;
}

enum cupti_found cupti_find(struct cupti *cupti)
{
    static struct mapped mapped;
    const char *given = getenv("KDIFF_DEVICE_CUPTI");
    bool is_given = given && *given;
    memset(cupti, 0, sizeof *cupti);
    memset(&mapped, 0, sizeof mapped);
    dl_iterate_phdr(note_mapped, &mapped);
    if (mapped.proton && !is_given)
        return CUPTI_CONTESTED;
    if (is_given ? !load(cupti, given, 0) : !load_any(cupti, &mapped))
        return CUPTI_NONE;
    /* Asked once a copy: cuptiFinalize by another thread does not stand a call of CUPTI beside it. */
    static char asked[sizeof cupti->path];
    static u32 version;
    if (strcmp(asked, cupti->path) != 0) {
        leaving_watch();
        if (cupti->get_version(&version) != CUPTI_OK)
            return CUPTI_UNKNOWN;
        memcpy(asked, cupti->path, sizeof asked);
    }
    cupti->version = version;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (cupti->version >= layouts[i].first && cupti->version <= layouts[i].last) {
            cupti->record_bytes = layouts[i].record_bytes;
            cupti->may_be_longer = layouts[i].may_be_longer;
            return CUPTI_FOUND;
        }
    return CUPTI_UNKNOWN;
}
