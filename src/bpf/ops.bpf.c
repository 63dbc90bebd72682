// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Probes on a GGML engine: tokens, graphs, splits, ops, op ends, tensor structure. Needs no BTF and no helper newer
 * than kernel 5.10. One object is loaded for each engine, with the engine's layout as constants.
 */
#include "mini_vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "event.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Not used: they bring the types into the object's BTF, from which the Rust types are generated. */
struct ev_call *btf_call;
struct ev_op *btf_op;
enum ev_kind btf_kind;
enum ev_counter btf_counter;

#define MAX_SRC 10
#define FLAG_COMPUTE 16 /* GGML_TENSOR_FLAG_COMPUTE, ggml.h since 2026-01 */
#define TODO 32
#define NODES_MAX 8192
#define FNV 0x100000001b3ULL

/* Set once between open and load (agent/knobs.rs), so that the verifier removes what is off. */
const volatile struct knobs {
	__u32 engine;
	__u32 any;   /* 1: every process that runs the probed files; 0: those in `targets` */
	__u32 pbuf;  /* 1: perf buffer, 0: ring buffer */
	__u32 str;   /* 1: send structure when it changes; 2: at every hit (the published method, for comparison) */
	__u32 nodes; /* 1: send the graph's node list when it changes */
	__u32 wake_bytes;
	__u32 batch_on_stack; /* 1: llama_batch passed by value on the stack (x86-64), 0: by pointer in arg 2 */
	__u32 tensor_len;     /* bytes up to the end of name, at most TENSOR_RAW */
	__u32 type_off, ne_off, nb_off, op_off, op_params_off, flags_off, src_off, n_src, view_src_off;
	__u32 ith_off, pool_off;	       /* pool_off 0: no such field */
	__u32 n_nodes_off, nodes_off, uid_off; /* uid_off 0: no such field */
	__u32 n_threads_off;
	__u32 guid_off; /* 1 + offset of ggml_backend.guid, 0: no such field */
	__u32 op_unary, op_glu;
	__u32 tp_fork_parent, tp_fork_child; /* offsets of sched_process_fork's fields */
} k = {};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} perf_events SEC(".maps");

struct count {
	__u64 seen;
	__u64 lost;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EV_KINDS + CNT_COUNTERS);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

/* A process that is recorded. The return addresses of ggml_barrier are learned: see barrier_enter. */
struct proc {
	__u64 loop_ra;
	__u64 final_ra;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct proc);
} targets SEC(".maps");

/* What a thread is doing. pool and ith tell whether it is still the same worker of the same graph. */
struct lane {
	__u64 pool;
	__u64 tensor; /* op under way, 0: none */
	__u64 start;
	__u64 end; /* its end, 0: not seen yet */
	__u64 last_ra;
	__u64 last_ts;
	__u32 in_graph; /* thread 0: between entry and return of ggml_graph_compute */
	__u32 describe; /* thread 0: this graph may have changed, look at its tensors */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct lane);
} lanes SEC(".maps");

struct addr_key {
	__u64 addr;
	__u64 tgid;
};

/* Hash of the description last sent for a tensor. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct addr_key);
	__type(value, __u64);
} known SEC(".maps");

struct graph_seen {
	__u64 uid;
	__u64 hash; /* of the node list */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct addr_key);
	__type(value, struct graph_seen);
} graphs SEC(".maps");

/* Working memory of a thread. Not per CPU: a uprobe program can be preempted by another thread's. */
struct scratch {
	struct ev_tensor t;
	struct ev_nodes n;
	__u64 todo[TODO];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/* Never written: the initial value of a new `scratches` entry. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} zero SEC(".maps");

static __always_inline struct count *count_of(__u32 i)
{
	return bpf_map_lookup_elem(&counts, &i);
}

static __always_inline void bump(__u32 i)
{
	struct count *c = count_of(i);

	if (c)
		__sync_fetch_and_add(&c->seen, 1);
}

static __always_inline void send(void *ctx, struct ev_hdr *h, __u32 size)
{
	struct count *c = count_of(h->kind);
	long err;

	if (k.pbuf) {
		err = bpf_perf_event_output(ctx, &perf_events, BPF_F_CURRENT_CPU, h, size);
	} else {
		__u64 flags = BPF_RB_NO_WAKEUP;

		if (bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) >= k.wake_bytes)
			flags = BPF_RB_FORCE_WAKEUP;
		err = bpf_ringbuf_output(&events, h, size, flags);
	}
	if (c) {
		__sync_fetch_and_add(&c->seen, 1);
		if (err)
			__sync_fetch_and_add(&c->lost, 1);
	}
}

static __always_inline bool get(void *dst, __u32 size, __u64 addr)
{
	if (!bpf_probe_read_user(dst, size, (void *)addr))
		return true;
	bump(EV_KINDS + CNT_READ_ERROR);
	return false;
}

static __always_inline struct proc *recorded(__u32 tgid)
{
	struct proc *p = bpf_map_lookup_elem(&targets, &tgid);

	if (!p && k.any) {
		struct proc fresh = {};

		bpf_map_update_elem(&targets, &tgid, &fresh, BPF_NOEXIST);
		p = bpf_map_lookup_elem(&targets, &tgid);
	}
	return p;
}

static __always_inline void head(struct ev_hdr *h, __u16 kind, __u64 id)
{
	h->ts = bpf_ktime_get_ns();
	h->tgid = id >> 32;
	h->tid = id;
	h->kind = kind;
	h->engine = k.engine;
}

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
 * Reads nodes [first, first + NODES_CHUNK) of the array at `nodes` into the thread's scratch; gives their hash.
 * A global function: the verifier looks at it once, not once for each of the callers' iterations.
 */
__attribute__((noinline)) int nodes_read(__u32 tid, __u64 nodes, __u32 first, __u32 n)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	__u64 hash = first + 1;

