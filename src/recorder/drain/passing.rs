//! Calls and graphs: their entries and returns, and what is written of them.

use std::io::Write;
use std::ops::Range;

use super::{CPU_GRAPH, Drain};
use crate::capture::event;
use crate::capture::skel::types::ev_kind;
use crate::capture::structure::Reading;
use crate::recorder::calls::{CallKind, Entered, OpenCall};
use crate::recorder::device::FinishedCall;
use crate::recorder::graphs::GraphStart;
use crate::recorder::qos::ReturnedCall;
use pfi::WriteError;
use pfi::record::{Device, Entry, Graph, Split, Token};
use requests::Call;

impl<W: Write> Drain<W> {
    pub(super) fn enter(&mut self, kind: CallKind, e: &event::Call) -> Result<(), WriteError> {
        self.meet(&e.h);
        let h = &e.h;
        let mut call = OpenCall::new(kind, 0, h.tgid, h.tid, h.ts, e.a, e.b, e.n, e.width);
        let outer = match kind {
            CallKind::Token => None,
            CallKind::Sched => Some(CallKind::Token),
            CallKind::Split => Some(CallKind::Sched),
        };
        let width = call.width;
        if let Some(parent) = outer.and_then(|o| self.calls.current(o, h.tid)) {
            call.parent = Some(parent.seq);
            // The scheduler's first graph shows how wide the call's ubatches are.
            if kind == CallKind::Sched && parent.width == 0 {
                parent.width = width;
            }
        }
        call.token = match kind {
            CallKind::Token => None,
            _ => self.calls.current(CallKind::Token, h.tid).map(|c| c.seq),
        };
        if kind == CallKind::Token {
            call.detail = e.b as u32;
            let memory = e.guid.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            self.sequences.learn(h.tgid, memory, e.a);
            // An entry's second word is its entry point, not a cgraph.
            call.cgraph = 0;
        }
        if kind == CallKind::Split {
            self.split_enter(e, &mut call)?;
        }
        call.seq = self.seq[kind as usize];
        match self.calls.enter(call) {
            Entered::Opened => drop(self.next(kind as usize)),
            Entered::Replaced(old) => {
                self.next(kind as usize);
                self.finish(&FinishedCall { call: old, end: h.ts, device: Device::Idle, cut: true })?;
            }
            Entered::Nested => return Ok(()),
            Entered::Full => {
                self.unplaced[h.kind as usize] += 1;
                return Ok(());
            }
        }
        if kind == CallKind::Token {
            let overs = self.waiting.next(h.tgid, call.object, h.ts);
            self.finish_all(&overs)?;
        }
        let Some(shown) = self.shown(h.engine) else { return Ok(()) };
        match kind {
            CallKind::Token => shown.tokens += 1,
            CallKind::Sched => {
                shown.scheds += 1;
                shown.scheduler = Some((h.tgid, e.a));
            }
            CallKind::Split => shown.splits += 1,
        }
        Ok(())
    }

    pub(super) fn exit(&mut self, kind: CallKind, e: &event::Call) -> Result<(), WriteError> {
        self.last_ts = e.h.ts;
        let Some(call) = self.calls.exit(kind, e.h.tid) else { return Ok(()) };
        if kind == CallKind::Split {
            self.split_exit(e, &call)?;
        }
        let mut probed = false;
        if let Some(shown) = self.shown(e.h.engine) {
            shown.returns[kind as usize] += 1;
            probed = shown.waits_on;
        }
        match self.waiting.returns(call, e.h.ts, probed) {
            Some(over) => self.finish(&over),
            None => Ok(()),
        }
    }

    pub(super) fn finish(&mut self, over: &FinishedCall) -> Result<(), WriteError> {
        let &FinishedCall { call: c, end, device, cut } = over;
        let (t, dur) = (c.start as i64, end.saturating_sub(c.start));
        match c.kind {
            CallKind::Token => {
                self.totals.calls += 1;
                let width = c.width.max(c.n.max(0) as u32);
                let decode = c.single == Some(true) || width <= 1;
                // One of each sequence.
                let tokens = if decode { width.max(1) } else { 0 };
                self.totals.decoded += u64::from(tokens);
                // An encoder's calls are no request's.
                if !cut && c.detail <= 1 {
                    let seen = device != Device::Unseen;
                    let end = if seen { end as i64 } else { t };
                    let (id, pid, context) = (c.seq, c.tgid, c.object);
                    let call = Call { id, pid, context, width, start: t, end, seen, encodes: false };
                    self.batch_done(&call);
                }
                if !cut && device == Device::Unseen {
                    self.process_tree.unseen(c.tgid, end);
                } else if !cut {
                    self.process_tree.call(c.tgid, end, dur, tokens);
                    self.call_done(ReturnedCall { t: end, dur, decode, ..ReturnedCall::default() });
                }
                let entry = match c.detail {
                    0 => Entry::Process,
                    1 => Entry::Decode,
                    _ => Entry::Encode,
                };
                let n_tokens = u32::try_from(c.n).ok().filter(|&n| n > 0);
                let (seq, pid, tid) = (c.seq, c.tgid, c.tid);
                self.enc.token(&Token { seq, pid, tid, entry, n_tokens, t, dur, cut, device })
            }
            CallKind::Sched => self.enc.graph(&Graph {
                seq: c.seq,
                token: c.parent,
                pid: c.tgid,
                tid: c.tid,
                cgraph: c.cgraph,
                n_nodes: c.n.max(0) as u32,
                ubatch: c.width,
                t,
                dur,
                cut,
                device,
            }),
            CallKind::Split => self.write_split(Split {
                seq: c.seq,
                graph: c.parent,
                backend: c.detail,
                pid: c.tgid,
                tid: c.tid,
                n_nodes: c.n.max(0) as u32,
                t,
                dur,
                cut,
                device,
                plan: c.plan,
            }),
        }
    }

