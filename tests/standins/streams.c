/* Streams, events, and waiting for either. */
#include <stdlib.h>

#include "driver.h"

#define EVENT_MAGIC 0x45564e54u

struct event {
    uint32_t magic;
    uint32_t queue;
    CUstream stream;
    uint64_t end; /* when the work that was queued at the record ends; 0 before any */
    struct graph *capture; /* what the stream was captured into at the record, or NULL */
};

/* Waits without the lock, so that others can queue more work meanwhile. */
static void sync_until(enum truth_api api, uint64_t call, uint64_t end, CUstream stream, uint32_t queue,
                       CUresult status)
{
    observe_call();
    if (status == CUDA_SUCCESS)
        wait_until(end);
    if (!truth_on)
        return;
    device_lock();
    struct truth_record *record = truth_add(TRUTH_SYNC, api);
    if (record) {
        record->call_ns = call;
        record->return_ns = now_ns();
        record->end_ns = end;
        record->stream = (uintptr_t)stream;
        record->queue = queue;
        record->status = status;
    }
    device_unlock();
}

static CUresult stream_sync(enum truth_api api, CUstream handle, bool per_thread)
{
    uint64_t call = now_ns(), end = 0;
    uint32_t queue = 0;
    CUresult status = context_check();
    if (status != CUDA_SUCCESS)
        return status;
    device_lock();
    struct stream *stream = stream_resolve(handle, per_thread);
    if (!stream) {
        status = CUDA_ERROR_INVALID_HANDLE;
    } else if (stream->capture) {
        stream->capture_broken = true;
        status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else {
        end = stream_end(stream);
    }
    queue = stream ? stream->number : 0;
    device_unlock();
    sync_until(api, call, end, handle, queue, status);
    return status;
}

static CUresult stream_create(CUstream *out, unsigned int flags)
{
    CUresult status = context_check();
    if (status != CUDA_SUCCESS)
        return status;
    if (!out || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    device_lock();
    *out = stream_new(flags);
    device_unlock();
    return CUDA_SUCCESS;
}

static CUresult event_record(CUevent handle, CUstream stream_handle, bool per_thread)
{
    struct event *event = handle;
    CUresult status = CUDA_ERROR_INVALID_HANDLE;
    device_lock();
    struct stream *stream = stream_resolve(stream_handle, per_thread);
    if (event && event->magic == EVENT_MAGIC && stream) {
        event->capture = stream->capture;
        if (!stream->capture)
            event->end = stream_end(stream);
        event->stream = stream_handle;
        event->queue = stream->number;
        status = CUDA_SUCCESS;
    }
    device_unlock();
    return status;
}

static CUresult wait_event(CUstream stream_handle, CUevent handle, bool per_thread)
{
    struct event *event = handle;
    CUresult status = CUDA_ERROR_INVALID_HANDLE;
    device_lock();
    struct stream *stream = stream_resolve(stream_handle, per_thread);
    if (event && event->magic == EVENT_MAGIC && stream) {
        status = CUDA_SUCCESS;
        if (event->capture)
            status = graph_join(event->capture, stream);
        else if (stream->busy_until < event->end)
            stream->busy_until = event->end;
    }
    device_unlock();
    return status;
}

/* ---- the driver's entry points ---- */

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return stream_create(stream, flags);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    (void)priority;
    return stream_create(stream, flags);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
    CUresult status = CUDA_ERROR_INVALID_HANDLE;
    device_lock();
    struct stream *stream = (uintptr_t)handle > 2 ? stream_resolve(handle, false) : NULL;
    if (stream && !stream->capture) {
        stream_free(stream);
        status = CUDA_SUCCESS;
    }
    device_unlock();
    return status;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    return stream_sync(API_STREAM_SYNC, stream, false);
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return stream_sync(API_STREAM_SYNC_PTSZ, stream, true);
}

EXPORT CUresult cuCtxSynchronize(void)
{
    uint64_t call = now_ns();
    CUresult status = context_check();
    if (status != CUDA_SUCCESS)
        return status;
    device_lock();
    uint64_t end = device_end();
    device_unlock();
    sync_until(API_CTX_SYNC, call, end, NULL, 0, status);
    return status;
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    (void)flags;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = must(malloc(sizeof *event));
    *event = (struct event){.magic = EVENT_MAGIC};
    *out = event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return event_record(event, stream, false);
}

EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return event_record(event, stream, true);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    (void)flags;
    return wait_event(stream, event, false);
}

EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
    (void)flags;
    return wait_event(stream, event, true);
}

EXPORT CUresult cuEventSynchronize(CUevent handle)
{
    uint64_t call = now_ns();
    CUresult status = context_check();
    if (status != CUDA_SUCCESS)
        return status;
    struct event *event = handle;
    if (!event || event->magic != EVENT_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    device_lock();
    uint64_t end = event->end;
    CUstream stream = event->stream;
    uint32_t queue = event->queue;
    device_unlock();
    sync_until(API_EVENT_SYNC, call, end, stream, queue, status);
    return status;
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle)
{
    struct event *event = handle;
    if (!event || event->magic != EVENT_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    event->magic = 0;
    free(event);
    return CUDA_SUCCESS;
}
