//! What the calls of a live recording compute, by their batches: several tokens need not be a prompt, and how many tokens a
//! call with drafts brought is known after it.

use std::collections::HashMap;

use super::super::sequences::CallBatch;
use pfi::record::{MemoryCall, Ubatch};
use pfi::track::{ChunkWork, DraftContexts, SeqKey, SequenceTracker};

/// Calls whose batch is known, and whose end is still to come.
const CALLS: usize = 64;

/// Sequences whose last work is known.
const SEQUENCES: usize = 4096;

/// What a batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchShape {
    /// One token for each sequence.
    Single,
    /// Results are wanted for all tokens, of which a sequence has several: drafts to verify.
    Drafts,
    /// Prompts.
    Other,
}

/// A call with drafts whose result is not known yet.
struct Verifying<T> {
    call: T,
    tokens: u64,
    /// Sequences whose drafts are not settled.
    open: Vec<SeqKey>,
}

/// How many tokens a call that has ended brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Brought<T> {
    /// The batch is not known.
    Unknown(T),
    Tokens(T, u64),
    /// [`Batches::settled`] has it later.
    Later,
}

/// The batches of calls, oldest first; `T` is what is kept of a call until its tokens are known.
pub(super) struct Batches<T> {
    open: Vec<(u64, BatchShape, CallBatch)>,
    /// Calls so far that had a token for each sequence: a process whose first calls want all results scores a text.
    decoded: bool,
    sequences: SequenceTracker,
    drafts: DraftContexts,
    /// What was computed last for a sequence of a process, other than by a draft model.
    last: HashMap<(u32, i64), ChunkWork>,
    verifying: Vec<Verifying<T>>,
    settled: Vec<(T, u64)>,
    /// Changes of memory after the start of a call that has not ended.
    changes: Vec<MemoryCall>,
}

impl<T> Default for Batches<T> {
    fn default() -> Self {
        Batches {
            open: Vec::new(),
            decoded: false,
            sequences: SequenceTracker::default(),
            drafts: DraftContexts::default(),
            last: HashMap::new(),
            verifying: Vec::new(),
            settled: Vec::new(),
            changes: Vec::new(),
        }
    }
}

impl<T> Batches<T> {
    /// A batch, or a part of it.
    pub fn take(&mut self, part: &Ubatch<'_>) {
        let Some(seq) = part.token else { return };
        let mut shape = BatchShape::Single;
        for c in pfi::chunks(part) {
            shape = match (c.tokens, shape) {
                (1, shape) => shape,
                (n, BatchShape::Single | BatchShape::Drafts) if n == c.outputs && self.decoded => {
                    BatchShape::Drafts
                }
                _ => BatchShape::Other,
            };
        }
        if part.unread > 0 {
            shape = BatchShape::Other;
        }
        self.decoded |= shape == BatchShape::Single;
        let at = self.open.iter().position(|(call, ..)| *call == seq).unwrap_or_else(|| {
            if self.open.len() == CALLS {
                self.open.remove(0);
            }
            self.open.push((seq, shape, CallBatch::default()));
            self.open.len() - 1
        });
        if let Some((_, old, batch)) = self.open.get_mut(at) {
            *old = worse(*old, shape);
            batch.add(part);
        }
    }

    /// The batch of a call in progress.
    pub fn of(&self, call: u64) -> Option<BatchShape> {
        self.open.iter().rfind(|(seq, ..)| *seq == call).map(|(_, shape, _)| *shape)
    }

    /// A change of a context's memory.
    pub fn memory(&mut self, m: &MemoryCall) {
        if self.changes.len() == CALLS {
            let first = self.changes.remove(0);
            self.change(&first);
        }
        self.changes.push(*m);
    }

    fn change(&mut self, m: &MemoryCall) {
        let mut known = Vec::new();
        self.sequences.memory(m, &mut |key, accepted| known.push((key, accepted)));
        known.into_iter().for_each(|(key, accepted)| self.settle(key, accepted));
    }

