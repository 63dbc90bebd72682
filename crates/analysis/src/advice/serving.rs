//! What a server's requests and drafts show: drafts that cost time, prompts that stall other requests, and prompts that are
//! computed again.

use super::data::Gain;
use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::calls::Phase;
use crate::sequences::{RequestRow, Speculation};

/// Drafts of another length are advised from this gain on; the estimate is rough.
const DRAFT_GAIN: f64 = 0.05;
/// Drafts whose result is known, at least.
const DRAFTS: u64 = 16;
/// Prompts stall other requests from this share of their decode time on.
const STALLED: f64 = 0.2;
/// Requests of one sequence, one after the other, that look like a conversation computed from its beginning each time.
const AGAIN: usize = 3;

/// Drafts that cost time, or would gain more with another length.
pub fn drafts(r: &RuleInput<'_>) -> Option<Advice> {
    let s = r.facts.report.sequences.as_ref()?.speculation.as_ref()?;
    let cost = s.cost.as_ref().filter(|_| s.drafts - s.unseen.min(s.drafts) >= DRAFTS)?;
    let change = (1.0 + cost.best_gain) / (1.0 + cost.gain);
    if change < 1.0 + DRAFT_GAIN {
        return None;
    }
    let (title, actions) = match cost.best_length {
        0 => (
            "decode without drafts: they cost more than they bring".to_owned(),
            vec!["leave out the draft model (-md, --spec-type)".to_owned()],
        ),
        n => (
            format!(
                "draft {n} token{} at a time instead of {}",
                if n == 1 { "" } else { "s" },
                mean_length(s)
            ),
            vec![format!("--spec-draft-n-max {n} (before 2026: --draft-max {n})")],
        ),
    };
    Some(Advice {
        rule: "draft-length",
        title,
        actions,
        gain: Some(Gain { phase: Phase::Decode, least: 1.0 + (change - 1.0) / 2.0, most: change }),
        confidence: Confidence::Medium,
        evidence: format!(
            "{} of {} drafted tokens accepted ({}): drafts change tok/s by {:+.0} %",
            s.accepted,
            s.drafted,
            pct(s.acceptance),
            cost.gain * 100.0
        ),
        disproof: "with that length, a token takes as long as before".into(),
        trade_off: None,
    })
}

fn mean_length(s: &Speculation) -> u64 {
    let known = s.drafts.saturating_sub(s.unseen).max(1);
    (s.drafted + known / 2) / known
}

/// Prompts of some requests that keep others waiting for their next token.
pub fn starvation(r: &RuleInput<'_>) -> Option<Advice> {
    let found = r.facts.report.sequences.as_ref()?;
    let share = found.batching.stalled.filter(|share| *share >= STALLED)?;
    Some(Advice {
        rule: "slot-starvation",
        title: "compute prompts in smaller parts: they keep other requests waiting".into(),
        actions: vec!["-b 256 -ub 256 (or less)".into()],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!("prompts of other sequences take {} of the time between tokens", pct(share)),
        disproof: "with smaller parts, p99 of the time per token is as long as before".into(),
        trade_off: Some("prompts themselves take longer"),
    })
}

/// A conversation whose beginning is computed again with each request.
pub fn again(r: &RuleInput<'_>) -> Option<Advice> {
    let found = r.facts.report.sequences.as_ref()?;
    let mut most: Option<(usize, u64)> = None;
    for sequence in &found.sequences {
        let of_it = |row: &&RequestRow| {
            (row.pid, row.context, row.seq) == (sequence.pid, sequence.context, sequence.seq)
        };
        let rows: Vec<&RequestRow> = found.requests.iter().filter(of_it).collect();
        let pairs = rows.windows(2).filter_map(|w| match w {
            [a, b] if grows(a, b) => Some(a.prompt_tokens.saturating_add(a.tokens)),
            _ => None,
        });
        let (n, tokens) = pairs.fold((0, 0u64), |(n, sum), again| (n + 1, sum.saturating_add(again)));
        if n >= AGAIN && most.is_none_or(|m| m.1 < tokens) {
            most = Some((n, tokens));
        }
    }
    let (n, tokens) = most?;
    Some(Advice {
        rule: "prompt-again",
        title: "keep the prompt in the cache: the beginning of each prompt is computed again".into(),
        actions: vec![
            "\"cache_prompt\": true in the request; a slot for each conversation (id_slot, -np)".into(),
        ],
        gain: None,
        confidence: Confidence::Low,
        evidence: format!(
            "{n} requests of one sequence began at position 0 with a prompt longer than all of the one before; about \
             {tokens} tokens were computed again if they are of one conversation"
        ),
        disproof: "the prompts have no beginning in common".into(),
        trade_off: None,
    })
}

/// Whether `b` looks like the continuation of `a`, computed from its beginning.
fn grows(a: &RequestRow, b: &RequestRow) -> bool {
    let known = b.cached_tokens == Some(0) && !a.late && a.prompt_tokens > 32;
    known
        && b.prompt_tokens >= a.prompt_tokens.saturating_add(a.tokens)
        && b.prompt_tokens < a.prompt_tokens.saturating_mul(2)
}
