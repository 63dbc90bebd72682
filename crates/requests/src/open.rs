//! One request: what its calls have brought so far.

use super::call::{Call, SeqKey, span};
use super::fact::{Event, Fact, Unobserved};
use super::row::{RequestNow, RequestPhase};
use super::sequence::{ChunkSeen, ChunkWork};
use pfi::record::Chunk;

/// What the last call brought, until the next one of its sequence: a draft model may still compute it.
#[derive(Debug, Clone, Copy)]
struct LastStep {
    call: u64,
    end: i64,
    seen: bool,
    work: ChunkWork,
    drafted: u64,
    /// Of the draft, if its result is known.
    accepted: Option<u64>,
}

impl LastStep {
    /// Tokens that it brought, as far as is known.
    fn tokens(&self) -> u64 {
        self.accepted.unwrap_or(0).saturating_add(1)
    }
}

/// Whether a request is the work of a draft model, and so a part of another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OfDraft {
    No,
    /// It began just where another one did.
    Maybe,
    Yes,
}

/// The last request of a sequence.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    id: u64,
    pub key: SeqKey,
    /// In progress; otherwise over.
    pub going: bool,
    /// Something of it was not seen, and that was reported.
    pub missed: bool,
    pub draft: OfDraft,
    /// Start of its first call, and end of the last one.
    pub began: i64,
    pub last: i64,
    /// When the server took it in; None: not known, at least not yet.
    pub arrived: Option<i64>,
    /// Its process tells that.
    pub awaits: bool,
    /// The last chunk, and what it was for.
    pub chunk: Chunk,
    pub work: ChunkWork,
    /// When its first token was there, and whether that was reported.
    first: Option<i64>,
    told: bool,
    step: Option<LastStep>,
    /// Until when another context computed the last chunk again: a draft model, if the next chunk verifies a draft.
    pub echo: Option<i64>,
    /// When the last token was there that was counted.
    token: i64,
    now: RequestNow,
    /// Results were wanted for all tokens of its prompt: no text is generated.
    scores: bool,
}

impl OpenRequest {
    pub fn begin(
        id: u64,
        key: SeqKey,
        call: &Call,
        (chunk, seen): (&Chunk, &ChunkSeen),
        draft: OfDraft,
        sink: &mut dyn FnMut(Event),
    ) -> OpenRequest {
        let cached_tokens = u64::try_from(chunk.pos).ok().filter(|_| !seen.late);
        let mut open = OpenRequest {
            id,
            key,
            going: true,
            missed: false,
            draft,
            began: call.start,
            last: call.start,
            arrived: None,
            awaits: false,
            chunk: *chunk,
            work: seen.work,
            first: None,
            told: false,
            step: None,
            echo: None,
            token: call.start,
            now: RequestNow { cached_tokens, ..RequestNow::default() },
            scores: false,
        };
        open.tell(Fact::Began { key, start: call.start, cached: cached_tokens, late: seen.late }, sink);
        // One that was taken to be over, and goes on, has no prompt either.
        if seen.late || !seen.begins {
            open.miss(Unobserved::NoPrompt, sink);
        }
        open
    }

    pub fn tell(&self, fact: Fact, sink: &mut dyn FnMut(Event)) {
        let draft = self.draft == OfDraft::Yes;
        sink(Event { pid: self.key.0, request: Some(self.id), draft, fact });
    }

    pub fn miss(&mut self, why: Unobserved, sink: &mut dyn FnMut(Event)) {
        if self.going && !self.missed {
            self.missed = true;
            self.tell(Fact::Unobserved(why), sink);
        }
    }

    /// What the last call brought is known as well as it will be.
    pub fn end_step(&mut self, sink: &mut dyn FnMut(Event)) {
        let Some(step) = self.step.take() else { return };
        let tokens = step.tokens();
        self.now.tokens = self.now.tokens.saturating_add(tokens);
        self.now.drafted = self.now.drafted.saturating_add(step.drafted);
        self.now.accepted = self.now.accepted.saturating_add(tokens - 1);
        if self.token == self.began {
            self.token = self.first.unwrap_or(self.token);
        }
        if !self.awaits {
            self.tell_first(sink);
        }
        let each_ns = (!self.missed).then(|| span(self.token, step.end) / tokens);
        let LastStep { call, end, seen, work, drafted, accepted } = step;
        self.tell(Fact::Tokens { call, end, seen, work, drafted, accepted, each_ns }, sink);
        self.token = end;
    }

