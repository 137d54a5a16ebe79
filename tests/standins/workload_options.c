/* The workload's command line. */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profiler.h"
#include "workload.h"

struct options options = {.threads = 1, .seed = 1};

static const char help[] =
    "usage: workload [OPTION]...\n"
    "Launches kernels on the stand-in GPU.\n"
    "\n"
    "What:\n"
    "  --kernel SPEC       NAME:median_us[:sigma[:tail_prob[:tail_factor[:quantum_ns]]]][@GXxGYxGZ/BXxBYxBZ][*WEIGHT]\n"
    "                      repeatable; equal weights take turns, others are drawn; default kernel:5@64/256\n"
    "  --launches N        launches in all, shared out among the threads (default 1000 unless --duration)\n"
    "  --duration S        stop after S seconds\n"
    "  --rate R            launches a second in all, Poisson arrivals (default: as fast as possible)\n"
    "  --threads T         (1)\n"
    "  --streams S         streams in all, each thread taking turns among them (default: one of its own)\n"
    "  --default-stream    the legacy default stream      --per-thread-stream  the handle 0x2\n"
    "  --api NAME          runtime, driver, runtime-ex, driver-ex, mixed (all four in turn)\n"
    "  --ptsz              the per-thread-default-stream forms of the calls\n"
    "  --nvcc13            --api runtime as nvcc 13 compiles it: __cudaLaunchKernel with the kernel's handle\n"
    "  --shared BYTES      dynamic shared memory of each launch\n"
    "  --seed N            of the durations, arrivals and draws (1)\n"
    "\n"
    "Waiting:\n"
    "  --sync-every K      each thread waits after each K launches, and at the end\n"
    "  --syncs M           exactly M waits in all, evenly spread, the last after the last launch (0: none)\n"
    "  --isolated          the same as --sync-every 1     (none of these: one wait a thread, at the end)\n"
    "  --device-sync       wait for the device            --event-sync         wait for an event\n"
    "\n"
    "Trouble:\n"
    "  --change NAME=FACTOR@SECOND, NAME=FACTOR@launch:N   the kernel gets slower or faster in place\n"
    "  --swap NAME=FACTOR[:NEWNAME]@...                    the same by unloading its module and loading another\n"
    "  --reload-every K    every K launches a kernel is replaced by one of another name, at the same handle\n"
    "  --fail-every K      each thread's every K-th launch fails in the driver (too many threads in a block)\n"
    "  --fail-zero-grid    ... by an empty grid instead (the runtime refuses it without calling the driver)\n"
    "  --name-length L     lengthen the kernels' names to L characters\n"
    "\n"
    "Graphs:\n"
    "  --graph K           each thread captures K launches into a graph; --launches then counts its replays\n"
    "  --capture K         each thread first captures K launches into a graph that is thrown away\n"
    "  --fork-capture      every other one of them on a second stream, which joins the capture (--streams 2)\n"
    "\n"
    "Meanwhile (seconds count from the first launch; events happen in the order given):\n"
    "  --profile AT:FOR:LAUNCHES  a profiler session that launches a kernel of its own, on a stream of its own\n"
    "  --profiler PATH     the profiler library            --profiler-first  opened before CUDA, not at its first use\n"
    "  --manners NAME      with CUPTI's subscription: keep (default), give, finalize, bare\n"
    "  --fork-at S         a child that only exits         --dlclose-at S    the injected library is closed\n"
    "  --end-at S:HOW      exit, _exit, term, kill or abort\n"
    "\n"
    "Process:\n"
    "  --fork              run the load in a child process\n"
    "  --runtime PATH      use the runtime library at PATH, opened late\n"
    "  --dlopen-after S    wait S seconds before opening any CUDA library by path\n"
    "  --lazy              load modules at the first launch, as the runtime does by itself\n"
    "  --ready-file PATH   created when all is loaded      --go-file PATH  launch only when this exists\n"
    "  --wait-before S, --wait-after S                     seconds around the load\n"
    "  --truth FILE        what really happened, for standins.py to read; the names go to FILE.names\n"
    "  --print-rate        counts and ns per launch, as JSON on stdout\n";

void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("workload: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

static double number(const char *text, const char *what)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0))
        fail("%s: not a number of zero or more: %s", what, text);
    return value;
}

static uint64_t count(const char *text, const char *what)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end)
        fail("%s: not a whole number: %s", what, text);
    return value;
}

