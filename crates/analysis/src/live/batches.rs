//! What the calls of a live recording compute, by their batches: several tokens need not be a prompt.

use pfi::record::Ubatch;

/// Calls whose batch is known, and whose end is still to come.
const CALLS: usize = 64;

/// What a batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchShape {
    /// One token for each sequence.
    Single,
    /// Results are wanted for all tokens, of which a sequence has several: drafts to verify. How many are accepted is not
    /// known yet.
    Drafts,
    /// Prompts.
    Other,
}

/// The batches of calls in progress, oldest first.
#[derive(Default)]
pub(super) struct Batches {
    open: Vec<(u64, BatchShape)>,
    /// Calls so far that had a token for each sequence: a process whose first calls want all results scores a text.
    decoded: bool,
}

impl Batches {
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
        match self.open.iter_mut().find(|(call, _)| *call == seq) {
            Some((_, old)) => *old = worse(*old, shape),
            None => {
                if self.open.len() == CALLS {
                    self.open.remove(0);
                }
                self.open.push((seq, shape));
            }
        }
    }

    /// The batch of a call in progress.
    pub fn of(&self, call: u64) -> Option<BatchShape> {
        self.open.iter().rfind(|(seq, _)| *seq == call).map(|(_, shape)| *shape)
    }

    /// The batch of a call that has ended.
    pub fn end(&mut self, call: u64) -> Option<BatchShape> {
        let at = self.open.iter().rposition(|(seq, _)| *seq == call)?;
        Some(self.open.remove(at).1)
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
        let mut batches = Batches::default();
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
        assert_eq!((batches.end(2), batches.end(2)), (Some(BatchShape::Single), None));
        (10..200).for_each(|seq| batches.take(&part(seq, &[0, 8, 1, 1])));
        assert_eq!(batches.open.len(), CALLS);
    }
}
