//! The times of each op on thread 0, graph by graph: their median is that of a usual graph, also where one of them was
//! preempted.

use std::collections::HashMap;

use crate::recorded::load::Loaded;
use crate::sums::ops::Edges;
use pfi::slice_iter;

/// Times kept of an op. Of more graphs, every second is dropped as often as needed.
const KEPT: usize = 1024;

/// The times of an op in the graphs of one plan, or in every n-th of them.
#[derive(Debug, Default)]
struct OpSample {
    ns: Vec<u64>,
    /// Of this many times one is kept, minus one.
    skip: u64,
    seen: u64,
}

impl OpSample {
    fn push(&mut self, ns: u64) {
        if self.seen.is_multiple_of(self.skip + 1) {
            if self.ns.len() == KEPT {
                let mut at = 0;
                self.ns.retain(|_| (at % 2 == 0, at += 1).0);
                self.skip = 2 * self.skip + 1;
            }
            if self.seen.is_multiple_of(self.skip + 1) {
                self.ns.push(ns);
            }
        }
        self.seen += 1;
    }
}

/// By plan and position.
#[derive(Debug, Default)]
pub struct OpSamples(HashMap<u32, Vec<OpSample>>);

impl OpSamples {
    /// Of all runs that are loaded, which must be in the order of [`crate::sums::ops::sort_runs`].
    pub fn of(loaded: &Loaded<'_>) -> OpSamples {
        let graphs: HashMap<u64, usize> =
            loaded.cpu_graphs.iter().zip(0..).map(|(g, i)| (g.seq, i)).collect();
        let mut all = OpSamples::default();
        for (i, run) in loaded.runs.iter().enumerate().filter(|(_, run)| run.ith == 0) {
            let next = loaded.runs.get(i + 1).filter(|n| (n.graph, n.plan) == (run.graph, run.plan));
            let graph = graphs.get(&run.graph).and_then(|at| loaded.cpu_graphs.get(*at));
            let edges = Edges::new(run, next, graph);
            let len = loaded.plans.get(&run.plan).map_or(0, |p| p.hits.len());
            let ops = all.0.entry(run.plan).or_default();
            ops.resize_with(len.max(ops.len()), OpSample::default);
            for (op, slice) in ops.iter_mut().skip(run.first as usize).zip(slice_iter(run)) {
                edges.times(&slice).0.into_iter().for_each(|ns| op.push(ns));
            }
        }
        all
    }

    /// The times kept of an op.
    pub fn op(&self, plan: u32, position: usize) -> &[u64] {
        self.0.get(&plan).and_then(|ops| ops.get(position)).map_or(&[], |op| &op.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_times_every_nth_is_kept() {
        let mut sample = OpSample::default();
        (0..KEPT as u64).for_each(|n| sample.push(n));
        assert_eq!(sample.ns, (0..KEPT as u64).collect::<Vec<_>>());
        (KEPT as u64..10_000).for_each(|n| sample.push(n));
        let step = sample.skip + 1;
        assert_eq!(sample.ns, (0..10_000).filter(|n| n % step == 0).collect::<Vec<_>>());
        assert!(sample.ns.len() > KEPT / 2 && step == 16, "{step}");
    }
}