static dim3 extent(const char *text)
{
    dim3 shape = {1, 1, 1};
    int used = 0;
    if (sscanf(text, "%ux%ux%u%n", &shape.x, &shape.y, &shape.z, &used) == 3 && !text[used])
        return shape;
    shape.z = 1;
    if (sscanf(text, "%ux%u%n", &shape.x, &shape.y, &used) == 2 && !text[used])
        return shape;
    shape.y = 1;
    if (sscanf(text, "%u%n", &shape.x, &used) == 1 && !text[used])
        return shape;
    fail("--kernel: not a shape such as 8x8x1: %s", text);
}

static void add_kernel(const char *spec)
{
    struct kernel kernel = {.tail_factor = 1, .grid = {64, 1, 1}, .block = {256, 1, 1}, .weight = 1, .factor = 1};
    char *text = strdup(spec), *part;
    if ((part = strrchr(text, '*'))) {
        *part = 0;
        kernel.weight = number(part + 1, "--kernel weight");
    }
    if ((part = strchr(text, '@'))) {
        *part++ = 0;
        char *slash = strchr(part, '/');
        if (!slash)
            fail("--kernel: a shape is GRID/BLOCK: %s", part);
        *slash = 0;
        kernel.grid = extent(part);
        kernel.block = extent(slash + 1);
    }
    double *fields[] = {&kernel.median_us, &kernel.sigma, &kernel.tail_probability, &kernel.tail_factor,
                        &kernel.quantum_ns};
    char *rest = text;
    kernel.given = strdup(strsep(&rest, ":"));
    kernel.name = strdup(kernel.given);
    if (!*kernel.name || !rest)
        fail("--kernel: NAME:median_us is needed: %s", spec);
    for (size_t i = 0; rest; i++) {
        if (i == sizeof fields / sizeof *fields)
            fail("--kernel: too many fields: %s", spec);
        *fields[i] = number(strsep(&rest, ":"), "--kernel");
    }
    free(text);
    options.kernels = realloc(options.kernels, (options.kernel_count + 1) * sizeof kernel);
    options.kernels[options.kernel_count++] = kernel;
}

static void add_change(const char *spec, bool swap)
{
    struct change change = {.swap = swap};
    char *text = strdup(spec);
    char *at = strrchr(text, '@'), *equals = strchr(text, '=');
    if (!at || !equals || equals > at)
        fail("a change is NAME=FACTOR@SECOND or NAME=FACTOR@launch:N: %s", spec);
    *at++ = *equals = 0;
    char *factor = equals + 1, *colon = swap ? strchr(factor, ':') : NULL;
    if (colon) {
        *colon = 0;
        change.new_name = strdup(colon + 1);
    }
    change.kernel = text;
    change.factor = number(factor, "factor");
    change.by_launch = strncmp(at, "launch:", 7) == 0;
    if (change.by_launch)
        change.launch = count(at + 7, "launch");
    else
        change.second = number(at, "second");
    options.changes = realloc(options.changes, (options.change_count + 1) * sizeof change);
    options.changes[options.change_count++] = change;
}

static void add_event(enum event_kind kind, const char *spec)
{
    static const char *const what[] = {"--profile", "--fork-at", "--dlclose-at", "--end-at"};
    struct event event = {.kind = kind};
    char *rest = strdup(spec);
    event.second = number(strsep(&rest, ":"), what[kind]);
    if (kind == EVENT_PROFILE) {
        if (!rest || !strchr(rest, ':'))
            fail("--profile: AT:FOR:LAUNCHES is needed: %s", spec);
        event.length = number(strsep(&rest, ":"), what[kind]);
        event.launches = count(rest, what[kind]);
    } else if (kind == EVENT_END) {
        if (!rest)
            fail("--end-at: S:HOW is needed: %s", spec);
        event.how = rest;
    }
    options.events = realloc(options.events, (options.event_count + 1) * sizeof event);
    options.events[options.event_count++] = event;
}

