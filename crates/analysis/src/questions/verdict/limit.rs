//! What limits a phase, in words and with who or what.

use super::data::SpeedCeiling;
pub use super::data::{Limit, LimitKind};
use super::facts::{PhaseFacts, VerdictFacts};
use crate::sums::attribution::interference::{InterferenceRow, KERNEL, THROTTLED, UNKNOWN, WAKING};
use crate::sums::tables::{GAPS_ROW, OpRow, WAIT_ROW};

/// From this share of the ceiling on, a run counts as limited by it.
pub const NEAR: f64 = 0.5;

/// The limit; `None` if where the time goes is not known. `between` is the share of the time between calls.
pub fn limit(
    facts: &VerdictFacts<'_>,
    p: &PhaseFacts,
    top: Option<&SpeedCeiling>,
    between: f64,
) -> Option<Limit> {
    let bar = p.bar?;
    let parts = [
        (LimitKind::Computing, bar.computing),
        (LimitKind::Barriers, bar.barrier.unwrap_or(0.0)),
        (LimitKind::CpuContention, bar.waiting_for_cpu.unwrap_or(0.0)),
        (LimitKind::PageFaults, bar.faults.unwrap_or(0.0) + bar.blocked.unwrap_or(0.0)),
        (LimitKind::Device, bar.device),
        (LimitKind::Gaps, bar.gaps),
    ];
    let share_of = |kind: LimitKind| parts.iter().find(|(k, _)| *k == kind).map_or(0.0, |(_, share)| *share);
    // A thread that waits at a barrier waits for one that does something else: while a thread has no CPU, or is in
    // a page fault, all others wait for it.
    let behind = [LimitKind::CpuContention, LimitKind::PageFaults].into_iter().find(|k| share_of(*k) > 0.15);
    let with_barriers = |(kind, share): (LimitKind, f64)| match (kind, behind) {
        (LimitKind::Barriers, Some(_)) => (kind, 0.0),
        (kind, Some(first)) if kind == first => (kind, share + share_of(LimitKind::Barriers)),
        _ => (kind, share),
    };
    let (kind, share) = parts.into_iter().map(with_barriers).max_by(|a, b| a.1.total_cmp(&b.1))?;
    if between > share * (1.0 - between) {
        let text = format!(
            "the time between calls: {:.0} % of all; sampling, tokenizing, or a client that waits",
            between * 100.0
        );
        return Some(Limit { kind: LimitKind::BetweenCalls, text });
    }
    // The kernel reads and makes room on behalf of a thread: the operator seems to compute.
    if kind == LimitKind::Computing
        && let Some(text) = read_again(p)
    {
        return Some(Limit { kind: LimitKind::PageFaults, text });
    }
    // As of an engine that slept in its ops, for a reason that the source cannot see.
    if bar.unknown > share {
        return None;
    }
    Some(match kind {
        LimitKind::CpuContention => contention(facts, p),
        LimitKind::Computing => computing(p, top),
        kind => Limit { kind, text: text(kind, share, p) },
    })
}

/// From this part of the weights on, reading them from storage takes longer than reading all of them from memory: storage is ten
/// times as slow at least.
const STORED: f64 = 0.1;

