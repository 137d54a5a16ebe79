/* SPDX-License-Identifier: Apache-2.0 */
/* The host's clock as the whole library reads it, and how it waits. */
#pragma once
#include <time.h>

#include "device_wire.h"

static inline u64 now_ns(void) /* CLOCK_MONOTONIC */
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000u + (u64)now.tv_nsec;
}

static inline u64 now_ms(void)
{
    return now_ns() / 1000000;
}

static inline void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}
