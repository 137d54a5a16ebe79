/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * One row a launch, whatever it passed through. The outermost probed call of a thread opens a `call`, a driver
 * call of the same kind inside a runtime call adds what only the driver knows (the function handle), and the
 * return of the call that opened it emits the row. Which return that is, the stack pointer tells.
 *
 * Four programs serve every CUDA function: what is particular to a function is in the cookie of its probe (COOKIE_*).
 * A fifth, device_entry, copies what the device library hands over. scheduling.h has those of --scheduling.
 *
 * Compiled with KDIFF_EVENT_PAGES, KDIFF_NAME_PAGES, KDIFF_DEVICE_PAGES and KDIFF_LOSS_ENTRIES; with KDIFF_SCHEDULING also
 * with KDIFF_THREADS and KDIFF_WAIT_PAGES.
 */
struct process {
    u32 decision;
    u32 generation;
    u32 name_offset;
    u32 padding;
};

struct call {
    u64 sp; /* of the call that opened it; 0: none is open */
    u64 caller; /* its return address; 0: not read. Later a return probe's trampoline stands in its place. */
    u32 in_runtime; /* opened by the runtime, and the driver has not been reached yet */
    u32 padding;
    struct event_record event;
};

struct handle_key {
    u64 handle;
    u32 pid;
    u32 padding;
};

struct loss_key {
    u32 pid;
    u32 kind;
};

struct named_call {
    u64 out;  /* where the handle will be stored */
    u64 name; /* the name asked for, or the CUkernel */
    u32 source;
    u32 padding;
};

/* bpf_get_attach_cookie, which BCC's headers do not all declare. */
static u64 (*attach_cookie)(void *ctx) = (void *)174;

#define COOKIE_API(c) ((u8)(c))
#define COOKIE_KIND(c) ((u8)((c) >> 8))
#define COOKIE_SHAPE(c) ((u8)((c) >> 16))
#define COOKIE_SYNC(c) ((u8)((c) >> 24))
#define COOKIE_FLAGS(c) ((u8)((c) >> 32))
#define COOKIE_ROLE(c) ((u8)((c) >> 40))

BPF_RINGBUF_OUTPUT(events, KDIFF_EVENT_PAGES);
BPF_RINGBUF_OUTPUT(names, KDIFF_NAME_PAGES);
BPF_RINGBUF_OUTPUT(device, KDIFF_DEVICE_PAGES);
BPF_HASH(processes, u32, struct process, 16384);
BPF_TABLE("lru_hash", u64, struct call, calls, 65536);
BPF_TABLE("lru_hash", struct handle_key, u32, seen, 131072);
BPF_TABLE("lru_hash", u64, struct named_call, named, 16384);
/* Each loss is in one of the first two, the second where the first has no room; and in the third, counted last. */
BPF_HASH(lost_by, struct loss_key, u64, KDIFF_LOSS_ENTRIES);
BPF_PERCPU_ARRAY(lost_of_nobody, u64, KINDS);
BPF_PERCPU_ARRAY(lost, u64, KINDS);

static __always_inline void count_lost(u32 pid, u32 kind, u64 records)
{
    struct loss_key key = {.pid = pid, .kind = kind};
    u64 none = 0, *n = lost_by.lookup_or_try_init(&key, &none);
    if (n) {
        __sync_fetch_and_add(n, records);
    } else {
        n = lost_of_nobody.lookup(&kind);
        if (n)
            *n += records;
    }
    n = lost.lookup(&kind);
    if (n)
        *n += records;
}

static __always_inline void emit(struct event_record *event, struct waited *waited)
{
    struct event_record *slot = events.ringbuf_reserve(sizeof(*slot));
    if (!slot) {
        count_lost(event->pid, event->kind, 1);
        return;
    }
    emit_waits(event, waited);
    __builtin_memcpy(slot, event, sizeof(*slot));
    events.ringbuf_submit(slot, 1 /* BPF_RB_NO_WAKEUP: the agent polls */);
}

