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

/// Whether all threads compute an op, with a barrier inside it (`ggml_barrier` in ggml/src/ggml-cpu, b11669).
pub fn waits_inside(op: &str) -> bool {
    op.starts_with("MUL_MAT") || op.starts_with("FLASH_ATTN_EXT")
}

/// Time on a CPU at each position of a plan.
#[derive(Debug, Default)]
pub struct ComputingSamples {
    /// Of the thread with the least and of the one with the most, ns; the latest graphs.
    positions: Vec<Vec<(u64, u64)>>,
    graphs: usize,
}

impl ComputingSamples {
    /// Adds a graph: positions, and the time of the threads with the least and the most.
    pub fn graph(&mut self, all: impl Iterator<Item = (usize, (u64, u64))>) {
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
}

/// The time that an op needs, ns.
fn one(samples: &[(u64, u64)], shared: bool) -> f64 {
    let least = rank(samples.iter().map(|(least, _)| *least), 0.5);
    let most = rank(samples.iter().map(|(_, most)| *most), LOW);
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

    fn samples(all: &[[(u64, u64); 2]]) -> ComputingSamples {
        let mut samples = ComputingSamples::default();
        all.iter().for_each(|graph| samples.graph(graph.iter().copied().enumerate()));
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
    fn only_the_latest_graphs_are_kept_and_none_is_no_time() {
        assert_eq!(ComputingSamples::default().replay(|_| true), None);
        let mut samples = ComputingSamples::default();
        for i in 0..1000 {
            samples.graph([(0, (i, i))].into_iter());
        }
        assert_eq!(samples.positions[0].len(), KEPT);
        assert!(samples.replay(|_| false).unwrap() > 900.0);
    }
}
