/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Batches for a Hexagon NPU: messages that a thread writes to a queue of libcdsprpc, and the responses
 * that it reads. The signatures are those of dspqueue.h (Hexagon SDK):
 *   dspqueue_write(queue, flags, n_buffers, buffers, length, message, timeout)
 *   dspqueue_read(queue, *flags, max_buffers, *n_buffers, buffers, max_length, *length, message, timeout)
 * What a response says is found by its length: see enum batch_layout in event.h.
 */
#ifndef PROFINFER_BATCH_H
#define PROFINFER_BATCH_H

#include "base.h"

/* A thread's call in progress. */
struct batch_call {
	__u64 queue;
	__u64 start;
	__u64 message; /* address */
	__u64 length;  /* address, of a call that reads */
	__u32 id;      /* of a call that writes */
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct batch_call);
} batch_calls SEC(".maps");

static __always_inline void batch_begins(__u32 tid, struct batch_call *c)
{
	c->start = bpf_ktime_get_ns();
	bpf_map_update_elem(&batch_calls, &tid, c, BPF_ANY);
}

SEC("uprobe")
int batch_write(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct batch_call c = {};

	if (!recorded(id >> 32))
		return 0;
	c.queue = PT_REGS_PARM1(ctx);
	c.message = PT_REGS_PARM6(ctx);
	get(&c.id, sizeof(c.id), c.message);
	batch_begins(id, &c);
	return 0;
}

SEC("uprobe")
int batch_read(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct batch_call c = {};

	if (!recorded(id >> 32))
		return 0;
	c.queue = PT_REGS_PARM1(ctx);
#if defined(__TARGET_ARCH_x86)
	/* Above the return address: the probe is where the stack pointer has not moved. */
	get(&c.length, 8, PT_REGS_SP(ctx) + 8);
	get(&c.message, 8, PT_REGS_SP(ctx) + 16);
#else
	c.length = PT_REGS_PARM7(ctx);
	c.message = PT_REGS_PARM8(ctx);
#endif
	batch_begins(id, &c);
	return 0;
}

/* A call has returned. Without its beginning, or if it failed (nothing to read yet), there is no event. */
static __always_inline int batch_ends(struct pt_regs *ctx, bool answer)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct ev_batch e = {};
	struct batch_call *c;
	__u32 tid = id;

	if (!recorded(id >> 32))
		return 0;
	c = bpf_map_lookup_elem(&batch_calls, &tid);
	if (!c)
		return 0;
	if ((int)PT_REGS_RC(ctx) == 0) {
		head(&e.h, EV_BATCH, id);
		e.queue = c->queue;
		e.start = c->start;
		e.id = c->id;
		e.answer = answer;
		if (answer) {
			get(&e.length, 4, c->length);
			get(&e.id, 4, c->message);
			if (e.length == BATCH_ONE_OP)
				get(&e.usecs, 4, c->message + 8);
			else if (e.length == BATCH_TIMED)
				get(&e.usecs, 4, c->message + 64);
		}
		send(ctx, &e.h, sizeof(e));
	}
	bpf_map_delete_elem(&batch_calls, &tid);
	return 0;
}

SEC("uretprobe")
int batch_written(struct pt_regs *ctx)
{
	return batch_ends(ctx, false);
}

SEC("uretprobe")
int batch_answered(struct pt_regs *ctx)
{
	return batch_ends(ctx, true);
}

#endif