    /// Keeps a call for the session, with the event counts up to its end.
    pub(super) fn call_done(&mut self, done: ReturnedCall) {
        const CALLS: Range<usize> = ev_kind::EV_TOKEN_ENTER.0 as usize..ev_kind::EV_OP.0 as usize;
        let received = |kind: ev_kind| self.received[kind.0 as usize];
        let (ops, offcpu) = (received(ev_kind::EV_OP), received(ev_kind::EV_OFFCPU));
        // A wait, and a call for a batch, have an event for their return only.
        let waits = 2 * received(ev_kind::EV_WAIT);
        let device = received(ev_kind::EV_NODE) + 2 * received(ev_kind::EV_BATCH);
        let calls = self.received[CALLS].iter().sum::<u64>() + waits + device;
        if self.done.is_full() {
            self.done.pop_front();
        }
        let _ = self.done.push_back(ReturnedCall { ops, calls, offcpu, ..done });
    }

    pub(super) fn graph_enter(&mut self, e: &event::Call) -> Result<(), WriteError> {
        self.meet(&e.h);
        if let Some(stale) = self.graphs.by_caller(e.h.tid) {
            self.end_graph(stale, (e.h.ts, 0, true))?;
        }
        let seq = self.next(CPU_GRAPH);
        let h = &e.h;
        let whole = self.calls.current(CallKind::Sched, h.tid).map(|c| (c.seq, c.width));
        let graph = whole.map(|(seq, _)| seq);
        if let Some(computing) = &mut self.computing {
            // A graph on the CPU may be a part of the scheduler's, whose first node is that of the tokens.
            let width = whole.map(|(_, width)| width).filter(|&width| width > 0).unwrap_or(e.width);
            computing.begin((h.tgid, h.tid), h.ts, width, e.threads);
        }
        let split = self.calls.current(CallKind::Split, h.tid).map(|c| {
            // Its ops are seen as they run.
            c.plan = None;
            c.seq
        });
        let placed = self.graphs.begin(GraphStart {
            seq,
            engine: h.engine,
            tgid: h.tgid,
            tid: h.tid,
            cgraph: e.a,
            n_nodes: e.n.max(0) as u32,
            threads: e.threads,
            width: e.width,
            start: h.ts,
            graph,
            split,
        });
        if !placed {
            self.unplaced[h.kind as usize] += 1;
        }
        Ok(())
    }

    pub(super) fn graph_exit(&mut self, e: &event::Call) -> Result<(), WriteError> {
        self.last_ts = e.h.ts;
        if let Some(computing) = &mut self.computing {
            computing.end(e.h.tgid, e.h.tid);
        }
        let Some(i) = self.graphs.by_caller(e.h.tid) else { return Ok(()) };
        self.graphs.took_part(i, e.threads);
        if let Some(shown) = self.shown(e.h.engine) {
            shown.returns[CPU_GRAPH] += 1;
        }
        self.end_graph(i, (e.h.ts, e.a, false))
    }

    pub(super) fn end_graph(&mut self, i: usize, end: (u64, u64, bool)) -> Result<(), WriteError> {
        let engine = self.graphs.engine_of(i) as usize;
        let nops = self.nops.get(engine).copied().unwrap_or(false);
        let ops = self.readings.get(engine).map(Reading::idle_ops).unwrap_or_default();
        let (last, last_end, cut) = end;
        let end = (last, last_end, cut || self.is_reconfiguring(self.graphs.start_of(i), last));
        let (s, seen) = self.graphs.finish(i, end, &mut self.tensors, (ops, nops), &mut self.enc)?;
        self.experts.write(s.seq, &mut self.tensors, &mut self.enc)?;
        let level = self.level_before(s.start);
        if let Some(shown) = self.shown(s.engine) {
            shown.note(&s, &seen, level);
        }
        Ok(())
    }
}
