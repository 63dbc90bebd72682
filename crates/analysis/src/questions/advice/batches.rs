//! Prompts in small micro-batches: each of them reads all weights.

use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::questions::verdict::facts::PhaseFacts;
use crate::recorded::calls::Phase;
use crate::recorded::sequences::RequestRow;

/// Micro-batches of at most so many tokens, of calls with at least so many, and prompts that take this share of the time in
/// calls.
const SMALL: f64 = 64.0;
const PROMPT: f64 = 128.0;
const SHARE: f64 = 0.05;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.facts.phases.iter().find(|p| p.phase == Phase::Prefill)?;
    in_graphs(r, p).or_else(|| in_calls(r, p))
}

/// Prompts that are given to the engine in many calls.
fn in_calls(r: &RuleInput<'_>, p: &PhaseFacts) -> Option<Advice> {
    let requests = &r.facts.report.sequences.as_ref()?.requests;
    let long: Vec<&RequestRow> =
        requests.iter().filter(|q| q.prompt_tokens as f64 >= PROMPT && !q.late).collect();
    let tokens: u64 = long.iter().map(|q| q.prompt_tokens).fold(0, u64::saturating_add);
    let calls: u64 = long.iter().map(|q| q.prefill_calls).fold(0, u64::saturating_add);
    let part = tokens as f64 / calls.max(1) as f64;
    let all: f64 = r.facts.phases.iter().map(|p| p.in_call_ns).sum();
    let share = p.in_call_ns / all;
    (!long.is_empty() && part <= SMALL && share >= SHARE).then(|| {
        let title =
            format!("compute prompts in larger parts: calls of {part:.0} tokens read all weights each time");
        let (prompt, n) = (tokens as f64 / long.len() as f64, calls as f64 / long.len() as f64);
        told(title, format!("prompts of {prompt:.0} tokens were computed in {n:.0} calls each"), share)
    })
}

fn told(title: String, evidence: String, share: f64) -> Advice {
    Advice {
        rule: "small-batches",
        title,
        actions: vec!["-ub 512 -b 2048 (the engine's defaults)".into()],
        gain: None,
        confidence: Confidence::High,
        evidence: format!("{evidence}; prompts take {} of the time in calls", pct(share)),
        disproof: "with -ub 512 and the same prompt, prefill takes as long".into(),
        trade_off: None,
    }
}

/// Micro-batches of a call.
fn in_graphs(r: &RuleInput<'_>, p: &PhaseFacts) -> Option<Advice> {
    let (call, part) = (tokens(p)?, tokens(p)? / p.graphs_a_call);
    let all: f64 = r.facts.phases.iter().map(|p| p.in_call_ns).sum();
    let share = p.in_call_ns / all;
    // With devices a micro-batch has several graphs on the CPU.
    let device = p.bar.is_some_and(|bar| bar.device > 0.0);
    (part <= SMALL && call >= PROMPT && part * 2.0 <= call && share >= SHARE && !device).then(|| {
        let title = format!(
            "compute prompts in larger micro-batches: {part:.0} tokens at a time read all weights each time"
        );
        let n = p.graphs_a_call;
        told(title, format!("calls of {call:.0} tokens are computed as {n:.0} graphs each"), share)
    })
}

/// Of a call; `None` if they are not known, or no graph was recorded.
fn tokens(p: &PhaseFacts) -> Option<f64> {
    (p.graphs_a_call > 0.0).then_some(())?;
    Some(p.tokens? as f64 / p.calls.max(1) as f64)
}
