//! Requests of contexts whose batches are not read. A call of one token decodes; a call of several may be a prompt, the next
//! tokens of several sequences, or a check of drafted tokens. What cannot be told apart is not observed. A request is over
//! when the next one has decoded its first token: until then its sequence may go on in calls of several tokens.

use super::call::{Call, PAUSE_NS, span};
use super::fact::{Event, Fact, Unobserved};
use super::sequence::ChunkWork;

/// Maximum contexts followed.
pub const MOST: usize = 512;
/// Calls of more tokens than this are prompts, or parts of one: no more sequences are decoded at a time, and no more tokens
/// drafted, as a rule. Tokens per call of a long prompt (`n_batch`) are a multiple of it.
const PART: u32 = 32;

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
#[derive(Debug)]
struct OpenContext {
    pid: u32,
    context: u64,
    phase: Phase,
    /// When its first call began, and when its last one ended.
    began: i64,
    last: i64,
    /// Tokens of the last call.
    width: u32,
    /// Duration of the request before, if that is over.
    before: Option<u64>,
    /// Another context of the process was called since.
    elsewhere: bool,
    /// What was in progress before could not be observed, and that was reported.
    counted: bool,
}

/// Tells something of a request of a process.
fn tell(pid: u32, fact: Fact, sink: &mut dyn FnMut(Event)) {
    sink(Event { pid, request: None, draft: false, fact });
}

impl OpenContext {
    fn is_observed(&self) -> bool {
        matches!(self.phase, Phase::Prompt | Phase::Decode)
    }

    /// Gives its request up.
    fn miss(&mut self, why: Unobserved, sink: &mut dyn FnMut(Event)) {
        if self.is_observed() && !self.counted {
            tell(self.pid, Fact::Unobserved(why), sink);
        }
        if self.before.take().is_some() {
            tell(self.pid, Fact::Unobserved(why), sink);
        }
        (self.phase, self.counted) = (Phase::Unknown, true);
    }

    /// A call cannot be observed; if no request is in progress, it is counted as one.
    fn miss_now(&mut self, why: Unobserved, sink: &mut dyn FnMut(Event)) {
        if self.phase == Phase::Idle {
            self.phase = Phase::Prompt;
        }
        self.miss(why, sink);
    }

    /// Its request is over, and so is the one before.
    fn complete(&mut self, sink: &mut dyn FnMut(Event)) {
        self.end_before(sink);
        match self.phase {
            Phase::Decode => {
                tell(self.pid, Fact::Ended { duration_ns: span(self.began, self.last) }, sink);
            }
            Phase::Prompt if !self.counted => {
                tell(self.pid, Fact::Unobserved(Unobserved::NoToken), sink);
            }
            _ => {}
        }
        (self.phase, self.counted) = (Phase::Idle, false);
    }

    fn end_before(&mut self, sink: &mut dyn FnMut(Event)) {
        let before = self.before.take();
        before.into_iter().for_each(|duration_ns| tell(self.pid, Fact::Ended { duration_ns }, sink));
    }

    /// A call of several tokens.
    fn several(&mut self, call: &Call, sink: &mut dyn FnMut(Event)) {
        let check = call.width <= PART && span(self.last, call.start) < PAUSE_NS;
        match self.phase {
            Phase::Prompt if call.width > PART || self.width.is_multiple_of(PART) => {}
            Phase::Prompt => return self.miss(Unobserved::Sequences, sink),
            Phase::Decode | Phase::Unknown if check => return self.miss(Unobserved::Sequences, sink),
            Phase::Decode => {
                self.before = Some(span(self.began, self.last));
                (self.phase, self.began) = (Phase::Prompt, call.start);
            }
            Phase::Idle | Phase::Unknown => (self.phase, self.began) = (Phase::Prompt, call.start),
        }
        (self.last, self.width) = (call.end, call.width);
    }

    /// A call of one token. Returns the time that it took, if that is known.
    fn one(&mut self, call: &Call, sink: &mut dyn FnMut(Event)) -> Option<u64> {
        match self.phase {
            Phase::Unknown => return None,
            Phase::Idle => {
                tell(self.pid, Fact::Unobserved(Unobserved::NoPrompt), sink);
                (self.phase, self.counted) = (Phase::Unknown, true);
                return None;
            }
            Phase::Prompt => {
                self.end_before(sink);
                // The prompt's last call gave the first token.
                let ttft_ns = Some(span(self.began, self.last));
                tell(self.pid, Fact::FirstToken { at: self.last, ttft_ns }, sink);
                (self.phase, self.counted) = (Phase::Decode, false);
            }
            Phase::Decode => {}
        }
        let each = span(self.last, call.end);
        self.last = call.end;
        Some(each)
    }
}