static int parse_manners(const char *text)
{
    static const char *const names[] = {"keep", "give", "finalize", "bare"};
    for (int i = 0; i <= PROFILER_BARE; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    fail("--manners: not one of keep, give, finalize, bare: %s", text);
}

static enum api parse_api(const char *text)
{
    static const char *const names[] = {"runtime", "driver", "runtime-ex", "driver-ex", "mixed"};
    for (int i = 0; i <= API_MIXED; i++)
        if (strcmp(text, names[i]) == 0)
            return (enum api)i;
    fail("--api: not one of runtime, driver, runtime-ex, driver-ex, mixed: %s", text);
}

static void lengthen_names(void)
{
    for (size_t i = 0; i < options.kernel_count; i++) {
        struct kernel *kernel = &options.kernels[i];
        size_t length = strlen(kernel->name);
        if (length >= options.name_length)
            continue;
        kernel->name = realloc(kernel->name, options.name_length + 1);
        memset(kernel->name + length, 'x', options.name_length - length);
        kernel->name[options.name_length] = 0;
    }
}

#define OPTIONS(FLAG, VALUE) \
    VALUE("kernel", add_kernel(optarg)) \
    VALUE("launches", options.launches = count(optarg, "--launches"), options.launches_given = true) \
    VALUE("duration", options.duration = number(optarg, "--duration")) \
    VALUE("rate", options.rate = number(optarg, "--rate")) \
    VALUE("threads", options.threads = (unsigned)count(optarg, "--threads")) \
    VALUE("streams", options.streams = (unsigned)count(optarg, "--streams")) \
    FLAG("default-stream", options.stream_kind = STREAM_LEGACY) \
    FLAG("per-thread-stream", options.stream_kind = STREAM_PER_THREAD) \
    VALUE("api", options.api = parse_api(optarg)) \
    FLAG("ptsz", options.ptsz = true) \
    FLAG("nvcc13", options.nvcc13 = true) \
    VALUE("shared", options.shared_bytes = (unsigned)count(optarg, "--shared")) \
    VALUE("seed", options.seed = count(optarg, "--seed")) \
    VALUE("sync-every", options.sync_every = count(optarg, "--sync-every")) \
    VALUE("syncs", options.syncs = count(optarg, "--syncs"), options.syncs_given = true) \
    FLAG("isolated", options.sync_every = 1) \
    FLAG("device-sync", options.sync_kind = SYNC_DEVICE) \
    FLAG("event-sync", options.sync_kind = SYNC_EVENT) \
    VALUE("change", add_change(optarg, false)) \
    VALUE("swap", add_change(optarg, true)) \
    VALUE("reload-every", options.reload_every = count(optarg, "--reload-every")) \
    VALUE("fail-every", options.fail_every = count(optarg, "--fail-every")) \
    FLAG("fail-zero-grid", options.fail_zero_grid = true) \
    VALUE("name-length", options.name_length = count(optarg, "--name-length")) \
    VALUE("graph", options.graph = count(optarg, "--graph")) \
    VALUE("capture", options.capture = count(optarg, "--capture")) \
    FLAG("fork-capture", options.fork_capture = true) \
    VALUE("profile", add_event(EVENT_PROFILE, optarg)) \
    VALUE("fork-at", add_event(EVENT_FORK, optarg)) \
    VALUE("dlclose-at", add_event(EVENT_DLCLOSE, optarg)) \
    VALUE("end-at", add_event(EVENT_END, optarg)) \
    VALUE("profiler", options.profiler = optarg) \
    FLAG("profiler-first", options.profiler_first = true) \
    VALUE("manners", options.manners = parse_manners(optarg)) \
    FLAG("fork", options.fork = true) \
    VALUE("runtime", options.runtime_path = optarg) \
    VALUE("dlopen-after", options.dlopen_after = number(optarg, "--dlopen-after")) \
    FLAG("lazy", options.lazy = true) \
    VALUE("ready-file", options.ready_file = optarg) \
    VALUE("go-file", options.go_file = optarg) \
    VALUE("wait-before", options.wait_before = number(optarg, "--wait-before")) \
    VALUE("wait-after", options.wait_after = number(optarg, "--wait-after")) \
    VALUE("truth", options.truth = optarg) \
    FLAG("print-rate", options.print_rate = true) \
    FLAG("help", (fputs(help, stdout), exit(0)))

static void option_set(int index)
{
    int row = 0;
#define SET(name, ...) \
    if (row++ == index) { \
        __VA_ARGS__; \
        return; \
    }
    OPTIONS(SET, SET)
}

void options_parse(int argc, char **argv)
{
    static const struct option rows[] = {
#define FLAG_ROW(name, ...) {name, no_argument, NULL, 0},
#define VALUE_ROW(name, ...) {name, required_argument, NULL, 0},
        OPTIONS(FLAG_ROW, VALUE_ROW){NULL, 0, NULL, 0}};
    int code, row;
    while ((code = getopt_long(argc, argv, "", rows, &row)) != -1) {
        if (code == '?')
            exit(2);
        option_set(row);
    }
    if (optind < argc)
        fail("not an option: %s", argv[optind]);
    if (!options.kernel_count)
        add_kernel("kernel:5@64/256");
    if (!options.launches_given)
        options.launches = options.duration > 0 ? UINT64_MAX : 1000;
    if (options.syncs_given && options.launches == UINT64_MAX)
        fail("--syncs needs --launches");
    if (!options.threads)
        fail("--threads: at least one");
    if ((options.graph || options.capture) && options.stream_kind == STREAM_LEGACY)
        fail("the legacy default stream cannot be captured");
    lengthen_names();
}
