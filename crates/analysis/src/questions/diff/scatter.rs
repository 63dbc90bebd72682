//! Estimates how much a program start alone changes op times, and what remains of a measured change.
//!
//! Every start places memory anew, which makes single ops faster or slower for the lifetime of the process; no
//! number of calls of one start shows it. There are two ways to estimate the effect:
//! - With one start per side, from how differently the other ops changed: all of them, or those of the kind if
//!   the kinds differ. How much one non-streaming op varies says little about the next, so large changes are not
//!   rare.
//! - With several, each pair of starts gives one value for an op's change, and their variance is the op's own
//!   scatter. Few starts give a poor estimate, so it is combined with that of the op's kind, each weighted by its
//!   degrees of freedom (Smyth, Statistical Applications in Genetics and Molecular Biology 3 (2004) 3). An op
//!   that varies far more than its kind is judged by its own variance only (as in Phipson and others, Annals of
//!   Applied Statistics 10 (2016) 946).

use crate::sums::time_series::{Estimate, mean, median, sorted};

/// Share of the observed changes that may be real rather than scatter.
const CHANGED: f64 = 0.2;
/// Efficiency of the variance estimate from the remaining squares, relative to one from all of them.
const EFFICIENCY: f64 = 0.6;
/// Maximum degrees of freedom if kinds differ: how precisely an op's scatter is known from that of its kind. For
/// streaming ops and for other ops.
const ALIKE: [f64; 2] = [20.0, 2.0];
/// Kinds count as alike up to this ratio of the mean squares.
const UNLIKE: f64 = 8.0;

/// Variation of ops of a kind around their common change, between pairs of starts.
#[derive(Debug, Clone, Copy)]
pub struct OpVariation {
    /// Variance of the logarithm of a change, beyond what call-to-call variation explains.
    pub variance: f64,
    /// The same including call-to-call variation.
    pub seen: f64,
    /// Degrees of freedom of this estimate.
    df: f64,
}

impl OpVariation {
    /// For streaming ops and for the others; from all ops if a kind has few, or if both vary alike.
    pub fn of_kinds(
        stream: &[&[Estimate]],
        others: &[&[Estimate]],
        all: &[&[Estimate]],
        few: usize,
    ) -> [OpVariation; 2] {
        let kinds = [stream, others].map(OpVariation::of);
        let [s, o] = kinds.map(|kind| kind.seen);
        let alike = s <= UNLIKE * o && o <= UNLIKE * s;
        if alike || stream.len() < few || others.len() < few {
            return [OpVariation::of(all); 2];
        }
        [0, 1].map(|kind| OpVariation { df: kinds[kind].df.min(ALIKE[kind]), ..kinds[kind] })
    }

    /// From these ops' own changes: by op, then by pair of starts.
    fn of(ops: &[&[Estimate]]) -> OpVariation {
        let starts = ops.iter().map(|each| each.len()).max().unwrap_or(0);
        let mut squares = Vec::new();
        for each in ops.iter().filter(|each| each.len() == starts) {
            // A single value has no spread: it is compared with the others of its kind, whose change was already
            // subtracted.
            let (middle, grow) = match starts {
                1 => (0.0, 1.0),
                n => (mean_of(each, |e| e.value), n as f64 / (n - 1) as f64),
            };
            squares.extend(each.iter().map(|e| (e.value - middle) * (e.value - middle) * grow));
        }
        let squares = sorted(&squares);
        let n = squares.len();
        let most = n - (CHANGED * n as f64).ceil() as usize;
        let share = (most as f64 + 0.5) / (n + 1) as f64;
        let seen = mean(squares.get(..most).unwrap_or(&[])) / mean_square(share);
        let within =
            median(&ops.iter().flat_map(|each| each.iter()).map(|e| e.variance).collect::<Vec<f64>>());
        let free = (ops.len() * starts.saturating_sub(1).max(1)) as f64;
        OpVariation { variance: (seen - within).max(0.0), seen, df: (EFFICIENCY * free).max(1.0) }
    }

