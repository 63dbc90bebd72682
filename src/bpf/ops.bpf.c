// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Probes on a GGML engine: tokens, graphs, splits, ops, op ends, tensor structure. Needs no BTF and no helper newer
 * than kernel 5.10. One object is loaded for each engine, with the engine's layout as constants.
 */
#include "mini_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "event.h"
#include "base.h"
#include "structure.h"
#include "experts.h"
#include "phases.h"
#include "waits.h"
#include "account.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static __always_inline void graph_shape(struct ev_call *e, __u64 cgraph)
{
	__u64 nodes = 0, first = 0, ne1 = 0;

	if (!get(&e->n, 4, cgraph + k.n_nodes_off) || e->n <= 0)
		return;
	if (get(&nodes, 8, cgraph + k.nodes_off) && get(&first, 8, nodes) && get(&ne1, 8, first + k.ne_off + 8))
		e->width = ne1;
}

static __always_inline int call(struct pt_regs *ctx, __u16 kind, __u64 a, __u64 b, __s32 n)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct ev_call e = {};

	if (!recorded(id >> 32))
		return 0;
	head(&e.h, kind, id);
	e.a = a;
	e.b = b;
	e.n = n;
	if (kind == EV_SCHED_ENTER || kind == EV_SPLIT_ENTER)
		graph_shape(&e, b);
	if (kind == EV_SPLIT_ENTER && k.guid_off) {
		__u64 guid = 0;

		if (get(&guid, 8, a + k.guid_off - 1) && guid)
			get(e.guid, 16, guid);
	}
	send(ctx, &e.h, sizeof(e));
	return 0;
}

static __always_inline __s32 batch_tokens(struct pt_regs *ctx)
{
	__u64 at = k.batch_on_stack ? PT_REGS_SP(ctx) + 8 : PT_REGS_PARM2(ctx);
	__s32 n = -1;

	return get(&n, 4, at) ? n : -1;
}

SEC("uprobe")
int token_process(struct pt_regs *ctx)
{
	return call(ctx, EV_TOKEN_ENTER, PT_REGS_PARM1(ctx), (__u32)PT_REGS_PARM2(ctx) == 0 ? 2 : 0, -1);
}

SEC("uprobe")
int token_decode(struct pt_regs *ctx)
{
	return call(ctx, EV_TOKEN_ENTER, PT_REGS_PARM1(ctx), 1, batch_tokens(ctx));
}

SEC("uprobe")
int token_encode(struct pt_regs *ctx)
{
	return call(ctx, EV_TOKEN_ENTER, PT_REGS_PARM1(ctx), 2, batch_tokens(ctx));
}

SEC("uretprobe")
int token_exit(struct pt_regs *ctx)
{
	return call(ctx, EV_TOKEN_EXIT, 0, 0, 0);
}

SEC("uprobe")
int sched_enter(struct pt_regs *ctx)
{
	return call(ctx, EV_SCHED_ENTER, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), 0);
}

SEC("uretprobe")
int sched_exit(struct pt_regs *ctx)
{
	return call(ctx, EV_SCHED_EXIT, 0, 0, 0);
}

SEC("uprobe")
int split_enter(struct pt_regs *ctx)
{
	return call(ctx, EV_SPLIT_ENTER, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), 0);
}

SEC("uretprobe")
int split_exit(struct pt_regs *ctx)
{
	return call(ctx, EV_SPLIT_EXIT, 0, 0, 0);
}