/// Follows contexts by the number of tokens of their calls.
#[derive(Debug, Default)]
pub(crate) struct CallWidths {
    open: Vec<OpenContext>,
}

impl CallWidths {
    /// A call has returned.
    pub fn call(&mut self, call: &Call, sink: &mut dyn FnMut(Event)) {
        let each_ns = self.follow(call, sink);
        if call.width == 1 {
            let &Call { id, end, seen, .. } = call;
            let work = ChunkWork::Decode;
            let fact = Fact::Tokens { call: id, end, seen, work, drafted: 0, accepted: Some(0), each_ns };
            tell(call.pid, fact, sink);
        }
    }

    /// Returns the time of the token that it brought, if that is known.
    fn follow(&mut self, call: &Call, sink: &mut dyn FnMut(Event)) -> Option<u64> {
        let same = |c: &OpenContext| (c.pid, c.context) == (call.pid, call.context);
        let at = match self.open.iter().position(same) {
            Some(at) => at,
            None => {
                if self.open.len() == MOST && !self.make_room() {
                    if call.width > 1 {
                        tell(call.pid, Fact::Unobserved(Unobserved::Crowded), sink);
                    }
                    return None;
                }
                self.open.push(OpenContext {
                    pid: call.pid,
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
        self.part_contexts(at, call, sink);
        let open = self.open.get_mut(at)?;
        let mut each = None;
        match (call.seen, call.width) {
            (false, _) => open.miss_now(Unobserved::EndUnseen, sink),
            (_, 0) => open.miss_now(Unobserved::Width, sink),
            (true, 1) => each = open.one(call, sink),
            (true, _) => open.several(call, sink),
        }
        // Of a call that is not observed, too: the context is not idle.
        open.last = open.last.max(call.end);
        each
    }

    /// Notes that other contexts of the process were not called last. Where the calls of two contexts alternate, neither's
    /// requests are observed: one may draft tokens for the other.
    fn part_contexts(&mut self, at: usize, call: &Call, sink: &mut dyn FnMut(Event)) {
        let Some(open) = self.open.get_mut(at) else { return };
        let continues = match open.phase {
            Phase::Prompt => true,
            Phase::Decode => call.width <= 1,
            Phase::Idle | Phase::Unknown => false,
        };
        let alternate = std::mem::take(&mut open.elsewhere) && continues;
        let since = open.last;
        for (i, other) in self.open.iter_mut().enumerate().filter(|(_, c)| c.pid == call.pid) {
            match (i == at, alternate) {
                (true, true) => other.miss(Unobserved::Contexts, sink),
                (false, true) if other.last >= since => other.miss(Unobserved::Contexts, sink),
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

    /// A process has ended.
    pub fn ended(&mut self, pid: u32, sink: &mut dyn FnMut(Event)) {
        self.open.iter_mut().filter(|c| c.pid == pid).for_each(|c| c.complete(sink));
        self.open.retain(|c| c.pid != pid);
    }

    /// A process, or any, is not recorded any longer.
    pub fn stopped(&mut self, pid: Option<u32>, sink: &mut dyn FnMut(Event)) {
        let of = |c: &OpenContext| pid.is_none_or(|pid| c.pid == pid);
        self.open.iter_mut().filter(|c| of(c)).for_each(|c| c.miss(Unobserved::Stopped, sink));
        self.open.retain(|c| !of(c));
    }

    /// Ends the requests of contexts that are at rest since their last call.
    pub fn rest(&mut self, idle: &dyn Fn(i64) -> bool, sink: &mut dyn FnMut(Event)) {
        let rests = |c: &&mut OpenContext| c.phase != Phase::Idle && idle(c.last);
        self.open.iter_mut().filter(rests).for_each(|c| c.complete(sink));
    }

    /// Events of calls were lost.
    pub fn lost(&mut self, sink: &mut dyn FnMut(Event)) {
        let observed = self.open.iter_mut().filter(|c| c.is_observed());
        observed.for_each(|c| c.miss(Unobserved::Lost, sink));
    }
}
