/* A CUPTI whose activity API records the kernels of the stand-in driver. Built twice, as of two versions; the
 * settings are in standins.py. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cupti_internal.h"

#define BUFFER_SIZE_ATTRIBUTE 0
#define BUFFER_LIMIT_ATTRIBUTE 2
#define DRIVER_API_DOMAIN 1
#define DEVICE_BUFFER_BYTES (8ull << 20)

struct settings settings = {.version = CUPTI_VERSION, .record_bytes = CUPTI_RECORD_BYTES};

static uint64_t clock_offset_ns, clock_drift_ppb;
static const char *faults;
static int log_fd = -1;

static struct {
    void (*observe)(struct observer *, bool);
    bool (*subscribe)(const void *);
    bool (*unsubscribe)(const void *);
    void (*take_memory)(int64_t);
} driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what is enabled; held while the driver is told */
static bool enabled[CUPTI_ACTIVITY_KINDS];
static int64_t memory_taken;
static void *own_subscription; /* the last */
static CUpti_CallbackFunc own_callback;
static void *own_userdata;
static _Thread_local bool in_callback;
static uint64_t attributes[CUPTI_ACTIVITY_ATTRIBUTES] = {
    [BUFFER_SIZE_ATTRIBUTE] = DEVICE_BUFFER_BYTES,
    [BUFFER_LIMIT_ATTRIBUTE] = 250,
};

/* ---- the end of the program ---- */

/* The real library registers it as it is loaded; here it is registered as it attaches itself too, as a release of it
 * may. After it any call is a crash. */
static bool attached, gone;

static void go(void)
{
    gone = true;
}

static void attach(void)
{
    if (!attached)
        atexit(go);
    attached = true;
}

static void check_gone(const char *function)
{
    if (!gone)
        return;
    fprintf(stderr, "stand-in CUPTI: %s after its exit handler\n", function);
    abort();
}

/* ---- settings ---- */

static uint64_t number(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : fallback;
}

static __attribute__((constructor)) void read_settings(void)
{
    atexit(go);
    settings.zero_every = number("KDIFF_STANDIN_CUPTI_ZERO_EVERY", 0);
    settings.reversed_every = number("KDIFF_STANDIN_CUPTI_REVERSED_EVERY", 0);
    settings.drop_every = number("KDIFF_STANDIN_CUPTI_DROP_EVERY", 0);
    settings.gone_every = number("KDIFF_STANDIN_CUPTI_GONE_EVERY", 0);
    settings.launch_ns = number("KDIFF_STANDIN_CUPTI_LAUNCH_NS", 0);
    settings.flush_ms = number("KDIFF_STANDIN_CUPTI_FLUSH_MS", 0);
    settings.enable_ms = number("KDIFF_STANDIN_CUPTI_ENABLE_MS", 0);
    settings.strict = number("KDIFF_STANDIN_CUPTI_STRICT", 0) != 0;
    clock_offset_ns = number("KDIFF_STANDIN_CUPTI_OFFSET_NS", 1700000000000000007u);
    clock_drift_ppb = number("KDIFF_STANDIN_CUPTI_DRIFT_PPB", 20000);
    faults = getenv("KDIFF_STANDIN_CUPTI_FAIL");
    const char *layout = getenv("KDIFF_STANDIN_CUPTI_LAYOUT");
    if (layout && strcmp(layout, "stride") == 0) {
        settings.record_bytes = 224;
    } else if (layout && strcmp(layout, "unknown") == 0) {
        settings.version = 140000;
        settings.record_bytes = 256;
        settings.shift = 16;
    }
    const char *log = getenv("KDIFF_STANDIN_CUPTI_LOG");
    if (log && *log)
        log_fd = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
}

uint64_t cupti_time(uint64_t monotonic_ns)
{
    return clock_offset_ns + monotonic_ns + (uint64_t)((unsigned __int128)monotonic_ns * clock_drift_ppb / 1000000000u);
}

static CUptiResult logged(const char *function, uint64_t argument, CUptiResult result)
{
    if (log_fd >= 0) {
        char line[160];
        int length = snprintf(line, sizeof line, "%llu %d %d %d %s %llu %d\n", (unsigned long long)host_ns(),
                              (int)getpid(), (int)gettid(), CUPTI_VERSION, function, (unsigned long long)argument,
                              result);
        if (write(log_fd, line, (size_t)length) != length)
            abort();
    }
    return result;
}

/* FAIL is `function=code`, or `function=code@N` from the N-th such call on; several with commas between them. */
static CUptiResult fault(const char *function)
{
    static _Atomic unsigned calls;
    size_t length = strlen(function);
    for (const char *at = faults; at && *at; at = strchr(at, ','), at = at ? at + 1 : NULL) {
        if (strncmp(at, function, length) != 0 || at[length] != '=')
            continue;
        char *end;
        long code = strtol(at + length + 1, &end, 10);
        if (*end != '@' || ++calls >= (unsigned)strtol(end + 1, NULL, 10))
            return (CUptiResult)code;
    }
    return CUPTI_SUCCESS;
}

