/* A user of CUPTI as kineto is one: it goes on when the subscription is refused, and drops buffers that it never
 * gave. Built with calls through the PLT, or with PROFILER_DLSYM, which opens CUPTI and looks its functions up. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_abi.h"
#include "cupti.h"
#include "profiler.h"

#define BUFFER_BYTES 65536
#define MAX_BUFFERS 4096

#ifdef PROFILER_DLSYM
#define POINTER(name, ...) static CUptiResult (*called_##name)(__VA_ARGS__);
CUPTI_FUNCTIONS(POINTER)
#define CUPTI(name) called_##name

static void find_cupti(void)
{
    if (called_cuptiGetVersion)
        return;
    const char *path = getenv("KDIFF_STANDIN_PROFILER_CUPTI");
    void *library = dlopen(path && *path ? path : "libcupti.so.13", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "profiler: %s\n", dlerror());
        abort();
    }
#define LOOK_UP(name, ...) *(void **)&called_##name = dlsym(library, #name);
    CUPTI_FUNCTIONS(LOOK_UP)
}
#else
#define CUPTI(name) name
static void find_cupti(void)
{
}
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint8_t *bytes;
    size_t valid;
    int returned;
} buffers[MAX_BUFFERS];
static size_t buffer_count, unknown_buffers;
static CUpti_SubscriberHandle subscription;

static void ignore(void *userdata, int domain, uint32_t id, const void *data)
{
    (void)userdata, (void)domain, (void)id, (void)data;
}

static void request(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = malloc(BUFFER_BYTES);
    *size = BUFFER_BYTES;
    *max_records = 0;
    pthread_mutex_lock(&lock);
    if (buffer_count == MAX_BUFFERS)
        abort();
    buffers[buffer_count].bytes = *buffer;
    buffers[buffer_count++].returned = 0;
    pthread_mutex_unlock(&lock);
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    (void)context, (void)stream, (void)size;
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i < buffer_count && (buffers[i].bytes != buffer || buffers[i].returned))
        i++;
    if (i == buffer_count) {
        unknown_buffers++;
    } else {
        buffers[i].valid = valid;
        buffers[i].returned = 1;
    }
    pthread_mutex_unlock(&lock);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void count(uint8_t *buffer, size_t valid, const char *kernel, struct profiler_session *session)
{
    void *at = NULL;
    uint32_t correlation_before = 0;
    while (CUPTI(cuptiActivityGetNextRecord)(buffer, valid, &at) == CUPTI_SUCCESS) {
        const kernel_record *record = at;
        if (strcmp(record->name, kernel) != 0) {
            session->others++;
            continue;
        }
        session->own++;
        session->shared += record->correlation == correlation_before;
        correlation_before = record->correlation;
        session->untimed += !record->start || record->end < record->start;
    }
}

/* A launch that asked for a buffer as the session ended gives it back soon. */
static void await_buffers(void)
{
    for (int ms = 0; ms < 500; ms++) {
        size_t missing = 0;
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < buffer_count; i++)
            missing += !buffers[i].returned;
        pthread_mutex_unlock(&lock);
        if (!missing)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

EXPORT void profiler_start(enum profiler_manners manners, struct profiler_session *session)
{
    find_cupti();
    if (manners != PROFILER_BARE && !subscription)
        session->subscribed = CUPTI(cuptiSubscribe)(&subscription, ignore, NULL);
    if (session->subscribed != CUPTI_SUCCESS)
        subscription = NULL;
    CUPTI(cuptiActivityRegisterCallbacks)(request, complete);
    session->enabled = CUPTI(cuptiActivityEnable)(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    session->on_ns = now_ns();
}

EXPORT void profiler_stop(enum profiler_manners manners, const char *kernel, struct profiler_session *session)
{
    session->off_ns = now_ns();
    CUPTI(cuptiActivityDisable)(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    CUPTI(cuptiActivityFlushAll)(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    await_buffers();
    if (manners == PROFILER_GIVES || manners == PROFILER_FINALIZES) {
        if (subscription)
            CUPTI(cuptiUnsubscribe)(subscription);
        subscription = NULL;
        if (manners == PROFILER_FINALIZES)
            CUPTI(cuptiFinalize)();
    }
    pthread_mutex_lock(&lock);
    size_t kept = 0;
    for (size_t i = 0; i < buffer_count; i++) {
        if (!buffers[i].returned) {
            session->lost_buffers++;
            buffers[kept++] = buffers[i];
            continue;
        }
        count(buffers[i].bytes, buffers[i].valid, kernel, session);
        free(buffers[i].bytes);
    }
    buffer_count = kept;
    session->unknown_buffers = unknown_buffers;
    unknown_buffers = 0;
    pthread_mutex_unlock(&lock);
}
