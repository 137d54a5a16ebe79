/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

const struct driver *driver(void)
{
    static struct driver found;
    static bool whole;
    if (whole)
        return &found;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!library)
        return NULL;
    found.init = (int (*)(u32))dlsym(library, "cuInit");
    found.get_count = (int (*)(int *))dlsym(library, "cuDeviceGetCount");
    found.get_device = (int (*)(int *, int))dlsym(library, "cuDeviceGet");
    found.get_uuid = (int (*)(u8 *, int))dlsym(library, "cuDeviceGetUuid_v2");
    if (!found.get_uuid)
        found.get_uuid = (int (*)(u8 *, int))dlsym(library, "cuDeviceGetUuid");
    found.get_primary_context = (int (*)(int, u32 *, int *))dlsym(library, "cuDevicePrimaryCtxGetState");
    dlclose(library); /* the program keeps it */
    whole = found.init && found.get_count && found.get_device && found.get_uuid && found.get_primary_context;
    return whole ? &found : NULL;
}
