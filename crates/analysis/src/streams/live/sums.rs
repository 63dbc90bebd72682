//! Sums of a phase that can be added to and subtracted from each other.

use crate::recorded::calls::Steps;
use crate::sums::attribution::parts::TimeParts;
use crate::sums::ops::PhaseSum;

/// Combines two numbers into one.
pub type Combine = fn(u64, u64) -> u64;

/// Calls.
#[derive(Clone, Copy, Default)]
pub struct CallSum {
    pub calls: u64,
    /// The part of them still running when the recording ended; excluded from all other figures.
    pub cut: u64,
    /// The part of them for which the completion of a device was not seen; also excluded.
    pub unseen: u64,
    pub tokens: u64,
    /// Calls whose number of tokens is not known.
    pub unknown: u64,
    /// Total duration, and the part of it spent waiting for a device after the call returned.
    pub ns: u64,
    pub device: u64,
    /// From the start of a call of decode to the start of the next one.
    pub steps: Steps,
}

impl CallSum {
    /// The tokens of all of them.
    pub fn all_tokens(&self) -> Option<u64> {
        (self.unknown == 0).then_some(self.tokens)
    }

    /// Each number combined with the corresponding number of `o`.
    pub fn combined(&self, o: &CallSum, f: Combine) -> CallSum {
        CallSum {
            calls: f(self.calls, o.calls),
            cut: f(self.cut, o.cut),
            unseen: f(self.unseen, o.unseen),
            tokens: f(self.tokens, o.tokens),
            unknown: f(self.unknown, o.unknown),
            ns: f(self.ns, o.ns),
            device: f(self.device, o.device),
            steps: self.steps.combined(&o.steps, f),
        }
    }

    pub fn tokens_per_s(&self) -> Option<f64> {
        self.all_tokens().filter(|_| self.ns > 0).map(|t| t as f64 * 1e9 / self.ns as f64)
    }
}

/// Calls, graphs, ops and threads.
#[derive(Clone, Default)]
pub struct LiveSums {
    /// By [`crate::recorded::calls::CallSource`].
    pub calls: [CallSum; 3],
    pub graphs: PhaseSum,
    /// Graphs with ops that several threads computed.
    pub team: u64,
    /// Tokens of the graphs whose ops were recorded.
    pub op_tokens: u64,
    /// Time of splits on devices, ns.
    pub device_ns: u64,
    /// By name: executions, and thread 0's time, ns.
    pub ops: Vec<[u64; 2]>,
    /// By thread: time in ops and at barriers, ns.
    pub threads: Vec<[u64; 2]>,
    /// What all threads did.
    pub causes: TimeParts,
}

impl LiveSums {
    /// Adds an op slice: its time, and the wait at the barrier after it, as far as they are known.
    pub fn slice(&mut self, ith: u16, name: u16, (time, wait): (Option<u64>, Option<u64>)) {
        let (time, wait) = (time.unwrap_or(0), wait.unwrap_or(0));
        add(&mut self.threads, ith, [time, wait]);
        if ith == 0 {
            add(&mut self.ops, name, [1, time]);
            self.graphs.op_ns = self.graphs.op_ns.saturating_add(time);
            self.graphs.wait_ns = self.graphs.wait_ns.saturating_add(wait);
        }
    }

    /// Replaces each number by `f` of it and the corresponding number of `o`.
    pub fn combine(&mut self, o: &LiveSums, f: Combine) {
        for (a, b) in self.calls.iter_mut().zip(&o.calls) {
            *a = a.combined(b, f);
        }
        let (a, b) = (&mut self.graphs, &o.graphs);
        *a = PhaseSum {
            graphs: f(a.graphs, b.graphs),
            barrier: f(a.barrier, b.barrier),
            interval: f(a.interval, b.interval),
            graph_ns: f(a.graph_ns, b.graph_ns),
            op_ns: f(a.op_ns, b.op_ns),
            wait_ns: f(a.wait_ns, b.wait_ns),
            below: f(a.below, b.below),
            ..*a
        };
        self.team = f(self.team, o.team);
        self.op_tokens = f(self.op_tokens, o.op_tokens);
        self.device_ns = f(self.device_ns, o.device_ns);
        self.causes = self.causes.combined(&o.causes, f);
        rows(&mut self.ops, &o.ops, f);
        rows(&mut self.threads, &o.threads, f);
    }
}

fn add(to: &mut Vec<[u64; 2]>, at: u16, what: [u64; 2]) {
    let at = usize::from(at);
    if to.len() <= at {
        to.resize(at + 1, [0; 2]);
    }
    to[at] = [to[at][0].saturating_add(what[0]), to[at][1].saturating_add(what[1])];
}

fn rows(a: &mut Vec<[u64; 2]>, b: &[[u64; 2]], f: Combine) {
    if a.len() < b.len() {
        a.resize(b.len(), [0; 2]);
    }
    for (a, b) in a.iter_mut().zip(b) {
        *a = [f(a[0], b[0]), f(a[1], b[1])];
    }
}
