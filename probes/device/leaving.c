/* SPDX-License-Identifier: Apache-2.0 */
#include "leaving.h"

#include <stdlib.h>

#include "clock.h"
#include "hooks.h"

/*
 * What is registered last is called first at exit. CUPTI registers functions of its own as it is loaded (13.0 does), and
 * perhaps as it attaches itself; a call of it after they ran, or a window that is open by then, is a crash. So the wait
 * is registered again after each of the two.
 */
enum { MOST_WAIT_MS = 1000 }; /* for a call of CUPTI */

static bool leaving; /* the program ends */
static bool at_work; /* from before CUPTI is called until a window is handed over */

bool is_leaving(void)
{
    return __atomic_load_n(&leaving, __ATOMIC_SEQ_CST);
}

/* One of the two threads sees the other's store in time. */
bool begin_work(void)
{
    __atomic_store_n(&at_work, true, __ATOMIC_SEQ_CST);
    return !is_leaving();
}

void end_work(void)
{
    __atomic_store_n(&at_work, false, __ATOMIC_SEQ_CST);
}

static bool is_at_work(void)
{
    return __atomic_load_n(&at_work, __ATOMIC_SEQ_CST);
}

static void at_exit(void)
{
    if (hooks_pass)
        return;
    __atomic_store_n(&leaving, true, __ATOMIC_SEQ_CST);
    for (u64 until = now_ms() + MOST_WAIT_MS; is_at_work() && now_ms() < until;)
        sleep_ms(1);
    /* It may be in a call that does not come back any more: the program ends all the same. */
    if (is_at_work())
        hooks_pass = true;
}

bool leaving_watch(void)
{
    return atexit(at_exit) == 0;
}
