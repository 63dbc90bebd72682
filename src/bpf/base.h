/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Shared by all probes on an engine: the constants, the maps, reads of the target's memory, and the
 * check whether a process is recorded.
 */
#ifndef PROFINFER_BASE_H
#define PROFINFER_BASE_H

/* Unused: they bring the types into the object's BTF, from which the Rust types are generated. */
struct ev_call *btf_call;
struct ev_op *btf_op;
struct ev_experts *btf_experts;
enum ev_experts_why btf_why;
struct ev_offcpu *btf_offcpu;
enum ev_answer btf_answer;
struct ev_tensors *btf_tensors;
struct ev_kernels *btf_kernels;
struct ev_batch *btf_batch;
struct ev_ubatch *btf_ubatch;
struct ev_content *btf_content;
struct ev_memory *btf_memory;
enum memory_what btf_memory_what;
struct ev_task *btf_task;
struct ev_sampler *btf_sampler;
enum batch_layout btf_layout;
enum ev_phase btf_phase;
enum ev_what btf_what;
enum ev_waits btf_waits;
struct ev_counted *btf_counted;
enum ev_kind btf_kind;
enum ev_counter btf_counter;

#define MAX_SRC 10
#define FLAG_COMPUTE 16 /* GGML_TENSOR_FLAG_COMPUTE, ggml.h since 2026-01 */
#define QUEUE 32
#define NODES_MAX 8192
#define FNV 0x100000001b3ULL

/* What is captured, and the engine's layout. */
struct ops_constants {
	__u32 engine;
	__u32 pbuf;    /* 1: perf buffer, 0: ring buffer */
	__u32 str;     /* 1: send structure on change; 2: at every hit (published method, to compare) */
	__u32 nodes;   /* 1: send the graph's node list when it changes */
	__u32 offload; /* 1: the same, with tensors, for splits on other backends than the CPU's */
	__u32 kernels; /* 1: kernels of a device, from a layer */
	__u32 wake_bytes;
	__u32 phases;	      /* 1: a change between prompt and decode wakes the reader */
	__u32 batch_on_stack; /* 1: llama_batch by value on the stack (x86-64), 0: by pointer in arg 2 */
	__u32 batches;	      /* 1: describe the llama_batch that is passed */
	__u32 memory_off;     /* 1 + offset of llama_context.memory, 0: not known */
	__u32 tensor_len;     /* bytes up to the end of name, at most TENSOR_RAW */
	__u32 type_off, ne_off, nb_off, op_off, op_params_off, flags_off, src_off, n_src, view_src_off;
	__u32 ith_off, pool_off;	       /* pool_off 0: no such field */
	__u32 n_nodes_off, nodes_off, uid_off; /* uid_off 0: no such field */
	__u32 n_threads_off;
	__u32 guid_off; /* 1 + offset of ggml_backend.guid, 0: no such field */
	__u64 cpu_guid; /* first word of the CPU backend's guid */
	__u32 op_unary, op_glu;
	__u32 op_experts; /* number of MUL_MAT_ID, 0: experts are not recorded */
	__u32 type_i32, data_off;
	__u32 n_pmc, pmc_switches, pmc_migrations; /* see pmc.h */
	__u64 content_key[2];			   /* of the hashes of tokens */
};

#ifdef __bpf__
/*
 * Set once between open and load (src/capture/object.rs), so that the verifier drops disabled code.
 */
const volatile struct ops_constants k = {};

/* Bounds that clang knows, and the verifier does not. */
#define MASK(x, bits) asm volatile("%0 &= %1" : "+r"(x) : "i"(bits))

const volatile __u32 never = 0;

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} no_programs SEC(".maps");

/*
 * Keeps a program on the stack of its thread. From 6.13 on, the kernel gives large programs a stack
 * of the CPU (bpf_enable_priv_stack in kernel/bpf/verifier.c) and takes those of uprobes for such
 * that nothing preempts; on a preemptible kernel another thread's run of the same program then
 * overwrites it. Programs with a tail call get none. The verifier drops this one: it costs nothing.
 */
static __always_inline void own_stack(void)
{
	if (never)
		bpf_tail_call(0, &no_programs, 0);
}
#else
/* In the engine's own process (crates/inside): those of the engine whose function was called. */
#define k (*inside_constants)
#define MASK(x, bits) ((x) &= (bits))
#define own_stack() ((void)0)
#endif

#include "send.h"
#include "pmc.h"

/* Graphs entered so far through the functions of this object's engine. */
__u64 graphs_entered;

struct addr_key {
	__u64 addr;
	__u64 tgid;
};

/* Hash of the last description sent for a tensor. */
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

/* Scratch memory of a thread. Not per CPU: another thread can preempt a uprobe program. */
struct scratch {
	struct ev_experts x; /* not last: see experts_rows */
	__u64 row;	     /* bytes from one row of ids to the next */
	struct ev_content content;
	__u32 content_chunk; /* the chunk of the event that it is of, its first token in the batch, its tokens so far */
	__u32 content_first;
	__u32 content_done;
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

static __always_inline bool get(void *dst, __u32 size, __u64 addr)
{
	if (!bpf_probe_read_user(dst, size, (void *)addr))
		return true;
	bump(EV_KINDS + CNT_READ_ERROR);
	return false;
}

/* This object's engine, as a bit. */
#define ENGINE (1u << (k.engine & 31))

/*
 * The calling process, if it is recorded and has this object's engine. Two engines may share a
 * file, and another recorder may record another process of that file: other hits are ignored.
 */
static __always_inline struct proc *recorded(__u32 tgid)
{
	struct proc *p = bpf_map_lookup_elem(&targets, &tgid);

	own_stack();
	return p && (p->engines & ENGINE) ? p : 0;
}

/* Whether a thread_state belongs to a thread of this process and to this object's engine. */
static __always_inline bool ours(struct thread_state *thread_state, __u32 tgid)
{
	return thread_state && thread_state->tgid == tgid && thread_state->engines & ENGINE;
}

/* The calling thread's thread_state. Created if the process is recorded. */
static __always_inline struct thread_state *thread_state_of(__u64 id)
{
	__u32 tid = id, tgid = id >> 32;
	struct thread_state *thread_state = bpf_map_lookup_elem(&thread_states, &tid);
	struct proc *p;

	if (ours(thread_state, tgid))
		return thread_state;
	p = recorded(tgid);
	if (p) {
		struct thread_state fresh = { .tgid = tgid, .engines = p->engines };

		bpf_map_update_elem(&thread_states, &tid, &fresh, BPF_ANY);
		return bpf_map_lookup_elem(&thread_states, &tid);
	}
	return 0;
}

static __always_inline void head(struct ev_hdr *h, __u16 kind, __u64 id)
{
	stamp(h, kind, id);
	h->engine = k.engine;
}

#endif
