/* The threads that launch and wait. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "workload.h"

_Atomic int stop;
bool ticketed, swapping;
/* The default kind would let busy threads keep a swap waiting for ever. */
pthread_rwlock_t modules = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
pthread_barrier_t all_ready, may_go;

static uint64_t tickets; /* launches begun by all threads; counted only when something depends on it */

void pause_until(uint64_t ns)
{
    struct timespec at = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (!stop && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

static double random_unit(uint64_t *state) /* in (0, 1) */
{
    uint64_t bits = *state += 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return ((double)((bits ^ bits >> 31) >> 11) + 0.5) * 0x1p-53;
}

/* ---- one launch, one wait ---- */

static double weight_sum;
static bool weights_differ;

void pick_kernel_prepare(void)
{
    for (size_t i = 0; i < options.kernel_count; i++) {
        weight_sum += options.kernels[i].weight;
        weights_differ |= options.kernels[i].weight != options.kernels[0].weight;
    }
}

static struct kernel *pick_kernel(struct worker *worker, uint64_t turn)
{
    if (!weights_differ)
        return &options.kernels[turn % options.kernel_count];
    double point = random_unit(&worker->random) * weight_sum;
    size_t i = 0;
    while (i + 1 < options.kernel_count && (point -= options.kernels[i].weight) >= 0)
        i++;
    return &options.kernels[i];
}

static int launch_by(enum api api, const struct kernel *kernel, dim3 grid, dim3 block, cudaStream_t stream)
{
    unsigned shared = options.shared_bytes;
    if (api == API_RUNTIME && options.nvcc13) {
        cudaKernel_t handle;
        check(rt.__cudaGetKernel(&handle, kernel->stub), "get kernel");
        return rt.__cudaLaunchKernel(handle, grid, block, NULL, shared, stream);
    }
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
    /* A kernel meets every API: the two turns must not run in step. */
    return options.api == API_MIXED ? (enum api)(turn / options.kernel_count % API_COUNT) : options.api;
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

/* What is launched on `stream` from here on follows what was launched on the other one until now. */
static void follow(struct worker *worker, cudaStream_t stream, cudaStream_t other)
{
    if (uses_runtime()) {
        check(rt.cudaEventRecord(worker->event, other), "event record");
        check(rt.cudaStreamWaitEvent(stream, worker->event, 0), "wait for event");
    } else {
        check(cu.cuEventRecord(worker->event, other), "event record");
        check(cu.cuStreamWaitEvent(stream, worker->event, 0), "wait for event");
    }
}

static cudaGraph_t capture(struct worker *worker, uint64_t launches)
{
    cudaStream_t stream = worker->streams[0], second = worker->streams[options.fork_capture];
    bool runtime = uses_runtime();
    cudaGraph_t graph;
    check(runtime ? rt.cudaStreamBeginCapture(stream, 0) : cu.cuStreamBeginCapture_v2(stream, 0), "begin capture");
    if (options.fork_capture)
        follow(worker, second, stream);
    for (uint64_t i = 0; i < launches; i++)
        launch(worker, i, i % 2 ? second : stream, false);
    if (options.fork_capture)
        follow(worker, stream, second);
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

void *worker_main(void *argument)
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
