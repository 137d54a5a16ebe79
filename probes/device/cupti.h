/* SPDX-License-Identifier: Apache-2.0 */
/* CUPTI as this library needs it, without its headers: the few functions, and where the fields of a record are. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "device_wire.h"

enum {
    CUPTI_OK = 0,
    CUPTI_MULTIPLE_SUBSCRIBERS = 39,
    KIND_CONCURRENT_KERNEL = 10,
    FLUSH_FORCED = 1,
    ATTRIBUTE_BUFFER_SIZE = 0,  /* size_t, bytes of device memory a buffer */
    ATTRIBUTE_BUFFER_LIMIT = 2, /* size_t, buffers a context */
};

typedef void (*request_function)(u8 **buffer, size_t *size, size_t *records);
typedef void (*complete_function)(void *context, u32 stream, u8 *buffer, size_t size, size_t valid);
typedef void (*callback_function)(void *data, int domain, u32 id, const void *info);

struct cupti {
    int (*get_version)(u32 *version);
    int (*get_timestamp)(u64 *timestamp);
    int (*subscribe)(void **subscriber, callback_function callback, void *data);
    int (*unsubscribe)(void *subscriber);
    int (*enable_domain)(u32 on, void *subscriber, int domain);
    int (*finalize)(void);
    int (*register_callbacks)(request_function request, complete_function complete);
    int (*enable)(int kind);
    int (*disable)(int kind);
    int (*flush_all)(u32 flag);
    int (*next_record)(u8 *buffer, size_t valid, u8 **record);
    int (*dropped_records)(void *context, u32 stream, size_t *dropped);
    int (*get_attribute)(int attribute, size_t *size, void *value);
    int (*set_attribute)(int attribute, size_t *size, void *value);
    int (*result_string)(int result, const char **text);
    u32 version;
    size_t record_bytes; /* of a kernel record; a later minor release may have made it longer */
    bool may_be_longer;
    char path[512];
};

enum cupti_found { CUPTI_FOUND, CUPTI_NONE, CUPTI_UNKNOWN, CUPTI_CONTESTED };

/* The copy that the program has mapped, else one that lies beside its other CUDA libraries or where CUDA is
 * installed. CUPTI_UNKNOWN: the release's records are not known; `cupti->version` and `path` say which it is.
 * CUPTI_CONTESTED: the process has another one too, and of two the first to be used keeps the other out for good. */
enum cupti_found cupti_find(struct cupti *cupti);

/* A kernel's record; false where it is none. */
bool cupti_is_kernel(const u8 *record);
void cupti_read_kernel(const u8 *record, struct execution_record *execution, const char **name);
