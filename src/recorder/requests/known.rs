//! Requests of sequences whose batches are read: each chunk says whether it is of a prompt, a token, or a draft to verify.
//!
//! A server takes a request in before it computes it, and names its sequence with the first result only: in a process that
//! tells this, the time to the first token is counted when the sequence is named, or when the request is over.
//!
//! A draft model computes what its target computes: its context is no request's, and a token is there only when both have
//! computed it.

use super::{IDLE_NS, PAUSE_NS, RequestCall, Tallies};
use crate::recorder::tally::{ObservedRequest, RequestTally, Unobserved};
use crate::recorder::tasks::Arrival;
use pfi::record::{Chunk, MemoryCall};
use pfi::track::{ChunkSeen, ChunkWork, DraftContexts, RequestNow, RequestPhase, SeqKey, SequenceTracker};

/// Maximum sequences with a request.
const MOST: usize = 512;
/// Maximum changes of memory kept.
const CHANGES: usize = 256;
/// Maximum contexts that have a number.
const CONTEXTS: usize = 256;
/// Maximum processes that are known to tell when they take requests in.
const SERVERS: usize = 16;

/// What the last call brought, until the next one of its sequence: a draft model may still compute it.
#[derive(Debug, Clone, Copy)]
struct LastStep {
    end: u64,
    /// Tokens that it brought; None: the result of its draft is not known.
    tokens: Option<u64>,
    drafted: u64,
}

/// The last request of a sequence.
#[derive(Debug)]
struct Open {
    key: SeqKey,
    run: u32,
    /// In progress; otherwise over.
    going: bool,
    /// Something of it was not seen, which was counted.
    missed: bool,
    /// Start of its first call, and end of the last one, CLOCK_MONOTONIC ns.
    began: u64,
    last: u64,
    /// When the server took it in; None: not known, at least not yet.
    arrived: Option<u64>,
    /// Its process tells that.
    awaits: bool,
    /// The last chunk.
    chunk: Chunk,
    /// When its first token was there, and whether that was observed.
    first: Option<u64>,
    told: bool,
    step: Option<LastStep>,
    /// Until when another context computed the last chunk again: a draft model, if the next chunk verifies a draft.
    echo: Option<u64>,
    /// When the last token was there that was counted.
    token: u64,
    now: RequestNow,
    /// Results were wanted for all tokens of its prompt: no text is generated.
    scores: bool,
}

impl Open {
    fn begin(key: SeqKey, call: &RequestCall, chunk: &Chunk, seen: &ChunkSeen) -> Open {
        let cached_tokens = u64::try_from(chunk.pos).ok().filter(|_| !seen.late);
        Open {
            key,
            run: call.run,
            going: true,
            missed: false,
            began: call.start,
            last: call.start,
            arrived: None,
            awaits: false,
            chunk: *chunk,
            first: None,
            told: false,
            step: None,
            echo: None,
            token: call.start,
            now: RequestNow { cached_tokens, ..RequestNow::default() },
            scores: false,
        }
    }

    fn miss(&mut self, why: Unobserved, tally: &mut RequestTally) {
        if self.going && !self.missed {
            self.missed = true;
            tally.miss(why);
        }
    }

    /// What the last call brought is known as well as it will be.
    fn end_step(&mut self, tally: &mut RequestTally) {
        let Some(step) = self.step.take() else { return };
        let tokens = step.tokens.unwrap_or(1);
        self.now.tokens += tokens;
        self.now.drafted += step.drafted;
        self.now.accepted += tokens.saturating_sub(1);
        tally.tokens += tokens;
        if !self.missed {
            if self.token == self.began {
                self.token = self.first.unwrap_or(self.token);
            }
            if !self.awaits {
                self.tell_first(tally);
            }
            let each = step.end.saturating_sub(self.token) / tokens.max(1);
            tally.observe_tokens(each, step.tokens.unwrap_or(0));
        }
        self.token = step.end;
    }

    /// When it began for its client, as far as that is known.
    fn from(&self) -> u64 {
        self.arrived.unwrap_or(self.began)
    }

    /// The server took it in at `at`.
    fn arrive(&mut self, at: u64, tally: &mut RequestTally) {
        (self.arrived, self.awaits) = (Some(at), false);
        // Its first call may have returned, and be delayed by a draft model until the next one.
        if self.step.is_some() || self.now.tokens > 0 {
            self.tell_first(tally);
        }
    }

