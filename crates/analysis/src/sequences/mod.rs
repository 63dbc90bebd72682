//! What a call is made of, sequence by sequence; the requests that this shows; and how well batching and speculation do.
//!
//! A server computes several sequences (slots) in one call: parts of prompts, single tokens, and drafts to verify. The
//! records of batches say which; without them nothing here is known, and nothing is guessed.

mod batch;
mod batching;
mod echo;
mod request;
mod speculation;
mod track;

#[cfg(test)]
mod tests;

use serde::Serialize;

pub use self::batching::{BatchRow, Batching};
pub use self::request::{RequestRow, SequenceRow, rows as request_rows};
pub use self::speculation::{Speculation, SpeculationCost};
use self::track::Tracker;
use super::calls::{Call, Latency, Phase, Request};
use super::load::Loaded;
use pfi::record::{Availability, Chunk};

/// What a chunk of a batch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunkWork {
    /// Part of a prompt.
    Prefill,
    /// One token after a prompt.
    Decode,
    /// A draft and the token before it.
    Verify,
    /// Given to llama_encode.
    Encode,
}

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    Prefill,
    /// One token for each of its sequences.
    Decode,
    /// Drafts of at least one sequence are verified, and no prompt is computed.
    Verify,
    /// Prompts of some sequences, and tokens of others.
    Mixed,
    Encode,
}

impl CallKind {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            CallKind::Prefill => "prefill",
            CallKind::Decode => "decode",
            CallKind::Verify => "verify",
            CallKind::Mixed => "mixed",
            CallKind::Encode => "encode",
        }
    }
}

/// A call's chunks, each with what it is for and the index of its request.
#[derive(Debug, Clone, PartialEq)]
pub struct CallWork {
    /// Address of the llama_context; 0 = unknown.
    pub context: u64,
    pub chunks: Vec<(Chunk, ChunkWork, usize)>,
    pub unread: u64,
}

impl CallWork {
    /// What the call is for; none if its tokens were not all read.
    pub fn kind(&self) -> Option<CallKind> {
        if self.unread > 0 || self.chunks.is_empty() {
            return None;
        }
        let any = |work| self.chunks.iter().any(|c| c.1 == work);
        let (prompt, steps) = (any(ChunkWork::Prefill), any(ChunkWork::Decode) || any(ChunkWork::Verify));
        Some(match (prompt, steps) {
            _ if any(ChunkWork::Encode) => CallKind::Encode,
            (true, true) => CallKind::Mixed,
            (true, false) => CallKind::Prefill,
            _ if any(ChunkWork::Verify) => CallKind::Verify,
            _ => CallKind::Decode,
        })
    }

    /// Number of sequences.
    pub fn sequences(&self) -> u64 {
        let mut all: Vec<i64> = self.chunks.iter().map(|c| c.0.seq).collect();
        all.sort_unstable();
        all.dedup();
        all.len() as u64
    }

    /// The phase for figures of operators: graphs of one token for each sequence, and of drafts, are those of decode.
    pub fn phase(&self) -> Option<Phase> {
        let single = self.chunks.iter().all(|c| c.0.tokens == 1 && c.1 != ChunkWork::Encode);
        Some(match self.kind()? {
            _ if single => Phase::Decode,
            CallKind::Decode | CallKind::Verify => Phase::Decode,
            CallKind::Prefill | CallKind::Mixed | CallKind::Encode => Phase::Prefill,
        })
    }
}

/// A token, or those that a draft brought, after the first of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenStep {
    /// Index of the call.
    pub call: usize,
    /// End of the call, CLOCK_MONOTONIC ns; with a draft model, of its call with the same tokens.
    pub end: i64,
    /// Tokens of the draft that the call verified.
    pub drafted: u64,
    /// How many of them were accepted; none if it was not seen.
    pub accepted: Option<u64>,
    /// The end of the call was not seen.
    pub cut: bool,
}

impl TokenStep {
    /// Tokens that the step brought; at least one.
    pub fn produced(&self) -> u64 {
        self.accepted.unwrap_or(0).saturating_add(1)
    }
}

