/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * For how long a thread that launches was off the processor: blocked, or ready to run and waiting for a processor.
 *
 * Three programs on raw tracepoints. They are handed pointers to task_struct, which are compared and never followed: no
 * offset in it is needed, neither BTF nor tracefs. A thread is found by the pointer from its first traced call until it
 * exits.
 *
 * What a thread did is told by its wake-up, not by its state, which not every kernel hands over: one that was not woken
 * between leaving a processor and getting one was ready all the time, one that was had been blocked until then.
 * sched_wakeup and not sched_waking, which may come before the thread that it wakes has left its processor.
 */
#if defined(KDIFF_SCHEDULING)

struct thread {
    u64 id; /* process and thread: a task_struct is used again */
    u64 out_ns; /* when it left its processor; 0: it has one */
    u64 woken_ns; /* when it was woken since; 0: it was not */
    u64 runnable_ns, blocked_ns; /* so far */
    u64 entry_runnable_ns, entry_blocked_ns; /* as they were when its call began */
    u64 left_runnable_ns, left_blocked_ns; /* as they were when the call before it ended, where `called` */
    u64 called;
};

struct waited {
    u8 flags;
    struct wait_record record;
};

BPF_HASH(threads, u64, struct thread, KDIFF_THREADS);
BPF_RINGBUF_OUTPUT(waits, KDIFF_WAIT_PAGES);

/* After the call's time was taken: what is counted of it lies in it. */
static __always_inline void begin_waits(u64 id, u8 kind)
{
    u64 task = bpf_get_current_task();
    if (kind > KIND_SYNC)
        return;
    struct thread *thread = threads.lookup(&task);
    if (!thread || thread->id != id) {
        struct thread fresh = {.id = id};
        threads.update(&task, &fresh); /* where there is no room its waits stay unknown */
        return;
    }
    thread->entry_runnable_ns = thread->runnable_ns;
    thread->entry_blocked_ns = thread->blocked_ns;
}

/* What the call that ends waited, and its thread between the call before and this one. Before its length is taken. */
static __always_inline void end_waits(struct event_record *event, u8 has_return, struct waited *waited)
{
    u64 task = bpf_get_current_task(), id = (u64)event->pid << 32 | event->tid;
    if (event->kind > KIND_SYNC)
        return;
    struct thread *thread = threads.lookup(&task);
    if (!thread || thread->id != id)
        return;
    struct wait_record *r = &waited->record;
    if (has_return) {
        waited->flags = FLAG_WAITS_KNOWN;
        r->runnable_ns = thread->runnable_ns - thread->entry_runnable_ns;
        r->blocked_ns = thread->blocked_ns - thread->entry_blocked_ns;
    }
    if (thread->called) {
        waited->flags |= FLAG_WAITS_BEFORE_KNOWN;
        r->runnable_before_ns = thread->entry_runnable_ns - thread->left_runnable_ns;
        r->blocked_before_ns = thread->entry_blocked_ns - thread->left_blocked_ns;
    }
    thread->left_runnable_ns = thread->runnable_ns;
    thread->left_blocked_ns = thread->blocked_ns;
    thread->called = 1;
}

/* Emits what is not 0, before its event is: whoever reads the event finds it. A full ring leaves it unknown. */
static __always_inline void emit_waits(struct event_record *event, struct waited *waited)
{
    struct wait_record *r = &waited->record;
    if (r->runnable_ns | r->blocked_ns | r->runnable_before_ns | r->blocked_before_ns) {
        struct wait_record *slot = waits.ringbuf_reserve(sizeof(*slot));
        if (!slot)
            return;
        r->timestamp_ns = event->timestamp_ns;
        r->pid = event->pid;
        r->tid = event->tid;
        __builtin_memcpy(slot, r, sizeof(*slot));
        waits.ringbuf_submit(slot, 1);
        waited->flags |= FLAG_WAITED;
    }
    event->flags |= waited->flags;
}

struct tracepoint {
    u64 arguments[4];
};

static __always_inline void left_processor(u64 task)
{
    struct thread *thread = threads.lookup(&task);
    if (!thread)
        return;
    thread->woken_ns = 0;
    thread->out_ns = bpf_ktime_get_ns();
}

static __always_inline void got_processor(u64 task)
{
    struct thread *thread = threads.lookup(&task);
    if (!thread || !thread->out_ns)
        return;
    u64 now = bpf_ktime_get_ns(), ready = thread->out_ns;
    if (thread->woken_ns) {
        thread->blocked_ns += thread->woken_ns - thread->out_ns;
        ready = thread->woken_ns;
    }
    thread->runnable_ns += now - ready;
    thread->out_ns = 0;
}

/* (preempt, prev, next, ...); while 5.18 was made, and wherever that was taken over, (preempt, state, prev, next). */
int sched_switched(struct tracepoint *ctx)
{
    u64 third = ctx->arguments[2], leaving = bpf_get_current_task();
    left_processor(leaving);
    got_processor(third == leaving ? ctx->arguments[3] : third);
    return 0;
}

int sched_woken(struct tracepoint *ctx)
{
    u64 task = ctx->arguments[0];
    struct thread *thread = threads.lookup(&task);
    if (thread && thread->out_ns && !thread->woken_ns)
        thread->woken_ns = bpf_ktime_get_ns();
    return 0;
}

int sched_exited(struct tracepoint *ctx)
{
    u64 task = ctx->arguments[0];
    threads.delete(&task);
    return 0;
}

#else

struct waited {
};

static __always_inline void begin_waits(u64 id, u8 kind)
{
}

static __always_inline void end_waits(struct event_record *event, u8 has_return, struct waited *waited)
{
}

static __always_inline void emit_waits(struct event_record *event, struct waited *waited)
{
}

#endif
