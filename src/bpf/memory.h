/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What a program does to the memory of a context (its KV cache): functions llama_memory_* of llama.h, of older releases
 * llama_kv_self_* and llama_kv_cache_*, which take the context, and llama_state_*.
 */
#ifndef PROFINFER_MEMORY_H
#define PROFINFER_MEMORY_H

#include "base.h"

static __always_inline int memory_op(struct pt_regs *ctx, __u32 what, __s32 seq, __s32 to, __s32 from, __s32 until)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct ev_memory e = {};

	if (!recorded(id >> 32))
		return 0;
	head(&e.h, EV_MEMORY, id);
	e.object = PT_REGS_PARM1(ctx);
	e.what = what;
	e.seq = seq;
	e.to = to;
	e.from = from;
	e.until = until;
	send(ctx, &e.h, sizeof(e));
	return 0;
}

SEC("uprobe")
int memory_clear(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_CLEAR, -1, 0, -1, -1);
}

SEC("uprobe")
int memory_remove(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_REMOVE, PT_REGS_PARM2(ctx), 0, PT_REGS_PARM3(ctx), PT_REGS_PARM4(ctx));
}

SEC("uprobe")
int memory_copy(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_COPY, PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx), PT_REGS_PARM4(ctx),
			 PT_REGS_PARM5(ctx));
}

SEC("uprobe")
int memory_keep(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_KEEP, PT_REGS_PARM2(ctx), 0, -1, -1);
}

SEC("uprobe")
int memory_shift(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_SHIFT, PT_REGS_PARM2(ctx), PT_REGS_PARM5(ctx), PT_REGS_PARM3(ctx),
			 PT_REGS_PARM4(ctx));
}

SEC("uprobe")
int memory_divide(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_DIVIDE, PT_REGS_PARM2(ctx), PT_REGS_PARM5(ctx), PT_REGS_PARM3(ctx),
			 PT_REGS_PARM4(ctx));
}

/* llama_state_*_data: all sequences */
SEC("uprobe")
int state_save(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_SAVE, -1, 0, -1, -1);
}

SEC("uprobe")
int state_load(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_LOAD, -1, 0, -1, -1);
}

/* llama_state_seq_*_data: the sequence is the fourth argument */
SEC("uprobe")
int state_seq_save(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_SAVE, PT_REGS_PARM4(ctx), 0, -1, -1);
}

SEC("uprobe")
int state_seq_load(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_LOAD, PT_REGS_PARM4(ctx), 0, -1, -1);
}

/* llama_state_seq_*_file: the third */
SEC("uprobe")
int state_file_save(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_SAVE, PT_REGS_PARM3(ctx), 0, -1, -1);
}

SEC("uprobe")
int state_file_load(struct pt_regs *ctx)
{
	return memory_op(ctx, MEMORY_LOAD, PT_REGS_PARM3(ctx), 0, -1, -1);
}

#endif
