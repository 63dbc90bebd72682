//! Other programs have the CPUs while engine threads are runnable.

use super::rule::{Advice, Confidence, RuleInput, gain, pct, replayed, uncrowded};
use crate::questions::verdict::facts::PhaseFacts;
use crate::questions::verdict::limit::{LimitKind, crowded_out, is_other, programs};

/// Worth a line from this share of the threads' time on.
const SHARE: f64 = 0.05;
/// Other programs, over the engine's own threads that had to share what they left.
const PART: f64 = 0.25;
/// Threads that nobody was seen to displace. Beside a busy program a bound thread is slower than two on a CPU of their own:
/// whoever reads this looks first.
const LOOK: [&str; 2] = [
    "find what keeps the other CPUs busy: top -H, then 1; stop it, or give it other CPUs",
    "or, if they are idle, bind each thread to a CPU: -C MASK --cpu-strict 1, or OMP_PROC_BIND=true",
];

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let bar = p.bar?;
    let share = bar.waiting_for_cpu.filter(|share| *share >= SHARE)?;
    // Kernel threads that read from storage also take CPUs; the replay would leave out the time in faults too.
    if share < bar.faults.unwrap_or(0.0) + bar.blocked.unwrap_or(0.0) {
        return None;
    }
    let rows = r.facts.interference?;
    let sum = |other: bool| {
        rows.iter().filter(|r| is_other(r) == other).fold(0u64, |sum, r| sum.saturating_add(r.runnable_ns))
    };
    let (others, rest) = (sum(true), sum(false));
    if others < rest
        && let Some(advice) = crowded(r, p, share)
    {
        return Some(advice);
    }
    if (others as f64) < PART * rest as f64 {
        return together(r, p, share);
    }
    // Nobody had a CPU for long enough to be named.
    let seen = Some(programs(rows)).filter(|seen| !seen.is_empty())?;
    let gain = gain(p.phase, p.call_ns(), replayed(r, p)?)?;
    let first = rows.iter().find(|r| is_other(r))?;
    let all = r.facts.cpus.online;
    let mut actions =
        vec![format!("stop {}, or keep it off the engine's CPUs (taskset -acp CPUS PID)", first.name)];
    if all > p.threads {
        actions.push(format!("or nice -n 19 {}; or keep CPUs for the engine: systemctl set-property --runtime system.slice AllowedCPUs=CPUS", first.name));
    } else {
        actions.push(format!("or lower its priority: renice -n 19 -p $(pidof {})", first.name));
    }
    if p.threads > 1 {
        actions.push(format!("or leave it a CPU: -t {}", p.threads - 1));
    }
    Some(Advice {
        rule: "cpu-contention",
        title: format!("free the engine's CPUs of {}", who(rows)),
        actions,
        gain: Some(gain),
        confidence: Confidence::Medium,
        evidence: format!("threads were runnable without a CPU {} of the time: {seen}", pct(share)),
        disproof: "without these programs, a token takes as long as before".into(),
        trade_off: None,
    })
}

/// Threads that the kernel kept together, away from CPUs that something else has.
fn crowded(r: &RuleInput<'_>, p: &PhaseFacts, share: f64) -> Option<Advice> {
    let out = r.limit.filter(|l| l.kind == LimitKind::CpuContention).and(crowded_out(r.facts, p))?;
    let who = out.who.as_deref();
    let mut actions = match who {
        Some(name) => vec![format!("stop {name}, or keep it off the engine's CPUs (taskset -acp CPUS PID)")],
        None => LOOK.map(Into::into).to_vec(),
    };
    actions.push(format!("or leave it a CPU: -t {}", p.threads - 1));
    Some(Advice {
        rule: "cpu-contention",
        title: match who {
            Some(name) => format!("free the engine's CPUs of {name}"),
            None => "give each thread a CPU of its own: the kernel put them together".into(),
        },
        actions,
        gain: uncrowded(r, p, out.cpus, p.threads),
        confidence: if who.is_some() { Confidence::Medium } else { Confidence::Low },
        evidence: format!("threads were runnable without a CPU {} of the time: {}", pct(share), out.text),
        disproof: "with the other CPUs idle, threads still share one".into(),
        trade_off: None,
    })
}

/// Threads that shared a CPU now here, now there, although each may have one: nothing is promised, since it is not known how
/// busy the others were.
fn together(r: &RuleInput<'_>, p: &PhaseFacts, share: f64) -> Option<Advice> {
    let contended = r.limit.is_some_and(|l| l.kind == LimitKind::CpuContention);
    let rows = r.facts.interference?;
    let own = rows.iter().filter(|r| r.own).fold(0u64, |sum, r| sum.saturating_add(r.runnable_ns));
    let most = rows.iter().filter(|r| !r.own).map(|r| r.runnable_ns).max().unwrap_or(0);
    let enough = r.facts.cpus.allowed.is_some_and(|n| n >= p.threads);
    if !contended || !enough || p.threads < 2 || own < most {
        return None;
    }
    let who = programs(rows);
    let meanwhile = if who.is_empty() { who } else { format!(", while {who} ran") };
    Some(Advice {
        rule: "cpu-contention",
        title: "give each thread a CPU of its own: threads of the engine shared one, though more are allowed"
            .into(),
        actions: LOOK.map(Into::into).to_vec(),
        gain: None,
        confidence: Confidence::Low,
        evidence: format!(
            "threads were runnable without a CPU {} of the time, most of it behind threads of the engine{meanwhile}",
            pct(share)
        ),
        disproof: "with each thread bound to a CPU, they are still runnable without one".into(),
        trade_off: None,
    })
}

fn who(rows: &[crate::sums::attribution::interference::InterferenceRow]) -> String {
    let names: Vec<&str> = rows.iter().filter(|r| is_other(r)).take(3).map(|r| r.name.as_str()).collect();
    names.join(", ")
}
