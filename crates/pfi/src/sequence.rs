//! Records of what a call computes, sequence by sequence, and of changes of a context's memory. Since 1.8.

use serde::{Deserialize, Serialize};

use crate::record::as_bytes;

/// The tokens of a batch, or of the part of it that is computed as one graph (a ubatch).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ubatch<'a> {
    /// seq of the Token record of the call, which comes later; absent if the call's entry was not seen.
    pub token: Option<u64>,
    pub pid: u32,
    pub tid: u32,
    pub t: i64,
    /// Address of the llama_context; 0 = unknown.
    pub context: u64,
    /// Tokens in it; 0: the record continues the one before of this thread.
    pub tokens: u32,
    /// Of those, the ones after this record's chunks that were not read.
    pub unread: u32,
    /// The batch as passed to the call, which may be computed in parts; otherwise a ubatch.
    pub whole: bool,
    /// [`Chunk`]s in order, four varints each: zigzag of `seq`, zigzag of `pos`, `tokens`, `outputs`.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// Consecutive tokens of one sequence in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// llama_seq_id.
    pub seq: i64,
    /// Position of the first token in its sequence; negative: not known.
    pub pos: i64,
    pub tokens: u64,
    /// Tokens whose logits or embeddings are wanted. Of a chunk of more than 32, those between its ends are taken to be
    /// like the first.
    pub outputs: u64,
}

/// What consecutive tokens of a sequence are, as hashes that tell only whether they are the same ones. Since 1.12.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content<'a> {
    /// seq of the Token record of the call, which comes later; its Ubatch says which context it is of.
    pub token: u64,
    pub pid: u32,
    pub t: i64,
    /// llama_seq_id.
    pub seq: i64,
    /// Position of the first token, and number of tokens.
    pub pos: u64,
    pub tokens: u64,
    /// For each block of [`CONTENT_BLOCK`] positions that they touch, 8 bytes: the sum of their hashes, little-endian. 0: not
    /// read.
    #[serde(serialize_with = "as_bytes")]
    pub data: &'a [u8],
}

/// Positions of a block.
pub const CONTENT_BLOCK: u64 = 16;

/// What is done to the memory of a context (its KV cache).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryChange {
    Clear,
    Remove,
    Copy,
    /// All other sequences are removed.
    Keep,
    /// Positions are moved.
    Shift,
    Save,
    Load,
    /// Positions are divided.
    Divide,
}

/// A call that changes, saves or loads the memory of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCall {
    pub pid: u32,
    pub tid: u32,
    pub t: i64,
    /// Address of the llama_context; 0 = unknown.
    pub context: u64,
    pub what: MemoryChange,
    /// The sequence; negative: all.
    pub seq: i64,
    /// Copy: the sequence copied to. Shift: by how much. Divide: the divisor.
    pub to: i64,
    /// First position, and the position after the last; negative: the first, and the end.
    pub from: i64,
    pub until: i64,
}

/// A request of a server: it is taken in, or the server has the first result of it that names a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerTask {
    pub pid: u32,
    pub tid: u32,
    pub t: i64,
    /// The server's number of the request.
    pub task: i64,
    /// The sequence that computes it; absent: it is taken in.
    pub seq: Option<u64>,
}
