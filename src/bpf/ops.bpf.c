// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Probes on a GGML engine: tokens, graphs, splits, ops, op ends, tensor structure. Needs no BTF and
 * no helper newer than kernel 5.10. One object per engine, with the engine's layout as constants.
 */
#include "mini_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "event.h"
#include "base.h"
#include "phase.h"
#include "ubatch.h"
#include "dispatch.h"
#include "batch.h"
#include "offload.h"
#include "structure.h"
#include "experts.h"
#include "phases.h"
#include "waits.h"
#include "memory.h"
#include "task.h"
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
	struct proc *p = recorded(id >> 32);

	if (!p)
		return 0;
	head(&e.h, kind, id);
	e.a = a;
	e.b = b;
	e.n = n;
	if (kind == EV_TOKEN_ENTER && k.memory_off)
		peek(e.guid, 8, a + k.memory_off - 1);
	if (kind == EV_SCHED_ENTER || kind == EV_SPLIT_ENTER)
		graph_shape(&e, b);
	if (kind == EV_SCHED_ENTER)
		phase_is(p, e.width, true);
	if (kind == EV_SPLIT_ENTER && k.guid_off) {
		__u64 guid = 0;

		if (get(&guid, 8, a + k.guid_off - 1) && guid && get(e.guid, 16, guid) && k.offload) {
			__builtin_memcpy(&guid, e.guid, sizeof(guid));
			if (guid != k.cpu_guid) {
				offloaded(ctx, &e, b);
				/* The split starts when we have finished reading. */
				e.h.ts = bpf_ktime_get_ns();
			}
		}
	}
	if (kind == EV_SPLIT_ENTER || kind == EV_SPLIT_EXIT || kind == EV_NODE)
		dispatched(&e);
	send(ctx, &e.h, sizeof(e));
	return 0;
}

/* llama_decode or llama_encode */
static __always_inline int batch_call(struct pt_regs *ctx, __u64 entry)
{
	__u64 at = k.batch_on_stack ? PT_REGS_SP(ctx) + 8 : PT_REGS_PARM2(ctx);
	__s32 n = -1;

	if (!get(&n, 4, at))
		n = -1;
	call(ctx, EV_TOKEN_ENTER, PT_REGS_PARM1(ctx), entry, n);
	batch_chunks(ctx, bpf_get_current_pid_tgid(), at);
	return 0;
}

SEC("uprobe")
int token_process(struct pt_regs *ctx)
{
	return call(ctx, EV_TOKEN_ENTER, PT_REGS_PARM1(ctx), (__u32)PT_REGS_PARM2(ctx) == 0 ? 2 : 0, -1);
}

SEC("uprobe")
int token_decode(struct pt_regs *ctx)
{
	return batch_call(ctx, 1);
}

