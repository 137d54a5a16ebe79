/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* BCC includes this; it needs nothing of it. */
#pragma once
