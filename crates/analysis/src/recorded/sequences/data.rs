//! What is known of calls, sequences and requests.

use serde::Serialize;

use super::contents::PromptBefore;
use crate::recorded::call::{Call, Phase};
use pfi::record::Chunk;
use requests::{ChunkWork, SeqKey};

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
    /// When the server took it in, CLOCK_MONOTONIC; None: not known.
    pub arrived: Option<i64>,
    /// Position of its first token, which is the number of prompt tokens found in the KV cache. None: not known.
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
    /// Its prompt beside what had been computed before; None: what the tokens are was not recorded.
    pub before: Option<PromptBefore>,
}

impl SeqRequest {
    pub(super) fn begin(key: SeqKey, start: i64, cached: Option<u64>, late: bool) -> SeqRequest {
        SeqRequest {
            pid: key.0,
            context: key.1,
            seq: key.2,
            start,
            arrived: None,
            cached,
            prompt: 0,
            prefill_calls: 0,
            prefill_ns: 0,
            first_token: None,
            steps: Vec::new(),
            late,
            cut: false,
            encoded: 0,
            before: None,
        }
    }

    /// A call has computed a chunk of it.
    pub(super) fn take(&mut self, call: &Call, chunk: &Chunk, work: ChunkWork) {
        match work {
            ChunkWork::Prefill => {
                self.prompt = self.prompt.saturating_add(chunk.tokens);
                self.prefill_calls += 1;
                self.prefill_ns = self.prefill_ns.saturating_add(call.dur);
                self.cut |= call.cut;
            }
            ChunkWork::Encode => self.encoded = self.encoded.saturating_add(chunk.tokens),
            ChunkWork::Decode | ChunkWork::Verify => {}
        }
    }

    /// The step that this call brought.
    pub fn step_of(&self, call: usize) -> Option<&TokenStep> {
        self.steps.get(self.steps.partition_point(|s| s.call < call)).filter(|s| s.call == call)
    }

    /// From when the server took it in, or from the start of its first call where that is not known, to the end of the call
    /// that gave its first token, ns; none if one of the calls was not seen.
    pub(super) fn ttft(&self) -> Option<u64> {
        let end = self.first_token.filter(|_| !self.cut && !self.late)?;
        Some(end.saturating_sub(self.arrived.unwrap_or(self.start)).max(0) as u64)
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
    /// The output that was asked for with the last token of a text is an embedding, and no token.
    pub(in crate::recorded) fn generate_nothing(&mut self) {
        for request in &mut self.requests {
            request.first_token = None;
            request.steps.clear();
        }
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
