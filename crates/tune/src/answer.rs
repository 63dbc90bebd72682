//! The answer of `profinfer tune`, as printed and as JSON. The field names are those of the JSON output and do not
//! change. Speeds are in tok/s, energy in joules a token, shares from 0 to 1.

use serde::Serialize;

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    pub schema: u32,
    /// Command that was tuned, without what looks like a secret.
    pub command: String,
    pub model: Option<String>,
    /// Build id of the engine's base library, in hexadecimal.
    pub engine: Option<String>,
    pub cpu_model: String,
    pub kernel: String,
    pub clusters: Vec<ClusterRow>,
    /// `speed`, `energy` or `balance`.
    pub goal: &'static str,
    /// How much slower than the fastest a choice for energy may be.
    pub slack: f64,
    /// Where joules come from; null if there is no source.
    pub energy: Option<EnergySource>,
    /// Why there are no joules.
    pub no_energy: Option<String>,
    pub works: Vec<WorkAnswer>,
    /// What to type, for speed and for energy.
    pub lines: Vec<Line>,
    pub notes: Vec<String>,
    /// Runs that were made by this call, and those kept from earlier ones.
    pub runs: u32,
    pub kept_runs: u32,
    pub seconds: f64,
}

/// CPUs that are alike.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterRow {
    pub cpus: String,
    /// Further hardware threads of the same cores; empty if there are none.
    pub siblings: String,
    pub capacity: Option<u64>,
    pub max_khz: Option<u64>,
}

/// A source of joules.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EnergySource {
    pub name: String,
    /// Computed from the kernel's Energy Model, not measured.
    pub model: bool,
}

/// What was found for decoding, or for prefill.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkAnswer {
    /// `decode` or `prefill`.
    pub work: &'static str,
    /// In the order in which they were first tried.
    pub tried: Vec<TriedRow>,
    /// Index in `tried`; null if nothing could be measured.
    pub fastest: Option<usize>,
    /// The choice for the goal.
    pub chosen: Option<usize>,
    /// The command as it was given.
    pub default: Option<Measured>,
    /// The search was not cut short.
    pub complete: bool,
    /// Why it ended, and how sure the choice is.
    pub ended: String,
    pub sure: String,
    pub settings: Vec<SettingRow>,
}

/// One choice of CPUs and threads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TriedRow {
    pub cpus: String,
    pub threads: u32,
    /// The threads were not pinned: the kernel placed them among these CPUs.
    pub free: bool,
    /// Null if it could not be measured; `refused` says why.
    pub measured: Option<Measured>,
    pub refused: Option<String>,
    /// No other choice is both faster and takes less energy.
    pub pareto: bool,
}

/// Medians over the runs of a choice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    pub tokens_per_s: f64,
    /// Relative; null if there was only one call.
    pub scatter: Option<f64>,
    pub joules_per_token: Option<f64>,
    /// Charge of a battery a token, in the last run.
    pub uah_per_token: Option<f64>,
    pub runs: u32,
    /// Hottest thermal zone after the last run, degrees Celsius.
    pub celsius: Option<f64>,
    /// CPUs on which its threads were seen; empty if nothing was seen.
    pub seen_on: String,
}

/// A setting beside threads and CPUs, tried in turn with the same choice without it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SettingRow {
    pub setting: String,
    /// Speed with it over speed without; null if it could not be measured.
    pub gain: Option<f64>,
    /// Smallest gain that stands out from the scatter.
    pub least: f64,
    pub taken: bool,
    /// Why it is not taken although it is faster, or could not be measured.
    pub why: Option<String>,
}

/// A command to copy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// `speed`, `energy` or `balance`.
    pub goal: &'static str,
    /// `decode`, `prefill`, or `both`.
    pub work: &'static str,
    pub command: String,
    /// Decode's, for `both`.
    pub tokens_per_s: f64,
    /// Prefill's, for `both`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_tokens_per_s: Option<f64>,
    pub joules_per_token: Option<f64>,
    /// Speed over that of the command as it was given; null if that was not measured.
    pub over_default: Option<f64>,
    /// That differs from 1 by more than the scatter.
    pub differs: bool,
}
