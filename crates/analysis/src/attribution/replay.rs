//! Replays a graph without its waits: the sum over its ops of the time that each needs on a CPU.
//!
//! An op that waits inside for other threads (quantising the activation in MUL_MAT) spins there, which counts as
//! computing. The thread with the least time on a CPU has waited least, so its time is taken; in an op that only one
//! thread computes, the time of that one.

use common::order;

/// Graphs kept per position.
const KEPT: usize = 128;
/// If the thread with the least time has less than this part of the one with the most, only one computes.
const ALONE: f64 = 0.25;
/// Rank of the time of an op that one thread computes: waits inside it make it longer, never shorter.
const LOW: f64 = 0.25;

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

    /// The time of a graph without waits, ns; `None` if no graph was added.
    pub fn replay(&self) -> Option<f64> {
        (self.graphs > 0).then(|| self.positions.iter().filter(|p| !p.is_empty()).map(|p| one(p)).sum())
    }
}

/// The time that an op needs, ns.
fn one(samples: &[(u64, u64)]) -> f64 {
    let least = rank(samples.iter().map(|(least, _)| *least), 0.5);
    let most = rank(samples.iter().map(|(_, most)| *most), LOW);
    if least < ALONE * most { most } else { least }
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

    fn graphs(all: &[[(u64, u64); 2]]) -> Option<f64> {
        let mut samples = ComputingSamples::default();
        all.iter().for_each(|graph| samples.graph(graph.iter().copied().enumerate()));
        samples.replay()
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

    #[test]
    fn only_the_latest_graphs_are_kept_and_none_is_no_time() {
        assert_eq!(ComputingSamples::default().replay(), None);
        let mut samples = ComputingSamples::default();
        for i in 0..1000 {
            samples.graph([(0, (i, i))].into_iter());
        }
        assert_eq!(samples.positions[0].len(), KEPT);
        assert!(samples.replay().unwrap() > 900.0);
    }
}
