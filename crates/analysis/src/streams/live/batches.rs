//! What the calls of a live recording compute, by their batches: several tokens need not be a prompt, and how many tokens a
//! call with drafts brought is known after it.

use pfi::record::{MemoryCall, Ubatch};
use requests::{Call, CallBatches, ChunkWork, Event, Fact, Requests};

/// Calls whose batch is known, and whose end is still to come; chunks of each.
const CALLS: usize = 64;
const CHUNKS: usize = 4096;

/// What a batch has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum BatchShape {
    /// One token for each sequence.
    #[default]
    Single,
    /// Results are wanted for all tokens, of which a sequence has several: drafts to verify.
    Drafts,
    /// Prompts.
    Other,
}

/// A call with drafts whose result is not known yet.
struct Verifying<T> {
    id: u64,
    call: T,
    tokens: u64,
    /// Drafts that are not settled.
    drafts: u64,
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
    open: CallBatches<BatchShape>,
    /// Calls so far that had a token for each sequence: a process whose first calls want all results scores a text.
    decoded: bool,
    requests: Requests,
    results: Results<T>,
}

/// Calls with drafts, until their results are known.
struct Results<T> {
    verifying: Vec<Verifying<T>>,
    settled: Vec<(T, u64)>,
}

impl<T> Results<T> {
    /// Number of tokens that a draft of a call brought.
    fn add(&mut self, id: u64, tokens: u64) {
        let Some(at) = self.verifying.iter().position(|v| v.id == id) else { return };
        let Some(of) = self.verifying.get_mut(at) else { return };
        of.drafts = of.drafts.saturating_sub(1);
        of.tokens = of.tokens.saturating_add(tokens);
        if of.drafts == 0 {
            let done = self.verifying.remove(at);
            self.settled.push((done.call, done.tokens));
        }
    }

    fn take(&mut self, event: &Event) {
        result(event).into_iter().for_each(|(id, tokens)| self.add(id, tokens));
    }
}

/// The call and the tokens of a draft whose result is known, or will not be: it brought one at least.
fn result(event: &Event) -> Option<(u64, u64)> {
    match event.fact {
        Fact::Settled { call, accepted } => Some((call, accepted.saturating_add(1))),
        Fact::Tokens { call, work: ChunkWork::Verify, accepted: None, .. } => Some((call, 1)),
        _ => None,
    }
}

impl<T> Default for Batches<T> {
    fn default() -> Self {
        Batches {
            open: CallBatches::new(CALLS, CHUNKS),
            decoded: false,
            requests: Requests::default(),
            results: Results { verifying: Vec::new(), settled: Vec::new() },
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
        if let Some(old) = self.open.add(seq, part, pfi::chunks(part)) {
            *old = worse(*old, shape);
        }
    }

    /// The batch of a call in progress.
    pub fn of(&self, call: u64) -> Option<BatchShape> {
        self.open.kept(call)
    }

    /// A change of a context's memory, which counts when a call that began later has ended.
    pub fn memory(&mut self, m: &MemoryCall) {
        self.requests.memory(m, true, &mut |event| self.results.take(&event));
    }

    /// A call has ended, whose context its batch says; its shape, and what it brought.
    pub fn end(&mut self, call: Call, what: T) -> (Option<BatchShape>, Brought<T>) {
        let Some((batch, mut shape)) = self.open.take(call.id) else {
            return (None, Brought::Unknown(what));
        };
        if batch.unread() > 0 {
            return (Some(shape), Brought::Unknown(what));
        }
        let (mut tokens, mut drafts) = (0u64, 0u64);
        let call = Call { context: batch.context, ..call };
        self.requests.call(&call, &batch.chunks, &mut |event| match event.fact {
            // A draft model's tokens are those of its target, whose answer it prolongs.
            Fact::Chunk { answers, .. } if event.draft => {
                shape = if answers { BatchShape::Drafts } else { shape };
            }
            Fact::Chunk { work: ChunkWork::Verify, .. } => drafts += 1,
            Fact::Chunk { chunk, .. } => tokens = tokens.saturating_add(chunk.tokens),
            Fact::Untracked { tokens: more } if !event.draft => tokens = tokens.saturating_add(more),
            _ => match result(&event) {
                Some((id, more)) if id == call.id => {
                    (drafts, tokens) = (drafts.saturating_sub(1), tokens.saturating_add(more));
                }
                Some((id, more)) => self.results.add(id, more),
                None => {}
            },
        });
        if drafts == 0 {
            return (Some(shape), Brought::Tokens(what, tokens));
        }
        let Results { verifying, settled } = &mut self.results;
        if verifying.len() == CALLS {
            settled.push(verifying.remove(0).at_least());
        }
        verifying.push(Verifying { id: call.id, call: what, tokens, drafts });
        (Some(BatchShape::Drafts), Brought::Later)
    }

    /// Calls whose drafts have their results since the last time.
    pub fn settled(&mut self) -> Vec<(T, u64)> {
        std::mem::take(&mut self.results.settled)
    }

    /// The rest of these calls, when nothing follows: a draft brought at least one token.
    pub fn finish(&mut self) -> Vec<(T, u64)> {
        self.requests.finish(&mut |event| self.results.take(&event));
        let rest = std::mem::take(&mut self.results.verifying).into_iter().map(Verifying::at_least);
        self.settled().into_iter().chain(rest).collect()
    }
}

impl<T> Verifying<T> {
    fn at_least(self) -> (T, u64) {
        (self.call, self.tokens.saturating_add(self.drafts))
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

    fn call(id: u64) -> Call {
        let at = id as i64;
        Call { id, pid: 1, context: 0, width: 0, start: at, end: at, seen: true, encodes: false }
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
        let mut end = |seq| batches.end(call(seq), ()).0;
        assert_eq!((end(2), end(2)), (Some(BatchShape::Single), None));
    }

    #[test]
    fn a_draft_brings_what_is_accepted_and_its_model_nothing() {
        let mut batches = Batches::default();
        let call = |batches: &mut Batches<u64>, seq: u64, context: u64, data: &[u8]| {
            batches.take(&Ubatch { context, ..part(seq, data) });
            batches.end(super::tests::call(seq), seq)
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
