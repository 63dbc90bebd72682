//! What the chunks of batches and the changes of memory say of each sequence: which chunks are of a prompt, which are decode
//! steps, which verify a draft, and where one request ends and the next begins. Used by the recorder, and when a trace is
//! read; memory is bounded by the number of sequences.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::sequence::{Chunk, MemoryCall, MemoryChange};

/// Sequences followed.
const SEQUENCES: usize = 4096;

/// A sequence of a context: process, address of the llama_context, llama_seq_id.
pub type SeqKey = (u32, u64, i64);

/// What a chunk of a batch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChunkWork {
    /// Part of a prompt.
    Prefill,
    /// One token after a prompt.
    Decode,
    /// A draft and the token before it.
    Verify,
    /// Given to llama_encode.
    Encode,
}

/// What a chunk means for its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSeen {
    pub work: ChunkWork,
    /// It is the first of a request.
    pub begins: bool,
    /// That request began before its first chunk was seen.
    pub late: bool,
    /// How many tokens of the sequence's last draft were accepted, if this chunk shows it.
    pub accepted: Option<u64>,
}

/// What is known of a sequence.
#[derive(Debug, Clone, Default)]
struct SeqState {
    /// Position of the next token, if known.
    next: Option<i64>,
    /// Positions of a draft whose result is not known yet.
    draft: Option<(i64, i64)>,
    /// It has a request.
    requested: bool,
    /// The request is past its prompt.
    answered: bool,
    /// The request had a token after its first.
    stepped: bool,
    /// Its memory was cut back or replaced: what follows is another request.
    fresh: bool,
}

/// Follows sequences.
#[derive(Debug, Default)]
pub struct SequenceTracker {
    states: HashMap<SeqKey, SeqState>,
}

impl SequenceTracker {
    /// A chunk of a call; `encoded`: of llama_encode. None: too many sequences are followed.
    pub fn chunk(&mut self, key: SeqKey, chunk: &Chunk, encoded: bool) -> Option<ChunkSeen> {
        let seen = self.states.contains_key(&key);
        if !seen && self.states.len() >= SEQUENCES {
            // Most likely those of processes that have ended.
            self.states.retain(|other, _| other.0 == key.0);
            if self.states.len() >= SEQUENCES {
                return None;
            }
        }
        Some(self.states.entry(key).or_default().chunk(chunk, encoded, seen))
    }

    /// A change of a context's memory. Calls `settled` for each sequence of whose draft the result is known now, with the
    /// number of accepted tokens.
    pub fn memory(&mut self, m: &MemoryCall, settled: &mut dyn FnMut(SeqKey, u64)) {
        let of_context = |key: &SeqKey| key.0 == m.pid && (m.context == 0 || key.1 == m.context);
        let copied = (m.what == MemoryChange::Copy)
            .then(|| {
                self.states.iter().find(|(k, _)| of_context(k) && k.2 == m.seq).map(|(k, s)| (*k, s.next))
            })
            .flatten();
        if let Some(((pid, context, _), next)) = copied
            && self.states.len() < SEQUENCES
        {
            let state = self.states.entry((pid, context, m.to)).or_default();
            (state.next, state.fresh, state.draft) = (next, true, None);
            return;
        }
        let mut change = |key: SeqKey, state: &mut SeqState| {
            state.change(m).into_iter().for_each(|accepted| settled(key, accepted));
        };
        if m.context != 0 && m.seq >= 0 && m.what != MemoryChange::Keep {
            let key = (m.pid, m.context, m.seq);
            if let Some(state) = self.states.get_mut(&key) {
                change(key, state);
            }
            return;
        }
        let concerns = |key: &SeqKey| match m.what {
            MemoryChange::Keep => key.2 != m.seq,
            _ => m.seq < 0 || key.2 == m.seq,
        };
        for (key, state) in self.states.iter_mut().filter(|(k, _)| of_context(k) && concerns(k)) {
            change(*key, state);
        }
    }

    /// Forgets sequences: their next chunks are the first ones seen.
    pub fn forget(&mut self, which: impl Fn(&SeqKey) -> bool) {
        self.states.retain(|key, _| !which(key));
    }
}

