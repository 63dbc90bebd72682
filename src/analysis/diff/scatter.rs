//! What a start of a program alone does to ops, and what is left of a change then. Uses `stats`.
//!
//! Every start places memory anew, which makes single ops faster or slower for as long as it runs; no number of calls of
//! one start shows it. There are two ways to know how much:
//! - With one start a side, from how unlike the other ops changed: all of them, or those of the kind where kinds are
//!   unlike. Then how much one of those that do not stream swings says little of the next: large changes are no rarity.
//! - With several, an op's change is seen once by each pair of starts, and how unlike these are is its own scatter. Few
//!   starts tell it badly, so that it is weighed with that of the op's kind, each by its degrees of freedom (Smyth,
//!   Statistical Applications in Genetics and Molecular Biology 3 (2004) 3). An op that swings far more than its kind is
//!   judged by itself alone (as in Phipson and others, Annals of Applied Statistics 10 (2016) 946).

use crate::analysis::stats::{Estimate, mean, median, sorted};

/// Share of the changes seen that may be more than scatter.
const CHANGED: f64 = 0.2;
/// So much less than by all of the squares the variance is known with by those that are left.
const EFFICIENCY: f64 = 0.6;
/// Degrees of freedom at most where kinds are unlike: so well an op's scatter is known from that of its kind. Ops that
/// stream, other ops.
const ALIKE: [f64; 2] = [20.0, 2.0];
/// Kinds are alike up to this ratio of the mean squares.
const UNLIKE: f64 = 8.0;

/// How far ops of a kind lie from what they have in common, from one pair of starts to another.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// Of a logarithm of a change, beyond what calls let expect.
    pub variance: f64,
    /// The same with what calls let expect.
    pub seen: f64,
    /// Degrees of freedom that it is known with.
    df: f64,
}

impl Spread {
    /// Of ops that stream and of the others; of all of them where a kind has few, or where both swing alike.
    pub fn of_kinds(
        stream: &[&[Estimate]],
        others: &[&[Estimate]],
        all: &[&[Estimate]],
        few: usize,
    ) -> [Spread; 2] {
        let kinds = [stream, others].map(Spread::of);
        let [s, o] = kinds.map(|kind| kind.seen);
        let alike = s <= UNLIKE * o && o <= UNLIKE * s;
        if alike || stream.len() < few || others.len() < few {
            return [Spread::of(all); 2];
        }
        [0, 1].map(|kind| Spread { df: kinds[kind].df.min(ALIKE[kind]), ..kinds[kind] })
    }

    /// By these ops' own changes: by op, then by pair of starts.
    fn of(ops: &[&[Estimate]]) -> Spread {
        let starts = ops.iter().map(|each| each.len()).max().unwrap_or(0);
        let mut squares = Vec::new();
        for each in ops.iter().filter(|each| each.len() == starts) {
            // One says nothing of itself: it is held against the others of its kind, whose change was taken from it.
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
        Spread { variance: (seen - within).max(0.0), seen, df: (EFFICIENCY * free).max(1.0) }
    }

    /// An op's change by all pairs of starts in which it was seen; `None` where it was in none.
    pub fn settle(&self, each: &[Estimate]) -> Option<Estimate> {
        let n = each.len() as f64;
        let one = each.first()?;
        let value = mean_of(each, |e| e.value);
        let free = n - 1.0;
        // Between starts what calls scatter is seen as well, and better than one start's calls let expect.
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

/// The 95 % point of a mean of squares of so many degrees of freedom, whose expectation is 1; a curve near the table of
/// chi-square's (3.84, 3.00, 2.60, 2.37 ... 1.88 at 9).
fn beyond(df: f64) -> f64 {
    1.0 + 2.84 / df.sqrt()
}

/// Mean square of the share of normally distributed values of deviation 1 that lies nearest to their middle.
fn mean_square(share: f64) -> f64 {
    let normal = Estimate { value: 0.0, variance: 1.0, df: f64::INFINITY };
    let edge = normal.within(share);
    let density = (-edge * edge / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    1.0 - 2.0 * edge * density / share
}

/// A change as all pairs of starts together show it, where there is nothing to hold it against.
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
        // Within 1.2816 deviations lie four fifths, within 0.6745 half, within 3 all but 0.27 %: 1 - 2 c phi(c) / share.
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
            Spread::of(&ops).variance.sqrt()
        };
        let (before, after) = (spread(&calm), spread(&wild));
        assert!((0.003..0.009).contains(&before) && after == before, "{before} {after}");
    }

    #[test]
    fn of_several_starts_an_op_that_swings_is_judged_by_itself() {
        let at = |value: f64| Estimate { value, variance: 1e-6, df: 8.0 };
        let kind = Spread { variance: 1e-5, seen: 1.1e-5, df: 10.0 };
        let calm = kind.settle(&[at(0.048), at(0.05), at(0.053)]).unwrap();
        assert!(calm.chance(0.01) < 1e-4 && calm.df > 10.0, "{calm:?}");
        let wild = kind.settle(&[at(-0.2), at(0.1), at(0.25)]).unwrap();
        assert!(wild.chance(0.01) > 0.5 && wild.df == 2.0, "{wild:?}");
        let once = kind.settle(&[at(0.05)]).unwrap();
        assert!(once.variance > 1e-5 && once.variance < 1.2e-5, "{once:?}");
        assert!(kind.settle(&[]).is_none());
    }
}
