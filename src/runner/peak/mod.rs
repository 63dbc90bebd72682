//! What this machine could do at most: memory bandwidth and arithmetic, for each number of threads and each cluster of
//! equal cores. May use `kernels::simd`, `kernels::isa` and `pool::pin`.
//!
//! All figures are the best of several short windows in which all threads run at once, each on a core of its own: an
//! upper bound for what a kernel on as many threads can reach, not what it may expect on a loaded machine.

mod arithmetic;
pub mod clusters;
mod memory;
mod windows;

use super::kernels::Isa;
use clusters::Cluster;
use serde::Serialize;
use std::io;
use std::time::Duration;

pub use memory::MemoryError;

/// How long to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    window: Duration,
    windows: usize,
    /// Memory that is read, if there is so much: more than caches hold.
    bytes: usize,
    /// Whether reads from small pages and the triad are measured too.
    whole: bool,
}

impl Effort {
    /// About two seconds for a number of threads.
    pub const FULL: Self =
        Self { window: Duration::from_millis(2), windows: 128, bytes: 1 << 30, whole: true };
    /// What a roofline needs, in about half a second.
    pub const QUICK: Self =
        Self { window: Duration::from_millis(2), windows: 32, bytes: 1 << 29, whole: false };
}

/// Peaks of one machine.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Instruction set of the memory loops.
    pub isa: String,
    pub clusters: Vec<ClusterPeaks>,
}

/// Peaks of the cores of one kind, or of all together where there are several kinds.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterPeaks {
    pub name: String,
    pub cpus: Vec<usize>,
    /// One entry a number of threads, ascending.
    pub peaks: Vec<Peaks>,
}

/// What so many threads reach together. GB are 10^9 bytes, a multiply-add is two operations. `None`: this processor
/// does not have the instruction, or the figure was not asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Peaks {
    pub threads: usize,
    /// Reading memory in huge pages, GB/s.
    pub read: f64,
    /// Reading memory in pages of the base size, GB/s.
    pub read_small_pages: Option<f64>,
    /// a = b + x·c, GB/s of the three arrays as STREAM counts them.
    pub triad: Option<f64>,
    /// f32 multiply-add, GFLOP/s.
    pub f32_fma: Option<f64>,
    /// Dot products of 8-bit integers (`vpdpbusd`, `sdot`), Gop/s.
    pub int8_dot: Option<f64>,
    /// Products of matrices of 8-bit integers (`smmla`), Gop/s.
    pub int8_matrix: Option<f64>,
    /// Dot products of 8-bit integers without an instruction for it (AVX2: `vpmaddubsw`, `vpmaddwd`, `vpaddd`), Gop/s.
    pub int8_widening: Option<f64>,
}

impl Peaks {
    /// The most that 8-bit products reach by any instruction that is there, Gop/s.
    pub fn int8(&self) -> Option<f64> {
        [self.int8_dot, self.int8_matrix, self.int8_widening].into_iter().flatten().reduce(f64::max)
    }
}

/// Why nothing can be measured.
#[derive(Debug, thiserror::Error)]
pub enum PeakError {
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(
        "cannot start {n} threads to measure with: {source}; fewer with -t, or raise the limit (ulimit -u, pids.max)"
    )]
    Threads { n: usize, source: io::Error },
}

/// Measures every cluster at every number of threads in `threads` (all that make sense if empty).
///
/// # Errors
/// No memory to read from, or no threads to do it.
pub fn machine(threads: &[usize], effort: Effort) -> Result<Machine, PeakError> {
    let mut clusters = clusters::of_this_machine();
    if clusters.len() > 1 {
        let cpus = clusters.iter().flat_map(|c| c.cpus.clone()).collect();
        clusters.push(Cluster { name: "all".to_owned(), cpus });
    }
    let clusters = clusters.into_iter().map(|cluster| {
        let counts = if threads.is_empty() { counts(cluster.cpus.len()) } else { threads.to_vec() };
        let fitting = counts.into_iter().filter(|n| (1..=cluster.cpus.len()).contains(n));
        let peaks = fitting.map(|n| of_cpus(&cluster.cpus[..n], effort)).collect::<Result<_, _>>()?;
        Ok::<_, PeakError>(ClusterPeaks { name: cluster.name, cpus: cluster.cpus, peaks })
    });
    Ok(Machine { isa: Isa::best().to_string(), clusters: clusters.collect::<Result<_, _>>()? })
}

/// Measures one thread on each of these CPUs.
///
/// # Errors
/// No memory to read from, or no threads to do it.
pub fn of_cpus(cpus: &[usize], effort: Effort) -> Result<Peaks, PeakError> {
    let few = |source| PeakError::Threads { n: cpus.len(), source };
    let arithmetic = |of| arithmetic::peak(of, cpus, effort).map_err(few);
    let mut peaks = Peaks {
        threads: cpus.len(),
        f32_fma: arithmetic(arithmetic::Instruction::F32Fma)?,
        int8_dot: arithmetic(arithmetic::Instruction::Int8Dot)?,
        int8_matrix: arithmetic(arithmetic::Instruction::Int8Matrix)?,
        int8_widening: arithmetic(arithmetic::Instruction::Int8Widening)?,
        ..Peaks::default()
    };
    let huge = memory::Buffer::new(memory::Pages::Huge, effort.bytes)?;
    peaks.read = memory::read(&huge, cpus, effort).map_err(few)?;
    if effort.whole {
        peaks.triad = Some(memory::triad(&huge, cpus, effort).map_err(few)?);
        drop(huge);
        let small = memory::Buffer::new(memory::Pages::Small, effort.bytes)?;
        peaks.read_small_pages = Some(memory::read(&small, cpus, effort).map_err(few)?);
    }
    Ok(peaks)
}

/// Every number up to 8, then powers of two, and all.
fn counts(cores: usize) -> Vec<usize> {
    let mut counts: Vec<_> = (1..=cores).filter(|n| *n <= 8 || n.is_power_of_two()).collect();
    if counts.last().is_some_and(|last| *last < cores) {
        counts.push(cores);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_threads() {
        assert_eq!(counts(3), [1, 2, 3]);
        assert_eq!(counts(12), [1, 2, 3, 4, 5, 6, 7, 8, 12]);
        assert_eq!(counts(32), [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]);
    }

    #[test]
    fn the_best_8_bit_peak_is_any_that_is_there() {
        let none = Peaks::default();
        assert_eq!(none.int8(), None);
        assert_eq!(Peaks { int8_dot: Some(3.0), int8_matrix: Some(5.0), ..none }.int8(), Some(5.0));
    }

    #[test]
    fn what_is_measured_is_positive_and_what_lacks_is_none() {
        let cpus = clusters::of_this_machine().remove(0).cpus;
        let effort = Effort { window: Duration::from_millis(1), windows: 1, bytes: 1 << 25, whole: true };
        let peaks = of_cpus(&cpus[..1], effort).expect("memory");
        assert!(peaks.read > 0.0 && peaks.triad > Some(0.0) && peaks.read_small_pages > Some(0.0));
        for value in [peaks.f32_fma, peaks.int8_dot, peaks.int8_matrix, peaks.int8_widening] {
            assert!(value.is_none_or(|v| v > 0.0));
        }
    }
}
