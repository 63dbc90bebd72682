//! Event counts of one engine, used for loss accounting, level changes and probe verification.

use crate::capture::structure::Unreadable;
use crate::recorder::graphs::{GraphStart, ObservedGraph};
use pfi::record::Detail;

/// What one engine's probes have shown so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    pub tokens: u64,
    pub scheds: u64,
    pub splits: u64,
    pub graphs: u64,
    pub ops: u64,
    /// Calls that are phases.
    pub phases: u64,
    /// Waits for a device.
    pub waits: u64,
    /// Nodes that a device backend enqueued.
    pub enqueued: u64,
    /// Kernels that a device has executed.
    pub kernels: u64,
    /// Kernels and graphs of kernels that splits gave to a device.
    pub dispatches: u64,
    /// Batches that were written for an NPU, and responses.
    pub batches: u64,
    /// Parts of batches whose tokens were read, and calls that change a context's memory.
    pub ubatches: u64,
    pub memory_calls: u64,
    pub tasks: u64,
    /// Seen returns of tokens, scheduler graphs, splits and CPU graphs.
    pub returns: [u64; 4],
    /// Op hits expected from the complete graphs so far, and those seen in them; graphs with unknown demand
    /// excluded.
    pub expected: u64,
    pub seen: u64,
    /// Graphs with unknown demand.
    pub unknown: u64,
    /// See [`ObservedGraph`]: thread 0's op ends, and those that a barrier showed, in graphs while barriers were probed.
    pub inner: u64,
    pub ended: u64,
    /// Set by the session: the barrier is probed.
    pub barrier_on: bool,
    /// Set by the session: waits for a device are probed.
    pub waits_on: bool,
    /// Set by the session: since when all kernels given to a device are counted, CLOCK_MONOTONIC ns; `None`: they are not.
    pub dispatches_since: Option<u64>,
    /// The same, for batches.
    pub batches_since: Option<u64>,
    /// Threads and nodes of the newest graph.
    pub threads: u32,
    pub nodes: u32,
    /// Complete CPU graphs that finished without a single op hit.
    pub silent: u64,
    /// A scheduler object seen, for the vtable route: (process, address).
    pub scheduler: Option<(u32, u64)>,
    /// A backend seen whose function for one node can be found without symbols: (process, address, name).
    pub backend: Option<(u32, u64, &'static str)>,
    /// CLOCK_MONOTONIC ns of what proves or disproves the function probed for nodes: the last hit with other arguments
    /// than a node's, or of a split that the hits do not fit; and the starts of such a backend's last splits whose
    /// nodes it showed, and without a single hit.
    pub misfit: u64,
    pub fitted: u64,
    pub unhit: u64,
    /// First tensor that could not be read, and the reason.
    pub unreadable: Option<Unreadable>,
    /// The user has been notified of it.
    pub told: bool,
}

impl Shown {
    /// Whether the engine did anything.
    pub fn worked(&self) -> bool {
        self.tokens + self.scheds + self.splits + self.graphs + self.ops + self.phases > 0
    }

    /// The difference to an earlier state; values that are not sums stay.
    pub fn since(&self, base: &Shown) -> Shown {
        let mut s = *self;
        let sums = [
            (&mut s.tokens, base.tokens),
            (&mut s.scheds, base.scheds),
            (&mut s.splits, base.splits),
            (&mut s.graphs, base.graphs),
            (&mut s.ops, base.ops),
            (&mut s.phases, base.phases),
            (&mut s.waits, base.waits),
            (&mut s.enqueued, base.enqueued),
            (&mut s.kernels, base.kernels),
            (&mut s.dispatches, base.dispatches),
            (&mut s.batches, base.batches),
            (&mut s.ubatches, base.ubatches),
            (&mut s.memory_calls, base.memory_calls),
            (&mut s.tasks, base.tasks),
            (&mut s.expected, base.expected),
            (&mut s.seen, base.seen),
            (&mut s.unknown, base.unknown),
            (&mut s.inner, base.inner),
            (&mut s.ended, base.ended),
        ];
        sums.into_iter().for_each(|(now, then)| *now -= then);
        s.returns.iter_mut().zip(base.returns).for_each(|(now, then)| *now -= then);
        s
    }

    /// A CPU graph has ended, which ran before the last change of level, at that level.
    pub(super) fn note(&mut self, s: &GraphStart, seen: &ObservedGraph, before: Option<Detail>) {
        self.graphs += 1;
        (self.threads, self.nodes) = (s.threads, s.n_nodes);
        if seen.cut || before.is_some_and(|level| level < Detail::Op) {
            return;
        }
        self.silent += u64::from(seen.hits == 0);
        if self.barrier_on && seen.threads > 1 {
            self.inner += u64::from(seen.inner);
            self.ended += u64::from(seen.ended);
        }
        match seen.expected {
            Some(n) => {
                self.expected += u64::from(n);
                self.seen += u64::from(seen.hits);
            }
            None => self.unknown += 1,
        }
    }
}
