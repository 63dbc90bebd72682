// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Follows processes by the kernel's task_struct, which distinguishes a new process from a new
 * thread. Its field offsets come from a BTF, the running kernel's or a given one. Without a BTF,
 * process_tp.bpf.c is used instead.
 */
#include "mini_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "event.h"
#include "process.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/*
 * What was read during the recorder's own fork. From it the recorder decides whether the offsets
 * match this kernel.
 */
struct trial {
	__u32 seen;
	__u32 parent_pid, parent_tgid;
	__u32 child_pid, child_tgid;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct trial);
} trials SEC(".maps");

SEC("raw_tp/sched_process_fork")
int BPF_PROG(task_fork, struct task_struct *parent, struct task_struct *child)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 tgid = BPF_CORE_READ(child, tgid), pid = BPF_CORE_READ(child, pid), zero = 0;

	if (k.own_tid == (__u32)id) {
		struct trial t = {
			.seen = 1,
			.parent_pid = BPF_CORE_READ(parent, pid),
			.parent_tgid = BPF_CORE_READ(parent, tgid),
			.child_pid = pid,
			.child_tgid = tgid,
		};

		bpf_map_update_elem(&trials, &zero, &t, BPF_ANY);
		return 0;
	}
	return pid == tgid ? born(ctx, id, tgid) : 0;
}

SEC("raw_tp/sched_process_exit")
int task_exit(void *ctx)
{
	return gone(ctx, bpf_get_current_pid_tgid());
}
