//! What a server's requests and drafts show: drafts that cost time, prompts that stall other requests, and prompts that are
//! computed again.

use super::data::Gain;
use super::rule::{Advice, Confidence, RuleInput, pct};
use crate::recorded::calls::Phase;
use crate::recorded::sequences::{RequestRow, SequenceReport, Speculation};

/// Drafts of another length are advised from this gain on; the estimate is rough.
const DRAFT_GAIN: f64 = 0.05;
/// Drafts whose result is known, at least.
const DRAFTS: u64 = 16;
/// Prompts stall other requests from this share of their decode time on.
const STALLED: f64 = 0.2;
/// Requests of one sequence, one after the other, that look like a conversation computed from its beginning each time.
const AGAIN: usize = 3;
/// The share of the prompts' tokens from which on it is said that they were computed again.
const AGAIN_SHARE: f64 = 0.2;

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
        disproof: "with smaller parts, the longest time between two tokens is as long as before".into(),
        trade_off: Some("prompts themselves take longer"),
    })
}

/// Prompts that are computed again.
pub fn again(r: &RuleInput<'_>) -> Option<Advice> {
    let found = r.facts.report.sequences.as_ref()?;
    match found.requests.iter().any(|row| row.before.is_some()) {
        true => known_again(found),
        false => again_in(found),
    }
}

/// Where it was recorded what the tokens are: those that had stood there, or in another slot.
fn known_again(found: &SequenceReport) -> Option<Advice> {
    let (mut own, mut others, mut all, mut ns) = (0u64, 0u64, 0u64, 0.0);
    for row in found.requests.iter().filter(|row| !row.late) {
        all = all.saturating_add(row.prompt_tokens);
        let Some(before) = row.before else { continue };
        // What another slot had beyond what was left in its own.
        let left = row.cached_tokens.unwrap_or(0).saturating_add(before.again_tokens);
        let more = before.elsewhere_tokens.map_or(0, |tokens| tokens.saturating_sub(left));
        own = own.saturating_add(before.again_tokens);
        others = others.saturating_add(more);
        let share = (before.again_tokens + more) as f64 / row.prompt_tokens.max(1) as f64;
        ns += share.min(1.0) * row.prefill_ns as f64;
    }
    let share = (own + others) as f64 / all.max(1) as f64;
    (share >= AGAIN_SHARE).then_some(())?;
    let (title, action, disproof) = match own >= others {
        true => (
            format!("keep prompts in the cache: {own} tokens were computed again that it had"),
            "\"cache_prompt\": true in the request; with a sliding window --swa-full",
            "as many tokens are computed",
        ),
        false => (
            format!("give each conversation its slot: another slot had {others} tokens that were computed"),
            "id_slot in the request, a lower --slot-prompt-similarity, or more slots (-np)",
            "as many tokens are computed when each conversation keeps its slot",
        ),
    };
    Some(Advice {
        rule: "prompt-again",
        title,
        actions: vec![action.into()],
        gain: None,
        confidence: Confidence::High,
        evidence: format!(
            "of {all} tokens of prompts that were computed, {own} or more had stood at the same positions of their sequence, \
             and {others} in another one: {} of the prompts, {:.0} ms",
            pct(share),
            ns / 1e6
        ),
        disproof: disproof.into(),
        trade_off: None,
    })
}

/// Where it was not: a conversation that looks as if its beginning was computed with each request.
fn again_in(found: &SequenceReport) -> Option<Advice> {
    let mut most: Option<(usize, u64)> = None;
    for sequence in &found.sequences {
        let of_it = |row: &&RequestRow| {
            (row.pid, row.context, row.seq) == (sequence.pid, sequence.context, sequence.seq)
        };
        let rows: Vec<&RequestRow> = found.requests.iter().filter(of_it).collect();
        let pairs = rows.windows(2).filter_map(|w| match w {
            [a, b] if grows(a, b) => Some(a.prompt_tokens),
            _ => None,
        });
        let (n, tokens) = pairs.fold((0, 0u64), |(n, sum), again| (n + 1, sum.saturating_add(again)));
        if n >= AGAIN && n * 2 >= rows.len() && most.is_none_or(|m| m.1 < tokens) {
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
            "{n} requests of one sequence began at position 0 with a prompt longer than the one before; about {tokens} \
             tokens were computed again if they are of one conversation"
        ),
        disproof: "the prompts have no beginning in common".into(),
        trade_off: None,
    })
}

/// Whether `b` looks like the continuation of `a`, computed from its beginning. What a model only thought is not in the
/// next prompt. Nothing is generated for an embedding: its one output is no answer to go on from.
fn grows(a: &RequestRow, b: &RequestRow) -> bool {
    let known = b.cached_tokens == Some(0) && !a.late && a.prompt_tokens > 32 && a.tokens > 1;
    known && b.prompt_tokens > a.prompt_tokens && b.prompt_tokens < a.prompt_tokens.saturating_mul(2)
}

/// Requests, at least, and their time in the queue over all of it, from which on more slots are advised; and at most so many.
const QUEUED: usize = 4;
const WAITED: f64 = 0.2;
const SLOTS: f64 = 8.0;

