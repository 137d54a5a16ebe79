/* SPDX-License-Identifier: Apache-2.0 */
#include "window.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "buffers.h"
#include "clock.h"
#include "detach.h"
#include "handover.h"
#include "hooks.h"
#include "leaving.h"
#include "names.h"

enum {
    DEVICE_BUFFERS = 8, /* of CUPTI's 3.2 MB each, a context: GPU memory */
    GRACE_MS = 300,     /* for kernels that run as a window closes */
    GRACE_STEP_MS = 5,
    PATIENCE_MS = 5000, /* of another user of CUPTI with a window that does not close */
    /* What a record adds to the program, at most, by docs/adr/0012. */
    LAUNCH_COST_NS = 2500,
    NODE_COST_NS = 500, /* of a graph */
};

/* Recursive: a user of CUPTI may begin from inside one of CUPTI's callbacks. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

/* Under the lock. `open`: CUPTI is ours and collects. */
static struct cupti in_use;
static struct cupti *const cupti = &in_use;
static volatile bool open;
static volatile bool used; /* since CUPTI was last taken out of the process */
static void *subscriber;
static struct window_record window;
static u64 number;
static u64 cost_ns;
static size_t buffer_limit_before;
static char reason[160];
static const char *broken;

/* ---- records ---- */

/* Two records in a row show how long one really is. */
static bool stride_fits(const u8 *earlier, const u8 *later)
{
    size_t bytes = (size_t)(later - earlier);
    return bytes == cupti->record_bytes ||
           (cupti->may_be_longer && bytes > cupti->record_bytes && bytes < 1024 && bytes % 8 == 0);
}

static void read_buffer(const struct buffer *buffer)
{
    names_look_anew();
    u8 *record = NULL, *earlier = NULL;
    while (!broken && cupti->next_record(buffer->bytes, buffer->valid, &record) == CUPTI_OK) {
        if (record < buffer->bytes || (size_t)(record - buffer->bytes) + cupti->record_bytes > buffer->valid ||
            (earlier && !stride_fits(earlier, record))) {
            broken = "CUPTI's records are not as its version has them";
            return;
        }
        earlier = cupti_is_kernel(record) ? record : NULL;
        if (!earlier)
            continue;
        struct execution_record execution;
        const char *name;
        cupti_read_kernel(record, &execution, &name);
        __atomic_fetch_add(&cost_ns, execution.graph_id ? NODE_COST_NS : LAUNCH_COST_NS, __ATOMIC_RELAXED);
        if (execution.start == 0 || execution.end <= execution.start) {
            window.uncollected++;
            continue;
        }
        execution.name = names_number(name, number);
        handover_execution(&execution, number);
    }
}

/* Mostly by the library's own thread, and by another user's that begins. */
void window_drain(void)
{
    static pthread_mutex_t draining = PTHREAD_MUTEX_INITIALIZER;
    struct buffer *buffer;
    pthread_mutex_lock(&draining);
    while ((buffer = buffers_take_full())) {
        read_buffer(buffer);
        buffers_give_empty(buffer);
    }
    window.executions += handover_flush();
    pthread_mutex_unlock(&draining);
}

const char *window_broken(void)
{
    return broken;
}

/* ---- opening and closing, under the lock ---- */

static void read_clocks(u64 *host, u64 *device)
{
    u64 best = ~0ull;
    for (int i = 0; i < 8; i++) {
        u64 reading = 0, before = now_ns();
        if (cupti->get_timestamp(&reading) != CUPTI_OK)
            continue;
        u64 after = now_ns();
        if (after - before < best) {
            best = after - before;
            *host = before + best / 2;
            *device = reading;
        }
    }
    if (best != ~0ull && best / 2 + 1 > window.error_ns)
        window.error_ns = best / 2 + 1;
}

static void no_callback(void *data, int domain, u32 id, const void *info)
{
    (void)data, (void)domain, (void)id, (void)info;
}

static bool failed(const char *what, int result)
{
    const char *text = "";
    if (result == CUPTI_OK)
        return false;
    cupti->result_string(result, &text);
    snprintf(reason, sizeof reason, "%s: %s (%d)", what, text ? text : "", result);
    return true;
}

static void limit_device_memory(void)
{
    size_t size = sizeof buffer_limit_before, wanted = DEVICE_BUFFERS;
    buffer_limit_before = 0;
    if (cupti->get_attribute(ATTRIBUTE_BUFFER_LIMIT, &size, &buffer_limit_before) != CUPTI_OK)
        buffer_limit_before = 0;
    if (buffer_limit_before)
        cupti->set_attribute(ATTRIBUTE_BUFFER_LIMIT, &size, &wanted);
}

static void give_cupti_back(void)
{
    size_t size = sizeof buffer_limit_before;
    if (buffer_limit_before)
        cupti->set_attribute(ATTRIBUTE_BUFFER_LIMIT, &size, &buffer_limit_before);
    cupti->unsubscribe(subscriber);
}