/// What calls read from storage that they had in memory before, if it is much.
fn read_again(p: &PhaseFacts) -> Option<String> {
    let (reads, needed) = (p.reads.as_ref()?, p.weights.as_ref()?.bytes);
    (reads.bytes_a_call * reads.again >= needed * STORED && needed > 0.0).then(|| {
        format!(
            "page faults and I/O: a call reads {:.1} MB from storage and needs {:.1} MB of weights; {:.0} % of it had been read before",
            reads.bytes_a_call / 1e6,
            needed / 1e6,
            reads.again * 100.0
        )
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
fn contention(facts: &VerdictFacts<'_>, p: &PhaseFacts) -> Limit {
    let rows = facts.interference.unwrap_or_default();
    let sum = |wanted: &dyn Fn(&InterferenceRow) -> bool| {
        rows.iter().filter(|r| wanted(r)).fold(0u64, |a, r| a.saturating_add(r.runnable_ns))
    };
    let others = sum(&|r| is_other(r));
    let quota = sum(&|r| r.name == THROTTLED);
    let own = sum(&|r| r.own);
    if own > others && own > quota {
        return match crowded_out(facts, p) {
            Some(out) => {
                Limit { kind: LimitKind::CpuContention, text: format!("CPU contention: {}", out.text) }
            }
            // As many CPUs as threads: something else had the others meanwhile.
            None if facts.cpus.allowed.is_some_and(|n| n >= p.threads) => {
                let who = programs(rows);
                let while_others = if who.is_empty() { who } else { format!(", while {who} ran") };
                let text = format!("CPU contention: engine threads had to share a CPU{while_others}");
                Limit { kind: LimitKind::CpuContention, text }
            }
            None => {
                let text = "too many threads: the engine's own threads took the CPU from each other".into();
                Limit { kind: LimitKind::Oversubscription, text }
            }
        };
    }
    if quota > others {
        let text = "a CPU quota: threads were runnable while the CPUs were idle".into();
        return Limit { kind: LimitKind::Throttling, text };
    }
    let who = programs(rows);
    let kernel = rows.iter().any(|r| r.name == KERNEL);
    let text = match (who.is_empty(), rows.iter().any(is_recorder), kernel) {
        (false, ..) => format!("CPU contention: {who}"),
        (true, true, _) => "CPU contention: the recorder had the CPU".into(),
        (true, false, true) => "CPU contention: the kernel's own threads had the CPU".into(),
        (true, false, false) if rows.iter().any(|r| r.name == UNKNOWN) => {
            "CPU contention: threads were runnable; what had the CPUs is not known without root".into()
        }
        (true, false, false) => "CPU contention".into(),
    };
    Limit { kind: LimitKind::CpuContention, text }
}

/// Threads that shared fewer CPUs than they may use.
pub struct CrowdedOut {
    /// How many CPUs they shared.
    pub cpus: u32,
    /// The program seen most on the other CPUs; `None` if there is none that was seen only there.
    pub who: Option<String>,
    pub text: String,
}

/// Share of the op time of which the CPU must be known, and from which on a CPU counts as used.
const KNOWN: f64 = 0.95;
const USED: f64 = 0.05;

/// Whether the kernel kept threads together although each may have a CPU of its own: something else had the others.
/// `None` also if the masks or the CPUs of the ops are not known.
pub fn crowded_out(facts: &VerdictFacts<'_>, p: &PhaseFacts) -> Option<CrowdedOut> {
    let cpus = &facts.cpus;
    cpus.allowed.filter(|n| *n >= p.threads)?;
    cpus.time.iter().map(|(_, share)| share).sum::<f64>().ge(&KNOWN).then_some(())?;
    let used: Vec<u32> = cpus.time.iter().filter(|(_, share)| *share >= USED).map(|(cpu, _)| *cpu).collect();
    if used.is_empty() || used.len() as u64 >= u64::from(p.threads) {
        return None;
    }
    let elsewhere =
        |r: &&InterferenceRow| is_other(r) && !r.cpus.iter().any(|cpu| used.contains(&(*cpu).into()));
    let first = facts.interference.unwrap_or_default().iter().find(elsewhere);
    let list = |cpus: &[u32]| cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let mut text = format!("{} threads shared CPU {}, though more are allowed", p.threads, list(&used));
    if let Some(r) = first {
        text += &format!("; {} ran on CPU {}", r.name, cpus_of(&[r]));
    }
    Some(CrowdedOut { cpus: used.len() as u32, who: first.map(|r| r.name.clone()), text })
}

/// Another program: neither the engine, nor the kernel, nor a recorder, which nobody can or should stop.
pub fn is_other(r: &InterferenceRow) -> bool {
    !r.own && ![THROTTLED, WAKING, KERNEL, UNKNOWN].contains(&&*r.name) && !is_recorder(r)
}

/// A recorder, under the name of its program: a copy on another machine has a suffix.
fn is_recorder(r: &InterferenceRow) -> bool {
    r.name.starts_with("profinfer")
}

/// Programs that had the CPU while engine threads were runnable: `rustc 4.0 s, cp 0.7 s (CPU 0 1)`.
pub fn programs(rows: &[InterferenceRow]) -> String {
    // What is shown as 0.0 s is no evidence.
    let shown = |r: &&InterferenceRow| is_other(r) && r.runnable_ns >= 50_000_000;
    let others: Vec<&InterferenceRow> = rows.iter().filter(shown).take(3).collect();
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

/// How near it is to the ceiling, and what is slow against what.
fn computing(p: &PhaseFacts, top: Option<&SpeedCeiling>) -> Limit {
    let heaviest = p.ops.iter().find(|r| is_op(r));
    let op = heaviest.map_or_else(String::new, |r| format!("; {} takes {:.0} %", r.name, r.share * 100.0));
    match top {
        Some(t) if t.source != "trace" && t.reached >= NEAR => {
            let (kind, what) = match t.by {
                "memory" => (LimitKind::Memory, "memory bandwidth"),
                _ => (LimitKind::Compute, "compute"),
            };
            Limit { kind, text: format!("{what}: {:.0} % of the ceiling reached{op}", t.reached * 100.0) }
        }
        Some(t) if t.source != "trace" => {
            let slow = slow_part(p, t).unwrap_or_else(|| op.trim_start_matches("; ").to_owned());
            let text = format!("computing, at {:.0} % of the ceiling: {slow}", t.reached * 100.0);
            Limit { kind: LimitKind::Computing, text }
        }
        _ => Limit { kind: LimitKind::Computing, text: format!("computing{op}") },
    }
}

/// The part of a call that takes longest beside what memory and arithmetic need for it: products with the weights, attention, or
/// all else. `None`: the structure was not recorded.
fn slow_part(p: &PhaseFacts, top: &SpeedCeiling) -> Option<String> {
    let (weights, call) = (p.weights.as_ref()?, p.call_ns());
    let attention = p.made_of.attention;
    let attention_ns = attention.map_or(0.0, |a| a.ns * p.graphs_a_call);
    let all = p.bar.map_or(0.0, |bar| bar.computing + bar.barrier.unwrap_or(0.0)) * call;
    let rest_ns = all - weights.ns - attention_ns;
    let memory = top.by == "memory";
    let (work, of) = match memory {
        true => (weights.bytes, "the memory's speed"),
        false => (weights.f32 + weights.int8, "the speed of arithmetic"),
    };
    let share = |ns: f64| format!("{:.0} % of the time", ns / call * 100.0);
    let products = format!(
        "products with the weights take {}, at {:.0} % of {of}",
        share(weights.ns),
        work / top.peak / weights.ns * 100.0
    );
    let cells = attention.map_or(0.0, |a| a.cells);
    let speed = match memory {
        true => format!(", at {:.0} % of {of}", weights.cache / top.peak / attention_ns * 100.0),
        false => String::new(),
    };
    let of_attention = format!(
        "attention takes {}{speed}, and more with a longer context ({cells:.0} cells now)",
        share(attention_ns)
    );
    let rest = format!("operators other than products with weights and attention take {}", share(rest_ns));
    let cache_ns = if memory { weights.cache / top.peak } else { 0.0 };
    let parts =
        [(weights.ns - work / top.peak, products), (attention_ns - cache_ns, of_attention), (rest_ns, rest)];
    parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_stop_the_recorder() {
        let row = |name: &str| InterferenceRow {
            name: name.to_owned(),
            tids: vec![1],
            own: false,
            cpus: vec![0],
            preemptions: 1,
            times: 1,
            runnable_ns: 2_000_000_000,
            in_ops_ns: 0,
            first_ns: 0,
            last_ns: 0,
            ops: Vec::new(),
        };
        assert_eq!(programs(&[row("profinfer-1234"), row("cc1")]), "cc1 2.0 s (CPU 0)");
        assert_eq!(programs(&[row("profinfer")]), "");
    }
}
