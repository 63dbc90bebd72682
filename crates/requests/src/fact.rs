//! What becomes known of requests.

use super::call::SeqKey;
use super::sequence::ChunkWork;
use pfi::record::Chunk;

/// Something became known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    pub pid: u32,
    /// The request: its number in the order in which they began, from 0. `None` where batches are not read, or it is not
    /// followed.
    pub request: Option<u64>,
    /// It is one of a draft model's context: part of another request.
    pub draft: bool,
    pub fact: Fact,
}

/// What became known. Times are CLOCK_MONOTONIC, in ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fact {
    /// A request began with a chunk of a call that began at `start`.
    Began {
        key: SeqKey,
        start: i64,
        /// Tokens of its prompt that were in the memory already, if known.
        cached: Option<u64>,
        /// It began before its first chunk was seen.
        late: bool,
    },
    /// A call has computed a chunk of it.
    Chunk {
        call: u64,
        chunk: Chunk,
        work: ChunkWork,
        /// Of a draft model: its target is past the prompt.
        answers: bool,
    },
    /// A server took it in at `at`, and has named its sequence now.
    Arrived { at: i64 },
    /// It had its first token at `at`; `ttft_ns` is the time to it, if everything before was seen.
    FirstToken { at: i64, ttft_ns: Option<u64> },
    /// The result of the draft that a call verified.
    Settled { call: u64, accepted: u64 },
    /// What a call brought after the first token. Its draft, if it verified one, brought at least one token.
    Tokens {
        call: u64,
        end: i64,
        /// `end` was seen.
        seen: bool,
        work: ChunkWork,
        /// Tokens of the draft that it verified.
        drafted: u64,
        /// How many of them were accepted; `None`: it was not seen.
        accepted: Option<u64>,
        /// Time of each token, if everything of the request was seen.
        each_ns: Option<u64>,
    },
    /// It is over, and everything of it was seen.
    Ended { duration_ns: u64 },
    /// The request, or its rest, is not observed; once for each.
    Unobserved(Unobserved),
    /// A chunk of a sequence that found no room.
    Untracked { tokens: u64 },
}

/// Why a request, or its rest, is not observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unobserved {
    /// Tokens are decoded, and no prompt was seen before them.
    NoPrompt,
    /// A prompt was processed, and no token was decoded after it.
    NoToken,
    /// Calls with several tokens that may belong to several sequences, or be checks of drafted tokens.
    Sequences,
    /// Calls of several contexts of the process alternate.
    Contexts,
    /// The number of tokens of a call is not known.
    Width,
    /// The end of a call's work on a device was not seen.
    EndUnseen,
    /// Events of calls were lost.
    Lost,
    /// The recording of the process ended before the request did.
    Stopped,
    /// More contexts are in use than are followed.
    Crowded,
}

/// Number of reasons.
pub const REASONS: usize = 9;

impl Unobserved {
    /// All reasons, with their names in the metrics. Sums by reason have this order.
    pub const ALL: [(Unobserved, &'static str); REASONS] = [
        (Unobserved::NoPrompt, "prompt not seen"),
        (Unobserved::NoToken, "no token decoded"),
        (Unobserved::Sequences, "several sequences"),
        (Unobserved::Contexts, "several contexts"),
        (Unobserved::Width, "batch size unknown"),
        (Unobserved::EndUnseen, "end on device not seen"),
        (Unobserved::Lost, "events lost"),
        (Unobserved::Stopped, "recording ended"),
        (Unobserved::Crowded, "too many contexts"),
    ];
}
