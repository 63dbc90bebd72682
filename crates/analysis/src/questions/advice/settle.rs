//! The limit and the advice are decided together: the limit is what the first advice removes, or nothing removes it.

use super::data::Advice;
use crate::questions::verdict::data::{Limit, LimitKind};

use LimitKind::{
    Barriers, BetweenCalls, Compute, Computing, CpuContention, Device, Gaps, Memory, Oversubscription,
    PageFaults, Recorder, Throttling,
};

/// The limits that the advice of a rule removes, the one that it is about first. Rules about prompts and requests alone
/// remove none of decoding.
const REMOVES: [(&str, &[LimitKind]); 29] = [
    ("changing-callers", &[Oversubscription, CpuContention, Barriers, Gaps, Computing]),
    ("oversubscribed", &[Oversubscription, CpuContention, Barriers]),
    ("cpu-quota", &[Throttling]),
    ("cpu-contention", &[CpuContention]),
    ("throttled", &[Computing, Compute]),
    ("slow-cores", &[Barriers, Computing, Compute, Memory]),
    ("major-faults", &[PageFaults]),
    ("cold-start", &[PageFaults]),
    ("read-ahead", &[PageFaults]),
    ("experts", &[PageFaults]),
    ("imbalance", &[Barriers]),
    ("idle-threads", &[Oversubscription, CpuContention, Computing]),
    ("sleeping-barriers", &[Barriers, Computing]),
    ("adapter", &[Computing, Memory, Compute]),
    ("attention-decode", &[Computing]),
    ("other-slots", &[Computing, Memory]),
    ("plain-weights", &[Compute]),
    ("small-operators", &[Barriers, Gaps, Computing]),
    ("device-fallback", &[Device, Gaps, Computing, Barriers]),
    ("device-copies", &[Device, Gaps]),
    ("device-launch-bound", &[Device, Gaps]),
    ("device-gaps", &[Device, Gaps]),
    ("between-calls", &[BetweenCalls]),
    ("cpu-variant", &[Computing, Compute, Memory, Barriers]),
    ("recorder-cost", &[Recorder]),
    ("more-threads", &[Computing, Compute, Memory]),
    ("fewer-bytes", &[Memory, Computing]),
    ("draft-length", &[Memory, Computing, Compute]),
    ("one-slot", &[Memory, Computing, Compute]),
];

fn of(rule: &str) -> &'static [LimitKind] {
    REMOVES.iter().find(|(name, _)| *name == rule).map_or(&[], |(_, kinds)| kinds)
}

/// Whether the advice of a rule removes this limit.
pub fn removes(rule: &str, limit: LimitKind) -> bool {
    of(rule).contains(&limit)
}

/// The limit beside this advice. Where the first one removes another limit and promises a gain, or is of the recording itself,
/// that is what limits the run; where it promises none, advice that removes the limit comes first.
pub fn settle(limit: Limit, advice: &mut [Advice]) -> Limit {
    // What costs something other than time stays at the end.
    let removing = |a: &Advice| removes(a.rule, limit.kind) && a.trade_off.is_none();
    let first = advice.first().is_some_and(|a| removes(a.rule, limit.kind)).then_some(0);
    let Some(at) = first.or_else(|| advice.iter().position(removing)) else {
        return named(limit, advice.first());
    };
    let before = advice.get(..at).unwrap_or_default();
    if let Some(larger) = before.iter().find(|a| decides(a) && !of(a.rule).is_empty()) {
        return named(limit, Some(larger));
    }
    if let Some(upto) = advice.get_mut(..=at) {
        upto.rotate_right(1);
    }
    limit
}

/// Advice with a gain; or what the recording costs, which is none of the run as its user has it.
fn decides(a: &Advice) -> bool {
    a.gain.is_some() || a.rule == "recorder-cost"
}

/// What a piece of advice that decides removes; else the limit as it was.
fn named(limit: Limit, first: Option<&Advice>) -> Limit {
    let of = first.filter(|a| decides(a)).and_then(|a| Some((of(a.rule).first()?, a)));
    of.map_or(limit, |(kind, a)| Limit { kind: *kind, text: a.evidence.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::questions::advice::data::{Confidence, Gain};
    use crate::recorded::calls::Phase;

    fn advice(rule: &'static str, gain: bool) -> Advice {
        Advice {
            rule,
            title: String::new(),
            actions: Vec::new(),
            gain: gain.then_some(Gain { phase: Phase::Decode, least: 1.1, most: 1.3 }),
            confidence: Confidence::Medium,
            evidence: format!("evidence of {rule}"),
            disproof: String::new(),
            trade_off: None,
        }
    }

    fn settled(kind: LimitKind, rules: &[(&'static str, bool)]) -> (LimitKind, String, Vec<&'static str>) {
        let mut all: Vec<Advice> = rules.iter().map(|(rule, gain)| advice(rule, *gain)).collect();
        let found = settle(Limit { kind, text: "as measured".into() }, &mut all);
        (found.kind, found.text, all.iter().map(|a| a.rule).collect())
    }

    #[test]
    fn the_limit_is_what_the_first_advice_removes() {
        let same = settled(CpuContention, &[("cpu-contention", true), ("fewer-bytes", true)]);
        assert_eq!(same, (CpuContention, "as measured".into(), vec!["cpu-contention", "fewer-bytes"]));
        // The larger gain is of something else: that limits the run.
        let other = settled(Memory, &[("recorder-cost", false), ("fewer-bytes", true)]);
        assert_eq!((other.0, &*other.1), (Recorder, "evidence of recorder-cost"));
        let other = settled(Computing, &[("cpu-contention", true)]);
        assert_eq!((other.0, &*other.1), (CpuContention, "evidence of cpu-contention"));
        // Nothing is promised: what removes the limit comes first.
        let moved =
            settled(Memory, &[("between-calls", false), ("prompt-again", false), ("fewer-bytes", true)]);
        assert_eq!(
            moved,
            (Memory, "as measured".into(), vec!["fewer-bytes", "between-calls", "prompt-again"])
        );
        // Nothing removes it.
        let none = settled(Memory, &[("between-calls", false)]);
        assert_eq!(none, (Memory, "as measured".into(), vec!["between-calls"]));
        assert_eq!(settled(Memory, &[]).0, Memory);
    }
}
