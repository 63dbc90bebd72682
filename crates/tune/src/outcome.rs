//! What a search answers.

use crate::machine::Candidate;
use crate::sample::{Sample, Stage};

/// A value and its relative standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub value: f64,
    pub scatter: f64,
}

/// All that is known of one candidate.
#[derive(Clone, Debug)]
pub struct Tried {
    pub candidate: Candidate,
    /// Why it was tried first.
    pub stage: Stage,
    /// In the order measured.
    pub samples: Vec<Sample>,
    /// The last reason why it could not be judged; samples from before count all the same.
    pub refused: Option<String>,
    /// Tokens per second: median of the samples. None if there is no sample.
    pub speed: Option<Figure>,
    /// Joules per token: median of the samples that have a meter's figure.
    pub joules: Option<Figure>,
    /// What the goal minimises: E_h in joules (Energy, meter), E_h in relative units (Energy, no meter), E_h times seconds
    /// (Balance), seconds per token (Speed). None if it cannot be judged.
    pub objective: Option<Figure>,
    /// Share of the heuristic in `objective`'s E_h. 1 without a meter. None for Speed.
    pub alpha: Option<f64>,
}

/// What energy was judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The goal is speed.
    Speed,
    /// Joules of a meter, smoothed by the fitted heuristic.
    Meter,
    /// No meter: h by the rule, from capacities or frequencies. A relative guide, not a measurement.
    Heuristic,
    /// Energy was asked for, but there is no meter, and all cores are alike or their capacities are unknown: the fastest
    /// is chosen, with the fewest threads among those as fast.
    SpeedOnly,
}

/// Why a search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing more is worth a test: the choice is clear, or its rivals are as good within what tests can tell.
    Settled,
    /// The number of tests or of rounds was used up with rivals still close.
    Budget,
    /// [`crate::Refused::Stop`], with its reason.
    Stopped(String),
    /// No candidate could be judged.
    Nothing,
}

/// The candidate that could most likely be better than the chosen.
#[derive(Clone, Debug)]
pub struct Rival {
    pub candidate: Candidate,
    /// How much worse its objective is, relative.
    pub behind: f64,
    /// Standard error of that difference.
    pub scatter: f64,
}

impl Rival {
    /// Whether the difference is more than scatter (two standard errors).
    pub fn is_clear(&self) -> bool {
        self.behind > 2.0 * self.scatter
    }
}

/// One call of [`crate::Measure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Index in [`Outcome::tried`].
    pub tried: usize,
    pub stage: Stage,
    /// Whether it gave a sample.
    pub usable: bool,
}

/// The answer of [`crate::search`]. Numbers of candidates are indices in `tried`.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// In the order first tried.
    pub tried: Vec<Tried>,
    /// All tests in their order.
    pub tests: Vec<Test>,
    pub basis: Basis,
    pub fastest: Option<usize>,
    pub chosen: Option<usize>,
    /// Not dominated in speed and joules per token, fastest first. Without joules, the fastest alone.
    pub pareto: Vec<usize>,
    pub ended: Ended,
    /// All stages were gone through: nothing stopped the search.
    pub complete: bool,
    /// Measured speed of the chosen relative to the fastest.
    pub speed_share: Option<f64>,
    /// None if only one candidate could be judged.
    pub rival: Option<Rival>,
}

impl Outcome {
    pub fn chosen(&self) -> Option<&Tried> {
        self.tried.get(self.chosen?)
    }

    pub fn fastest(&self) -> Option<&Tried> {
        self.tried.get(self.fastest?)
    }
}
