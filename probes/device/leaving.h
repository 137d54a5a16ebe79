/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the program, which waits for this library's thread to be done with CUPTI. */
#pragma once
#include <stdbool.h>

/* Has the program's exit wait; 0, or an errno. */
int leaving_watch(void);
/* The same once more, for CUPTI has just been loaded or attached: what it does at exit must come after that. */
void leaving_watch_again(void);
bool is_leaving(void);
/* Whether this thread may call CUPTI: the program's exit waits until `end_work`. */
bool begin_work(void);
void end_work(void);
