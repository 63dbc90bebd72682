//! What the chunks of batches and the changes of memory say of each sequence: which chunks are of a prompt, which are decode
//! steps, which verify a draft, and where one request ends and the next begins. Used by the recorder, and when a trace is
//! read; memory is bounded by the number of sequences.

use std::collections::HashMap;

use serde::Serialize;

use super::call::SeqKey;
use pfi::record::{Chunk, MemoryCall, MemoryChange};

/// Sequences followed.
pub(crate) const SEQUENCES: usize = 4096;

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
pub(crate) struct ChunkSeen {
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
pub(crate) struct SequenceTracker {
    states: HashMap<SeqKey, SeqState>,
}

impl SequenceTracker {
    /// A chunk of a call; `encoded`: of llama_encode. None: too many sequences are followed.
    pub fn chunk(&mut self, key: SeqKey, chunk: &Chunk, encoded: bool) -> Option<ChunkSeen> {
        let seen = self.states.contains_key(&key);
        if !seen && !self.has_room_for(key) {
            return None;
        }
        Some(self.states.entry(key).or_default().chunk(chunk, encoded, seen))
    }

    /// Whether this sequence can be followed.
    pub fn has_room_for(&self, key: SeqKey) -> bool {
        self.states.len() < SEQUENCES || self.states.contains_key(&key)
    }

    /// A change of a context's memory. Calls `settled` for each sequence of whose draft the result is known now, with the
    /// number of accepted tokens.
    pub fn memory(&mut self, m: &MemoryCall, settled: &mut dyn FnMut(SeqKey, u64)) {
        let of_context = |key: &SeqKey| key.0 == m.pid && (m.context == 0 || key.1 == m.context);
        if m.what == MemoryChange::Copy {
            let from: Vec<(SeqKey, Option<i64>)> = (self.states.iter())
                .filter(|(k, _)| of_context(k) && k.2 == m.seq)
                .map(|(k, s)| ((k.0, k.1, m.to), s.next))
                .collect();
            for (key, next) in from.into_iter().filter(|(key, _)| key.2 != m.seq) {
                if self.has_room_for(key) {
                    let state = self.states.entry(key).or_default();
                    (state.next, state.fresh, state.draft) = (next, true, None);
                }
            }
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
            // A server wants the result of each token that it decodes: without, it is a part of the next prompt.
            true if (chunk.tokens, chunk.outputs) == (1, 1) => ChunkWork::Decode,
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
        // A prompt in parts of one token, too: no result is wanted of the first.
        assert_eq!(
            works(&mut t, &[(8, 1, 1), (9, 1, 0), (10, 1, 1), (11, 1, 1)]),
            [(Decode, false), (Prefill, true), (Prefill, false), (Decode, false)]
        );
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
    fn sequences_are_bounded() {
        let mut t = SequenceTracker::default();
        let seen = |t: &mut SequenceTracker, seq| t.chunk((1, 2, seq), &chunk(0, 4, 1), false).is_some();
        assert_eq!((0..5000).filter(|seq| seen(&mut t, *seq)).count(), SEQUENCES);
        t.memory(&MemoryCall { what: MemoryChange::Copy, to: 9999, ..remove(0) }, &mut |_, _| {});
        assert_eq!(t.states.len(), SEQUENCES);
    }
}
