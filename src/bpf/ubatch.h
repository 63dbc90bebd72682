/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The tokens of a batch, as chunks: consecutive tokens of one sequence. They are read from llama_batch where a program
 * passes one, and otherwise from llama_ubatch, the part of a batch that is computed as one graph (src/llama-batch.h).
 *
 * Positions of one sequence grow by one within a batch, so not every token is read: a chunk's end is searched for in
 * steps that double and then halve.
 */
#ifndef PROFINFER_UBATCH_H
#define PROFINFER_UBATCH_H

#include "structure.h"

/* Events for one batch: more than a server has slots. The tokens of further chunks are not read. */
#define EVENTS_MAX 8
/* The same of what they contain: 32,000 tokens. */
#define CONTENTS_MAX 32
/* Steps for one event: a chunk takes one, and twice the logarithm of its length at most. */
#define STEPS_MAX 256
/* Chunks up to this length have their outputs counted; of longer ones only those of the ends are read. */
#define COUNTED_MAX 32

/* A sequence has a smaller number, far above LLAMA_MAX_SEQ. */
#define SEQ_MAX 4096

/* llama_batch (llama.h), unchanged since 2023-10 up to logits */
#define BATCH_TOKENS 0
#define BATCH_TOKEN 8
#define BATCH_POS 24
#define BATCH_SEQ_ID 40
#define BATCH_LOGITS 48

/*
 * llama_ubatch (llama-batch.h, 2025-07 to 2026-10). Fields were added between embd and pos, so the offsets from pos on
 * are those here plus a multiple of 8, which the first ubatch of an engine shows.
 */
#define UBATCH_EQUAL 0
#define UBATCH_TOKENS 4
#define UBATCH_SEQ_TOKENS 8
#define UBATCH_SEQS 12
#define UBATCH_UNIQUE 16
#define UBATCH_TOKEN 24
#define UBATCH_POS 40
#define UBATCH_N_SEQ_ID 48
#define UBATCH_SEQ_ID 56
#define UBATCH_SEQ_UNIQUE 64
#define UBATCH_SEQ_INDEX 72
#define UBATCH_OUTPUT 80
#define UBATCH_SHIFTS 4

/* Where the fields of llama_ubatch are moved to, in words, plus 1; 0: not known yet. */
__u32 ubatch_shift;

/* How the end of a chunk is searched for. */
enum search {
	TRY_ALL, /* most often all the rest belongs to it */
	GROW,
	SHRINK,
};

/* A batch that a thread passes, and the chunk that is being searched. */
struct chunk_search {
	__u64 token; /* addresses of the batch's arrays; 0: there is none. None of tokens: embeddings */
	__u64 pos;
	__u64 seq_id;
	__u64 output;
	__u32 tokens;
	__u32 first; /* token of the chunk; 0 tokens: it is still to be read */
	__u32 step;
	__u32 how;
	struct chunk chunk;
	struct ev_ubatch e;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512);
	__type(key, __u32);
	__type(value, struct chunk_search);
} searches SEC(".maps");

/* Never written: the initial value of a new `searches` entry, too large for a stack. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct chunk_search);
} no_search SEC(".maps");

/* Begins to search the batch that a thread passes. */
static __always_inline struct chunk_search *begin_search(__u64 id)
{
	struct chunk_search *c;
	__u32 tid = id, first = 0;

	c = bpf_map_lookup_elem(&no_search, &first);
	if (!c || bpf_map_update_elem(&searches, &tid, c, BPF_ANY))
		return 0;
	c = bpf_map_lookup_elem(&searches, &tid);
	if (c)
		head(&c->e.h, EV_UBATCH, id);
	return c;
}

/* What a step has led to. */
enum step_result {
	STEP_ON,
	STEP_SEND, /* the event is full, or complete */
	STEP_STOP, /* the batch cannot be read further */
};

static __always_inline bool peek(void *dst, __u32 size, __u64 addr)
{
	return !bpf_probe_read_user(dst, size, (void *)addr);
}

/* Sequence and position of a token. */
static __always_inline bool token_at(const struct chunk_search *c, __u32 i, struct chunk *at)
{
	__u64 ids = 0;

	at->seq = 0;
	at->pos = -1;
	if (c->seq_id && (!peek(&ids, 8, c->seq_id + 8ULL * i) || !peek(&at->seq, 4, ids)))
		return false;
	return !c->pos || peek(&at->pos, 4, c->pos + 4ULL * i);
}

