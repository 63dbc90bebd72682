/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Structure, sent when it changes: a graph's node list at the graph's entry, tensors and their
 * sources at an op of thread 0.
 */
#ifndef PROFINFER_STRUCTURE_H
#define PROFINFER_STRUCTURE_H

#include "base.h"

static __always_inline struct scratch *scratch_of(__u32 tid)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid), *z;
	__u32 first = 0;

	if (s)
		return s;
	z = bpf_map_lookup_elem(&zero, &first);
	if (!z)
		return 0;
	bpf_map_update_elem(&scratches, &tid, z, BPF_ANY);
	return bpf_map_lookup_elem(&scratches, &tid);
}

/*
 * Reads nodes [first, first + NODES_CHUNK) of the array at `nodes` into the thread's scratch.
 * Returns their hash. A global function: the verifier checks it once, not once per iteration of
 * each caller.
 */
__attribute__((noinline)) int nodes_read(__u32 tid, __u64 nodes, __u32 first, __u32 n)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	__u64 hash = first + 1;

	if (!s)
		return 0;
	if (!get(s->n.node, sizeof(s->n.node), nodes + first * 8ULL)) {
		/* The array may end at an unmapped page: read what is there, one by one. */
		for (int i = 0; i < NODES_CHUNK; i++) {
			s->n.node[i] = 0;
			if (first + i < n)
				get(&s->n.node[i], 8, nodes + (first + i) * 8ULL);
		}
	}
	for (int i = 0; i < NODES_CHUNK; i++) {
		if (first + i < n)
			hash = (hash ^ s->n.node[i]) * FNV;
	}
	return hash >> 32;
}

/* Data that decide whether the first n nodes of the scratch's list run. Global, as nodes_read. */
__attribute__((noinline)) int nodes_info(__u32 tid, __u32 n)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);

	if (!s)
		return 0;
	for (int i = 0; i < NODES_CHUNK; i++) {
		__u32 op = 0, flags = 0, info = 0;
		__u64 ne[4], at = s->n.node[i];

		if (i >= n)
			break;
		if (!get(&op, 4, at + k.op_off) || !get(ne, sizeof(ne), at + k.ne_off))
			info = NODE_UNREAD;
		else if (!ne[0] || !ne[1] || !ne[2] || !ne[3])
			info = NODE_EMPTY;
		if (k.flags_off && get(&flags, 4, at + k.flags_off) && flags & FLAG_COMPUTE)
			info |= NODE_COMPUTE;
		s->n.info[i] = info | (op & NODE_OP);
	}
	return 0;
}

/* Hash of the graph's list of node addresses. Global, as nodes_read. */
__attribute__((noinline)) __u64 node_list(__u32 tid, __u64 nodes, __u32 n)
{
	__u64 hash = n;

	for (__u32 first = 0; first < NODES_MAX; first += NODES_CHUNK) {
		if (first >= n)
			break;
		hash = (hash ^ (__u32)nodes_read(tid, nodes, first, n)) * FNV;
	}
	return hash;
}

/* Puts a part of the list into the scratch. */
static __always_inline void list_part(struct scratch *s, __u32 tid, __u64 nodes, __u32 first, __u32 n)
{
	nodes_read(tid, nodes, first, n);
	s->n.first = first;
	nodes_info(tid, n - first);
}

/*
 * Sends the list through the ring. Returns the number of events sent (bits 0 to 15) and lost (bits 16 and up). Does not wake
 * the reader: an event of the graph follows. No branch in the loop: for each one, the verifier would walk the rest of the
 * loop again. Global, as nodes_read.
 */
__attribute__((noinline)) int send_nodes(__u32 tid, __u64 nodes, __u32 n)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	__u64 sent = 0, lost = 0;

	if (!s)
		return 0;
	for (__u32 first = 0; first < NODES_MAX; first += NODES_CHUNK) {
		if (first >= n)
			break;
		list_part(s, tid, nodes, first, n);
		/* Negative: the buffer was full. */
		lost += (__u64)bpf_ringbuf_output(&events, &s->n, sizeof(s->n), BPF_RB_NO_WAKEUP) >> 63;
		sent++;
	}
	return sent | lost << 16;
}

/* Sends the list. */
static __always_inline void send_list(void *ctx, struct scratch *s, __u32 tid, __u64 nodes, __u32 n)
{
	__u64 sent = 0, lost = 0;
	struct count *c = count_of(EV_NODES);

	if (k.pbuf) {
		for (__u32 first = 0; first < NODES_MAX; first += NODES_CHUNK) {
			if (first >= n)
				break;
			list_part(s, tid, nodes, first, n);
			lost += (__u64)bpf_perf_event_output(ctx, &perf_events, BPF_F_CURRENT_CPU, &s->n,
							     sizeof(s->n)) >>
				63;
			sent++;
		}
	} else {
		__u32 done = send_nodes(tid, nodes, n);

		sent = done & 0xffff;
		lost = done >> 16;
	}
	if (c) {
		__sync_fetch_and_add(&c->seen, sent);
		__sync_fetch_and_add(&c->lost, lost);
	}
}

