//! What to change: one file per rule. A rule states its condition and evidence, what to type, the gain it predicts
//! and what would disprove it. A rule that lacks its evidence says nothing.
//!
//! Gains are promised for waste that is removed and for bytes that are not read. None is promised for more threads
//! or for page faults: predictions of these from one recording were wrong by more than their size.

mod attention;
mod bytes;
pub mod check;
mod contention;
mod copies;
mod cores;
mod experts;
mod fallback;
mod faults;
mod gaps;
mod imbalance;
mod launch;
mod overhead;
mod oversubscribed;
mod pages;
mod quota;
mod recorder;
mod threads;
mod throttled;
mod variant;

use serde::Serialize;

use crate::calls::Phase;
use crate::kernels::DeviceTimes;
use crate::offload::Offload;
use crate::verdict::PhaseVerdict;
use crate::verdict::facts::{PhaseFacts, VerdictFacts};
use crate::verdict::limit::Limit;
use common::order;

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

/// What rules look at.
pub struct RuleInput<'r> {
    pub facts: &'r VerdictFacts<'r>,
    pub phases: &'r [PhaseVerdict],
    pub limit: Option<&'r Limit>,
}

impl<'r> RuleInput<'r> {
    /// The phase of most interest.
    fn main(&self) -> Option<&'r PhaseFacts> {
        self.facts.main()
    }

    /// What devices and the CPU beside them do in the phase of most interest; `None` if no device takes part.
    fn devices(&self) -> Option<DeviceWork<'r>> {
        let main = self.main()?;
        let phase = self.facts.report.phases.iter().find(|p| p.phase == main.phase)?;
        Some(DeviceWork { offload: phase.offload.as_ref()?, calls: phase.calls })
    }

    /// Times between submissions of a graph, of the ring with most of the target's own; `None` if none were recorded.
    fn gaps(&self) -> Option<SubmissionGaps> {
        let rings = &self.facts.report.submissions.as_ref()?.rings;
        let ring = rings.iter().filter(|r| r.own > 0).max_by_key(|r| r.own)?;
        let gaps = ring.gaps?;
        let phases = || self.facts.report.phases.iter();
        let work = phases().filter_map(|p| Some(DeviceWork { offload: p.offload.as_ref()?, calls: p.calls }));
        let crossing = work.map(|w| w.crossing_ns()).fold(0, u64::saturating_add);
        let calls = phases().map(|p| p.in_call_ns).fold(0, u64::saturating_add);
        let all = (gaps.mean_ns * gaps.n as f64 - crossing as f64).max(0.0);
        let share = all / calls.max(1) as f64;
        let regular = gaps.p50_ns as f64 * 4.0 >= gaps.mean_ns;
        Some(SubmissionGaps { share, regular, p50_ns: gaps.p50_ns, max_ns: gaps.max_ns })
    }

    /// The share of a measured ceiling that a phase reached; `None` without one.
    fn reached(&self, phase: Phase) -> Option<f64> {
        let top = self.phases.iter().find(|p| p.phase == phase)?.ceiling.as_ref()?;
        (top.source != "trace").then_some(top.reached)
    }
}

/// The work of one phase, with the number of its calls.
struct DeviceWork<'r> {
    offload: &'r Offload,
    calls: u64,
}

impl<'r> DeviceWork<'r> {
    /// The mean of a sum over the phase, by call and by graph.
    fn a_call(&self, sum: u64) -> f64 {
        sum as f64 / self.calls.max(1) as f64
    }

    fn a_graph(&self, sum: u64) -> f64 {
        sum as f64 / self.offload.graphs.max(1) as f64
    }

    /// The busiest device of which times are known, with its name.
    fn timed(&self) -> Option<(&'r str, &'r DeviceTimes)> {
        let timed = self.offload.backends.iter().filter_map(|b| Some((&*b.backend, b.device.as_ref()?)));
        timed.max_by_key(|(_, device)| device.busy_ns)
    }

