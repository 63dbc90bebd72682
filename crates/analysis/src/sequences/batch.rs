//! The chunks of each call's batch, from the records of its parts.

use std::collections::HashMap;

use super::super::call::Call;
use super::super::load::Loaded;
use pfi::record::{Chunk, Ubatch};

/// What a call was given to compute.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallBatch {
    /// Address of the llama_context; 0 = unknown.
    pub context: u64,
    /// Consecutive tokens of one sequence, across the parts of the batch.
    pub chunks: Vec<Chunk>,
    /// Tokens that could not be read.
    pub unread: u64,
}

/// The batch of each call; none where it was not recorded.
pub fn call_batches(loaded: &Loaded<'_>, calls: &[Call]) -> Vec<Option<CallBatch>> {
    let by_seq: HashMap<u64, usize> = calls.iter().enumerate().map(|(i, c)| (c.seq, i)).collect();
    let mut out: Vec<Option<CallBatch>> = vec![None; calls.len()];
    for part in &loaded.causes.ubatches {
        let slot = part.token.and_then(|seq| by_seq.get(&seq)).and_then(|i| out.get_mut(*i));
        if let Some(slot) = slot {
            slot.get_or_insert_default().add(part);
        }
    }
    out
}

impl CallBatch {
    pub fn add(&mut self, part: &Ubatch<'_>) {
        if part.context != 0 {
            self.context = part.context;
        }
        self.unread = self.unread.saturating_add(part.unread.into());
        for chunk in pfi::chunks(part) {
            self.chunk(chunk);
        }
    }

    /// A chunk that a boundary between parts has cut is put together again. Parts with equal shares of several
    /// sequences have their chunks in turn.
    fn chunk(&mut self, new: Chunk) {
        let next = |c: &&mut Chunk| {
            c.seq == new.seq && c.pos >= 0 && c.pos.checked_add_unsigned(c.tokens) == Some(new.pos)
        };
        match self.chunks.iter_mut().rev().find(|c| c.seq == new.seq).filter(next) {
            Some(chunk) => {
                chunk.tokens = chunk.tokens.saturating_add(new.tokens);
                chunk.outputs = chunk.outputs.saturating_add(new.outputs);
            }
            None => self.chunks.push(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_batch_are_put_together_by_sequence() {
        let mut batch = CallBatch::default();
        let chunk = |seq, pos, tokens, outputs| Chunk { seq, pos, tokens, outputs };
        [chunk(0, 0, 4, 0), chunk(1, 7, 4, 0), chunk(0, 4, 2, 1), chunk(1, 11, 4, 1), chunk(0, 9, 1, 1)]
            .into_iter()
            .for_each(|c| batch.chunk(c));
        assert_eq!(batch.chunks, [chunk(0, 0, 6, 1), chunk(1, 7, 8, 1), chunk(0, 9, 1, 1)]);
        // Positions that are not known say nothing about what follows what.
        let mut blind = CallBatch::default();
        [chunk(0, -1, 4, 0), chunk(0, -1, 4, 1)].into_iter().for_each(|c| blind.chunk(c));
        assert_eq!(blind.chunks.len(), 2);
    }
}
