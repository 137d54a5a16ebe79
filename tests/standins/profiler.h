/* A user of CUPTI in the traced program, as torch.profiler is one: what a session of it did. */
#ifndef STANDIN_PROFILER_H
#define STANDIN_PROFILER_H

#include <stdint.h>

/* How it treats CUPTI's subscription. */
enum profiler_manners {
    PROFILER_KEEPS,     /* takes it in its first session, for good */
    PROFILER_GIVES,     /* takes it in each session and gives it back */
    PROFILER_FINALIZES, /* the same, and ends with cuptiFinalize */
    PROFILER_BARE,      /* never asks for it */
};

struct profiler_session {
    uint64_t own, others;                   /* records of the kernel it asked for, and of others */
    uint64_t untimed;                       /* of its own, with a time of 0 or that end before they start */
    uint64_t shared;                        /* of its own, with the correlation id of the one before */
    uint64_t unknown_buffers, lost_buffers; /* returned but not given by it, and given by it but not returned */
    uint64_t on_ns, off_ns;                 /* CLOCK_MONOTONIC: enabled, about to be disabled */
    int subscribed, enabled;                /* results of the calls */
};

void profiler_start(enum profiler_manners manners, struct profiler_session *session);
void profiler_stop(enum profiler_manners manners, const char *kernel, struct profiler_session *session);

#endif
