// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Follows processes by the fields of the kernel's tracepoints, whose offsets tracefs gives: needs
 * no BTF. The fork event does not distinguish a thread from a process, so thread ids are added as
 * well and removed when the thread ends. They match no process.
 */
#include "mini_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "event.h"
#include "tracepoint.h"
#include "process.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

SEC("tracepoint/sched/sched_process_fork")
int event_fork(void *ctx)
{
	__u32 child = 0;

	if (bpf_probe_read_kernel(&child, 4, ctx + k.child_off) || !child)
		return PASS;
	born(ctx, bpf_get_current_pid_tgid(), child);
	return PASS;
}

SEC("tracepoint/sched/sched_process_exit")
int event_exit(void *ctx)
{
	gone(ctx, bpf_get_current_pid_tgid());
	return PASS;
}
