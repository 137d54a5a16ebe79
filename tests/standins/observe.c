/* What a profiling library needs from the driver: to be loaded by it, and to be told what runs. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define DEVICE_BYTES (80ull << 30)
#define PROGRAM_BYTES (2ull << 30)

static struct observer *observers; /* never removed; guarded by the device lock */
static int observing;              /* how many are on */
static uint32_t correlations;
static const void *subscriber;
static int64_t taken_bytes;

/* ---- injection ---- */

/* As the real driver: whatever goes wrong is not the program's business. */
void injection_load(void)
{
    static bool done;
    const char *path = getenv("CUDA_INJECTION64_PATH");
    if (__atomic_exchange_n(&done, true, __ATOMIC_ACQ_REL) || !path || !*path)
        return;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    int (*initialise)(void);
    *(void **)&initialise = dlsym(library, "InitializeInjection");
    if (initialise)
        initialise();
}

/* ---- observers ---- */

uint32_t observe_call(void)
{
    if (!__atomic_load_n(&observing, __ATOMIC_RELAXED))
        return 0;
    return __atomic_add_fetch(&correlations, 1, __ATOMIC_RELAXED);
}

bool observe_execution(uint32_t correlation, const struct kernel *kernel, const struct launch *launch,
                       const struct stream *stream, uint64_t start, uint64_t end, uint32_t graph, uint32_t node)
{
    if (!correlation || !observing)
        return false;
    uint32_t line = (uint32_t)kernel->name_line;
    struct execution execution = {
        .start_ns = start,
        .end_ns = end,
        .name = truth_name_text(kernel->name_line),
        .correlation = correlation,
        .queue = stream->number,
        .graph = graph,
        .node = node,
        .dynamic_shared = launch->shared_bytes,
        .static_shared = 256 * (line % 7),
        .local_bytes = 8 * (line % 5),
        .registers = 16 + 2 * (line % 100),
    };
    memcpy(execution.grid, launch->grid, sizeof execution.grid);
    memcpy(execution.block, launch->block, sizeof execution.block);
    bool recorded = false;
    for (struct observer *observer = observers; observer; observer = observer->next)
        if (observer->on && observer->ran) {
            observer->ran(&execution);
            recorded = true;
        }
    return recorded;
}

void observe_launched(uint32_t correlation)
{
    if (!correlation)
        return;
    for (struct observer *observer = __atomic_load_n(&observers, __ATOMIC_ACQUIRE); observer;
         observer = observer->next)
        observer->launched();
}

EXPORT void kdiffStandinObserve(struct observer *observer, bool on)
{
    device_lock();
    if (on && context_in_making()) { /* with the real ones a launch crashes soon after */
        fprintf(stderr, "stand-in: a profiler begins while a context is made\n");
        abort();
    }
    struct observer *known = observers;
    while (known && known != observer)
        known = known->next;
    if (!known) {
        observer->next = observers;
        __atomic_store_n(&observers, observer, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&observing, observing + on - observer->on, __ATOMIC_RELAXED);
    observer->on = on;
    device_unlock();
}

/* ---- the subscription, and memory ---- */

EXPORT bool kdiffStandinSubscribe(const void *owner)
{
    const void *nobody = NULL;
    return __atomic_compare_exchange_n(&subscriber, &nobody, owner, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

EXPORT bool kdiffStandinUnsubscribe(const void *owner)
{
    return __atomic_compare_exchange_n(&subscriber, &owner, NULL, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

EXPORT void kdiffStandinTakeMemory(int64_t bytes)
{
    __atomic_add_fetch(&taken_bytes, bytes, __ATOMIC_RELAXED);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUresult status = context_check();
    if (status != CUDA_SUCCESS)
        return status;
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    *total = DEVICE_BYTES;
    *free_bytes = DEVICE_BYTES - PROGRAM_BYTES - (size_t)__atomic_load_n(&taken_bytes, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}
