/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The user registers a probe is given: the kernel's own layouts, which are ABI. */
#pragma once
#if defined(KDIFF_ARM64)
struct pt_regs {
    unsigned long regs[31];
    unsigned long sp;
    unsigned long pc;
    unsigned long pstate;
};
#else
struct pt_regs {
    unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#endif
