//! Which sequences a call computes, and what is done to the memory of its context: checks what was read, finds the
//! context of a memory, and writes the records. Allocates nothing but room for the batches of calls, which is used again.

use std::io::Write;

use crate::capture::event::{self, CHUNKS, CHUNKS_ODD, CHUNKS_OF_BATCH, Head, MemoryWhat};
use pfi::record::{Availability, Chunk, Content, Feature, MemoryCall, MemoryChange, Ubatch};
use pfi::{Encoder, WriteError};
use requests::CallBatches;

/// Contexts whose memory is known, of all processes.
const MEMORIES: usize = 64;
/// A sequence has a smaller number (LLAMA_MAX_SEQ is 256; llama-cparams.h, 2025-08).
const SEQUENCES: i32 = 4096;
/// Calls in progress whose batches are kept, and chunks of each.
const CALLS: usize = 16;
const CHUNKS_OF_CALL: usize = 64;

/// The call during which a batch was read: seq of its Token record, address of its llama_context.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallOfBatch {
    pub token: Option<u64>,
    pub context: u64,
}

/// The memories of contexts, and how much of the batches was read.
pub struct Sequences {
    /// (process, memory, context), oldest first.
    memories: heapless::Vec<(u32, u64, u64), MEMORIES>,
    calls: CallBatches,
    /// Tokens read and not read; batches of an unknown layout.
    read: u64,
    unread: u64,
    odd: u64,
}

impl Default for Sequences {
    fn default() -> Sequences {
        let calls = CallBatches::new(CALLS, CHUNKS_OF_CALL);
        Sequences { memories: heapless::Vec::new(), calls, read: 0, unread: 0, odd: 0 }
    }
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

/// What tokens of a batch of the call with this seq are.
///
/// # Errors
/// The trace cannot be written.
pub fn content<W: Write>(e: &event::Content, token: u64, enc: &mut Encoder<W>) -> Result<(), WriteError> {
    let hashes = e.hash.iter().take(e.n as usize).copied();
    write_content(&e.h, (e.seq, e.pos, e.tokens), token, hashes, enc)
}

/// Writes the hashes of a chunk: its sequence, first position and number of tokens.
fn write_content<W: Write>(
    head: &Head,
    (seq, pos, tokens): (i32, i32, u32),
    token: u64,
    hashes: impl Iterator<Item = u64>,
    enc: &mut Encoder<W>,
) -> Result<(), WriteError> {
    let Some(pos) = u64::try_from(pos).ok().filter(|_| (0..SEQUENCES).contains(&seq) && tokens > 0) else {
        return Ok(());
    };
    let (pid, t, seq, tokens) = (head.tgid, head.ts as i64, seq.into(), tokens.into());
    enc.content(&Content { token, pid, t, seq, pos, tokens, data: &[] }, hashes)
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
        let bad = told.clone().filter(|c| chunk(c).is_none()).map(|c| c.tokens.min(e.tokens));
        let chunks = told.filter_map(chunk);
        let unread = bad.fold(e.unread, u32::saturating_add);
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
        if let Some(token) = call.token {
            self.calls.add(token, &batch, chunks.clone());
        }
        enc.ubatch(&batch, chunks)?;
        let single = e.chunk.iter().take((e.n as usize).min(CHUNKS)).filter(|c| c.tokens == 1 && c.hash != 0);
        for (c, token) in single.zip(call.token.into_iter().cycle()) {
            let hash = std::iter::once(c.hash);
            write_content(&e.h, (c.seq, c.pos, c.tokens), token, hash, enc)?;
        }
        Ok(())
    }

