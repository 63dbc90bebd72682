//! What is looked for, and how.

use crate::machine::Candidate;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Most tokens per second; within scatter, the fewest threads.
    Speed,
    /// Least E_h per token among those at least (1 - slack) times as fast as the fastest.
    Energy,
    /// Least E_h times seconds per token (energy-delay product): one percent of speed is worth one percent of energy, no
    /// matter how fast the fastest is. The usual figure of merit where neither may be given up; it needs no limit.
    Balance,
}

/// How to search.
#[derive(Clone, Debug)]
pub struct Options {
    pub goal: Goal,
    /// How much slower than the fastest the chosen may be, relative. AECS: 0.08.
    pub slack: f64,
    /// Share of the heuristic h t in E_h. None: for each candidate, by how sure each of the two is (inverse variances; the
    /// heuristic's from how well it fits this machine's samples). Without a meter it is 1 in any case.
    pub alpha: Option<f64>,
    /// All sets once, and nothing else: `max_tests` does not count, and no law smooths speeds (nor energy: alpha 0 if None).
    pub exhaustive: bool,
    /// Most rounds of the race.
    pub race_rounds: u32,
    /// Most tests in all, refused ones included.
    pub max_tests: u32,
    /// Try the best thread counts not pinned as well.
    pub free: bool,
    /// Candidates of the caller, tried first: what the engine does by default.
    pub also: Vec<Candidate>,
    /// A set is too slow if it is so by this many standard errors. More: the best is more often chosen although its speed is
    /// close to the slowest allowed; less: the chosen is more rarely too slow.
    pub doubt: f64,
    /// Relative scatter of one sample's joules that is assumed until repeats tell. Batteries: 0.05 (published).
    pub energy_scatter: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            goal: Goal::Speed,
            slack: 0.08,
            alpha: None,
            exhaustive: false,
            race_rounds: 12,
            max_tests: 22,
            free: true,
            also: Vec::new(),
            doubt: 1.0,
            energy_scatter: 0.05,
        }
    }
}
