/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other users of CUPTI in this process. CUPTI does not tell one user that another arrives, and a user that arrives
 * while a window is open loses: so the calls by which one begins are led through here, where they wait until the
 * window is closed. That is done in the import slots (GOT) of the program's modules and in what dlsym returns, never
 * in code.
 */
#pragma once
#include <stdbool.h>

#include "device_wire.h"

/* Leads the calls of modules loaded since the last time through here. By the library's own thread only. */
void hooks_scan(void);

/* When it last found a new module or another user made a call that is led through here, as now_ms has it. */
u64 hooks_last_ms(void);

/* Whether another user holds a subscription or has an activity enabled, as far as its calls were seen. Under the
 * window's lock. */
bool hooks_foreign(void);

/* Given by the window: `hooks_enter` closes it, and until `hooks_leave` none opens; where another user `begins`, or may, nothing of
 * earlier windows is left in CUPTI either. Recursive. False after some seconds in which it could not be closed: then
 * nothing is held. */
bool hooks_enter(bool begins);
void hooks_leave(void);

/* In a forked child calls pass through as they are. */
extern volatile bool hooks_pass;
