//! Attention: prompts without the fused operator, tokens with it, and cells of other sequences. On a CPU the fused operator was
//! faster for prompts and slower for tokens (`make bench-advice`).

use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::recorded::calls::Phase;

/// From this share of the graphs' time on.
const SHARE: f64 = 0.15;
/// The separate operators of attention, by the names that llama.cpp gives their results (`build_attn_mha` in
/// src/llama-graph.cpp, b11669).
const NAMES: [&str; 4] = ["  kq-{L}", "  kqv-{L}", "  kq_soft_max-{L}", "  kq_soft_max_ext-{L}"];
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

/// Of tokens: from this share of a call on, at most at this share of the memory's speed.
const DECODE: f64 = 0.25;
const SPEED: f64 = 0.5;

/// Tokens are computed by the fused operator, far from the memory's speed.
pub fn decode(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.facts.decode()?;
    let of = p.made_of.attention.filter(|of| of.fused)?;
    let ns = of.ns * p.graphs_a_call;
    let share = ns / p.call_ns();
    let peak = r.facts.report.ceiling.as_ref().filter(|c| c.source != "trace")?.peak.gb_per_s;
    let gb_per_s = p.weights.as_ref()?.cache / ns;
    (share >= DECODE && gb_per_s <= peak * SPEED).then(|| Advice {
        rule: "attention-decode",
        title: "compare with -fa off: flash attention takes a large part of each token".into(),
        actions: vec!["-fa off (for prompts it can be slower: compare both)".into()],
        gain: None,
        confidence: Confidence::Low,
        evidence: format!(
            "FLASH_ATTN_EXT takes {} of a token and reads {:.0} cells at {gb_per_s:.1} GB/s of {peak:.1} GB/s; its time grows with \
             the context",
            pct(share),
            of.cells
        ),
        disproof: "with -fa off and the same context, a token takes as long or longer".into(),
        trade_off: Some("prompts can become slower"),
    })
}

/// Of a call, from this share on; and the cells over the positions, beside the 256 that are added to fill a block
/// (llama_kv_cache::get_n_kv(), b11669).
const SLOTS: f64 = 0.1;
const TIMES: f64 = 2.0;
const PADDING: f64 = 256.0;

/// Attention runs over the cells of all sequences.
pub fn other_slots(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.facts.decode()?;
    let of = p.made_of.attention?;
    let (cells, positions) = of.alone?;
    let share = of.ns * p.graphs_a_call / p.call_ns();
    (share >= SLOTS && cells >= positions * TIMES + PADDING).then(|| Advice {
        rule: "other-slots",
        title: format!(
            "give each slot its own cells: attention reads {cells:.0} for a sequence of {positions:.0} tokens"
        ),
        actions: vec![
            "--no-kv-unified".into(),
            "or fewer slots (-np); or clear what is not needed: --cache-idle-slots".into(),
        ],
        gain: None,
        confidence: Confidence::High,
        evidence: format!("in calls of one sequence alone; attention takes {} of a call", pct(share)),
        disproof: "with it, attention reads as many cells".into(),
        trade_off: Some("each slot then has only its part of the context"),
    })
}
