/* Stands in for the agent: the driver injects this in place of the device library, which it loads. What the library
 * hands over goes to a file, in which it survives any death of the process.
 *
 * KDIFF_STANDIN_LISTEN_LIBRARY  the device library
 * KDIFF_STANDIN_LISTEN_SINK     the file: for each batch its length and executions as u32, then the batch
 * KDIFF_STANDIN_LISTEN_GO       a file to make when the first window has opened
 * KDIFF_STANDIN_LISTEN          when to listen, as FROM_MS-UNTIL_MS[,FROM_MS-UNTIL_MS...] (always) */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"

#define BLOCK_DEVICES 2

static int sink = -1;
static const char *go;
static volatile uint16_t *listeners;

static void die(const char *what)
{
    fprintf(stderr, "listener: %s\n", what);
    abort();
}

static void batch_handed(const void *batch, uint32_t bytes, uint32_t executions)
{
    uint32_t head[2] = {bytes, executions};
    struct iovec parts[] = {{head, sizeof head}, {(void *)(uintptr_t)batch, bytes}};
    uint32_t block;
    memcpy(&block, (const uint8_t *)batch + 20, sizeof block);
    if (go && block == BLOCK_DEVICES) { /* handed over as a window opens */
        close(open(go, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
        go = NULL;
    }
    if (writev(sink, parts, 2) != (ssize_t)(sizeof head + bytes))
        die("cannot write");
}

/* The function is too short for an absolute jump: it jumps to one in a page nearby. */
static void divert(uint8_t *function, void *to)
{
    uint8_t *page = NULL;
    for (uintptr_t at = ((uintptr_t)function & ~0xfffful) - 0x100000; !page && at > 0x100000; at -= 0x10000) {
        void *made = mmap((void *)at, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (made != MAP_FAILED)
            page = made;
    }
    const uint8_t jump[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}; /* movabs to, %rax; jmp *%rax */
    memcpy(page, jump, sizeof jump);
    memcpy(page + 2, &to, sizeof to);
    int32_t distance = (int32_t)(page - (function + 5));
    uint8_t *first = (uint8_t *)((uintptr_t)function & ~0xffful);
    if (mprotect(first, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        die("cannot write to the library's code");
    function[0] = 0xe9;
    memcpy(function + 1, &distance, sizeof distance);
    mprotect(first, 8192, PROT_READ | PROT_EXEC);
}

static void sleep_until(const struct timespec *began, unsigned long ms)
{
    struct timespec at = {began->tv_sec + (time_t)(ms / 1000), began->tv_nsec + (long)(ms % 1000) * 1000000};
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static void *listen_main(void *argument)
{
    struct timespec began;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (char *at = argument; *at;) {
        unsigned long from = strtoul(at, &at, 10);
        unsigned long until = strtoul(at + 1, &at, 10);
        sleep_until(&began, from);
        *listeners = 1;
        sleep_until(&began, until);
        *listeners = 0;
        at += *at == ',';
    }
    return NULL;
}

EXPORT int InitializeInjection(void)
{
    const char *path = getenv("KDIFF_STANDIN_LISTEN_LIBRARY"), *when = getenv("KDIFF_STANDIN_LISTEN");
    go = getenv("KDIFF_STANDIN_LISTEN_GO");
    sink = open(getenv("KDIFF_STANDIN_LISTEN_SINK"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        die(dlerror());
    uint8_t *function = dlsym(library, "kdiff_device_batch");
    listeners = dlsym(library, "kdiff_device_listeners");
    int (*initialise)(void);
    *(void **)&initialise = dlsym(library, "InitializeInjection");
    if (sink < 0 || !function || !listeners || !initialise)
        die("no sink, or not the device library");
    divert(function, (void *)(uintptr_t)batch_handed);
    pthread_t thread;
    if (!when || !*when)
        *listeners = 1;
    else if (pthread_create(&thread, NULL, listen_main, strdup(when)) != 0)
        die("cannot start a thread");
    return initialise();
}