    /// When it began for its client, as far as that is known.
    fn from(&self) -> i64 {
        self.arrived.unwrap_or(self.began)
    }

    /// The server took it in at `at`.
    pub fn arrive(&mut self, at: i64, sink: &mut dyn FnMut(Event)) {
        (self.arrived, self.awaits) = (Some(at), false);
        self.tell(Fact::Arrived { at }, sink);
        // Its first call may have returned, and be delayed by a draft model until the next one.
        if self.step.is_some() || self.now.tokens > 0 {
            self.tell_first(sink);
        }
    }

    fn tell_first(&mut self, sink: &mut dyn FnMut(Event)) {
        if let (Some(at), false) = (self.first, self.told) {
            self.told = true;
            let ttft_ns = (!self.missed).then(|| span(self.from(), at));
            self.tell(Fact::FirstToken { at, ttft_ns }, sink);
        }
    }

    /// It is over.
    pub fn complete(&mut self, sink: &mut dyn FnMut(Event)) {
        self.end_step(sink);
        if !self.going {
            return;
        }
        if self.first.is_none() || (self.scores && self.now.tokens == 0) {
            self.miss(Unobserved::NoToken, sink);
        }
        self.tell_first(sink);
        if !self.missed {
            self.tell(Fact::Ended { duration_ns: span(self.from(), self.last) }, sink);
        }
        self.going = false;
    }

    /// Its rest is not observed.
    pub fn give_up(&mut self, why: Unobserved, sink: &mut dyn FnMut(Event)) {
        self.end_step(sink);
        self.miss(why, sink);
        self.tell_first(sink);
    }

    /// The result of the call's chunk.
    pub fn take(&mut self, call: &Call, chunk: &Chunk, work: ChunkWork) {
        let (id, end, seen) = (call.id, call.end, call.seen);
        let step = |drafted, accepted| Some(LastStep { call: id, end, seen, work, drafted, accepted });
        match work {
            ChunkWork::Prefill => {
                self.now.prompt_tokens = self.now.prompt_tokens.saturating_add(chunk.tokens);
                self.first = if chunk.outputs > 0 { Some(end) } else { self.first };
                self.scores |= chunk.outputs > 1;
            }
            ChunkWork::Decode => self.step = step(0, Some(0)),
            ChunkWork::Verify => self.step = step(chunk.tokens.saturating_sub(1), None),
            ChunkWork::Encode => {}
        }
        (self.last, self.chunk, self.work) = (end, *chunk, work);
    }

    /// The result of the last draft is known.
    pub fn settle(&mut self, accepted: u64, sink: &mut dyn FnMut(Event)) {
        let Some(step) = &mut self.step else { return };
        let accepted = accepted.min(step.drafted);
        step.accepted = Some(accepted);
        let call = step.call;
        self.tell(Fact::Settled { call, accepted }, sink);
    }

    /// A draft model has computed the same until `end`.
    pub fn delay(&mut self, end: i64) {
        self.last = end;
        match &mut self.step {
            Some(step) => step.end = end,
            None => self.first = self.first.map(|_| end),
        }
    }

    /// As a row; `context` is the number of its context.
    pub fn row(&self, context: u32, now: i64) -> RequestNow {
        let after = self.now.tokens.saturating_add(self.step.map_or(0, |s| s.tokens()));
        let until = self.step.map_or(self.token, |s| s.end);
        let seen = self.first.filter(|_| !self.missed);
        let decoding = seen.map_or(0, |first| span(first, until));
        let answered = self.first.is_some() || after > 0;
        let (drafted, accepted) = self.step.and_then(|s| Some((s.drafted, s.accepted?))).unwrap_or_default();
        RequestNow {
            pid: self.key.0,
            context,
            seq: self.key.2,
            phase: if answered { RequestPhase::Decode } else { RequestPhase::Prompt },
            ttft_ns: seen.map(|first| span(self.from(), first)),
            tokens: after.saturating_add(u64::from(self.first.is_some())),
            tokens_per_s: (decoding > 0).then(|| after as f64 / decoding as f64 * 1e9),
            drafted: self.now.drafted.saturating_add(drafted),
            accepted: self.now.accepted.saturating_add(accepted),
            duration_ns: span(self.from(), self.last),
            idle_ns: span(self.last, now),
            ..self.now
        }
    }

    /// The same request's prompt began at this position.
    pub fn begins_at(&self, pos: i64) -> bool {
        self.now.cached_tokens == u64::try_from(pos).ok()
    }
}
