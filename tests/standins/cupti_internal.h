/* What the files of the stand-in CUPTI share. */
#ifndef STANDIN_CUPTI_INTERNAL_H
#define STANDIN_CUPTI_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "cuda_abi.h"
#include "cupti.h"
#include "observer.h"

/* ---- settings and the driver: cupti.c ---- */

extern struct settings {
    uint32_t version, record_bytes, shift; /* shift: of every field behind the kind */
    uint64_t zero_every, reversed_every, drop_every, gone_every, launch_ns, flush_ms, enable_ms;
    bool strict;
} settings;

uint64_t cupti_time(uint64_t monotonic_ns);

static inline uint64_t host_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- records and buffers: cupti_buffers.c ---- */

extern struct observer records_observer;
bool callbacks_set(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete);
bool callbacks_known(void);
void buffers_flush(bool forced); /* calls back from here */
uint64_t dropped_take(void);
void buffers_forget(void);

/* In STRICT, as in the real library: where a thread that launches nothing ended a session, the threads that do are left
 * inside their launches, and records for another user share a correlation id, until cuptiFinalize. */
void session_begins(void);
void session_ends(void);
extern _Atomic int record_kind; /* what kernels are recorded as; 0: not at all */

#endif
