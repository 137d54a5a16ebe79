/* SPDX-License-Identifier: Apache-2.0 */
/* What the library asks the CUDA driver itself. By the library's own thread only. */
#pragma once
#include "device_wire.h"

enum { MOST_DEVICES = 64 };

struct driver {
    int (*init)(u32 flags);
    int (*get_count)(int *count);
    int (*get_device)(int *device, int ordinal);
    int (*get_uuid)(u8 *uuid, int device);
    int (*get_primary_context)(int device, u32 *flags, int *active);
};

const struct driver *driver(void); /* NULL where it is not loaded or lacks one of these */