static void count_dropped(void)
{
    size_t dropped = 0;
    if (cupti->dropped_records(NULL, 0, &dropped) == CUPTI_OK)
        window.dropped += dropped;
}

/* New launches are not collected from here on; those that run may still get their times. */
static void stop_collecting(u32 ended)
{
    window.ended = ended;
    window.closed_ns = now_ns();
    cupti->disable(KIND_CONCURRENT_KERNEL);
    cupti->flush_all(0);
    window.inside_ns += now_ns() - window.closed_ns;
}

static void close_window(u32 ended)
{
    if (!window.closed_ns)
        stop_collecting(ended);
    u64 began = now_ns();
    cupti->flush_all(FLUSH_FORCED);
    count_dropped();
    read_clocks(&window.host_close_ns, &window.device_close_ns);
    give_cupti_back();
    open = false;
    used = true;
    window.inside_ns += now_ns() - began;
}

enum window_result window_open(const struct cupti *which, u64 settle_ms)
{
    enum window_result result = WINDOW_FAILED;
    window_lock();
    in_use = *which;
    u64 began = now_ns();
    if (hooks_foreign()) {
        result = WINDOW_BUSY;
        goto done;
    }
    if (now_ms() < hooks_last_ms() + settle_ms) {
        result = WINDOW_TOO_SOON;
        goto done;
    }
    int subscribed = cupti->subscribe(&subscriber, no_callback, NULL);
    if (subscribed == CUPTI_MULTIPLE_SUBSCRIBERS) {
        result = WINDOW_BUSY;
        goto done;
    }
    if (failed("cuptiSubscribe", subscribed))
        goto done;
    if (!used)
        leaving_watch();
    limit_device_memory();
    window = (struct window_record){.cupti_version = cupti->version};
    __atomic_store_n(&cost_ns, 0, __ATOMIC_RELAXED);
    read_clocks(&window.host_open_ns, &window.device_open_ns);
    if (failed("cuptiActivityRegisterCallbacks", cupti->register_callbacks(buffers_request, buffers_complete)) ||
        failed("cuptiActivityEnable", cupti->enable(KIND_CONCURRENT_KERNEL))) {
        give_cupti_back();
        goto done;
    }
    open = true;
    window.opened_ns = now_ns();
    window.inside_ns = window.opened_ns - began;
    number++;
    result = WINDOW_OPENED;
done:
    window_unlock();
    return result;
}

void window_announce(void)
{
    window_lock();
    struct window_record opened = window;
    window_unlock();
    opened.closed_ns = 0;
    opened.ended = ENDED_OPEN;
    handover_window(&opened, number);
}

const char *window_reason(void)
{
    return reason;
}

u64 window_cost_ns(void)
{
    return __atomic_load_n(&cost_ns, __ATOMIC_RELAXED);
}

bool window_is_open(void)
{
    return open;
}

bool window_left_something(void)
{
    return open || used;
}

void window_turn(u32 skipped)
{
    window_lock();
    if (open) {
        struct window_record next = {.cupti_version = window.cupti_version};
        cupti->flush_all(0);
        count_dropped();
        read_clocks(&window.host_close_ns, &window.device_close_ns);
        window.closed_ns = next.opened_ns = now_ns();
        next.host_open_ns = window.host_close_ns;
        next.device_open_ns = window.device_close_ns;
        next.error_ns = window.error_ns;
        window.ended = ENDED_DURATION;
        window.skipped = skipped;
        window_drain();
        handover_window(&window, number);
        window = next;
        number++;
        handover_window(&window, number);
    }
    window_unlock();
}

void window_end(u32 ended, u32 skipped)
{
    window_lock();
    if (open && !window.closed_ns)
        stop_collecting(ended);
    window_unlock();
    /* Nobody waits for the lock meanwhile: not a fork, and not another user of CUPTI, who closes the window then. */
    for (int waited = 0; open && buffers_with_cupti() > 0 && waited < GRACE_MS && ended != ENDED_EXIT; waited += GRACE_STEP_MS) {
        sleep_ms(GRACE_STEP_MS);
        window_lock();
        if (open)
            cupti->flush_all(0);
        window_unlock();
    }
    window_lock();
    if (open)
        close_window(ended);
    window.skipped = skipped;
    window_unlock();
    window_drain();
    handover_window(&window, number);
}

/* ---- what others need ---- */

void window_lock(void)
{
    pthread_mutex_lock(&lock);
}

bool window_lock_within(u64 ms)
{
    u64 until = now_ms() + ms;
    while (pthread_mutex_trylock(&lock) != 0) {
        if (now_ms() >= until)
            return false;
        sleep_ms(1);
    }
    return true;
}

void window_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* Who holds the lock may wait for the loader's, and a constructor that calls here has that: one must give up. */
bool hooks_enter(bool begins)
{
    if (!window_lock_within(PATIENCE_MS))
        return false;
    if (open)
        close_window(ENDED_YIELDED);
    if (begins && used) {
        used = false;
        window_drain(); /* names of kernels are CUPTI's */
        detach(cupti);
    }
    return true;
}

void hooks_leave(void)
{
    window_unlock();
}
