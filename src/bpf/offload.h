/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Work for a backend other than the CPU's: the nodes of a split's graph and their tensors, sent at the
 * split's entry when the graph has changed. No op of it runs on the CPU, so no op probe shows it.
 */
#ifndef PROFINFER_OFFLOAD_H
#define PROFINFER_OFFLOAD_H

#include "structure.h"

/* Tensors that one call of `collect` looks at; events of a call of `send_some`, and its calls for a graph. */
#define LOOKS 128
#define PASS 32
#define PASSES 32

/* A walk over the nodes of a graph and their sources. */
struct graph_walk {
	struct ev_tensors e;
	__u64 nodes;
	__u32 total, next; /* nodes of the graph, and the next one to read */
	__u32 at, len;	   /* position in the scratch's queue, and its length */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct graph_walk);
} walks SEC(".maps");

/* Never written: the initial value of a new `walks` entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct graph_walk);
} no_walk SEC(".maps");

static __always_inline struct graph_walk *walk_of(__u32 tid)
{
	struct graph_walk *w = bpf_map_lookup_elem(&walks, &tid), *z;
	__u32 first = 0;

	if (w)
		return w;
	z = bpf_map_lookup_elem(&no_walk, &first);
	if (!z)
		return 0;
	bpf_map_update_elem(&walks, &tid, z, BPF_ANY);
	return bpf_map_lookup_elem(&walks, &tid);
}

/*
 * Looks at the next tensor of the thread's walk and adds it to the event if it is new. Returns 0 at the
 * end. Global, as nodes_read.
 */
__attribute__((noinline)) int walk_step(__u32 tid)
{
	struct graph_walk *w = bpf_map_lookup_elem(&walks, &tid);
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	__u32 found;
	__u64 n;

	if (!w || !s)
		return 0;
	if (w->at >= w->len) {
		if (w->next >= w->total)
			return 0;
		s->queue[0] = 0;
		get(&s->queue[0], 8, w->nodes + w->next * 8ULL);
		w->next++;
		w->at = 0;
		w->len = 1;
	}
	found = describe_one(tid, w->at, w->len);
	w->at++;
	w->len = found & (IS_NEW - 1);
	if (found & IS_NEW) {
		n = w->e.n;
		/* See describe_one. */
		MASK(n, TENSORS_CHUNK - 1);
		w->e.tensor[n].addr = s->t.addr;
		bpf_probe_read_kernel(w->e.tensor[n].raw, TENSOR_RAW, s->t.raw);
		w->e.n = n + 1;
	}
	return 1;
}

/* Continues the thread's walk until the event is full. Returns 0 at the end. Global, as nodes_read. */
__attribute__((noinline)) int collect(__u32 tid)
{
	struct graph_walk *w = bpf_map_lookup_elem(&walks, &tid);

	if (!w)
		return 0;
	w->e.n = 0;
	for (int i = 0; i < LOOKS; i++) {
		if (!walk_step(tid))
			return 0;
		if (w->e.n == TENSORS_CHUNK)
			break;
	}
	return 1;
}

/* Hash of the dims of the first n nodes of the scratch's list. Global, as nodes_read. */
__attribute__((noinline)) int nodes_shape(__u32 tid, __u32 n)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	__u64 hash = n + 1, ne[4];

	if (!s)
		return 0;
	for (int i = 0; i < NODES_CHUNK; i++) {
		if (i >= n)
			break;
		if (!get(ne, sizeof(ne), s->n.node[i] + k.ne_off))
			continue;
		for (int j = 0; j < 4; j++)
			hash = (hash ^ ne[j]) * FNV;
	}
	return hash >> 32;
}

/* Hash of the graph's node addresses and their dims. Global, as nodes_read. */
__attribute__((noinline)) int graph_shapes(__u32 tid, __u64 nodes, __u32 n)
{
	__u64 hash = n;

	for (__u32 first = 0; first < NODES_MAX; first += NODES_CHUNK) {
		if (first >= n)
			break;
		hash = (hash ^ (__u32)nodes_read(tid, nodes, first, n)) * FNV;
		hash = (hash ^ (__u32)nodes_shape(tid, n - first)) * FNV;
	}
	return hash >> 32;
}

/*
 * Sends up to PASS events of the thread's walk through the ring. Returns whether there are more (bit 0),
 * the number sent (bits 1 to 15) and lost (bits 16 and up). Global, as nodes_read.
 */
__attribute__((noinline)) int send_some(__u32 tid)
{
	struct graph_walk *w = bpf_map_lookup_elem(&walks, &tid);
	__u32 sent = 0;
	__u64 lost = 0;

	if (!w)
		return 0;
	for (int i = 0; i < PASS; i++) {
		int more = collect(tid);
		/* A large graph takes much of the buffer. */
		__u64 wake = i == PASS - 1 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;

		lost += (__u64)bpf_ringbuf_output(&events, &w->e, sizeof(w->e), wake) >> 63;
		sent++;
		if (!more)
			return sent << 1 | lost << 16;
	}
	return 1 | sent << 1 | lost << 16;
}

/* Sends the tensors that are new. No branch in the loops: see send_list. */
static __always_inline void send_tensors(void *ctx, struct graph_walk *w, __u32 tid)
{
	__u64 sent = 0, lost = 0;
	struct count *c = count_of(EV_TENSORS);

	if (k.pbuf) {
		for (int i = 0; i < PASSES * PASS; i++) {
			int more = collect(tid);

			lost += (__u64)bpf_perf_event_output(ctx, &perf_events, BPF_F_CURRENT_CPU, &w->e,
							     sizeof(w->e)) >>
				63;
			sent++;
			if (!more)
				break;
		}
	} else {
		for (int i = 0; i < PASSES; i++) {
			__u32 done = send_some(tid);

			sent += done >> 1 & 0x7fff;
			lost += done >> 16;
			if (!(done & 1))
				break;
		}
	}
	if (c) {
		__sync_fetch_and_add(&c->seen, sent);
		__sync_fetch_and_add(&c->lost, lost);
	}
}

/*
 * Sends the nodes and tensors of a graph if it differs from the last one at its address: by its uid, or
 * where it has none, by its nodes and their dims.
 */
static __always_inline void offloaded(void *ctx, struct ev_call *e, __u64 cgraph)
{
	struct addr_key key = { .addr = cgraph, .tgid = e->h.tgid };
	struct graph_seen *old = bpf_map_lookup_elem(&graphs, &key), now = {};
	__u32 tid = e->h.tid;
	struct scratch *s;
	struct graph_walk *w;
	__u64 nodes = 0;

	if (k.uid_off && get(&now.uid, 8, cgraph + k.uid_off) && old && now.uid && old->uid == now.uid)
		return;
	s = scratch_of(tid);
	w = walk_of(tid);
	if (!s || !w || e->n <= 0 || !get(&nodes, 8, cgraph + k.nodes_off))
		return;
	now.hash = (__u32)graph_shapes(tid, nodes, e->n);
	if (!old || old->hash != now.hash) {
		s->n.h = e->h;
		s->n.h.kind = EV_NODES;
		s->n.cgraph = cgraph;
		s->n.total = e->n;
		send_list(ctx, s, tid, nodes, e->n);
		s->t.h = e->h;
		w->e.h = e->h;
		w->e.h.kind = EV_TENSORS;
		w->nodes = nodes;
		w->total = e->n;
		w->next = w->at = w->len = 0;
		send_tensors(ctx, w, tid);
	}
	bpf_map_update_elem(&graphs, &key, &now, BPF_ANY);
}

#endif
