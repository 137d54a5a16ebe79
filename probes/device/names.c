/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <stdlib.h>
#include <string.h>

#include "handover.h"

enum { MOST = 4096, SLOTS = 2 * MOST };

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

/* By what it says, not by its address: the memory of an unloaded module's names is used again. */
static u32 find(const char *text)
{
    static u32 last;
    if (last && strcmp(names[last].text, text) == 0)
        return last;
    size_t length = strlen(text);
    u32 hash = hash_of(text, length), slot = hash % SLOTS;
    for (; slots[slot]; slot = (slot + 1) % SLOTS) {
        struct name *name = &names[slots[slot]];
        if (name->hash == hash && name->length == length && memcmp(name->text, text, length) == 0)
            return last = slots[slot];
    }
    if (count == MOST)
        return 0;
    char *copy = malloc(length + 1);
    if (!copy)
        return 0;
    memcpy(copy, text, length + 1);
    names[++count] = (struct name){.text = copy, .length = length, .hash = hash};
    slots[slot] = (uint16_t)count;
    return last = count;
}

u32 names_number(const char *name, u64 window)
{
    u32 number = name && *name ? find(name) : 0;
    if (number && names[number].window != window) {
        names[number].window = window;
        handover_name(number, names[number].text, names[number].length);
    }
    return number;
}
