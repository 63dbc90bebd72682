//! The tokens that a call was given, put together from what events or records have of its batch: the batch itself, or the
//! parts in which it is computed.

use pfi::record::{Chunk, Ubatch};

/// What a call was given to compute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallBatch {
    /// Address of the llama_context; 0: not known.
    pub context: u64,
    /// Consecutive tokens of one sequence, across the parts of the batch.
    pub chunks: Vec<Chunk>,
    /// Tokens that were not read, as the parts say.
    unread: u64,
    /// Tokens of the parts that are in no chunk: more than `unread` if the rest of a part was lost.
    left: i64,
}

impl CallBatch {
    /// A part, with its chunks. Those beyond `most` find no room.
    pub fn add(&mut self, part: &Ubatch<'_>, chunks: impl Iterator<Item = Chunk>, most: usize) {
        if part.context != 0 {
            self.context = part.context;
        }
        self.unread = self.unread.saturating_add(part.unread.into());
        self.left = self.left.saturating_add(part.tokens.into());
        for chunk in chunks {
            if self.chunk(chunk, most) {
                self.left = self.left.saturating_sub_unsigned(chunk.tokens);
            }
        }
    }

    /// A chunk that a boundary between parts has cut is put together again. Parts with equal shares of several
    /// sequences have their chunks in turn.
    fn chunk(&mut self, new: Chunk, most: usize) -> bool {
        let next = |c: &&mut Chunk| c.pos >= 0 && c.pos.checked_add_unsigned(c.tokens) == Some(new.pos);
        let full = self.chunks.len() >= most;
        match self.chunks.iter_mut().rev().find(|c| c.seq == new.seq).filter(next) {
            Some(chunk) => {
                chunk.tokens = chunk.tokens.saturating_add(new.tokens);
                chunk.outputs = chunk.outputs.saturating_add(new.outputs);
            }
            None if full => return false,
            None => self.chunks.push(new),
        }
        true
    }

    /// Tokens of the batch that are in no chunk, because they could not be read or were lost.
    pub fn unread(&self) -> u64 {
        self.unread.max(self.left.try_into().unwrap_or(0))
    }

    /// Every token is in a chunk.
    pub fn is_whole(&self) -> bool {
        self.unread == 0 && self.left == 0 && !self.chunks.is_empty()
    }
}

/// The batches of calls in progress, each with what its reader keeps of it. Room that was used once is used again.
#[derive(Debug)]
pub struct CallBatches<T = ()> {
    /// By seq of the call; the oldest come first, and before them those without a call.
    calls: Vec<(Option<u64>, CallBatch, T)>,
    most: usize,
    chunks: usize,
}

impl<T: Copy + Default> CallBatches<T> {
    /// Allocates for this many calls, with this many chunks each.
    pub fn new(calls: usize, chunks: usize) -> CallBatches<T> {
        CallBatches { calls: Vec::new(), most: calls.max(1), chunks }
    }

    /// A part of the batch of a call, with its chunks. Returns what is kept of the call.
    pub fn add(
        &mut self,
        call: u64,
        part: &Ubatch<'_>,
        chunks: impl Iterator<Item = Chunk>,
    ) -> Option<&mut T> {
        let at = self.at(call).unwrap_or_else(|| {
            let used = self.calls.len() == self.most || self.calls.first().is_some_and(|c| c.0.is_none());
            // The oldest call did not return.
            let (_, mut batch, _) = if used { self.calls.remove(0) } else { Default::default() };
            batch.chunks.clear();
            let batch = CallBatch { chunks: batch.chunks, ..CallBatch::default() };
            self.calls.push((Some(call), batch, T::default()));
            self.calls.len() - 1
        });
        let (_, batch, kept) = self.calls.get_mut(at)?;
        batch.add(part, chunks, self.chunks);
        Some(kept)
    }

    /// What is kept of a call in progress.
    pub fn kept(&self, call: u64) -> Option<T> {
        self.calls.get(self.at(call)?).map(|c| c.2)
    }

    /// The batch of a call that has returned, and what was kept of it.
    pub fn take(&mut self, call: u64) -> Option<(&CallBatch, T)> {
        let at = self.at(call)?;
        let (_, batch, kept) = self.calls.remove(at);
        self.calls.insert(0, (None, batch, kept));
        self.calls.first().map(|c| (&c.1, c.2))
    }

    fn at(&self, call: u64) -> Option<usize> {
        self.calls.iter().rposition(|c| c.0 == Some(call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(tokens: u32, unread: u32) -> Ubatch<'static> {
        Ubatch { token: None, pid: 1, tid: 1, t: 0, context: 7, tokens, unread, whole: false, data: &[] }
    }

    fn chunk(seq: i64, pos: i64, tokens: u64, outputs: u64) -> Chunk {
        Chunk { seq, pos, tokens, outputs }
    }

    #[test]
    fn parts_of_a_batch_are_put_together_by_sequence() {
        let mut batch = CallBatch::default();
        batch.add(&part(8, 0), [chunk(0, 0, 4, 0), chunk(1, 7, 4, 0)].into_iter(), 3);
        assert!(batch.is_whole() && batch.context == 7);
        let rest = [chunk(0, 4, 2, 1), chunk(1, 11, 4, 1), chunk(0, 9, 1, 1)];
        batch.add(&part(7, 0), rest.into_iter(), 3);
        assert_eq!(batch.chunks, [chunk(0, 0, 6, 1), chunk(1, 7, 8, 1), chunk(0, 9, 1, 1)]);
        // One more finds no room.
        assert!(batch.is_whole());
        batch.add(&part(2, 0), [chunk(5, 1, 2, 1)].into_iter(), 3);
        assert_eq!((batch.is_whole(), batch.unread(), batch.chunks.len()), (false, 2, 3));
        // Positions that are not known say nothing about what follows what.
        let mut blind = CallBatch::default();
        blind.add(&part(8, 0), [chunk(0, -1, 4, 0), chunk(0, -1, 4, 1)].into_iter(), 9);
        assert_eq!(blind.chunks.len(), 2);
    }

    #[test]
    fn tokens_that_no_event_has_are_unread() {
        let mut batch = CallBatch::default();
        batch.add(&part(9, 3), [chunk(0, 0, 4, 0)].into_iter(), 9);
        assert_eq!((batch.is_whole(), batch.unread()), (false, 5));
    }

    #[test]
    fn calls_that_never_return_make_room() {
        let mut open = CallBatches::<u8>::new(16, 64);
        for call in 0..100 {
            let kept = open.add(call, &part(1, 0), [chunk(0, 4, 1, 1)].into_iter());
            kept.into_iter().for_each(|kept| *kept = call as u8);
        }
        assert_eq!((open.kept(0), open.kept(99), open.calls.len()), (None, Some(99), 16));
        assert!(open.take(99).is_some_and(|(batch, kept)| batch.is_whole() && kept == 99));
        assert!(open.take(99).is_none());
        // It has the room of one that has returned, and nothing of it.
        open.add(100, &part(1, 0), [chunk(1, 4, 1, 1)].into_iter());
        assert!(open.kept(84).is_some() && open.calls.len() == 16);
        assert!(open.take(100).is_some_and(|(batch, kept)| batch.chunks == [chunk(1, 4, 1, 1)] && kept == 0));
    }
}