/* Emits the name behind a handle when the handle is first launched in this generation. */
static __always_inline void note_name(struct process *process, struct event_record *event, struct call *call, u32 source)
{
    struct handle_key key = {.handle = event->handle, .pid = event->pid};
    u32 *generation = seen.lookup(&key);
    if (generation && *generation == event->generation)
        return;
    struct name_record *slot = names.ringbuf_reserve(sizeof(*slot));
    if (!slot) { /* not marked as seen: the next launch tries again */
        count_lost(event->pid, KIND_NAME, 1);
        return;
    }
    u32 offset = process && process->name_offset ? process->name_offset : DEFAULT_NAME_OFFSET;
    u64 text = 0;
    slot->timestamp_ns = event->timestamp_ns;
    slot->handle = event->handle;
    slot->caller = call->caller ? call->caller : caller_of(call->sp, 0);
    slot->pid = event->pid;
    slot->generation = event->generation;
    slot->source = source;
    slot->name_offset = offset;
    slot->padding = 0;
    slot->name[0] = 0;
    slot->length = bpf_probe_read_user(&text, sizeof(text), (void *)(event->handle + offset));
    if (slot->length == 0)
        slot->length = bpf_probe_read_user_str(slot->name, sizeof(slot->name), (void *)text);
    names.ringbuf_submit(slot, 1);
    u32 now = event->generation;
    seen.update(&key, &now);
}

/* Fills in what the call was given. Registers are read before the branches: see READ. */
static __always_inline void read_arguments(struct pt_regs *ctx, u64 sp, struct call *call, u8 shape)
{
    struct event_record *e = &call->event;
    u64 a1 = READ(ARG1(ctx)), a2 = READ(ARG2(ctx)), a3 = READ(ARG3(ctx)), a4 = READ(ARG4(ctx)), a5 = READ(ARG5(ctx));
    u64 a6 = READ(ARG6(ctx));
    u64 above[3] = {}; /* arguments seven to nine */
    if (shape == SHAPE_DRIVER_LAUNCH || shape == SHAPE_RUNTIME_LAUNCH)
        call->caller = read_further(ctx, sp, above);
    if (shape == SHAPE_DRIVER_LAUNCH) {
        e->handle = a1;
        e->grid[0] = a2;
        e->grid[1] = a3;
        e->grid[2] = a4;
        e->block[0] = a5;
        e->block[1] = a6;
        e->block[2] = above[0];
        e->shared_bytes = above[1];
        e->stream = above[2];
    } else if (shape == SHAPE_RUNTIME_LAUNCH) {
        e->handle = a1;
        e->grid[0] = a2;
        e->grid[1] = a2 >> 32;
        e->grid[2] = a3;
        e->block[0] = a4;
        e->block[1] = a4 >> 32;
        e->block[2] = a5;
        e->shared_bytes = above[0];
        e->stream = above[1];
    } else if (shape == SHAPE_LAUNCH_CONFIG) {
        /* CUlaunchConfig and cudaLaunchConfig_t alike, but for the upper half of shared, which is not used here. */
        struct {
            u32 grid[3], block[3];
            u64 shared;
            u64 stream;
        } config = {};
        bpf_probe_read_user(&config, sizeof(config), (void *)a1);
        e->handle = a2;
        __builtin_memcpy(e->grid, config.grid, sizeof(e->grid));
        __builtin_memcpy(e->block, config.block, sizeof(e->block));
        e->shared_bytes = config.shared;
        e->stream = config.stream;
    } else if (shape == SHAPE_GRAPH || shape == SHAPE_HANDLE_STREAM) {
        e->handle = a1;
        e->stream = a2;
    } else if (shape == SHAPE_STREAM_HANDLE) {
        e->stream = a1;
        e->handle = a2;
    } else if (shape == SHAPE_STREAM) {
        e->stream = a1;
    } else if (shape == SHAPE_HANDLE) {
        e->handle = a1;
    }
}

static __always_inline struct call *call_of(u64 id)
{
    struct call *call = calls.lookup(&id);
    if (call)
        return call;
    struct call fresh = {};
    calls.update(&id, &fresh);
    return calls.lookup(&id);
}

#define TRACED(process) (!(process) || (process)->decision != DECISION_IGNORE)

