/* The part of CUPTI's interface that the stand-in speaks, declared here so that no CUDA header is needed. */
#ifndef STANDIN_CUPTI_H
#define STANDIN_CUPTI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUptiResult;
typedef int CUpti_ActivityKind;
typedef void *CUpti_SubscriberHandle;
typedef void (*CUpti_CallbackFunc)(void *userdata, int domain, uint32_t id, const void *data);
typedef void (*CUpti_BuffersCallbackRequestFunc)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                                                  size_t valid);

enum {
    CUPTI_SUCCESS = 0,
    CUPTI_ERROR_INVALID_PARAMETER = 1,
    CUPTI_ERROR_INVALID_OPERATION = 7,
    CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT = 10,
    CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
    CUPTI_ERROR_NOT_COMPATIBLE = 14,
    CUPTI_ERROR_NOT_INITIALIZED = 15,
    CUPTI_ERROR_INVALID_KIND = 21,
    CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39,
};

enum {
    CUPTI_ACTIVITY_KIND_KERNEL = 3,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
    CUPTI_ACTIVITY_KINDS = 64,
    CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1,
    CUPTI_ACTIVITY_ATTRIBUTES = 11,
};

/* CUpti_ActivityKernel10; CUpti_ActivityKernel9 is the same without the last 8 bytes. */
typedef struct {
    uint32_t kind;
    uint8_t cache_config, shared_memory_config;
    uint16_t registers;
    uint32_t partitioned_cache[2];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total;
    uint32_t correlation;
    int64_t grid_id;
    const char *name;
    void *reserved;
    uint64_t queued, submitted;
    uint8_t launch_type, carveout[2], padding;
    uint32_t shared_executed;
    uint64_t graph_node_id;
    uint32_t shmem_limit;
    uint32_t graph_id;
    void *access_policy;
    uint32_t channel, channel_type;
    uint32_t cluster[4];
    uint64_t local_total_v2;
    uint32_t max_cluster, max_active_clusters;
    uint8_t device_launched, padding3[7];
} kernel_record;

_Static_assert(offsetof(kernel_record, start) == 16 && offsetof(kernel_record, block) == 64, "kernel_record");
_Static_assert(offsetof(kernel_record, name) == 104 && offsetof(kernel_record, graph_node_id) == 144, "kernel_record");
_Static_assert(offsetof(kernel_record, graph_id) == 156 && sizeof(kernel_record) == 216, "kernel_record");

#define CUPTI_FUNCTIONS(F) \
    F(cuptiGetVersion, uint32_t *version) \
    F(cuptiGetTimestamp, uint64_t *timestamp) \
    F(cuptiGetResultString, CUptiResult result, const char **text) \
    F(cuptiSubscribe, CUpti_SubscriberHandle *handle, CUpti_CallbackFunc callback, void *userdata) \
    F(cuptiSubscribe_v2, CUpti_SubscriberHandle *handle, CUpti_CallbackFunc callback, void *userdata, void *params) \
    F(cuptiUnsubscribe, CUpti_SubscriberHandle handle) \
    F(cuptiEnableCallback, uint32_t enable, CUpti_SubscriberHandle handle, int domain, uint32_t id) \
    F(cuptiEnableDomain, uint32_t enable, CUpti_SubscriberHandle handle, int domain) \
    F(cuptiFinalize, void) \
    F(cuptiActivityRegisterCallbacks, CUpti_BuffersCallbackRequestFunc request, \
      CUpti_BuffersCallbackCompleteFunc complete) \
    F(cuptiActivityEnable, CUpti_ActivityKind kind) \
    F(cuptiActivityDisable, CUpti_ActivityKind kind) \
    F(cuptiActivityFlushAll, uint32_t flag) \
    F(cuptiActivityGetNextRecord, uint8_t *buffer, size_t valid, void **record) \
    F(cuptiActivityGetNumDroppedRecords, void *context, uint32_t stream, size_t *dropped) \
    F(cuptiActivityGetAttribute, int attribute, size_t *size, void *value) \
    F(cuptiActivitySetAttribute, int attribute, size_t *size, void *value)

#define CUPTI_DECLARE(name, ...) CUptiResult name(__VA_ARGS__);
CUPTI_FUNCTIONS(CUPTI_DECLARE)

#endif
