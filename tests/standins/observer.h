/* What the stand-in driver tells the stand-in CUPTI: both include this. */
#ifndef STANDIN_OBSERVER_H
#define STANDIN_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

/* A kernel that was queued on the device; times on CLOCK_MONOTONIC, the end usually in the future. */
struct execution {
    uint64_t start_ns, end_ns;
    const char *name; /* lives as long as the process */
    uint32_t correlation, queue;
    uint32_t graph, node; /* graph 0: launched by itself */
    uint32_t grid[3], block[3];
    uint32_t dynamic_shared, static_shared, local_bytes, registers;
};

/* One for each copy of CUPTI in the process. */
struct observer {
    void (*ran)(const struct execution *execution); /* with the device lock held: makes no calls of its own; NULL: none */
    void (*launched)(void);                         /* at the end of the launch call that ran those, no lock held */
    bool on;                                        /* the driver's */
    struct observer *next;                          /* the driver's */
};

/* Once this returns no `ran` is running nor, if it was switched off, will begin. */
void kdiffStandinObserve(struct observer *observer, bool on);

/* The one subscription of the process; false if it is another's, or not the owner's to give back. */
bool kdiffStandinSubscribe(const void *owner);
bool kdiffStandinUnsubscribe(const void *owner);

/* Device memory that CUPTI takes (or, negative, gives back). */
void kdiffStandinTakeMemory(int64_t bytes);

#endif
