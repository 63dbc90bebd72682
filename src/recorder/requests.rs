//! Requests, as far as the calls of a context show them: from the first call that processes a prompt to the last call
//! that decodes a token of it.
//!
//! Where batches are read, each sequence has its own requests (`known`). Otherwise a call of one token decodes; a call of
//! several may be a prompt, the next tokens of several sequences, or a check of drafted tokens. What cannot be told apart is
//! not observed, and counted with the reason. A request is over when the next one has decoded its first token: until then
//! its sequence may go on in calls of several tokens.

mod known;

use self::known::KnownRequests;
use super::tally::{ObservedRequest, RequestTally, Unobserved};
use super::tasks::Arrival;
use pfi::record::{Chunk, MemoryCall};
use pfi::track::RequestNow;

/// Maximum contexts followed.
const MOST: usize = 512;
/// A request is over when its context was not called for this long, ns.
const IDLE_NS: u64 = 10_000_000_000;
/// Calls of more tokens than this are prompts, or parts of one: no more sequences are decoded at a time, and no more tokens
/// drafted, as a rule. Tokens per call of a long prompt (`n_batch`) are a multiple of it.
const PART: u32 = 32;
/// A short prompt that follows a token after less than this, ns, cannot be told from a check of drafted tokens.
const PAUSE_NS: u64 = 50_000_000;

/// A call that has returned.
#[derive(Debug, Clone, Copy)]
pub struct RequestCall {
    pub pid: u32,
    /// The first process of its run.
    pub run: u32,
    /// Address of its context.
    pub context: u64,
    /// Tokens of its batch; 0: not known.
    pub width: u32,
    pub start: u64,
    /// When its work had ended; None: not seen.
    pub end: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No request is in progress.
    Idle,
    Prompt,
    Decode,
    /// Something is in progress that cannot be observed.
    Unknown,
}

/// A context, and its current request.
struct OpenContext {
    pid: u32,
    run: u32,
    context: u64,
    phase: Phase,
    /// When its first call began, and when its last one ended, CLOCK_MONOTONIC ns.
    began: u64,
    last: u64,
    /// Tokens of the last call.
    width: u32,
    /// Duration of the request before, if that is over.
    before: Option<u64>,
    /// Another context of the process was called since.
    elsewhere: bool,
    /// What was in progress before could not be observed, which was counted.
    counted: bool,
}

impl OpenContext {
    fn is_observed(&self) -> bool {
        matches!(self.phase, Phase::Prompt | Phase::Decode)
    }

    /// Gives its request up.
    fn miss(&mut self, why: Unobserved, tally: &mut RequestTally) {
        if self.is_observed() && !self.counted {
            tally.miss(why);
        }
        if self.before.take().is_some() {
            tally.miss(why);
        }
        (self.phase, self.counted) = (Phase::Unknown, true);
    }

    /// Its request is over, and so is the one before.
    fn complete(&mut self, tally: &mut RequestTally) {
        self.end_before(tally);
        match self.phase {
            Phase::Decode => observe_duration(tally, self.last.saturating_sub(self.began)),
            Phase::Prompt if !self.counted => tally.miss(Unobserved::NoToken),
            _ => {}
        }
        (self.phase, self.counted) = (Phase::Idle, false);
    }

    fn end_before(&mut self, tally: &mut RequestTally) {
        self.before.take().into_iter().for_each(|ns| observe_duration(tally, ns));
    }

    /// A call of several tokens.
    fn several(&mut self, call: &RequestCall, end: u64, tally: &mut RequestTally) {
        let check = call.width <= PART && call.start.saturating_sub(self.last) < PAUSE_NS;
        match self.phase {
            Phase::Prompt if call.width > PART || self.width.is_multiple_of(PART) => {}
            Phase::Prompt => return self.miss(Unobserved::Sequences, tally),
            Phase::Decode | Phase::Unknown if check => return self.miss(Unobserved::Sequences, tally),
            Phase::Decode => {
                self.before = Some(self.last.saturating_sub(self.began));
                (self.phase, self.began) = (Phase::Prompt, call.start);
            }
            Phase::Idle | Phase::Unknown => (self.phase, self.began) = (Phase::Prompt, call.start),
        }
        (self.last, self.width) = (end, call.width);
    }