	if (!s)
		return 0;
	if (!get(s->n.node, sizeof(s->n.node), nodes + first * 8ULL)) {
		/* The array may end at a page that is not mapped: read what there is, one by one. */
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

/* What decides whether the first n nodes of the scratch's list run. Global, as nodes_read. */
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

/* Hash of the graph's list of node addresses; with `emit`, the list is sent as well. */
static __always_inline __u64 node_list(void *ctx, struct scratch *s, __u32 tid, __u64 nodes, __u32 n, bool emit)
{
	__u64 hash = n;

	for (__u32 first = 0; first < NODES_MAX; first += NODES_CHUNK) {
		if (first >= n)
			break;
		hash = (hash ^ (__u32)nodes_read(tid, nodes, first, n)) * FNV;
		if (emit) {
			s->n.first = first;
			nodes_info(tid, n - first);
			send(ctx, &s->n.h, sizeof(s->n));
		}
	}
	return hash;
}

/* True when the graph may differ from what was last seen at its address. Sends its node list if that changed. */
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
	now.hash = node_list(ctx, s, e->h.tid, nodes, e->n, false);
	if (!old || old->hash != now.hash) {
		s->n.h = e->h;
		s->n.h.kind = EV_NODES;
		s->n.cgraph = cgraph;
		s->n.total = e->n;
		node_list(ctx, s, e->h.tid, nodes, e->n, true);
	}
	bpf_map_update_elem(&graphs, &key, &now, BPF_ANY);
	return true;
}

SEC("uprobe")
int graph_enter(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u64 cgraph = PT_REGS_PARM1(ctx), cplan = PT_REGS_PARM2(ctx);
	struct lane lane = { .in_graph = 1 };
	struct ev_call e = {};
	__u32 tid = id;

	if (!recorded(id >> 32))
		return 0;
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
		/* The barrier that thread 0 met last is the one at the graph's end. */
		if (lane->tensor && lane->last_ra && lane->last_ra != p->loop_ra) {
			p->final_ra = lane->last_ra;
			e.a = lane->last_ts;
		} else {
			/* Older engines have one call site for both. */
			e.a = lane->end;
		}
		lane->in_graph = 0;
		lane->tensor = 0;
	}
	send(ctx, &e.h, sizeof(e));
	return 0;
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

/* Reads the tensor at the scratch's t.addr and hashes what its description holds, its sources' dims and strides
 * included: a source that is a view never runs, so this is where its change shows. 0: could not be read. Global, as
 * nodes_read. */
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

#define IS_NEW 0x100

/* Reads entry i of the scratch's list of n tensors. One whose description is new brings its sources to the list. Gives
 * the list's new length, with IS_NEW if the entry is to be sent. Global, as nodes_read. */
__attribute__((noinline)) int describe_one(__u32 tid, __u32 i, __u32 n)
{
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	struct addr_key key = {};
	__u64 hash, *old;

	if (!s)
		return 0;
	s->t.addr = key.addr = s->todo[i & (TODO - 1)];
	key.tgid = s->t.h.tgid;
	hash = (__u32)tensor_hash(tid);
	old = bpf_map_lookup_elem(&known, &key);
	if (!hash || (old && *old == hash && k.str != 2))
		return n;
	bpf_map_update_elem(&known, &key, &hash, BPF_ANY);
	for (__u32 j = 0; j < MAX_SRC; j++) {
		__u64 src = j < k.n_src ? word(s->t.raw, k.src_off + 8 * j) : 0;

		if (src && n < TODO && k.str != 2) {
			__u64 at = n++;

			/* clang knows that at < TODO and drops a mask in C; the verifier wants to see it. */
			asm volatile("%0 &= %1" : "+r"(at) : "i"(TODO - 1));
			s->todo[at] = src;
		}
	}
	return n | IS_NEW;
}

/* Sends those of an op's tensors, and of their sources, whose description is new. */
static __always_inline void describe(void *ctx, struct scratch *s, __u32 tid, __u64 tensor, __u64 tensor2)
{
	__u32 n = tensor2 ? 2 : 1;

	s->todo[0] = tensor;
	s->todo[1] = tensor2;
	for (__u32 i = 0; i < TODO; i++) {
		if (i >= n)
			break;
		n = describe_one(tid, i, n);
		if (n & IS_NEW)
			send(ctx, &s->t.h, sizeof(s->t));
		n &= IS_NEW - 1;
	}
}

static __always_inline int op(struct pt_regs *ctx, __u64 params, __u64 tensor, __u64 tensor2)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct proc *p = recorded(id >> 32);
	struct lane *lane, fresh = {};
	struct ev_op e = {};
	__u32 tid = id, ith = 0;