impl SeqState {
    /// `seen`: there was something of this sequence before.
    fn chunk(&mut self, chunk: &Chunk, encoded: bool, seen: bool) -> ChunkSeen {
        let of_draft = self.draft.filter(|d| chunk.pos > d.0 && chunk.pos <= d.1);
        let accepted = of_draft.map(|(from, _)| self.settle(from, chunk.pos));
        let follows = self.next.is_none_or(|next| chunk.pos < 0 || chunk.pos == next);
        let open = self.requested && follows && !self.fresh;
        // Where positions are not known, one token is more likely to be a token than a prompt.
        let far = chunk.pos > 0 || (chunk.pos < 0 && chunk.tokens == 1);
        let late = !seen && chunk.outputs == chunk.tokens && far;
        let work = match open && self.answered {
            _ if encoded => ChunkWork::Encode,
            true if chunk.tokens == 1 => ChunkWork::Decode,
            true if chunk.outputs == chunk.tokens => ChunkWork::Verify,
            false if late && !open && chunk.tokens == 1 => ChunkWork::Decode,
            false if late && !open => ChunkWork::Verify,
            _ => ChunkWork::Prefill,
        };
        let begins = !open || (work == ChunkWork::Prefill && self.stepped);
        if begins {
            (self.requested, self.answered, self.stepped) = (true, late, false);
        }
        match work {
            ChunkWork::Prefill => self.answered |= chunk.outputs > 0,
            ChunkWork::Decode | ChunkWork::Verify => (self.answered, self.stepped) = (true, true),
            ChunkWork::Encode => {}
        }
        let until = (chunk.pos >= 0).then(|| chunk.pos.saturating_add_unsigned(chunk.tokens));
        self.next = until;
        self.draft = until.filter(|_| work == ChunkWork::Verify).map(|until| (chunk.pos, until));
        self.fresh = false;
        ChunkSeen { work, begins, late: begins && late, accepted }
    }

    /// Of the draft that began at `from`, what lies before `next` was accepted; returns how many tokens.
    fn settle(&mut self, from: i64, next: i64) -> u64 {
        (self.draft, self.next) = (None, Some(next));
        next.saturating_sub(from).saturating_sub(1).max(0) as u64
    }

    fn change(&mut self, m: &MemoryCall) -> Option<u64> {
        match m.what {
            MemoryChange::Remove if m.until < 0 => {
                // What was not accepted of a draft.
                if let Some((from, _)) = self.draft.filter(|d| m.from > d.0 && m.from <= d.1) {
                    return Some(self.settle(from, m.from));
                }
                // A server also removes what follows the parts of a prompt: nothing.
                self.fresh |= !self.requested || self.answered || self.next != Some(m.from);
                self.next = self.next.map(|next| next.min(m.from.max(0)));
            }
            MemoryChange::Shift => {
                let moves = |next: &i64| *next > m.from && (m.until < 0 || *next <= m.until);
                self.next = self.next.map(|next| if moves(&next) { next.saturating_add(m.to) } else { next });
            }
            MemoryChange::Clear | MemoryChange::Keep => {
                (self.fresh, self.next, self.draft) = (true, Some(0), None)
            }
            MemoryChange::Load => (self.fresh, self.next, self.draft) = (true, None, None),
            // Where the next token goes is the program's choice.
            MemoryChange::Divide => self.next = None,
            MemoryChange::Remove | MemoryChange::Copy | MemoryChange::Save => {}
        }
        None
    }
}

/// Contexts of draft models: between two chunks of a sequence, they compute the tokens that another context of their process
/// verifies with the second.
#[derive(Debug, Default)]
pub struct DraftContexts {
    known: Vec<(u32, u64)>,
    /// The last chunk of each sequence, and its number among all chunks.
    last: HashMap<SeqKey, (Chunk, u64)>,
    chunks: u64,
}

/// Maximum contexts of draft models.
const DRAFTS: usize = 64;

impl DraftContexts {
    /// Whether a chunk is computed for a draft model.
    pub fn has(&mut self, key: SeqKey, chunk: &Chunk) -> bool {
        self.chunks += 1;
        let before = self.last.get(&key).map_or(0, |(_, number)| *number);
        // A program may give the address to another context: nobody else computed the sequence, which begins anew.
        if chunk.pos == 0 && chunk.tokens > 1 && !self.beside(key).any(|(_, last)| last.1 > before) {
            self.known.retain(|k| *k != (key.0, key.1));
        }
        if self.last.len() < SEQUENCES || self.last.contains_key(&key) {
            self.last.insert(key, (*chunk, self.chunks));
        }
        self.known.contains(&(key.0, key.1))
    }