    /// A call of one token.
    fn one(&mut self, end: u64, tally: &mut RequestTally) {
        let token = [end.saturating_sub(self.last)];
        let mut seen = ObservedRequest { output_token_ns: &token, ..ObservedRequest::default() };
        match self.phase {
            Phase::Unknown => return,
            Phase::Idle => {
                tally.miss(Unobserved::NoPrompt);
                (self.phase, self.counted) = (Phase::Unknown, true);
                return;
            }
            Phase::Prompt => {
                self.end_before(tally);
                // The prompt's last call gave the first token.
                seen.first_token_ns = Some(self.last.saturating_sub(self.began));
                (self.phase, self.counted) = (Phase::Decode, false);
            }
            Phase::Decode => {}
        }
        tally.observe_request(&seen);
        self.last = end;
    }
}

fn observe_duration(tally: &mut RequestTally, ns: u64) {
    tally.observe_request(&ObservedRequest { duration_ns: Some(ns), ..ObservedRequest::default() });
}

/// The requests of the recorded processes.
#[derive(Default)]
pub struct Requests {
    open: Vec<OpenContext>,
    known: KnownRequests,
    tallies: Tallies,
    /// Lost events of calls so far.
    lost: u64,
}

/// Sums of each run, given by its first process, since they were last taken.
#[derive(Default)]
struct Tallies(Vec<(u32, RequestTally)>);

