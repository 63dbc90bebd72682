//! The verdict's data: what `--json` has as `verdict`.

use serde::Serialize;

use super::bar::TimeBar;
use super::storage::StorageReads;
use crate::questions::advice::data::Advice;
use crate::questions::report::data::FirstCall;
use crate::recorded::calls::{Latency, Phase};

/// The verdict on a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunVerdict {
    pub model: String,
    /// Type of most of the weights; empty if not recorded.
    pub quantisation: String,
    /// Threads of the widest CPU graph; 0 if no graph was recorded.
    pub threads: u32,
    /// Backends that computed, the CPU's first.
    pub backends: Vec<String>,
    /// Decode first.
    pub phases: Vec<PhaseVerdict>,
    /// What limits the first of the phases; null if that is not known.
    pub limit: Option<Limit>,
    /// Largest predicted gain first; none if nothing is to be gained, or if the evidence is missing.
    pub advice: Vec<Advice>,
    /// Whether the first piece of advice removes the limit.
    pub first_removes_limit: bool,
    /// Why it does not, or why there is none, and what would have to change; null if what limits the run is not known.
    pub no_advice: Option<String>,
    /// What the verdict lacks, and how to record it.
    pub missing: Vec<String>,
}

/// A phase in figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseVerdict {
    pub phase: Phase,
    /// Of embeddings and graphs: calls over the time in calls; else omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs_per_s: Option<f64>,
    /// In calls; and with the time between them, from start to start.
    pub tokens_per_s: Option<f64>,
    pub tokens_per_s_wall: Option<f64>,
    /// Share of the time from start to start that is between calls; null if it is not known.
    pub between_calls: Option<f64>,
    /// Omitted if the first call was no slower than the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_call: Option<FirstCall>,
    pub latency: Option<Latency>,
    /// With the run's threads.
    pub ceiling: Option<SpeedCeiling>,
    /// With more threads than the run's, if the machine then allows more.
    pub machine: Option<SpeedCeiling>,
    /// Of the time in calls; and with the time between them, as far as it is known.
    pub bar: Option<TimeBar>,
    pub bar_wall: Option<TimeBar>,
    /// What its calls read from storage; omitted if nothing was, or it was not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageReads>,
    /// Its calls decode for several sequences at a time: latency and bars are of a call, not of a token.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub batched: bool,
}

/// Share of the time between calls from which a latency is said to be of a `call` instead of a `token`.
const APART: f64 = 0.05;

impl PhaseVerdict {
    /// What the bar is of.
    pub fn unit(&self) -> &'static str {
        match (self.runs_per_s, self.phase, self.batched) {
            (Some(_), ..) => "run",
            (None, Phase::Decode, false) => "token",
            _ => "call",
        }
    }

    /// What the latency is of. Where much of the time is between calls, a call is not what a user gets as a token.
    pub fn latency_unit(&self) -> &'static str {
        let apart = self.between_calls.is_some_and(|share| share >= APART);
        if apart && self.runs_per_s.is_none() { "call" } else { self.unit() }
    }
}

/// The ceiling of a phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeedCeiling {
    /// Null if the tokens of a call are not known.
    pub tokens_per_s: Option<f64>,
    /// Threads that the peak was measured with; null: it is of any number.
    pub threads: Option<u32>,
    /// Share of it that was reached, 0 to 1.
    pub reached: f64,
    /// `memory` or `compute`.
    pub by: &'static str,
    /// Of the peaks: `given`, `measured` on the machine, or `trace` (the best rate in the trace itself).
    pub source: &'static str,
    /// Per call: weights read, keys and values, bytes; products, operations.
    pub weight_bytes: f64,
    pub cache_bytes: f64,
    pub operations: f64,
    /// The peak that decides: 10^9 bytes or operations per second.
    pub peak: f64,
}

/// The kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    Memory,
    Compute,
    /// Other programs had the CPUs.
    CpuContention,
    /// The engine's own threads displaced each other.
    Oversubscription,
    /// The CPUs were idle while threads were runnable: a quota.
    Throttling,
    Barriers,
    PageFaults,
    Device,
    /// Time in calls outside ops.
    Gaps,
    /// Computing, at no known limit.
    Computing,
    /// What the program does between calls.
    BetweenCalls,
    /// The recording itself.
    Recorder,
}

/// What limits a phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    pub kind: LimitKind,
    /// A sentence without a full stop.
    pub text: String,
}
