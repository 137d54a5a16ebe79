/* What happens to the process while it launches: profiler sessions, forks, an early end. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "profiler.h"
#include "workload.h"

#define PROFILED "profiled"
#define CHILD_STATUS 7

static struct session {
    struct profiler_session report;
    unsigned long long launches;
} *sessions;
static size_t session_count;
static int *children; /* exit statuses; -1: it had to be killed */
static size_t child_count;
static pthread_t thread;

static __typeof__(profiler_start) *start_profiler;
static __typeof__(profiler_stop) *stop_profiler;

static const char image[] = "kernel " PROFILED " 2000\n";

void profiler_open(void)
{
    if (!options.profiler || start_profiler)
        return;
    void *library = dlopen(options.profiler, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail("%s", dlerror());
    *(void **)&start_profiler = dlsym(library, "profiler_start");
    *(void **)&stop_profiler = dlsym(library, "profiler_stop");
}

static void bind(void)
{
    CUcontext context;
    CUdevice device;
    CHECK(cu.cuDeviceGet(&device, 0));
    CHECK(cu.cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cu.cuCtxSetCurrent(context));
}

/* Launches a kernel of its own: how many of it ran while the profiler was on is known, whatever else runs. */
static void profile(const struct event *event)
{
    CUmodule module;
    CUfunction function;
    CUstream stream;
    profiler_open();
    CHECK(cu.cuModuleLoadData(&module, image));
    CHECK(cu.cuModuleGetFunction(&function, module, PROFILED));
    CHECK(cu.cuStreamCreate(&stream, 0));
    sessions = realloc(sessions, (session_count + 1) * sizeof *sessions);
    struct session *session = &sessions[session_count++];
    *session = (struct session){0};

    start_profiler(options.manners, &session->report);
    uint64_t begin = now_ns();
    for (uint64_t i = 0; i < event->launches && !stop; i++, session->launches++) {
        CHECK(cu.cuLaunchKernel(function, 3, 5, 7, 64, 1, 1, 0, stream, NULL, NULL));
        pause_until(begin + (uint64_t)(event->length * 1e9 * (double)(i + 1) / (double)event->launches));
    }
    CHECK(cu.cuStreamSynchronize(stream));
    stop_profiler(options.manners, PROFILED, &session->report);
    CHECK(cu.cuStreamDestroy_v2(stream));
    CHECK(cu.cuModuleUnload(module));
}

/* A child that does nothing, as those of subprocess and multiprocessing begin: its exit runs what exits run. */
static void fork_child(void)
{
    pid_t pid = fork();
    if (pid < 0)
        fail("fork: %s", strerror(errno));
    if (pid == 0) {
        usleep(20000);
        exit(CHILD_STATUS);
    }
    int status = -1;
    uint64_t until = now_ns() + 5000000000u;
    while (waitpid(pid, &status, WNOHANG) == 0)
        if (now_ns() > until)
            kill(pid, SIGKILL);
        else
            usleep(2000);
    children = realloc(children, (child_count + 1) * sizeof *children);
    children[child_count++] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* As often as the driver and this have opened it. */
static void close_injected(void)
{
    const char *path = getenv("KDIFF_STANDIN_LISTEN_LIBRARY");
    void *library = dlopen(path ? path : getenv("CUDA_INJECTION64_PATH"), RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        fail("%s", dlerror());
    dlclose(library);
    dlclose(library);
}

static void end(const char *how)
{
    if (strcmp(how, "exit") == 0)
        exit(0);
    if (strcmp(how, "_exit") == 0)
        _exit(0);
    int number = strcmp(how, "kill") == 0 ? SIGKILL : strcmp(how, "term") == 0 ? SIGTERM : SIGABRT;
    signal(number, SIG_DFL);
    raise(number);
}

static void *events_main(void *argument)
{
    uint64_t begin = *(uint64_t *)argument;
    bind();
    for (size_t i = 0; i < options.event_count && !stop; i++) {
        const struct event *event = &options.events[i];
        pause_until(begin + (uint64_t)(event->second * 1e9));
        if (event->kind == EVENT_PROFILE)
            profile(event);
        else if (event->kind == EVENT_FORK)
            fork_child();
        else if (event->kind == EVENT_DLCLOSE)
            close_injected();
        else
            end(event->how);
    }
    return NULL;
}

void events_start(uint64_t *begin)
{
    if (options.event_count && pthread_create(&thread, NULL, events_main, begin) != 0)
        fail("cannot start a thread");
}

void events_join(void)
{
    if (options.event_count)
        pthread_join(thread, NULL);
}

void events_print(void)
{
    printf(", \"profiles\": [");
    for (size_t i = 0; i < session_count; i++) {
        const struct profiler_session *report = &sessions[i].report;
        printf("%s{\"launches\": %llu, \"own\": %llu, \"others\": %llu, \"untimed\": %llu, \"shared\": %llu, "
               "\"unknown_buffers\": %llu, "
               "\"lost_buffers\": %llu, \"on_ns\": %llu, \"off_ns\": %llu, \"subscribed\": %d, \"enabled\": %d}",
               i ? ", " : "", sessions[i].launches, (unsigned long long)report->own,
               (unsigned long long)report->others, (unsigned long long)report->untimed, (unsigned long long)report->shared,
               (unsigned long long)report->unknown_buffers, (unsigned long long)report->lost_buffers,
               (unsigned long long)report->on_ns, (unsigned long long)report->off_ns, report->subscribed,
               report->enabled);
    }
    printf("], \"children\": [");
    for (size_t i = 0; i < child_count; i++)
        printf("%s%d", i ? ", " : "", children[i]);
    printf("]");
}
