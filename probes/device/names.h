/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel names and the numbers they have in execution records. Used by the library's own thread only. */
#pragma once
#include "device_wire.h"

/* The number of a name, from 1; 0 when there is no name or no room for another. A name that was not handed over in
 * this window yet is handed over before: an agent that came later does not know it. */
u32 names_number(const char *name, u64 window);
