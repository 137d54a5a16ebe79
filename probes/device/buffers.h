/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that CUPTI writes records to. Any thread may call these. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "device_wire.h"

struct buffer {
    struct buffer *next;
    size_t valid; /* bytes of records */
    u8 *bytes;
    bool with_cupti;
};

/* What CUPTI calls, from its own threads or the program's. */
void buffers_request(u8 **bytes, size_t *size, size_t *records);
void buffers_complete(void *context, u32 stream, u8 *bytes, size_t size, size_t valid);

struct buffer *buffers_take_full(void); /* NULL when there is none */
void buffers_give_empty(struct buffer *buffer);
int buffers_with_cupti(void);
