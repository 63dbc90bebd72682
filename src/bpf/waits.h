/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Calls in which a program waits for a device to finish. As in phases.h, the stack pointer at its
 * entry identifies a call. One function may call another but never itself, so each has its own
 * slot.
 */
#ifndef PROFINFER_WAITS_H
#define PROFINFER_WAITS_H

#include "base.h"
#include "phases.h"

struct wait_call {
	__u64 sp; /* at its entry; 0: no call in progress */
	__u64 start;
	__u64 object;
};

struct waits {
	struct wait_call of[WAITS_KINDS];
	__u64 tgid;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct waits);
} waits SEC(".maps");

/* Never written: the initial value of a new `waits` entry. */
struct waits no_waits;

static __always_inline int wait_enter(struct pt_regs *ctx, __u32 what)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct waits *w;
	__u32 tid = id;

	if (!recorded(id >> 32))
		return 0;
	w = bpf_map_lookup_elem(&waits, &tid);
	if (!w || w->tgid != id >> 32) {
		bpf_map_update_elem(&waits, &tid, &no_waits, BPF_ANY);
		w = bpf_map_lookup_elem(&waits, &tid);
		if (!w)
			return 0;
		w->tgid = id >> 32;
	}
	w->of[what].sp = PT_REGS_SP(ctx);
	w->of[what].object = PT_REGS_PARM1(ctx);
	w->of[what].start = bpf_ktime_get_ns();
	return 0;
}

SEC("uprobe")
int wait_backend(struct pt_regs *ctx)
{
	return wait_enter(ctx, WAITS_BACKEND);
}

SEC("uprobe")
int wait_sched(struct pt_regs *ctx)
{
	return wait_enter(ctx, WAITS_SCHED);
}

SEC("uprobe")
int wait_context(struct pt_regs *ctx)
{
	return wait_enter(ctx, WAITS_CONTEXT);
}

SEC("uprobe")
int wait_read(struct pt_regs *ctx)
{
	return wait_enter(ctx, WAITS_READ);
}

SEC("uretprobe")
int wait_exit(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), sp = PT_REGS_SP(ctx) - RETURNED, guid = 0;
	struct ev_call e = {};
	struct waits *w;
	__u32 tid = id;

	own_stack();
	w = bpf_map_lookup_elem(&waits, &tid);
	if (!w || w->tgid != id >> 32)
		return 0;
	for (int i = 0; i < WAITS_KINDS; i++) {
		if (w->of[i].sp != sp)
			continue;
		w->of[i].sp = 0;
		head(&e.h, EV_WAIT, id);
		e.a = w->of[i].start;
		e.b = w->of[i].object;
		e.n = i;
		if (i == WAITS_BACKEND && k.guid_off && get(&guid, 8, e.b + k.guid_off - 1) && guid)
			get(e.guid, 16, guid);
		send(ctx, &e.h, sizeof(e));
		return 0;
	}
	return 0;
}

#endif
