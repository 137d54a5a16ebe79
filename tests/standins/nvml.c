/* A stand-in for libnvidia-ml.so.1. Its GPUs and what befalls them are in the file that KDIFF_STANDIN_NVML names, which
   every call reads anew, so that a test changes it under a running program; standins.py says what may be in it. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_GPUS 16
#define MOST_INSTANCES 8
#define VALUE_NOT_AVAILABLE 0xFFFFFFFFFFFFFFFFull
#define MEMORY_V2 0x02000028u

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

/* A handle: a GPU, or an instance of one. */
struct device {
    int gpu, instance; /* instance -1: the GPU itself */
};

struct process {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
};

static struct device gpus[MOST_GPUS], instances[MOST_GPUS][MOST_INSTANCES];
static int users;                     /* nvmlInit less nvmlShutdown */
static long loaded;                   /* the driver's load that the first nvmlInit found */
static __thread char settings[16384]; /* of the call that is being answered */

static void read_settings(void)
{
    const char *path = getenv("KDIFF_STANDIN_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t got = 1;
    settings[0] = '\n';
    if (file) {
        got += fread(settings + 1, 1, sizeof settings - 2, file);
        fclose(file);
    }
    settings[got] = 0;
}

/* The text of a setting up to the end of its line; NULL where there is none. */
static const char *setting(const char *key, char *text, size_t size)
{
    char line[256];
    snprintf(line, sizeof line, "\n%s=", key);
    const char *found = strstr(settings, line);
    if (!found)
        return NULL;
    found += strlen(line);
    snprintf(text, size, "%.*s", (int)strcspn(found, "\n"), found);
    return text;
}

static bool number(const char *key, unsigned long long *value)
{
    char text[64];
    if (!setting(key, text, sizeof text))
        return false;
    *value = strtoull(text, NULL, 0);
    return true;
}

static const char *place(const struct device *device, char *text, size_t size)
{
    if (!device)
        text[0] = 0;
    else if (device->instance < 0)
        snprintf(text, size, "%d.", device->gpu);
    else
        snprintf(text, size, "%d.%d.", device->gpu, device->instance);
    return text;
}

static const char *of_device(const struct device *device, const char *name, char *key, size_t size)
{
    char at[32];
    snprintf(key, size, "%s%s", place(device, at, sizeof at), name);
    return key;
}

/* E, or E@N: from the N-th call of the function on. */
static int error_in(const char *key, long call)
{
    char text[64], *end;
    if (!setting(key, text, sizeof text))
        return SUCCESS;
    int error = (int)strtol(text, &end, 10);
    return *end != '@' || call >= strtol(end + 1, NULL, 10) ? error : SUCCESS;
}

static bool hangs(const struct device *device, const char *function)
{
    char key[128], each[96];
    unsigned long long value;
    read_settings();
    snprintf(each, sizeof each, "hang.%s", function);
    return number(of_device(device, "hang", key, sizeof key), &value) ||
           number(of_device(device, each, key, sizeof key), &value);
}

static void write_down(const char *function, const struct device *device, int result)
{
    const char *path = getenv("KDIFF_STANDIN_NVML_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    char at[32];
    if (!log)
        return;
    fprintf(log, "%s %s %ld %d\n", function, device ? place(device, at, sizeof at) : "-", syscall(SYS_gettid), result);
    fclose(log);
}

static int answer(const char *function, const struct device *device, long call, bool needs_init)
{
    char key[128], each[96];
    unsigned long long load = 0;
    struct timespec moment = {0, 5000000};
    int error = SUCCESS;
    while (hangs(device, function))
        nanosleep(&moment, NULL);
    snprintf(each, sizeof each, "error.%s", function);
    if (device)
        error = error_in(of_device(device, "error", key, sizeof key), call);
    if (error == SUCCESS && device)
        error = error_in(of_device(device, each, key, sizeof key), call);
    if (error == SUCCESS)
        error = error_in(each, call);
    number("load", &load);
    if (error == SUCCESS && needs_init && !users)
        error = UNINITIALIZED;
    if (error == SUCCESS && needs_init && (long)load != loaded)
        error = UNKNOWN;
    write_down(function, device, error);
    return error;
}

#define BEGIN(device, needs_init)                                                                                      \
    static long calls;                                                                                                 \
    int error = answer(__func__, device, __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED), needs_init);                 \
    if (error != SUCCESS)                                                                                              \
    return error

EXPORT int nvmlInitWithFlags(unsigned int flags)
{
    unsigned long long load = 0, driver = 1;
    (void)flags;
    BEGIN(NULL, false);
    number("driver", &driver);
    if (!driver)
        return DRIVER_NOT_LOADED;
    number("load", &load);
    if (__atomic_fetch_add(&users, 1, __ATOMIC_SEQ_CST) == 0)
        loaded = (long)load;
    return SUCCESS;
}

EXPORT int nvmlShutdown(void)
{
    static long calls;
    int error = answer(__func__, NULL, __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED), false);
    if (error == SUCCESS && !users)
        error = UNINITIALIZED;
    if (error == SUCCESS)
        __atomic_fetch_sub(&users, 1, __ATOMIC_SEQ_CST);
    return error;
}

