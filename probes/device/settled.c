/* SPDX-License-Identifier: Apache-2.0 */
#include "settled.h"

#include "clock.h"
#include "driver.h"
#include "hooks.h"

/*
 * A window that opens while another thread initialises the driver may leave that one waiting for ever within it (seen
 * with JAX, which does so from several threads as it loads its libraries); one that opens beside the making of a context
 * or its first launches may have that thread crash in CUPTI (seen with PyTorch where many programs start at once). So
 * none opens before the first cuInit is over and a context is there, nor soon after either or after a library was
 * loaded: each CUDA runtime linked into one calls cuInit again. Nor soon after another user's calls of CUPTI: it may be
 * about to make the next one.
 */
enum { UNSEEN = 30 /* times `settle_ms` after which a program may have contexts of its own making: no call tells */ };

static u64 initialised_ms, context_ms, active; /* `active`: a bit for each device whose primary context is there */

static void look_at_contexts(const struct driver *cuda)
{
    int count = 0;
    if (cuda->get_count(&count) != 0)
        return;
    for (int i = 0; i < count && i < MOST_DEVICES; i++) {
        int device, is_active = 0;
        u32 flags;
        if (active >> i & 1 || cuda->get_device(&device, i) != 0)
            continue;
        if (cuda->get_primary_context(device, &flags, &is_active) == 0 && is_active) {
            active |= 1ull << i;
            context_ms = now_ms();
        }
    }
}

bool settled(u64 settle_ms)
{
    const struct driver *cuda = driver();
    if (!cuda)
        return false;
    if (!initialised_ms) {
        cuda->init(0); /* waits for one that is under way */
        initialised_ms = now_ms();
    }
    look_at_contexts(cuda);
    u64 now = now_ms();
    if (!active && now < initialised_ms + UNSEEN * settle_ms)
        return false;
    return now >= initialised_ms + settle_ms && now >= context_ms + settle_ms && now >= hooks_last_ms() + settle_ms;
}
