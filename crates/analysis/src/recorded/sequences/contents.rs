//! What a prompt has in common with what its context's memory had: whether tokens were computed that stood there already, in
//! its own sequence or in another one, and where it begins to differ.
//!
//! Recorded are sums of hashes of [`CONTENT_BLOCK`] tokens, so all figures are of whole blocks: at least as many tokens are
//! equal. What is removed from a memory is kept here: whoever removes it, and computes it again, is to be seen.

use std::collections::HashMap;

use serde::Serialize;

use super::data::Sequences;
use crate::recorded::call::Call;
use crate::recorded::load::Loaded;
use common::order;
use pfi::record::{CONTENT_BLOCK, Chunk, Content, MemoryCall, MemoryChange};
use requests::{ChunkWork, SeqKey};

/// Sequences of which contents are kept, and blocks of each: a million tokens.
const SEQUENCES: usize = 512;
const BLOCKS: usize = 1 << 16;

/// A prompt beside what had been computed before it. Numbers of tokens are lower bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PromptBefore {
    /// Positions of its sequence that had been computed for the requests before it.
    pub had_tokens: u64,
    /// Tokens that it computed, and that had stood at the same positions of its sequence.
    pub again_tokens: u64,
    /// The first position at which it differs from what its sequence had; null: it does not, or that is not known.
    pub differs_at: Option<u64>,
    /// The other sequence of its context that had more of its beginning than was left in its own, and how many tokens.
    /// Null: none had.
    pub elsewhere_seq: Option<i64>,
    pub elsewhere_tokens: Option<u64>,
}

/// What a sequence had last at each position.
#[derive(Debug, Clone, Default)]
struct Held {
    /// Of each block, after each part that came: tokens from its beginning, and the sum of their hashes; None: it is not known.
    blocks: Vec<Vec<(u64, Option<u64>)>>,
    end: u64,
}

impl Held {
    /// Forgets what is at this position and after it.
    fn cut(&mut self, at: u64) {
        let (block, within) = (usize::try_from(at / CONTENT_BLOCK).unwrap_or(usize::MAX), at % CONTENT_BLOCK);
        self.blocks.truncate(block.saturating_add(usize::from(within > 0)));
        if let Some(parts) = self.blocks.get_mut(block) {
            parts.retain(|(tokens, _)| *tokens <= within);
            if parts.last().is_none_or(|(tokens, _)| *tokens < within) {
                parts.push((within, None));
            }
        }
        self.end = self.end.min(at);
    }

    /// Adds tokens, which replace those at their positions and after them.
    fn add(&mut self, content: &Content<'_>) {
        self.cut(content.pos);
        let end = content.pos.saturating_add(content.tokens);
        let mut at = content.pos;
        for hash in pfi::content_hashes(content) {
            let block = at / CONTENT_BLOCK;
            let until = (block + 1).saturating_mul(CONTENT_BLOCK).min(end);
            // Where nothing is known of what comes before it, no block is kept.
            let known = |block: &usize| *block <= self.blocks.len() && *block < BLOCKS && at < until;
            let Some(block) = usize::try_from(block).ok().filter(known) else { return };
            if self.blocks.len() == block {
                self.blocks.push(Vec::new());
            }
            let first = at % CONTENT_BLOCK;
            if let Some(parts) = self.blocks.get_mut(block) {
                let (tokens, sum) = parts.last().copied().unwrap_or((0, Some(0)));
                let sum = sum.filter(|_| tokens == first && hash != 0);
                parts.push((first + (until - at), sum.map(|sum| sum.wrapping_add(hash))));
            }
            (at, self.end) = (until, until);
        }
    }

    fn whole(&self, block: u64) -> Option<u64> {
        let parts = self.blocks.get(usize::try_from(block).ok()?)?;
        parts.last().filter(|(tokens, _)| *tokens == CONTENT_BLOCK)?.1
    }

    /// Blocks from this one on that are known to be the same in both, and whether the next one is known to differ.
    fn common(&self, other: &Held, from: u64) -> (u64, bool) {
        let mut block = from;
        loop {
            match self.whole(block).zip(other.whole(block)) {
                Some((a, b)) if a == b => block += 1,
                both => return (block - from, both.is_some()),
            }
        }
    }
}

/// A request whose prompt is being computed.
struct Begun {
    request: usize,
    /// What its sequence had, and how much of that was left to it.
    old: Held,
    kept: u64,
}

#[derive(Default)]
struct Sequence {
    held: Held,
    begun: Option<Begun>,
}

#[derive(Default)]
struct Contents(HashMap<SeqKey, Sequence>);

