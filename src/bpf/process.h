/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Children of a recorded process are recorded. Shared by both objects that follow processes, by
 * task_struct (process.bpf.c) or by the fields of a tracepoint (process_tp.bpf.c).
 */
#ifndef PROFINFER_PROCESS_H
#define PROFINFER_PROCESS_H

/* Set once between open and load (src/capture/process.rs). */
const volatile struct process_constants {
	__u32 pbuf;	  /* 1: perf buffer, 0: ring buffer */
	__u32 wake_bytes; /* as in the probes' object */
	__u32 own_tid;	  /* process.bpf.c: the recorder thread whose fork is the trial */
	__u32 child_off;  /* process_tp.bpf.c: offset of sched_process_fork's child_pid */
} k = {};

#include "send.h"

/* The calling process has forked a child. */
static __always_inline int born(void *ctx, __u64 id, __u32 child)
{
	__u32 tgid = id >> 32;
	struct proc fresh = {}, *parent = bpf_map_lookup_elem(&targets, &tgid);
	struct ev_call e = {};

	if (!parent)
		return 0;
	/* It has the parent's engines until it executes another program, and maybe after that. */
	fresh.engines = parent->engines;
	bpf_map_update_elem(&targets, &child, &fresh, BPF_NOEXIST);
	stamp(&e.h, EV_FORK, id);
	e.a = child;
	send_now(ctx, &e.h, sizeof(e));
	return 0;
}

/* The calling thread ends; if it is the first one, so does its process. */
static __always_inline int gone(void *ctx, __u64 id)
{
	struct ev_call e = {};
	__u32 tid = id;

	/* The next thread with this id may belong to a process that is not recorded. */
	bpf_map_delete_elem(&thread_states, &tid);
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
