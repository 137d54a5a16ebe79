/* What the files of the workload share. */
#ifndef STANDIN_WORKLOAD_H
#define STANDIN_WORKLOAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "cuda_abi.h"

/* ---- CUDA, as the workload calls it ---- */

cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t cudaLaunchKernel_ptsz(const void *, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t __cudaGetKernel(cudaKernel_t *, const void *);
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *, void **);
cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t *, const void *, void **);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaStreamCreate(cudaStream_t *);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaEventCreate(cudaEvent_t *);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventRecord_ptsz(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned int);
cudaError_t cudaStreamBeginCapture(cudaStream_t, int);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGetFuncBySymbol(cudaFunction_t *, const void *);
cudaError_t cudaFree(void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaUnregisterFatBinary(void **);

#define RUNTIME_FUNCTIONS(F) \
    F(cudaLaunchKernel) F(cudaLaunchKernel_ptsz) F(cudaLaunchKernelExC) F(cudaLaunchKernelExC_ptsz) \
    F(cudaGraphLaunch) F(cudaGraphLaunch_ptsz) F(cudaStreamSynchronize) F(cudaStreamSynchronize_ptsz) \
    F(cudaDeviceSynchronize) F(cudaEventSynchronize) F(cudaStreamCreate) F(cudaStreamDestroy) F(cudaEventCreate) \
    F(cudaEventRecord) F(cudaEventRecord_ptsz) F(cudaEventDestroy) F(cudaStreamWaitEvent) F(cudaStreamBeginCapture) \
    F(cudaStreamEndCapture) F(cudaGraphInstantiate) F(cudaGraphExecDestroy) F(cudaGraphDestroy) \
    F(cudaGetFuncBySymbol) F(__cudaGetKernel) F(__cudaLaunchKernel) F(cudaFree) F(__cudaRegisterFatBinary) F(__cudaRegisterFatBinaryEnd) \
    F(__cudaRegisterFunction) F(__cudaUnregisterFatBinary)

CUresult cuInit(unsigned int);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuModuleUnload(CUmodule);
CUresult cuStreamCreate(CUstream *, unsigned int);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, unsigned int, CUstream, void **, void **);
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                             unsigned int, unsigned int, CUstream, void **, void **);
CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamSynchronize_ptsz(CUstream);
CUresult cuCtxSynchronize(void);
CUresult cuEventCreate(CUevent *, unsigned int);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventRecord_ptsz(CUevent, CUstream);
CUresult cuEventSynchronize(CUevent);
CUresult cuEventDestroy_v2(CUevent);
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned int);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphLaunch_ptsz(CUgraphExec, CUstream);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuGraphDestroy(CUgraph);
CUresult kdiffStandinSetFactor(const char *, double);

#define DRIVER_FUNCTIONS(F) \
    F(cuInit) F(cuDeviceGet) F(cuDevicePrimaryCtxRetain) F(cuCtxSetCurrent) F(cuModuleLoadData) \
    F(cuModuleGetFunction) F(cuModuleUnload) F(cuStreamCreate) F(cuStreamDestroy_v2) F(cuLaunchKernel) \
    F(cuLaunchKernel_ptsz) F(cuLaunchKernelEx) F(cuLaunchKernelEx_ptsz) F(cuStreamSynchronize) \
    F(cuStreamSynchronize_ptsz) F(cuCtxSynchronize) F(cuEventCreate) F(cuEventRecord) F(cuEventRecord_ptsz) \
    F(cuEventSynchronize) F(cuEventDestroy_v2) F(cuStreamWaitEvent) F(cuStreamBeginCapture_v2) F(cuStreamEndCapture) \
    F(cuGraphInstantiateWithFlags) F(cuGraphLaunch) F(cuGraphLaunch_ptsz) F(cuGraphExecDestroy) \
    F(cuGraphDestroy) F(kdiffStandinSetFactor)

#define FIELD(name) __typeof__(name) *name;
struct runtime {
    RUNTIME_FUNCTIONS(FIELD)
};
struct cuda_driver {
    DRIVER_FUNCTIONS(FIELD)
};