/* Whether the chunk has a token at this distance from its first. Embeddings need not have positions of their own. */
static __always_inline bool has_token(const struct chunk_search *c, __u32 offset)
{
	struct chunk at = {};

	if (!token_at(c, c->first + offset, &at) || at.seq != c->chunk.seq)
		return false;
	return !c->token || !c->pos || at.pos == c->chunk.pos + (__s32)offset;
}

/* Tokens of the chunk whose logits or embeddings are wanted: of a longer one only the ends are read. */
static __always_inline __u32 chunk_outputs(const struct chunk_search *c)
{
	__u64 flags = 0, at = c->output + c->first;
	__u32 n = c->chunk.tokens;
	__u8 first = 0, last = 0;

	if (!c->output)
		return 0;
	if (n <= COUNTED_MAX) {
		for (__u32 i = 0; i < COUNTED_MAX; i++) {
			first = 0;
			if (i < n)
				peek(&first, 1, at + i);
			flags += !!first;
		}
		return flags;
	}
	peek(&first, 1, at);
	peek(&last, 1, at + n - 1);
	return first && last ? n : first || last;
}

#define ROTATE(x, by) ((x) << (by) | (x) >> (64 - (by)))
#define SIP_ROUND()                                                                                                    \
	do {                                                                                                           \
		a += b, b = ROTATE(b, 13) ^ a, a = ROTATE(a, 32);                                                      \
		c += d, d = ROTATE(d, 16) ^ c;                                                                         \
		a += d, d = ROTATE(d, 21) ^ a;                                                                         \
		c += b, b = ROTATE(b, 17) ^ c, c = ROTATE(c, 32);                                                      \
	} while (0)

/*
 * SipHash-1-3 of a token and its position (Aumasson and Bernstein, 2012, without the word of the length). The key is in no
 * recording: who has one can compare tokens, and cannot tell them.
 */
static __always_inline __u64 token_hash(__u32 pos, __u32 id)
{
	__u64 a = k.content_key[0] ^ 0x736f6d6570736575ULL, b = k.content_key[1] ^ 0x646f72616e646f6dULL;
	__u64 c = k.content_key[0] ^ 0x6c7967656e657261ULL, d = k.content_key[1] ^ 0x7465646279746573ULL;
	__u64 word = (__u64)pos << 32 | id;

	d ^= word;
	SIP_ROUND();
	a ^= word;
	c ^= 0xff;
	SIP_ROUND();
	SIP_ROUND();
	SIP_ROUND();
	return a ^ b ^ c ^ d;
}

/* Sum of the hashes of at most a block of tokens; 0: they cannot be read. Global, as chunk_step. */
__noinline __u64 block_hash(__u64 at, __u32 pos, __u32 n)
{
	__u32 id[CONTENT_BLOCK];
	__u64 sum = 0;

	if (n == CONTENT_BLOCK && !peek(id, sizeof(id), at))
		return 0;
	for (__u32 i = 0; i < CONTENT_BLOCK && i < n; i++) {
		if (n != CONTENT_BLOCK && !peek(&id[i], 4, at + 4ULL * i))
			return 0;
		sum += token_hash(pos + i, id[i]);
	}
	return sum;
}

/*
 * Reads what the next part of the event's chunks contains into the scratch; 0: there is none. Single tokens are in their
 * chunks. Global, as chunk_step.
 */
