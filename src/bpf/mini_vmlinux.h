/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The few kernel types and constants that the programs need, so that a build needs neither kernel
 * headers nor a BTF. Names and values are the kernel's UAPI (include/uapi/linux/bpf.h,
 * arch/{x86,arm64} ptrace.h), which never change.
 */
#ifndef PROFINFER_MINI_VMLINUX_H
#define PROFINFER_MINI_VMLINUX_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
enum { false = 0, true = 1 };

/* bpf_tracing.h then uses the kernel's own field names in pt_regs. */
#define __VMLINUX_H__

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2, BPF_RB_AVAIL_DATA = 0 };
#define BPF_F_CURRENT_CPU 0xffffffffULL

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
struct pt_regs;
#else
#error "x86-64 and arm64 only"
#endif

/* Fields whose offsets vary by kernel: libbpf sets them (crates/machine/src/kernel/btf.rs supplies them). */
struct task_struct {
	int pid;
	int tgid;
} __attribute__((preserve_access_index));

#endif