SEC("uprobe")
int graph_enter(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u64 cgraph = PT_REGS_PARM1(ctx), cplan = PT_REGS_PARM2(ctx);
	struct proc *p = recorded(id >> 32);
	struct lane lane = { .in_graph = 1, .tgid = id >> 32 };
	struct ev_call e = {};
	__u32 tid = id;

	if (!p)
		return 0;
	lane.loop_ra = p->loop_ra;
	lane.engines = p->engines;
	__sync_fetch_and_add(&graphs_entered, 1);
	head(&e.h, EV_GRAPH_ENTER, id);
	e.a = cgraph;
	graph_shape(&e, cgraph);
	get(&e.threads, 4, cplan + k.n_threads_off);
	if (k.str)
		lane.describe = graph_changed(ctx, &e, cgraph);
	bpf_map_update_elem(&lanes, &tid, &lane, BPF_ANY);
	send(ctx, &e.h, sizeof(e));
	return 0;
}

SEC("uretprobe")
int graph_exit(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct proc *p = recorded(id >> 32);
	struct ev_call e = {};
	struct lane *lane;
	__u32 tid = id;

	if (!p)
		return 0;
	head(&e.h, EV_GRAPH_EXIT, id);
	lane = bpf_map_lookup_elem(&lanes, &tid);
	if (lane) {
		/* The barrier that thread 0 met last is the one at the graph's end, if it met one in its last op. */
		if (lane->tensor && lane->last_ts > lane->start && lane->last_ra != p->loop_ra) {
			p->final_ra = lane->last_ra;
			e.a = lane->last_ts;
		} else {
			/* Older engines have one call site for both. */
			e.a = lane->end;
		}
		if (counting() && lane->tensor)
			count_last(ctx, id, lane, e.a, e.h.ts);
		lane->in_graph = 0;
		lane->tensor = 0;
	}
	send(ctx, &e.h, sizeof(e));
	return 0;
}

/* An op asks how much waits for the reader once in so many of a thread's. */
#define ASK_EVERY 16

/*
 * Which worker of which graph calls. A thread's parameters stay in one place and the same for all of a graph, so they
 * are read once in each; without graphs to be seen, each time. False: cannot be read.
 */
static __always_inline bool worker(struct lane *lane, __u64 params, __u16 engine, __u64 *pool)
{
	__u64 graph = graphs_entered | (__u64)engine << 48;
	__u32 ith = 0;

	*pool = lane->pool;
	if (lane->params == params && lane->epoch == graph)
		return true;
	if (!get(&ith, 4, params + k.ith_off))
		return false;
	*pool = 0;
	if (k.pool_off)
		get(pool, 8, params + k.pool_off);
	lane->ith = ith;
	lane->epoch = graph;
	lane->params = graphs_entered ? params : 0;
	return true;
}

/* The last barrier before a next op of thread 0 is the one of the node loop. */
static __always_inline void learn_loop(struct lane *lane)
{
	struct proc *p = recorded(lane->tgid);

	if (!p)
		return;
	if (!p->loop_ra) {
		p->loop_ra = lane->last_ra;
		lane->end = lane->last_ts;
	}
	lane->loop_ra = p->loop_ra;
}

static __always_inline int op(struct pt_regs *ctx, __u64 params, __u64 tensor, __u64 tensor2)
{
	__u64 id = bpf_get_current_pid_tgid(), pool, since = 0;
	struct lane *lane = lane_of(id);
	struct ev_counted counted;
	struct ev_op *e = &counted.op;
	__u32 size = sizeof(*e);

	if (!lane)
		return 0;
	head(&e->h, EV_OP, id);
	if (!worker(lane, params, e->h.engine, &pool))
		return 0;
	e->h.ith = lane->ith;
	e->h.flags = tensor2 ? EVF_FUSED : 0;
	e->tensor = tensor;
	e->tensor2 = tensor2;
	e->pool = pool;
	e->prev_end = 0;
	if (lane->tensor && lane->pool == pool) {
		if (lane->in_graph && !lane->loop_ra && lane->last_ts > lane->start)
			learn_loop(lane);
		e->prev_end = lane->end;
		since = lane->start;
	}
	lane->pool = pool;
	lane->tensor = tensor;
	lane->end = 0;
	if (k.str && ((lane->in_graph && lane->describe) || k.str == 2)) {
		__u32 tid = id;
		struct scratch *s = scratch_of(tid);

		if (s) {
			s->t.h = e->h;
			s->t.h.kind = EV_TENSOR;
			describe(ctx, s, tid, tensor, tensor2);
		}
		/* The op starts when we are done looking at it. */
		e->h.ts = bpf_ktime_get_ns();
	}
	if (k.op_experts && !tensor2 && lane->in_graph && experts(ctx, &e->h, lane, tensor))
		e->h.ts = bpf_ktime_get_ns();
	lane->start = e->h.ts;
	if (k.n_pmc) {
		/* All of it, whatever is sent: the verifier does not tell one from the other. */
		__builtin_memset(&counted.since, 0, sizeof(counted) - sizeof(*e));
		if (counting()) {
			e->h.flags |= EVF_COUNTED;
			count_op(id, &counted, since, e->prev_end);
			size = sizeof(counted);
		}
	}
	pass(ctx, &e->h, size, ++lane->hits % ASK_EVERY == 0);
	return 0;
}