	if (!p)
		return 0;
	head(&e.h, EV_OP, id);
	e.tensor = tensor;
	e.tensor2 = tensor2;
	if (tensor2)
		e.h.flags = EVF_FUSED;
	if (!get(&ith, 4, params + k.ith_off))
		return 0;
	e.h.ith = ith;
	if (k.pool_off)
		get(&e.pool, 8, params + k.pool_off);

	lane = bpf_map_lookup_elem(&lanes, &tid);
	if (!lane) {
		bpf_map_update_elem(&lanes, &tid, &fresh, BPF_ANY);
		lane = bpf_map_lookup_elem(&lanes, &tid);
		if (!lane)
			return 0;
	}
	if (lane->tensor && lane->pool == e.pool) {
		/* The last barrier before a next op of thread 0 is the one of the node loop. */
		if (lane->in_graph && !p->loop_ra && lane->last_ts > lane->start) {
			p->loop_ra = lane->last_ra;
			lane->end = lane->last_ts;
		}
		e.prev_end = lane->end;
	}
	lane->pool = e.pool;
	lane->tensor = tensor;
	lane->end = 0;
	if (k.str && ((lane->in_graph && lane->describe) || k.str == 2)) {
		struct scratch *s = scratch_of(tid);

		if (s) {
			s->t.h = e.h;
			s->t.h.kind = EV_TENSOR;
			describe(ctx, s, tid, tensor, tensor2);
		}
		/* The op starts when we are done looking at it. */
		e.h.ts = bpf_ktime_get_ns();
	}
	lane->start = e.h.ts;
	send(ctx, &e.h, sizeof(e));
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
	struct proc *p = recorded(id >> 32);
	struct lane *lane;
	__u32 tid = id;

	if (!p)
		return 0;
	bump(EV_KINDS + CNT_BARRIER);
	lane = bpf_map_lookup_elem(&lanes, &tid);
	if (!lane || !lane->tensor || (k.pool_off && lane->pool != PT_REGS_PARM1(ctx)))
		return 0;
#if defined(__TARGET_ARCH_x86)
	if (!get(&ra, 8, PT_REGS_SP(ctx)))
		return 0;
#else
	ra = PT_REGS_RET(ctx);
#endif
	lane->last_ra = ra;
	lane->last_ts = bpf_ktime_get_ns();
	if (ra == p->loop_ra) {
		if (!lane->end)
			lane->end = lane->last_ts;
	} else if (ra == p->final_ra && !lane->in_graph) {
		struct ev_op e = {};

		head(&e.h, EV_LANE_END, id);
		e.tensor = lane->tensor;
		e.pool = lane->pool;
		e.h.ts = lane->last_ts;
		send(ctx, &e.h, sizeof(e));
		lane->tensor = 0;
	}
	return 0;
}

/* Children of a recorded process are recorded. The kernel's event does not tell a thread from a process, so thread
 * ids get in as well and leave at the thread's end: they match no tgid. */
SEC("tracepoint")
int proc_fork(void *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct ev_call e = {};
	struct proc fresh = {};
	__u32 tgid = id >> 32, child = 0;

	if (!bpf_map_lookup_elem(&targets, &tgid))
		return 0;
	if (bpf_probe_read_kernel(&child, 4, ctx + k.tp_fork_child) || !child)
		return 0;
	bpf_map_update_elem(&targets, &child, &fresh, BPF_NOEXIST);
	head(&e.h, EV_FORK, id);
	e.a = child;
	send(ctx, &e.h, sizeof(e));
	return 0;
}

SEC("tracepoint")
int proc_exit(void *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct ev_call e = {};
	__u32 tid = id;

	if (!bpf_map_lookup_elem(&targets, &tid))
		return 0;
	bpf_map_delete_elem(&targets, &tid);
	if (tid != id >> 32)
		return 0;
	head(&e.h, EV_EXIT, id);
	send(ctx, &e.h, sizeof(e));
	return 0;
}
