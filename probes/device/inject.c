/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device library. The CUDA driver loads it at cuInit when CUDA_INJECTION64_PATH names it, and calls
 * InitializeInjection. It then sleeps until an agent listens, and from then on opens windows in which CUPTI times
 * kernels on the device. Whatever goes wrong, it turns itself off, says so once, and the program runs on.
 *
 * KDIFF_DEVICE_TIME     WINDOW_MS/PERIOD_MS (1000/10000), always, or off
 * KDIFF_DEVICE_BUDGET   how much time windows may add, of all time: 0.5%, or none
 * KDIFF_DEVICE_CUPTI    the libcupti to use
 * KDIFF_DEVICE_SETTLE   ms without a newly loaded library or a new context before a window opens: 1000
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "clock.h"
#include "driver.h"
#include "handover.h"
#include "hooks.h"
#include "leaving.h"
#include "settled.h"
#include "window.h"

enum {
    SLICE_MS = 10,  /* in a window: how soon a module loaded in it is seen */
    IDLE_MS = 200,  /* between looks for a listener */
    MOST_WAIT_MS = 1000, /* that a fork waits for a call of CUPTI */
};

static u64 window_ms = 1000, period_ms = 10000, settle_ms = 1000;
static bool always;
static double budget = 0.005;
static struct cupti cupti;

/* ---- settings ---- */

static bool read_settings(void)
{
    const char *text = getenv("KDIFF_DEVICE_TIME");
    if (text && strcmp(text, "off") == 0)
        return false;
    if (text && strcmp(text, "always") == 0) {
        always = true;
        budget = 0;
        period_ms = window_ms;
    } else if (text && *text) {
        unsigned long long window, period;
        char end;
        if (sscanf(text, "%llu/%llu%c", &window, &period, &end) != 2 || !window || window > period ||
            period > 86400000) {
            fprintf(stderr, "kdiff: KDIFF_DEVICE_TIME=%s is no WINDOW_MS/PERIOD_MS: device time is off\n", text);
            return false;
        }
        window_ms = window;
        period_ms = period;
    }
    text = getenv("KDIFF_DEVICE_BUDGET");
    if (text && strcmp(text, "none") == 0)
        budget = 0;
    else if (text && *text && !always) {
        char *end;
        double percent = strtod(text, &end);
        if (end == text || !(percent > 0 && percent <= 100) || (strcmp(end, "%") != 0 && *end)) {
            fprintf(stderr, "kdiff: KDIFF_DEVICE_BUDGET=%s is no share like 0.5%%: device time is off\n", text);
            return false;
        }
        budget = percent / 100;
    }
    text = getenv("KDIFF_DEVICE_SETTLE");
    if (text && *text) {
        char end;
        unsigned long long ms;
        if (sscanf(text, "%llu%c", &ms, &end) != 1 || ms > 3600000) {
            fprintf(stderr, "kdiff: KDIFF_DEVICE_SETTLE=%s is no time in ms up to an hour: device time is off\n", text);
            return false;
        }
        settle_ms = ms;
    }
    return true;
}

static u64 random_below(u64 limit)
{
    u64 value = 0;
    if (limit == 0 || getrandom(&value, sizeof value, GRND_NONBLOCK) != sizeof value)
        return limit / 2;
    return value % limit;
}

/* ---- the thread ---- */

/* Sleeps until a time, or until that need not be waited for any longer. */
static void rest_until(u64 ms)
{
    for (u64 now; (now = now_ms()) < ms && !is_leaving() && handover_heard();)
        sleep_ms(ms - now < IDLE_MS ? (long)(ms - now) : IDLE_MS);
}

static u32 said_state = ~0u;

static void say(u32 state, u32 skipped, const char *text)
{
    said_state = state;
    handover_state(state, skipped, text);
}

static void turn_off(const char *format, ...)
{
    char text[184];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    say(STATE_OFF, 0, text);
    fprintf(stderr, "kdiff: device time is off in process %d: %s\n", (int)getpid(), text);
}

/* The GPUs as this process numbers them: not all are visible to it. */
static void hand_over_devices(void)
{
    const struct driver *cuda = driver();
    int count = 0;
    if (!cuda || cuda->get_count(&count) != 0)
        return;
    for (int i = 0; i < count && i < MOST_DEVICES; i++) {
        int device;
        u8 uuid[16];
        if (cuda->get_device(&device, i) == 0 && cuda->get_uuid(uuid, device) == 0)
            handover_device((u32)i, uuid);
    }
}

/* Looks anew each time: the program's own may have been loaded since. */
static enum cupti_found find_cupti(void)
{
    enum cupti_found found = cupti_find(&cupti);
    if (found == CUPTI_NONE && said_state != STATE_NO_CUPTI)
        say(STATE_NO_CUPTI, 0, "no libcupti is mapped or found: name it in KDIFF_DEVICE_CUPTI");
    if (found == CUPTI_CONTESTED && said_state != STATE_BUSY)
        say(STATE_BUSY, 0,
            "Proton is loaded, whose own CUPTI windows would keep out: name the one to use in KDIFF_DEVICE_CUPTI");
    if (found == CUPTI_UNKNOWN)
        turn_off("%.100s is version %u of CUPTI, whose records are not known", cupti.path, cupti.version);
    return found;
}

