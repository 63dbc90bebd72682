/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Timestamps of a Vulkan device that the engine itself takes (ggml-vulkan with GGML_VK_PERF_LOGGER):
 * read when vkGetQueryPoolResults returns. And the length of a tick, read when a function returns that
 * tells a device's properties. The signatures are those of vulkan_core.h:
 *   vkGetQueryPoolResults(device, pool, first, count, size, data, stride, flags)
 *   vkGetPhysicalDeviceProperties(device, properties), and ...2, whose properties follow two words
 */
#ifndef PROFINFER_TICKS_H
#define PROFINFER_TICKS_H

#include "base.h"

/* Of VkPhysicalDeviceProperties: limits.timestampPeriod, a float. Of ...2: properties. */
#define PERIOD_OFF 720
#define PROPERTIES2_OFF 16
/* VK_QUERY_RESULT_64_BIT; the others that say what is in the data: _WITH_AVAILABILITY_BIT, _PARTIAL_BIT */
#define RESULT_64 1
#define RESULT_KINDS (1 | 4 | 8)

/* Events of one fetch, at most. */
#define TICKS_EVENTS 100

/* A thread's call in progress. */
struct ticks_call {
	__u64 device;
	__u64 data; /* address; of properties, of the period */
	__u32 count;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct ticks_call);
} ticks_calls SEC(".maps");

SEC("uprobe")
int ticks_fetch(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), stride = 0;
	struct ticks_call c = {};
	__u32 tid = id, flags = 0;

	if (!recorded(id >> 32))
		return 0;
	c.device = PT_REGS_PARM1(ctx);
	c.count = PT_REGS_PARM4(ctx);
	c.data = PT_REGS_PARM6(ctx);
#if defined(__TARGET_ARCH_x86)
	/* Above the return address: the probe is where the stack pointer has not moved. */
	get(&stride, 8, PT_REGS_SP(ctx) + 8);
	get(&flags, 4, PT_REGS_SP(ctx) + 16);
#else
	stride = PT_REGS_PARM7(ctx);
	flags = PT_REGS_PARM8(ctx);
#endif
	if (stride == 8 && (flags & RESULT_KINDS) == RESULT_64)
		bpf_map_update_elem(&ticks_calls, &tid, &c, BPF_ANY);
	return 0;
}

SEC("uretprobe")
int ticks_fetched(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), at;
	struct ev_ticks e = {};
	struct ticks_call *c;
	__u32 tid = id, left;

	if (!recorded(id >> 32))
		return 0;
	c = bpf_map_lookup_elem(&ticks_calls, &tid);
	if (!c)
		return 0;
	/* Not if it failed, or not all were available. */
	if ((int)PT_REGS_RC(ctx) == 0) {
		head(&e.h, EV_TICKS, id);
		e.device = c->device;
		e.total = left = c->count;
		at = c->data;
		for (int i = 0; i < TICKS_EVENTS; i++) {
			e.n = left < TICKS_CHUNK ? left : TICKS_CHUNK;
			if (!e.n || !get(e.tick, sizeof(e.tick[0]) * TICKS_CHUNK, at))
				break;
			send(ctx, &e.h, sizeof(e));
			e.first += e.n;
			at += sizeof(e.tick);
			left -= e.n;
		}
	}
	bpf_map_delete_elem(&ticks_calls, &tid);
	return 0;
}

static __always_inline int properties(struct pt_regs *ctx, __u64 off)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct ticks_call c = {};
	__u32 tid = id;

	if (!recorded(id >> 32))
		return 0;
	c.data = PT_REGS_PARM2(ctx) + off;
	bpf_map_update_elem(&ticks_calls, &tid, &c, BPF_ANY);
	return 0;
}

SEC("uprobe")
int period_ask(struct pt_regs *ctx)
{
	return properties(ctx, PERIOD_OFF);
}

SEC("uprobe")
int period_ask2(struct pt_regs *ctx)
{
	return properties(ctx, PROPERTIES2_OFF + PERIOD_OFF);
}

SEC("uretprobe")
int period_told(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct ev_ticks e = {};
	struct ticks_call *c;
	__u32 tid = id;

	if (!recorded(id >> 32))
		return 0;
	c = bpf_map_lookup_elem(&ticks_calls, &tid);
	if (!c)
		return 0;
	head(&e.h, EV_TICKS, id);
	if (get(&e.period, 4, c->data))
		send(ctx, &e.h, sizeof(e));
	bpf_map_delete_elem(&ticks_calls, &tid);
	return 0;
}

#endif
