/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the program has done with what a window must not open beside. By the library's own thread only. */
#pragma once
#include <stdbool.h>

#include "device_wire.h"

bool settled(u64 settle_ms);
