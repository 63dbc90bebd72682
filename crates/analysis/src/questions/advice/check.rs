//! Holds a later recording against what advice promised.

use serde::Serialize;

use super::data::{Advice, Gain};
use crate::questions::report::Report;
use crate::recorded::calls::Phase;

/// Promise and measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    pub rule: &'static str,
    pub title: String,
    pub phase: Phase,
    /// Tokens per second before and after.
    pub tokens_per_s: [f64; 2],
    /// Null: nothing was promised.
    pub promised: Option<Gain>,
    /// Speed after the change over the speed before.
    pub measured: f64,
    pub outcome: Outcome,
    /// Whether the rule still finds its evidence in the new recording.
    pub still_there: bool,
    /// Differences between the recordings that the advice does not explain: they may be the cause of the gain.
    pub differences: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Kept,
    Above,
    Below,
    /// Nothing was promised.
    Open,
}

/// Why the promise cannot be checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCheck {
    #[error("the first recording has no advice: there is nothing to check")]
    NoAdvice,
    #[error("the first recording has no advice by the rule '{rule}'; it has: {has}")]
    NoRule { rule: String, has: String },
    #[error("the {which} recording has no speed of {phase}: record at least one whole call of it")]
    NoSpeed { which: &'static str, phase: &'static str },
}

/// Compares the promise of a rule, by default of the first advice.
///
/// # Errors
/// There is no such advice, or a recording has no speed.
pub fn check(old: &Report, new: &Report, rule: Option<&str>) -> Result<Check, NoCheck> {
    let all = old.verdict.as_ref().map_or(&[][..], |v| v.advice.as_slice());
    let Some(first) = all.first() else { return Err(NoCheck::NoAdvice) };
    let advice = match rule {
        None => first,
        Some(rule) => all.iter().find(|a| a.rule == rule).ok_or_else(|| {
            let has: Vec<&str> = all.iter().map(|a| a.rule).collect();
            NoCheck::NoRule { rule: rule.into(), has: has.join(", ") }
        })?,
    };
    let main = old.verdict.as_ref().and_then(|v| v.phases.first()).map_or(Phase::Decode, |p| p.phase);
    let phase = advice.gain.map_or(main, |g| g.phase);
    let speed = |r: &Report, which| {
        let of = r.phases.iter().find(|p| p.phase == phase).and_then(|p| p.tokens_per_s);
        of.filter(|s| *s > 0.0).ok_or(NoCheck::NoSpeed { which, phase: phase.name() })
    };
    let tokens_per_s = [speed(old, "first")?, speed(new, "second")?];
    let [before, after] = tokens_per_s;
    let still = new.verdict.as_ref().is_some_and(|v| v.advice.iter().any(|a| a.rule == advice.rule));
    let measured = after / before;
    Ok(Check {
        rule: advice.rule,
        title: advice.title.clone(),
        phase,
        tokens_per_s,
        promised: advice.gain,
        measured,
        outcome: outcome(advice, measured),
        still_there: still,
        differences: differences(old, new),
    })
}

fn outcome(advice: &Advice, measured: f64) -> Outcome {
    match advice.gain {
        None => Outcome::Open,
        Some(g) if measured < g.least => Outcome::Below,
        Some(g) if measured > g.most => Outcome::Above,
        Some(_) => Outcome::Kept,
    }
}

pub(crate) fn differences(old: &Report, new: &Report) -> Vec<String> {
    let mut out = Vec::new();
    let mut differ = |what: &str, a: &str, b: &str| {
        if a != b {
            out.push(format!("{what}: {a} and {b}"));
        }
    };
    differ("machine", &old.run.host, &new.run.host);
    differ("processor", &old.run.cpu_model, &new.run.cpu_model);
    let version = |r: &Report| r.run.engines.iter().map(|e| e.version.clone()).collect::<Vec<_>>().join(", ");
    differ("engine", &version(old), &version(new));
    let layers = |r: &Report| r.model.layers.map_or("unknown".into(), |n| n.to_string());
    differ("layers of the model", &layers(old), &layers(new));
    let prompt = |r: &Report| {
        let tokens = r.phases.iter().find(|p| p.phase == Phase::Prefill).and_then(|p| p.tokens);
        tokens.map_or("none".into(), |n| n.to_string())
    };
    differ("prompt tokens", &prompt(old), &prompt(new));
    out
}

impl Check {
    /// In a few lines.
    pub fn text(&self) -> String {
        let range = match self.promised {
            Some(g) => format!("promised {:.2}x to {:.2}x", g.least, g.most),
            None => "no gain was promised".into(),
        };
        let outcome = match self.outcome {
            Outcome::Kept => "kept",
            Outcome::Above => "more than promised",
            Outcome::Below => "NOT kept",
            Outcome::Open => "measured only",
        };
        let [before, after] = self.tokens_per_s;
        let mut out = format!(
            "{}: {outcome}\n  {range}, measured {:.2}x ({}: {before:.2} to {after:.2} tok/s)",
            self.title,
            self.measured,
            self.phase.name()
        );
        if self.still_there {
            out += &format!("\n  the rule {} still finds its evidence in the new recording", self.rule);
        }
        for difference in &self.differences {
            out += &format!("\n  the recordings differ in more than the advice: {difference}");
        }
        out
    }
}
