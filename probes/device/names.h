/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel names and the numbers they have in execution records. One thread at a time. */
#pragma once
#include "device_wire.h"

/* From here on what stands at an address may be another name. */
void names_look_anew(void);

/* The number of the name at an address, from 1; 0 when there is none, or no room for another. A name that was not handed
 * over in this window yet is handed over before: an agent that came later does not know it. The memory may be gone: a
 * module may have been unloaded since its kernel ran. */
u32 names_number(const char *name, u64 window);
