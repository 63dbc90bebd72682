/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Whether a process computes a prompt or decodes, as the engine decides it when it chooses how many threads compute: by
 * the tokens of the graph, which are the second dimension of its first node. A change wakes the recorder at the next
 * graph on the CPU, which says how many threads compute.
 */
#ifndef PROFINFER_PHASE_H
#define PROFINFER_PHASE_H

/* struct proc's phase */
#define PHASE_DECODE 1
#define PHASE_PROMPT 2
#define PHASE_SCHED 4 /* the scheduler tells it: a graph on the CPU may be a part of the whole */
#define PHASE_NEWS 8  /* the recorder was not woken yet */

static __always_inline void phase_is(struct proc *p, __u32 width, bool sched)
{
	__u32 now = width > 1 ? PHASE_PROMPT : PHASE_DECODE;

	if (!k.phases || !width || (!sched && p->phase & PHASE_SCHED))
		return;
	if ((p->phase & (PHASE_DECODE | PHASE_PROMPT)) != now)
		p->phase = now | PHASE_NEWS | (sched ? PHASE_SCHED : 0);
}

/* Whether this graph is the first one of a phase. */
static __always_inline bool phase_begins(struct proc *p)
{
	if (!k.phases || !(p->phase & PHASE_NEWS))
		return false;
	p->phase &= ~PHASE_NEWS;
	return true;
}

#endif
