/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The kernel's helpers, for the same programs in a process of their own target: what src/bpf includes under this name
 * when it is compiled for the library.
 */
#ifndef PROFINFER_SHIM_HELPERS_H
#define PROFINFER_SHIM_HELPERS_H

#define SEC(name)
#undef __always_inline
#define __noinline __attribute__((noinline))
#define __always_inline inline __attribute__((always_inline))

/* A map is a variable whose members only have types; `slots` is its memory. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value)                                                                                            \
	typeof(value) *name;                                                                                           \
	void *name##_slots

#define MAP_ENTRIES(m) (sizeof(*(m)->max_entries) / sizeof(int))
#define MAP_KIND(m) (sizeof(*(m)->type) / sizeof(int))
#define MAP_SHAPE(m) (m)->value_slots, MAP_KIND(m), MAP_ENTRIES(m), sizeof(*(m)->key), sizeof(*(m)->value)

void *inside_lookup(void *slots, __u32 kind, __u32 entries, __u32 key_size, __u32 value_size, const void *key);
long inside_update(void *slots, __u32 kind, __u32 entries, __u32 key_size, __u32 value_size, const void *key,
		   const void *value, __u64 flags);
long inside_delete(void *slots, __u32 kind, __u32 entries, __u32 key_size, __u32 value_size, const void *key);
long inside_send(const void *event, __u64 size);
bool inside_read(void *to, __u32 size, __u64 from);
__u64 inside_now(void);
__u64 inside_id(void);
__u32 inside_cpu(void);
void *memcpy(void *to, const void *from, unsigned long n);

#define bpf_map_lookup_elem(m, k) ((typeof((m)->value))inside_lookup(MAP_SHAPE(m), k))
#define bpf_map_update_elem(m, k, v, flags) inside_update(MAP_SHAPE(m), k, v, flags)
#define bpf_map_delete_elem(m, k) inside_delete(MAP_SHAPE(m), k)
#define bpf_probe_read_user(to, size, from) (inside_read(to, size, (__u64)(from)) ? 0 : -14)
#define bpf_probe_read_kernel(to, size, from) (memcpy(to, from, size), 0)
#define bpf_ktime_get_ns() inside_now()
#define bpf_get_current_pid_tgid() inside_id()
#define bpf_get_smp_processor_id() inside_cpu()
#define bpf_ringbuf_query(m, flags) 0
#define bpf_ringbuf_output(m, event, size, flags) ((void)(flags), inside_send(event, size))
#define bpf_perf_event_output(ctx, m, flags, event, size) inside_send(event, size)
#define bpf_perf_event_read_value(m, flags, value, size) (-1)

#endif
