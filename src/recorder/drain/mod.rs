//! From events to trace: pairs entries with returns, assigns op hits to graphs, counts events. Allocates only when
//! created (tests/plain/drain_alloc.rs checks this) and for new processes.

mod batches;
mod offloaded;
mod passing;
mod shown;

use std::collections::VecDeque;
use std::io::Write;

pub use self::shown::Shown;
use crate::capture::event::{self, Event, KINDS};
use crate::capture::sched;
use crate::capture::skel::types::ev_kind;
use crate::capture::structure::{self, Reading, TensorTable};
use crate::recorder::batches::OpenBatches;
use crate::recorder::calls::{self, CallKind, OpenCalls};
use crate::recorder::computing::ComputingWatch;
use crate::recorder::device::{FinishedCall, HeldCalls};
use crate::recorder::device_kernels::Kernels;
use crate::recorder::enqueue::EnqueueHits;
use crate::recorder::experts::HeldExperts;
use crate::recorder::graphs::{self, OpenGraphs};
use crate::recorder::offload::SplitPlans;
use crate::recorder::phases::OpenPhases;
use crate::recorder::process_tree::ProcessTree;
use crate::recorder::qos::ReturnedCall;
use crate::recorder::samplers::Samplers;
use crate::recorder::sequences::Sequences;
use crate::recorder::tasks::ServerTasks;
use crate::recorder::thread_hits::ThreadHit;
use engine::backends::CPU_GUID;
use ggml::backend_guid;
use pfi::record::{Detail, Device};
use pfi::{Encoder, WriteError};

/// Totals for the status line and the limits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    pub events: u64,
    /// Calls of the token entry points that have returned.
    pub calls: u64,
    /// Of those, the ones that were not prefill.
    pub decoded: u64,
    /// Malformed events.
    pub malformed: u64,
    pub forked: u64,
    pub exited: u64,
}

/// The state machine that turns events into a trace.
pub struct Drain<W: Write> {
    pub enc: Encoder<W>,
    pub totals: Totals,
    pub received: [u64; KINDS],
    /// Received calls and graphs that found no room: too many were in progress.
    unplaced: [u64; KINDS],
    pub shown: Vec<Shown>,
    readings: Vec<Reading>,
    /// Per engine: views and reshapes are dispatched like ops.
    nops: Vec<bool>,
    /// Processes that have ended, for the session.
    pub gone: VecDeque<u32>,
    /// Children of recorded processes, for the session; threads too, where the kernel does not distinguish them.
    pub born: VecDeque<(u32, u32)>,
    /// Processes whose first event has arrived, for the session: (pid, engine).
    pub met: VecDeque<(u32, u16)>,
    /// The run that each process belongs to, and its speed.
    pub process_tree: ProcessTree,
    /// Calls that have returned, for the session.
    pub done: heapless::Deque<ReturnedCall, 64>,
    /// Latest times during which probes were added or removed, and the level before: what ran then was only partly seen.
    /// An end of u64::MAX is open.
    reconfiguring: heapless::Deque<(u64, u64, Detail), 4>,
    /// What the processes compute, if the session asks for it.
    pub computing: Option<ComputingWatch>,
    calls: OpenCalls,
    /// Calls that have returned and wait for a device.
    pub waiting: HeldCalls,
    graphs: OpenGraphs,
    split_plans: SplitPlans,
    enqueued: EnqueueHits,
    batches: OpenBatches,
    pub kernels: Kernels,
    pub(in crate::recorder) tensors: TensorTable,
    pub experts: HeldExperts,
    phases: OpenPhases,
    pub samplers: Samplers,
    pub sequences: Sequences,
    server_tasks: ServerTasks,
    seq: [u64; 4],
    last_ts: u64,
    /// Later events are not recorded.
    until: u64,
    error: Option<WriteError>,
}

const CPU_GRAPH: usize = 3;

// What the BPF programs take for the CPU's backend is what the names say.
const _: () = assert!(matches!(CPU_GUID, backend_guid::CPU_START));

