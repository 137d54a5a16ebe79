/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* BCC includes this first. It stands for no host's configuration: nothing here depends on one. */
#pragma once
#define CONFIG_BPF_SYSCALL 1