    fn tell_first(&mut self, tally: &mut RequestTally) {
        if let (Some(first), false) = (self.first, self.told || self.missed) {
            self.told = true;
            let first_token_ns = Some(first.saturating_sub(self.from()));
            tally.observe_request(&ObservedRequest { first_token_ns, ..Default::default() });
        }
    }

    fn complete(&mut self, tally: &mut RequestTally) {
        self.end_step(tally);
        if !self.going {
            return;
        }
        if self.first.is_none() || (self.scores && self.now.tokens == 0) {
            self.miss(Unobserved::NoToken, tally);
        }
        if !self.missed {
            self.tell_first(tally);
            let duration_ns = Some(self.last.saturating_sub(self.from()));
            tally.observe_request(&ObservedRequest { duration_ns, ..Default::default() });
        }
        self.going = false;
    }

    /// The result of the call's chunk, which ended at `end`.
    fn take(&mut self, chunk: &Chunk, work: ChunkWork, end: u64) {
        match work {
            ChunkWork::Prefill => {
                self.now.prompt_tokens = self.now.prompt_tokens.saturating_add(chunk.tokens);
                self.first = if chunk.outputs > 0 { Some(end) } else { self.first };
                self.scores |= chunk.outputs > 1;
            }
            ChunkWork::Decode => self.step = Some(LastStep { end, tokens: Some(1), drafted: 0 }),
            ChunkWork::Verify => {
                let drafted = chunk.tokens.saturating_sub(1);
                self.step = Some(LastStep { end, tokens: None, drafted });
            }
            ChunkWork::Encode => {}
        }
        (self.last, self.chunk) = (end, *chunk);
    }

    /// The result of the last draft is known.
    fn settle(&mut self, accepted: u64) {
        if let Some(step) = &mut self.step {
            step.tokens = Some(accepted.min(step.drafted).saturating_add(1));
        }
    }

    /// A draft model has computed the same until `end`.
    fn delay(&mut self, end: u64) {
        self.last = end;
        match &mut self.step {
            Some(step) => step.end = end,
            None => self.first = self.first.map(|_| end),
        }
    }

    fn row(&self, context: u32, now: u64) -> RequestNow {
        let after = self.now.tokens + self.step.map_or(0, |s| s.tokens.unwrap_or(1));
        let until = self.step.map_or(self.token, |s| s.end);
        let seen = self.first.filter(|_| !self.missed);
        let decoding = seen.map_or(0, |first| until.saturating_sub(first));
        let answered = self.first.is_some() || after > 0;
        let verified = self.step.and_then(|s| Some((s.drafted, s.tokens?.saturating_sub(1))));
        let (drafted, accepted) = verified.unwrap_or_default();
        RequestNow {
            pid: self.key.0,
            context,
            seq: self.key.2,
            phase: if answered { RequestPhase::Decode } else { RequestPhase::Prompt },
            ttft_ns: seen.map(|first| first.saturating_sub(self.from())),
            tokens: after + u64::from(self.first.is_some()),
            tokens_per_s: (decoding > 0).then(|| after as f64 / decoding as f64 * 1e9),
            drafted: self.now.drafted + drafted,
            accepted: self.now.accepted + accepted,
            duration_ns: self.last.saturating_sub(self.from()),
            idle_ns: now.saturating_sub(self.last),
            ..self.now
        }
    }
}

/// The requests of all sequences.
#[derive(Default)]
pub struct KnownRequests {
    sequences: SequenceTracker,
    open: Vec<Open>,
    drafts: DraftContexts,
    /// Changes of memory that follow a call of which the end is not known yet.
    changes: Vec<MemoryCall>,
    /// Contexts, in the order in which they computed first.
    contexts: Vec<(u32, u64)>,
    /// Processes that tell when they take requests in.
    servers: Vec<u32>,
}