/// One request of one sequence, as its chunks show it.
#[derive(Debug, Clone, PartialEq)]
pub struct SeqRequest {
    pub pid: u32,
    pub context: u64,
    pub seq: i64,
    /// Start of its first call.
    pub start: i64,
    /// Position of its first token: so many tokens of the prompt were in the memory already. None: not known.
    pub cached: Option<u64>,
    /// Tokens of the prompt that were computed.
    pub prompt: u64,
    pub prefill_calls: u64,
    /// Time in these calls, ns.
    pub prefill_ns: u64,
    /// End of the last prefill call that gave logits.
    pub first_token: Option<i64>,
    pub steps: Vec<TokenStep>,
    /// It began before the recording did.
    pub late: bool,
    /// The end of one of its prefill calls was not seen.
    pub cut: bool,
    /// Tokens given to llama_encode.
    pub encoded: u64,
}

impl SeqRequest {
    fn begin(key: (u32, u64, i64), call: &Call, chunk: &Chunk, late: bool) -> SeqRequest {
        SeqRequest {
            pid: key.0,
            context: key.1,
            seq: key.2,
            start: call.start,
            cached: u64::try_from(chunk.pos).ok().filter(|_| !late),
            prompt: 0,
            prefill_calls: 0,
            prefill_ns: 0,
            first_token: None,
            steps: Vec::new(),
            late,
            cut: false,
            encoded: 0,
        }
    }

    /// Whether it is past its prompt.
    fn answered(&self) -> bool {
        self.late || self.first_token.is_some() || !self.steps.is_empty()
    }

    fn take(&mut self, index: usize, call: &Call, chunk: &Chunk, kind: ChunkWork) {
        let step =
            |drafted, accepted| TokenStep { call: index, end: call.end(), drafted, accepted, cut: call.cut };
        match kind {
            ChunkWork::Prefill => {
                self.prompt = self.prompt.saturating_add(chunk.tokens);
                self.prefill_calls += 1;
                self.prefill_ns = self.prefill_ns.saturating_add(call.dur);
                self.cut |= call.cut;
                if chunk.outputs > 0 {
                    self.first_token = Some(call.end());
                }
            }
            ChunkWork::Decode => self.steps.push(step(0, Some(0))),
            ChunkWork::Verify => self.steps.push(step(chunk.tokens.saturating_sub(1), None)),
            ChunkWork::Encode => self.encoded = self.encoded.saturating_add(chunk.tokens),
        }
    }

    /// The step that this call brought.
    pub fn step_of(&self, call: usize) -> Option<&TokenStep> {
        self.steps.get(self.steps.partition_point(|s| s.call < call)).filter(|s| s.call == call)
    }

    /// What the call of this index gave is there at `until` only.
    fn delay(&mut self, call: usize, end: i64, kind: ChunkWork, until: i64) {
        if kind == ChunkWork::Prefill && self.first_token == Some(end) {
            self.first_token = Some(until);
        }
        let at = self.steps.partition_point(|s| s.call < call);
        if let Some(step) = self.steps.get_mut(at).filter(|s| s.call == call) {
            step.end = until;
        }
    }

    /// From the start of its first call to the end of the call that gave its first token, ns; none if one of them was not
    /// seen.
    fn ttft(&self) -> Option<u64> {
        let end = self.first_token.filter(|_| !self.cut && !self.late)?;
        Some(end.saturating_sub(self.start).max(0) as u64)
    }

    /// Tokens that it has brought: the first after the prompt, and those of the steps.
    pub fn produced(&self) -> u64 {
        let first = u64::from(self.first_token.is_some());
        self.steps.iter().fold(first, |n, s| n.saturating_add(s.produced()))
    }
}

/// The sequences of a recording.
#[derive(Debug, Clone, Default)]
pub struct Sequences {
    /// Parallel to the calls; none where the batch was not recorded.
    pub works: Vec<Option<CallWork>>,
    pub requests: Vec<SeqRequest>,
    /// Chunks of more sequences than are followed.
    pub untracked: u64,
}

