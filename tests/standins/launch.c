/* Launches. */
#include <stdlib.h>

#include "driver.h"

#define MAX_BLOCK_THREADS 1024u

static bool shape_valid(const struct launch *launch)
{
    const uint32_t *grid = launch->grid, *block = launch->block;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2])
        return false;
    if (block[0] > MAX_BLOCK_THREADS || block[1] > MAX_BLOCK_THREADS || block[2] > MAX_BLOCK_THREADS)
        return false;
    return (uint64_t)block[0] * block[1] * block[2] <= MAX_BLOCK_THREADS;
}

static CUresult launch_kernel(enum truth_api api, const struct launch *launch)
{
    uint64_t call = now_ns();
    CUresult status = context_check();
    if (status != CUDA_SUCCESS)
        return status;
    uint32_t correlation = observe_call();
    bool observed = false;
    uint64_t start = 0, end = 0;
    uint32_t graph = 0, node = 0;
    device_lock();
    struct kernel *kernel = kernel_of_handle(launch->function);
    struct stream *stream = stream_resolve(launch->stream, launch->per_thread);
    if (!kernel || !stream) {
        status = CUDA_ERROR_INVALID_HANDLE;
    } else if (!shape_valid(launch)) {
        status = CUDA_ERROR_INVALID_VALUE;
    } else if (stream->capture) {
        node = graph_node_count(stream->capture);
        graph = graph_capture(stream->capture, kernel, launch);
    } else {
        uint64_t now = device_admit(stream, call);
        /* Waiting drops the lock, and the module may have gone meanwhile. */
        kernel = kernel_of_handle(launch->function);
        if (kernel) {
            uint64_t duration = kernel_draw_ns(kernel);
            start = device_run(stream, now, duration);
            end = start + duration;
            device_queued(stream);
            observed = observe_execution(correlation, kernel, launch, stream, start, end, 0, 0);
        } else {
            status = CUDA_ERROR_INVALID_HANDLE;
        }
    }
    struct truth_record *record = truth_add(TRUTH_LAUNCH, api);
    if (record) {
        record->call_ns = call;
        record->start_ns = start;
        record->end_ns = end;
        record->stream = (uintptr_t)launch->stream;
        record->handle = (uintptr_t)launch->function;
        record->kernel = kernel ? kernel->name_line : -1;
        for (int i = 0; i < 3; i++) {
            record->grid[i] = launch->grid[i];
            record->block[i] = launch->block[i];
        }
        record->shared_bytes = launch->shared_bytes;
        record->status = status;
        record->graph = graph;
        record->node = node;
        record->module = kernel ? kernel->module_id : 0;
        record->queue = stream ? stream->number : 0;
        record->factor = kernel ? (float)kernel->factor : 1;
        record->flags = graph ? TRUTH_CAPTURED : 0;
        record->correlation = observed ? correlation : 0;
        record->return_ns = now_ns();
    }
    device_unlock();
    observe_launched(correlation);
    return status;
}

static CUresult launch_config(enum truth_api api, const CUlaunchConfig *config, CUfunction function,
                              bool per_thread)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    struct launch launch = {
        .function = function,
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .shared_bytes = config->sharedMemBytes,
        .stream = config->hStream,
        .per_thread = per_thread,
    };
    return launch_kernel(api, &launch);
}

/* ---- the driver's entry points ---- */

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                               unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                               CUstream stream, void **params, void **extra)
{
    (void)params, (void)extra;
    struct launch launch = {function, {gx, gy, gz}, {bx, by, bz}, shared, stream, false};
    return launch_kernel(API_LAUNCH_KERNEL, &launch);
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                                    unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                                    CUstream stream, void **params, void **extra)
{
    (void)params, (void)extra;
    struct launch launch = {function, {gx, gy, gz}, {bx, by, bz}, shared, stream, true};
    return launch_kernel(API_LAUNCH_KERNEL_PTSZ, &launch);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    (void)params, (void)extra;
    return launch_config(API_LAUNCH_KERNEL_EX, config, function, false);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **params,
                                      void **extra)
{
    (void)params, (void)extra;
    return launch_config(API_LAUNCH_KERNEL_EX_PTSZ, config, function, true);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                                          unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                                          CUstream stream, void **params)
{
    (void)params;
    struct launch launch = {function, {gx, gy, gz}, {bx, by, bz}, shared, stream, false};
    return launch_kernel(API_LAUNCH_COOPERATIVE, &launch);
}
