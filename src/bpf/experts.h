/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Which experts a layer uses: the ids that a MUL_MAT_ID reads, read by thread 0 at the op's entry.
 * They are final by then: all threads have passed the barrier after the op that chose them.
 */
#ifndef PROFINFER_EXPERTS_H
#define PROFINFER_EXPERTS_H

#include "structure.h"

/*
 * Maximum events per tensor of ids: 8192 ids if the rows fill them, e.g. 1024 tokens of 8 experts.
 */
#define EXPERTS_EVENTS 128

/*
 * Reads the tensor at the scratch's x.ids into the scratch. Returns 0, or why it has no usable ids.
 * Global, as nodes_read.
 */
__attribute__((noinline)) int experts_look(__u32 tid)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	__u64 used, tokens;

	if (!s || !get(s->t.raw, k.tensor_len <= TENSOR_RAW ? k.tensor_len : TENSOR_RAW, s->x.ids))
		return EXPERTS_UNREAD;
	used = word(s->t.raw, k.ne_off);
	tokens = word(s->t.raw, k.ne_off + 8);
	s->x.used = used < -1U ? used : -1U;
	s->x.tokens = tokens < -1U ? tokens : -1U;
	s->x.data = word(s->t.raw, k.data_off);
	s->row = word(s->t.raw, k.nb_off + 8);
	if (half(s->t.raw, k.type_off) != k.type_i32 || word(s->t.raw, k.nb_off) != 4)
		return EXPERTS_ODD;
	if (!used || used > EXPERTS_CHUNK || !tokens || tokens >= -1U)
		return EXPERTS_ODD;
	return s->x.data ? 0 : EXPERTS_NOWHERE;
}

/*
 * Reads as many complete rows as fit in one event, starting at x.first. Returns their number.
 * Global, as nodes_read.
 */
__attribute__((noinline)) int experts_rows(__u32 tid)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	__u32 at = 0, bytes, rows = 0;
	__u64 from;

	if (!s)
		return 0;
	bytes = 4 * s->x.used;
	from = s->x.data + s->row * s->x.first;
	/* clang knows these bounds, the verifier does not: x is not last in the scratch. */
	MASK(bytes, 8 * EXPERTS_CHUNK - 1);
	for (__u32 i = 0; i < EXPERTS_CHUNK; i++) {
		if (s->x.first + i >= s->x.tokens || at + bytes > sizeof(s->x.id))
			break;
		MASK(at, 4 * EXPERTS_CHUNK - 1);
		if (!get((__u8 *)s->x.id + at, bytes, from))
			break;
		at += bytes;
		from += s->row;
		rows++;
	}
	return rows;
}

/*
 * Sends an op's expert ids, once per graph: gate, up and down of a layer share them. True if it
 * sent them.
 */
static __always_inline bool experts(void *ctx, const struct ev_hdr *h, struct thread_state *thread_state, __u64 tensor)
{
	struct scratch *s;
	__u32 op = 0;
	__u64 ids = 0;

	if (!get(&op, 4, tensor + k.op_off) || op != k.op_experts)
		return false;
	if (!get(&ids, 8, tensor + k.src_off + 16) || ids == thread_state->ids)
		return false;
	thread_state->ids = ids;
	s = scratch_of(h->tid);
	if (!s)
		return false;
	s->x.h = *h;
	s->x.h.kind = EV_EXPERTS;
	s->x.ids = ids;
	s->x.weights = 0;
	get(&s->x.weights, 8, tensor + k.src_off);
	s->x.first = s->x.rows = 0;
	s->x.why = experts_look(h->tid);
	for (int i = 0; i < EXPERTS_EVENTS; i++) {
		if (!s->x.why) {
			s->x.rows = experts_rows(h->tid);
			if (!s->x.rows)
				s->x.why = EXPERTS_UNREAD;
		}
		send(ctx, &s->x.h, sizeof(s->x));
		s->x.first += s->x.rows;
		if (s->x.why || s->x.first >= s->x.tokens)
			break;
	}
	return true;
}

#endif
