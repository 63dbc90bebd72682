//! One row for each request.

use std::collections::HashMap;
use std::num::Saturating;

use serde::Serialize;

use super::contents::PromptBefore;
use super::data::{CallKind, SeqRequest, Sequences};
use crate::recorded::call::{Call, Latency, latency, weighted};
use common::order;
use requests::ChunkWork;

/// One request of one sequence. Times in ns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestRow {
    pub pid: u32,
    /// Contexts of the process in the order in which they computed first, from 1.
    pub context: u32,
    /// The sequence: of a server, its slot.
    pub seq: i64,
    /// Start of its first call, CLOCK_MONOTONIC.
    pub start_ns: i64,
    /// From when the server took it in to then; null if that is not known.
    pub queued_ns: Option<u64>,
    /// From `start_ns` to the end of its last call.
    pub duration_ns: u64,
    /// Tokens of the prompt that were computed.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that were in the memory already; null if not known.
    pub cached_tokens: Option<u64>,
    pub prefill_calls: u64,
    /// Time in its prefill calls.
    pub prefill_ns: u64,
    /// From when the server took it in, or from the start of its first call where that is not known, to the end of the call
    /// that gave the first token; null if one of the calls was not seen.
    pub ttft_ns: Option<u64>,
    /// Tokens that it brought.
    pub tokens: u64,
    /// From the first token to the last; null with less than two.
    pub decode_ns: Option<u64>,
    /// Time per token after the first.
    pub tpot: Option<Latency>,
    /// Of `decode_ns`, how much the prompts of other sequences added: calls that it did not take part in, and the time by
    /// which calls with a prompt took longer than its usual ones.
    pub stalled_ns: u64,
    /// Drafts verified, their tokens, and how many of these were accepted.
    pub drafts: u64,
    pub drafted: u64,
    pub accepted: u64,
    /// Its prompt beside what had been computed before; null if what the tokens are was not recorded.
    pub before: Option<PromptBefore>,
    /// It began before the recording.
    pub late: bool,
    /// `tokens` is a lower bound: the result of its last draft was not seen.
    pub at_least: bool,
}

/// Rows of the requests that computed a prompt or brought a token, in the order of time, with their indices in
/// [`Sequences::requests`].
pub fn rows(calls: &[Call], all: &Sequences) -> Vec<(usize, RequestRow)> {
    let usual = usual_step(calls, all);
    let prompts = Prompts::of(calls, all);
    let mut rows: Vec<(usize, RequestRow)> = Vec::with_capacity(all.requests.len());
    for (i, (r, number)) in all.requests.iter().zip(context_numbers(all)).enumerate() {
        if r.encoded == 0 || r.prompt > 0 {
            rows.push((i, row(r, number, calls, usual, &prompts)));
        }
    }
    order::by_key(&mut rows, |(_, r)| (order::time(r.start_ns), 0));
    rows
}

fn row(r: &SeqRequest, context: u32, calls: &[Call], usual: Option<u64>, prompts: &Prompts) -> RequestRow {
    let seen: Vec<_> = r.steps.iter().filter(|s| !s.cut).collect();
    let last = seen.last().map(|s| s.end).or(r.first_token);
    let first = r.first_token.or(seen.first().map(|s| s.end));
    RequestRow {
        pid: r.pid,
        context,
        seq: r.seq,
        start_ns: r.start,
        queued_ns: r.arrived.map(|t| r.start.saturating_sub(t).max(0) as u64),
        duration_ns: last.map_or(r.prefill_ns, |end| end.saturating_sub(r.start).max(0) as u64),
        prompt_tokens: r.prompt,
        cached_tokens: r.cached,
        prefill_calls: r.prefill_calls,
        prefill_ns: r.prefill_ns,
        ttft_ns: r.ttft(),
        tokens: r.produced(),
        decode_ns: first.zip(last).map(|(a, b)| b.saturating_sub(a).max(0) as u64).filter(|ns| *ns > 0),
        tpot: weighted(times(r)),
        stalled_ns: stalled(r, calls, usual, prompts),
        drafts: r.steps.iter().filter(|s| s.drafted > 0).count() as u64,
        drafted: sum(r.steps.iter().map(|s| s.drafted)),
        accepted: sum(r.steps.iter().filter_map(|s| s.accepted)),
        before: r.before,
        late: r.late,
        at_least: r.steps.iter().any(|s| s.accepted.is_none()),
    }
}

/// Times per token after the first, ns, with the number of tokens that took so long.
fn times(r: &SeqRequest) -> Vec<(u64, u64)> {
    let mut before = r.first_token;
    let mut out = Vec::with_capacity(r.steps.len());
    for step in &r.steps {
        if let (Some(before), false) = (before, step.cut) {
            let n = step.produced();
            out.push((step.end.saturating_sub(before).max(0) as u64 / n, n));
        }
        before = (!step.cut).then_some(step.end);
    }
    out
}

/// The same of all requests.
pub fn token_times(all: &Sequences) -> Vec<(u64, u64)> {
    all.requests.iter().flat_map(times).collect()
}

/// Median duration of the calls that only decode.
fn usual_step(calls: &[Call], all: &Sequences) -> Option<u64> {
    let steps = calls.iter().zip(&all.works).filter(|(c, w)| {
        !c.cut
            && w.as_ref()
                .and_then(|w| w.kind())
                .is_some_and(|k| matches!(k, CallKind::Decode | CallKind::Verify))
    });
    latency(steps.map(|(c, _)| c.dur).collect()).map(|l| l.p50_ns)
}

