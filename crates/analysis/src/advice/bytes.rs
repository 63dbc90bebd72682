//! Fewer bytes of weights per token.

use super::rule::{Advice, Confidence, RuleInput, gain, pct};
use crate::verdict::limit::NEAR;

/// Types with more bits per weight than the smaller one, from `ggml_type_traits`: bytes per weight.
const LARGER: [(&str, f64); 8] = [
    ("f32", 4.0),
    ("f16", 2.0),
    ("bf16", 2.0),
    ("q8_0", 34.0 / 32.0),
    ("q6_K", 210.0 / 256.0),
    ("q5_1", 24.0 / 32.0),
    ("q5_0", 22.0 / 32.0),
    ("q5_K", 176.0 / 256.0),
];
/// Of q4_0 and q4_K.
const SMALLER: f64 = 18.0 / 32.0;
/// Share of the call that must be in these multiplications.
const SHARE: f64 = 0.5;
/// Predicted over measured speed-up, in trials of nine pairs of types with one and two threads: kernels of 4-bit types
/// need more instructions per weight.
const OVERSTATED: [f64; 2] = [0.93, 1.27];

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.facts.decode()?;
    let weights = p.weights.as_ref()?;
    let main = r.facts.report.model.weights.first()?;
    let (_, now) = LARGER.iter().find(|(name, _)| name.eq_ignore_ascii_case(&main.name))?;
    // While threads wait for CPUs or storage, the multiplications' time is not theirs.
    let share = weights.ns / p.call_ns();
    if share < SHARE || main.share? < SHARE {
        return None;
    }
    let saved = weights.ns * main.share? * (1.0 - SMALLER / now);
    let speedup = p.call_ns() / (p.call_ns() - saved);
    let [under, over] = OVERSTATED.map(|error| speedup / error);
    let reached = r.reached(p.phase);
    let at_ceiling = reached.is_some_and(|share| share >= NEAR);
    let basis = match reached {
        Some(share) => format!("{} of the machine's ceiling reached", pct(share)),
        None => "the machine's ceiling is not known".into(),
    };
    Some(Advice {
        rule: "fewer-bytes",
        title: format!(
            "use a 4-bit quantisation (Q4_0, Q4_K_M): {} reads {:.1}x the bytes",
            main.name,
            now / SMALLER
        ),
        actions: vec!["llama-quantize MODEL.gguf SMALLER.gguf Q4_K_M".into()],
        gain: gain(p.phase, p.call_ns(), [p.call_ns() / under, p.call_ns() / over]),
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
