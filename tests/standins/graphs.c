/* Stream capture and graphs. A graph is the list of kernels in the order they were captured. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define GRAPH_MAGIC 0x47524150u
#define EXEC_MAGIC 0x45584543u

struct node {
    struct kernel *kernel;
    struct launch launch;
};

/* Both a CUgraph and a CUgraphExec, told apart by the magic; an exec keeps its graph's id. */
struct graph {
    uint32_t magic;
    uint32_t id;
    uint32_t count, room;
    struct node *nodes;
    struct stream *captured[8]; /* while it is made: the stream that it began on, and those that joined */
};

static uint32_t graph_ids;

static struct graph *graph_new(uint32_t magic, uint32_t id)
{
    struct graph *graph = must(calloc(1, sizeof *graph));
    graph->magic = magic;
    graph->id = id;
    return graph;
}

static void graph_free(struct graph *graph)
{
    for (uint32_t i = 0; i < graph->count; i++)
        kernel_release(graph->nodes[i].kernel);
    graph->magic = 0;
    free(graph->nodes);
    free(graph);
}

uint32_t graph_capture(struct graph *graph, struct kernel *kernel, const struct launch *launch)
{
    if (graph->count == graph->room) {
        graph->room = graph->room ? graph->room * 2 : 16;
        graph->nodes = must(realloc(graph->nodes, graph->room * sizeof *graph->nodes));
    }
    kernel->references++;
    graph->nodes[graph->count++] = (struct node){.kernel = kernel, .launch = *launch};
    return graph->id;
}

