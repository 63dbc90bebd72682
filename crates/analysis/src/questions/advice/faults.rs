//! Pages of the model are read from storage while it computes.

use super::rule::{Advice, Confidence, RuleInput, gain, pct};
use crate::questions::verdict::facts::PhaseFacts;
use crate::recorded::calls::Phase;
use crate::sums::attribution::pass::MAJOR_FAULTS;

/// Off-CPU in page faults and I/O, from this share of the time on.
const SHARE: f64 = 0.05;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let off = p.bar?.faults.filter(|share| *share >= SHARE);
    let counted = major_faults(p);
    let per_call = counted.map(|n| n as f64 / p.graphs.max(1) as f64 * p.graphs_a_call);
    let many = per_call.filter(|n| *n >= 1.0);
    if off.is_none() && many.is_none() || first_alone(r, p).is_some() {
        return None;
    }
    let mut evidence: Vec<String> = off
        .map(|s| format!("threads were off-CPU in page faults and I/O {} of the time", pct(s)))
        .into_iter()
        .collect();
    evidence.extend(many.map(|n| format!("{n:.1} major page faults a call")));
    evidence.extend(p.reads.as_ref().map(|reads| {
        let (bytes, again) = (reads.bytes_a_call / 1e6, pct(reads.again));
        format!("a call read {bytes:.1} MB from storage, {again} of it had been read before")
    }));
    Some(Advice {
        rule: "major-faults",
        title: "keep the model in memory: its pages are read from storage while it computes".into(),
        actions: keep(r, "the model"),
        gain: None,
        confidence: if off.is_some() { Confidence::High } else { Confidence::Medium },
        evidence: evidence.join("; "),
        disproof: "with the model locked, major page faults remain".into(),
        trade_off: None,
    })
}

/// What the kernel reads ahead by default, KiB (include/linux/pagemap.h, VM_READAHEAD_PAGES: 128 KiB).
const DEFAULT_KB: u64 = 128;
/// From this many times what a call needs on, what is read ahead is worth a line.
const AHEAD: f64 = 1.5;

/// The kernel reads more than a call needs, since the disk's read-ahead is large; what it pushes out of memory is read again.
pub fn read_ahead(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let share = p.bar?.faults.filter(|share| *share >= SHARE)?;
    let (reads, needed) = (p.reads.as_ref()?, p.weights.as_ref()?.bytes);
    let (setting, kb) = reads.read_ahead.as_ref().filter(|(_, kb)| *kb > DEFAULT_KB)?;
    let times = reads.bytes_a_call / needed.max(1.0);
    if times < AHEAD || first_alone(r, p).is_some() {
        return None;
    }
    let now = p.call_ns();
    // At least half of the waiting for what is not needed; at most all work with it.
    let gain = gain(p.phase, now, [now / times, now * (1.0 - share * (1.0 - 1.0 / times) / 2.0)]);
    let mb = |bytes: f64| format!("{:.1} MB", bytes / 1e6);
    Some(Advice {
        rule: "read-ahead",
        title: "lower the read-ahead of the model's disk: it reads more than a token needs".into(),
        actions: vec![
            format!("echo {DEFAULT_KB} | sudo tee {setting}"),
            "(the kernel's default; until the next boot, and for all files of that disk)".into(),
        ],
        gain,
        confidence: Confidence::Medium,
        evidence: format!(
            "a call read {} from storage and needed {} of weights; the read-ahead is {kb} KiB; threads were off-CPU in page faults \
             and I/O {} of the time",
            mb(reads.bytes_a_call),
            mb(needed),
            pct(share)
        ),
        disproof: "with it, a call reads as much from storage".into(),
        trade_off: None,
    })
}

/// From this share of a prompt's time on, its page faults are worth a line; and of how many calls at most.
const COLD: f64 = 0.1;
const FIRST_CALLS: u64 = 2;

/// The first call reads the model from storage, those after it do not.
pub fn cold(r: &RuleInput<'_>) -> Option<Advice> {
    let main = r.main()?;
    if let Some(times) = first_touch(r, main) {
        let title = "only the first call was slow: likely the first to touch the weights".into();
        let evidence =
            format!("the first prompt took {times:.0} times as long as later calls, for the same weights");
        return Some(cold_start(r, (title, evidence), Confidence::Medium));
    }
    let ns = first_alone(r, main).or_else(|| prompt_alone(r, main))?;
    let title = format!("the first call waited {:.1} s for the model's file; later ones did not", ns / 1e9);
    let evidence = "threads were off-CPU in page faults and I/O in the first call alone".into();
    Some(cold_start(r, (title, evidence), Confidence::High))
}

