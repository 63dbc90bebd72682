//! A request in progress, as `top` and the service show it.

use serde::{Deserialize, Serialize};

/// How far a request in progress is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestPhase {
    #[default]
    Prompt,
    /// It has its first token.
    Decode,
}

/// A request in progress, or the last one of a sequence. Times in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestNow {
    pub pid: u32,
    /// Contexts of the process in the order in which they computed first, from 1.
    pub context: u32,
    /// The sequence: of a server, its slot.
    pub seq: i64,
    pub phase: RequestPhase,
    /// Tokens of the prompt that were computed so far.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that were in the memory already; null if not known.
    pub cached_tokens: Option<u64>,
    /// From the start of its first call to the end of the call that gave the first token; null if there is none yet, or its
    /// start was not seen.
    pub ttft_ns: Option<u64>,
    /// Tokens that it has brought.
    pub tokens: u64,
    /// From the first token to the last; null with less than two.
    pub tokens_per_s: Option<f64>,
    /// Of its drafts, the tokens verified and accepted.
    pub drafted: u64,
    pub accepted: u64,
    /// From the start of its first call to the end of its last.
    pub duration_ns: u64,
    /// Since then.
    pub idle_ns: u64,
}
