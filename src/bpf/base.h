/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What all programs share: the knobs, the maps, sending an event, reading the target's memory, knowing who is recorded.
 */
#ifndef PROFINFER_BASE_H
#define PROFINFER_BASE_H

/* Not used: they bring the types into the object's BTF, from which the Rust types are generated. */
struct ev_call *btf_call;
struct ev_op *btf_op;
enum ev_kind btf_kind;
enum ev_counter btf_counter;

#define MAX_SRC 10
#define FLAG_COMPUTE 16 /* GGML_TENSOR_FLAG_COMPUTE, ggml.h since 2026-01 */
#define QUEUE 32
#define NODES_MAX 8192
#define FNV 0x100000001b3ULL

/* Set once between open and load (agent/object.rs), so that the verifier removes what is off. */
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
	__u64 queue[QUEUE];
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

#endif
