//! The clock is below what the CPUs can do: governor, a thermal cap, or a limit set by hand.

use super::rule::{Advice, Confidence, RuleInput, gain};

/// A cap below this share of the CPUs' maximum counts.
const CAPPED: f64 = 0.95;
/// With a governor that raises the clock under load, a higher share than this is seen.
const SLOW: f64 = 0.7;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let clock = r.facts.clock.as_ref()?;
    let (title, action, evidence, share) = if let Some(share) = clock.cap.filter(|s| *s < CAPPED) {
        let title = "let the CPUs clock higher: their maximum frequency is capped";
        let action =
            "cool the board; or: echo MAX_KHZ > /sys/devices/system/cpu/cpufreq/policyN/scaling_max_freq";
        (title, action, format!("scaling_max_freq is {:.0} % of cpuinfo_max_freq", share * 100.0), share)
    } else if let Some(share) = clock.seen.filter(|s| clock.powersave && *s < SLOW) {
        let title = "use another frequency governor: powersave keeps the frequency low";
        let action = "echo schedutil > /sys/devices/system/cpu/cpufreq/policyN/scaling_governor";
        let seen = format!(
            "governor powersave; the highest frequency seen is {:.0} % of the hardware's",
            share * 100.0
        );
        (title, action, seen, share)
    } else {
        return None;
    };
    // Computing scales with the clock at best, memory not at all.
    let best = 1.0 / share.max(0.05);
    Some(Advice {
        rule: "throttled",
        title: title.into(),
        actions: vec![action.into()],
        gain: gain(p.phase, best, [1.0, best]),
        confidence: Confidence::Low,
        evidence,
        disproof: "with a higher clock, a token takes as long as before".into(),
        trade_off: None,
    })
}
