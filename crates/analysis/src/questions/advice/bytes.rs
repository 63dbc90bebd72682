//! Fewer bytes of weights per token.

use super::rule::{Advice, Confidence, RuleInput, gain, pct};
use crate::questions::verdict::limit::{LimitKind, NEAR};

/// Share of the call that must be in multiplications with weights.
const SHARE: f64 = 0.5;
/// Predicted over measured speed-up, in trials of nine pairs of types with one and two threads: kernels of 4-bit types
/// need more instructions per weight.
const OVERSTATED: [f64; 2] = [0.93, 1.27];

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.facts.decode()?;
    let weights = p.weights.as_ref()?;
    let main = r.facts.report.model.weights.first()?;
    // While threads wait for CPUs or storage, the multiplications' time is not theirs.
    let share = weights.ns / p.call_ns();
    if share < SHARE || r.limit.is_some_and(|l| l.kind == LimitKind::PageFaults) {
        return None;
    }
    let saved = weights.ns * (1.0 - weights.smaller / weights.bytes);
    let speedup = p.call_ns() / (p.call_ns() - saved);
    let [under, over] = OVERSTATED.map(|error| speedup / error);
    // Of a type as small as Q4_K_M the prediction's own error would be all that is promised.
    if over <= 1.0 {
        return None;
    }
    let gain = gain(p.phase, p.call_ns(), [p.call_ns() / under, p.call_ns() / over])?;
    let reached = r.reached(p.phase);
    let at_ceiling = reached.is_some_and(|share| share >= NEAR);
    let basis = match reached {
        Some(share) => format!("{} of the ceiling reached", pct(share)),
        None => "the machine's ceiling is not known".into(),
    };
    Some(Advice {
        rule: "fewer-bytes",
        title: format!(
            "use the quantisation Q4_K_M: a token reads {:.1}x its bytes now, most of them in {}",
            weights.bytes / weights.smaller,
            main.name
        ),
        actions: vec!["llama-quantize MODEL.gguf SMALLER.gguf Q4_K_M".into()],
        gain: Some(gain),
        confidence: if at_ceiling { Confidence::High } else { Confidence::Medium },
        evidence: format!(
            "multiplications with {:.1} MB of weights take {} of a call; {basis}",
            weights.bytes / 1e6,
            pct(share)
        ),
        disproof: "with the smaller file, the multiplications take as long as before".into(),
        trade_off: Some("answers change: check their quality"),
    })
}
