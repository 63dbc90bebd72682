//! Measures the ways to read weights for one token ([`Reading`]) on the weights themselves, and chooses the fastest.
//!
//! The ways take turns on slices of the matrices, so that all see the same memory at the same time; slices follow
//! one another, so that none is in a cache when its turn comes, unless all fit into it.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::bench::{BenchCase, MeasureError, PreparedRows, each_part, round};
use super::kernels::peak::{READ_PATTERNS, ReadPattern};
use super::kernels::{Matrix, Reading};
use super::model::weights::Weights;
use ggml::quant::TensorType;

/// Bytes of weights per measurement.
const SLICE: usize = 4 << 20;
/// A type with fewer bytes of weights in a model is not worth a measurement.
const LEAST_BYTES: usize = 32 << 20;
/// Time for a type of a model's weights.
const LIMIT: Duration = Duration::from_millis(100);
/// Fewer rounds tell nothing.
const LEAST_ROUNDS: usize = 5;
/// The default is kept unless another way takes less than this share of its time: noise chooses nothing.
const GAIN: f64 = 0.98;

/// The speed of one way, in 10^9 bytes of weights per second, as stored in the file; the median of all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReadingSpeed {
    #[serde(flatten)]
    pub reading: Reading,
    pub gb_s: f64,
}

/// The ways that were measured, the default first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadingChoice {
    pub chosen: Reading,
    pub measured: Vec<ReadingSpeed>,
    /// What reading alone reaches on the same memory, in 10^9 bytes per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only_gb_s: Option<f64>,
}

impl ReadingChoice {
    /// The speed of this way, if it was measured.
    pub fn speed_of(&self, reading: Reading) -> Option<f64> {
        self.measured.iter().find(|m| m.reading == reading).map(|m| m.gb_s)
    }

    /// How much faster the chosen way is than this one, as a share: 0.1 is 10 %.
    pub fn gain_over(&self, reading: Reading) -> Option<f64> {
        Some(self.speed_of(self.chosen)? / self.speed_of(reading)? - 1.0)
    }
}

/// What is timed in turn.
#[derive(Clone, Copy)]
enum Turn {
    Product(Reading),
    Read(ReadPattern),
}

/// Measures for about `limit` on equal matrices of the case, leaves them with the fastest way, and returns it.
/// `None`: there is only one way, or the time was not enough to tell. With `bench`, reading alone takes turns, too, and
/// it takes as long as it must.
///
/// # Errors
/// Threads are not available.
pub fn choose(
    case: &BenchCase,
    matrices: &[&Matrix],
    limit: Duration,
    bench: bool,
) -> Result<Option<ReadingChoice>, MeasureError> {
    let Some(first) = matrices.first() else { return Ok(None) };
    let readings = if first.readings().is_empty() { &[Reading::PLAIN] } else { first.readings() };
    if readings.len() < 2 && !bench {
        return Ok(None);
    }
    let mut turns: Vec<Turn> = readings.iter().copied().map(Turn::Product).collect();
    turns.extend(READ_PATTERNS.iter().filter(|_| bench).copied().map(Turn::Read));
    let (seconds, rounds) = time(case, matrices, &turns, limit, bench)?;
    let file = case.ty.row_bytes(case.cols as u64).unwrap_or(0) as f64 * case.rows as f64;
    let speed = |seconds: f64, bytes: f64| bytes / seconds / 1e9;
    let (products, reads) = seconds.split_at_checked(readings.len()).unwrap_or_default();
    let fastest = |of: &[f64]| of.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
    let default = products.first().copied().unwrap_or(f64::INFINITY);
    let best = fastest(products).filter(|(_, s)| *s < default * GAIN && rounds >= LEAST_ROUNDS);
    let chosen = best.and_then(|(i, _)| readings.get(i)).or_else(|| readings.first());
    let chosen = chosen.copied().unwrap_or(Reading::PLAIN);
    for m in matrices {
        m.set_reading(chosen);
    }
    if rounds < LEAST_ROUNDS {
        return Ok(None);
    }
    let measured = readings.iter().zip(products);
    Ok(Some(ReadingChoice {
        chosen,
        measured: measured.map(|(r, s)| ReadingSpeed { reading: *r, gb_s: speed(*s, file) }).collect(),
        read_only_gb_s: fastest(reads).map(|(_, s)| speed(s, first.bytes() as f64)),
    }))
}

/// The choice for a type of weights of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TypeReading {
    #[serde(rename = "type")]
    pub ty: &'static str,
    #[serde(flatten)]
    pub choice: ReadingChoice,
}

