/* SPDX-License-Identifier: Apache-2.0 */
/* Batches on their way to the agent. Any thread may call these. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "device_wire.h"

bool handover_heard(void); /* whether an agent listens */
void handover_window(const struct window_record *window, u64 number);
void handover_state(u32 state, u32 skipped, const char *text);
void handover_device(u32 number, const u8 *uuid);
void handover_name(u32 number, const char *name, size_t length);
void handover_execution(const struct execution_record *execution, u64 window);
u64 handover_flush(void); /* what is not handed over yet goes now; returns the executions handed over since the last */