    /// An op's change over all pairs of starts in which it was seen; `None` if there is no such pair.
    pub fn settle(&self, each: &[Estimate]) -> Option<Estimate> {
        let n = each.len() as f64;
        let one = each.first()?;
        let value = mean_of(each, |e| e.value);
        let free = n - 1.0;
        // The variation between starts includes that of calls, and measures it better than the calls of one start
        // predict.
        let kind = match free < 1.0 {
            true => one.blurred(self.variance, self.df),
            false => Estimate { value, variance: self.seen, df: self.df },
        };
        let seen = each.iter().map(|e| (e.value - value) * (e.value - value)).sum::<f64>() / free.max(1.0);
        let (variance, df) = if free < 1.0 {
            (kind.variance, kind.df)
        } else if seen > kind.variance * beyond(free) {
            (seen, free)
        } else {
            let df = kind.df + free;
            ((kind.df * kind.variance + free * seen) / df, df)
        };
        Some(Estimate { value, variance: variance / n, df })
    }
}

/// The 95 % point of a mean of squares with this many degrees of freedom and expectation 1; a curve close to the
/// chi-square table (3.84, 3.00, 2.60, 2.37 ... 1.88 at 9).
fn beyond(df: f64) -> f64 {
    1.0 + 2.84 / df.sqrt()
}

/// Mean square of the central share of normally distributed values with standard deviation 1.
fn mean_square(share: f64) -> f64 {
    let normal = Estimate { value: 0.0, variance: 1.0, df: f64::INFINITY };
    let edge = normal.within(share);
    let density = (-edge * edge / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    1.0 - 2.0 * edge * density / share
}

/// A change over all pairs of starts, if there is nothing to compare it with.
pub fn over_starts(each: &[Estimate]) -> Option<Estimate> {
    let one = each.first()?;
    let n = each.len() as f64;
    let value = mean_of(each, |e| e.value);
    let calls = mean_of(each, |e| e.variance);
    let seen = each.iter().map(|e| (e.value - value) * (e.value - value)).sum::<f64>() / (n - 1.0).max(1.0);
    let (variance, df) = if seen > calls { (seen, n - 1.0) } else { (calls, one.df * n) };
    Some(Estimate { value, variance: variance / n, df })
}

fn mean_of(each: &[Estimate], what: impl Fn(&Estimate) -> f64) -> f64 {
    each.iter().map(what).sum::<f64>() / each.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_normal_values_has_the_mean_square_of_the_textbook() {
        // Four fifths lie within 1.2816 standard deviations, half within 0.6745, all but 0.27 % within 3:
        // 1 - 2 c phi(c) / share.
        for (share, want) in [(0.8, 0.4377), (0.5, 0.1426), (0.9973, 0.9733)] {
            assert!((mean_square(share) - want).abs() < 2e-3, "{share}: {}", mean_square(share));
        }
    }

    #[test]
    fn one_op_that_swings_widens_no_other() {
        let at = |value: f64| Estimate { value, variance: 1e-6, df: 8.0 };
        let calm: Vec<[Estimate; 1]> =
            [-0.008, -0.004, -0.002, 0.0, 0.001, 0.003, 0.005, 0.009].map(|v| [at(v)]).to_vec();
        let mut wild = calm.clone();
        wild[7] = [at(0.25)];
        let spread = |ops: &[[Estimate; 1]]| {
            let ops: Vec<&[Estimate]> = ops.iter().map(|each| &each[..]).collect();
            OpVariation::of(&ops).variance.sqrt()
        };
        let (before, after) = (spread(&calm), spread(&wild));
        assert!((0.003..0.009).contains(&before) && after == before, "{before} {after}");
    }

    #[test]
    fn of_several_starts_an_op_that_swings_is_judged_by_itself() {
        let at = |value: f64| Estimate { value, variance: 1e-6, df: 8.0 };
        let kind = OpVariation { variance: 1e-5, seen: 1.1e-5, df: 10.0 };
        let calm = kind.settle(&[at(0.048), at(0.05), at(0.053)]).unwrap();
        assert!(calm.chance(0.01) < 1e-4 && calm.df > 10.0, "{calm:?}");
        let wild = kind.settle(&[at(-0.2), at(0.1), at(0.25)]).unwrap();
        assert!(wild.chance(0.01) > 0.5 && wild.df == 2.0, "{wild:?}");
        let once = kind.settle(&[at(0.05)]).unwrap();
        assert!(once.variance > 1e-5 && once.variance < 1.2e-5, "{once:?}");
        assert!(kind.settle(&[]).is_none());
    }
}