    /// Whether this context is that of a draft model, as far as is known.
    pub fn contains(&self, key: SeqKey) -> bool {
        self.known.contains(&(key.0, key.1))
    }

    /// Call this for a chunk that verifies a draft, before [`DraftContexts::has`]. A context that computed its tokens since
    /// the last chunk of this sequence is that of a draft model; it is returned if it was not known.
    pub fn verified(&mut self, key: SeqKey, chunk: &Chunk) -> Option<u64> {
        let until = chunk.pos.saturating_add_unsigned(chunk.tokens);
        let since = self.last.get(&key).map_or(u64::MAX, |(_, number)| *number);
        let drafted = |(c, number): &(Chunk, u64)| {
            *number > since && c.tokens == 1 && chunk.pos >= 0 && c.pos >= chunk.pos && c.pos < until
        };
        let context = self.beside(key).find(|(_, last)| drafted(last)).map(|(k, _)| k.1)?;
        let new = !self.known.contains(&(key.0, context));
        if new {
            if self.known.len() == DRAFTS {
                self.known.remove(0);
            }
            self.known.push((key.0, context));
        }
        new.then_some(context)
    }

    /// The same sequence in other contexts of the process.
    fn beside(&self, key: SeqKey) -> impl Iterator<Item = (&SeqKey, &(Chunk, u64))> {
        self.last.iter().filter(move |(k, _)| (k.0, k.2) == (key.0, key.2) && k.1 != key.1)
    }

    /// Forgets contexts of these processes.
    pub fn forget(&mut self, which: impl Fn(u32) -> bool) {
        self.known.retain(|k| !which(k.0));
        self.last.retain(|k, _| !which(k.0));
    }
}

/// How far a request in progress is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestPhase {
    #[default]
    Prompt,
    /// It has its first token.
    Decode,
}

