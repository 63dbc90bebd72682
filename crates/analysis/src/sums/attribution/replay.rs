//! Replays a graph without its waits: the sum over its ops of the time that each needs on a CPU.
//!
//! An op that waits inside for other threads (quantising the activation in MUL_MAT) spins there, which counts as
//! computing. The thread with the least time on a CPU has waited least, so its time is taken; in an op that only one
//! thread computes, the time of that one. Multiplications and attention are never such an op: there, a thread with much
//! less time than another shows that the other waited inside.

use common::order;

/// Graphs kept per position.
const KEPT: usize = 128;
/// If the thread with the least time has less than this part of the one with the most, only one computes.
const ALONE: f64 = 0.25;
/// Rank of the time of an op that one thread computes: waits inside it make it longer, never shorter.
const LOW: f64 = 0.25;
/// An op's work is known if no thread spun in at least one of this many graphs.
const CALM: usize = 4;

/// Whether all threads compute an op, with a barrier inside it (`ggml_barrier` in ggml/src/ggml-cpu, b11669).
pub fn waits_inside(op: &str) -> bool {
    op.starts_with("MUL_MAT") || op.starts_with("FLASH_ATTN_EXT")
}

/// Shortest time on a CPU in which a thread may have spun until it was preempted, ns: the scheduler lets it run for at
/// least a tick, mostly for several.
const SPIN_NS: u64 = 1_000_000;

/// Time on a CPU in an op of a graph, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ComputingSample {
    /// Of the thread with the least and of the one with the most, and of all threads together.
    pub least: u64,
    pub most: u64,
    pub sum: u64,
    /// A thread was preempted in it after a long time and never slept: it may have been spinning.
    pub spun: bool,
}

impl ComputingSample {
    /// Of one thread. `preempted`: it was, and it never slept.
    pub fn of(ns: u64, preempted: bool) -> ComputingSample {
        ComputingSample { least: ns, most: ns, sum: ns, spun: preempted && ns >= SPIN_NS }
    }

    /// Of another thread, too.
    pub fn and(self, o: ComputingSample) -> ComputingSample {
        ComputingSample {
            least: self.least.min(o.least),
            most: self.most.max(o.most),
            sum: self.sum.saturating_add(o.sum),
            spun: self.spun || o.spun,
        }
    }
}

/// The work of a graph whose threads took the CPU from each other, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CrowdedWork {
    /// In ops where no thread spun: of all threads together.
    pub calm: f64,
    /// In the others: of the thread with the least time.
    pub spun: f64,
}

/// Time on a CPU at each position of a plan.
#[derive(Debug, Default)]
pub struct ComputingSamples {
    /// The latest graphs.
    positions: Vec<Vec<ComputingSample>>,
    graphs: usize,
}

impl ComputingSamples {
    /// Adds a graph by its positions.
    pub fn graph(&mut self, all: impl Iterator<Item = (usize, ComputingSample)>) {
        for (at, sample) in all {
            if self.positions.len() <= at {
                self.positions.resize_with(at + 1, Vec::new);
            }
            let Some(kept) = self.positions.get_mut(at) else { continue };
            match kept.get_mut(self.graphs % KEPT).filter(|_| self.graphs >= KEPT) {
                Some(place) => *place = sample,
                None => kept.push(sample),
            }
        }
        self.graphs += 1;
    }

    /// The time of a graph without waits, ns; `None` if no graph was added. `shared`: whether all threads compute at a
    /// position.
    pub fn replay(&self, shared: impl Fn(usize) -> bool) -> Option<f64> {
        let used = self.positions.iter().enumerate().filter(|(_, p)| !p.is_empty());
        (self.graphs > 0).then(|| used.map(|(at, p)| one(p, shared(at))).sum())
    }

    /// The work of a graph; `None` if no graph was added.
    pub fn crowded(&self, shared: impl Fn(usize) -> bool) -> Option<CrowdedWork> {
        let mut work = CrowdedWork::default();
        for (at, samples) in self.positions.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
            let calm: Vec<u64> = samples.iter().filter(|s| !s.spun).map(|s| s.sum).collect();
            match calm.len() * CALM >= samples.len() {
                true => work.calm += rank(calm.into_iter(), 0.5),
                false => work.spun += one(samples, shared(at)),
            }
        }
        (self.graphs > 0).then_some(work)
    }
}

/// The time that an op needs, ns.
fn one(samples: &[ComputingSample], shared: bool) -> f64 {
    let least = rank(samples.iter().map(|s| s.least), 0.5);
    let most = rank(samples.iter().map(|s| s.most), LOW);
    if least < ALONE * most && !shared { most } else { least }
}

/// The value at a rank from 0 to 1.
fn rank(values: impl Iterator<Item = u64>, rank: f64) -> f64 {
    let mut all: Vec<u64> = values.collect();
    order::by_key(&mut all, |ns| (*ns, 0));
    let at = ((all.len().saturating_sub(1)) as f64 * rank) as usize;
    all.get(at).map_or(0.0, |ns| *ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair((a, b): (u64, u64), spun: bool) -> ComputingSample {
        ComputingSample::of(a, spun).and(ComputingSample::of(b, false))
    }

    fn samples(all: &[[(u64, u64); 2]]) -> ComputingSamples {
        let mut samples = ComputingSamples::default();
        all.iter().for_each(|graph| samples.graph(graph.iter().map(|p| pair(*p, false)).enumerate()));
        samples
    }

    fn graphs(all: &[[(u64, u64); 2]]) -> Option<f64> {
        samples(all).replay(|_| false)
    }

    #[test]
    fn the_thread_that_waited_least_counts() {
        // One thread spins inside the first op for as long as the other is kept from its CPU.
        assert_eq!(
            graphs(&[[(100, 900), (50, 50)], [(110, 120), (50, 50)], [(105, 800), (50, 50)]]),
            Some(155.0)
        );
    }

    #[test]
    fn an_op_of_one_thread_takes_that_threads_time() {
        assert_eq!(graphs(&[[(1, 400), (50, 50)], [(1, 410), (50, 50)], [(2, 9000), (50, 50)]]), Some(450.0));
    }

    /// On one CPU, one of two threads spins until it is preempted, each time.
    #[test]
    fn in_a_multiplication_a_thread_with_little_time_has_not_waited() {
        let all = samples(&[[(300, 4000), (1, 400)], [(310, 4100), (1, 410)], [(290, 3900), (2, 420)]]);
        assert_eq!(all.replay(|at| at == 0), Some(300.0 + 400.0));
    }

    #[test]
    fn work_is_counted_whole_where_no_thread_spins() {
        let mut all = ComputingSamples::default();
        for _ in 0..8 {
            // One thread computes almost all of the first op while the other sleeps; in the second, one spins.
            let graph = [pair((400, 10), true), pair((4_000_000, 300), true)];
            all.graph(graph.into_iter().enumerate());
        }
        assert_eq!(all.crowded(|_| true), Some(CrowdedWork { calm: 410.0, spun: 300.0 }));
        assert_eq!(ComputingSamples::default().crowded(|_| true), None);
    }

    #[test]
    fn only_the_latest_graphs_are_kept_and_none_is_no_time() {
        assert_eq!(ComputingSamples::default().replay(|_| true), None);
        let mut samples = ComputingSamples::default();
        for i in 0..1000 {
            samples.graph([(0, pair((i, i), false))].into_iter());
        }
        assert_eq!(samples.positions[0].len(), KEPT);
        assert!(samples.replay(|_| false).unwrap() > 900.0);
    }
}