/// Calls with a part of a prompt: process, context, start, end, and time within them before each.
struct Prompts {
    list: Vec<(u32, u64, i64, i64)>,
}

impl Prompts {
    fn of(calls: &[Call], all: &Sequences) -> Prompts {
        let prompt = |c: &(&Call, &super::data::CallWork)| {
            c.1.chunks.iter().any(|c| c.1 == ChunkWork::Prefill) && !c.0.cut
        };
        let with = calls.iter().zip(&all.works).filter_map(|(c, w)| Some((c, w.as_ref()?)));
        let mut list: Vec<_> =
            with.filter(prompt).map(|(c, w)| (c.pid, w.context, c.start, c.end())).collect();
        order::by(&mut list, |a, b| (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)));
        Prompts { list }
    }

    /// Time of those that lie within an interval.
    fn within(&self, (pid, context): (u32, u64), from: i64, until: i64) -> u64 {
        let start = self.list.partition_point(|p| (p.0, p.1, p.2) < (pid, context, from));
        let of_it = self.list.iter().skip(start).take_while(|p| (p.0, p.1) == (pid, context) && p.2 < until);
        sum(of_it.filter(|p| p.3 <= until).map(|p| p.3.saturating_sub(p.2).max(0) as u64))
    }
}

/// How much the prompts of other sequences added to the decoding of a request, ns.
fn stalled(r: &SeqRequest, calls: &[Call], usual: Option<u64>, prompts: &Prompts) -> u64 {
    let mut before = r.first_token;
    let mut stalled = Saturating(0u64);
    for step in r.steps.iter().filter(|s| !s.cut) {
        let Some(call) = calls.get(step.call) else { continue };
        if let Some(before) = before {
            stalled += prompts.within((r.pid, r.context), before, call.start);
        }
        let mixed = prompts.within((r.pid, r.context), call.start, call.end());
        stalled += usual.map_or(0, |usual| mixed.saturating_sub(usual.min(mixed)));
        before = Some(step.end);
    }
    stalled.0
}

/// The sum, as large as it can be.
fn sum(of: impl Iterator<Item = u64>) -> u64 {
    of.fold(0, u64::saturating_add)
}

/// Share of `decode_ns` that is `stalled_ns`, of all requests with both.
pub fn stalled_share(rows: &[RequestRow]) -> Option<f64> {
    let with = rows.iter().filter_map(|r| Some((r.stalled_ns, r.decode_ns?)));
    let (stalled, all) = with.fold((0u64, 0u64), |(s, a), r| (s.saturating_add(r.0), a.saturating_add(r.1)));
    (all > 0).then(|| stalled as f64 / all as f64)
}

/// The requests of one sequence.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SequenceRow {
    pub pid: u32,
    /// As in [`RequestRow`].
    pub context: u32,
    pub seq: i64,
    pub requests: u64,
    pub prompt_tokens: u64,
    /// Null if not known of each.
    pub cached_tokens: Option<u64>,
    pub tokens: u64,
    pub ttft: Option<Latency>,
    pub tpot: Option<Latency>,
    /// Share of the decode time by which prompts of other sequences prolonged it.
    pub stalled: Option<f64>,
}

/// One row for each sequence.
pub fn by_sequence(rows: &[RequestRow], all: &Sequences) -> Vec<SequenceRow> {
    let mut keys: Vec<(u32, u32, i64)> = Vec::new();
    let mut of: HashMap<(u32, u32, i64), Vec<RequestRow>> = HashMap::new();
    for r in rows {
        let key = (r.pid, r.context, r.seq);
        if !of.contains_key(&key) {
            keys.push(key);
        }
        of.entry(key).or_default().push(r.clone());
    }
    let mut times: HashMap<(u32, i64, u32), Vec<(u64, u64)>> = HashMap::new();
    let numbers = context_numbers(all);
    for (r, number) in all.requests.iter().zip(numbers) {
        times.entry((r.pid, r.seq, number)).or_default().extend(self::times(r));
    }
    let row = |key: (u32, u32, i64)| {
        let own = of.remove(&key)?;
        Some(SequenceRow {
            pid: key.0,
            context: key.1,
            seq: key.2,
            requests: own.len() as u64,
            prompt_tokens: sum(own.iter().map(|r| r.prompt_tokens)),
            cached_tokens: own.iter().try_fold(0u64, |n, r| Some(n.saturating_add(r.cached_tokens?))),
            tokens: sum(own.iter().map(|r| r.tokens)),
            ttft: latency(own.iter().filter_map(|r| r.ttft_ns).collect()),
            tpot: times.remove(&(key.0, key.2, key.1)).and_then(weighted),
            stalled: stalled_share(&own),
        })
    };
    keys.into_iter().filter_map(row).collect()
}

/// The number of each request's context in its process, from 1.
fn context_numbers(all: &Sequences) -> Vec<u32> {
    let mut known: HashMap<u32, Vec<u64>> = HashMap::new();
    let number = |r: &SeqRequest| {
        let own = known.entry(r.pid).or_default();
        let at = own.iter().position(|c| *c == r.context).unwrap_or_else(|| {
            own.push(r.context);
            own.len() - 1
        });
        at as u32 + 1
    };
    all.requests.iter().map(number).collect()
}
