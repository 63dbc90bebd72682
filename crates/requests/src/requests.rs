//! The requests of all sequences: each chunk of a batch says whether it is of a prompt, a token, or a draft to verify.
//!
//! A server takes a request in before it computes it, and names its sequence with the first result only: in a process that
//! tells this, the time to the first token is known when the sequence is named, or when the request is over.
//!
//! A draft model computes what its target computes: its context is no request's, and a token is there only when both have
//! computed it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::call::{Arrival, Call, IDLE_NS, PAUSE_NS, SeqKey, span};
use super::contexts::{ContextKey, Contexts};
use super::fact::{Event, Fact, Unobserved};
use super::open::{OfDraft, OpenRequest};
use super::row::RequestNow;
use super::sequence::{ChunkSeen, ChunkWork, SequenceTracker};
use super::widths::CallWidths;
use pfi::record::{Chunk, MemoryCall};

/// Maximum changes of memory kept.
const CHANGES: usize = 256;
/// Maximum processes that are known to tell when they take requests in.
const SERVERS: usize = 16;

/// Follows the requests of all processes, and tells what becomes known of them.
#[derive(Default)]
pub struct Requests {
    sequences: SequenceTracker,
    /// The last request of each sequence.
    open: HashMap<SeqKey, OpenRequest>,
    /// Requests so far.
    begun: u64,
    contexts: Contexts,
    /// Changes of memory that follow a call that is not passed on yet.
    changes: Vec<MemoryCall>,
    /// Processes that tell when they take requests in.
    servers: Vec<u32>,
    /// Calls whose batches are not read.
    widths: CallWidths,
    /// Lost events of calls so far.
    lost: u64,
}

impl Requests {
    /// Contexts of draft models may be known before they have drafted: to those who read a recording again.
    pub fn knowing(drafts: Vec<ContextKey>) -> Requests {
        let mut requests = Requests::default();
        requests.contexts.drafts = drafts;
        requests
    }

    /// The contexts of draft models.
    pub fn drafts(self) -> Vec<ContextKey> {
        self.contexts.drafts
    }

    /// A call has returned, and this is what it has computed.
    pub fn call(&mut self, call: &Call, chunks: &[Chunk], sink: &mut dyn FnMut(Event)) {
        let due = |m: &MemoryCall| m.pid == call.pid && m.t <= call.start;
        while let Some(at) = self.changes.iter().position(due) {
            let m = self.changes.remove(at);
            self.change(&m, sink);
        }
        chunks.iter().for_each(|chunk| self.chunk(call, chunk, sink));
    }

    /// A call has returned of which only the number of tokens is known.
    pub fn unread_call(&mut self, call: &Call, sink: &mut dyn FnMut(Event)) {
        let of = |key: &SeqKey| (key.0, key.1) == (call.pid, call.context);
        self.give_up(&of, Unobserved::Sequences, sink);
        self.widths.call(call, sink);
    }

    fn chunk(&mut self, call: &Call, chunk: &Chunk, sink: &mut dyn FnMut(Event)) {
        let pid = call.pid;
        let key = (pid, call.context, chunk.seq);
        self.make_room(key, sink);
        let draft = self.contexts.is_draft(key) && self.contexts.computes(key, chunk);
        let Some(seen) = self.sequences.chunk(key, chunk, call.encodes) else {
            return sink(Event { pid, request: None, draft, fact: Fact::Untracked { tokens: chunk.tokens } });
        };
        if !draft {
            let verified = (seen.work == ChunkWork::Verify).then(|| self.contexts.verified(key, chunk));
            verified.flatten().into_iter().for_each(|context| self.found_draft((pid, context), sink));
            self.contexts.computes(key, chunk);
        }
        self.echo(call, chunk, draft);
        let awaits = seen.begins && self.servers.contains(&pid);
        let answers = draft && self.target(key).is_some_and(|o| o.work != ChunkWork::Prefill);
        let of_draft = match draft {
            true => OfDraft::Yes,
            false if seen.begins && self.shadows(call, chunk) => OfDraft::Maybe,
            false => OfDraft::No,
        };
        let open = self.request_of(key, call, (chunk, &seen), of_draft, sink);
        open.awaits |= awaits;
        if of_draft == OfDraft::Maybe {
            open.miss(Unobserved::Contexts, sink);
        }
        if !call.seen {
            open.miss(Unobserved::EndUnseen, sink);
        }
        open.take(call, chunk, seen.work);
        open.tell(Fact::Chunk { call: call.id, chunk: *chunk, work: seen.work, answers }, sink);
    }

