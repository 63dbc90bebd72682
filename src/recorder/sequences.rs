//! Which sequences a call computes, and what is done to the memory of its context: checks what was read, finds the
//! context of a memory, and writes the records. Allocates only when created.

use std::io::Write;

use crate::capture::event::{self, CHUNKS, CHUNKS_ODD, CHUNKS_OF_BATCH, MemoryWhat};
use pfi::record::{Availability, Chunk, Feature, MemoryCall, MemoryChange, Ubatch};
use pfi::{Encoder, WriteError};

/// Contexts whose memory is known, of all processes.
const MEMORIES: usize = 64;
/// A sequence has a smaller number (LLAMA_MAX_SEQ is 256; llama-cparams.h, 2025-08).
const SEQUENCES: i32 = 4096;

/// The call during which a batch was read: seq of its Token record, address of its llama_context.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallOfBatch {
    pub token: Option<u64>,
    pub context: u64,
}

/// The memories of contexts, and how much of the batches was read.
#[derive(Default)]
pub struct Sequences {
    /// (process, memory, context), oldest first.
    memories: heapless::Vec<(u32, u64, u64), MEMORIES>,
    /// Tokens read and not read; batches of an unknown layout.
    read: u64,
    unread: u64,
    odd: u64,
}

/// Why an engine's batches cannot be read, if it is known before any is seen.
pub enum BatchSource {
    /// They are read where they are passed, or in parts.
    Readable,
    /// The engine takes its batches by llama_process, and has no function that takes their parts.
    NoParts,
    /// The source of events cannot read them.
    NoReader,
}

fn chunk(c: &crate::capture::skel::types::chunk) -> Option<Chunk> {
    let known = (0..SEQUENCES).contains(&c.seq) && c.pos >= -1 && c.tokens > 0 && c.outputs <= c.tokens;
    known.then(|| Chunk {
        seq: c.seq.into(),
        pos: c.pos.into(),
        tokens: c.tokens.into(),
        outputs: c.outputs.into(),
    })
}

impl Sequences {
    /// The tokens of a batch, or of a part of it.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn ubatch<W: Write>(
        &mut self,
        e: &event::Ubatch,
        call: CallOfBatch,
        enc: &mut Encoder<W>,
    ) -> Result<(), WriteError> {
        self.odd += u64::from(e.what & CHUNKS_ODD != 0);
        let told = e.chunk.iter().take((e.n as usize).min(CHUNKS));
        // A chunk that cannot be is not recorded, and its tokens are counted as unread.
        let bad: u32 = told.clone().filter(|c| chunk(c).is_none()).map(|c| c.tokens.min(e.tokens)).sum();
        let chunks = told.filter_map(chunk);
        let unread = e.unread.saturating_add(bad);
        self.read += chunks.clone().map(|c| c.tokens).sum::<u64>();
        self.unread += u64::from(unread);
        let batch = Ubatch {
            token: call.token,
            pid: e.h.tgid,
            tid: e.h.tid,
            t: e.h.ts as i64,
            context: call.context,
            tokens: e.tokens,
            unread,
            whole: e.what & CHUNKS_OF_BATCH != 0,
            data: &[],
        };
        enc.ubatch(&batch, chunks)
    }

    /// A call of a context whose memory is at this address.
    pub fn learn(&mut self, tgid: u32, memory: u64, context: u64) {
        if memory == 0 || context == 0 || self.memories.contains(&(tgid, memory, context)) {
            return;
        }
        self.memories.retain(|m| (m.0, m.1) != (tgid, memory));
        if self.memories.is_full() {
            self.memories.remove(0);
        }
        let _ = self.memories.push((tgid, memory, context));
    }

    /// A call that changes a context's memory.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn memory<W: Write>(&mut self, e: &event::Memory, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        let Some(what) = change(e.what) else { return Ok(()) };
        let of_process = || self.memories.iter().filter(|m| m.0 == e.h.tgid);
        // Functions of older releases take the context itself.
        let context = of_process().find(|m| m.1 == e.object || m.2 == e.object).map_or(0, |m| m.2);
        let (pid, tid, t) = (e.h.tgid, e.h.tid, e.h.ts as i64);
        let (seq, to, from, until) = (e.seq.into(), e.to.into(), e.from.into(), e.until.into());
        enc.memory(&MemoryCall { pid, tid, t, context, what, seq, to, from, until })
    }

    /// A process has ended.
    pub fn forget(&mut self, tgid: u32) {
        self.memories.retain(|m| m.0 != tgid);
    }

    /// Whether the batches were read, and why not.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn feature<W: Write>(
        &self,
        enc: &mut Encoder<W>,
        source: &BatchSource,
        lost: u64,
    ) -> Result<(), WriteError> {
        let (state, mut why) = match source {
            BatchSource::NoReader => (
                Availability::None,
                "perf events do not carry the tokens of a batch; they need a kernel with BPF".to_owned(),
            ),
            BatchSource::NoParts if self.read == 0 => (
                Availability::None,
                "this engine takes its batches by llama_process, in a form that is internal to it, and neither \
                 llama_context::process_ubatch nor llm_graph_result::set_inputs was found in its symbols"
                    .to_owned(),
            ),
            _ if self.odd > 0 && self.read == 0 => (
                Availability::None,
                "llama_ubatch of this engine has a layout that is not known".to_owned(),
            ),
            _ if self.read == 0 && self.unread == 0 => (Availability::None, "no batch was seen".to_owned()),
            _ if self.unread > 0 || self.odd > 0 => (
                Availability::Partly,
                format!("{} of {} tokens were not read", self.unread, self.read + self.unread),
            ),
            _ => (Availability::Whole, format!("{} tokens", self.read)),
        };
        let state = if lost > 0 && state == Availability::Whole { Availability::Partly } else { state };
        if lost > 0 {
            why.push_str(&format!("; {lost} batches or changes of memory lost"));
        }
        enc.feature(&Feature { name: "sequences", state, why: &why })
    }
}

fn change(what: u32) -> Option<MemoryChange> {
    Some(match MemoryWhat(what) {
        MemoryWhat::MEMORY_CLEAR => MemoryChange::Clear,
        MemoryWhat::MEMORY_REMOVE => MemoryChange::Remove,
        MemoryWhat::MEMORY_COPY => MemoryChange::Copy,
        MemoryWhat::MEMORY_KEEP => MemoryChange::Keep,
        MemoryWhat::MEMORY_SHIFT => MemoryChange::Shift,
        MemoryWhat::MEMORY_SAVE => MemoryChange::Save,
        MemoryWhat::MEMORY_LOAD => MemoryChange::Load,
        MemoryWhat::MEMORY_DIVIDE => MemoryChange::Divide,
        _ => return None,
    })
}