SEC("uprobe")
int op_enter(struct pt_regs *ctx)
{
	return op(ctx, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), 0);
}

SEC("uprobe")
int fused_enter(struct pt_regs *ctx)
{
	return op(ctx, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx));
}

/* Only for the comparison with the published method (entry and return probe, structure at each hit). */
SEC("uretprobe")
int op_exit(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct ev_op e = {};

	if (!recorded(id >> 32))
		return 0;
	head(&e.h, EV_LANE_END, id);
	e.h.ith = 0xffff;
	bump(EV_KINDS + CNT_OP_RETURN);
	send(ctx, &e.h, sizeof(e));
	return 0;
}

/*
 * ggml_barrier(pool): called after every op but the last, once at the graph's end, and inside some ops. The call sites
 * are told apart by return address: the node loop's is learned at thread 0's second op, the one at the graph's end at
 * thread 0's return from the graph.
 */
SEC("uprobe")
int barrier_enter(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), ra = 0;
	__u32 tid = id, tgid = id >> 32;
	struct lane *lane = bpf_map_lookup_elem(&lanes, &tid);
	struct proc *p;

	if (!ours(lane, tgid))
		return 0;
	bump(EV_KINDS + CNT_BARRIER);
	if (!lane->tensor || (k.pool_off && lane->pool != PT_REGS_PARM1(ctx)))
		return 0;
#if defined(__TARGET_ARCH_x86)
	if (!get(&ra, 8, PT_REGS_SP(ctx)))
		return 0;
#else
	ra = PT_REGS_RET(ctx);
#endif
	lane->last_ra = ra;
	lane->last_ts = bpf_ktime_get_ns();
	if (ra != lane->loop_ra) {
		p = recorded(tgid);
		if (!p)
			return 0;
		/* Which barriers lie inside of ops is known once the two others are. */
		if (counting() && (!p->loop_ra || !p->final_ra || ra == p->loop_ra || ra == p->final_ra))
			count_barrier(tid, lane->last_ts);
		if (ra == p->final_ra && !lane->in_graph) {
			struct ev_op e = {};

			if (counting())
				count_last(ctx, id, lane, lane->last_ts, lane->last_ts);

			head(&e.h, EV_LANE_END, id);
			e.tensor = lane->tensor;
			e.pool = lane->pool;
			e.h.ts = lane->last_ts;
			send(ctx, &e.h, sizeof(e));
			lane->tensor = 0;
		}
		if (ra != p->loop_ra)
			return 0;
		lane->loop_ra = ra;
	} else if (counting()) {
		count_barrier(tid, lane->last_ts);
	}
	if (!lane->end)
		lane->end = lane->last_ts;
	return 0;
}

/* What a hit costs before any program of ours has done anything. */
SEC("uprobe")
int nothing(void *ctx)
{
	return 0;
}
