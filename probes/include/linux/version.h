/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The oldest kernel kdiff supports: BCC's helpers are declared by it. */
#pragma once
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))
#ifndef LINUX_VERSION_CODE
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 15, 0)
#endif
