/* The runtime's calls: each makes exactly one call of the driver, or none when the arguments cannot be valid. */
#include <stdbool.h>

#include "runtime.h"

static bool empty(dim3 shape)
{
    return !shape.x || !shape.y || !shape.z;
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                          cudaStream_t stream, int per_thread)
{
    if (empty(grid) || empty(block))
        return runtime_result(cudaErrorInvalidConfiguration);
    if (runtime_ready() != cudaSuccess)
        return cudaErrorInitializationError;
    CUkernel kernel = runtime_kernel(function);
    if (!kernel)
        return runtime_result(cudaErrorInvalidDeviceFunction);
    return runtime_result(driver.launch[per_thread](kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                    (unsigned int)shared, stream, args, NULL));
}

static cudaError_t launch_ex(const cudaLaunchConfig_t *config, const void *function, void **args, int per_thread)
{
    if (!config || empty(config->gridDim) || empty(config->blockDim))
        return runtime_result(cudaErrorInvalidConfiguration);
    if (runtime_ready() != cudaSuccess)
        return cudaErrorInitializationError;
    CUkernel kernel = runtime_kernel(function);
    if (!kernel)
        return runtime_result(cudaErrorInvalidDeviceFunction);
    CUlaunchConfig lower = {
        .gridDimX = config->gridDim.x,
        .gridDimY = config->gridDim.y,
        .gridDimZ = config->gridDim.z,
        .blockDimX = config->blockDim.x,
        .blockDimY = config->blockDim.y,
        .blockDimZ = config->blockDim.z,
        .sharedMemBytes = (unsigned int)config->dynamicSmemBytes,
        .hStream = config->stream,
        .attrs = config->attrs,
        .numAttrs = config->numAttrs,
    };
    return runtime_result(driver.launch_ex[per_thread](&lower, kernel, args, NULL));
}

/* Only after the driver is open is there an entry point to call. */
#define CALL(call) (runtime_ready() == cudaSuccess ? runtime_result(call) : cudaErrorInitializationError)

/* ---- launches ---- */

EXPORT cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                                    cudaStream_t stream)
{
    return launch(function, grid, block, args, shared, stream, 0);
}

/* What nvcc 13's launches call. As in the real runtime it jumps to cudaLaunchKernel, with the arguments in place: who
 * probes both sees one launch twice. */
extern __typeof__(cudaLaunchKernel) launch_kernel_here __attribute__((alias("cudaLaunchKernel"), visibility("hidden")));
__asm__(".text\n"
        ".globl __cudaLaunchKernel\n"
#ifdef STANDIN_STATIC
        ".hidden __cudaLaunchKernel\n"
#endif
        ".type __cudaLaunchKernel, @function\n"
        "__cudaLaunchKernel: jmp launch_kernel_here\n"
        ".size __cudaLaunchKernel, . - __cudaLaunchKernel\n");

EXPORT cudaError_t cudaLaunchKernel_ptsz(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                                         cudaStream_t stream)
{
    return launch(function, grid, block, args, shared, stream, 1);
}

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **args)
{
    return launch_ex(config, function, args, 0);
}

EXPORT cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *config, const void *function, void **args)
{
    return launch_ex(config, function, args, 1);
}

EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    return CALL(driver.graph_launch[0](exec, stream));
}

EXPORT cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t exec, cudaStream_t stream)
{
    return CALL(driver.graph_launch[1](exec, stream));
}

/* ---- waiting ---- */

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return CALL(driver.stream_sync[0](stream));
}

EXPORT cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream)
{
    return CALL(driver.stream_sync[1](stream));
}

EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    return CALL(driver.context_sync());
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return CALL(driver.event_sync(event));
}

/* ---- streams, events, capture, graphs, device ---- */

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return CALL(driver.stream_create(stream, 0));
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return CALL(driver.stream_create(stream, flags));
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return CALL(driver.stream_destroy(stream));
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return CALL(driver.event_create(event, 0));
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return CALL(driver.event_record[0](event, stream));
}

EXPORT cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream)
{
    return CALL(driver.event_record[1](event, stream));
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    return CALL(driver.stream_wait(stream, event, flags));
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return CALL(driver.event_destroy(event));
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode)
{
    return CALL(driver.capture_begin[0](stream, mode));
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    return CALL(driver.capture_end[0](stream, graph));
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, int *status)
{
    return CALL(driver.capturing(stream, status));
}

EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    return CALL(driver.instantiate(exec, graph, flags));
}

EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return CALL(driver.exec_destroy(exec));
}

EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return CALL(driver.graph_destroy(graph));
}

EXPORT cudaError_t cudaSetDevice(int ordinal)
{
    CUdevice device;
    return CALL(driver.device(&device, ordinal));
}

EXPORT cudaError_t cudaGetDevice(int *ordinal)
{
    if (!ordinal)
        return runtime_result(cudaErrorInvalidValue);
    *ordinal = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    return CALL(driver.device_count(count));
}

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    return CALL(driver.version(version));
}

EXPORT cudaError_t cudaFree(void *memory) /* cudaFree(0) is the customary way to open the device */
{
    return memory ? runtime_result(cudaErrorInvalidValue) : runtime_ready();
}