extern struct runtime rt;
extern struct cuda_driver cu;

/* ---- options: workload_options.c ---- */

enum api { API_RUNTIME, API_DRIVER, API_RUNTIME_EX, API_DRIVER_EX, API_COUNT, API_MIXED = API_COUNT };
enum sync_kind { SYNC_STREAM, SYNC_DEVICE, SYNC_EVENT };
enum stream_kind { STREAM_OWN, STREAM_LEGACY, STREAM_PER_THREAD };

struct kernel {
    char *given, *name; /* as on the command line, and after --name-length */
    double median_us, sigma, tail_probability, tail_factor, quantum_ns;
    dim3 grid, block;
    double weight;
    /* The loaded kernel; replaced by a swap, under the write lock. */
    double factor;
    char *live_name, *image;
    CUmodule module;
    CUfunction function;
    fatbin_wrapper wrapper;
    void **fatbin;
    const void *stub;
};

struct change {
    char *kernel, *new_name; /* new_name is NULL to keep the name */
    double factor;
    bool swap;      /* unload the module and load another, rather than change the kernel in place */
    bool by_launch; /* at the launch-th launch, rather than at a second of the run */
    double second;
    uint64_t launch;
    bool done;
};

enum event_kind { EVENT_PROFILE, EVENT_FORK, EVENT_DLCLOSE, EVENT_END };

struct event {
    enum event_kind kind;
    double second, length;
    uint64_t launches;
    const char *how;
};

struct options {
    struct kernel *kernels;
    size_t kernel_count;
    struct change *changes;
    size_t change_count;
    struct event *events;
    size_t event_count;
    const char *profiler;
    int manners; /* enum profiler_manners */
    bool profiler_first;
    bool launches_given, syncs_given;
    uint64_t launches, sync_every, syncs;
    enum sync_kind sync_kind;
    enum stream_kind stream_kind;
    enum api api;
    bool ptsz, nvcc13, lazy, fork, print_rate, fail_zero_grid;
    unsigned threads, streams, shared_bytes;
    uint64_t seed, fail_every, reload_every, graph, capture;
    bool fork_capture;
    size_t name_length;
    double rate, duration, wait_before, wait_after, dlopen_after;
    const char *runtime_path, *ready_file, *go_file, *truth;
};

extern struct options options;
void options_parse(int argc, char **argv);
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* ---- kernels and their modules: workload_kernels.c ---- */

static inline bool uses_runtime(void)
{
    return options.api != API_DRIVER && options.api != API_DRIVER_EX;
}

static inline bool uses_driver(void)
{
    return options.api != API_RUNTIME && options.api != API_RUNTIME_EX;
}

void cuda_open(void);       /* finds the libraries and starts the driver */
void cuda_bind(void);       /* every thread that calls CUDA does this first */
void kernels_load(void);
void kernels_unload(void);
void change_apply(struct change *change);
/* Replaces the kernel by one of another name, which gets the old one's handle. */
void kernel_reload(struct kernel *kernel, uint64_t version);

void check(int status, const char *what);
#define CHECK(call) check(call, #call)

/* ---- the threads that launch: workload_worker.c ---- */

struct worker {
    pthread_t thread;
    unsigned index;
    uint64_t launches, syncs; /* this thread's share */
    uint64_t random;
    cudaStream_t *streams;
    unsigned stream_count;
    cudaEvent_t event;
    cudaGraphExec_t graph;
    uint64_t launched, failed, synced, captured, loop_ns;
    uint64_t by_api[API_COUNT];
};

extern _Atomic int stop;         /* set by a signal or the clock */
extern bool ticketed;            /* something is to happen at a certain launch */
extern bool swapping;            /* modules come and go while threads launch */
extern pthread_rwlock_t modules; /* launching reads, swapping writes */
extern pthread_barrier_t all_ready, may_go;

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- what happens meanwhile: workload_events.c ---- */

void profiler_open(void);
void events_start(uint64_t *begin);
void events_join(void);
void events_print(void);

void pause_until(uint64_t ns); /* or until told to stop */
void pick_kernel_prepare(void);
void *worker_main(void *worker);

#endif
