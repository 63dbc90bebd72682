//! The open block of a trace being written: takes records, produces framed bytes and their counts. Also defines
//! the writer's errors.

use std::io;

use super::block::{BLOCK_HEADER, MAX_PAYLOAD, Predictors, TENSOR, put_call, put_record, put_tensor};
use super::describe::Past;
use super::predict::CallPredictor;
use super::record::*;
use super::tensors::{KeptTensor, MAX_SRC};

/// Most hits of a plan.
pub const MAX_HITS: usize = 65_536;

/// Why the writer stopped.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(
        "cannot write block {block} of the trace after {written} bytes: {source}; what was written before is intact"
    )]
    Io { block: u32, written: u64, source: io::Error },
    #[error("the trace ended with an earlier write error after {written} bytes")]
    Stopped { written: u64 },
    #[error("a {kind} record of {bytes} bytes does not fit into a block (at most {MAX_PAYLOAD} bytes)")]
    TooLarge { kind: &'static str, bytes: usize },
    #[error("plan {0} is no longer in the table; pass it to the writer again")]
    UnknownPlan(u32),
    #[error("a graph of {0} op hits exceeds the limit of the trace format ({MAX_HITS})")]
    TooManyHits(usize),
    #[error("a tensor with {0} sources exceeds the limit of the trace writer ({MAX_SRC})")]
    TooManySources(usize),
    #[error("cannot encode a record: {0}")]
    Encode(#[from] postcard::Error),
}

/// Counts of what was written, by record kind (indexed like [`KIND_NAMES`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderStats {
    pub blocks: u32,
    pub slices: u64,
    pub records: [u64; KIND_NAMES.len()],
    /// Bytes of the records, length prefixes included, file and block headers excluded.
    pub bytes: [u64; KIND_NAMES.len()],
}

impl Default for EncoderStats {
    fn default() -> Self {
        let none = [0; KIND_NAMES.len()];
        EncoderStats { blocks: 0, slices: 0, records: none, bytes: none }
    }
}

/// A definition in its final encoding, written again in each block that uses it.
pub(crate) struct Def {
    pub bytes: Vec<u8>,
    pub kind: usize,
    pub written: u32,
}

/// The open block.
pub(crate) struct OpenBlock {
    /// Space for the block header, then the payload.
    pub bytes: Vec<u8>,
    pub body: Vec<u8>,
    /// Number of the block, from 1 (0 means "never written" in the tables).
    pub number: u32,
    pub first_ts: Option<u64>,
    pub stats: EncoderStats,
    pub before: Predictors,
    scratch: Vec<u8>,
}

impl OpenBlock {
    /// An empty block; `bytes` and `body` are the capacities for its payload and for one record.
    pub fn new(bytes: usize, body: usize) -> OpenBlock {
        let mut payload = Vec::with_capacity(BLOCK_HEADER + bytes);
        payload.resize(BLOCK_HEADER, 0);
        OpenBlock {
            bytes: payload,
            body: Vec::with_capacity(body),
            number: 1,
            first_ts: None,
            stats: EncoderStats::default(),
            before: Predictors { calls: CallPredictor::new(0), tensors: Past::with_room() },
            scratch: Vec::with_capacity(1024),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.payload() == 0
    }

    /// Bytes of the payload.
    pub fn payload(&self) -> usize {
        self.bytes.len() - BLOCK_HEADER
    }

    /// Begins the next block.
    pub fn next(&mut self) {
        self.bytes.truncate(BLOCK_HEADER);
        self.number += 1;
        self.first_ts = None;
        self.before.tensors.clear();
    }

    /// Appends a record; its time, if any, is absolute.
    pub fn put(&mut self, mut record: Record) -> Result<(), WriteError> {
        let before = self.bytes.len();
        let kind = record.kind();
        if let Some(t) = record.time()
            && self.first_ts.is_none()
        {
            self.first_ts = Some(t as u64);
            self.before.calls = CallPredictor::new(t as u64);
        }
        if let Some(t) = record.relative_time() {
            *t = t.wrapping_sub(self.first_ts.unwrap_or(0) as i64);
        }
        match record {
            Record::Token(_)
            | Record::Graph(_)
            | Record::Split(_)
            | Record::CpuGraph(_)
            | Record::Slices(_) => put_call(&mut self.bytes, &mut self.body, &mut self.before.calls, &record),
            _ => put_record(&mut self.bytes, &mut self.body, &record)?,
        }
        self.account(kind, before)
    }

    pub fn put_tensor(&mut self, id: u32, content: &KeptTensor) -> Result<(), WriteError> {
        let before = self.bytes.len();
        let past = &mut self.before.tensors;
        put_tensor(&mut self.bytes, &mut self.body, &mut self.scratch, past, id, content);
        self.account(TENSOR, before)
    }

    pub fn put_def(&mut self, def: &mut Def) -> Result<(), WriteError> {
        if def.written == self.number {
            return Ok(());
        }
        def.written = self.number;
        let before = self.bytes.len();
        self.bytes.extend_from_slice(&def.bytes);
        self.account(def.kind, before)
    }

    fn account(&mut self, kind: usize, before: usize) -> Result<(), WriteError> {
        let bytes = self.bytes.len() - before;
        if self.bytes.len() - BLOCK_HEADER > MAX_PAYLOAD {
            self.bytes.truncate(before);
            return Err(WriteError::TooLarge {
                kind: KIND_NAMES.get(kind).copied().unwrap_or("unknown"),
                bytes,
            });
        }
        if let (Some(n), Some(b)) = (self.stats.records.get_mut(kind), self.stats.bytes.get_mut(kind)) {
            *n += 1;
            *b += bytes as u64;
        }
        Ok(())
    }
}

/// Encodes a definition once for all blocks.
pub(crate) fn def(record: &Record) -> Result<Def, WriteError> {
    let (mut bytes, mut body) = (Vec::new(), Vec::new());
    put_record(&mut bytes, &mut body, record)?;
    Ok(Def { bytes, kind: record.kind(), written: 0 })
}
