/* What really happened, written by the stand-in driver for tests to compare a recording with.
 * standins.py reads this layout: change both together. */
#ifndef STANDIN_TRUTH_H
#define STANDIN_TRUTH_H

#include <stdbool.h>
#include <stdint.h>

enum truth_kind {
    TRUTH_LAUNCH = 1,
    TRUTH_GRAPH_LAUNCH = 2,
    TRUTH_SYNC = 3,
    TRUTH_GRAPH_NODE = 4, /* one kernel that a graph launch executed; not a call */
    TRUTH_MODULE_LOAD = 5,
    TRUTH_MODULE_UNLOAD = 6,
};

enum truth_api {
    API_NONE = 0,
    API_LAUNCH_KERNEL,
    API_LAUNCH_KERNEL_PTSZ,
    API_LAUNCH_KERNEL_EX,
    API_LAUNCH_KERNEL_EX_PTSZ,
    API_LAUNCH_COOPERATIVE,
    API_GRAPH_LAUNCH,
    API_GRAPH_LAUNCH_PTSZ,
    API_STREAM_SYNC,
    API_STREAM_SYNC_PTSZ,
    API_CTX_SYNC,
    API_EVENT_SYNC,
    API_MODULE_LOAD_DATA,
    API_MODULE_LOAD_DATA_EX,
    API_MODULE_LOAD_FATBIN,
    API_MODULE_LOAD,
    API_MODULE_UNLOAD,
    API_LIBRARY_LOAD_DATA,
    API_LIBRARY_UNLOAD,
};

enum truth_flag { TRUTH_CAPTURED = 1 };

struct truth_header {
    char magic[8]; /* KDIFFTR1 */
    uint32_t header_bytes, record_bytes;
    uint64_t count; /* grows while the process runs: the file is readable after any death */
    uint64_t lost;  /* records that did not fit */
    int64_t realtime_minus_monotonic_ns;
    uint32_t pid, reserved[5];
};

struct truth_record {
    uint64_t call_ns, return_ns; /* CLOCK_MONOTONIC inside the driver's entry point */
    uint64_t start_ns, end_ns;   /* on the device; 0 if nothing executed; a sync: end of what it waited for */
    uint64_t stream;             /* as passed */
    uint64_t handle;             /* CUfunction, CUgraphExec or CUmodule, as passed */
    int32_t kernel;              /* line in the names file, -1 if none */
    uint32_t pid, tid;
    uint32_t grid[3], block[3], shared_bytes;
    int32_t status;
    uint32_t graph;  /* id of the graph launched, or captured into; 0 if none */
    uint32_t node;   /* place in the graph */
    uint32_t module; /* counts module loads: tells a swapped kernel from its predecessor of the same name */
    uint32_t queue;  /* the stream it resolved to: 0 is the legacy default stream */
    float factor;    /* slowdown in force */
    uint8_t kind, api;
    uint16_t flags;
    uint32_t correlation; /* CUPTI's number of the call; 0: what it ran was not observed */
};

_Static_assert(sizeof(struct truth_header) == 64, "truth_header");
_Static_assert(sizeof(struct truth_record) == 120, "truth_record");

extern bool truth_on;

/* Call all of these with the device lock held. */
void truth_open(void);
int truth_name(const char *name); /* the name's line, the same for the same name */
const char *truth_name_text(int line);
struct truth_record *truth_add(enum truth_kind kind, enum truth_api api); /* NULL if off or full */

#endif