/// Compares the prompts of all requests.
pub(super) fn compare(loaded: &Loaded<'_>, calls: &[Call], all: &mut Sequences) {
    let mut parts: Vec<&Content<'_>> = loaded.causes.contents.iter().collect();
    if parts.is_empty() {
        return;
    }
    order::by_key(&mut parts, |c| (c.token, c.pos));
    let mut changes: Vec<&MemoryCall> = loaded.causes.memory.iter().collect();
    order::by_key(&mut changes, |m| (order::time(m.t), 0));
    let mut changes = changes.into_iter().peekable();
    let mut contents = Contents::default();
    let mut found: Vec<(usize, PromptBefore)> = Vec::new();
    for (call, work) in calls.iter().zip(&all.works) {
        while let Some(change) = changes.next_if(|m| m.t <= call.start) {
            contents.change(change);
        }
        let first = parts.partition_point(|c| c.token < call.seq);
        let of_call = parts.get(first..).unwrap_or_default();
        let of_call = of_call.get(..of_call.partition_point(|c| c.token == call.seq)).unwrap_or_default();
        for (chunk, kind, request) in work.iter().flat_map(|work| &work.chunks) {
            let context = work.as_ref().map_or(0, |work| work.context);
            let key = (call.pid, context, chunk.seq);
            found.extend(contents.chunk(key, (chunk, *kind, *request), of_call));
        }
    }
    let rest: Vec<SeqKey> = contents.0.keys().copied().collect();
    found.extend(rest.into_iter().filter_map(|key| contents.finish(key)));
    for (request, before) in found {
        if let Some(request) = all.requests.get_mut(request) {
            request.before = Some(before);
        }
    }
}