/*
 * Whether the runtime call is still running. Its return closes it; where that is not probed, a call that never reached
 * the driver (the runtime refused it) must not be taken for the next one: its return address is still on the stack,
 * and it began a moment ago (a first launch loads its module).
 */
static __always_inline int still_open(struct call *call, u8 role)
{
    if (role & ROLE_RETURNS)
        return 1;
    if (bpf_ktime_get_ns() - call->event.timestamp_ns >= 10000000)
        return 0;
    u64 caller = caller_of(call->sp, call->caller);
    return caller == call->caller || leads_to_return_probes(caller); /* another agent's */
}

int call_entry(struct pt_regs *ctx)
{
    u64 id = bpf_get_current_pid_tgid();
    u32 pid = id >> 32;
    struct process *process = processes.lookup(&pid);
    if (!TRACED(process))
        return 0;
    struct call *call = call_of(id);
    if (!call)
        return 0;
    u64 cookie = attach_cookie(ctx), sp = READ(SP(ctx));
    u8 kind = COOKIE_KIND(cookie), role = COOKIE_ROLE(cookie);
    struct event_record *e = &call->event;
    if (!(role & ROLE_RUNTIME) && call->in_runtime && call->sp > sp && e->kind == kind &&
        still_open(call, role)) {
        u64 first = READ(ARG1(ctx)), second = READ(ARG2(ctx));
        call->in_runtime = 0;
        if (kind == KIND_LAUNCH) /* all but the handle is what the runtime was given */
            e->handle = COOKIE_SHAPE(cookie) == SHAPE_LAUNCH_CONFIG ? second : first;
        e->flags = (e->flags & ~FLAG_RUNTIME_HANDLE) | COOKIE_FLAGS(cookie);
    } else {
        if (call->sp > sp) /* a call inside the open one, which its return will not find any more */
            count_lost(pid, e->kind, 1);
        __builtin_memset(e, 0, sizeof(*e));
        call->sp = sp;
        call->caller = LINK_REGISTER(ctx);
        if ((role & ROLE_RUNTIME) && (COOKIE_SHAPE(cookie) == SHAPE_LAUNCH_CONFIG || COOKIE_SHAPE(cookie) == SHAPE_GRAPH))
            call->caller = caller_of(sp, call->caller);
        call->in_runtime = role & ROLE_RUNTIME;
        e->timestamp_ns = bpf_ktime_get_ns();
        begin_waits(id, kind);
        e->pid = pid;
        e->tid = id;
        e->generation = process ? process->generation : 0;
        e->kind = kind;
        e->api = COOKIE_API(cookie);
        e->flags = COOKIE_FLAGS(cookie);
        e->sync = COOKIE_SYNC(cookie);
        read_arguments(ctx, sp, call, COOKIE_SHAPE(cookie));
        if (role & ROLE_RUNTIME)
            e->flags |= FLAG_RUNTIME_HANDLE;
    }
    if (!(role & ROLE_LAST))
        return 0;
    if (kind == KIND_LAUNCH)
        note_name(process, e, call, role & ROLE_RUNTIME ? SOURCE_RUNTIME : SOURCE_HANDLE);
    if (!(role & ROLE_RETURNS)) {
        struct waited waited = {};
        e->flags |= FLAG_NO_RETURN;
        end_waits(e, 0, &waited);
        emit(e, &waited);
        call->sp = 0;
        call->in_runtime = 0;
    }
    return 0;
}

/* The stack pointer tells whether this return closes the call that is open. */
int call_return(struct pt_regs *ctx)
{
    u64 id = bpf_get_current_pid_tgid();
    struct call *call = calls.lookup(&id);
    if (!call || call->sp == 0 || call->sp != ENTRY_SP(ctx))
        return 0;
    struct waited waited = {};
    call->sp = 0;
    call->in_runtime = 0;
    end_waits(&call->event, 1, &waited);
    call->event.duration_ns = bpf_ktime_get_ns() - call->event.timestamp_ns;
    call->event.status = RESULT(ctx);
    if (call->event.flags & FLAG_STORED) {
        u64 where = call->event.handle;
        call->event.handle = 0;
        bpf_probe_read_user(&call->event.handle, sizeof(u64), (void *)where);
    }
    emit(&call->event, &waited);
    return 0;
}

