/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Children of a recorded process are recorded: what both objects do that follow processes, by task_struct
 * (process.bpf.c) or by the fields of a tracepoint (process_tp.bpf.c).
 */
#ifndef PROFINFER_PROCESS_H
#define PROFINFER_PROCESS_H

/* Set once between open and load (agent/process.rs). */
const volatile struct knobs {
	__u32 pbuf;	  /* 1: perf buffer, 0: ring buffer */
	__u32 wake_bytes; /* as in the object of the probes */
	__u32 own_tid;	  /* process.bpf.c: the thread of the recorder whose fork is the trial */
	__u32 child_off;  /* process_tp.bpf.c: offset of sched_process_fork's child_pid */
} k = {};

#include "send.h"

/* The calling process has a child. */
static __always_inline int born(void *ctx, __u64 id, __u32 child)
{
	__u32 tgid = id >> 32;
	struct proc fresh = {}, *parent = bpf_map_lookup_elem(&targets, &tgid);
	struct ev_call e = {};

	if (!parent)
		return 0;
	/* It has the parent's engines until it runs another program, and may have them then. */
	fresh.engines = parent->engines;
	bpf_map_update_elem(&targets, &child, &fresh, BPF_NOEXIST);
	stamp(&e.h, EV_FORK, id);
	e.a = child;
	send_now(ctx, &e.h, sizeof(e));
	return 0;
}

/* The calling thread ends, and with the first one its process. */
static __always_inline int gone(void *ctx, __u64 id)
{
	struct ev_call e = {};
	__u32 tid = id;

	/* The next thread of this number may be of a process that is not recorded. */
	bpf_map_delete_elem(&lanes, &tid);
	if (!bpf_map_lookup_elem(&targets, &tid))
		return 0;
	bpf_map_delete_elem(&targets, &tid);
	if (tid != id >> 32)
		return 0;
	stamp(&e.h, EV_EXIT, id);
	send(ctx, &e.h, sizeof(e));
	return 0;
}

#endif
