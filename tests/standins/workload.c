/* The load itself: threads that launch and wait. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "workload.h"

struct worker {
    pthread_t thread;
    unsigned index;
    uint64_t launches, syncs; /* this thread's share */
    uint64_t random;
    cudaStream_t *streams;
    unsigned stream_count;
    cudaEvent_t event;
    cudaGraphExec_t graph;
    uint64_t launched, failed, synced, captured, loop_ns;
    uint64_t by_api[API_COUNT];
};

static volatile sig_atomic_t stop;
static pid_t child;
static uint64_t tickets; /* launches begun by all threads; counted only when something depends on it */
static bool ticketed, swapping;
static pthread_rwlock_t modules = PTHREAD_RWLOCK_INITIALIZER; /* launching reads, swapping writes */
static pthread_barrier_t all_ready, may_go;

static pthread_mutex_t end_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t end_cond;
static bool ended;

static void on_signal(int number)
{
    stop = 1;
    if (child > 0)
        kill(child, number);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pause_until(uint64_t ns)
{
    struct timespec at = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (!stop && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

static void pause_for(double seconds)
{
    if (seconds > 0)
        pause_until(now_ns() + (uint64_t)(seconds * 1e9));
}

static double random_unit(uint64_t *state) /* in (0, 1) */
{
    uint64_t bits = *state += 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return ((double)((bits ^ bits >> 31) >> 11) + 0.5) * 0x1p-53;
}

/* ---- one launch, one wait ---- */

static struct kernel *pick_kernel(struct worker *worker, uint64_t turn)
{
    static double total = -1;
    static bool drawn;
    if (options.kernel_count == 1)
        return options.kernels;
    if (total < 0) { /* first called before the threads part */
        double sum = 0;
        for (size_t i = 0; i < options.kernel_count; i++) {
            sum += options.kernels[i].weight;
            drawn |= options.kernels[i].weight != options.kernels[0].weight;
        }
        total = sum;
    }
    if (!drawn)
        return &options.kernels[turn % options.kernel_count];
    double point = random_unit(&worker->random) * total;
    size_t i = 0;
    while (i + 1 < options.kernel_count && (point -= options.kernels[i].weight) >= 0)
        i++;
    return &options.kernels[i];
}

static int launch_by(enum api api, const struct kernel *kernel, dim3 grid, dim3 block, cudaStream_t stream)
{
    unsigned shared = options.shared_bytes;
    if (api == API_RUNTIME)
        return (options.ptsz ? rt.cudaLaunchKernel_ptsz : rt.cudaLaunchKernel)(kernel->stub, grid, block, NULL,
                                                                               shared, stream);
    if (api == API_DRIVER)
        return (options.ptsz ? cu.cuLaunchKernel_ptsz : cu.cuLaunchKernel)(
            kernel->function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, NULL, NULL);
    if (api == API_RUNTIME_EX) {
        cudaLaunchConfig_t config = {grid, block, shared, stream, NULL, 0};
        return (options.ptsz ? rt.cudaLaunchKernelExC_ptsz : rt.cudaLaunchKernelExC)(&config, kernel->stub, NULL);
    }
    CUlaunchConfig config = {grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, NULL, 0};
    return (options.ptsz ? cu.cuLaunchKernelEx_ptsz : cu.cuLaunchKernelEx)(&config, kernel->function, NULL, NULL);
}

static enum api api_at(uint64_t turn)
{
    return options.api == API_MIXED ? (enum api)(turn % API_COUNT) : options.api;
}

static bool by_runtime(enum api api)
{
    return api == API_RUNTIME || api == API_RUNTIME_EX;
}

static void launch(struct worker *worker, uint64_t turn, cudaStream_t stream, bool failing)
{
    enum api api = api_at(turn);
    if (swapping)
        pthread_rwlock_rdlock(&modules);
    int status;
    if (worker->graph) {
        if (by_runtime(api))
            status = (options.ptsz ? rt.cudaGraphLaunch_ptsz : rt.cudaGraphLaunch)(worker->graph, stream);
        else
            status = (options.ptsz ? cu.cuGraphLaunch_ptsz : cu.cuGraphLaunch)(worker->graph, stream);
    } else {
        const struct kernel *kernel = pick_kernel(worker, turn);
        dim3 grid = kernel->grid, block = kernel->block;
        if (failing) {
            grid.x = options.fail_zero_grid ? 0 : grid.x;
            block.x = options.fail_zero_grid ? block.x : 2048;
        }
        status = launch_by(api, kernel, grid, block, stream);
    }
    if (swapping)
        pthread_rwlock_unlock(&modules);
    if (status != 0) {
        worker->failed++;
        if (!failing)
            fail("a launch failed: error %d", status);
    } else if (failing) {
        fail("a launch that should have failed did not");
    }
    worker->by_api[api]++;
}

static void wait_for(struct worker *worker, enum api api, cudaStream_t stream)
{
    bool runtime = by_runtime(api);
    worker->synced++;
    if (options.sync_kind == SYNC_DEVICE) {
        check(runtime ? rt.cudaDeviceSynchronize() : cu.cuCtxSynchronize(), "device sync");
    } else if (options.sync_kind == SYNC_STREAM) {
        if (runtime)
            check((options.ptsz ? rt.cudaStreamSynchronize_ptsz : rt.cudaStreamSynchronize)(stream), "stream sync");
        else
            check((options.ptsz ? cu.cuStreamSynchronize_ptsz : cu.cuStreamSynchronize)(stream), "stream sync");
    } else if (runtime) {
        check((options.ptsz ? rt.cudaEventRecord_ptsz : rt.cudaEventRecord)(worker->event, stream), "event record");
        check(rt.cudaEventSynchronize(worker->event), "event sync");
    } else {
        check((options.ptsz ? cu.cuEventRecord_ptsz : cu.cuEventRecord)(worker->event, stream), "event record");
        check(cu.cuEventSynchronize(worker->event), "event sync");
    }
}

static cudaGraph_t capture(struct worker *worker, uint64_t launches)
{
    cudaStream_t stream = worker->streams[0];
    bool runtime = uses_runtime();
    cudaGraph_t graph;
    check(runtime ? rt.cudaStreamBeginCapture(stream, 0) : cu.cuStreamBeginCapture_v2(stream, 0), "begin capture");
    for (uint64_t i = 0; i < launches; i++)
        launch(worker, i, stream, false);
    check(runtime ? rt.cudaStreamEndCapture(stream, &graph) : cu.cuStreamEndCapture(stream, &graph), "end capture");
    worker->captured += launches;
    memset(worker->by_api, 0, sizeof worker->by_api);
    return graph;
}

static void graph_destroy(cudaGraph_t graph)
{
    check(uses_runtime() ? rt.cudaGraphDestroy(graph) : cu.cuGraphDestroy(graph), "graph destroy");
}

/* ---- a thread ---- */

/* Changes due at this launch are made by the thread that begins it. */
static void at_ticket(uint64_t ticket)
{
    for (size_t i = 0; i < options.change_count; i++) {
        struct change *change = &options.changes[i];
        if (!change->by_launch || change->launch != ticket)
            continue;
        pthread_rwlock_wrlock(&modules);
        change_apply(change);
        pthread_rwlock_unlock(&modules);
    }
    if (options.reload_every && ticket && ticket % options.reload_every == 0) {
        uint64_t version = ticket / options.reload_every;
        pthread_rwlock_wrlock(&modules);
        kernel_reload(&options.kernels[(version - 1) % options.kernel_count], version);
        pthread_rwlock_unlock(&modules);
    }
}

static void wait_for_arrival(struct worker *worker, double *arrival)
{
    double rate = options.rate / options.threads;
    *arrival += -log(random_unit(&worker->random)) / rate * 1e9;
    uint64_t due = (uint64_t)*arrival;
    if (due > now_ns() + 60000)
        pause_until(due - 60000);
    while (!stop && now_ns() < due)
        ;
}

static uint64_t syncs_due(const struct worker *worker, uint64_t done)
{
    return (uint64_t)((unsigned __int128)done * worker->syncs / worker->launches);
}

static void run(struct worker *worker)
{
    uint64_t begin = now_ns(), unsynced = 0, i;
    double arrival = (double)begin;
    cudaStream_t stream = worker->streams[0];
    for (i = 0; i < worker->launches && !stop; i++) {
        if (options.rate > 0)
            wait_for_arrival(worker, &arrival);
        if (ticketed)
            at_ticket(__atomic_fetch_add(&tickets, 1, __ATOMIC_RELAXED));
        if (worker->stream_count > 1)
            stream = worker->streams[(worker->index + i) % worker->stream_count];
        launch(worker, i, stream, options.fail_every && (i + 1) % options.fail_every == 0);
        unsynced++;
        uint64_t due = 0;
        if (options.syncs_given)
            due = syncs_due(worker, i + 1) - syncs_due(worker, i);
        else if (options.sync_every && unsynced == options.sync_every)
            due = 1;
        for (; due; due--, unsynced = 0)
            wait_for(worker, api_at(i), stream);
    }
    worker->launched = i;
    worker->loop_ns = now_ns() - begin;
    if (!options.syncs_given && unsynced)
        wait_for(worker, api_at(i ? i - 1 : 0), stream);
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    cuda_bind();
    if (options.capture)
        graph_destroy(capture(worker, options.capture));
    if (options.graph) {
        cudaGraph_t graph = capture(worker, options.graph);
        cudaGraphExec_t exec;
        check(uses_runtime() ? rt.cudaGraphInstantiate(&exec, graph, 0)
                             : cu.cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
        graph_destroy(graph);
        worker->graph = exec;
    }
    pthread_barrier_wait(&all_ready);
    pthread_barrier_wait(&may_go);
    run(worker);
    if (worker->graph)
        check(uses_runtime() ? rt.cudaGraphExecDestroy(worker->graph) : cu.cuGraphExecDestroy(worker->graph),
              "exec destroy");
    return NULL;
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
        if (options.sync_kind == SYNC_EVENT)
            check(uses_runtime() ? rt.cudaEventCreate(&worker->event) : cu.cuEventCreate(&worker->event, 0),
                  "event create");
    }
    pick_kernel(workers, 0);
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
    puts("}}");
}

static void load(void)
{
    pause_for(options.dlopen_after);
    cuda_open();
    kernels_load();
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
    pause_for(options.wait_after);
    kernels_unload();
    if (options.print_rate)
        print_rate(workers, seconds);
    free(workers);
    free(streams);
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