impl KnownRequests {
    /// A call has computed this chunk, among others.
    pub fn call(&mut self, call: &RequestCall, chunk: &Chunk, tally: &mut RequestTally) {
        let (pid, context) = (call.pid, call.context);
        let key = (pid, context, chunk.seq);
        if self.drafts.contains(key) && self.drafts.has(key, chunk) {
            return self.echo(call, chunk, true);
        }
        self.catch_up(pid, call.start);
        let Some(seen) = self.sequences.chunk(key, chunk, false) else {
            tally.tokens += u64::from(chunk.tokens == 1);
            return tally.miss(Unobserved::Crowded);
        };
        if seen.work == ChunkWork::Verify
            && let Some(draft) = self.drafts.verified(key, chunk)
        {
            self.drop_context(pid, draft, tally);
        }
        self.drafts.has(key, chunk);
        self.echo(call, chunk, false);
        if !self.contexts.contains(&(pid, context)) && self.contexts.len() < CONTEXTS {
            self.contexts.push((pid, context));
        }
        let shadow = seen.begins && self.shadows(call, chunk);
        let awaits = seen.begins && self.servers.contains(&pid);
        let Some(open) = self.open_of(key, call, chunk, &seen, tally) else { return };
        open.awaits |= awaits;
        if shadow {
            open.miss(Unobserved::Contexts, tally);
        }
        if call.end.is_none() {
            open.miss(Unobserved::EndUnseen, tally);
        }
        open.take(chunk, seen.work, call.end.unwrap_or(call.start));
    }

    /// A server took in a request, or named the sequence that has computed one.
    pub fn arrival(&mut self, arrival: &Arrival, tallies: &mut Tallies) {
        let Arrival { pid, at, seq } = *arrival;
        let Some(seq) = seq else {
            if !self.servers.contains(&pid) && self.servers.len() < SERVERS {
                self.servers.push(pid);
            }
            return;
        };
        // The last one of its sequence that began after it was taken in.
        let of =
            |o: &&mut Open| o.going && (o.key.0, u64::try_from(o.key.2)) == (pid, Ok(seq)) && o.began >= at;
        if let Some(open) = self.open.iter_mut().filter(of).max_by_key(|o| o.began) {
            open.arrive(at, tallies.of(open.run));
        }
    }

    /// The request of a chunk, which is the next one of its sequence if it begins one.
    fn open_of(
        &mut self,
        key: SeqKey,
        call: &RequestCall,
        chunk: &Chunk,
        seen: &ChunkSeen,
        tally: &mut RequestTally,
    ) -> Option<&mut Open> {
        let at = match self.open.iter().position(|o| o.key == key) {
            Some(at) => at,
            None => {
                if self.open.len() == MOST && !self.make_room() {
                    tally.miss(Unobserved::Crowded);
                    return None;
                }
                self.open.push(Open { going: false, ..Open::begin(key, call, chunk, seen) });
                self.open.len() - 1
            }
        };
        let open = self.open.get_mut(at)?;
        open.run = call.run;
        seen.accepted.into_iter().for_each(|accepted| open.settle(accepted));
        if let Some(end) = open.echo.take().filter(|_| seen.work == ChunkWork::Verify) {
            open.delay(end);
        }
        if seen.begins {
            open.complete(tally);
            *open = Open::begin(key, call, chunk, seen);
            if seen.late {
                open.miss(Unobserved::NoPrompt, tally);
            }
        } else if !open.going {
            // It was taken to be over, and goes on.
            *open = Open::begin(key, call, chunk, seen);
            open.miss(Unobserved::NoPrompt, tally);
        }
        open.end_step(tally);
        Some(open)
    }

    /// Another context computes a chunk that a request has just computed. `draft`: it is a draft model's, and what the chunk
    /// brought is there only now; otherwise the next chunk decides.
    fn echo(&mut self, call: &RequestCall, chunk: &Chunk, draft: bool) {
        let same = |o: &&mut Open| {
            o.going
                && (o.key.0, o.chunk.seq) == (call.pid, chunk.seq)
                && o.key.1 != call.context
                && (o.chunk.pos, o.chunk.tokens) == (chunk.pos, chunk.tokens)
                && o.last <= call.start
        };
        match (self.open.iter_mut().find(same), call.end) {
            (Some(target), Some(end)) if draft => target.delay(end),
            (Some(target), end) => target.echo = end,
            (None, _) => {}
        }
    }

    /// A context is that of a draft model: it has no requests.
    fn drop_context(&mut self, pid: u32, context: u64, tally: &mut RequestTally) {
        self.contexts.retain(|c| *c != (pid, context));
        let of = |o: &Open| (o.key.0, o.key.1) == (pid, context);
        self.open.iter_mut().filter(|o| of(o)).for_each(|o| o.miss(Unobserved::Contexts, tally));
        self.open.retain(|o| !of(o));
    }