/// From this many times what later calls take on, beside their ceilings.
const TIMES: f64 = 10.0;

/// How many times as long a first prompt took as the calls after it, each measured by its own ceiling, where both only read
/// weights. `None`: it did not.
fn first_touch(r: &RuleInput<'_>, main: &PhaseFacts) -> Option<f64> {
    let of = |phase: Phase| r.phases.iter().find(|v| v.phase == phase)?.ceiling.as_ref();
    let prompt = r.facts.phases.iter().find(|p| p.phase == Phase::Prefill && main.phase == Phase::Decode)?;
    let (first, later) = of(Phase::Prefill).zip(of(Phase::Decode))?;
    let alone = prompt.calls == 1 && first.by == "memory" && later.by == "memory";
    // No CPU, or a device, has other rules.
    let calm = prompt.bar?.waiting_for_cpu.is_none_or(|share| share < COLD) && prompt.bar?.device == 0.0;
    let times = later.reached / first.reached;
    (alone && calm && times >= TIMES).then_some(times)
}

/// A first call that was slow.
fn cold_start(r: &RuleInput<'_>, (title, evidence): (String, String), confidence: Confidence) -> Advice {
    let there = match r.facts.memory_limit {
        Some(_) => "to have it there before the first call: cat MODEL.gguf > /dev/null",
        None => "to have it there before the first call: --no-mmap, or cat MODEL.gguf > /dev/null",
    };
    let again = "measure again now that it is in memory, or after a warm-up of one call";
    Advice {
        rule: "cold-start",
        title,
        actions: [again, there].map(Into::into).to_vec(),
        gain: None,
        confidence,
        evidence,
        disproof: "a second prompt of the same process, or a second run, is as slow".into(),
        trade_off: None,
    }
}

/// Time in page faults of a phase whose first call has nearly all of them, ns.
fn first_alone(r: &RuleInput<'_>, p: &PhaseFacts) -> Option<f64> {
    let first = r.phases.iter().find(|v| v.phase == p.phase)?.first_call?;
    let ns = p.bar?.faults.filter(|share| *share >= SHARE)? * p.in_call_ns;
    let beyond = first.ns as f64 - first.tokens as f64 * 1e9 / first.others_tokens_per_s;
    (ns <= beyond * 1.1).then_some(ns)
}

/// The same of a prompt before calls without page faults.
fn prompt_alone(r: &RuleInput<'_>, main: &PhaseFacts) -> Option<f64> {
    let prompt = r.facts.phases.iter().find(|p| p.phase == Phase::Prefill && main.phase != Phase::Prefill)?;
    let share = prompt.bar?.faults.filter(|share| *share >= COLD && prompt.calls <= FIRST_CALLS)?;
    let later = main.bar?.faults.unwrap_or(0.0);
    (later < SHARE).then_some(share * prompt.in_call_ns)
}

/// How to keep the model, or a part of it, in memory. In a group with a memory limit, nothing may be locked before it fits:
/// the kernel kills what exceeds the limit.
pub fn keep(r: &RuleInput<'_>, what: &str) -> Vec<String> {
    match r.facts.memory_limit {
        Some(limit) => vec![
            format!(
                "raise the memory limit of its cgroup ({}), now {:.1} MB",
                limit.group,
                limit.bytes as f64 / 1e6
            ),
            format!("or a smaller quantisation of {what}"),
        ],
        None => vec![
            format!("--mlock (builds of 2026: --load-mode mlock), if there is memory for {what}"),
            format!("or --no-mmap; or a smaller quantisation of {what}; or free memory"),
        ],
    }
}

/// Counted over all ops; `None` if they were not counted.
fn major_faults(p: &PhaseFacts) -> Option<u64> {
    let rows = p.ops.iter().filter_map(|o| o.counted.as_ref());
    let of = rows.flat_map(|c| &c.counters).filter(|c| c.name == MAJOR_FAULTS);
    of.filter_map(|c| c.total).reduce(u64::saturating_add)
}
