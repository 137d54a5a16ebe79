/* SPDX-License-Identifier: Apache-2.0 */
#include "handover.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

/*
 * The function that the agent probes. It does nothing; its arguments are what the probe reads. Its first instruction
 * is one that kernels emulate instead of single-stepping it.
 */
#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name)
void HANDOVER(const void *batch, u32 bytes, u32 executions);
__asm__(".pushsection .text\n"
        ".globl " NAME_OF(HANDOVER) "\n"
        ".type " NAME_OF(HANDOVER) ", %function\n" NAME_OF(HANDOVER) ":\n"
#if defined(__x86_64__)
        "push %rbp\nmov %rsp, %rbp\npop %rbp\nret\n"
#elif defined(__aarch64__)
        "nop\nret\n"
#else
#error "x86-64 and arm64 only"
#endif
        ".size " NAME_OF(HANDOVER) ", . - " NAME_OF(HANDOVER) "\n"
        ".popsection\n");

/* The kernel counts the probes on HANDOVER here. It writes to initialised data only. */
__attribute__((visibility("default"), section(".data"))) volatile uint16_t LISTENERS = 0;

struct batch {
    struct batch_record head;
    unsigned char records[BATCH_BYTES - sizeof(struct batch_record)];
};
/* A name may take a whole batch, and the executions gathered so far go on being gathered. */
static struct batch gathered __attribute__((aligned(64))), other __attribute__((aligned(64)));
static u64 sequence, executions_handed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all of these */

bool handover_heard(void)
{
    return LISTENERS != 0;
}

/* The agent reads its ring 50 times a second: a burst must not be faster than the ring is large. */
static void pace(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* The one record that is in `other`; the lock is held. */
static void hand_over_other(u32 block, u64 window, size_t bytes)
{
    other.head = (struct batch_record){
        .sequence = ++sequence, .window = window, .version = VERSION, .block = block, .count = 1,
        .bytes = sizeof other.head + bytes};
    HANDOVER(&other, other.head.bytes, 0);
}

static void hand_over_gathered(void)
{
    if (!gathered.head.count)
        return;
    gathered.head.sequence = ++sequence;
    executions_handed += gathered.head.count;
    HANDOVER(&gathered, gathered.head.bytes, gathered.head.count);
    gathered.head.count = 0;
    pace();
}

u64 handover_flush(void)
{
    pthread_mutex_lock(&lock);
    hand_over_gathered();
    u64 handed = executions_handed;
    executions_handed = 0;
    pthread_mutex_unlock(&lock);
    return handed;
}

void handover_execution(const struct execution_record *execution, u64 window)
{
    pthread_mutex_lock(&lock);
    if (gathered.head.window != window || gathered.head.bytes + sizeof *execution > sizeof gathered)
        hand_over_gathered();
    if (!gathered.head.count)
        gathered.head = (struct batch_record){
            .window = window, .version = VERSION, .block = BLOCK_EXECUTIONS, .bytes = sizeof gathered.head};
    memcpy((unsigned char *)&gathered + gathered.head.bytes, execution, sizeof *execution);
    gathered.head.bytes += sizeof *execution;
    gathered.head.count++;
    pthread_mutex_unlock(&lock);
}

static void hand_over_copy(u32 block, u64 window, const void *record, size_t bytes)
{
    pthread_mutex_lock(&lock);
    memcpy(other.records, record, bytes);
    hand_over_other(block, window, bytes);
    pthread_mutex_unlock(&lock);
}

void handover_window(const struct window_record *window, u64 number)
{
    hand_over_copy(BLOCK_WINDOW, number, window, sizeof *window);
}

void handover_state(u32 state, u32 skipped, const char *text)
{
    struct state_record record = {.state = state, .skipped = skipped};
    strncpy(record.text, text, sizeof record.text - 1);
    hand_over_copy(BLOCK_STATE, 0, &record, sizeof record);
}

void handover_device(u32 number, const u8 *uuid)
{
    struct device_record record = {.number = number};
    memcpy(record.uuid, uuid, sizeof record.uuid);
    hand_over_copy(BLOCK_DEVICES, 0, &record, sizeof record);
}

void handover_name(u32 number, const char *name, size_t length)
{
    struct name_header_record head = {.number = number, .whole = 1};
    size_t room = sizeof other.records - sizeof head - 8;
    if (length > room) {
        length = room;
        head.whole = 0;
    }
    head.length = length;
    size_t padded = (length + 7) & ~(size_t)7;
    pthread_mutex_lock(&lock);
    memcpy(other.records, &head, sizeof head);
    memset(other.records + sizeof head + (length & ~(size_t)7), 0, 8);
    memcpy(other.records + sizeof head, name, length);
    hand_over_other(BLOCK_NAMES, 0, sizeof head + padded);
    pthread_mutex_unlock(&lock);
}
