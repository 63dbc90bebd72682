//! Attention without the fused operator takes a share of prefill that grows with the prompt. Of decode nothing is said: on a
//! CPU the fused operator was slower there (`make bench-advice`).

use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::recorded::calls::Phase;

/// From this share of the graphs' time on.
const SHARE: f64 = 0.15;
/// The separate operators of attention, by the names that llama.cpp gives their results (`build_attn_mha` in
/// src/llama-graph.cpp, b11669).
const NAMES: [&str; 4] = ["  kq-{L}", "  kqv-{L}", "  kq_soft_max-{L}", "  kq_soft_max_ext-{L}"];
/// The copy of the value cache that only builds without the fused operator make.
const FUSED: &str = "FLASH_ATTN_EXT";

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.facts.phases.iter().find(|p| p.phase == Phase::Prefill)?;
    if p.ops.iter().any(|o| o.name.starts_with(FUSED)) {
        return None;
    }
    let of = |name: &str| NAMES.iter().any(|n| name.ends_with(n)) || name.starts_with("SOFT_MAX");
    let share: f64 = p.names.iter().filter(|o| o.calls > 0 && of(&o.name)).map(|o| o.share).sum();
    // The shares are of the CPU's graphs: beside a device these may be a small part of a call.
    let graphs = match p.bar.map_or(0.0, |bar| bar.device) > 0.0 {
        true => p.graph_ns * p.graphs_a_call / p.call_ns(),
        false => 1.0,
    };
    let share = share * graphs;
    (share >= SHARE).then(|| Advice {
        rule: "attention",
        title: "try flash attention: it computes long prompts without writing KQ to memory".into(),
        actions: vec![
            "-fa on (builds before 2025-08: -fa)".into(),
            "with it, -ctk q8_0 -ctv q8_0 halves the cache".into(),
        ],
        gain: None,
        confidence: Confidence::Low,
        evidence: format!(
            "KQ, KQV and softmax take {} of prefill's graphs, and grow with the prompt",
            pct(share)
        ),
        disproof: "with -fa on and the same prompt, prefill takes as long or longer".into(),
        trade_off: Some("decoding can become slower on a CPU: compare both"),
    })
}