enum next { AFTER_GAP, SOON, NEVER };

/* One window from its opening to its end, and when the next may be tried. `debt_ms`: how much later it should be, for
 * CUPTI delivers records late, and a window that should end may have cost more than its share already. */
static enum next run_window(u64 began_ms, u32 *skipped, u64 *debt_ms)
{
    u64 most_ns = budget > 0 ? (u64)(budget * (double)period_ms * 1e6) : ~0ull;
    switch (window_open(&cupti, settle_ms)) {
    case WINDOW_FAILED:
        turn_off("%s", window_reason());
        return NEVER;
    case WINDOW_TOO_SOON:
        return SOON;
    case WINDOW_BUSY:
        ++*skipped;
        say(STATE_BUSY, *skipped, "another user of CUPTI has it: windows are skipped until it gives it back");
        return AFTER_GAP;
    case WINDOW_OPENED:
        break;
    }
    window_announce();
    hand_over_devices();
    if (said_state != STATE_WORKING)
        say(STATE_WORKING, *skipped, "");
    u32 ended = ENDED_DURATION;
    u64 end = began_ms + window_ms;
    while (window_is_open() && !window_broken()) {
        hooks_scan();
        window_drain();
        if (is_leaving() || !handover_heard()) {
            ended = is_leaving() ? ENDED_EXIT : ENDED_UNHEARD;
            break;
        }
        if (window_cost_ns() > most_ns) {
            ended = ENDED_BUDGET;
            break;
        }
        u64 now = now_ms();
        if (now >= end) {
            if (!always)
                break;
            window_turn(*skipped);
            *skipped = 0;
            end = now + window_ms;
        }
        sleep_ms(SLICE_MS);
    }
    window_end(ended, *skipped);
    *skipped = 0;
    if (window_cost_ns() > most_ns)
        *debt_ms = (u64)((double)(window_cost_ns() - most_ns) / budget / 1e6);
    if (window_broken()) {
        turn_off("%s (%u)", window_broken(), cupti.version);
        return NEVER;
    }
    return AFTER_GAP;
}

static void *work(void *unused)
{
    (void)unused;
    u32 skipped = 0;
    bool heard = false;
    while (!is_leaving()) {
        hooks_scan(); /* before an agent comes too: what dlsym has answered by then stays in use */
        if (!handover_heard()) {
            heard = false;
            sleep_ms(IDLE_MS);
            continue;
        }
        u64 began = now_ms();
        if (!heard) { /* an agent came: it knows nothing of what was said before */
            heard = true;
            say(STATE_WAITING, 0, "");
            rest_until(began + random_below(window_ms));
            continue;
        }
        enum next next = SOON;
        u64 debt_ms = 0;
        if (begin_work() && settled(settle_ms)) {
            enum cupti_found found = find_cupti();
            next = found == CUPTI_FOUND     ? run_window(began, &skipped, &debt_ms)
                   : found == CUPTI_UNKNOWN ? NEVER
                                            : AFTER_GAP;
        }
        end_work();
        if (next == NEVER)
            break;
        if (next == SOON) {
            sleep_ms(SLICE_MS);
            continue;
        }
        /* Drawn anew each time, half to one and a half of the mean, so as not to beat with the program's own rhythm. */
        u64 gap = always ? IDLE_MS : period_ms - window_ms;
        rest_until(began + window_ms + gap / 2 + random_below(gap + 1) + debt_ms);
    }
    return NULL;
}

/* ---- fork ---- */

static __thread bool fork_locked;

/* So that no lock within CUPTI is held in the child. The lock is not tried for ever: a flush may take long. */
static void before_fork(void)
{
    fork_locked = window_lock_within(MOST_WAIT_MS);
}

static void after_fork_parent(void)
{
    if (fork_locked)
        window_unlock();
}

/* The child has no such thread, and CUDA does not work in it. */
static void after_fork_child(void)
{
    hooks_pass = true;
    after_fork_parent();
}

__attribute__((visibility("default"))) int InitializeInjection(void)
{
    static bool begun;
    Dl_info info;
    if (begun || !read_settings())
        return 1;
    begun = true;
    /* Its code stays mapped whatever the program closes: import slots lead to it. */
    if (!dladdr((void *)InitializeInjection, &info) || !dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE))
        return 1;
    if (pthread_atfork(before_fork, after_fork_parent, after_fork_child) != 0 || !leaving_watch())
        return 1;
    /* The program's signals are for its own threads; of a fault in this one its crash reporter shall tell. */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&others, faults[i]);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    pthread_t thread;
    int result = pthread_create(&thread, NULL, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (result == 0)
        pthread_detach(thread);
    else
        fprintf(stderr, "kdiff: device time is off in process %d: %s\n", (int)getpid(), strerror(result));
    return 1;
}