impl<W: Write> Drain<W> {
    pub fn new(enc: Encoder<W>) -> Self {
        Drain {
            enc,
            totals: Totals::default(),
            received: [0; KINDS],
            unplaced: [0; KINDS],
            shown: Vec::new(),
            readings: Vec::new(),
            nops: Vec::new(),
            gone: VecDeque::new(),
            born: VecDeque::new(),
            met: VecDeque::new(),
            process_tree: ProcessTree::default(),
            done: heapless::Deque::new(),
            reconfiguring: heapless::Deque::new(),
            computing: None,
            calls: OpenCalls::default(),
            waiting: HeldCalls::default(),
            graphs: OpenGraphs::default(),
            split_plans: SplitPlans::default(),
            enqueued: EnqueueHits::default(),
            batches: OpenBatches::default(),
            kernels: Kernels::default(),
            tensors: TensorTable::default(),
            experts: HeldExperts::default(),
            phases: OpenPhases::default(),
            samplers: Samplers::default(),
            sequences: Sequences::default(),
            server_tasks: ServerTasks::default(),
            seq: [0; 4],
            last_ts: 0,
            until: u64::MAX,
            error: None,
        }
    }

    /// Longest open call: when it began, and the width of its ubatch, 0 = not known (yet).
    pub fn call(&self) -> Option<(u64, u32)> {
        self.calls.longest().map(|c| (c.start, c.width))
    }

    /// Adds an engine; events carry its number.
    pub fn add_engine(&mut self, reading: Reading) {
        self.readings.push(reading);
        self.shown.push(Shown::default());
        self.nops.push(false);
    }

    /// Removes the engine that was added last: it could not be probed.
    pub fn drop_engine(&mut self) {
        self.readings.pop();
        self.shown.pop();
        self.nops.pop();
    }

    /// From now on ops arrive with the counts of `n` counters.
    pub fn count(&mut self, n: u32) {
        self.graphs.count(n);
    }

    /// Probes are added or removed from now on; `from` is the level until then.
    pub fn begin_change(&mut self, now: u64, from: Detail) {
        if self.reconfiguring.is_full() {
            self.reconfiguring.pop_front();
        }
        let _ = self.reconfiguring.push_back((now, u64::MAX, from));
    }

    /// The level at time `t`, if it has changed since. Events arrive later than they happen.
    pub fn level_before(&self, t: u64) -> Option<Detail> {
        self.reconfiguring.iter().find(|m| t < m.0).map(|m| m.2)
    }

    /// All probes have been added or removed.
    pub fn end_change(&mut self, now: u64) {
        if let Some(last) = self.reconfiguring.back_mut() {
            last.1 = now;
        }
    }

    /// When the change in progress began.
    pub fn reconfiguring_since(&self) -> Option<u64> {
        self.reconfiguring.back().filter(|m| m.1 == u64::MAX).map(|m| m.0)
    }

    /// Whether probes were added or removed in this interval.
    pub fn is_reconfiguring(&self, from: u64, to: u64) -> bool {
        self.reconfiguring.iter().any(|m| m.0 <= to && from <= m.1)
    }

    /// Received events, by kind, that found no room: no trace has them.
    pub fn unplaced(&self) -> [u64; KINDS] {
        let mut all = self.unplaced;
        all[ev_kind::EV_OP.0 as usize] += self.graphs.unplaced;
        all[ev_kind::EV_NODE.0 as usize] += self.enqueued.unplaced;
        all
    }

    /// The threads of this process that compute graphs that another one calls.
    pub fn team_of(&self, pid: u32) -> std::vec::Vec<u32> {
        self.graphs.workers.of(pid).collect()
    }

    /// Op hits outside any graph seen from its start.
    pub fn orphans(&self) -> u64 {
        self.graphs.orphans
    }

    /// Tensors that found no room.
    pub fn dropped_tensors(&self) -> u64 {
        self.tensors.dropped
    }

