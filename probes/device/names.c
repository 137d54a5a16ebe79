/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "handover.h"

enum { MOST = 4096, SLOTS = 2 * MOST, LONGEST = 64 << 10, PAGE = 4096, RECENT = 256 };

static struct name {
    char *text;
    size_t length;
    u32 hash;
    u64 window; /* in which it was handed over last */
} names[MOST + 1];
static u32 count;
static uint16_t slots[SLOTS];

static u32 hash_of(const char *text, size_t length)
{
    u32 hash = 2166136261u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return hash;
}

/* The text at an address, copied so that memory that is gone is no fault; its length, 0 if there is none. */
static size_t copy_text(const char *from, char *to)
{
    for (size_t length = 0; length < LONGEST;) {
        size_t part = PAGE - (uintptr_t)(from + length) % PAGE; /* the next page may be gone */
        if (part > LONGEST - length)
            part = LONGEST - length;
        struct iovec here = {to + length, part}, there = {(void *)(from + length), part};
        ssize_t copied = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
        if (copied < 0 && errno != EFAULT) { /* not allowed in this sandbox */
            length = strnlen(from, LONGEST - 1);
            memcpy(to, from, length);
            return length;
        }
        if (copied <= 0)
            return 0;
        size_t text = strnlen(to + length, (size_t)copied);
        length += text;
        if (text < (size_t)copied)
            return length;
    }
    return LONGEST - 1;
}

/* By what it says, not by its address: the memory of an unloaded module's names is used again. */
static u32 find(const char *at)
{
    static char text[LONGEST];
    size_t length = copy_text(at, text);
    if (!length)
        return 0;
    text[length] = 0;
    u32 hash = hash_of(text, length), slot = hash % SLOTS;
    for (; slots[slot]; slot = (slot + 1) % SLOTS) {
        struct name *name = &names[slots[slot]];
        if (name->hash == hash && name->length == length && memcmp(name->text, text, length) == 0)
            return slots[slot];
    }
    if (count == MOST)
        return 0;
    char *copy = malloc(length + 1);
    if (!copy)
        return 0;
    memcpy(copy, text, length + 1);
    names[++count] = (struct name){.text = copy, .length = length, .hash = hash};
    slots[slot] = (uint16_t)count;
    return count;
}

static struct {
    const char *at;
    u32 number;
} recent[RECENT];

void names_look_anew(void)
{
    memset(recent, 0, sizeof recent);
}

u32 names_number(const char *name, u64 window)
{
    if (!name)
        return 0;
    size_t place = ((uintptr_t)name >> 3) % RECENT;
    if (recent[place].at != name) {
        recent[place].at = name;
        recent[place].number = find(name);
    }
    u32 number = recent[place].number;
    if (number && names[number].window != window) {
        names[number].window = window;
        handover_name(number, names[number].text, names[number].length);
    }
    return number;
}