__noinline int content_next(__u32 tid)
{
	struct chunk_search *c = bpf_map_lookup_elem(&searches, &tid);
	struct scratch *s = bpf_map_lookup_elem(&scratches, &tid);
	struct chunk chunk = {};
	__u32 slot, part;

	if (!c || !s)
		return 0;
	for (int i = 0; i < CHUNKS; i++) {
		slot = s->content_chunk;
		if (slot >= CHUNKS || slot >= c->e.n)
			return 0;
		/* clang knows this bound, the verifier does not. */
		MASK(slot, CHUNKS - 1);
		chunk = c->e.chunk[slot];
		if (chunk.tokens > 1 && chunk.pos >= 0 && s->content_done < chunk.tokens)
			break;
		s->content_chunk = slot + 1;
		s->content_first += chunk.tokens;
		s->content_done = 0;
		chunk.tokens = 0;
	}
	s->content.seq = chunk.seq;
	s->content.pos = chunk.pos + s->content_done;
	s->content.tokens = 0;
	s->content.n = 0;
	for (__u32 i = 0; i < CONTENT_BLOCKS && s->content_done < chunk.tokens; i++) {
		__u32 pos = chunk.pos + s->content_done, left = chunk.tokens - s->content_done;

		part = CONTENT_BLOCK - pos % CONTENT_BLOCK;
		part = part < left ? part : left;
		s->content.hash[i] = block_hash(c->token + 4ULL * (s->content_first + s->content_done), pos, part);
		s->content.tokens += part;
		s->content.n = i + 1;
		s->content_done += part;
	}
	return s->content.n;
}

/* Sends what the chunks of an event contain; `first`: the batch's token with which they begin. */
static __always_inline void send_content(void *ctx, const struct chunk_search *c, __u32 first)
{
	struct scratch *s;

	/* One token each: the chunks have it. */
	if (!c->token || c->e.n == c->tokens)
		return;
	s = scratch_of(c->e.h.tid);
	if (!s)
		return;
	s->content.h = c->e.h;
	s->content.h.kind = EV_CONTENT;
	s->content_chunk = s->content_done = 0;
	s->content_first = first;
	for (int i = 0; i < CONTENTS_MAX && content_next(c->e.h.tid); i++)
		send(ctx, &s->content.h, sizeof(s->content));
}

/* The chunk is complete. */
static __always_inline int chunk_ends(struct chunk_search *c)
{
	__u32 slot = c->e.n, id = 0;

	if (slot >= CHUNKS)
		return STEP_STOP;
	c->chunk.outputs = chunk_outputs(c);
	c->chunk.hash = 0;
	if (c->token && c->chunk.tokens == 1 && c->chunk.pos >= 0 && peek(&id, 4, c->token + 4ULL * c->first))
		c->chunk.hash = token_hash(c->chunk.pos, id);
	c->e.chunk[slot] = c->chunk;
	c->e.n = slot + 1;
	c->first += c->chunk.tokens;
	c->chunk.tokens = 0;
	return c->first >= c->tokens || c->e.n == CHUNKS ? STEP_SEND : STEP_ON;
}

/* A global function: the verifier checks it once, not once per step. */
__noinline int chunk_step(__u32 tid)
{
	struct chunk_search *c = bpf_map_lookup_elem(&searches, &tid);
	__u32 left;

	if (!c || c->first >= c->tokens)
		return STEP_STOP;
	left = c->tokens - c->first;
	if (!c->chunk.tokens) {
		if (!token_at(c, c->first, &c->chunk))
			return STEP_STOP;
		c->chunk.tokens = 1;
		c->step = left - 1;
		c->how = TRY_ALL;
	} else if (has_token(c, c->chunk.tokens - 1 + c->step)) {
		c->chunk.tokens += c->step;
		c->step = c->how == GROW ? c->step * 2 : c->step / 2;
	} else if (c->how == TRY_ALL) {
		c->how = GROW;
		c->step = 1;
	} else {
		c->how = SHRINK;
		c->step /= 2;
	}
	if (c->chunk.tokens + c->step > left) {
		c->how = SHRINK;
		c->step = left - c->chunk.tokens;
	}
	return c->step ? STEP_ON : chunk_ends(c);
}

/* The steps for one event. Global, as chunk_step. */
__noinline int chunk_steps(__u32 tid)
{
	int got = STEP_ON;

	for (int i = 0; i < STEPS_MAX && got == STEP_ON; i++)
		got = chunk_step(tid);
	return got;
}

/* Sends the chunks of the batch that a thread passes. */
static __always_inline void send_chunks(void *ctx, struct chunk_search *c)
{
	__u32 tid = c->e.h.tid;

	c->e.tokens = c->tokens;
	for (int event = 0; event < EVENTS_MAX; event++) {
		__u32 first = c->first;
		int got;

		if (event) {
			send(ctx, &c->e.h, sizeof(c->e));
			c->e.tokens = 0;
			c->e.n = 0;
		}
		got = chunk_steps(tid);
		send_content(ctx, c, first);
		if (got != STEP_SEND || c->first >= c->tokens)
			break;
	}
	c->e.unread = c->tokens - c->first;
	/* Without flags, the last token's logits are wanted. */
	if (!c->output && !c->e.unread && c->e.n && c->e.n <= CHUNKS)
		c->e.chunk[c->e.n - 1].outputs = 1;
	send(ctx, &c->e.h, sizeof(c->e));
}