impl Tallies {
    fn of(&mut self, run: u32) -> &mut RequestTally {
        let at = self.0.iter().position(|(of, _)| *of == run).unwrap_or_else(|| {
            self.0.push((run, RequestTally::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}

impl Requests {
    /// A call has returned, and this is what it has computed.
    pub fn chunks(&mut self, call: &RequestCall, chunks: &[Chunk]) {
        chunks.iter().for_each(|chunk| self.known.call(call, chunk, self.tallies.of(call.run)));
    }

    /// A change of a context's memory. `held`: a call of the process has returned and is not passed on yet.
    pub fn memory(&mut self, m: &MemoryCall, held: bool) {
        self.known.memory(m, held);
    }

    /// A server took in a request, or named the sequence of one.
    pub fn arrival(&mut self, arrival: &Arrival) {
        self.known.arrival(arrival, &mut self.tallies);
    }

    /// The requests of known sequences in progress: of a run, given by its first process, or all.
    pub fn rows(&self, run: Option<u32>, now: u64) -> Vec<RequestNow> {
        self.known.rows(run, now)
    }

    /// A call has returned of which only the number of tokens is known.
    pub fn call(&mut self, call: &RequestCall) {
        let of = |pid, context| (pid, context) == (call.pid, call.context);
        self.known.end(&of, Some(Unobserved::Sequences), &mut self.tallies);
        let tally = self.tallies.of(call.run);
        tally.tokens += u64::from(call.width == 1);
        let same = |c: &OpenContext| (c.pid, c.context) == (call.pid, call.context);
        let at = match self.open.iter().position(same) {
            Some(at) => at,
            None => {
                if self.open.len() == MOST && !self.make_room() {
                    if call.width > 1 {
                        self.tallies.of(call.run).miss(Unobserved::Crowded);
                    }
                    return;
                }
                self.open.push(OpenContext {
                    pid: call.pid,
                    run: call.run,
                    context: call.context,
                    phase: Phase::Idle,
                    began: call.start,
                    last: 0,
                    width: 0,
                    before: None,
                    elsewhere: false,
                    counted: false,
                });
                self.open.len() - 1
            }
        };
        self.part_contexts(at, call);
        let tally = self.tallies.of(call.run);
        let open = &mut self.open[at];
        open.run = call.run;
        match (call.end, call.width) {
            (None, _) => open.miss_now(Unobserved::EndUnseen, tally),
            (_, 0) => open.miss_now(Unobserved::Width, tally),
            (Some(end), 1) => open.one(end, tally),
            (Some(end), _) => open.several(call, end, tally),
        }
        // Of a call that is not observed, too: the context is not idle.
        open.last = open.last.max(call.end.unwrap_or(call.start));
    }

    /// Notes that other contexts of the process were not called last. Where the calls of two contexts alternate, neither's
    /// requests are observed: one may draft tokens for the other.
    fn part_contexts(&mut self, at: usize, call: &RequestCall) {
        let open = &mut self.open[at];
        let continues = match open.phase {
            Phase::Prompt => true,
            Phase::Decode => call.width <= 1,
            Phase::Idle | Phase::Unknown => false,
        };
        let alternate = std::mem::take(&mut open.elsewhere) && continues;
        let since = open.last;
        for (i, other) in self.open.iter_mut().enumerate().filter(|(_, c)| c.pid == call.pid) {
            let tally = self.tallies.of(other.run);
            match (i == at, alternate) {
                (true, true) => other.miss(Unobserved::Contexts, tally),
                (false, true) if other.last >= since => other.miss(Unobserved::Contexts, tally),
                (false, _) => other.elsewhere = true,
                (true, false) => {}
            }
        }
    }

    /// Forgets a context without a request.
    fn make_room(&mut self) -> bool {
        let unused = self.open.iter().enumerate().filter(|(_, c)| !c.is_observed());
        let oldest = unused.min_by_key(|(_, c)| c.last).map(|(i, _)| i);
        oldest.map(|i| self.open.swap_remove(i)).is_some()
    }

    /// A process has ended; with it, its requests.
    pub fn exit(&mut self, pid: u32) {
        self.known.end(&|of, _| of == pid, None, &mut self.tallies);
        self.known.forget(Some(pid));
        self.end_all(|c| c.pid == pid, OpenContext::complete);
        self.open.retain(|c| c.pid != pid);
    }

    /// A process, or any, is not recorded any longer.
    pub fn stop(&mut self, pid: Option<u32>) {
        self.known.end(
            &|of, _| pid.is_none_or(|pid| of == pid),
            Some(Unobserved::Stopped),
            &mut self.tallies,
        );
        self.known.forget(pid);
        let of = |c: &OpenContext| pid.is_none_or(|pid| c.pid == pid);
        self.end_all(of, |c, tally| c.miss(Unobserved::Stopped, tally));
        self.open.retain(|c| !of(c));
    }

    /// Ends requests whose contexts were not called for 10 s before `now`. `longest`: when the longest call in progress
    /// began.
    pub fn rest(&mut self, now: u64, longest: Option<u64>) {
        // A call in progress may be the request's.
        let begun = longest.unwrap_or(now);
        self.known.rest(now, begun, &mut self.tallies);
        let idle = |c: &OpenContext| {
            c.phase != Phase::Idle
                && c.last.saturating_add(IDLE_NS) < now
                && begun > c.last.saturating_add(IDLE_NS / 2)
        };
        self.end_all(idle, OpenContext::complete);
    }

    /// `lost` events of calls were lost so far. Requests in progress may lack calls.
    pub fn lost(&mut self, lost: u64) {
        if std::mem::replace(&mut self.lost, lost) != lost {
            self.known.end(&|_, _| true, Some(Unobserved::Lost), &mut self.tallies);
            self.end_all(OpenContext::is_observed, |c, tally| c.miss(Unobserved::Lost, tally));
        }
    }

    fn end_all(
        &mut self,
        of: impl Fn(&OpenContext) -> bool,
        end: impl Fn(&mut OpenContext, &mut RequestTally),
    ) {
        for open in self.open.iter_mut().filter(|c| of(c)) {
            end(open, self.tallies.of(open.run));
        }
    }

    /// Counts a request that another source has seen completely, for a run given by its first process.
    pub fn observe(&mut self, run: u32, request: &ObservedRequest<'_>) {
        self.tallies.of(run).observe_request(request);
    }

    /// The sums of the next run, since they were last taken.
    pub fn take(&mut self) -> Option<(u32, RequestTally)> {
        while let Some((run, tally)) = self.tallies.0.pop() {
            if !tally.is_empty() {
                return Some((run, tally));
            }
        }
        None
    }
}

impl OpenContext {
    /// A call cannot be observed; if no request is in progress, it is counted as one.
    fn miss_now(&mut self, why: Unobserved, tally: &mut RequestTally) {
        if self.phase == Phase::Idle {
            self.phase = Phase::Prompt;
        }
        self.miss(why, tally);
    }
}

#[cfg(test)]
mod tests;
