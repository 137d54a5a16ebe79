/* The runtime's ground: opening the driver, errors, and the functions that nvcc's code registers.
 * Fat binaries are loaded on the first use of one of their kernels, as the real runtime does by default. */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FUNCTIONS 4096 /* a power of two */

struct driver driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t open_error;
static CUcontext context;
static _Thread_local bool bound;
static _Thread_local cudaError_t last_error;

/* ---- the driver ---- */

typedef CUresult (*resolver)(const char *, void **, int, uint64_t, int *);

static const struct {
    const char *name;
    size_t offset; /* in struct driver */
    bool pair;
} wanted[] = {
#define ONE(name, field) {name, offsetof(struct driver, field), false}
#define PAIR(name, field) {name, offsetof(struct driver, field), true}
    ONE("cuInit", init),
    ONE("cuDriverGetVersion", version),
    ONE("cuDeviceGetCount", device_count),
    ONE("cuDeviceGet", device),
    ONE("cuDevicePrimaryCtxRetain", primary_context),
    ONE("cuCtxSetCurrent", set_current),
    ONE("cuLibraryLoadData", library_load),
    ONE("cuLibraryGetKernel", library_kernel),
    ONE("cuLibraryUnload", library_unload),
    PAIR("cuLaunchKernel", launch),
    PAIR("cuLaunchKernelEx", launch_ex),
    ONE("cuStreamCreate", stream_create),
    ONE("cuStreamDestroy", stream_destroy),
    PAIR("cuStreamSynchronize", stream_sync),
    ONE("cuCtxSynchronize", context_sync),
    ONE("cuEventCreate", event_create),
    PAIR("cuEventRecord", event_record),
    ONE("cuEventSynchronize", event_sync),
    ONE("cuStreamWaitEvent", stream_wait),
    ONE("cuEventDestroy", event_destroy),
    PAIR("cuStreamBeginCapture", capture_begin),
    PAIR("cuStreamEndCapture", capture_end),
    ONE("cuStreamIsCapturing", capturing),
    ONE("cuGraphInstantiateWithFlags", instantiate),
    PAIR("cuGraphLaunch", graph_launch),
    ONE("cuGraphExecDestroy", exec_destroy),
    ONE("cuGraphDestroy", graph_destroy),
};

static bool resolve_all(resolver resolve)
{
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        for (int form = 0; form <= wanted[i].pair; form++) {
            void *function = NULL;
            uint64_t flags = form ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
            if (resolve(wanted[i].name, &function, 13000, flags, NULL) != CUDA_SUCCESS)
                return false;
            memcpy((char *)&driver + wanted[i].offset + (size_t)form * sizeof function, &function, sizeof function);
        }
    return true;
}

static void open_driver(void)
{
    open_error = cudaErrorInitializationError;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "stand-in runtime: %s\n", dlerror());
        return;
    }
    resolver resolve;
    *(void **)&resolve = dlsym(library, "cuGetProcAddress_v2");
    CUdevice device;
    if (resolve && resolve_all(resolve) && driver.init(0) == CUDA_SUCCESS &&
        driver.device(&device, 0) == CUDA_SUCCESS && driver.primary_context(&context, device) == CUDA_SUCCESS)
        open_error = cudaSuccess;
}

cudaError_t runtime_ready(void)
{
    if (bound)
        return cudaSuccess;
    pthread_once(&once, open_driver);
    if (open_error == cudaSuccess && driver.set_current(context) == CUDA_SUCCESS) {
        bound = true;
        return cudaSuccess;
    }
    return runtime_result(cudaErrorInitializationError);
}

