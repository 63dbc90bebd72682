//! What each sequence does, call by call: which chunks are of a prompt, which are decode steps, which verify a draft, and
//! where one request ends and the next begins.

use std::collections::HashMap;

use super::super::call::Call;
use super::batch::CallBatch;
use super::data::{CallWork, ChunkWork, SeqRequest, TokenStep};
use pfi::record::{Chunk, Entry, MemoryCall, MemoryChange};

/// Sequences followed; the tokens of further ones are counted only.
const SEQUENCES: usize = 4096;

/// A sequence of a context.
type SeqKey = (u32, u64, i64);

/// What is known of a sequence.
#[derive(Debug, Clone, Default)]
struct SeqState {
    /// Position of the next token, if known.
    next: Option<i64>,
    /// Index of its request.
    request: Option<usize>,
    /// Positions of a draft whose result is not known yet.
    draft: Option<(i64, i64)>,
    /// Its memory was cut back or replaced: what follows is another request.
    fresh: bool,
}

/// Follows all sequences.
#[derive(Default)]
pub struct Tracker {
    states: HashMap<SeqKey, SeqState>,
    pub requests: Vec<SeqRequest>,
    /// Chunks of sequences that found no room.
    pub untracked: u64,
}

impl Tracker {
    /// A call with its batch.
    pub fn call(&mut self, index: usize, call: &Call, batch: &CallBatch) -> CallWork {
        let mut work = CallWork { context: batch.context, chunks: Vec::new(), unread: batch.unread };
        for chunk in &batch.chunks {
            let key = (call.pid, batch.context, chunk.seq);
            if !self.states.contains_key(&key) && self.states.len() >= SEQUENCES {
                self.untracked += 1;
                continue;
            }
            let (kind, request) = self.chunk(key, index, call, chunk);
            work.chunks.push((*chunk, kind, request));
        }
        work
    }

    fn chunk(&mut self, key: SeqKey, index: usize, call: &Call, chunk: &Chunk) -> (ChunkWork, usize) {
        let seen = self.states.contains_key(&key);
        let state = self.states.entry(key).or_default();
        if let Some((from, _)) = state.draft.filter(|d| chunk.pos > d.0 && chunk.pos <= d.1) {
            settle(&mut self.requests, state, (chunk.pos - from - 1) as u64);
        }
        let follows = state.next.is_none_or(|next| chunk.pos < 0 || chunk.pos == next);
        let open = state.request.filter(|_| follows && !state.fresh);
        let open = open.and_then(|i| Some((i, self.requests.get(i)?)));
        let late = !seen && chunk.tokens == 1 && chunk.outputs == 1 && chunk.pos > 0;
        let encoded = call.entry == Some(Entry::Encode);
        let kind = match open {
            _ if encoded => ChunkWork::Encode,
            Some((_, r)) if chunk.tokens == 1 && r.answered() => ChunkWork::Decode,
            Some((_, r)) if chunk.tokens > 1 && chunk.outputs == chunk.tokens && r.answered() => {
                ChunkWork::Verify
            }
            None if late => ChunkWork::Decode,
            _ => ChunkWork::Prefill,
        };
        let goes_on = |r: &SeqRequest| kind != ChunkWork::Prefill || r.steps.is_empty();
        let i = match open.filter(|(_, r)| goes_on(r)) {
            Some((i, _)) => i,
            None => {
                self.requests.push(SeqRequest::begin(key, call, chunk, late));
                self.requests.len() - 1
            }
        };
        *state = SeqState {
            next: (chunk.pos >= 0).then(|| chunk.pos.saturating_add_unsigned(chunk.tokens)),
            request: Some(i),
            draft: (kind == ChunkWork::Verify && chunk.pos >= 0)
                .then(|| (chunk.pos, chunk.pos.saturating_add_unsigned(chunk.tokens))),
            fresh: false,
        };
        if let Some(r) = self.requests.get_mut(i) {
            r.take(index, call, chunk, kind);
        }
        (kind, i)
    }

    /// A change of a context's memory.
    pub fn memory(&mut self, m: &MemoryCall) {
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
        if m.context != 0 && m.seq >= 0 && m.what != MemoryChange::Keep {
            if let Some(state) = self.states.get_mut(&(m.pid, m.context, m.seq)) {
                change(&mut self.requests, state, m);
            }
            return;
        }
        let concerns = |key: &SeqKey| match m.what {
            MemoryChange::Keep => key.2 != m.seq,
            _ => m.seq < 0 || key.2 == m.seq,
        };
        for (_, state) in self.states.iter_mut().filter(|(k, _)| of_context(k) && concerns(k)) {
            change(&mut self.requests, state, m);
        }
    }
}

fn change(requests: &mut [SeqRequest], state: &mut SeqState, m: &MemoryCall) {
    match m.what {
        MemoryChange::Remove if m.until < 0 => match state.draft.filter(|d| m.from > d.0 && m.from <= d.1) {
            // What was not accepted of a draft.
            Some((from, _)) => settle(requests, state, (m.from - from - 1) as u64),
            None => {
                // A server also removes what follows the parts of a prompt: nothing.
                let answered = state.request.and_then(|i| requests.get(i)).is_none_or(SeqRequest::answered);
                state.fresh |= answered || state.next != Some(m.from);
                state.next = state.next.map(|next| next.min(m.from.max(0)));
            }
        },
        MemoryChange::Shift => {
            let moves = |next: &i64| *next > m.from && (m.until < 0 || *next <= m.until);
            state.next = state.next.map(|next| if moves(&next) { next.saturating_add(m.to) } else { next });
        }
        MemoryChange::Clear | MemoryChange::Keep => {
            (state.fresh, state.next, state.draft) = (true, Some(0), None)
        }
        MemoryChange::Load => (state.fresh, state.next, state.draft) = (true, None, None),
        // Where the next token goes is the program's choice.
        MemoryChange::Divide => state.next = None,
        MemoryChange::Remove | MemoryChange::Copy | MemoryChange::Save => {}
    }
}

/// The number of accepted tokens of a sequence's draft is known.
fn settle(requests: &mut [SeqRequest], state: &mut SeqState, accepted: u64) {
    let Some((from, _)) = state.draft.take() else { return };
    state.next = Some(from.saturating_add_unsigned(accepted).saturating_add(1));
    if let Some(step) = state.request.and_then(|i| requests.get_mut(i)).and_then(|r| r.steps.last_mut()) {
        *step = TokenStep { accepted: Some(accepted), ..*step };
    }
}