/// Requests that wait for the only slot, while a call could decode for several of them.
pub fn one_slot(r: &RuleInput<'_>) -> Option<Advice> {
    one_slot_in(r.facts.report.sequences.as_ref()?)
}

fn one_slot_in(found: &SequenceReport) -> Option<Advice> {
    (found.batching.most == 1).then_some(())?;
    let known = || found.requests.iter().filter_map(|r| Some((r.queued_ns?, r.duration_ns)));
    let (queued, busy) = known().fold((0.0, 0.0), |(q, d), r| (q + r.0 as f64, d + r.1 as f64));
    let share = queued / (queued + busy);
    if known().count() < QUEUED || share < WAITED {
        return None;
    }
    let slots = ((queued + busy) / busy.max(1.0)).ceil().clamp(2.0, SLOTS);
    Some(Advice {
        rule: "one-slot",
        title: format!("give the server {slots:.0} slots: requests wait for the only one"),
        actions: vec![format!("-np {slots:.0}, with -c {slots:.0} times as large: slots share the context")],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "requests spent {} of their time in the queue, and no call decoded for more than one",
            pct(share)
        ),
        disproof: "with more slots, the same requests take as long together".into(),
        trade_off: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::sequences::{Batching, PromptBefore, SequenceRow};

    /// A request of sequence 0: tokens of its prompt, tokens that it brought, ms in the queue.
    fn row(prompt: u64, tokens: u64, queued: u64) -> RequestRow {
        RequestRow {
            pid: 1,
            context: 1,
            seq: 0,
            start_ns: 0,
            queued_ns: Some(queued * 1_000_000),
            duration_ns: 100_000_000,
            prompt_tokens: prompt,
            cached_tokens: Some(0),
            prefill_calls: 1,
            prefill_ns: 0,
            ttft_ns: None,
            tokens,
            decode_ns: None,
            tpot: None,
            stalled_ns: 0,
            drafts: 0,
            drafted: 0,
            accepted: 0,
            before: None,
            late: false,
            at_least: false,
        }
    }

    fn served(requests: Vec<RequestRow>, most: u64) -> SequenceReport {
        let sequence = SequenceRow { pid: 1, context: 1, seq: 0, ..SequenceRow::default() };
        SequenceReport {
            requests,
            sequences: vec![sequence],
            requests_left_out: 0,
            ttft: None,
            queued: None,
            tpot: None,
            batching: Batching { most, ..Batching::default() },
            speculation: None,
            untracked: 0,
            incomplete: None,
        }
    }

    fn again_of(prompts: &[u64], tokens: u64) -> Option<Advice> {
        again_in(&served(prompts.iter().map(|n| row(*n, tokens, 0)).collect(), 1))
    }

    /// What the model thought is not in the next prompt, which is shorter than the one before with its answer.
    #[test]
    fn a_conversation_that_is_computed_again_is_told_also_without_its_thoughts() {
        let turns = [1000, 1300, 1600, 1900, 2200];
        for tokens in [200, 900] {
            let found = again_of(&turns, tokens).expect("the beginning is computed again");
            assert!(
                found.evidence.starts_with("4 requests") && found.evidence.contains("5800 tokens"),
                "{found:?}"
            );
        }
        // Documents that are embedded, the shortest first; and requests of no common length.
        assert!(again_of(&turns, 1).is_none());
        assert!(again_of(&[1000, 300, 400, 90, 120, 1000, 40, 50], 200).is_none());
    }

    #[test]
    fn tokens_that_were_computed_before_are_told_with_where_they_were() {
        let with = |again, elsewhere: Option<u64>| {
            let before = PromptBefore {
                had_tokens: 900,
                again_tokens: again,
                differs_at: None,
                elsewhere_seq: elsewhere.map(|_| 1),
                elsewhere_tokens: elsewhere,
            };
            let one = RequestRow { before: Some(before), prefill_ns: 2_000_000, ..row(1000, 20, 0) };
            known_again(&served(vec![one; 3], 1))
        };
        let own = with(500, None).expect("half of it");
        assert!(own.title.starts_with("keep prompts in the cache: 1500 tokens"), "{own:?}");
        assert!(own.evidence.ends_with("50 % of the prompts, 3 ms"), "{own:?}");
        let moved = with(0, Some(800)).expect("another slot had it");
        assert!(
            moved.title.starts_with("give each conversation its slot: another slot had 2400"),
            "{moved:?}"
        );
        assert_eq!(with(160, None), None);
        // Without what the tokens are, a guess; with it, none.
        assert!(again_of(&[1000, 1300, 1600, 1900, 2200], 200).is_some());
    }

    #[test]
    fn requests_that_wait_for_the_only_slot_are_told() {
        let of = |queued: u64, n: usize, most| one_slot_in(&served(vec![row(40, 24, queued); n], most));
        let found = of(100, 6, 1).expect("they wait for as long as they compute");
        assert!(found.actions[0].starts_with("-np 2, ") && found.evidence.contains("50 %"), "{found:?}");
        assert!(of(700, 6, 1).is_some_and(|a| a.actions[0].starts_with("-np 8, ")));
        assert!(of(10, 6, 1).is_none() && of(100, 3, 1).is_none() && of(100, 6, 2).is_none());
    }
}
