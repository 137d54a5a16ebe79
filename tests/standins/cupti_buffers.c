/* Records and the buffers they go into.
 *
 * A launch notes its records under the driver's lock, and the thread that launched moves them into a buffer of its
 * own as its call ends, asking for one if it must. As in the real library, buffers are asked for and given back
 * through the callbacks registered at that moment, whoever gave the buffer. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cupti_internal.h"

struct buffer {
    uint8_t *bytes;
    size_t size, used, records, max_records;
    uint64_t last_end; /* of its records, on CUPTI's clock */
    struct buffer *next;
};

/* Outlives its thread: what it noted is still to be flushed. */
struct thread {
    struct buffer *current;
    kernel_record *noted;
    size_t noted_count, noted_room;
    struct thread *next;
};

_Atomic int record_kind;

static CUpti_BuffersCallbackRequestFunc left_behind_by; /* guarded by the lock */
static bool spoiled;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* taken inside the driver's; never held while calling back */
static CUpti_BuffersCallbackRequestFunc request_buffer;
static CUpti_BuffersCallbackCompleteFunc complete_buffer;
static struct thread *threads;
static struct buffer *full;
static uint64_t dropped, noted_ever;
static _Thread_local struct thread *own;

static void *must(void *pointer)
{
    if (!pointer)
        abort();
    return pointer;
}

/* ---- what a session leaves behind ---- */

void session_begins(void)
{
    pthread_mutex_lock(&lock);
    spoiled = settings.strict && left_behind_by && left_behind_by != request_buffer;
    pthread_mutex_unlock(&lock);
}

void session_ends(void)
{
    pthread_mutex_lock(&lock);
    if (!own)
        left_behind_by = request_buffer;
    pthread_mutex_unlock(&lock);
}

/* ---- records ---- */

/* A name whose module has been unloaded, or one that fills the last bytes before such memory. */
static const char *name_at_the_edge(bool gone)
{
    static const char text[] = "edge_kernel";
    static char *pages;
    if (!pages) {
        pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED || munmap(pages + 4096, 4096) != 0)
            abort();
        memcpy(pages + 4096 - sizeof text, text, sizeof text);
    }
    return gone ? pages + 4096 : pages + 4096 - sizeof text;
}

static void note(struct thread *thread, const struct execution *execution)
{
    if (thread->noted_count == thread->noted_room) {
        thread->noted_room = thread->noted_room ? thread->noted_room * 2 : 64;
        thread->noted = must(realloc(thread->noted, thread->noted_room * sizeof *thread->noted));
    }
    kernel_record *record = &thread->noted[thread->noted_count++];
    *record = (kernel_record){
        .kind = (uint32_t)record_kind,
        .registers = (uint16_t)execution->registers,
        .start = cupti_time(execution->start_ns),
        .end = cupti_time(execution->end_ns),
        .device = 0,
        .context = 1,
        .stream = execution->queue + 7,
        .static_shared = (int32_t)execution->static_shared,
        .dynamic_shared = (int32_t)execution->dynamic_shared,
        .local_per_thread = execution->local_bytes,
        .correlation = spoiled ? 1 : execution->correlation,
        .grid_id = (int64_t)noted_ever,
        .name = execution->name,
        .graph_id = execution->graph,
        .graph_node_id = execution->graph ? (uint64_t)execution->graph << 32 | (execution->node + 1) : 0,
        .cluster = {1, 1, 1, 0},
    };
    memcpy(record->grid, execution->grid, sizeof record->grid);
    memcpy(record->block, execution->block, sizeof record->block);
    if (settings.gone_every && noted_ever % settings.gone_every == 0)
        record->name = name_at_the_edge(true);
    else if (settings.gone_every && (noted_ever + 1) % settings.gone_every == 0)
        record->name = name_at_the_edge(false);
    if (settings.zero_every && noted_ever % settings.zero_every == 0) {
        record->start = record->end = 0;
    } else if (settings.reversed_every && noted_ever % settings.reversed_every == 0) {
        uint64_t start = record->start;
        record->start = record->end;
        record->end = start;
    }
    record->completed = record->end;
}

static void ran(const struct execution *execution)
{
    pthread_mutex_lock(&lock);
    if (!own) {
        own = must(calloc(1, sizeof *own));
        own->next = threads;
        threads = own;
    }
    noted_ever++;
    if (settings.drop_every && noted_ever % settings.drop_every == 0)
        dropped++;
    else
        note(own, execution);
    pthread_mutex_unlock(&lock);
}

static void write_record(struct buffer *buffer, const kernel_record *record)
{
    uint8_t *to = buffer->bytes + buffer->used;
    size_t known = settings.record_bytes < sizeof *record ? settings.record_bytes : sizeof *record;
    memset(to, 0, settings.record_bytes);
    memcpy(to, record, sizeof record->kind);
    memcpy(to + sizeof record->kind + settings.shift, (const uint8_t *)record + sizeof record->kind,
           known - sizeof record->kind);
    buffer->used += settings.record_bytes;
    buffer->records++;
    uint64_t end = record->end > record->start ? record->end : record->start;
    if (end > buffer->last_end)
        buffer->last_end = end;
}