static void *driver_function(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *function = library ? dlsym(library, name) : NULL;
    if (!function) {
        fprintf(stderr, "stand-in CUPTI: no %s in the driver\n", name);
        abort();
    }
    return function;
}

static void find_driver(void)
{
    if (driver.observe)
        return;
    *(void **)&driver.subscribe = driver_function("kdiffStandinSubscribe");
    *(void **)&driver.unsubscribe = driver_function("kdiffStandinUnsubscribe");
    *(void **)&driver.take_memory = driver_function("kdiffStandinTakeMemory");
    *(void **)&driver.observe = driver_function("kdiffStandinObserve");
}

static void sleep_ms(uint64_t ms)
{
    struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000 * 1000000)};
    while (ms && nanosleep(&left, &left) != 0)
        ;
}

/* ---- what the library is, and its clock ---- */

EXPORT CUptiResult cuptiGetVersion(uint32_t *version)
{
    if (!version)
        return CUPTI_ERROR_INVALID_PARAMETER;
    *version = settings.version;
    return logged("cuptiGetVersion", 0, fault("cuptiGetVersion"));
}

EXPORT CUptiResult cuptiGetTimestamp(uint64_t *timestamp)
{
    if (!timestamp)
        return CUPTI_ERROR_INVALID_PARAMETER;
    *timestamp = cupti_time(host_ns());
    return fault("cuptiGetTimestamp");
}

EXPORT CUptiResult cuptiGetResultString(CUptiResult result, const char **text)
{
    if (!text)
        return CUPTI_ERROR_INVALID_PARAMETER;
    *text = result == CUPTI_SUCCESS                                       ? "CUPTI_SUCCESS"
            : result == CUPTI_ERROR_NOT_COMPATIBLE                        ? "CUPTI_ERROR_NOT_COMPATIBLE"
            : result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                                                                          : "CUPTI_ERROR_OTHER";
    return CUPTI_SUCCESS;
}

/* ---- the subscription ---- */

/* For who has enabled the domain of driver calls. */
static struct observer calls_observer;

static void call_ended(void)
{
    static const int at_exit = 1; /* of CUpti_CallbackData only what it begins with */
    pthread_mutex_lock(&lock);
    CUpti_CallbackFunc callback = calls_observer.on ? own_callback : NULL;
    void *userdata = own_userdata;
    pthread_mutex_unlock(&lock);
    in_callback = true;
    if (callback)
        callback(userdata, DRIVER_API_DOMAIN, 0, &at_exit);
    in_callback = false;
}

static struct observer calls_observer = {.launched = call_ended};

static CUptiResult subscribe(const char *function, CUpti_SubscriberHandle *handle, CUpti_CallbackFunc callback,
                             void *userdata)
{
    check_gone(function);
    find_driver();
    CUptiResult result = fault(function);
    if (!handle)
        result = CUPTI_ERROR_INVALID_PARAMETER;
    if (result != CUPTI_SUCCESS)
        return logged(function, 0, result);
    static char handles[64]; /* each subscription has another handle */
    static _Atomic unsigned given;
    void *made = &handles[given++ % sizeof handles];
    attach();
    if (!driver.subscribe(made))
        return logged(function, 0, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
    *handle = own_subscription = made;
    pthread_mutex_lock(&lock);
    own_callback = callback;
    own_userdata = userdata;
    pthread_mutex_unlock(&lock);
    return logged(function, 0, CUPTI_SUCCESS);
}

EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *handle, CUpti_CallbackFunc callback, void *userdata)
{
    return subscribe("cuptiSubscribe", handle, callback, userdata);
}

EXPORT CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle *handle, CUpti_CallbackFunc callback, void *userdata,
                                     void *params)
{
    (void)params;
    return subscribe("cuptiSubscribe_v2", handle, callback, userdata);
}

EXPORT CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle)
{
    check_gone("cuptiUnsubscribe");
    find_driver();
    bool given_back = handle && driver.unsubscribe(handle);
    if (given_back && calls_observer.on)
        driver.observe(&calls_observer, false);
    return logged("cuptiUnsubscribe", 0, given_back ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER);
}

EXPORT CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle handle, int domain, uint32_t id)
{
    (void)handle, (void)domain, (void)id;
    return logged("cuptiEnableCallback", enable, CUPTI_SUCCESS);
}

EXPORT CUptiResult cuptiEnableDomain(uint32_t enable, CUpti_SubscriberHandle handle, int domain)
{
    find_driver();
    bool known = handle && handle == own_subscription;
    if (known && domain == DRIVER_API_DOMAIN && (enable != 0) != calls_observer.on)
        driver.observe(&calls_observer, enable != 0);
    return logged("cuptiEnableDomain", enable, known ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER);
}

/* ---- activity ---- */

