/* The truth file is mapped shared, so that a record costs a few stores and survives kill -9. */
#include "truth.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define DEFAULT_RECORDS (16u << 20)

bool truth_on;

static struct truth_header *header;
static struct truth_record *records;
static uint64_t capacity;
static int truth_fd = -1;
static FILE *names_file;

/* Names in order of first sight, with an open-addressing index over them. */
static char **names;
static int *name_slots; /* line + 1; 0 is free */
static size_t name_count, slot_count;

static _Thread_local uint32_t own_tid;

/* CUDA does not work in the child of a process that has started it, and the file is the parent's. */
static void stop_in_child(void)
{
    truth_on = false;
}

static size_t name_hash(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return (size_t)(hash ^ hash >> 32);
}

static void grow_slots(void)
{
    slot_count = slot_count ? slot_count * 2 : 256;
    free(name_slots);
    name_slots = must(calloc(slot_count, sizeof *name_slots));
    names = must(realloc(names, slot_count * sizeof *names));
    for (size_t line = 0; line < name_count; line++) {
        size_t slot = name_hash(names[line]) & (slot_count - 1);
        while (name_slots[slot])
            slot = (slot + 1) & (slot_count - 1);
        name_slots[slot] = (int)line + 1;
    }
}

int truth_name(const char *name)
{
    if (name_count * 2 >= slot_count)
        grow_slots();
    size_t slot = name_hash(name) & (slot_count - 1);
    while (name_slots[slot]) {
        if (strcmp(names[name_slots[slot] - 1], name) == 0)
            return name_slots[slot] - 1;
        slot = (slot + 1) & (slot_count - 1);
    }
    names[name_count] = must(strdup(name));
    name_slots[slot] = (int)++name_count;
    if (names_file) {
        fprintf(names_file, "%s\n", name);
        fflush(names_file);
    }
    return (int)name_count - 1;
}

const char *truth_name_text(int line)
{
    return names[line];
}

void truth_open(void)
{
    const char *path = getenv("KDIFF_STANDIN_TRUTH");
    if (!path || !*path || header)
        return;
    capacity = (uint64_t)env_number("KDIFF_STANDIN_TRUTH_RECORDS", DEFAULT_RECORDS);
    size_t bytes = sizeof *header + capacity * sizeof *records;
    char names_path[4096];
    snprintf(names_path, sizeof names_path, "%s.names", path);
    truth_fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    names_file = fopen(names_path, "we");
    if (truth_fd < 0 || !names_file || ftruncate(truth_fd, (off_t)bytes) != 0) {
        perror(path);
        exit(2);
    }
    header = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, truth_fd, 0);
    if (header == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    records = (struct truth_record *)(header + 1);
    struct timespec real;
    uint64_t before = now_ns();
    clock_gettime(CLOCK_REALTIME, &real);
    uint64_t monotonic = before + (now_ns() - before) / 2;
    header->header_bytes = sizeof *header;
    header->record_bytes = sizeof *records;
    header->pid = (uint32_t)getpid();
    header->realtime_minus_monotonic_ns =
        (int64_t)real.tv_sec * 1000000000 + real.tv_nsec - (int64_t)monotonic;
    memcpy(header->magic, "KDIFFTR1", sizeof header->magic);
    pthread_atfork(NULL, NULL, stop_in_child);
    truth_on = true;
}

struct truth_record *truth_add(enum truth_kind kind, enum truth_api api)
{
    if (!truth_on)
        return NULL;
    if (header->count == capacity) {
        header->lost++;
        return NULL;
    }
    if (!own_tid)
        own_tid = (uint32_t)gettid();
    struct truth_record *record = &records[header->count];
    record->kernel = -1;
    record->factor = 1;
    record->kind = (uint8_t)kind;
    record->api = (uint8_t)api;
    record->pid = header->pid;
    record->tid = own_tid;
    header->count++;
    return record;
}

/* Records that are still being filled in lie before the new end, so cutting the file here is safe while other
 * threads run. */
static __attribute__((destructor)) void truth_close(void)
{
    device_lock();
    if (truth_on) {
        truth_on = false;
        off_t bytes = (off_t)(sizeof *header + header->count * sizeof *records);
        if (ftruncate(truth_fd, bytes) != 0)
            perror("truth");
    }
    if (names_file)
        fclose(names_file);
    names_file = NULL;
    device_unlock();
}
