/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Function arguments by register and stack, at the first instruction of a function.
 *
 * READ keeps the compiler from merging reads of different registers on two branches into one read through a computed
 * pointer into the context, which the verifier refuses.
 */
#define READ(expression)                                                                                               \
    ({                                                                                                                 \
        u64 value_ = (expression);                                                                                     \
        asm volatile("" : "+r"(value_));                                                                               \
        value_;                                                                                                        \
    })
#if defined(KDIFF_ARM64)
/* AAPCS64: eight argument registers, the stack holds the ninth onwards, the return address is x30. */
#define ARG1(ctx) ((ctx)->regs[0])
#define ARG2(ctx) ((ctx)->regs[1])
#define ARG3(ctx) ((ctx)->regs[2])
#define ARG4(ctx) ((ctx)->regs[3])
#define ARG5(ctx) ((ctx)->regs[4])
#define ARG6(ctx) ((ctx)->regs[5])
#define RESULT(ctx) ((ctx)->regs[0])
#define SP(ctx) ((ctx)->sp)
#define ENTRY_SP(ctx) ((ctx)->sp) /* at return: what SP was at entry */
#define LINK_REGISTER(ctx) ((ctx)->regs[30])
#else
/* System V x86-64: six argument registers, the seventh onwards above the return address. */
#define ARG1(ctx) ((ctx)->di)
#define ARG2(ctx) ((ctx)->si)
#define ARG3(ctx) ((ctx)->dx)
#define ARG4(ctx) ((ctx)->cx)
#define ARG5(ctx) ((ctx)->r8)
#define ARG6(ctx) ((ctx)->r9)
#define RESULT(ctx) ((ctx)->ax)
#define SP(ctx) ((ctx)->sp)
#define ENTRY_SP(ctx) ((ctx)->sp - 8)
#define LINK_REGISTER(ctx) 0
#endif

/* The return address of the call whose stack pointer at entry was `sp`, while that call lasts. */
static __always_inline u64 caller_of(u64 sp, u64 link_register)
{
#if defined(KDIFF_ARM64)
    return link_register;
#else
    u64 address = 0;
    bpf_probe_read_user(&address, sizeof(address), (void *)sp);
    return address;
#endif
}

/*
 * Whether a return address leads to where the kernel sends returns that anybody probes, which it puts in the place of
 * the caller's after the entry probes have run: a breakpoint, or from Linux 6.11 on a stub that begins by saving rax,
 * rcx and r11. On arm64 the link register that was read is not replaced.
 */
static __always_inline int leads_to_return_probes(u64 address)
{
#if defined(KDIFF_ARM64)
    return 0;
#else
    u32 code = 0;
    bpf_probe_read_user(&code, sizeof(code), (void *)address);
    return (code & 0xff) == 0xcc || code == 0x53415150;
#endif
}

/* Integer arguments seven to nine; returns the return address, which lies beside them. */
static __always_inline u64 read_further(struct pt_regs *ctx, u64 sp, u64 *above)
{
#if defined(KDIFF_ARM64)
    above[0] = ctx->regs[6];
    above[1] = ctx->regs[7];
    bpf_probe_read_user(&above[2], sizeof(above[2]), (void *)sp);
    return LINK_REGISTER(ctx);
#else
    u64 stack[4] = {};
    bpf_probe_read_user(stack, sizeof(stack), (void *)sp);
    above[0] = stack[1];
    above[1] = stack[2];
    above[2] = stack[3];
    return stack[0];
#endif
}
