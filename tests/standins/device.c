/* The device: a discrete-event simulation against the real clock. Queuing work only computes when it will start
 * and end, so the device runs beside the host without a thread of its own. Streams never compete for the device. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"

#define STREAM_MAGIC 0x5354524du
#define SPIN_NS 60000

static pthread_mutex_t lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
static uint64_t launch_latency_ns;
static uint64_t queue_depth;
static uint32_t stream_numbers;
static struct stream legacy;
/* Ends of all work on blocking streams, and of all work at all: enough for the default stream's rules, so that
 * a launch need not look at every stream. */
static uint64_t blocking_end, all_end;
static _Thread_local struct stream *own_stream;
static pthread_key_t own_stream_key;

long env_number(const char *name, long fallback)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return fallback;
    char *end;
    long value = strtol(text, &end, 0);
    if (*end || value < 0) {
        fprintf(stderr, "%s: not a number: %s\n", name, text);
        exit(2);
    }
    return value;
}

void *must(void *pointer)
{
    if (!pointer) {
        perror("stand-in driver");
        abort();
    }
    return pointer;
}

void device_lock(void)
{
    pthread_mutex_lock(&lock);
}

void device_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static void stream_init(struct stream *stream, bool blocking)
{
    *stream = (struct stream){.magic = STREAM_MAGIC, .number = stream_numbers++, .blocking = blocking};
    if (queue_depth)
        stream->queue_ends = must(calloc(queue_depth, sizeof *stream->queue_ends));
}

static void free_own_stream(void *stream)
{
    device_lock();
    stream_free(stream);
    device_unlock();
}

void device_open(void)
{
    if (legacy.magic)
        return;
    launch_latency_ns = (uint64_t)env_number("KDIFF_STANDIN_LATENCY_NS", 4000);
    queue_depth = (uint64_t)env_number("KDIFF_STANDIN_QUEUE", 1024);
    /* The exit of a child takes the lock. */
    pthread_atfork(device_lock, device_unlock, device_unlock);
    pthread_key_create(&own_stream_key, free_own_stream);
    stream_init(&legacy, false);
}

struct stream *stream_new(unsigned int flags)
{
    struct stream *stream = must(malloc(sizeof *stream));
    stream_init(stream, !(flags & CU_STREAM_NON_BLOCKING));
    return stream;
}

void stream_free(struct stream *stream)
{
    stream->magic = 0;
    free(stream->queue_ends);
    free(stream);
}

struct stream *stream_resolve(CUstream handle, bool per_thread)
{
    if (handle == CU_STREAM_LEGACY || (!handle && !per_thread))
        return &legacy;
    if (handle == CU_STREAM_PER_THREAD || !handle) {
        if (!own_stream) {
            own_stream = stream_new(0);
            pthread_setspecific(own_stream_key, own_stream);
        }
        return own_stream;
    }
    struct stream *stream = handle;
    return stream->magic == STREAM_MAGIC ? stream : NULL;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t stream_end(const struct stream *stream)
{
    return stream == &legacy ? later(legacy.busy_until, blocking_end) : stream->busy_until;
}

uint64_t device_end(void)
{
    return all_end;
}

uint64_t device_run(struct stream *stream, uint64_t now, uint64_t duration)
{
    uint64_t start = later(now + launch_latency_ns, stream_end(stream));
    if (stream->blocking)
        start = later(start, legacy.busy_until);
    uint64_t end = start + duration;
    stream->busy_until = end;
    if (stream->blocking)
        blocking_end = later(blocking_end, end);
    all_end = later(all_end, end);
    return start;
}

/* A stream holds a bounded number of launches; the call that finds it full blocks until the oldest has ended. */
uint64_t device_admit(struct stream *stream, uint64_t now)
{
    if (!queue_depth)
        return now;
    uint64_t oldest;
    while ((oldest = stream->queue_ends[stream->launches % queue_depth]) > now) {
        device_unlock();
        wait_until(oldest);
        device_lock();
        now = now_ns();
    }
    return now;
}

void device_queued(struct stream *stream)
{
    if (queue_depth)
        stream->queue_ends[stream->launches++ % queue_depth] = stream->busy_until;
}

/* Sleeping all the way would overshoot by the timer slack and the wake-up. */
void wait_until(uint64_t end)
{
    uint64_t now = now_ns();
    if (end > now + SPIN_NS) {
        uint64_t wake = end - SPIN_NS;
        struct timespec at = {(time_t)(wake / 1000000000u), (long)(wake % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
            ;
    }
    while (now_ns() < end)
        __builtin_ia32_pause();
}