    /// The draft of a sequence has its result.
    fn settle(&mut self, key: SeqKey, accepted: u64) {
        let Some(at) = self.verifying.iter().position(|v| v.open.contains(&key)) else { return };
        let Some(call) = self.verifying.get_mut(at) else { return };
        call.open.retain(|of| *of != key);
        call.tokens = call.tokens.saturating_add(accepted).saturating_add(1);
        if call.open.is_empty() {
            let done = self.verifying.remove(at);
            self.settled.push((done.call, done.tokens));
        }
    }

    /// A call that began at `start` has ended; its shape, and what it brought.
    pub fn end(&mut self, call: u64, pid: u32, start: i64, what: T) -> (Option<BatchShape>, Brought<T>) {
        while self.changes.first().is_some_and(|m| m.t <= start) {
            let first = self.changes.remove(0);
            self.change(&first);
        }
        let Some(at) = self.open.iter().rposition(|(seq, ..)| *seq == call) else {
            return (None, Brought::Unknown(what));
        };
        let (_, mut shape, batch) = self.open.remove(at);
        if batch.unread > 0 {
            return (Some(shape), Brought::Unknown(what));
        }
        let (mut tokens, mut open) = (0u64, Vec::new());
        for c in &batch.chunks {
            let key = (pid, batch.context, c.seq);
            // What follows a draft says which context made it.
            let verifies = shape == BatchShape::Drafts && c.tokens > 1;
            if verifies && !self.drafts.contains(key) {
                self.drafts.verified(key, c);
            }
            // A draft model's tokens are those of its target, whose answer it prolongs.
            if self.drafts.has(key, c) {
                let of_target = self.last.get(&(pid, c.seq));
                if of_target.is_some_and(|work| *work != ChunkWork::Prefill) {
                    shape = BatchShape::Drafts;
                }
                continue;
            }
            let seen = self.sequences.chunk(key, c, false);
            if let Some(seen) = seen {
                if self.last.len() == SEQUENCES {
                    self.last.clear();
                }
                self.last.insert((pid, c.seq), seen.work);
            }
            if let Some(accepted) = seen.and_then(|s| s.accepted) {
                self.settle(key, accepted);
            }
            if seen.is_some_and(|s| s.begins || s.work == ChunkWork::Verify) {
                // Its last draft has no result any more.
                while self.verifying.iter().any(|v| v.open.contains(&key)) {
                    self.settle(key, 0);
                }
            }
            if seen.is_some_and(|s| s.work == ChunkWork::Verify) {
                open.push(key);
            } else {
                tokens = tokens.saturating_add(c.tokens);
            }
        }
        if open.is_empty() {
            return (Some(shape), Brought::Tokens(what, tokens));
        }
        if self.verifying.len() == CALLS {
            let oldest = self.verifying.remove(0);
            self.settled.push(oldest.at_least());
        }
        self.verifying.push(Verifying { call: what, tokens, open });
        (Some(BatchShape::Drafts), Brought::Later)
    }

    /// Calls whose drafts have their results since the last time.
    pub fn settled(&mut self) -> Vec<(T, u64)> {
        std::mem::take(&mut self.settled)
    }

    /// The rest of these calls, when nothing follows: a draft brought at least one token.
    pub fn finish(&mut self) -> Vec<(T, u64)> {
        for m in std::mem::take(&mut self.changes) {
            self.change(&m);
        }
        let rest = std::mem::take(&mut self.verifying).into_iter().map(Verifying::at_least);
        self.settled().into_iter().chain(rest).collect()
    }
}

impl<T> Verifying<T> {
    fn at_least(self) -> (T, u64) {
        (self.call, self.tokens.saturating_add(self.open.len() as u64))
    }
}

