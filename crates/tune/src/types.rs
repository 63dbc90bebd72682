//! What is tried, measured and wanted.

/// CPUs and threads to try. There are never more threads than CPUs: threads that wait for one another by spinning make
/// an engine 40 to 50 times slower on too few CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate {
    /// Sorted.
    pub cpus: Vec<u32>,
    pub threads: u32,
    /// Not pinned: the kernel places the threads among these CPUs.
    pub free: bool,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub tokens_per_s: f64,
    /// Standard error of the speed, relative.
    pub scatter: f64,
    pub joules_per_token: Option<f64>,
}

impl Sample {
    /// Whether all of it can be a measurement.
    pub fn is_usable(&self) -> bool {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        positive(self.tokens_per_s)
            && self.scatter.is_finite()
            && self.scatter >= 0.0
            && self.joules_per_token.is_none_or(positive)
    }
}

/// What a choice is to be best at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Goal {
    /// Most tokens/s.
    #[default]
    Speed,
    /// Least energy a token among those that are fast enough.
    Energy,
    /// Least product of energy and time a token: a tenth of the speed is given up for a tenth of the energy.
    Balance,
}

impl Goal {
    pub fn name(self) -> &'static str {
        match self {
            Goal::Speed => "speed",
            Goal::Energy => "energy",
            Goal::Balance => "balance",
        }
    }
}

/// How to search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    pub goal: Goal,
    /// How much slower than the fastest a choice for energy may be, 0 to 1. The paper's is 8 %.
    pub slack: f64,
    /// Weight of the heuristic in the objective, 0 to 1; None: `objective::ALPHA` with a meter, 1 without.
    pub alpha: Option<f64>,
    /// Try every set.
    pub exhaustive: bool,
    /// Further measurements of the best sets, in turn.
    pub race_rounds: u32,
    /// Also try the choice for speed without pinning its threads.
    pub free: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { goal: Goal::Speed, slack: 0.08, alpha: None, exhaustive: false, race_rounds: 3, free: true }
    }
}