/// Chooses for all types of a model's weights of which there are many, each in about a tenth of a second, on the
/// shape that most of them have.
///
/// # Errors
/// Threads are not available.
pub fn of_model(weights: &Weights, threads: usize) -> Result<Vec<TypeReading>, MeasureError> {
    let mut choices = Vec::new();
    for ty in TensorType::ALL {
        let all: Vec<&Matrix> = weights.matrices().filter(|m| m.ty() == ty && m.cols() > 0).collect();
        let bytes = |of: &[&Matrix]| of.iter().map(|m| m.bytes()).sum::<usize>();
        if bytes(&all) < LEAST_BYTES {
            continue;
        }
        let like = |m: &Matrix| -> Vec<&Matrix> {
            all.iter().filter(|n| (n.rows(), n.cols()) == (m.rows(), m.cols())).copied().collect()
        };
        let Some(most) = all.iter().map(|m| like(m)).max_by_key(|same| bytes(same)) else { continue };
        let Some(m) = most.first() else { continue };
        let case = BenchCase { ty, rows: m.rows(), cols: m.cols(), tokens: 1, isa: m.isa(), threads };
        if let Some(choice) = choose(&case, &most, LIMIT, false)? {
            weights.set_reading(Some(ty), choice.chosen);
            choices.push(TypeReading { ty: ty.name(), choice });
        }
    }
    Ok(choices)
}

/// The median seconds per matrix of each turn, and the number of rounds.
fn time(
    case: &BenchCase,
    matrices: &[&Matrix],
    turns: &[Turn],
    limit: Duration,
    patient: bool,
) -> Result<(Vec<f64>, usize), MeasureError> {
    let Some(first) = matrices.first() else { return Ok((Vec::new(), 0)) };
    let acts = PreparedRows::new(first, case);
    let mut results = vec![0.0f32; case.tokens * case.rows];
    let slices: Vec<_> = matrices.chunks((SLICE / first.bytes().max(1)).max(1)).collect();
    // Each turn is to see each slice.
    let step = turns.len() + usize::from(turns.len().is_multiple_of(slices.len()));
    let mut times = vec![Vec::new(); turns.len()];
    let (begin, mut rounds) = (Instant::now(), 0);
    'rounds: for number in 0.. {
        for (i, turn) in turns.iter().enumerate() {
            let Some(slice) = slices.get((number * step + i) % slices.len()) else { break 'rounds };
            let seconds = match turn {
                Turn::Product(reading) => {
                    slice.iter().for_each(|m| m.set_reading(*reading));
                    round(case, slice, &acts, &mut results)?
                }
                Turn::Read(pattern) => each_part(case, slice, |m, rows, _| m.read_only(rows, *pattern))?,
            };
            // The first round warms up memory, code and clock frequency.
            if number > 0
                && let Some(times) = times.get_mut(i)
            {
                times.push(seconds / slice.len() as f64);
            }
            if !patient && rounds < LEAST_ROUNDS && begin.elapsed() > limit {
                break 'rounds;
            }
        }
        rounds = number;
        if rounds >= LEAST_ROUNDS && begin.elapsed() > limit {
            break;
        }
    }
    let median = |mut of: Vec<f64>| {
        of.sort_by(f64::total_cmp);
        of.get(of.len() / 2).copied().unwrap_or(f64::INFINITY)
    };
    Ok((times.into_iter().map(median).collect(), rounds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Isa, MatrixPlacement};

    fn matrix(case: &BenchCase) -> Matrix {
        let bytes =
            vec![0u8; case.ty.row_bytes(case.cols as u64).expect("whole blocks") as usize * case.rows];
        Matrix::new(case.ty, case.rows, case.cols, MatrixPlacement::Packed(&bytes), case.isa).expect("memory")
    }

    fn case(ty: TensorType, isa: Isa) -> BenchCase {
        BenchCase { ty, rows: 256, cols: 512, tokens: 1, isa, threads: 1 }
    }

    #[test]
    fn all_matrices_are_left_with_the_chosen_way() {
        for ty in [TensorType::Q4_0, TensorType::Q8_0, TensorType::Q4K, TensorType::Q6K] {
            let case = case(ty, Isa::best());
            let made = [matrix(&case), matrix(&case), matrix(&case)];
            let all: Vec<&Matrix> = made.iter().collect();
            let found =
                choose(&case, &all, Duration::from_millis(5), true).expect("threads").expect("a choice");
            assert_eq!(found.measured.len(), all[0].readings().len().max(1));
            assert!(found.measured.iter().all(|m| m.gb_s > 0.0) && found.read_only_gb_s > Some(0.0));
            assert!(found.gain_over(found.chosen) == Some(0.0));
            assert!(all.iter().all(|m| m.reading() == found.chosen));
        }
    }

    #[test]
    fn nothing_is_chosen_where_there_is_one_way_or_no_time() {
        let scalar = case(TensorType::Q4_0, Isa::Scalar);
        let m = matrix(&scalar);
        assert_eq!(choose(&scalar, &[&m], Duration::from_secs(1), false).expect("threads"), None);
        let best = case(TensorType::Q4_0, Isa::best());
        let m = matrix(&best);
        let default = m.reading();
        assert_eq!(choose(&best, &[&m], Duration::ZERO, false).expect("threads"), None);
        assert_eq!(m.reading(), default);
        assert_eq!(choose(&best, &[], Duration::ZERO, true).expect("threads"), None);
    }
}