/// A request in progress, or the last one of a sequence. Times in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestNow {
    pub pid: u32,
    /// Contexts of the process in the order in which they computed first, from 1.
    pub context: u32,
    /// The sequence: of a server, its slot.
    pub seq: i64,
    pub phase: RequestPhase,
    /// Tokens of the prompt that were computed so far.
    pub prompt_tokens: u64,
    /// Tokens of the prompt that were in the memory already; null if not known.
    pub cached_tokens: Option<u64>,
    /// From the start of its first call to the end of the call that gave the first token; null if there is none yet, or its
    /// start was not seen.
    pub ttft_ns: Option<u64>,
    /// Tokens that it has brought.
    pub tokens: u64,
    /// From the first token to the last; null with less than two.
    pub tokens_per_s: Option<f64>,
    /// Of its drafts, the tokens verified and accepted.
    pub drafted: u64,
    pub accepted: u64,
    /// From the start of its first call to the end of its last.
    pub duration_ns: u64,
    /// Since then.
    pub idle_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SeqKey = (1, 2, 3);

    fn chunk(pos: i64, tokens: u64, outputs: u64) -> Chunk {
        Chunk { seq: 3, pos, tokens, outputs }
    }

    fn remove(from: i64) -> MemoryCall {
        let what = MemoryChange::Remove;
        MemoryCall { pid: 1, tid: 1, t: 0, context: 2, what, seq: 3, to: 0, from, until: -1 }
    }

    /// What each chunk is for, and whether it begins a request.
    fn works(tracker: &mut SequenceTracker, chunks: &[(i64, u64, u64)]) -> Vec<(ChunkWork, bool)> {
        let one = |&(pos, n, out)| tracker.chunk(KEY, &chunk(pos, n, out), false).map(|s| (s.work, s.begins));
        chunks.iter().map(one).map(|seen| seen.expect("there is room")).collect()
    }

    #[test]
    fn a_request_is_a_prompt_in_parts_and_its_steps() {
        use ChunkWork::*;
        let mut t = SequenceTracker::default();
        let seen = works(&mut t, &[(0, 8, 0), (8, 4, 1), (12, 1, 1), (13, 4, 4), (15, 1, 1)]);
        assert_eq!(
            seen,
            [(Prefill, true), (Prefill, false), (Decode, false), (Verify, false), (Decode, false)]
        );
        // Another prompt follows the answer, and one begins anew.
        assert_eq!(works(&mut t, &[(16, 9, 1), (25, 1, 1)]), [(Prefill, true), (Decode, false)]);
        assert_eq!(works(&mut t, &[(3, 5, 1), (7, 1, 1)]), [(Prefill, true), (Prefill, true)]);
    }

    #[test]
    fn the_result_of_a_draft_is_shown_by_what_follows_or_is_removed() {
        let mut t = SequenceTracker::default();
        works(&mut t, &[(0, 8, 1), (8, 5, 5)]);
        assert_eq!(t.chunk(KEY, &chunk(11, 5, 5), false).and_then(|s| s.accepted), Some(2));
        let mut settled = Vec::new();
        t.memory(&remove(16), &mut |key, n| settled.push((key, n)));
        t.memory(&remove(16), &mut |key, n| settled.push((key, n)));
        assert_eq!(settled, [(KEY, 4)]);
    }

    #[test]
    fn what_was_not_seen_from_its_start_is_late_once() {
        let mut t = SequenceTracker::default();
        let late = |t: &mut SequenceTracker, pos| t.chunk(KEY, &chunk(pos, 1, 1), false).map(|s| s.late);
        assert_eq!((late(&mut t, 40), late(&mut t, 41)), (Some(true), Some(false)));
        t.forget(|key| key.0 == 1);
        assert_eq!(late(&mut t, 42), Some(true));
        // Without positions, too; a prompt is none.
        let blind = |t: &mut SequenceTracker, seq, n, outputs| {
            t.chunk((1, 2, seq), &Chunk { seq, pos: -1, tokens: n, outputs }, false).map(|s| (s.work, s.late))
        };
        assert_eq!(blind(&mut t, 5, 1, 1), Some((ChunkWork::Decode, true)));
        assert_eq!(blind(&mut t, 6, 9, 1), Some((ChunkWork::Prefill, false)));
        // A draft, too.
        let seen = t.chunk((1, 2, 4), &chunk(40, 5, 5), false);
        assert_eq!(seen.map(|s| (s.work, s.late)), Some((ChunkWork::Verify, true)));
    }

    #[test]
    fn a_draft_model_computes_what_its_target_verifies() {
        let mut d = DraftContexts::default();
        let (target, draft, other) = ((1, 2, 3), (1, 9, 3), (1, 4, 3));
        // The same prompt, and the same positions, are no sign: two models may be asked the same.
        for key in [target, draft, other, (2, 9, 3)] {
            assert!(!d.has(key, &chunk(0, 8, 1)));
        }
        assert!(!d.has(other, &chunk(8, 1, 1)) && !d.has(target, &chunk(8, 1, 1)));
        assert!(!d.has(draft, &chunk(9, 1, 1)) && !d.has(draft, &chunk(10, 1, 1)));
        // Nor is what was computed before the target's last call.
        assert_eq!(d.verified(target, &chunk(8, 5, 5)), Some(9));
        assert_eq!(d.verified(target, &chunk(8, 5, 5)), None);
        assert!(
            d.has(draft, &chunk(9, 1, 1))
                && !d.has(target, &chunk(9, 5, 5))
                && !d.has(other, &chunk(9, 1, 1))
        );
        // With another prompt it stays one; alone, it is another context at the same address.
        assert!(!d.has(target, &chunk(0, 8, 1)) && d.has(draft, &chunk(0, 7, 1)));
        assert!(!d.has(draft, &chunk(0, 7, 1)));
        d.forget(|pid| pid == 1);
        assert!(d.last.len() == 1 && d.known.is_empty());
    }

    #[test]
    fn sequences_are_bounded() {
        let mut t = SequenceTracker::default();
        let seen = |t: &mut SequenceTracker, seq| t.chunk((1, 2, seq), &chunk(0, 4, 1), false).is_some();
        assert_eq!((0..5000).filter(|seq| seen(&mut t, *seq)).count(), SEQUENCES);
        t.memory(&MemoryCall { what: MemoryChange::Copy, to: 9999, ..remove(0) }, &mut |_, _| {});
        assert_eq!(t.states.len(), SEQUENCES);
    }
}