    /// Whether a request begins where one of another context has just begun: it may be that of a draft model.
    fn shadows(&self, call: &RequestCall, chunk: &Chunk) -> bool {
        let begins = |o: &&Open| o.now.cached_tokens == u64::try_from(chunk.pos).ok();
        let beside = |o: &&Open| (o.key.0, o.key.2) == (call.pid, chunk.seq) && o.key.1 != call.context;
        let mut others = self.open.iter().filter(|o| o.going && !o.missed).filter(beside).filter(begins);
        others.any(|o| o.last <= call.start && call.start - o.last < PAUSE_NS)
    }

    /// Forgets a request that is over.
    fn make_room(&mut self) -> bool {
        let over = self.open.iter().enumerate().filter(|(_, o)| !o.going);
        let oldest = over.min_by_key(|(_, o)| o.last).map(|(i, _)| i);
        oldest.map(|i| self.open.swap_remove(i)).is_some()
    }

    /// A change of a context's memory. `held`: a call of the process has returned, and waits for its end on a device.
    pub fn memory(&mut self, m: &MemoryCall, held: bool) {
        if !held && self.changes.iter().all(|c| c.pid != m.pid) {
            return self.change(m);
        }
        if self.changes.len() == CHANGES {
            let first = self.changes.remove(0);
            self.change(&first);
        }
        self.changes.push(*m);
    }

    /// Applies the changes of a process's memory before `t`.
    fn catch_up(&mut self, pid: u32, t: u64) {
        let due = |m: &MemoryCall| m.pid == pid && m.t <= t as i64;
        while let Some(at) = self.changes.iter().position(due) {
            let m = self.changes.remove(at);
            self.change(&m);
        }
    }

    fn change(&mut self, m: &MemoryCall) {
        let KnownRequests { sequences, open, .. } = self;
        sequences.memory(m, &mut |key, accepted| {
            open.iter_mut().find(|o| o.key == key).into_iter().for_each(|o| o.settle(accepted));
        });
    }

    /// Ends the requests of these processes and contexts, as complete or because something was not seen.
    pub fn end(&mut self, of: &dyn Fn(u32, u64) -> bool, why: Option<Unobserved>, tallies: &mut Tallies) {
        for open in self.open.iter_mut().filter(|o| o.going && of(o.key.0, o.key.1)) {
            let tally = tallies.of(open.run);
            match why {
                None => open.complete(tally),
                Some(why) => {
                    open.end_step(tally);
                    open.miss(why, tally);
                }
            }
        }
        if why.is_some() {
            // Chunks were or will be missed.
            self.sequences.forget(|key| of(key.0, key.1));
            self.open.retain(|o| !of(o.key.0, o.key.1));
        }
    }

    /// Ends the requests of sequences for which nothing was computed for 10 s before `now`. `begun`: when the longest call
    /// in progress began.
    pub fn rest(&mut self, now: u64, begun: u64, tallies: &mut Tallies) {
        let idle = |o: &&mut Open| {
            o.going && o.last.saturating_add(IDLE_NS) < now && begun > o.last.saturating_add(IDLE_NS / 2)
        };
        for open in self.open.iter_mut().filter(idle) {
            open.complete(tallies.of(open.run));
        }
    }

    /// A process has ended, or is not recorded any longer.
    pub fn forget(&mut self, pid: Option<u32>) {
        let of = |p: u32| pid.is_none_or(|pid| p == pid);
        self.open.retain(|o| !of(o.key.0));
        self.drafts.forget(of);
        self.changes.retain(|m| !of(m.pid));
        self.contexts.retain(|c| !of(c.0));
        self.servers.retain(|pid| !of(*pid));
        self.sequences.forget(|key| of(key.0));
    }

    /// The requests in progress of a run, or of all, in the order of contexts and sequences.
    pub fn rows(&self, run: Option<u32>, now: u64) -> Vec<RequestNow> {
        let number = |o: &Open| {
            let own = self.contexts.iter().filter(|c| c.0 == o.key.0);
            own.take_while(|c| c.1 != o.key.1).count() as u32 + 1
        };
        let of = |o: &&Open| o.going && run.is_none_or(|run| o.run == run);
        let mut rows: Vec<RequestNow> = self.open.iter().filter(of).map(|o| o.row(number(o), now)).collect();
        common::order::by(&mut rows, |a, b| (a.pid, a.context, a.seq).cmp(&(b.pid, b.context, b.seq)));
        rows
    }
}
