/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * When llama-server takes in a request, and when it has a result of it: tools/server/server-queue.h. A request and a result
 * start with their number, after the result's table of functions; the number of the slot follows in a result. So it has been
 * since 2024-12.
 */
#ifndef PROFINFER_TASK_H
#define PROFINFER_TASK_H

#include "base.h"
#include "ubatch.h"

#define RESULT_TASK 8
#define RESULT_SLOT 12

static __always_inline int task_op(struct pt_regs *ctx, __u64 at, __u64 bytes, bool result)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct ev_task e = {};

	if (!recorded(id >> 32))
		return 0;
	head(&e.h, EV_TASK, id);
	e.bytes = bytes;
	e.slot = TASK_ARRIVES;
	if (!peek(&e.task, sizeof(e.task), at + (result ? RESULT_TASK : 0)))
		return 0;
	if (result && !peek(&e.slot, sizeof(e.slot), at + RESULT_SLOT))
		return 0;
	send(ctx, &e.h, sizeof(e));
	return 0;
}

/* server_queue::post(server_task &&, bool) */
SEC("uprobe")
int task_post(struct pt_regs *ctx)
{
	return task_op(ctx, PT_REGS_PARM2(ctx), 0, false);
}

/* server_queue::post(std::vector<server_task> &&, bool) */
SEC("uprobe")
int task_post_all(struct pt_regs *ctx)
{
	__u64 of[2] = {};

	if (!peek(of, sizeof(of), PT_REGS_PARM2(ctx)) || of[1] <= of[0])
		return 0;
	return task_op(ctx, of[0], of[1] - of[0], false);
}

/* server_response::send(std::unique_ptr<server_task_result> &&) */
SEC("uprobe")
int task_result(struct pt_regs *ctx)
{
	__u64 at = 0;

	if (!peek(&at, sizeof(at), PT_REGS_PARM2(ctx)))
		return 0;
	return task_op(ctx, at, 0, true);
}

#endif
