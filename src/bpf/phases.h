/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Calls of functions that form a phase: tokenizing, sampling, and so on. Only the outermost call
 * counts, whatever it calls. A call is identified by the stack pointer at its entry. So one program
 * handles all returns, and tail calls (by a jump) or calls that never return (an exception) do no
 * harm.
 */
#ifndef PROFINFER_PHASES_H
#define PROFINFER_PHASES_H

#include "base.h"

/* Stack pointer after a function has returned, minus the stack pointer at its entry. */
#if defined(__TARGET_ARCH_x86)
#define RETURNED 8
#else
#define RETURNED 0
#endif

/* The outermost call of a thread. */
struct phase_call {
	__u64 start;
	__u64 sp; /* at its entry; 0: no call in progress */
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
	/* A call that started at this stack depth or deeper is over. */
	if (outer && outer->tgid == id >> 32 && outer->sp > sp)
		return 0;
	call.start = bpf_ktime_get_ns();
	bpf_map_update_elem(&phases, &tid, &call, BPF_ANY);
	/* The only phase long enough for a recording to end within it. */
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