    /// The request of a chunk, which is the next one of its sequence if it begins one.
    fn request_of(
        &mut self,
        key: SeqKey,
        call: &Call,
        (chunk, seen): (&Chunk, &ChunkSeen),
        draft: OfDraft,
        sink: &mut dyn FnMut(Event),
    ) -> &mut OpenRequest {
        let id = self.begun;
        match self.open.entry(key) {
            Entry::Vacant(free) => {
                self.begun += 1;
                free.insert(OpenRequest::begin(id, key, call, (chunk, seen), draft, sink))
            }
            Entry::Occupied(last) => {
                let open = last.into_mut();
                seen.accepted.into_iter().for_each(|accepted| open.settle(accepted, sink));
                if let Some(end) = open.echo.take().filter(|_| seen.work == ChunkWork::Verify) {
                    open.delay(end);
                }
                if seen.begins || !open.going {
                    open.complete(sink);
                    self.begun += 1;
                    *open = OpenRequest::begin(id, key, call, (chunk, seen), draft, sink);
                }
                open.end_step(sink);
                open
            }
        }
    }

    /// Makes room for a sequence: those whose requests are over go first, then those of other processes.
    fn make_room(&mut self, key: SeqKey, sink: &mut dyn FnMut(Event)) {
        if self.sequences.has_room_for(key) {
            return;
        }
        let open = &self.open;
        let over = |k: &SeqKey| open.get(k).is_none_or(|o| !o.going);
        self.sequences.forget(over);
        self.contexts.forget_sequences(over);
        self.open.retain(|_, o| o.going);
        if !self.sequences.has_room_for(key) {
            self.give_up(&|k| k.0 != key.0, Unobserved::Crowded, sink);
            self.contexts.forget_sequences(|k| k.0 != key.0);
        }
    }

    /// The requests of the same sequence in other contexts of the process, without those of draft models.
    fn beside(&self, key: SeqKey) -> impl Iterator<Item = &OpenRequest> {
        let others = self.contexts.beside(key).filter_map(|k| self.open.get(&k));
        others.filter(|o| o.draft != OfDraft::Yes)
    }

    /// The request that a draft model computes for.
    fn target(&self, key: SeqKey) -> Option<&OpenRequest> {
        self.beside(key).max_by_key(|o| o.last)
    }

    /// Another context computes a chunk that a request has just computed. `draft`: it is a draft model's, and what the chunk
    /// brought is there only now; otherwise the next chunk decides.
    fn echo(&mut self, call: &Call, chunk: &Chunk, draft: bool) {
        let same = |o: &&OpenRequest| {
            let last = (o.chunk.pos, o.chunk.tokens);
            o.going && last == (chunk.pos, chunk.tokens) && o.last <= call.start
        };
        let key = (call.pid, call.context, chunk.seq);
        let target = self.beside(key).filter(same).max_by_key(|o| o.last).map(|o| o.key);
        let Some(target) = target.and_then(|key| self.open.get_mut(&key)) else { return };
        match call.seen.then_some(call.end) {
            Some(end) if draft => target.delay(end),
            end => target.echo = end,
        }
    }

    /// A context is that of a draft model: it has no requests.
    fn found_draft(&mut self, context: ContextKey, sink: &mut dyn FnMut(Event)) {
        for open in self.open.values_mut().filter(|o| (o.key.0, o.key.1) == context) {
            open.miss(Unobserved::Contexts, sink);
            open.draft = OfDraft::Yes;
        }
    }

    /// Whether a request begins where one of another context has just begun: it may be that of a draft model.
    fn shadows(&self, call: &Call, chunk: &Chunk) -> bool {
        let mut others = self.beside((call.pid, call.context, chunk.seq)).filter(|o| o.going && !o.missed);
        let just = |o: &OpenRequest| o.last <= call.start && span(o.last, call.start) < PAUSE_NS;
        others.any(|o| o.begins_at(chunk.pos) && just(o))
    }

    /// A server took in a request, or named the sequence that has computed one.
    pub fn arrival(&mut self, arrival: &Arrival, sink: &mut dyn FnMut(Event)) {
        let Arrival { pid, at, seq } = *arrival;
        let Some(seq) = seq else {
            if !self.servers.contains(&pid) && self.servers.len() < SERVERS {
                self.servers.push(pid);
            }
            return;
        };
        // The last one of its sequence that began after it was taken in. Another context's may be a draft model's.
        let of = |o: &&mut OpenRequest| {
            let sequence = (o.key.0, u64::try_from(o.key.2)) == (pid, Ok(seq));
            sequence && o.going && o.draft != OfDraft::Yes && o.arrived.is_none() && o.began >= at
        };
        let found = self.open.values_mut().filter(of).max_by_key(|o| (o.draft == OfDraft::No, o.began));
        found.into_iter().for_each(|open| open.arrive(at, sink));
    }