SEC("uprobe")
int token_encode(struct pt_regs *ctx)
{
	return batch_call(ctx, 2);
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

/* A device backend is about to enqueue a node, or a group of nodes that begins with it. */
SEC("uprobe")
int node_enter(struct pt_regs *ctx)
{
	return call(ctx, EV_NODE, PT_REGS_PARM2(ctx), NODE_AT, PT_REGS_PARM3(ctx));
}

SEC("uprobe")
int node_tensor1(struct pt_regs *ctx)
{
	return call(ctx, EV_NODE, PT_REGS_PARM1(ctx), NODE_TENSOR, -1);
}

SEC("uprobe")
int node_tensor2(struct pt_regs *ctx)
{
	return call(ctx, EV_NODE, PT_REGS_PARM2(ctx), NODE_TENSOR, -1);
}

SEC("uprobe")
int node_tensor3(struct pt_regs *ctx)
{
	return call(ctx, EV_NODE, PT_REGS_PARM3(ctx), NODE_TENSOR, -1);
}

SEC("uprobe")
int node_tensor4(struct pt_regs *ctx)
{
	return call(ctx, EV_NODE, PT_REGS_PARM4(ctx), NODE_TENSOR, -1);
}

SEC("uretprobe")
int node_exit(struct pt_regs *ctx)
{
	return call(ctx, EV_NODE, 0, NODE_DONE, -1);
}

/* Events of one call of a layer, at most: as many kernels as it hands over at once. */
#define KERNELS_EVENTS 64

/* A layer hands over the times of kernels that have ended. */
SEC("uprobe")
int kernels_enter(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u64 at = PT_REGS_PARM1(ctx), n = PT_REGS_PARM2(ctx);
	struct ev_kernels e = {};

	if (!k.kernels || !recorded(id >> 32))
		return 0;
	head(&e.h, EV_KERNELS, id);
	e.lost = PT_REGS_PARM3(ctx);
	e.source = PT_REGS_PARM4(ctx);
	for (int i = 0; i < KERNELS_EVENTS; i++) {
		e.n = n < KERNELS_CHUNK ? n : KERNELS_CHUNK;
		if (e.n && !get(e.kernel, sizeof(e.kernel), at)) {
			e.lost += n;
			e.n = n = 0;
		}
		send(ctx, &e.h, sizeof(e));
		e.lost = 0;
		n -= e.n;
		at += sizeof(e.kernel);
		if (!n)
			break;
	}
	return 0;
}

SEC("uprobe")
int graph_enter(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u64 cgraph = PT_REGS_PARM1(ctx), cplan = PT_REGS_PARM2(ctx);
	struct proc *p = recorded(id >> 32);
	struct thread_state thread_state = { .in_graph = 1, .tgid = id >> 32 };
	struct ev_call e = {};
	__u32 tid = id;

	if (!p)
		return 0;
	thread_state.loop_ra = p->loop_ra;
	thread_state.engines = p->engines;
	__sync_fetch_and_add(&graphs_entered, 1);
	head(&e.h, EV_GRAPH_ENTER, id);
	e.a = cgraph;
	graph_shape(&e, cgraph);
	get(&e.threads, 4, cplan + k.n_threads_off);
	if (k.str)
		thread_state.describe = graph_changed(ctx, &e, cgraph);
	bpf_map_update_elem(&thread_states, &tid, &thread_state, BPF_ANY);
	phase_is(p, e.width, false);
	if (phase_begins(p))
		send_now(ctx, &e.h, sizeof(e));
	else
		send(ctx, &e.h, sizeof(e));
	return 0;
}

SEC("uretprobe")
int graph_exit(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct proc *p = recorded(id >> 32);
	struct ev_call e = {};
	struct thread_state *thread_state;
	__u32 tid = id;

	if (!p)
		return 0;
	head(&e.h, EV_GRAPH_EXIT, id);
	thread_state = bpf_map_lookup_elem(&thread_states, &tid);
	if (thread_state) {
		/*
		 * The last barrier entered is the one at the graph's end, if it is in the last op.
		 */
		if (thread_state->tensor && thread_state->last_ts > thread_state->start &&
		    thread_state->last_ra != p->loop_ra) {
			p->final_ra = thread_state->last_ra;
			e.a = thread_state->last_ts;
		} else {
			/* Older engines have one call site for both. */
			e.a = thread_state->end;
		}
		if (counting() && thread_state->tensor)
			count_last(ctx, id, thread_state, e.a, e.h.ts);
		thread_state->in_graph = 0;
		thread_state->tensor = 0;
		e.threads = thread_state->nth;
	}
	send(ctx, &e.h, sizeof(e));
	return 0;
}

/* Of a thread's ops, one in this many checks how much data is waiting for the reader. */
#define ASK_EVERY 16

/*
 * Which worker of which graph calls. A thread's parameters keep their address and contents
 * throughout a graph, so they are read once per graph; if no graphs are seen, every time. False:
 * cannot be read.
 */
static __always_inline bool worker(struct thread_state *thread_state, __u64 params, __u16 engine, __u64 *pool)
{
	__u64 graph = graphs_entered | (__u64)engine << 48;
	__u32 which[2] = {}; /* ith, then nth, in all releases */

	*pool = thread_state->pool;
	if (thread_state->params == params && thread_state->epoch == graph)
		return true;
	if (!get(which, sizeof(which), params + k.ith_off))
		return false;
	*pool = 0;
	if (k.pool_off)
		get(pool, 8, params + k.pool_off);
	thread_state->ith = which[0];
	thread_state->nth = which[1];
	thread_state->epoch = graph;
	thread_state->params = graphs_entered ? params : 0;
	return true;
}

/* The last barrier before thread 0's next op is the one in the node loop. */
static __always_inline void learn_loop(struct thread_state *thread_state)
{
	struct proc *p = recorded(thread_state->tgid);

	if (!p)
		return;
	if (!p->loop_ra) {
		p->loop_ra = thread_state->last_ra;
		thread_state->end = thread_state->last_ts;
	}
	thread_state->loop_ra = p->loop_ra;
}

static __always_inline int op(struct pt_regs *ctx, __u64 params, __u64 tensor, __u64 tensor2)
{
	__u64 id = bpf_get_current_pid_tgid(), pool, since = 0;
	struct thread_state *thread_state = thread_state_of(id);
	struct ev_counted counted;
	struct ev_op *e = &counted.op;
	__u32 size = sizeof(*e);

	if (!thread_state)
		return 0;
	head(&e->h, EV_OP, id);
	if (!worker(thread_state, params, e->h.engine, &pool))
		return 0;
	e->h.ith = thread_state->ith;
	e->h.flags = (tensor2 ? EVF_FUSED : 0) | (bpf_get_smp_processor_id() + 1) << EVF_CPU_SHIFT;
	e->tensor = tensor;
	e->tensor2 = tensor2;
	e->pool = pool;
	e->prev_end = 0;
	if (thread_state->tensor && thread_state->pool == pool) {
		if (thread_state->in_graph && !thread_state->loop_ra && thread_state->last_ts > thread_state->start)
			learn_loop(thread_state);
		e->prev_end = thread_state->end;
		since = thread_state->start;
	}
	thread_state->pool = pool;
	thread_state->tensor = tensor;
	thread_state->end = 0;
	if (k.str && ((thread_state->in_graph && thread_state->describe) || k.str == 2)) {
		__u32 tid = id;
		struct scratch *s = scratch_of(tid);

		if (s) {
			s->t.h = e->h;
			s->t.h.kind = EV_TENSOR;
			describe(ctx, s, tid, tensor, tensor2);
		}
		/* The op starts when we have finished reading its tensors. */
		e->h.ts = bpf_ktime_get_ns();
	}
	if (k.op_experts && !tensor2 && thread_state->in_graph && experts(ctx, &e->h, thread_state, tensor))
		e->h.ts = bpf_ktime_get_ns();
	thread_state->start = e->h.ts;
	if (k.n_pmc) {
		/* All of it, whatever is sent: the verifier does not know the size. */
		__builtin_memset(&counted.since, 0, sizeof(counted) - sizeof(*e));
		if (counting()) {
			e->h.flags |= EVF_COUNTED;
			count_op(id, &counted, since, e->prev_end);
			size = sizeof(counted);
		}
	}
	pass(ctx, &e->h, size, ++thread_state->hits % ASK_EVERY == 0);
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

/* Only to compare with the published method (entry and return probe, structure at every hit). */
SEC("uretprobe")
int op_exit(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct ev_op e = {};

	if (!recorded(id >> 32))
		return 0;
	head(&e.h, EV_THREAD_END, id);
	e.h.ith = 0xffff;
	bump(EV_KINDS + CNT_OP_RETURN);
	send(ctx, &e.h, sizeof(e));
	return 0;
}

/*
 * ggml_barrier(pool): called after every op but the last, once at the graph's end, and inside some
 * ops. Return addresses distinguish the call sites: the one in the node loop is learned at thread
 * 0's second op, the one at the graph's end when thread 0 returns from the graph.
 */
SEC("uprobe")
int barrier_enter(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), ra = 0;
	__u32 tid = id, tgid = id >> 32;
	struct thread_state *thread_state = bpf_map_lookup_elem(&thread_states, &tid);
	struct proc *p;

	if (!ours(thread_state, tgid))
		return 0;
	bump(EV_KINDS + CNT_BARRIER);
	if (!thread_state->tensor || (k.pool_off && thread_state->pool != PT_REGS_PARM1(ctx)))
		return 0;
#if defined(__TARGET_ARCH_x86)
	if (!get(&ra, 8, PT_REGS_SP(ctx)))
		return 0;
#else
	ra = PT_REGS_RET(ctx);
#endif
	thread_state->last_ra = ra;
	thread_state->last_ts = bpf_ktime_get_ns();
	if (ra != thread_state->loop_ra) {
		p = recorded(tgid);
		if (!p)
			return 0;
		/* Barriers inside ops can be identified once the other two are known. */
		if (counting() && (!p->loop_ra || !p->final_ra || ra == p->loop_ra || ra == p->final_ra))
			count_barrier(tid, thread_state->last_ts);
		if (ra == p->final_ra && !thread_state->in_graph) {
			struct ev_op e = {};

			if (counting())
				count_last(ctx, id, thread_state, thread_state->last_ts, thread_state->last_ts);

			head(&e.h, EV_THREAD_END, id);
			e.tensor = thread_state->tensor;
			e.pool = thread_state->pool;
			e.h.ts = thread_state->last_ts;
			send(ctx, &e.h, sizeof(e));
			thread_state->tensor = 0;
		}
		if (ra != p->loop_ra)
			return 0;
		thread_state->loop_ra = ra;
	} else if (counting()) {
		count_barrier(tid, thread_state->last_ts);
	}
	if (!thread_state->end)
		thread_state->end = thread_state->last_ts;
	return 0;
}

/* Measures the cost of a hit without any work by our programs. */
SEC("uprobe")
int nothing(void *ctx)
{
	return 0;
}
