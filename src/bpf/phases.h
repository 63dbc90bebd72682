/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Calls of functions that form a phase: tokenizing, sampling, and so on. Only the outermost call
 * counts, whatever it calls. A call is identified by the stack pointer at its entry. So one program
 * handles all returns, and tail calls (by a jump) or calls that never return (an exception) do no
 * harm. Within sampling, each sampler's calls are recorded too, with the time of its own code.
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

/* Calls of samplers that are in progress at a time: a chain, and what its samplers call. Deeper ones are part of these. */
#define SAMPLERS 8

struct sampler_call {
	__u64 sp; /* at its entry */
	__u64 start;
	__u64 table;
	__u64 within; /* ns in calls that have ended */
	__u32 does;
	__u32 unused;
};

/* Those of a thread, the outermost first, within the call of the phase that began at `since`. */
struct sampler_calls {
	__u64 since;
	__u32 tgid;
	__u32 depth;
	struct sampler_call call[SAMPLERS];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct sampler_calls);
} samplers SEC(".maps");

/* Never written: the initial value of a new `samplers` entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sampler_calls);
} no_samplers SEC(".maps");

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

/* The thread's calls of samplers, if it is in a call of the phase. */
static __always_inline struct sampler_calls *samplers_of(__u64 id, bool create)
{
	__u32 tid = id, none = 0;
	struct phase_call *call = bpf_map_lookup_elem(&phases, &tid);
	struct sampler_calls *s, *fresh;

	if (!call || call->tgid != id >> 32 || !call->sp || call->what != DOES_SAMPLING)
		return 0;
	s = bpf_map_lookup_elem(&samplers, &tid);
	if (!s && create) {
		fresh = bpf_map_lookup_elem(&no_samplers, &none);
		if (!fresh)
			return 0;
		bpf_map_update_elem(&samplers, &tid, fresh, BPF_ANY);
		s = bpf_map_lookup_elem(&samplers, &tid);
	}
	if (!s)
		return 0;
	/* What a thread has left over of an earlier call is over. */
	if (s->tgid != id >> 32 || s->since != call->start)
		s->depth = 0;
	s->tgid = id >> 32;
	s->since = call->start;
	return s;
}

/* Forgets the calls that started deeper in the stack than `sp`: they are over, although no return was seen. */
static __always_inline struct sampler_call *sampler_at(struct sampler_calls *s, __u64 sp)
{
	for (int i = 0; i < SAMPLERS; i++) {
		__u32 last = s->depth - 1;

		if (last >= SAMPLERS)
			return 0;
		MASK(last, SAMPLERS - 1);
		if (s->call[last].sp >= sp)
			return &s->call[last];
		s->depth = last;
	}
	return 0;
}

static __always_inline int sampler_enter(struct pt_regs *ctx, __u32 does)
{
	__u64 id = bpf_get_current_pid_tgid(), sp = PT_REGS_SP(ctx), sampler = PT_REGS_PARM1(ctx);
	struct sampler_calls *s;
	struct sampler_call *c;
	__u32 next;

	phase_enter(ctx, DOES_SAMPLING);
	/* Since 2026-01, a call without a sampler does nothing. */
	s = sampler ? samplers_of(id, true) : 0;
	if (!s)
		return 0;
	c = sampler_at(s, sp);
	/* A call that started at this depth is over, too. */
	if (c && c->sp == sp)
		s->depth--;
	next = s->depth;
	if (next >= SAMPLERS)
		return 0;
	MASK(next, SAMPLERS - 1);
	c = &s->call[next];
	c->table = 0;
	bpf_probe_read_user(&c->table, 8, (void *)sampler);
	c->sp = sp;
	c->within = 0;
	c->does = does;
	s->depth = next + 1;
	c->start = bpf_ktime_get_ns();
	return 0;
}

static __always_inline void sampler_exit(void *ctx, __u64 id, __u64 sp)
{
	struct ev_sampler e = {};
	struct sampler_calls *s = samplers_of(id, false);
	struct sampler_call *c;
	__u32 outer;

	c = s ? sampler_at(s, sp) : 0;
	if (!c || c->sp != sp)
		return;
	head(&e.h, EV_SAMPLER, id);
	e.start = c->start;
	e.table = c->table;
	e.within = c->within;
	e.does = c->does;
	s->depth--;
	outer = s->depth - 1;
	if (outer < SAMPLERS) {
		MASK(outer, SAMPLERS - 1);
		s->call[outer].within += e.h.ts - e.start;
	}
	send(ctx, &e.h, sizeof(e));
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
int sampler_apply(struct pt_regs *ctx)
{
	return sampler_enter(ctx, SAMPLER_APPLIED);
}

SEC("uprobe")
int sampler_accept(struct pt_regs *ctx)
{
	return sampler_enter(ctx, SAMPLER_ACCEPTED);
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

	own_stack();
	sampler_exit(ctx, id, PT_REGS_SP(ctx) - RETURNED);
	call = bpf_map_lookup_elem(&phases, &tid);
	if (!call || call->tgid != id >> 32 || call->sp != PT_REGS_SP(ctx) - RETURNED)
		return 0;
	call->sp = 0;
	return phase_send(ctx, id, call->what, call->start);
}

#endif