impl Sequences {
    /// Reads the batches of the calls, which are in time order. None: no batch was recorded.
    pub fn of(loaded: &Loaded<'_>, calls: &[Call]) -> Option<Sequences> {
        if loaded.causes.ubatches.is_empty() {
            return None;
        }
        let mut tracker = Tracker::default();
        let mut changes: Vec<_> = loaded.causes.memory.iter().collect();
        changes.sort_by_key(|m| m.t);
        let mut changes = changes.into_iter().peekable();
        let mut works = Vec::with_capacity(calls.len());
        for (i, (call, batch)) in calls.iter().zip(batch::call_batches(loaded, calls)).enumerate() {
            while let Some(m) = changes.next_if(|m| m.t <= call.start) {
                tracker.memory(m);
            }
            works.push(batch.map(|batch| tracker.call(i, call, &batch)));
        }
        changes.for_each(|m| tracker.memory(m));
        echo::delay(loaded, calls, &works, &mut tracker.requests);
        Some(Sequences { works, requests: tracker.requests, untracked: tracker.untracked })
    }

    /// Tokens that a call has brought, if that is known: of a prompt those computed, of drafts those accepted.
    pub fn tokens(&self, call: usize) -> Option<u64> {
        let work = self.works.get(call)?.as_ref().filter(|w| w.unread == 0)?;
        let brought = |(chunk, kind, request): &(Chunk, ChunkWork, usize)| match kind {
            ChunkWork::Verify => self.requests.get(*request)?.step_of(call).map(TokenStep::produced),
            _ => Some(chunk.tokens),
        };
        work.chunks.iter().try_fold(0u64, |n, c| Some(n.saturating_add(brought(c)?)))
    }
}

/// The requests as the report lists them for all recordings.
pub fn requests(all: &Sequences) -> Vec<Request> {
    let request = |r: &SeqRequest| Request {
        pid: r.pid,
        start_ns: r.start,
        prefill_calls: r.prefill_calls,
        prompt_tokens: (!r.late).then_some(r.prompt),
        ttft_ns: r.ttft(),
        prefill_ns: r.prefill_ns,
        decode_calls: r.steps.len() as u64,
    };
    let mut list: Vec<Request> = all.requests.iter().map(request).collect();
    list.sort_by_key(|r| (r.start_ns, r.pid));
    list
}

/// The part of the report about sequences.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SequenceReport {
    pub requests: Vec<RequestRow>,
    /// By sequence, in the order of their first requests.
    pub sequences: Vec<SequenceRow>,
    /// Rows beyond those shown.
    pub requests_left_out: u64,
    /// Over all requests; null if none is known.
    pub ttft: Option<Latency>,
    pub tpot: Option<Latency>,
    pub batching: Batching,
    /// Omitted if no draft was verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,
    /// Chunks of more sequences than are followed.
    pub untracked: u64,
    /// Why figures are incomplete: what of the batches could not be read; null: all was.
    pub incomplete: Option<String>,
}

/// Builds the report of the calls shown, with at most `top` requests.
pub fn report(loaded: &Loaded<'_>, calls: &[Call], all: &Sequences, top: Option<usize>) -> SequenceReport {
    let requests: Vec<RequestRow> = request::rows(calls, all).into_iter().map(|(_, row)| row).collect();
    let left_out = requests.len().saturating_sub(top.unwrap_or(usize::MAX));
    let told =
        loaded.causes.features.iter().find(|f| f.name == "sequences" && f.state != Availability::Whole);
    SequenceReport {
        ttft: super::calls::latency(requests.iter().filter_map(|r| r.ttft_ns).collect()),
        tpot: super::calls::weighted(request::token_times(all)),
        batching: Batching { stalled: request::stalled_share(&requests), ..batching::batching(calls, all) },
        sequences: request::by_sequence(&requests, all),
        speculation: speculation::speculation(loaded, calls, all),
        requests: requests.into_iter().take(top.unwrap_or(usize::MAX)).collect(),
        requests_left_out: left_out as u64,
        untracked: all.untracked,
        incomplete: told.map(|f| f.why.to_owned()),
    }
}

/// Why the sequences of a recording are not known.
pub fn why_unknown(loaded: &Loaded<'_>) -> String {
    let told = loaded.causes.features.iter().find(|f| f.name == "sequences");
    told.map_or("recorded by a profinfer that did not read batches", |f| f.why).into()
}
