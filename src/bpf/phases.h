/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Calls of functions that are a phase of their own: tokenizing, sampling, and so on; the outermost call counts, whatever
 * it calls. A call is known by where the stack pointer is at its entry, so that one program does for all returns, and
 * that calls that hand over to another (by a jump) or never return (an exception) do no harm.
 */
#ifndef PROFINFER_PHASES_H
#define PROFINFER_PHASES_H

#include "base.h"

/* How far the stack pointer is from where it was at the entry when a function has returned. */
#if defined(__TARGET_ARCH_x86)
#define RETURNED 8
#else
#define RETURNED 0
#endif

/* The outermost call of a thread. */
struct phase_call {
	__u64 start;
	__u64 sp; /* at its entry; 0: none is under way */
	__u32 tgid;
	__u32 what;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct phase_call);
} phases SEC(".maps");

static __always_inline int phase_send(void *ctx, __u64 id, __u32 what, __u64 start)
{
	struct ev_call e = {};

	head(&e.h, EV_PHASE, id);
	e.a = start;
	e.n = what;
	send(ctx, &e.h, sizeof(e));
	return 0;
}

static __always_inline int phase_enter(struct pt_regs *ctx, __u32 what)
{
	__u64 id = bpf_get_current_pid_tgid(), sp = PT_REGS_SP(ctx);
	struct phase_call call = { .sp = sp, .tgid = id >> 32, .what = what }, *outer;
	__u32 tid = id;

	if (!recorded(id >> 32))
		return 0;
	outer = bpf_map_lookup_elem(&phases, &tid);
	/* One that began here or further down the stack is over. */
	if (outer && outer->tgid == id >> 32 && outer->sp > sp)
		return 0;
	call.start = bpf_ktime_get_ns();
	bpf_map_update_elem(&phases, &tid, &call, BPF_ANY);
	/* The only one that takes long enough for a recording to end in it. */
	return what == DOES_LOAD ? phase_send(ctx, id, what, 0) : 0;
}

SEC("uprobe")
int phase_tokenize(struct pt_regs *ctx)
{
	return phase_enter(ctx, DOES_TOKENIZE);
}

SEC("uprobe")
int phase_detokenize(struct pt_regs *ctx)
{
	return phase_enter(ctx, DOES_DETOKENIZE);
}

SEC("uprobe")
int phase_sampling(struct pt_regs *ctx)
{
	return phase_enter(ctx, DOES_SAMPLING);
}

SEC("uprobe")
int phase_load(struct pt_regs *ctx)
{
	return phase_enter(ctx, DOES_LOAD);
}

SEC("uretprobe")
int phase_exit(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct phase_call *call;
	__u32 tid = id;

	call = bpf_map_lookup_elem(&phases, &tid);
	if (!call || call->tgid != id >> 32 || call->sp != PT_REGS_SP(ctx) - RETURNED)
		return 0;
	call->sp = 0;
	return phase_send(ctx, id, call->what, call->start);
}

#endif
