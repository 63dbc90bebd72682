//! Advice, as in `--json`.

use serde::Serialize;

use crate::recorded::calls::Phase;

/// A piece of advice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// Name of the rule; does not change.
    pub rule: &'static str,
    /// What to do, in one line.
    pub title: String,
    /// Commands or flags to type.
    pub actions: Vec<String>,
    /// Null: nothing is promised.
    pub gain: Option<Gain>,
    pub confidence: Confidence,
    pub evidence: String,
    /// An observation that would show the advice to be wrong.
    pub disproof: String,
    /// What it costs other than time; null: nothing.
    pub trade_off: Option<&'static str>,
}

/// A predicted change of speed, as a factor: 1.5 is 50 % more tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gain {
    pub phase: Phase,
    pub least: f64,
    pub most: f64,
}

/// How well the evidence supports the cause, and how good predictions of the kind were in trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    Low,
    Medium,
    High,
}
