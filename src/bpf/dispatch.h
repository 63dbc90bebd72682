/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * How many kernels each thread has given to a device: counted at the functions of the graphics runtime,
 * and sent with the events of splits and nodes. No event of their own.
 */
#ifndef PROFINFER_DISPATCH_H
#define PROFINFER_DISPATCH_H

#include "base.h"

struct dispatch_count {
	__u32 kernels;
	__u32 graphs; /* graphs of kernels, launched as a whole */
};

/* By thread. Counts from the first that was seen; they wrap. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct dispatch_count);
} dispatches SEC(".maps");

static __always_inline int dispatch(__u32 kernels, __u32 graphs)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct dispatch_count first = { .kernels = kernels, .graphs = graphs }, *c;
	__u32 tid = id;

	if (!recorded(id >> 32))
		return 0;
	c = bpf_map_lookup_elem(&dispatches, &tid);
	if (!c) {
		bpf_map_update_elem(&dispatches, &tid, &first, BPF_ANY);
		return 0;
	}
	/* No other thread writes it. */
	c->kernels += kernels;
	c->graphs += graphs;
	return 0;
}

static __always_inline void dispatched(struct ev_call *e)
{
	struct dispatch_count *c = bpf_map_lookup_elem(&dispatches, &e->h.tid);

	if (c) {
		e->kernels = c->kernels;
		e->launches = c->graphs;
	}
}

SEC("uprobe")
int dispatch_kernel(struct pt_regs *ctx)
{
	return dispatch(1, 0);
}

SEC("uprobe")
int dispatch_graph(struct pt_regs *ctx)
{
	return dispatch(0, 1);
}

#endif
