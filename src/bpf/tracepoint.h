/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#ifndef PROFINFER_TRACEPOINT_H
#define PROFINFER_TRACEPOINT_H

/*
 * What every program on a tracepoint returns. With 0, the kernel keeps the event from everybody
 * else's perf events on that tracepoint (trace_call_bpf(), kernel/trace/bpf_trace.c).
 */
#define PASS 1

#endif
