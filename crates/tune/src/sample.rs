//! One measurement of a candidate, and who makes it.

use crate::machine::Candidate;

/// Figures of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Decoded (or, in a search for prefill, evaluated) tokens per second. Above 0.
    pub tokens_per_s: f64,
    /// How far another run's speed is expected from this one, relative (standard deviation), as far as this run can tell
    /// from the times of its tokens. 0 if it cannot tell: then only repeats show scatter.
    pub scatter: f64,
    /// None without a meter. Above 0.
    pub joules_per_token: Option<f64>,
}

impl Sample {
    /// Why a sample cannot be used.
    pub(crate) fn fault(&self) -> Option<String> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !positive(self.tokens_per_s) {
            return Some(format!("a speed of {} tok/s is not usable", self.tokens_per_s));
        }
        if !(self.scatter.is_finite() && self.scatter >= 0.0) {
            return Some(format!("a relative scatter of {} is not usable", self.scatter));
        }
        let joules = self.joules_per_token.filter(|j| !positive(*j))?;
        Some(format!("{joules} joules per token are not usable"))
    }
}

/// Why a candidate is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Asked for by the caller ([`crate::Options::also`]).
    Given,
    /// One core more, in search of the fastest set.
    Walk,
    /// Proposed by the fitted laws.
    Tree,
    /// Again, in turn with those that are close.
    Race,
    /// Same number of threads, not pinned.
    Free,
    /// All sets, once each.
    Exhaustive,
}

/// Why there is no sample. The reason is one line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// This candidate cannot be judged: go on with others.
    Candidate(String),
    /// End the search: time is up, interrupted, foreign load.
    Stop(String),
}

/// Runs the engine with a candidate.
pub trait Measure {
    fn measure(&mut self, candidate: &Candidate, why: Stage) -> Result<Sample, Refused>;
}