/* A llama_batch that is passed to llama_decode or llama_encode. */
static __always_inline void batch_chunks(void *ctx, __u64 id, __u64 at)
{
	struct chunk_search *c;
	__s32 n = 0;

	if (!k.batches || !recorded(id >> 32))
		return;
	c = begin_search(id);
	if (!c || !peek(&n, 4, at + BATCH_TOKENS) || n <= 0 || !peek(&c->token, 8, at + BATCH_TOKEN) ||
	    !peek(&c->pos, 8, at + BATCH_POS) || !peek(&c->seq_id, 8, at + BATCH_SEQ_ID) ||
	    !peek(&c->output, 8, at + BATCH_LOGITS))
		return;
	c->e.what = CHUNKS_OF_BATCH;
	c->tokens = n;
	send_chunks(ctx, c);
}

/* Whether the fields of this llama_ubatch are this many words further on: its sequences agree. Global, as chunk_step. */
__noinline int ubatch_fits(__u64 at, __u32 words)
{
	__u64 n_seq_id = 0, seq_id = 0, unique = 0, index = 0, pos = 0;
	__u32 equal = 0, tokens = 0, each = 0, sets = 0, seqs = 0, many = 0;
	__s32 seq = -1, place = -1, same = -1;

	if (!peek(&equal, 4, at + UBATCH_EQUAL) || !peek(&tokens, 4, at + UBATCH_TOKENS) ||
	    !peek(&each, 4, at + UBATCH_SEQ_TOKENS) || !peek(&sets, 4, at + UBATCH_SEQS) ||
	    !peek(&seqs, 4, at + UBATCH_UNIQUE))
		return false;
	if (equal > 1 || !tokens || each * sets != tokens || !seqs)
		return false;
	at += 8ULL * words;
	if (!peek(&pos, 8, at + UBATCH_POS) || !peek(&n_seq_id, 8, at + UBATCH_N_SEQ_ID) ||
	    !peek(&seq_id, 8, at + UBATCH_SEQ_ID) || !peek(&unique, 8, at + UBATCH_SEQ_UNIQUE) ||
	    !peek(&index, 8, at + UBATCH_SEQ_INDEX))
		return false;
	if (!peek(&many, 4, n_seq_id) || !many || many > SEQ_MAX || !peek(&seq_id, 8, seq_id) ||
	    !peek(&seq, 4, seq_id) || seq < 0 || seq >= SEQ_MAX)
		return false;
	if (!peek(&place, 4, index + 4ULL * seq) || place < 0 || place >= (__s32)seqs)
		return false;
	return peek(&same, 4, unique + 4ULL * place) && same == seq;
}

/* llama_context::process_ubatch(ubatch, ...), llm_graph_result::set_inputs(ubatch) */
SEC("uprobe")
int ubatch_enter(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), at = PT_REGS_PARM2(ctx), moved;
	struct chunk_search *c;
	__u32 words;

	if (k.batches || !recorded(id >> 32))
		return 0;
	c = begin_search(id);
	if (!c)
		return 0;
	peek(&c->tokens, 4, at + UBATCH_TOKENS);
	for (words = 0; words < UBATCH_SHIFTS && !ubatch_shift; words++)
		if (ubatch_fits(at, words))
			ubatch_shift = words + 1;
	if (!ubatch_shift) {
		c->e.tokens = c->e.unread = c->tokens;
		c->e.what = CHUNKS_ODD;
		send(ctx, &c->e.h, sizeof(c->e));
		return 0;
	}
	moved = at + 8ULL * (ubatch_shift - 1);
	peek(&c->token, 8, at + UBATCH_TOKEN);
	peek(&c->pos, 8, moved + UBATCH_POS);
	peek(&c->seq_id, 8, moved + UBATCH_SEQ_ID);
	peek(&c->output, 8, moved + UBATCH_OUTPUT);
	send_chunks(ctx, c);
	return 0;
}

#endif