    /// What found no room, as messages.
    pub fn shortages(&self) -> Vec<String> {
        let unplaced: u64 = self.unplaced().iter().sum();
        let tensors = self.dropped_tensors();
        let unplaced = (unplaced > 0).then(|| {
            format!(
                "{unplaced} calls, graphs and op hits are counted as lost: more than {} calls or {} graphs \
                 were running at the same time, or a graph was too large",
                calls::OPEN,
                graphs::OPEN,
            )
        });
        let tensors = (tensors > 0).then(|| {
            format!("{tensors} tensors are not described: there is room for {} at a time", structure::SLOTS)
        });
        unplaced.into_iter().chain(tensors).collect()
    }

    /// The first write error; nothing is written after it.
    pub fn take_error(&mut self) -> Option<WriteError> {
        self.error.take()
    }

    /// The recording ends at this time, CLOCK_MONOTONIC ns: removing the probes may take seconds, and what runs
    /// meanwhile is only partly seen.
    pub fn end_at(&mut self, time: u64) {
        self.until = time;
    }

    /// Takes one event's bytes.
    pub fn event(&mut self, bytes: &[u8]) {
        let Some((kind, event)) = event::parse(bytes) else {
            self.totals.malformed += 1;
            return;
        };
        self.totals.events += 1;
        self.received[kind] += 1;
        // A thread that left its CPU before the end returns after it.
        let late =
            event::time(bytes).is_some_and(|at| at > self.until) && !matches!(event, Event::OffCpuEvent(_));
        if self.error.is_none()
            && !late
            && let Err(e) = self.apply(event)
        {
            self.error = Some(e);
        }
    }

    fn apply(&mut self, event: Event<'_>) -> Result<(), WriteError> {
        match event {
            Event::TokenEnter(e) => self.enter(CallKind::Token, e),
            Event::TokenExit(e) => self.exit(CallKind::Token, e),
            Event::SchedEnter(e) => self.enter(CallKind::Sched, e),
            Event::SchedExit(e) => self.exit(CallKind::Sched, e),
            Event::SplitEnter(e) => self.enter(CallKind::Split, e),
            Event::SplitExit(e) => self.exit(CallKind::Split, e),
            Event::GraphEnter(e) => self.graph_enter(e),
            Event::GraphExit(e) => self.graph_exit(e),
            Event::Op(e) => self.op(e),
            Event::OpCounted(e) => {
                self.graphs.counted(e);
                self.op(&e.op)
            }
            Event::Counts(e) => {
                self.graphs.counted(e);
                Ok(())
            }
            Event::ThreadEnd(e) => {
                if e.h.ith != u16::MAX {
                    self.graphs.thread_end(e.h.tgid, e.h.tid, e.pool, e.h.ts);
                }
                Ok(())
            }
            Event::Tensor(e) => {
                self.tensor(&e.h, e.addr, &e.raw);
                Ok(())
            }
            Event::Tensors(e) => {
                e.tensor.iter().take(e.n as usize).for_each(|t| self.tensor(&e.h, t.addr, &t.raw));
                Ok(())
            }
            Event::Nodes(e) => {
                self.graphs.nodes.chunk(e);
                self.split_plans.forget(e.h.tgid, e.cgraph);
                Ok(())
            }
            Event::Fork(e) => {
                self.totals.forked += 1;
                self.process_tree.born(e.h.tgid, e.a as u32);
                self.born.push_back((e.h.tgid, e.a as u32));
                Ok(())
            }
            Event::Exit(e) => self.process_exit(e.h.tgid, e.h.ts),
            Event::Phase(e) => self.phase(e),
            Event::Wait(e) => self.wait(e),
            Event::Node(e) => {
                self.node(e);
                Ok(())
            }
            Event::Kernels(e) => self.kernels(e),
            Event::Batch(e) => self.batch(e),
            Event::Ubatch(e) => self.ubatch(e),
            Event::Content(e) => self.content(e),
            Event::Memory(e) => self.memory(e),
            Event::Task(e) => self.task(e),
            Event::Sampler(e) => {
                self.meet(&e.h);
                self.samplers.write(e, &mut self.enc)
            }
            Event::Experts(e) => {
                if let Some(graph) = self.graphs.seq_by_caller(e.h.tid) {
                    self.experts.take(graph, e);
                }
                Ok(())
            }
            Event::OffCpuEvent(e) => sched::write(&mut self.enc, e),
        }
    }

