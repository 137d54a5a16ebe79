/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the program, which waits for this library's thread to be done with CUPTI. */
#pragma once
#include <stdbool.h>

/* Has the program's exit wait, before what was registered for exit until now; whether it will. Called again after CUPTI
 * was loaded or attached: what it does at exit must come after that. */
bool leaving_watch(void);
bool is_leaving(void);
/* Whether this thread may call CUPTI: the program's exit waits until `end_work`. */
bool begin_work(void);
void end_work(void);
