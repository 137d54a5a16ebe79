/* Initialisation, contexts, and the table that the runtime resolves entry points through. */
#include <errno.h>
#include <string.h>

#include "driver.h"

#define DRIVER_VERSION 13000
#define DEVICE_UUID "kdiff stand-in 0" /* GPU_UUID in standins.py */

static int context_object; /* the one context: its address is the handle */
static bool primary_active, primary_in_making;
static bool initialised;
static _Thread_local CUcontext current;

static void sleep_whole_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

CUresult context_check(void)
{
    if (current)
        return CUDA_SUCCESS;
    return __atomic_load_n(&initialised, __ATOMIC_ACQUIRE) ? CUDA_ERROR_INVALID_CONTEXT
                                                            : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuInit(unsigned int flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    device_lock();
    if (!initialised) {
        sleep_whole_ms(env_number("KDIFF_STANDIN_INIT_MS", 150));
        truth_open();
        modules_open();
        device_open();
        __atomic_store_n(&initialised, true, __ATOMIC_RELEASE);
    }
    device_unlock();
    injection_load();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    *count = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    *device = 0;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult device_uuid(void *uuid, CUdevice device)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!uuid || device != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid, DEVICE_UUID, 16);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(void *uuid, CUdevice device)
{
    return device_uuid(uuid, device);
}

EXPORT CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device)
{
    return device_uuid(uuid, device);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    (void)flags;
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context || device != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *context = current = &context_object;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!context || device != 0)
        return CUDA_ERROR_INVALID_VALUE;
    long ms = env_number("KDIFF_STANDIN_CONTEXT_MS", 0);
    device_lock();
    bool makes = !primary_active && !primary_in_making;
    primary_in_making |= makes && ms;
    device_unlock();
    if (makes) {
        sleep_whole_ms(ms);
        device_lock();
        primary_in_making = false;
        primary_active = true;
        device_unlock();
    }
    *context = &context_object;
    return CUDA_SUCCESS;
}

/* The device lock is held. */
bool context_in_making(void)
{
    return primary_in_making;
}

/* KDIFF_STANDIN_CONTEXT_HIDDEN: as for a context that the program made itself. */
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!flags || !active || device != 0)
        return CUDA_ERROR_INVALID_VALUE;
    device_lock();
    *flags = 0;
    *active = primary_active && !env_number("KDIFF_STANDIN_CONTEXT_HIDDEN", 0);
    device_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = current;
    return CUDA_SUCCESS;
}

/* ---- entry points by name ---- */

/* Only the addresses matter here, so the prototypes need not. */
#define ENTRY_POINTS(PLAIN, BOTH) \
    PLAIN(cuInit, cuInit) PLAIN(cuDriverGetVersion, cuDriverGetVersion) PLAIN(cuDeviceGet, cuDeviceGet) \
    PLAIN(cuDeviceGetCount, cuDeviceGetCount) PLAIN(cuDeviceGetUuid, cuDeviceGetUuid_v2) \
    PLAIN(cuMemGetInfo, cuMemGetInfo_v2) PLAIN(cuCtxCreate, cuCtxCreate_v2) \
    PLAIN(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain) PLAIN(cuCtxSetCurrent, cuCtxSetCurrent) \
    PLAIN(cuCtxGetCurrent, cuCtxGetCurrent) PLAIN(cuModuleLoadData, cuModuleLoadData) \
    PLAIN(cuModuleLoadDataEx, cuModuleLoadDataEx) PLAIN(cuModuleLoadFatBinary, cuModuleLoadFatBinary) \
    PLAIN(cuModuleLoad, cuModuleLoad) PLAIN(cuModuleGetFunction, cuModuleGetFunction) \
    PLAIN(cuModuleUnload, cuModuleUnload) PLAIN(cuLibraryLoadData, cuLibraryLoadData) \
    PLAIN(cuLibraryGetKernel, cuLibraryGetKernel) PLAIN(cuKernelGetFunction, cuKernelGetFunction) \
    PLAIN(cuLibraryUnload, cuLibraryUnload) PLAIN(cuStreamCreate, cuStreamCreate) \
    PLAIN(cuStreamCreateWithPriority, cuStreamCreateWithPriority) PLAIN(cuStreamDestroy, cuStreamDestroy_v2) \
    BOTH(cuLaunchKernel, cuLaunchKernel) BOTH(cuLaunchKernelEx, cuLaunchKernelEx) \
    PLAIN(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel) BOTH(cuStreamSynchronize, cuStreamSynchronize) \
    PLAIN(cuCtxSynchronize, cuCtxSynchronize) PLAIN(cuEventCreate, cuEventCreate) \
    BOTH(cuEventRecord, cuEventRecord) BOTH(cuStreamWaitEvent, cuStreamWaitEvent) PLAIN(cuEventSynchronize, cuEventSynchronize) \
    PLAIN(cuEventDestroy, cuEventDestroy_v2) BOTH(cuStreamBeginCapture, cuStreamBeginCapture_v2) \
    BOTH(cuStreamEndCapture, cuStreamEndCapture) PLAIN(cuStreamIsCapturing, cuStreamIsCapturing) \
    PLAIN(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags) BOTH(cuGraphLaunch, cuGraphLaunch) \
    PLAIN(cuGraphExecDestroy, cuGraphExecDestroy) PLAIN(cuGraphDestroy, cuGraphDestroy)

#define DECLARE(name, symbol) extern char address_of_##symbol[] __asm__(#symbol);
#define DECLARE_BOTH(name, symbol) DECLARE(name, symbol) DECLARE(name, symbol##_ptsz)
ENTRY_POINTS(DECLARE, DECLARE_BOTH)

static const struct {
    const char *name;
    void *plain, *per_thread;
} entry_points[] = {
#define ROW(name, symbol) {#name, address_of_##symbol, address_of_##symbol},
#define ROW_BOTH(name, symbol) {#name, address_of_##symbol, address_of_##symbol##_ptsz},
    ENTRY_POINTS(ROW, ROW_BOTH)
};

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    (void)version;
    if (!symbol || !function)
        return CUDA_ERROR_INVALID_VALUE;
    *function = NULL;
    for (size_t i = 0; i < sizeof entry_points / sizeof *entry_points; i++)
        if (strcmp(entry_points[i].name, symbol) == 0)
            *function = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? entry_points[i].per_thread
                                                                              : entry_points[i].plain;
    if (status)
        *status = *function ? 0 : 1;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
