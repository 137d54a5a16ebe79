/* SPDX-License-Identifier: Apache-2.0 */
#include "settled.h"

#include <dlfcn.h>

#include "clock.h"
#include "hooks.h"

/*
 * A window that opens while another thread initialises the driver may leave that one waiting for ever within it (seen
 * with JAX, which does so from several threads as it loads its libraries); one that opens beside the making of a context
 * or its first launches may have that thread crash in CUPTI (seen with PyTorch where many programs start at once). So
 * none opens before the first cuInit is over and a context is there, nor soon after either or after a library was
 * loaded: each CUDA runtime linked into one calls cuInit again. Nor soon after another user's calls of CUPTI: it may be
 * about to make the next one.
 */
enum {
    UNSEEN = 30, /* times `settle_ms` after which a program may have contexts of its own making: no call tells */
    MOST_DEVICES = 64,
};

static struct {
    int (*init)(u32);
    int (*get_count)(int *);
    int (*get_device)(int *, int);
    int (*get_state)(int, u32 *, int *);
} driver;

static u64 initialised_ms, context_ms, active; /* `active`: a bit for each device whose primary context is there */

static bool find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return false;
    driver.init = (int (*)(u32))dlsym(library, "cuInit");
    driver.get_count = (int (*)(int *))dlsym(library, "cuDeviceGetCount");
    driver.get_device = (int (*)(int *, int))dlsym(library, "cuDeviceGet");
    driver.get_state = (int (*)(int, u32 *, int *))dlsym(library, "cuDevicePrimaryCtxGetState");
    dlclose(library);
    return driver.init && driver.get_count && driver.get_device && driver.get_state;
}

static void look_at_contexts(void)
{
    int count = 0;
    if (driver.get_count(&count) != 0)
        return;
    for (int i = 0; i < count && i < MOST_DEVICES; i++) {
        int device, is_active = 0;
        u32 flags;
        if (active >> i & 1 || driver.get_device(&device, i) != 0)
            continue;
        if (driver.get_state(device, &flags, &is_active) == 0 && is_active) {
            active |= 1ull << i;
            context_ms = now_ms();
        }
    }
}

bool settled(u64 settle_ms)
{
    if (!initialised_ms) {
        if (!find_driver())
            return false;
        driver.init(0); /* waits for one that is under way */
        initialised_ms = now_ms();
    }
    look_at_contexts();
    u64 now = now_ms();
    if (!active && now < initialised_ms + UNSEEN * settle_ms)
        return false;
    return now >= initialised_ms + settle_ms && now >= context_ms + settle_ms && now >= hooks_last_ms() + settle_ms;
}
