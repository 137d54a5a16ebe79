/* What the files of the stand-in driver share. */
#ifndef STANDIN_DRIVER_H
#define STANDIN_DRIVER_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "cuda_abi.h"
#include "observer.h"
#include "truth.h"

/* ---- small helpers ---- */

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

long env_number(const char *name, long fallback); /* decimal, or hex with 0x */
void *must(void *pointer);                        /* ends the process when out of memory */

/* ---- kernels: modules.c ---- */

/* A kernel outlives its module while a graph still holds it. Guarded by the device lock. */
struct kernel {
    char *name;
    double median_ns, sigma, tail_probability, tail_factor;
    uint64_t quantum_ns;
    double factor; /* slowdown in force */
    uint64_t random;
    double spare_normal;
    bool has_spare_normal;
    int name_line;
    uint32_t module_id;
    int references;
};

struct kernel *kernel_of_handle(CUfunction handle); /* NULL if the handle is not alive */
uint64_t kernel_draw_ns(struct kernel *kernel);
void kernel_release(struct kernel *kernel);
void modules_open(void);

/* ---- the device: device.c ---- */

struct graph;

/* In-order queue of work. Guarded by the device lock. */
struct stream {
    uint32_t magic;
    uint32_t number; /* 0 is the legacy default stream */
    bool blocking;   /* ordered against the legacy default stream */
    bool capture_broken;
    struct graph *capture; /* not NULL while capturing */
    uint64_t busy_until;
    uint64_t *queue_ends; /* when each of the last queue_depth launches ends */
    uint64_t launches;
};

void device_open(void);
void device_lock(void);
void device_unlock(void);
struct stream *stream_resolve(CUstream handle, bool per_thread); /* NULL if the handle is not alive */
struct stream *stream_new(unsigned int flags);
void stream_free(struct stream *stream);
uint64_t stream_end(const struct stream *stream); /* when all work queued so far ends */
uint64_t device_end(void);
uint64_t device_run(struct stream *stream, uint64_t now, uint64_t duration); /* queues work, returns its start */
uint64_t device_admit(struct stream *stream, uint64_t now); /* waits for a free place; drops the lock meanwhile */
void device_queued(struct stream *stream); /* the work of one call has been queued: it takes one place */
void wait_until(uint64_t end);

/* ---- capture and graphs: graphs.c ---- */

struct launch {
    CUfunction function;
    uint32_t grid[3], block[3], shared_bytes;
    CUstream stream;
    bool per_thread; /* a null stream means the thread's own default stream */
};

uint32_t graph_capture(struct graph *graph, struct kernel *kernel, const struct launch *launch);
uint32_t graph_node_count(const struct graph *graph);
CUresult graph_join(struct graph *graph, struct stream *stream); /* the stream is captured too, until the capture ends */

/* ---- profiling: observe.c ---- */

void injection_load(void);
uint32_t observe_call(void); /* the call's correlation id; 0 while nobody observes */
/* With the device lock held; false if nobody observes any more. */
bool observe_execution(uint32_t correlation, const struct kernel *kernel, const struct launch *launch,
                       const struct stream *stream, uint64_t start, uint64_t end, uint32_t graph, uint32_t node);
void observe_launched(uint32_t correlation); /* as the call ends, no lock held */

/* ---- contexts: context.c ---- */

CUresult context_check(void); /* CUDA_SUCCESS if this thread may make calls that need a context */
bool context_in_making(void);

#endif