/* Handles: when they get a name, and when they may be reused. */

static __always_inline void new_generation(u32 pid)
{
    struct process fresh = {};
    struct process *process = processes.lookup(&pid);
    /* Unique for the process by being the time: nothing has to be cleaned when a pid is reused. */
    u32 generation = bpf_ktime_get_ns() >> 10;
    if (process)
        process->generation = generation;
    else {
        fresh.generation = generation;
        processes.insert(&pid, &fresh);
    }
}

static __always_inline void note_init(u64 id)
{
    struct event_record event = {};
    struct waited waited = {};
    event.timestamp_ns = bpf_ktime_get_ns();
    event.pid = id >> 32;
    event.tid = id;
    event.kind = KIND_INIT;
    emit(&event, &waited);
}

int lifecycle_entry(struct pt_regs *ctx)
{
    u64 id = bpf_get_current_pid_tgid();
    u32 pid = id >> 32;
    struct process *process = processes.lookup(&pid);
    if (!TRACED(process))
        return 0;
    u64 step = attach_cookie(ctx), second = READ(ARG2(ctx)), third = READ(ARG3(ctx));
    if (step == STEP_UNLOAD) {
        new_generation(pid);
        return 0;
    }
    if (step == STEP_INIT) {
        if (!process) /* a reused pid must not find the names of the process before it */
            new_generation(pid);
        note_init(id);
        return 0;
    }
    struct named_call call = {.out = ARG1(ctx)};
    if (step == STEP_ALIAS) {
        call.source = SOURCE_ALIAS;
        call.name = second;
    } else {
        call.source = SOURCE_LOAD;
        call.name = third;
    }
    named.update(&id, &call);
    return 0;
}

int lifecycle_return(struct pt_regs *ctx)
{
    u64 id = bpf_get_current_pid_tgid();
    u32 pid = id >> 32;
    struct named_call *call = named.lookup(&id);
    if (!call)
        return 0;
    struct named_call open = *call;
    named.delete(&id);
    if (RESULT(ctx) != 0)
        return 0;
    struct process *process = processes.lookup(&pid);
    struct name_record *slot = names.ringbuf_reserve(sizeof(*slot));
    if (!slot) {
        count_lost(pid, KIND_NAME, 1);
        return 0;
    }
    slot->timestamp_ns = bpf_ktime_get_ns();
    slot->handle = 0;
    bpf_probe_read_user(&slot->handle, sizeof(slot->handle), (void *)open.out);
    slot->caller = open.name;
    slot->pid = pid;
    slot->generation = process ? process->generation : 0;
    slot->source = open.source;
    slot->name_offset = 0;
    slot->padding = 0;
    slot->name[0] = 0;
    slot->length = 0;
    if (open.source == SOURCE_LOAD)
        slot->length = bpf_probe_read_user_str(slot->name, sizeof(slot->name), (void *)open.name);
    names.ringbuf_submit(slot, 1);
    return 0;
}

/* What the device library hands over: see device_wire.py. Nothing of it is believed here but that it has a length. */
int device_entry(struct pt_regs *ctx)
{
    u64 id = bpf_get_current_pid_tgid();
    u32 pid = id >> 32;
    struct process *process = processes.lookup(&pid);
    if (!TRACED(process))
        return 0;
    u64 batch = READ(ARG1(ctx)), bytes = READ((u32)ARG2(ctx));
    u32 executions = READ(ARG3(ctx));
    struct handed_record *slot = device.ringbuf_reserve(sizeof(*slot));
    if (!slot) { /* a program may say anything: no batch holds more */
        count_lost(pid, KIND_EXECUTION, executions < MOST_EXECUTIONS ? executions : MOST_EXECUTIONS);
        return 0;
    }
    slot->timestamp_ns = bpf_ktime_get_ns();
    slot->pid = pid;
    slot->tid = id;
    slot->executions = executions;
    if (bytes > BATCH_BYTES)
        bytes = BATCH_BYTES;
    slot->bytes = bpf_probe_read_user(slot->batch, bytes, (void *)batch) == 0 ? bytes : 0;
    device.ringbuf_submit(slot, 1);
    return 0;
}