/* True if the graph may differ from the last one at its address. Sends a changed node list. */
static __always_inline bool graph_changed(void *ctx, struct ev_call *e, __u64 cgraph)
{
	struct addr_key key = { .addr = cgraph, .tgid = e->h.tgid };
	struct graph_seen *old = bpf_map_lookup_elem(&graphs, &key), now = {};
	struct scratch *s;
	__u64 nodes = 0;

	if (k.uid_off && get(&now.uid, 8, cgraph + k.uid_off)) {
		e->b = now.uid;
		if (old && now.uid && old->uid == now.uid)
			return false;
	}
	if (!k.nodes)
		return true;
	s = scratch_of(e->h.tid);
	if (!s || e->n <= 0 || !get(&nodes, 8, cgraph + k.nodes_off))
		return true;
	now.hash = node_list(e->h.tid, nodes, e->n);
	if (!old || old->hash != now.hash) {
		s->n.h = e->h;
		s->n.h.kind = EV_NODES;
		s->n.cgraph = cgraph;
		s->n.total = e->n;
		send_list(ctx, s, e->h.tid, nodes, e->n);
	}
	bpf_map_update_elem(&graphs, &key, &now, BPF_ANY);
	return true;
}

#define MIX(x) (hash = (hash ^ (x)) * FNV, hash ^= hash >> 29)

static __always_inline __u64 word(const __u8 *raw, __u32 off)
{
	return off <= TENSOR_RAW - 8 ? *(const __u64 *)(raw + off) : 0;
}

static __always_inline __u32 half(const __u8 *raw, __u32 off)
{
	return off <= TENSOR_RAW - 4 ? *(const __u32 *)(raw + off) : 0;
}

/*
 * Reads the tensor at the scratch's t.addr and hashes what its description contains, including its
 * sources' dims and strides: a source that is a view never runs, so its changes show only here. 0:
 * could not be read. Global, as nodes_read.
 */
__attribute__((noinline)) int tensor_hash(__u32 tid)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	__u64 hash = 0xcbf29ce484222325ULL, dims[8];
	__u32 op;

	if (!s || !get(s->t.raw, k.tensor_len <= TENSOR_RAW ? k.tensor_len : TENSOR_RAW, s->t.addr))
		return 0;
	op = half(s->t.raw, k.op_off);
	MIX(half(s->t.raw, k.type_off) | (__u64)op << 32);
	if (op == k.op_unary || op == k.op_glu)
		MIX(half(s->t.raw, k.op_params_off));
	for (int i = 0; i < 4; i++) {
		MIX(word(s->t.raw, k.ne_off + 8 * i));
		MIX(word(s->t.raw, k.nb_off + 8 * i));
	}
	MIX(word(s->t.raw, k.view_src_off));
	for (__u32 i = 0; i < MAX_SRC; i++) {
		__u64 src = i < k.n_src ? word(s->t.raw, k.src_off + 8 * i) : 0;

		if (!src)
			continue;
		MIX(src + i);
		if (k.nb_off == k.ne_off + 32 && get(dims, sizeof(dims), src + k.ne_off)) {
			for (int j = 0; j < 8; j++)
				MIX(dims[j]);
		}
	}
	return (hash >> 32) | 1;
}

/*
 * What the published method reads: the tensor at the scratch's t.addr and its sources' dims. 0:
 * could not be read.
 */
static __always_inline int tensor_read(struct scratch *s)
{
	__u64 dims[8];

	if (!get(s->t.raw, k.tensor_len <= TENSOR_RAW ? k.tensor_len : TENSOR_RAW, s->t.addr))
		return 0;
	for (__u32 i = 0; i < MAX_SRC; i++) {
		__u64 src = i < k.n_src ? word(s->t.raw, k.src_off + 8 * i) : 0;

		if (src)
			get(dims, sizeof(dims), src + k.ne_off);
	}
	return 1;
}

#define IS_NEW 0x100

/*
 * Reads entry i of the scratch's list of n tensors. If its description is new, its sources are
 * added to the list. Returns the list's new length, with IS_NEW if the entry must be sent. Global,
 * as nodes_read.
 */
__attribute__((noinline)) int describe_one(__u32 tid, __u32 i, __u32 n)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	struct addr_key key = {};
	__u64 hash, *old;

	if (!s)
		return 0;
	s->t.addr = key.addr = s->queue[i & (QUEUE - 1)];
	if (k.str == 2)
		return tensor_read(s) ? n | IS_NEW : n;
	key.tgid = s->t.h.tgid;
	hash = (__u32)tensor_hash(tid);
	old = bpf_map_lookup_elem(&known, &key);
	if (!hash || (old && *old == hash))
		return n;
	bpf_map_update_elem(&known, &key, &hash, BPF_ANY);
	for (__u32 j = 0; j < MAX_SRC; j++) {
		__u64 src = j < k.n_src ? word(s->t.raw, k.src_off + 8 * j) : 0;

		if (src && n < QUEUE) {
			__u64 at = n++;

			/*
			 * clang knows that at < QUEUE and drops a mask written in C, but the
			 * verifier needs it.
			 */
			MASK(at, QUEUE - 1);
			s->queue[at] = src;
		}
	}
	return n | IS_NEW;
}

/* Sends an op's tensors, and their sources, whose description is new. */
static __always_inline void describe(void *ctx, struct scratch *s, __u32 tid, __u64 tensor, __u64 tensor2)
{
	__u32 n = tensor2 ? 2 : 1;

	s->queue[0] = tensor;
	s->queue[1] = tensor2;
	for (__u32 i = 0; i < QUEUE; i++) {
		if (i >= n)
			break;
		n = describe_one(tid, i, n);
		if (n & IS_NEW)
			send(ctx, &s->t.h, sizeof(s->t));
		n &= IS_NEW - 1;
	}
}

#endif
