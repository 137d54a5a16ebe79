/* SPDX-License-Identifier: Apache-2.0 */
#include "buffers.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    BUFFER_BYTES = 256 << 10, /* 1,200 records */
    MOST_BUFFERS = 96,        /* 24 MiB of host memory */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer buffers[MOST_BUFFERS];
static struct buffer *empty, *full, **full_end = &full;
static int made;
static volatile int with_cupti;

void buffers_request(u8 **bytes, size_t *size, size_t *records)
{
    pthread_mutex_lock(&lock);
    struct buffer *buffer = empty;
    if (buffer)
        empty = buffer->next;
    else if (made < MOST_BUFFERS) {
        u8 *memory = aligned_alloc(64, BUFFER_BYTES);
        if (memory) {
            buffer = &buffers[made++];
            buffer->bytes = memory;
        }
    }
    if (buffer) {
        buffer->with_cupti = true;
        with_cupti++;
    }
    *bytes = buffer ? buffer->bytes : NULL;
    pthread_mutex_unlock(&lock);
    *size = buffer ? BUFFER_BYTES : 0;
    *records = 0;
}

void buffers_complete(void *context, u32 stream, u8 *bytes, size_t size, size_t valid)
{
    (void)context, (void)stream;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < made; i++)
        if (buffers[i].bytes == bytes && buffers[i].with_cupti) {
            buffers[i].with_cupti = false;
            with_cupti--;
            buffers[i].valid = valid <= size ? valid : 0;
            buffers[i].next = NULL;
            *full_end = &buffers[i];
            full_end = &buffers[i].next;
        }
    pthread_mutex_unlock(&lock);
}

struct buffer *buffers_take_full(void)
{
    pthread_mutex_lock(&lock);
    struct buffer *buffer = full;
    if (buffer) {
        full = buffer->next;
        if (!full)
            full_end = &full;
    }
    pthread_mutex_unlock(&lock);
    return buffer;
}

void buffers_give_empty(struct buffer *buffer)
{
    pthread_mutex_lock(&lock);
    buffer->next = empty;
    empty = buffer;
    pthread_mutex_unlock(&lock);
}

int buffers_with_cupti(void)
{
    return with_cupti;
}
