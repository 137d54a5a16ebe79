/* The part of CUDA's ABI that the stand-ins speak, declared here so that no CUDA header is needed.
 * Sizes and offsets are CUDA's own: probes read these structs from outside the process. */
#ifndef STANDIN_CUDA_ABI_H
#define STANDIN_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Everything else is hidden: an exported function that another one called through the PLT would count as two
 * API calls. In a static runtime nothing is exported, as in the real libcudart_static.a. */
#ifdef STANDIN_STATIC
#define EXPORT __attribute__((noinline, noclone))
#else
#define EXPORT __attribute__((visibility("default"), noinline, noclone))
#endif

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext;
typedef void *CUmodule;
typedef void *CUlibrary;
typedef void *CUfunction;
typedef void *CUkernel;
typedef void *CUstream;
typedef void *CUevent;
typedef void *CUgraph;
typedef void *CUgraphExec;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
};

#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)
#define CU_STREAM_NON_BLOCKING 0x1u
#define CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM 0x2u

typedef struct {
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    CUstream hStream;
    void *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

typedef struct {
    unsigned int x, y, z;
} dim3;

typedef int cudaError_t;
typedef void *cudaStream_t;
typedef void *cudaEvent_t;
typedef void *cudaGraph_t;
typedef void *cudaGraphExec_t;
typedef void *cudaFunction_t;
typedef void *cudaKernel_t;

enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDeviceFunction = 98,
};

typedef struct {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    void *attrs;
    unsigned int numAttrs;
} cudaLaunchConfig_t;

/* What nvcc hands to __cudaRegisterFatBinary. */
#define FATBIN_WRAPPER_MAGIC 0x466243b1
typedef struct {
    int magic, version;
    const void *data;
    void *filename_or_fatbins;
} fatbin_wrapper;

_Static_assert(sizeof(CUlaunchConfig) == 56 && offsetof(CUlaunchConfig, hStream) == 32, "CUlaunchConfig");
_Static_assert(sizeof(cudaLaunchConfig_t) == 56 && offsetof(cudaLaunchConfig_t, stream) == 32, "cudaLaunchConfig_t");
_Static_assert(sizeof(fatbin_wrapper) == 24, "fatbin_wrapper");

#endif
