//! What limits a phase, in words and with who or what.

use super::data::SpeedCeiling;
pub use super::data::{Limit, LimitKind};
use super::facts::{PhaseFacts, VerdictFacts};
use crate::attribution::interference::{InterferenceRow, THROTTLED, WAKING};
use crate::tables::{GAPS_ROW, OpRow, WAIT_ROW};

/// From this share of the ceiling on, a run counts as limited by it.
pub const NEAR: f64 = 0.5;

/// The limit; `None` if where the time goes is not known.
pub fn limit(facts: &VerdictFacts<'_>, p: &PhaseFacts, top: Option<&SpeedCeiling>) -> Option<Limit> {
    let bar = p.bar?;
    let parts = [
        (LimitKind::Computing, bar.computing),
        (LimitKind::Barriers, bar.barrier.unwrap_or(0.0)),
        (LimitKind::CpuContention, bar.waiting_for_cpu.unwrap_or(0.0)),
        (LimitKind::PageFaults, bar.faults.unwrap_or(0.0) + bar.blocked.unwrap_or(0.0)),
        (LimitKind::Device, bar.device),
        (LimitKind::Gaps, bar.gaps),
    ];
    let (kind, share) = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    // A thread that waits at a barrier waits for one that does something else: while a thread has no CPU, or is in
    // a page fault, all others wait for it.
    let behind = |kind: LimitKind| parts.iter().any(|(k, s)| *k == kind && *s > 0.15);
    let kind = match kind {
        LimitKind::Barriers if behind(LimitKind::CpuContention) => LimitKind::CpuContention,
        LimitKind::Barriers if behind(LimitKind::PageFaults) => LimitKind::PageFaults,
        kind => kind,
    };
    Some(match kind {
        LimitKind::CpuContention => contention(facts.interference.unwrap_or_default()),
        LimitKind::Computing => computing(p, top),
        kind => Limit { kind, text: text(kind, share, p) },
    })
}

fn text(kind: LimitKind, share: f64, p: &PhaseFacts) -> String {
    let share = format!("{:.0} % of the time", share * 100.0);
    match kind {
        LimitKind::Barriers => {
            let uneven = p.ops.iter().filter(|r| is_op(r)).max_by_key(|r| r.wait_ns);
            let after = uneven.map_or_else(String::new, |r| format!(", most of it after {}", r.name));
            format!("waiting at barriers for other threads: {share}{after}")
        }
        LimitKind::PageFaults => format!("page faults and I/O: {share}, with threads off-CPU"),
        LimitKind::Device => format!("the device: {share}"),
        _ => format!("the engine outside operators: {share}"),
    }
}

/// False for the rows that make shares add up.
pub fn is_op(row: &OpRow) -> bool {
    row.name != WAIT_ROW && row.name != GAPS_ROW
}

/// Who was in the way most.
fn contention(rows: &[InterferenceRow]) -> Limit {
    let sum = |wanted: &dyn Fn(&InterferenceRow) -> bool| {
        rows.iter().filter(|r| wanted(r)).fold(0u64, |a, r| a.saturating_add(r.runnable_ns))
    };
    let others = sum(&|r| is_other(r));
    let quota = sum(&|r| r.name == THROTTLED);
    let own = sum(&|r| r.own);
    if own > others && own > quota {
        let text = "too many threads: the engine's own threads took the CPU from each other".into();
        return Limit { kind: LimitKind::Oversubscription, text };
    }
    if quota > others {
        let text = "a CPU quota: threads were runnable while the CPUs were idle".into();
        return Limit { kind: LimitKind::Throttling, text };
    }
    let who = programs(rows);
    let text = if who.is_empty() { "CPU contention".into() } else { format!("CPU contention: {who}") };
    Limit { kind: LimitKind::CpuContention, text }
}

/// Another program.
pub fn is_other(r: &InterferenceRow) -> bool {
    !r.own && r.name != THROTTLED && r.name != WAKING
}

/// Programs that had the CPU while engine threads were runnable: `rustc 4.0 s, cp 0.7 s (CPU 0 1)`.
pub fn programs(rows: &[InterferenceRow]) -> String {
    let others: Vec<&InterferenceRow> = rows.iter().filter(|r| is_other(r)).take(3).collect();
    let one = |r: &&InterferenceRow| format!("{} {:.1} s", r.name, r.runnable_ns as f64 / 1e9);
    let who: Vec<String> = others.iter().map(one).collect();
    let cpus = cpus_of(&others);
    if cpus.is_empty() { who.join(", ") } else { format!("{} (CPU {cpus})", who.join(", ")) }
}

/// The CPUs that programs took, separated by spaces; at most eight.
fn cpus_of(rows: &[&InterferenceRow]) -> String {
    let mut cpus: Vec<u16> = rows.iter().flat_map(|r| r.cpus.iter().copied()).collect();
    common::order::by_key(&mut cpus, |cpu| ((*cpu).into(), 0));
    cpus.dedup();
    let more = if cpus.len() > 8 { " and more" } else { "" };
    let cpus: Vec<String> = cpus.iter().take(8).map(u16::to_string).collect();
    cpus.join(" ") + more
}

/// The heaviest op, and how near it is to the ceiling.
fn computing(p: &PhaseFacts, top: Option<&SpeedCeiling>) -> Limit {
    let heaviest = p.ops.iter().find(|r| is_op(r));
    let op = heaviest.map_or_else(String::new, |r| format!("; {} takes {:.0} %", r.name, r.share * 100.0));
    match top {
        Some(t) if t.source != "trace" && t.reached >= NEAR => {
            let (kind, what) = match t.by {
                "memory" => (LimitKind::Memory, "memory bandwidth"),
                _ => (LimitKind::Compute, "compute"),
            };
            Limit {
                kind,
                text: format!("{what}: {:.0} % of the machine's ceiling reached{op}", t.reached * 100.0),
            }
        }
        Some(t) if t.source != "trace" => {
            let text = format!(
                "computing, at {:.0} % of the machine's ceiling: neither memory nor compute is near its peak{op}",
                t.reached * 100.0
            );
            Limit { kind: LimitKind::Computing, text }
        }
        _ => Limit { kind: LimitKind::Computing, text: format!("computing{op}") },
    }
}