EXPORT const char *nvmlErrorString(int error)
{
    static __thread char text[32];
    snprintf(text, sizeof text, "stand-in error %d", error);
    return text;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    char text[80];
    BEGIN(NULL, true);
    const char *found = setting("version", text, sizeof text) ? text : "580.65.06";
    if (strlen(found) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(version, found);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count)
{
    unsigned long long value = 0;
    BEGIN(NULL, true);
    number("gpus", &value);
    *count = (unsigned int)value;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **handle)
{
    unsigned long long count = 0;
    struct device *device = index < MOST_GPUS ? &gpus[index] : NULL;
    if (device)
        *device = (struct device){(int)index, -1};
    BEGIN(device, true);
    number("gpus", &count);
    if (index >= count || !device)
        return INVALID_ARGUMENT;
    *handle = device;
    return SUCCESS;
}

static int text_of(const struct device *device, const char *name, char *text, unsigned int size)
{
    char key[64];
    return setting(of_device(device, name, key, sizeof key), text, size) ? SUCCESS : NOT_SUPPORTED;
}

static int number_of(const struct device *device, const char *name, unsigned long long *value)
{
    char key[64];
    return number(of_device(device, name, key, sizeof key), value) ? SUCCESS : NOT_SUPPORTED;
}

static int narrow_of(const struct device *device, const char *name, unsigned int *value)
{
    unsigned long long wide = 0;
    int error = number_of(device, name, &wide);
    *value = (unsigned int)wide;
    return error;
}

EXPORT int nvmlDeviceGetUUID(struct device *device, char *text, unsigned int size)
{
    BEGIN(device, true);
    return text_of(device, "uuid", text, size);
}

EXPORT int nvmlDeviceGetName(struct device *device, char *text, unsigned int size)
{
    BEGIN(device, true);
    return text_of(device, "name", text, size);
}

EXPORT int nvmlDeviceGetClockInfo(struct device *device, int type, unsigned int *value)
{
    BEGIN(device, true);
    return narrow_of(device, type == 1 ? "sm_clock" : type == 2 ? "mem_clock" : "?", value);
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *value)
{
    BEGIN(device, true);
    return number_of(device, "reasons", value);
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, unsigned long long *value)
{
    BEGIN(device, true);
    return number_of(device, "reasons", value);
}

EXPORT int nvmlDeviceGetPowerUsage(struct device *device, unsigned int *value)
{
    BEGIN(device, true);
    return narrow_of(device, "power", value);
}

EXPORT int nvmlDeviceGetTemperature(struct device *device, int sensor, unsigned int *value)
{
    BEGIN(device, true);
    return sensor == 0 ? narrow_of(device, "temperature", value) : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetUtilizationRates(struct device *device, unsigned int *values)
{
    BEGIN(device, true);
    int gpu = narrow_of(device, "gpu_utilization", &values[0]);
    return gpu ? gpu : narrow_of(device, "memory_utilization", &values[1]);
}

EXPORT int nvmlDeviceGetMemoryInfo(struct device *device, unsigned long long *values)
{
    unsigned long long total = 0, used = 0, reserved = 0;
    BEGIN(device, true);
    if (number_of(device, "total", &total) || number_of(device, "used", &used))
        return NOT_SUPPORTED;
    number_of(device, "reserved", &reserved);
    values[0] = total;
    values[1] = total - used - reserved;
    values[2] = used + reserved; /* this version tells them as one */
    return SUCCESS;
}

struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, unused, used;
};

EXPORT int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory)
{
    BEGIN(device, true);
    if (memory->version != MEMORY_V2)
        return ARGUMENT_VERSION_MISMATCH;
    if (number_of(device, "total", &memory->total) || number_of(device, "used", &memory->used))
        return NOT_SUPPORTED;
    number_of(device, "reserved", &memory->reserved);
    memory->unused = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEccErrors(struct device *device, int type, int counter, unsigned long long *value)
{
    BEGIN(device, true);
    if (counter != 0) /* not the volatile ones */
        return INVALID_ARGUMENT;
    return number_of(device, type == 0 ? "ecc_corrected" : "ecc_uncorrected", value);
}

/* pids=PID:BYTES,PID:- where - is memory that is not available. */
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned int *count, struct process *list)
{
    char text[4096];
    unsigned int room = *count, found = 0;
    BEGIN(device, true);
    if (text_of(device, "pids", text, sizeof text))
        return NOT_SUPPORTED;
    for (char *rest = text; *rest; rest += *rest == ',') {
        unsigned int pid = (unsigned int)strtoul(rest, &rest, 10);
        rest += *rest == ':';
        unsigned long long used = *rest == '-' ? VALUE_NOT_AVAILABLE : strtoull(rest, NULL, 10);
        rest += strcspn(rest, ",");
        if (list && found < room)
            list[found] = (struct process){pid, used, 0xFFFFFFFFu, 0xFFFFFFFFu};
        found++;
    }
    *count = found;
    return found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlDeviceGetMigMode(struct device *device, unsigned int *current, unsigned int *pending)
{
    BEGIN(device, true);
    *pending = 0;
    return narrow_of(device, "mig", current);
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned int *count)
{
    BEGIN(device, true);
    *count = MOST_INSTANCES;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned int index, struct device **handle)
{
    char key[64], text[128];
    BEGIN(device, true);
    if (index >= MOST_INSTANCES)
        return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "%d.%u.uuid", device->gpu, index);
    if (!setting(key, text, sizeof text))
        return NOT_FOUND;
    instances[device->gpu][index] = (struct device){device->gpu, (int)index};
    *handle = &instances[device->gpu][index];
    return SUCCESS;
}
