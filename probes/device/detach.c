/* SPDX-License-Identifier: Apache-2.0 */
#include "detach.h"

#include "clock.h"

/*
 * For CUPTI a thread that was inside a call of the driver as a window closed stays inside that call: what it launches
 * for a later user shares one correlation id, and PyTorch's profiler fails. Only cuptiFinalize clears that. It is safe
 * at the end of such a call, as CUPTI's documentation has it, so one of another thread is waited for; where none comes
 * no thread is at work in CUPTI either, but for one that waits in a long call.
 */
enum { PATIENCE_MS = 50, MOST_MS = 5000, DOMAIN_DRIVER_API = 1, SITE_EXIT = 1 };

enum { RESTING, WAITING, DETACHING, DETACHED };
static int state;
static int (*finalize)(void);

static bool step(int from, int to)
{
    return __atomic_compare_exchange_n(&state, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static void at_call(void *data, int domain, u32 id, const void *info)
{
    (void)data, (void)domain, (void)id;
    const int *site = info; /* CUpti_CallbackData begins with it */
    if (*site == SITE_EXIT && step(WAITING, DETACHING)) {
        finalize();
        __atomic_store_n(&state, DETACHED, __ATOMIC_RELEASE);
    }
}

void detach(const struct cupti *cupti)
{
    void *subscriber;
    finalize = cupti->finalize;
    state = RESTING;
    if (cupti->subscribe(&subscriber, at_call, NULL) != CUPTI_OK)
        return;
    state = WAITING;
    cupti->enable_domain(1, subscriber, DOMAIN_DRIVER_API);
    for (int waited = 0; waited < PATIENCE_MS && __atomic_load_n(&state, __ATOMIC_ACQUIRE) == WAITING; waited++)
        sleep_ms(1);
    if (step(WAITING, RESTING)) {
        cupti->enable_domain(0, subscriber, DOMAIN_DRIVER_API);
        cupti->unsubscribe(subscriber);
        finalize();
        return;
    }
    /* Not for ever: this thread may have the loader's lock, as a constructor does, and the other one may want it. */
    for (int waited = 0; waited < MOST_MS && __atomic_load_n(&state, __ATOMIC_ACQUIRE) == DETACHING; waited++)
        sleep_ms(1);
}