impl Contents {
    /// Adds a computed chunk. If it ends a prompt, returns the comparison of that prompt, and its request.
    fn chunk(
        &mut self,
        key: SeqKey,
        (chunk, kind, request): (&Chunk, ChunkWork, usize),
        of_call: &[&Content<'_>],
    ) -> Option<(usize, PromptBefore)> {
        let pos = u64::try_from(chunk.pos).ok()?;
        let until = pos.saturating_add(chunk.tokens);
        let of_it = of_call.iter().filter(|c| c.seq == chunk.seq && c.pos >= pos && c.pos < until);
        let goes_on = self.0.get(&key).and_then(|s| s.begun.as_ref()).is_some_and(|b| b.request == request);
        let prompt = kind == ChunkWork::Prefill;
        let done = if prompt && goes_on { None } else { self.finish(key) };
        if self.0.len() >= SEQUENCES && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let sequence = self.0.entry(key).or_default();
        if prompt && !goes_on {
            sequence.begun = Some(Begun { request, old: sequence.held.clone(), kept: pos });
        }
        of_it.for_each(|c| sequence.held.add(c));
        done
    }

    /// The prompt of this sequence is complete.
    fn finish(&mut self, key: SeqKey) -> Option<(usize, PromptBefore)> {
        let Begun { request, old, kept } = self.0.get_mut(&key)?.begun.take()?;
        let new = &self.0.get(&key)?.held;
        let first = kept.div_ceil(CONTENT_BLOCK);
        let (same, differs) = new.common(&old, first);
        let at = if same == 0 { kept } else { (first + same) * CONTENT_BLOCK };
        let others = self.0.iter().filter(|(k, _)| (k.0, k.1) == (key.0, key.1) && **k != key);
        let most = others.map(|(k, s)| (new.common(&s.held, 0).0 * CONTENT_BLOCK, k.2)).max();
        let most = most.filter(|(tokens, _)| *tokens > kept.max(same * CONTENT_BLOCK) + CONTENT_BLOCK);
        let before = PromptBefore {
            had_tokens: old.end,
            again_tokens: same * CONTENT_BLOCK,
            differs_at: differs.then_some(at),
            elsewhere_seq: most.map(|(_, seq)| seq),
            elsewhere_tokens: most.map(|(tokens, _)| tokens),
        };
        Some((request, before))
    }

    /// What a change of the memory puts elsewhere is not known any longer, but for copies.
    fn change(&mut self, change: &MemoryCall) {
        let is_meant = |key: &SeqKey| {
            key.0 == change.pid
                && (change.context == 0 || key.1 == change.context)
                && (change.seq < 0 || key.2 == change.seq)
        };
        match change.what {
            MemoryChange::Load | MemoryChange::Shift | MemoryChange::Divide => {
                let meant = self.0.iter_mut().filter(|(key, _)| is_meant(key));
                meant.for_each(|(_, sequence)| sequence.held = Held::default());
            }
            MemoryChange::Copy => {
                let from = self.0.iter().find(|(key, _)| is_meant(key));
                if let Some((key, held)) = from.map(|(key, sequence)| (*key, sequence.held.clone())) {
                    self.0.entry((key.0, key.1, change.to)).or_default().held = held;
                }
            }
            // Those of a server's slot that is used again: see above.
            MemoryChange::Clear | MemoryChange::Remove | MemoryChange::Keep | MemoryChange::Save => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Hashes of tokens whose id is a function of their position.
    fn data(pos: u64, tokens: u64, id: impl Fn(u64) -> u64) -> Vec<u8> {
        let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
        for at in pos..pos + tokens {
            let sum = sums.entry(at / CONTENT_BLOCK).or_default();
            *sum = sum.wrapping_add((at << 32 | id(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        }
        sums.values().flat_map(|sum| sum.to_le_bytes()).collect()
    }

    const KEY: SeqKey = (1, 2, 0);

    /// Computes a part of a prompt, or a token, of the request.
    fn compute(
        all: &mut Contents,
        seq: i64,
        request: usize,
        range: std::ops::Range<u64>,
        id: impl Fn(u64) -> u64,
    ) -> Option<(usize, PromptBefore)> {
        let (pos, tokens) = (range.start, range.end - range.start);
        let data = data(pos, tokens, id);
        let content = Content { token: 0, pid: 1, t: 0, seq, pos, tokens, data: &data };
        let chunk = Chunk { seq, pos: pos as i64, tokens, outputs: 1 };
        let kind = if tokens == 1 { ChunkWork::Decode } else { ChunkWork::Prefill };
        all.chunk((KEY.0, KEY.1, seq), (&chunk, kind, request), &[&content])
    }

    fn before(all: &mut Contents, seq: i64) -> PromptBefore {
        all.finish((KEY.0, KEY.1, seq)).expect("a prompt").1
    }

    #[test]
    fn tokens_that_stood_there_are_told_from_new_ones() {
        let mut all = Contents::default();
        assert_eq!(compute(&mut all, 0, 0, 0..100, |_| 7), None);
        // The first token of the answer ends the prompt.
        let first = compute(&mut all, 0, 0, 100..101, |_| 8).expect("the prompt is complete");
        assert_eq!((first.0, first.1.had_tokens, first.1.again_tokens), (0, 0, 0));
        assert!((101..130).all(|at| compute(&mut all, 0, 0, at..at + 1, |_| 8).is_none()));
        // The conversation goes on, and is computed from its beginning.
        let said = |at: u64| if at < 100 { 7 } else { 8 };
        compute(&mut all, 0, 1, 0..64, said);
        compute(&mut all, 0, 1, 64..150, |at| if at < 130 { said(at) } else { 9 });
        let again = before(&mut all, 0);
        assert_eq!((again.had_tokens, again.again_tokens, again.differs_at), (130, 128, None));
        // It goes on as it should: nothing is computed again.
        compute(&mut all, 0, 2, 150..200, |_| 1);
        let on = before(&mut all, 0);
        assert_eq!((on.had_tokens, on.again_tokens, on.differs_at, on.elsewhere_seq), (150, 0, None, None));
    }

    #[test]
    fn where_a_prompt_differs_and_which_other_sequence_had_more_of_it() {
        let mut all = Contents::default();
        compute(&mut all, 0, 0, 0..200, |_| 7);
        before(&mut all, 0);
        compute(&mut all, 1, 1, 0..200, |_| 5);
        before(&mut all, 1);
        // Its beginning is kept, and then comes something else.
        compute(&mut all, 0, 2, 40..120, |_| 3);
        let changed = before(&mut all, 0);
        assert_eq!((changed.had_tokens, changed.again_tokens, changed.differs_at), (200, 0, Some(40)));
        assert_eq!(changed.elsewhere_seq, None);
        // A conversation comes to another slot than the one that has it.
        compute(&mut all, 0, 3, 0..100, |_| 5);
        let moved = before(&mut all, 0);
        assert_eq!((moved.again_tokens, moved.differs_at), (0, Some(0)));
        assert_eq!((moved.elsewhere_seq, moved.elsewhere_tokens), (Some(1), Some(96)));
    }

    #[test]
    fn what_is_not_known_is_the_same_as_nothing() {
        let mut all = Contents::default();
        compute(&mut all, 0, 0, 0..64, |_| 7);
        before(&mut all, 0);
        // The rest of a block that was cut off is not known, nor what a state brings that was loaded.
        compute(&mut all, 0, 1, 40..41, |_| 7);
        compute(&mut all, 0, 2, 0..64, |_| 7);
        let cut = before(&mut all, 0);
        assert_eq!((cut.had_tokens, cut.again_tokens, cut.differs_at), (41, 32, None));
        let (pid, tid, t, context, seq, to, from, until) = (1, 1, 0, 2, 0, 0, -1, -1);
        let what = MemoryChange::Load;
        all.change(&MemoryCall { pid, tid, t, context, what, seq, to, from, until });
        compute(&mut all, 0, 3, 0..64, |_| 7);
        let loaded = before(&mut all, 0);
        assert_eq!((loaded.had_tokens, loaded.again_tokens, loaded.differs_at), (0, 0, None));
    }
}
