/* What the files of the stand-in runtime share. */
#ifndef STANDIN_RUNTIME_H
#define STANDIN_RUNTIME_H

#include "cuda_abi.h"

/* The driver's entry points; index 1 of a pair is the per-thread-default-stream form. */
struct driver {
    CUresult (*init)(unsigned int);
    CUresult (*version)(int *);
    CUresult (*device_count)(int *);
    CUresult (*device)(CUdevice *, int);
    CUresult (*primary_context)(CUcontext *, CUdevice);
    CUresult (*set_current)(CUcontext);
    CUresult (*library_load)(CUlibrary *, const void *, void *, void **, unsigned int, void *, void **, unsigned int);
    CUresult (*library_kernel)(CUkernel *, CUlibrary, const char *);
    CUresult (*library_unload)(CUlibrary);
    CUresult (*launch[2])(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                          unsigned int, unsigned int, CUstream, void **, void **);
    CUresult (*launch_ex[2])(const CUlaunchConfig *, CUfunction, void **, void **);
    CUresult (*stream_create)(CUstream *, unsigned int);
    CUresult (*stream_destroy)(CUstream);
    CUresult (*stream_sync[2])(CUstream);
    CUresult (*context_sync)(void);
    CUresult (*event_create)(CUevent *, unsigned int);
    CUresult (*event_record[2])(CUevent, CUstream);
    CUresult (*event_sync)(CUevent);
    CUresult (*stream_wait)(CUstream, CUevent, unsigned int);
    CUresult (*event_destroy)(CUevent);
    CUresult (*capture_begin[2])(CUstream, int);
    CUresult (*capture_end[2])(CUstream, CUgraph *);
    CUresult (*capturing)(CUstream, int *);
    CUresult (*instantiate)(CUgraphExec *, CUgraph, unsigned long long);
    CUresult (*graph_launch[2])(CUgraphExec, CUstream);
    CUresult (*exec_destroy)(CUgraphExec);
    CUresult (*graph_destroy)(CUgraph);
};

extern struct driver driver;

/* Opens the driver on the process's first call and binds the context on a thread's first call. */
cudaError_t runtime_ready(void);
/* Keeps the error for cudaGetLastError, and returns it. */
cudaError_t runtime_result(cudaError_t error);
/* The kernel behind a host function, loading its library on first use; NULL if it was never registered. */
CUkernel runtime_kernel(const void *host_function);

#endif
