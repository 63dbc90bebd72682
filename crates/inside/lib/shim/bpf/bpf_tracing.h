/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Arguments of a call, as the thunks keep them (x86_64.S, aarch64.S). */
#ifndef PROFINFER_SHIM_TRACING_H
#define PROFINFER_SHIM_TRACING_H

#if defined(__TARGET_ARCH_x86)
#define PT_REGS_PARM1(x) ((__u64)(x)->di)
#define PT_REGS_PARM2(x) ((__u64)(x)->si)
#define PT_REGS_PARM3(x) ((__u64)(x)->dx)
#define PT_REGS_PARM4(x) ((__u64)(x)->cx)
#define PT_REGS_PARM5(x) ((__u64)(x)->r8)
#define PT_REGS_PARM6(x) ((__u64)(x)->r9)
#define PT_REGS_SP(x) ((__u64)(x)->sp)
#define PT_REGS_RC(x) ((__u64)(x)->ax)
#else
#define USER_REGS(x) ((struct user_pt_regs *)(x))
#define PT_REGS_PARM1(x) (USER_REGS(x)->regs[0])
#define PT_REGS_PARM2(x) (USER_REGS(x)->regs[1])
#define PT_REGS_PARM3(x) (USER_REGS(x)->regs[2])
#define PT_REGS_PARM4(x) (USER_REGS(x)->regs[3])
#define PT_REGS_PARM5(x) (USER_REGS(x)->regs[4])
#define PT_REGS_PARM6(x) (USER_REGS(x)->regs[5])
#define PT_REGS_PARM7(x) (USER_REGS(x)->regs[6])
#define PT_REGS_PARM8(x) (USER_REGS(x)->regs[7])
#define PT_REGS_RET(x) (USER_REGS(x)->regs[30])
#define PT_REGS_SP(x) (USER_REGS(x)->sp)
#define PT_REGS_RC(x) (USER_REGS(x)->regs[0])
#endif

#endif