    /// What the call with this seq computed; `None`: it is not known completely.
    pub fn take(&mut self, token: u64) -> Option<&[Chunk]> {
        let (batch, ()) = self.calls.take(token)?;
        batch.is_whole().then_some(&batch.chunks)
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

    /// A call that changes a context's memory; `None`: in a way that is not known.
    pub fn memory(&self, e: &event::Memory) -> Option<MemoryCall> {
        let what = change(e.what)?;
        let of_process = || self.memories.iter().filter(|m| m.0 == e.h.tgid);
        // Functions of older releases take the context itself.
        let context = of_process().find(|m| m.1 == e.object || m.2 == e.object).map_or(0, |m| m.2);
        let (pid, tid, t) = (e.h.tgid, e.h.tid, e.h.ts as i64);
        let (seq, to, from, until) = (e.seq.into(), e.to.into(), e.from.into(), e.until.into());
        Some(MemoryCall { pid, tid, t, context, what, seq, to, from, until })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::event::{Head, Memory};
    use crate::capture::skel::types::chunk;
    use crate::recorder::sample;
    use pfi::record::Record;
    use pfi::{EncoderConfig, Trace};

    fn event(tokens: u32, unread: u32, chunks: &[(i32, i32, u32, u32)]) -> event::Ubatch {
        let mut e = event::Ubatch {
            h: Head { ts: 100, tgid: 5, tid: 6, ..Head::default() },
            tokens,
            unread,
            n: chunks.len() as u32,
            ..event::Ubatch::default()
        };
        for (slot, &(seq, pos, tokens, outputs)) in e.chunk.iter_mut().zip(chunks) {
            *slot = chunk { seq, pos, tokens, outputs, hash: 0 };
        }
        e
    }

    #[test]
    fn what_cannot_be_is_counted_as_unread_and_memories_find_their_contexts() {
        let mut enc =
            Encoder::new(Vec::new(), EncoderConfig::default(), &sample::HEADER).expect("memory takes it");
        let mut s = Sequences::default();
        let call = |seq| CallOfBatch { token: Some(seq), context: 0x99 };
        s.learn(5, 0x77, 0x99);
        s.ubatch(&event(9, 0, &[(0, 4, 8, 1), (3, 7, 1, 1)]), call(1), &mut enc).expect("memory takes it");
        s.ubatch(&event(5, 0, &[(0, 4, 3, 1), (-7, 7, 2, 1)]), call(2), &mut enc).expect("memory takes it");
        let memory = Memory {
            h: Head { tgid: 5, ..Head::default() },
            object: 0x77,
            what: MemoryWhat::MEMORY_REMOVE.0,
            seq: 3,
            from: 8,
            until: -1,
            ..Memory::default()
        };
        for m in [memory, Memory { object: 0x78, ..memory }, Memory { what: 99, ..memory }] {
            s.memory(&m).map_or(Ok(()), |m| enc.memory(&m)).expect("memory takes it");
        }
        let parts = s.take(1).expect("known");
        assert_eq!(
            parts.iter().map(|p| (p.seq, p.pos, p.tokens, p.outputs)).collect::<Vec<_>>(),
            [(0, 4, 8, 1), (3, 7, 1, 1)]
        );
        assert!(s.take(1).is_none() && s.take(2).is_none());
        s.feature(&mut enc, &BatchSource::Readable, 0).expect("memory takes it");
        let trace =
            Trace::from_bytes(enc.finish(&sample::footer()).expect("memory takes it")).expect("a trace");
        let (mut batches, mut contexts, mut features) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..trace.blocks().len() {
            for record in trace.block(i).expect("a whole block").records().map(|r| r.expect("a whole record"))
            {
                match record {
                    Record::Ubatch(u) => batches.push((u.tokens, u.unread, pfi::chunks(&u).count())),
                    Record::Memory(m) => contexts.push(m.context),
                    Record::Feature(f) => features.push((f.state, f.why.to_owned())),
                    _ => {}
                }
            }
        }
        // The last block repeats them.
        features.dedup();
        assert_eq!(batches, [(9, 0, 2), (5, 2, 1)]);
        assert_eq!(contexts, [0x99, 0]);
        assert_eq!(features, [(Availability::Partly, "2 of 14 tokens were not read".to_owned())]);
    }

    #[test]
    fn more_tokens_than_can_be_are_unread() {
        let mut enc =
            Encoder::new(Vec::new(), EncoderConfig::default(), &sample::HEADER).expect("memory takes it");
        let mut s = Sequences::default();
        let impossible = [(-7, 4, u32::MAX, 1); 3];
        let call = CallOfBatch { token: Some(1), context: 1 };
        s.ubatch(&event(u32::MAX, u32::MAX, &impossible), call, &mut enc).expect("memory takes it");
        assert_eq!((s.read, s.unread), (0, u64::from(u32::MAX)));
    }
}
