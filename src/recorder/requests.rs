//! The sums of requests, as the calls of contexts show them: each run of processes has a tally of its own. What counts as a
//! request, and what is not observed, says the crate `requests`.

use super::tally::{ObservedRequest, RequestTally};
use pfi::record::{Chunk, MemoryCall};
use requests::{Arrival, Call, Event, Fact, RequestNow, Unobserved};

/// Stands for the run of a process as long as that is not known. No pid is as large (PID_MAX_LIMIT, 2^22, in
/// linux/threads.h).
pub fn of_unknown(pid: u32) -> u32 {
    pid | UNKNOWN
}

const UNKNOWN: u32 = 1 << 31;
/// Maximum processes that wait for their run, and of which it is known.
const WAITING: usize = 256;
const RUNS: usize = 4096;

/// Sums of each run, given by its first process, since they were last taken.
#[derive(Default)]
struct Tallies {
    sums: Vec<(u32, RequestTally)>,
    /// Processes with calls, and their runs; oldest first.
    runs: Vec<(u32, u32)>,
}

impl Tallies {
    /// A process has a call, and belongs to this run.
    fn enter(&mut self, pid: u32, run: u32) {
        match self.runs.iter_mut().find(|(of, _)| *of == pid) {
            Some(known) => known.1 = run,
            None => {
                if self.runs.len() == RUNS {
                    self.runs.remove(0);
                }
                self.runs.push((pid, run));
            }
        }
    }

    /// The run of a process is known now.
    fn own(&mut self, pid: u32, run: u32) {
        self.runs.iter_mut().filter(|(of, _)| *of == pid).for_each(|known| known.1 = run);
        if let Some(at) = self.sums.iter().position(|(of, _)| *of == of_unknown(pid)) {
            let (_, tally) = self.sums.swap_remove(at);
            self.of_run(run).add(&tally);
        }
    }

    fn run_of(&self, pid: u32) -> Option<u32> {
        self.runs.iter().find(|(of, _)| *of == pid).map(|(_, run)| *run)
    }

    /// The next run's. Those of unknown runs wait; the oldest are dropped when there are too many.
    fn take(&mut self) -> Option<(u32, RequestTally)> {
        let waits = |(run, _): &(u32, RequestTally)| run & UNKNOWN != 0;
        while let Some(at) = self.sums.iter().position(|one| !waits(one)) {
            let (run, tally) = self.sums.swap_remove(at);
            if !tally.is_empty() {
                return Some((run, tally));
            }
        }
        self.sums.drain(..self.sums.len().saturating_sub(WAITING));
        None
    }

    fn of_run(&mut self, run: u32) -> &mut RequestTally {
        let at = self.sums.iter().position(|(of, _)| *of == run).unwrap_or_else(|| {
            self.sums.push((run, RequestTally::default()));
            self.sums.len() - 1
        });
        &mut self.sums[at].1
    }

    /// Something became known of a request. What a draft model computes is none.
    fn count(&mut self, event: &Event) {
        let Some(run) = self.run_of(event.pid).filter(|_| !event.draft) else { return };
        let tally = self.of_run(run);
        match event.fact {
            Fact::FirstToken { ttft_ns: first_token_ns @ Some(_), .. } => {
                tally.observe_request(&ObservedRequest { first_token_ns, ..Default::default() });
            }
            Fact::Tokens { accepted, each_ns, .. } => {
                tally.tokens = tally.tokens.saturating_add(accepted.unwrap_or(0)).saturating_add(1);
                if let (Some(each), Some(accepted)) = (each_ns, accepted) {
                    tally.observe_tokens(each, accepted.saturating_add(1));
                }
            }
            Fact::Ended { duration_ns } => {
                tally.observe_request(&ObservedRequest {
                    duration_ns: Some(duration_ns),
                    ..Default::default()
                });
            }
            Fact::Unobserved(why) => tally.miss(why),
            Fact::Untracked { tokens } => {
                tally.tokens = tally.tokens.saturating_add(u64::from(tokens == 1));
                tally.miss(Unobserved::Crowded);
            }
            _ => {}
        }
    }
}

/// The requests of the recorded processes.
#[derive(Default)]
pub struct Requests {
    known: requests::Requests,
    tallies: Tallies,
}

impl Requests {
    /// A call of a run, given by its first process, has returned. `chunks`: what it has computed, empty if only the number of
    /// its tokens is known.
    pub fn call(&mut self, run: u32, call: &Call, chunks: &[Chunk]) {
        self.tallies.enter(call.pid, run);
        let tallies = &mut self.tallies;
        match chunks {
            [] => self.known.unread_call(call, &mut |event| tallies.count(&event)),
            _ => self.known.call(call, chunks, &mut |event| tallies.count(&event)),
        }
    }

    /// A change of a context's memory. `held`: a call of the process has returned and is not passed on yet.
    pub fn memory(&mut self, m: &MemoryCall, held: bool) {
        self.known.memory(m, held, &mut |event| self.tallies.count(&event));
    }

    /// A server took in a request, or named the sequence of one.
    pub fn arrival(&mut self, arrival: &Arrival) {
        self.known.arrival(arrival, &mut |event| self.tallies.count(&event));
    }

    /// The requests of known sequences in progress: of a run, given by its first process, or all.
    pub fn rows(&self, run: Option<u32>, now: u64) -> Vec<RequestNow> {
        let of = |pid| run.is_none() || self.tallies.run_of(pid) == run;
        self.known.rows(of, now as i64)
    }

    /// A process has ended; with it, its requests.
    pub fn exit(&mut self, pid: u32) {
        self.known.ended(pid, &mut |event| self.tallies.count(&event));
        self.tallies.runs.retain(|(of, _)| *of != pid);
    }

    /// A process, or any, is not recorded any longer.
    pub fn stop(&mut self, pid: Option<u32>) {
        self.known.stopped(pid, &mut |event| self.tallies.count(&event));
        self.tallies.runs.retain(|(of, _)| pid.is_some_and(|pid| *of != pid));
    }

    /// Ends requests whose contexts were not called for 10 s before `now`. `longest`: when the longest call in progress
    /// began.
    pub fn rest(&mut self, now: u64, longest: Option<u64>) {
        let longest = longest.map(|t| t as i64);
        self.known.rest(now as i64, longest, &mut |event| self.tallies.count(&event));
    }

    /// `lost` events of calls were lost so far. Requests in progress may lack calls.
    pub fn lost(&mut self, lost: u64) {
        self.known.lost(lost, &mut |event| self.tallies.count(&event));
    }

    /// The sums of the next run, since they were last taken.
    pub fn take(&mut self) -> Option<(u32, RequestTally)> {
        self.tallies.take()
    }

    /// A process belongs to this run.
    pub fn own(&mut self, pid: u32, run: u32) {
        self.tallies.own(pid, run);
    }
}
