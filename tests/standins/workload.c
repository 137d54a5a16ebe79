/* The process around the load: signals, threads, changes by the clock, the report. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

static pid_t child;

static pthread_mutex_t end_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t end_cond;
static bool ended;

static void on_signal(int number)
{
    stop = 1;
    if (child > 0)
        kill(child, number);
}

static void pause_for(double seconds)
{
    if (seconds > 0)
        pause_until(now_ns() + (uint64_t)(seconds * 1e9));
}

/* ---- the process ---- */

/* Makes the changes that are due at a second, and ends the run after --duration. */
static void *clock_main(void *argument)
{
    uint64_t begin = *(uint64_t *)argument;
    cuda_bind();
    for (;;) {
        struct change *next = NULL;
        for (size_t i = 0; i < options.change_count; i++) {
            struct change *change = &options.changes[i];
            if (!change->by_launch && !change->done && (!next || change->second < next->second))
                next = change;
        }
        double second = next ? next->second : 1e9;
        bool last = options.duration > 0 && options.duration <= second;
        uint64_t due = begin + (uint64_t)((last ? options.duration : second) * 1e9);
        struct timespec at = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
        pthread_mutex_lock(&end_lock);
        while (!ended && now_ns() < due)
            pthread_cond_timedwait(&end_cond, &end_lock, &at);
        bool over = ended;
        pthread_mutex_unlock(&end_lock);
        if (over)
            return NULL;
        if (last) {
            stop = 1;
            return NULL;
        }
        pthread_rwlock_wrlock(&modules);
        change_apply(next);
        pthread_rwlock_unlock(&modules);
    }
}

static uint64_t share(uint64_t total, unsigned index)
{
    return total == UINT64_MAX ? total : total / options.threads + (index < total % options.threads);
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream = options.stream_kind == STREAM_PER_THREAD ? CU_STREAM_PER_THREAD : NULL;
    if (options.stream_kind == STREAM_OWN)
        check(uses_runtime() ? rt.cudaStreamCreate(&stream) : cu.cuStreamCreate(&stream, 0), "stream create");
    return stream;
}

static void destroy(struct worker *workers, cudaStream_t *streams, unsigned stream_count)
{
    for (unsigned i = 0; i < options.threads; i++)
        if (workers[i].event)
            check(uses_runtime() ? rt.cudaEventDestroy(workers[i].event) : cu.cuEventDestroy_v2(workers[i].event),
                  "event destroy");
    for (unsigned i = 0; i < stream_count; i++)
        if (options.stream_kind == STREAM_OWN)
            check(uses_runtime() ? rt.cudaStreamDestroy(streams[i]) : cu.cuStreamDestroy_v2(streams[i]),
                  "stream destroy");
    free(workers);
    free(streams);
}

static struct worker *make_workers(cudaStream_t *streams, unsigned stream_count)
{
    struct worker *workers = calloc(options.threads, sizeof *workers);
    for (unsigned i = 0; i < options.threads; i++) {
        struct worker *worker = &workers[i];
        worker->index = i;
        worker->launches = share(options.launches, i);
        worker->syncs = share(options.syncs, i);
        worker->random = options.seed * 0x9e3779b97f4a7c15u + i;
        worker->streams = options.streams ? streams : &streams[i];
        worker->stream_count = options.streams ? stream_count : 1;
        if (options.sync_kind == SYNC_EVENT || options.fork_capture)
            check(uses_runtime() ? rt.cudaEventCreate(&worker->event) : cu.cuEventCreate(&worker->event, 0),
                  "event create");
    }
    return workers;
}

static void say_ready_and_wait(void)
{
    if (options.ready_file) {
        FILE *file = fopen(options.ready_file, "w");
        if (!file)
            fail("%s: %s", options.ready_file, strerror(errno));
        fprintf(file, "%d\n", (int)getpid());
        fclose(file);
    }
    while (options.go_file && !stop && access(options.go_file, F_OK) != 0)
        pause_for(0.001);
    pause_for(options.wait_before);
}

static void print_rate(const struct worker *workers, double seconds)
{
    static const char *const names[] = {"runtime", "driver", "runtime-ex", "driver-ex"};
    struct worker sum = {0};
    double thread_ns = 0;
    for (unsigned i = 0; i < options.threads; i++) {
        sum.launched += workers[i].launched;
        sum.failed += workers[i].failed;
        sum.synced += workers[i].synced;
        sum.captured += workers[i].captured;
        thread_ns += (double)workers[i].loop_ns;
        for (int api = 0; api < API_COUNT; api++)
            sum.by_api[api] += workers[i].by_api[api];
    }
    printf("{\"pid\": %d, \"launches\": %llu, \"failed\": %llu, \"syncs\": %llu, \"captured\": %llu, "
           "\"ns_per_launch\": %.1f, \"seconds\": %.6f, \"by_api\": {",
           (int)getpid(), (unsigned long long)sum.launched, (unsigned long long)sum.failed,
           (unsigned long long)sum.synced, (unsigned long long)sum.captured,
           sum.launched ? thread_ns / (double)sum.launched : 0, seconds);
    for (int api = 0; api < API_COUNT; api++)
        printf("%s\"%s\": %llu", api ? ", " : "", names[api], (unsigned long long)sum.by_api[api]);
    printf("}");
    events_print();
    puts("}");
}

static void load(void)
{
    pause_for(options.dlopen_after);
    if (options.profiler_first)
        profiler_open();
    cuda_open();
    kernels_load();
    pick_kernel_prepare();
    unsigned stream_count = options.streams ? options.streams : options.threads;
    cudaStream_t *streams = calloc(stream_count, sizeof *streams);
    for (unsigned i = 0; i < stream_count; i++)
        streams[i] = make_stream();
    struct worker *workers = make_workers(streams, stream_count);

    pthread_barrier_init(&all_ready, NULL, options.threads + 1);
    pthread_barrier_init(&may_go, NULL, options.threads + 1);
    for (unsigned i = 0; i < options.threads; i++)
        if (pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) != 0)
            fail("cannot start a thread");
    pthread_barrier_wait(&all_ready);
    say_ready_and_wait();

    uint64_t begin = now_ns();
    pthread_t clock;
    bool timed = options.duration > 0 || options.change_count;
    if (timed && pthread_create(&clock, NULL, clock_main, &begin) != 0)
        fail("cannot start a thread");
    events_start(&begin);
    pthread_barrier_wait(&may_go);
    for (unsigned i = 0; i < options.threads; i++)
        pthread_join(workers[i].thread, NULL);
    double seconds = (double)(now_ns() - begin) / 1e9;
    if (timed) {
        pthread_mutex_lock(&end_lock);
        ended = true;
        pthread_cond_signal(&end_cond);
        pthread_mutex_unlock(&end_lock);
        pthread_join(clock, NULL);
    }
    events_join();
    pause_for(options.wait_after);
    kernels_unload();
    if (options.print_rate)
        print_rate(workers, seconds);
    destroy(workers, streams, stream_count);
}

int main(int argc, char **argv)
{
    options_parse(argc, argv);
    if (options.truth)
        setenv("KDIFF_STANDIN_TRUTH", options.truth, 1);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&end_cond, &monotonic);
    ticketed = options.reload_every > 0;
    swapping = options.reload_every > 0;
    for (size_t i = 0; i < options.change_count; i++) {
        ticketed |= options.changes[i].by_launch;
        swapping |= options.changes[i].swap;
    }
    if (options.fork) {
        child = fork();
        if (child > 0) {
            int status;
            while (waitpid(child, &status, 0) < 0 && errno == EINTR)
                ;
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        child = 0;
    }
    load();
    return 0;
}