    /// Time in which the device has nothing to do because the CPU computes, ns.
    fn crossing_ns(&self) -> u64 {
        let between = self.offload.crossings.iter().filter(|c| c.between > 0);
        between.map(|c| c.around_ns().saturating_add(c.cpu_ns)).fold(0, u64::saturating_add)
    }
}

/// Times between submissions of a graph, without those in which the CPU computes.
struct SubmissionGaps {
    /// Of the time in calls.
    share: f64,
    /// Many that are alike; otherwise a few long ones make up the sum.
    regular: bool,
    p50_ns: u64,
    max_ns: u64,
}

/// Whether the evidence is there, and what follows from it.
type Rule = fn(&RuleInput<'_>) -> Option<Advice>;

/// The first ones are about threads that have no CPU: nothing else can be judged before that is mended.
const RULES: [Rule; 19] = [
    oversubscribed::rule,
    quota::rule,
    contention::rule,
    throttled::rule,
    cores::rule,
    faults::rule,
    imbalance::rule,
    fallback::rule,
    copies::rule,
    launch::rule,
    gaps::rule,
    variant::rule,
    recorder::rule,
    pages::rule,
    attention::rule,
    overhead::rule,
    experts::rule,
    threads::rule,
    bytes::rule,
];

/// Rules without a CPU for each thread: they come first, whatever gain others predict.
const FIRST: [&str; 2] = ["oversubscribed", "cpu-quota"];

/// Advice for a run: threads without CPUs first, then by predicted gain, then what promises none, then trade-offs.
pub fn advice(facts: &VerdictFacts<'_>, phases: &[PhaseVerdict], limit: Option<&Limit>) -> Vec<Advice> {
    let input = RuleInput { facts, phases, limit };
    // Where the time goes must be known before anything is said about it.
    if facts.main().is_none_or(|p| p.bar.is_none()) {
        return Vec::new();
    }
    let mut all: Vec<Advice> = RULES.iter().filter_map(|rule| rule(&input)).collect();
    consistent(&mut all);
    let rank = |a: &Advice| {
        let group = u64::from(!FIRST.contains(&a.rule)) + u64::from(a.trade_off.is_some());
        let middle = a.gain.map_or(1.0, |g| (g.least * g.most).sqrt());
        (group, !order::fraction(middle))
    };
    order::by_key(&mut all, rank);
    all
}

/// Rules whose evidence another rule explains.
fn consistent(all: &mut Vec<Advice>) {
    let has = |rule: &str| all.iter().any(|a| a.rule == rule);
    let crowded = FIRST.iter().any(|rule| has(rule));
    let waiting = crowded || has("cpu-contention");
    let faulting = has("major-faults");
    // Threads wait unevenly, and reach no ceiling, while another one has no CPU or reads from storage.
    let explained: &[&str] = match (crowded, waiting, faulting) {
        (true, _, _) => {
            &["cpu-contention", "imbalance", "huge-pages", "small-operators", "more-threads", "fewer-bytes"]
        }
        (_, true, _) | (_, _, true) => &["imbalance", "huge-pages", "small-operators", "more-threads"],
        _ => &[],
    };
    all.retain(|a| !explained.contains(&a.rule));
}

/// A gain, if it is worth the work: at least 5 % even in the better case.
fn gain(phase: Phase, now_ns: f64, then_ns: [f64; 2]) -> Option<Gain> {
    let [fastest, slowest] = then_ns;
    let gain = Gain { phase, least: (now_ns / slowest).max(1.0), most: now_ns / fastest };
    (gain.most.is_finite() && gain.most >= 1.05).then_some(gain)
}

/// Whole percent.
fn pct(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Measured duration over the replay's: what replays of runs whose interferer was then removed left out or added
/// (trials on two engines, 7 runs).
const REPLAY_ERROR: [f64; 2] = [0.9, 1.4];

/// The range of a call's duration without waits, ns.
fn replayed(p: &PhaseFacts) -> Option<[f64; 2]> {
    let ns = p.replay_call_ns()?;
    Some(REPLAY_ERROR.map(|error| (ns * error).min(p.call_ns())))
}

#[cfg(test)]
mod tests;