/* What the device has not done yet, nobody knows the time of. */
static void hide_future(struct buffer *buffer, uint64_t now)
{
    if (buffer->last_end <= now)
        return;
    size_t start_at = offsetof(kernel_record, start) + settings.shift, end_at = start_at + sizeof(uint64_t);
    for (size_t at = 0; at < buffer->used; at += settings.record_bytes) {
        uint64_t time, zero = 0;
        for (size_t field = start_at; field <= end_at; field += end_at - start_at) {
            memcpy(&time, buffer->bytes + at + field, sizeof time);
            if (time > now)
                memcpy(buffer->bytes + at + field, &zero, sizeof zero);
        }
    }
}

/* ---- buffers ---- */

static bool has_room(const struct buffer *buffer)
{
    return buffer->used + settings.record_bytes <= buffer->size &&
           (!buffer->max_records || buffer->records < buffer->max_records);
}

static void give_back(struct buffer *buffer, CUpti_BuffersCallbackCompleteFunc complete)
{
    hide_future(buffer, cupti_time(host_ns()));
    if (complete)
        complete(NULL, 0, buffer->bytes, buffer->size, buffer->used);
    free(buffer);
}

/* Moves what the thread noted into buffers. The lock is held before and after, not while a buffer is asked for. */
static void settle(struct thread *thread)
{
    size_t done = 0;
    while (done < thread->noted_count) {
        struct buffer *buffer = thread->current;
        if (buffer && has_room(buffer)) {
            write_record(buffer, &thread->noted[done++]);
            continue;
        }
        memmove(thread->noted, thread->noted + done, (thread->noted_count -= done) * sizeof *thread->noted);
        done = 0;
        if (buffer) {
            buffer->next = full;
            full = buffer;
            thread->current = NULL;
        }
        CUpti_BuffersCallbackRequestFunc request = request_buffer;
        CUpti_BuffersCallbackCompleteFunc complete = complete_buffer;
        struct buffer *made = must(calloc(1, sizeof *made));
        pthread_mutex_unlock(&lock);
        if (request)
            request(&made->bytes, &made->size, &made->max_records);
        pthread_mutex_lock(&lock);
        if (made->bytes && made->size >= settings.record_bytes && thread->noted_count && !thread->current) {
            thread->current = made;
        } else {
            if (!made->bytes || made->size < settings.record_bytes) {
                dropped += thread->noted_count;
                thread->noted_count = 0;
            }
            /* Somebody flushed meanwhile. */
            pthread_mutex_unlock(&lock);
            if (made->bytes)
                give_back(made, complete);
            else
                free(made);
            pthread_mutex_lock(&lock);
        }
    }
    thread->noted_count = 0;
}

static void deliver(struct buffer *first)
{
    pthread_mutex_lock(&lock);
    CUpti_BuffersCallbackCompleteFunc complete = complete_buffer;
    pthread_mutex_unlock(&lock);
    while (first) {
        struct buffer *next = first->next;
        give_back(first, complete);
        first = next;
    }
}

/* Takes the buffers of a list that are complete, or all of them. */
static struct buffer *take(struct buffer **list, bool all, struct buffer *onto)
{
    uint64_t now = cupti_time(host_ns());
    while (*list) {
        struct buffer *buffer = *list;
        if (!buffer->records || (!all && buffer->last_end > now)) {
            list = &buffer->next;
            continue;
        }
        *list = buffer->next;
        buffer->next = onto;
        onto = buffer;
    }
    return onto;
}

static void launched(void)
{
    if (settings.launch_ns && record_kind)
        for (uint64_t end = host_ns() + settings.launch_ns; host_ns() < end;)
            __builtin_ia32_pause();
    if (!own)
        return;
    pthread_mutex_lock(&lock);
    settle(own);
    struct buffer *ready = take(&full, false, NULL);
    pthread_mutex_unlock(&lock);
    deliver(ready);
}

struct observer records_observer = {.ran = ran, .launched = launched};

void buffers_flush(bool forced)
{
    pthread_mutex_lock(&lock);
    struct buffer *ready = take(&full, forced, NULL);
    for (struct thread *thread = threads; thread; thread = thread->next) {
        settle(thread);
        ready = take(&thread->current, forced, ready);
    }
    ready = take(&full, forced, ready);
    pthread_mutex_unlock(&lock);
    deliver(ready);
}

bool callbacks_set(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete)
{
    pthread_mutex_lock(&lock);
    bool allowed = !(settings.strict && record_kind && request_buffer && request_buffer != request);
    if (allowed) {
        request_buffer = request;
        complete_buffer = complete;
    }
    pthread_mutex_unlock(&lock);
    return allowed;
}

bool callbacks_known(void)
{
    pthread_mutex_lock(&lock);
    bool known = request_buffer && complete_buffer;
    pthread_mutex_unlock(&lock);
    return known;
}

uint64_t dropped_take(void)
{
    pthread_mutex_lock(&lock);
    uint64_t taken = dropped;
    dropped = 0;
    pthread_mutex_unlock(&lock);
    return taken;
}

/* The buffers themselves are whose they were. */
void buffers_forget(void)
{
    pthread_mutex_lock(&lock);
    request_buffer = NULL;
    complete_buffer = NULL;
    left_behind_by = NULL;
    spoiled = false;
    for (struct thread *thread = threads; thread; thread = thread->next) {
        thread->noted_count = 0;
        free(thread->current);
        thread->current = NULL;
    }
    for (struct buffer *next; full; full = next) {
        next = full->next;
        free(full);
    }
    pthread_mutex_unlock(&lock);
}
