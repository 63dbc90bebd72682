//! Measures the machine's peaks: memory bandwidth and arithmetic, for each number of threads and each cluster of
//! equal cores.
//!
//! All figures are the best of several short windows in which all threads run at the same time, each on its own
//! core: an upper bound for a kernel on as many threads, not what to expect on a loaded machine.

mod arithmetic;
pub mod clusters;
mod memory;
mod windows;

use super::isa::Isa;
use clusters::CoreCluster;
use serde::Serialize;
use std::io;
use std::time::Duration;

pub(crate) use memory::read_bytes;
pub use memory::{MemoryError, READ_PATTERNS, ReadPattern};

/// How long to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    window: Duration,
    windows: usize,
    /// Memory to read, if available: more than the caches hold.
    bytes: usize,
    /// Whether to measure small-page reads and the triad, too.
    whole: bool,
}

impl Effort {
    /// About two seconds per number of threads.
    pub const FULL: Self =
        Self { window: Duration::from_millis(2), windows: 128, bytes: 1 << 30, whole: true };
    /// The same measurements in about half that time.
    pub const BRIEF: Self =
        Self { window: Duration::from_millis(2), windows: 64, bytes: 1 << 29, whole: true };
    /// Enough for a roofline, in about half a second.
    pub const QUICK: Self =
        Self { window: Duration::from_millis(2), windows: 32, bytes: 1 << 29, whole: false };
}

/// Peaks of one machine.
#[derive(Debug, Clone, Serialize)]
pub struct MachinePeaks {
    /// Instruction set of the memory loops.
    pub isa: String,
    pub clusters: Vec<ClusterPeaks>,
}

/// Peaks of the cores of one kind, or of all cores together if there are several kinds.
#[derive(Debug, Clone, Serialize)]
pub struct ClusterPeaks {
    pub name: String,
    pub cpus: Vec<usize>,
    /// One entry per number of threads, ascending.
    pub peaks: Vec<Peaks>,
}

/// What `threads` threads reach together. GB are 10^9 bytes, a multiply-add is two operations. `None`: this
/// processor lacks the instruction, or the figure was not requested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Peaks {
    pub threads: usize,
    /// Memory reads in huge pages, GB/s.
    pub read: f64,
    /// Memory reads in base-size pages, GB/s.
    pub read_small_pages: Option<f64>,
    /// a = b + x·c, GB/s of the three arrays as STREAM counts them.
    pub triad: Option<f64>,
    /// f32 multiply-add, GFLOP/s.
    pub f32_fma: Option<f64>,
    /// 8-bit integer dot products (`vpdpbusd`, `sdot`), Gop/s.
    pub int8_dot: Option<f64>,
    /// 8-bit integer matrix products (`smmla`), Gop/s.
    pub int8_matrix: Option<f64>,
    /// 8-bit integer dot products without a dedicated instruction (AVX2: `vpmaddubsw`, `vpaddw`), Gop/s. Sums are in 16
    /// bits, which has room for products of 4-bit weights; those of 8-bit weights take a third instruction.
    pub int8_widening: Option<f64>,
}

impl Peaks {
    /// The highest rate of 8-bit products with any available instruction, Gop/s.
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
        "cannot start {n} threads to measure with: {source}; use fewer with -t, or raise the limit \
         (ulimit -u, pids.max)"
    )]
    Threads { n: usize, source: io::Error },
}

/// Is told what is being measured.
pub trait Progress {
    /// A measurement of this cluster with this many threads begins; how many are done, of how many.
    fn begins(&mut self, _cluster: &str, _threads: usize, _done: (usize, usize)) {}
}

/// Tells no one.
impl Progress for () {}

/// Measures every cluster with each number of threads in `threads` (all useful ones if empty).
///
/// # Errors
/// Not enough memory to read from, or the threads could not be started.
pub fn machine(
    threads: &[usize],
    effort: Effort,
    progress: &mut impl Progress,
) -> Result<MachinePeaks, PeakError> {
    let mut clusters = clusters::of_this_machine();
    if clusters.len() > 1 {
        let cpus = clusters.iter().flat_map(|c| c.cpus.clone()).collect();
        clusters.push(CoreCluster { name: "all".to_owned(), cpus });
    }
    let fitting = |cluster: &CoreCluster| -> Vec<usize> {
        let counts = if threads.is_empty() { counts(cluster.cpus.len()) } else { threads.to_vec() };
        counts.into_iter().filter(|n| (1..=cluster.cpus.len()).contains(n)).collect()
    };
    let all = clusters.iter().map(|c| fitting(c).len()).sum();
    let mut done = 0;
    let mut measured = Vec::new();
    for cluster in clusters {
        let mut peaks = Vec::new();
        for n in fitting(&cluster) {
            progress.begins(&cluster.name, n, (done, all));
            peaks.push(of_cpus(&cluster.cpus[..n], effort)?);
            done += 1;
        }
        measured.push(ClusterPeaks { name: cluster.name, cpus: cluster.cpus, peaks });
    }
    Ok(MachinePeaks { isa: Isa::best().to_string(), clusters: measured })
}

/// Measures with one thread on each of these CPUs.
///
/// # Errors
/// Not enough memory to read from, or the threads could not be started.
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
    let huge = memory::ReadBuffer::new(memory::PageSize::Huge, effort.bytes)?;
    peaks.read = memory::read(&huge, cpus, effort).map_err(few)?;
    if effort.whole {
        peaks.triad = Some(memory::triad(&huge, cpus, effort).map_err(few)?);
        drop(huge);
        let small = memory::ReadBuffer::new(memory::PageSize::Small, effort.bytes)?;
        peaks.read_small_pages = Some(memory::read(&small, cpus, effort).map_err(few)?);
    }
    Ok(peaks)
}

/// Every number up to 8, then powers of two, and the total.
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
        // Other programs may take the whole of one window, but not of twenty.
        let effort = Effort { window: Duration::from_millis(1), windows: 20, bytes: 1 << 25, whole: true };
        let peaks = of_cpus(&cpus[..1], effort).expect("memory");
        assert!(peaks.read > 0.0 && peaks.triad > Some(0.0) && peaks.read_small_pages > Some(0.0));
        for value in [peaks.f32_fma, peaks.int8_dot, peaks.int8_matrix, peaks.int8_widening] {
            assert!(value.is_none_or(|v| v > 0.0));
        }
    }
}