fn worse(a: BatchShape, b: BatchShape) -> BatchShape {
    match (a, b) {
        (BatchShape::Other, _) | (_, BatchShape::Other) => BatchShape::Other,
        (BatchShape::Drafts, _) | (_, BatchShape::Drafts) => BatchShape::Drafts,
        _ => BatchShape::Single,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(seq: u64, data: &[u8]) -> Ubatch<'_> {
        Ubatch {
            token: Some(seq),
            pid: 1,
            tid: 1,
            t: 0,
            context: 1,
            tokens: 1,
            unread: 0,
            whole: false,
            data,
        }
    }

    #[test]
    fn a_batch_is_single_until_a_sequence_has_several_tokens() {
        let mut batches = Batches::<()>::default();
        // All results wanted, before anything was decoded: not a draft.
        batches.take(&part(1, &[0, 0, 3, 3]));
        batches.take(&part(2, &[0, 6, 1, 1, 2, 8, 1, 1]));
        batches.take(&part(3, &[0, 8, 3, 3, 2, 10, 1, 1]));
        batches.take(&part(4, &[0, 8, 1, 1]));
        batches.take(&part(4, &[2, 8, 9, 1]));
        let of = |seq| batches.of(seq);
        assert_eq!(
            [1, 2, 3, 4].map(of),
            [BatchShape::Other, BatchShape::Single, BatchShape::Drafts, BatchShape::Other].map(Some)
        );
        let mut end = |call| batches.end(call, 1, 0, ()).0;
        assert_eq!((end(2), end(2)), (Some(BatchShape::Single), None));
        (10..200).for_each(|seq| batches.take(&part(seq, &[0, 8, 1, 1])));
        assert_eq!(batches.open.len(), CALLS);
    }

    #[test]
    fn a_draft_brings_what_is_accepted_and_its_model_nothing() {
        let mut batches = Batches::default();
        let call = |batches: &mut Batches<u64>, seq: u64, context: u64, data: &[u8]| {
            batches.take(&Ubatch { context, ..part(seq, data) });
            batches.end(seq, 1, seq as i64, seq)
        };
        let brought =
            |batches: &mut Batches<u64>, seq, context, data: &[u8]| call(batches, seq, context, data).1;
        // Zigzag of the sequence and the position, tokens, results. The target's prompt and next token, the draft model's.
        assert_eq!(brought(&mut batches, 1, 7, &[0, 0, 4, 1]), Brought::Tokens(1, 4));
        assert_eq!(brought(&mut batches, 2, 7, &[0, 8, 1, 1]), Brought::Tokens(2, 1));
        assert_eq!(brought(&mut batches, 3, 9, &[0, 10, 1, 1]), Brought::Tokens(3, 1));
        // Three drafted tokens and the one before; another sequence in the same call.
        assert_eq!(brought(&mut batches, 4, 7, &[0, 10, 4, 4, 2, 0, 1, 1]), Brought::Later);
        assert!(batches.settled().is_empty());
        // What the draft model computes again is no prompt, and brings nothing.
        assert_eq!(
            call(&mut batches, 5, 9, &[0, 10, 4, 1]),
            (Some(BatchShape::Drafts), Brought::Tokens(5, 0))
        );
        // Two were accepted: with the one after them, three tokens and the other sequence's.
        assert_eq!(brought(&mut batches, 6, 7, &[0, 16, 2, 2]), Brought::Later);
        assert_eq!(batches.settled(), [(4, 4)]);
        let remove = |seq, from, t| {
            let what = pfi::record::MemoryChange::Remove;
            MemoryCall { pid: 1, tid: 1, t, context: 7, what, seq, to: 0, from, until: -1 }
        };
        batches.memory(&remove(0, 10, 7));
        assert_eq!(brought(&mut batches, 10, 7, &[0, 20, 2, 2]), Brought::Later);
        assert_eq!(batches.settled(), [(6, 2)]);
        // The request ends without a result of its last draft: that brought one token at least, and the next request's
        // drafts have their own results.
        batches.memory(&remove(0, 0, 11));
        assert_eq!(brought(&mut batches, 12, 7, &[0, 0, 4, 1]), Brought::Tokens(12, 4));
        assert_eq!(batches.settled(), [(10, 1)]);
        assert_eq!(brought(&mut batches, 13, 7, &[0, 8, 3, 3]), Brought::Later);
        assert_eq!(batches.finish(), [(13, 1)]);
    }
}