/* With the lock held. */
static void tell_driver(void)
{
    find_driver();
    int kind = enabled[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL] ? CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
               : enabled[CUPTI_ACTIVITY_KIND_KERNEL]          ? CUPTI_ACTIVITY_KIND_KERNEL
                                                              : 0;
    if (kind && !memory_taken) {
        memory_taken = (int64_t)(2 * attributes[BUFFER_SIZE_ATTRIBUTE]);
        driver.take_memory(memory_taken);
    }
    bool was_on = record_kind != 0;
    if (kind)
        record_kind = kind;
    if (was_on != (kind != 0))
        driver.observe(&records_observer, kind != 0);
    record_kind = kind;
}

static CUptiResult set_enabled(CUpti_ActivityKind kind, bool on)
{
    if (kind <= 0 || kind >= CUPTI_ACTIVITY_KINDS)
        return CUPTI_ERROR_INVALID_KIND;
    if (on && !callbacks_known())
        return CUPTI_ERROR_INVALID_OPERATION;
    if (on)
        session_begins();
    else
        session_ends();
    pthread_mutex_lock(&lock);
    enabled[kind] = on;
    tell_driver();
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                  CUpti_BuffersCallbackCompleteFunc complete)
{
    CUptiResult result = request && complete ? fault("cuptiActivityRegisterCallbacks") : CUPTI_ERROR_INVALID_PARAMETER;
    logged("cuptiActivityRegisterCallbacks", 0, result);
    if (result == CUPTI_SUCCESS && !callbacks_set(request, complete)) {
        fprintf(stderr, "stand-in CUPTI: callbacks registered in another's session\n");
        abort();
    }
    return result;
}

EXPORT CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    sleep_ms(settings.enable_ms);
    check_gone("cuptiActivityEnable");
    CUptiResult result = fault("cuptiActivityEnable");
    if (result == CUPTI_SUCCESS)
        result = set_enabled(kind, true);
    return logged("cuptiActivityEnable", (uint64_t)kind, result);
}

EXPORT CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    check_gone("cuptiActivityDisable");
    CUptiResult result = fault("cuptiActivityDisable");
    if (result == CUPTI_SUCCESS)
        result = set_enabled(kind, false);
    return logged("cuptiActivityDisable", (uint64_t)kind, result);
}

EXPORT CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    check_gone("cuptiActivityFlushAll");
    CUptiResult result = callbacks_known() ? fault("cuptiActivityFlushAll") : CUPTI_ERROR_INVALID_OPERATION;
    logged("cuptiActivityFlushAll", flag, result);
    if (result == CUPTI_SUCCESS) {
        sleep_ms(settings.flush_ms);
        buffers_flush(flag & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    }
    return result;
}

EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    if (!buffer || !record)
        return CUPTI_ERROR_INVALID_PARAMETER;
    uint8_t *next = *record ? (uint8_t *)*record + settings.record_bytes : buffer;
    if (next + settings.record_bytes > buffer + valid)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    uint32_t kind;
    memcpy(&kind, next, sizeof kind);
    if (kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && kind != CUPTI_ACTIVITY_KIND_KERNEL)
        return CUPTI_ERROR_INVALID_KIND;
    *record = next;
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
    (void)context, (void)stream;
    if (!dropped)
        return CUPTI_ERROR_INVALID_PARAMETER;
    *dropped = dropped_take();
    return logged("cuptiActivityGetNumDroppedRecords", *dropped, CUPTI_SUCCESS);
}

EXPORT CUptiResult cuptiActivityGetAttribute(int attribute, size_t *size, void *value)
{
    if (attribute < 0 || attribute >= CUPTI_ACTIVITY_ATTRIBUTES || !size || !value)
        return CUPTI_ERROR_INVALID_PARAMETER;
    if (*size > sizeof *attributes)
        *size = sizeof *attributes;
    memcpy(value, &attributes[attribute], *size);
    return logged("cuptiActivityGetAttribute", (uint64_t)attribute, CUPTI_SUCCESS);
}

EXPORT CUptiResult cuptiActivitySetAttribute(int attribute, size_t *size, void *value)
{
    if (attribute < 0 || attribute >= CUPTI_ACTIVITY_ATTRIBUTES || !size || !value || *size > sizeof *attributes)
        return CUPTI_ERROR_INVALID_PARAMETER;
    CUptiResult result = fault("cuptiActivitySetAttribute");
    if (result == CUPTI_SUCCESS) {
        attributes[attribute] = 0;
        memcpy(&attributes[attribute], value, *size);
    }
    return logged("cuptiActivitySetAttribute", attributes[attribute], result);
}

/* Logged with 1 where a callback makes the call. */
EXPORT CUptiResult cuptiFinalize(void)
{
    find_driver();
    pthread_mutex_lock(&lock);
    memset(enabled, 0, sizeof enabled);
    tell_driver();
    driver.take_memory(-memory_taken);
    memory_taken = 0;
    if (own_subscription)
        driver.unsubscribe(own_subscription);
    pthread_mutex_unlock(&lock);
    if (calls_observer.on)
        driver.observe(&calls_observer, false);
    buffers_forget();
    attached = false; /* the next attachment registers it anew */
    return logged("cuptiFinalize", in_callback, CUPTI_SUCCESS);
}
