/* Opening CUDA, and the modules of the workload's kernels: one module for each --kernel. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "workload.h"

struct runtime rt;
struct cuda_driver cu;

static CUcontext context;

void check(int status, const char *what)
{
    if (status != 0)
        fail("%s: error %d", what, status);
}

/* ---- host stubs: what nvcc would have made for each kernel ---- */

#define STUB(n) \
    static __attribute__((noinline)) void stub_##n(void) \
    { \
        __asm__ volatile("" ::"i"(__COUNTER__)); \
    }
#define STUBS_8(n) STUB(n##0) STUB(n##1) STUB(n##2) STUB(n##3) STUB(n##4) STUB(n##5) STUB(n##6) STUB(n##7)
#define STUBS_64(n) \
    STUBS_8(n##0) STUBS_8(n##1) STUBS_8(n##2) STUBS_8(n##3) STUBS_8(n##4) STUBS_8(n##5) STUBS_8(n##6) STUBS_8(n##7)
STUBS_64(0) STUBS_64(1) STUBS_64(2) STUBS_64(3)

#define REFERENCE_8(n) stub_##n##0, stub_##n##1, stub_##n##2, stub_##n##3, stub_##n##4, stub_##n##5, stub_##n##6, \
    stub_##n##7
#define REFERENCE_64(n) \
    REFERENCE_8(n##0), REFERENCE_8(n##1), REFERENCE_8(n##2), REFERENCE_8(n##3), REFERENCE_8(n##4), \
    REFERENCE_8(n##5), REFERENCE_8(n##6), REFERENCE_8(n##7)
static void (*const stubs[])(void) = {REFERENCE_64(0), REFERENCE_64(1), REFERENCE_64(2), REFERENCE_64(3)};
#define STUB_COUNT (sizeof stubs / sizeof *stubs)

/* ---- the libraries ---- */

static void *symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);
    if (!address)
        fail("%s", dlerror());
    return address;
}

static void runtime_open(void)
{
    if (options.runtime_path) {
        void *library = dlopen(options.runtime_path, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            fail("%s", dlerror());
#define LOOK_UP(name) *(void **)&rt.name = symbol(library, #name);
        RUNTIME_FUNCTIONS(LOOK_UP)
        return;
    }
#ifdef RUNTIME_LINKED
#define TAKE(name) rt.name = name;
    RUNTIME_FUNCTIONS(TAKE)
#else
    fail("no runtime is linked into this program: --runtime PATH is needed");
#endif
}

/* Opened even when the load goes through the runtime alone: changes in place are the driver's. */
static void driver_open(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail("%s", dlerror());
#define LOOK_UP_DRIVER(name) *(void **)&cu.name = symbol(library, #name);
    DRIVER_FUNCTIONS(LOOK_UP_DRIVER)
}

void cuda_bind(void)
{
    if (uses_driver())
        CHECK(cu.cuCtxSetCurrent(context));
}

void cuda_open(void)
{
    if (uses_runtime()) {
        runtime_open();
        CHECK(rt.cudaFree(NULL));
    }
    driver_open();
    if (uses_driver()) {
        CUdevice device;
        CHECK(cu.cuInit(0));
        CHECK(cu.cuDeviceGet(&device, 0));
        CHECK(cu.cuDevicePrimaryCtxRetain(&context, device));
    }
    cuda_bind();
}

/* ---- modules ---- */

static char *image_of(const struct kernel *kernel)
{
    char *image;
    /* Reads as PTX to whoever looks for its first words. */
    if (asprintf(&image,
                 "// seed %llu\n// kernel %s %.17g %.17g %.17g %.17g %.0f\n"
                 ".version 8.7\n.target sm_90\n.address_size 64\n.visible .entry %s()\n{\n  ret;\n}\n",
                 (unsigned long long)options.seed, kernel->live_name, kernel->median_us * 1000 * kernel->factor,
                 kernel->sigma, kernel->tail_probability, kernel->tail_factor, kernel->quantum_ns,
                 kernel->live_name) < 0)
        fail("out of memory");
    return image;
}

static void kernel_load(struct kernel *kernel)
{
    kernel->image = image_of(kernel);
    if (uses_runtime()) {
        kernel->wrapper = (fatbin_wrapper){FATBIN_WRAPPER_MAGIC, 1, kernel->image, NULL};
        kernel->fatbin = rt.__cudaRegisterFatBinary(&kernel->wrapper);
        rt.__cudaRegisterFunction(kernel->fatbin, kernel->stub, kernel->live_name, kernel->live_name, -1, NULL, NULL,
                                  NULL, NULL, NULL);
        rt.__cudaRegisterFatBinaryEnd(kernel->fatbin);
        cudaFunction_t loaded;
        if (!options.lazy)
            CHECK(rt.cudaGetFuncBySymbol(&loaded, kernel->stub));
    }
    if (uses_driver()) {
        CHECK(cu.cuModuleLoadData(&kernel->module, kernel->image));
        CHECK(cu.cuModuleGetFunction(&kernel->function, kernel->module, kernel->live_name));
    }
}

static void kernel_unload(struct kernel *kernel)
{
    if (uses_driver())
        CHECK(cu.cuModuleUnload(kernel->module));
    if (uses_runtime())
        rt.__cudaUnregisterFatBinary(kernel->fatbin);
    free(kernel->image);
}

void kernels_load(void)
{
    if (uses_runtime() && options.kernel_count > STUB_COUNT)
        fail("more than %zu kernels need --api driver", STUB_COUNT);
    for (size_t i = 0; i < options.kernel_count; i++) {
        struct kernel *kernel = &options.kernels[i];
        kernel->stub = i < STUB_COUNT ? (const void *)(uintptr_t)stubs[i] : NULL;
        kernel->live_name = strdup(kernel->name);
        kernel_load(kernel);
    }
}

void kernels_unload(void)
{
    for (size_t i = 0; i < options.kernel_count; i++)
        kernel_unload(&options.kernels[i]);
}

static void kernel_replace(struct kernel *kernel, char *name)
{
    kernel_unload(kernel);
    free(kernel->live_name);
    kernel->live_name = name;
    kernel_load(kernel);
}

void change_apply(struct change *change)
{
    bool found = false;
    for (size_t i = 0; i < options.kernel_count; i++) {
        struct kernel *kernel = &options.kernels[i];
        if (strcmp(kernel->given, change->kernel) != 0)
            continue;
        found = true;
        if (change->swap) {
            kernel->factor = change->factor;
            kernel_replace(kernel, strdup(change->new_name ? change->new_name : kernel->live_name));
        } else {
            CHECK(cu.kdiffStandinSetFactor(kernel->live_name, change->factor));
        }
    }
    if (!found)
        fail("no kernel to change: %s", change->kernel);
    change->done = true;
}

void kernel_reload(struct kernel *kernel, uint64_t version)
{
    char *name;
    if (asprintf(&name, "%s.v%llu", kernel->name, (unsigned long long)version) < 0)
        fail("out of memory");
    kernel_replace(kernel, name);
}