    fn shown(&mut self, engine: u16) -> Option<&mut Shown> {
        self.shown.get_mut(engine as usize)
    }

    fn next(&mut self, what: usize) -> u64 {
        let seq = self.seq[what];
        self.seq[what] += 1;
        seq
    }

    fn meet(&mut self, h: &event::Head) {
        self.last_ts = h.ts;
        if !self.process_tree.is_met(h.tgid) && self.process_tree.meet(h.tgid, h.ts) {
            self.met.push_back((h.tgid, h.engine));
        }
    }

    fn op(&mut self, e: &event::Op) -> Result<(), WriteError> {
        self.last_ts = e.h.ts;
        let engine = e.h.engine as usize;
        if let Some(shown) = self.shown.get_mut(engine) {
            shown.ops += 1;
        }
        if e.h.ith == 0
            && let Some(nops @ false) = self.nops.get_mut(engine)
            && self.tensors.get(e.h.tgid, e.tensor).is_some_and(|d| d.nop)
        {
            *nops = true;
        }
        let orphans = self.graphs.orphans;
        self.graphs.hit(e.h.tgid, e.h.tid, e.h.ith, e.pool, ThreadHit::new(e), e.prev_end);
        // The probe of its graph may have been removed before the op's, or added after it.
        if self.is_reconfiguring(e.h.ts, e.h.ts) {
            self.graphs.orphans = orphans;
        }
        Ok(())
    }

    fn tensor(&mut self, h: &event::Head, addr: u64, raw: &[u8]) {
        let Some(reading) = self.readings.get(h.engine as usize) else { return };
        match reading.tensor(raw) {
            Ok(desc) => self.tensors.update(h.tgid, addr, desc),
            Err(why) => {
                if let Some(shown) = self.shown(h.engine) {
                    shown.unreadable.get_or_insert(why);
                }
            }
        }
    }

    fn phase(&mut self, e: &event::Call) -> Result<(), WriteError> {
        self.meet(&e.h);
        if let Some(shown) = self.shown(e.h.engine).filter(|_| e.a != 0) {
            shown.phases += 1;
        }
        self.phases.take(e, &mut self.enc)
    }

    fn process_exit(&mut self, tgid: u32, ts: u64) -> Result<(), WriteError> {
        self.totals.exited += 1;
        self.part(tgid, ts)?;
        self.gone.push_back(tgid);
        Ok(())
    }

    /// A process is not recorded any longer.
    pub fn part(&mut self, tgid: u32, ts: u64) -> Result<(), WriteError> {
        self.close(Some(tgid), ts)?;
        self.tensors.forget(tgid);
        self.kernels.forget(tgid);
        self.samplers.forget(tgid);
        self.sequences.forget(tgid);
        self.server_tasks.forget(tgid);
        if let Some(computing) = &mut self.computing {
            computing.forget(tgid);
        }
        self.process_tree.leave(tgid, ts);
        Ok(())
    }

    /// Ends everything that a process (any, with None) still has open, marked as cut.
    pub fn close(&mut self, tgid: Option<u32>, ts: u64) -> Result<(), WriteError> {
        while let Some(i) = self.graphs.any_of(tgid) {
            self.end_graph(i, (ts, 0, true))?;
        }
        self.batches.close(tgid, &mut self.enc)?;
        let overs = self.waiting.close(tgid);
        self.finish_all(&overs)?;
        while let Some(call) = self.calls.take(tgid) {
            self.finish(&FinishedCall { call, end: ts, device: Device::Idle, cut: true })?;
        }
        self.phases.close(tgid, ts, &mut self.enc)
    }

    /// Time of the newest event, CLOCK_MONOTONIC ns.
    pub fn last_ts(&self) -> u64 {
        self.last_ts
    }
}
