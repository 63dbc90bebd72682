//! What those who follow requests are given: calls that have returned, and requests that a server took in.

/// A sequence of a context: process, address of the llama_context, llama_seq_id.
pub type SeqKey = (u32, u64, i64);

/// A request is over when its context was not called for this long, ns.
pub(crate) const IDLE_NS: i64 = 10_000_000_000;
/// Where batches are not read, a short prompt that follows a token after less than this, ns, cannot be told from a check of
/// drafted tokens. Where they are, a context that begins what another one has just begun may be a draft model's.
pub(crate) const PAUSE_NS: u64 = 50_000_000;

/// A call on a batch that has returned. Times are CLOCK_MONOTONIC, in ns.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// What those who gave it know it by.
    pub id: u64,
    pub pid: u32,
    /// Address of its context.
    pub context: u64,
    /// Tokens of its batch; 0: not known. Asked for only where its chunks are not known.
    pub width: u32,
    pub start: i64,
    /// When its work had ended.
    pub end: i64,
    /// That end was seen. Otherwise `end` is any time after `start`.
    pub seen: bool,
    /// It is a call of llama_encode.
    pub encodes: bool,
}

/// A request that a server took in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub pid: u32,
    /// When the server took it in, CLOCK_MONOTONIC ns.
    pub at: i64,
    /// The sequence that its first result names. `None`: it was taken in just now, and its sequence is not known yet.
    pub seq: Option<u64>,
}

/// From one time to another, ns; 0 if that is not later.
pub(crate) fn span(from: i64, to: i64) -> u64 {
    to.saturating_sub(from).try_into().unwrap_or(0)
}