CUresult graph_join(struct graph *graph, struct stream *stream)
{
    if (stream->capture)
        return stream->capture == graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof graph->captured / sizeof *graph->captured; i++)
        if (!graph->captured[i]) {
            graph->captured[i] = stream;
            stream->capture = graph;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

uint32_t graph_node_count(const struct graph *graph)
{
    return graph->count;
}

static void record_node(enum truth_api api, uint64_t call, uint64_t start, uint64_t end,
                        const struct graph *graph, uint32_t place, CUstream handle, const struct stream *stream,
                        uint32_t correlation)
{
    struct truth_record *record = truth_add(TRUTH_GRAPH_NODE, api);
    if (!record)
        return;
    const struct node *node = &graph->nodes[place];
    record->call_ns = call;
    record->start_ns = start;
    record->end_ns = end;
    record->stream = (uintptr_t)handle;
    record->handle = (uintptr_t)node->launch.function;
    record->kernel = node->kernel->name_line;
    memcpy(record->grid, node->launch.grid, sizeof record->grid);
    memcpy(record->block, node->launch.block, sizeof record->block);
    record->shared_bytes = node->launch.shared_bytes;
    record->graph = graph->id;
    record->node = place;
    record->module = node->kernel->module_id;
    record->queue = stream->number;
    record->factor = (float)node->kernel->factor;
    record->correlation = correlation;
}

static CUresult graph_launch(enum truth_api api, CUgraphExec exec, CUstream handle, bool per_thread)
{
    uint64_t call = now_ns(), first_start = 0, end = 0;
    CUresult status = context_check();
    if (status != CUDA_SUCCESS)
        return status;
    uint32_t correlation = observe_call();
    bool observed = false;
    struct graph *graph = exec;
    device_lock();
    struct stream *stream = stream_resolve(handle, per_thread);
    if (!graph || graph->magic != EXEC_MAGIC || !stream) {
        status = CUDA_ERROR_INVALID_HANDLE;
    } else if (stream->capture) {
        status = CUDA_ERROR_NOT_SUPPORTED;
    } else {
        uint64_t now = device_admit(stream, call);
        for (uint32_t i = 0; i < graph->count; i++) {
            uint64_t duration = kernel_draw_ns(graph->nodes[i].kernel);
            uint64_t start = device_run(stream, now, duration);
            end = start + duration;
            if (i == 0)
                first_start = start;
            observed = observe_execution(correlation, graph->nodes[i].kernel, &graph->nodes[i].launch, stream, start,
                                         end, graph->id, i);
            record_node(api, call, start, end, graph, i, handle, stream, observed ? correlation : 0);
        }
        device_queued(stream);
    }
    struct truth_record *record = truth_add(TRUTH_GRAPH_LAUNCH, api);
    if (record) {
        record->call_ns = call;
        record->start_ns = first_start;
        record->end_ns = end;
        record->stream = (uintptr_t)handle;
        record->handle = (uintptr_t)exec;
        record->status = status;
        record->graph = status == CUDA_SUCCESS ? graph->id : 0;
        record->queue = stream ? stream->number : 0;
        record->correlation = observed ? correlation : 0;
        record->return_ns = now_ns();
    }
    device_unlock();
    observe_launched(correlation);
    return status;
}

static CUresult capture_begin(CUstream handle, bool per_thread)
{
    CUresult status = CUDA_SUCCESS;
    device_lock();
    struct stream *stream = stream_resolve(handle, per_thread);
    if (!stream)
        status = CUDA_ERROR_INVALID_HANDLE;
    else if (stream->number == 0 || stream->capture)
        status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    else
        status = graph_join(graph_new(GRAPH_MAGIC, ++graph_ids), stream);
    device_unlock();
    return status;
}

static CUresult capture_end(CUstream handle, CUgraph *out, bool per_thread)
{
    CUresult status = CUDA_SUCCESS;
    device_lock();
    struct stream *stream = stream_resolve(handle, per_thread);
    struct graph *graph = stream ? stream->capture : NULL;
    if (!graph || !out || graph->captured[0] != stream) {
        status = CUDA_ERROR_INVALID_VALUE;
    } else {
        bool broken = false;
        for (size_t i = 0; i < sizeof graph->captured / sizeof *graph->captured && graph->captured[i]; i++) {
            broken |= graph->captured[i]->capture_broken;
            graph->captured[i]->capture_broken = false;
            graph->captured[i]->capture = NULL;
            graph->captured[i] = NULL;
        }
        *out = graph;
        if (broken) {
            graph_free(*out);
            *out = NULL;
            status = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        }
    }
    device_unlock();
    return status;
}

static CUresult graph_destroy(struct graph *graph, uint32_t magic)
{
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    device_lock();
    if (graph && graph->magic == magic) {
        graph_free(graph);
        status = CUDA_SUCCESS;
    }
    device_unlock();
    return status;
}

/* ---- the driver's entry points ---- */

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    (void)mode;
    return capture_begin(stream, false);
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
    (void)mode;
    return capture_begin(stream, true);
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return capture_end(stream, graph, false);
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return capture_end(stream, graph, true);
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    device_lock();
    struct stream *stream = stream_resolve(handle, false);
    if (stream && status)
        *status = !stream->capture ? 0 : stream->capture_broken ? 2 : 1;
    device_unlock();
    return stream && status ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph handle, unsigned long long flags)
{
    (void)flags;
    struct graph *graph = handle;
    CUresult status = CUDA_ERROR_INVALID_VALUE;
    device_lock();
    if (exec && graph && graph->magic == GRAPH_MAGIC) {
        struct graph *copy = graph_new(EXEC_MAGIC, graph->id);
        for (uint32_t i = 0; i < graph->count; i++)
            graph_capture(copy, graph->nodes[i].kernel, &graph->nodes[i].launch);
        *exec = copy;
        status = CUDA_SUCCESS;
    }
    device_unlock();
    return status;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return graph_launch(API_GRAPH_LAUNCH, exec, stream, false);
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return graph_launch(API_GRAPH_LAUNCH_PTSZ, exec, stream, true);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    return graph_destroy(exec, EXEC_MAGIC);
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    return graph_destroy(graph, GRAPH_MAGIC);
}