    /// A change of a context's memory. `held`: a call of the process has begun before it, and is not passed on yet.
    pub fn memory(&mut self, m: &MemoryCall, held: bool, sink: &mut dyn FnMut(Event)) {
        if !held && self.changes.iter().all(|c| c.pid != m.pid) {
            return self.change(m, sink);
        }
        if self.changes.len() == CHANGES {
            let first = self.changes.remove(0);
            self.change(&first, sink);
        }
        self.changes.push(*m);
    }

    fn change(&mut self, m: &MemoryCall, sink: &mut dyn FnMut(Event)) {
        let Requests { sequences, open, .. } = self;
        sequences.memory(m, &mut |key, accepted| {
            open.get_mut(&key).into_iter().for_each(|o| o.settle(accepted, sink));
        });
    }

    /// The rest of these requests is not observed: chunks of them were or will be missed.
    fn give_up(&mut self, of: &dyn Fn(&SeqKey) -> bool, why: Unobserved, sink: &mut dyn FnMut(Event)) {
        for open in self.open.values_mut().filter(|o| o.going && of(&o.key)) {
            open.give_up(why, sink);
        }
        self.sequences.forget(of);
        self.open.retain(|key, _| !of(key));
    }

    /// A process has ended; with it, its requests.
    pub fn ended(&mut self, pid: u32, sink: &mut dyn FnMut(Event)) {
        self.open.values_mut().filter(|o| o.key.0 == pid).for_each(|o| o.complete(sink));
        self.forget(|of| of == pid);
        self.widths.ended(pid, sink);
    }

    /// A process, or any, is not recorded any longer.
    pub fn stopped(&mut self, pid: Option<u32>, sink: &mut dyn FnMut(Event)) {
        let of = |p: u32| pid.is_none_or(|pid| p == pid);
        self.give_up(&|key| of(key.0), Unobserved::Stopped, sink);
        self.forget(of);
        self.widths.stopped(pid, sink);
    }

    /// Nothing follows: all changes of memory are applied, and all requests are over.
    pub fn finish(&mut self, sink: &mut dyn FnMut(Event)) {
        for m in std::mem::take(&mut self.changes) {
            self.change(&m, sink);
        }
        self.open.values_mut().for_each(|open| open.complete(sink));
    }

    fn forget(&mut self, of: impl Fn(u32) -> bool) {
        self.open.retain(|key, _| !of(key.0));
        self.contexts.forget(&of);
        self.changes.retain(|m| !of(m.pid));
        self.servers.retain(|pid| !of(*pid));
        self.sequences.forget(|key| of(key.0));
    }

    /// Ends the requests for which nothing was computed for 10 s before `now`. `longest`: when the longest call in progress
    /// began, which may be theirs.
    pub fn rest(&mut self, now: i64, longest: Option<i64>, sink: &mut dyn FnMut(Event)) {
        let begun = longest.unwrap_or(now);
        let idle = |last: i64| last.saturating_add(IDLE_NS) < now && begun > last.saturating_add(IDLE_NS / 2);
        self.open.values_mut().filter(|o| o.going && idle(o.last)).for_each(|o| o.complete(sink));
        self.widths.rest(&idle, sink);
    }

    /// `lost` events of calls were lost so far. Requests in progress may lack calls.
    pub fn lost(&mut self, lost: u64, sink: &mut dyn FnMut(Event)) {
        if std::mem::replace(&mut self.lost, lost) != lost {
            self.give_up(&|_| true, Unobserved::Lost, sink);
            self.widths.lost(sink);
        }
    }

    /// The requests in progress of these processes, in the order of contexts and sequences.
    pub fn rows(&self, of: impl Fn(u32) -> bool, now: i64) -> Vec<RequestNow> {
        let shown = |o: &&OpenRequest| o.going && o.draft != OfDraft::Yes && of(o.key.0);
        let row = |o: &OpenRequest| o.row(self.contexts.number(o.key), now);
        let mut rows: Vec<RequestNow> = self.open.values().filter(shown).map(row).collect();
        common::order::by(&mut rows, |a, b| (a.pid, a.context, a.seq).cmp(&(b.pid, b.context, b.seq)));
        rows
    }
}
