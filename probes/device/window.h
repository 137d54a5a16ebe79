/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: stretches of time in which CUPTI collects kernel activity. */
#pragma once
#include "cupti.h"

enum window_result { WINDOW_OPENED, WINDOW_BUSY, WINDOW_TOO_SOON, WINDOW_FAILED };

/* WINDOW_TOO_SOON: something happened within the last `settle_ms`, by hooks_last_ms. WINDOW_FAILED: `window_reason`
 * says why. */
enum window_result window_open(const struct cupti *cupti, u64 settle_ms);
const char *window_reason(void);

void window_announce(void); /* to the agent, that it has opened */
u64 window_cost_ns(void);       /* what the records of the last window to open have cost the program, at most */
bool window_is_open(void);      /* another thread may have closed it since */
bool window_left_something(void); /* in CUPTI, or is open */
void window_drain(void);        /* hands over what CUPTI has delivered; by any thread */
void window_turn(u32 skipped);  /* one window ends and the next begins, without a gap between them */
void window_end(u32 ended, u32 skipped); /* also after another thread closed it: hands over the rest */
const char *window_broken(void); /* NULL unless records are not what their version says: nothing may be read again */

/* For fork. */
void window_lock(void);
bool window_lock_within(u64 ms); /* false where it could not be had in time */
void window_unlock(void);
