//! A low-rank adapter that is applied while the model runs.

use super::rule::{Advice, Confidence, RuleInput, gain, pct};

/// From this share of a call's time on.
const SHARE: f64 = 0.05;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let of = p.made_of.adapter?;
    let ns = of.ns * p.graphs_a_call;
    let share = ns / p.call_ns();
    let now = p.call_ns();
    (share >= SHARE).then(|| Advice {
        rule: "adapter",
        title: format!("merge the adapter into the model: its operators take {} of a call", pct(share)),
        actions: vec![
            "llama-export-lora -m MODEL.gguf --lora ADAPTER.gguf -o MERGED.gguf, and no --lora".into(),
            "(a merged adapter cannot be exchanged or switched off)".into(),
        ],
        gain: gain(p.phase, now, [now - ns, now - ns / 2.0]),
        confidence: Confidence::High,
        evidence: format!(
            "{:.0} of {:.0} operators of a graph are the adapter's (lora_a, lora_b, and what adds them), {:.2} ms of a call of {:.2} ms",
            of.ops,
            of.all_ops,
            ns / 1e6,
            now / 1e6
        ),
        disproof: "without the adapter, a call takes as long".into(),
        trade_off: None,
    })
}