cudaError_t runtime_result(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

/* ---- registration ---- */

struct fat_binary {
    const void *image;
    CUlibrary library; /* NULL until first use */
};

/* Open addressing over host functions, and over the handles of loaded kernels, which may stand for them in a launch.
 * Keys are only ever added, so a launch reads the table without the lock; `kernel` is NULL until first use and again
 * after unregistration. */
struct function {
    const void *host;
    CUkernel kernel;
    struct fat_binary *binary;
    char *name;
};

static struct function functions[MAX_FUNCTIONS];
static size_t function_count;
static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;

static struct function *function_slot(const void *host)
{
    size_t slot = (size_t)((uintptr_t)host * 0x9e3779b97f4a7c15u >> 48) & (MAX_FUNCTIONS - 1);
    for (;;) {
        const void *key = __atomic_load_n(&functions[slot].host, __ATOMIC_ACQUIRE);
        if (key == host || !key)
            return &functions[slot];
        slot = (slot + 1) & (MAX_FUNCTIONS - 1);
    }
}

/* With the registry locked. */
static void add_function(const void *host, struct fat_binary *binary, char *name, CUkernel kernel)
{
    struct function *function = function_slot(host);
    if (!function->host && ++function_count == MAX_FUNCTIONS) {
        fprintf(stderr, "stand-in runtime: too many kernels\n");
        abort();
    }
    free(function->name);
    function->name = name;
    function->binary = binary;
    __atomic_store_n(&function->kernel, kernel, __ATOMIC_RELEASE);
    __atomic_store_n(&function->host, host, __ATOMIC_RELEASE);
}

static CUkernel load_kernel(struct function *function)
{
    CUkernel kernel = NULL;
    pthread_mutex_lock(&registry);
    struct fat_binary *binary = function->binary;
    if (binary && !binary->library &&
        driver.library_load(&binary->library, binary->image, NULL, NULL, 0, NULL, NULL, 0) != CUDA_SUCCESS)
        binary->library = NULL;
    if (binary && binary->library && driver.library_kernel(&kernel, binary->library, function->name) != CUDA_SUCCESS)
        kernel = NULL;
    __atomic_store_n(&function->kernel, kernel, __ATOMIC_RELEASE);
    if (kernel)
        add_function(kernel, binary, NULL, kernel);
    pthread_mutex_unlock(&registry);
    return kernel;
}

CUkernel runtime_kernel(const void *host)
{
    struct function *function = function_slot(host);
    CUkernel kernel = __atomic_load_n(&function->kernel, __ATOMIC_ACQUIRE);
    return kernel ? kernel : load_kernel(function);
}

/* ---- entry points ---- */

EXPORT void **__cudaRegisterFatBinary(void *wrapper)
{
    const fatbin_wrapper *fatbin = wrapper;
    if (fatbin->magic != FATBIN_WRAPPER_MAGIC)
        return NULL;
    struct fat_binary *binary = calloc(1, sizeof *binary);
    if (binary)
        binary->image = fatbin->data;
    return (void **)binary;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device_function, const char *device_name,
                                   int thread_limit, void *tid, void *bid, void *block, void *grid, int *warp_size)
{
    (void)device_function, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp_size;
    pthread_mutex_lock(&registry);
    add_function(host, (struct fat_binary *)handle, strdup(device_name), NULL);
    pthread_mutex_unlock(&registry);
}

EXPORT void __cudaUnregisterFatBinary(void **handle)
{
    struct fat_binary *binary = (struct fat_binary *)handle;
    pthread_mutex_lock(&registry);
    for (size_t i = 0; i < MAX_FUNCTIONS; i++)
        if (functions[i].binary == binary) {
            functions[i].binary = NULL;
            __atomic_store_n(&functions[i].kernel, NULL, __ATOMIC_RELEASE);
        }
    if (binary && binary->library)
        driver.library_unload(binary->library);
    free(binary);
    pthread_mutex_unlock(&registry);
}

EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *host)
{
    if (runtime_ready() != cudaSuccess)
        return cudaErrorInitializationError;
    *function = runtime_kernel(host);
    return *function ? cudaSuccess : runtime_result(cudaErrorInvalidDeviceFunction);
}

EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    if (runtime_ready() != cudaSuccess)
        return cudaErrorInitializationError;
    *kernel = runtime_kernel(host);
    return *kernel ? cudaSuccess : runtime_result(cudaErrorInvalidDeviceFunction);
}

EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}
