//! Tests of what is observed of requests, and what is not.

use super::call::IDLE_NS;
use super::widths::MOST;
use super::*;
use pfi::record::{Chunk, MemoryCall, MemoryChange};

const MS: u64 = 1_000_000;
const MS_OF_CLOCK: i64 = 1_000_000;

/// Sums of the events.
#[derive(Default)]
struct Tally {
    first_token: Vec<u64>,
    /// Tokens that were observed, and their times.
    output_tokens: u64,
    output_ns: u64,
    duration: Vec<u64>,
    tokens: u64,
    missed: [u64; REASONS],
}

impl Tally {
    fn count(&mut self, event: &Event) {
        match event.fact {
            _ if event.draft => {}
            Fact::FirstToken { ttft_ns: Some(ns), .. } => {
                self.first_token.push(ns);
                self.tokens += 1;
            }
            Fact::Tokens { accepted, each_ns, .. } => {
                self.tokens += accepted.unwrap_or(0) + 1;
                let seen = accepted.map_or(0, |n| n + 1);
                self.output_tokens += each_ns.map_or(0, |_| seen);
                self.output_ns += each_ns.unwrap_or(0) * seen;
            }
            Fact::Ended { duration_ns } => self.duration.push(duration_ns),
            Fact::Unobserved(why) => {
                let at = Unobserved::ALL.iter().position(|(reason, _)| *reason == why);
                self.missed[at.expect("every reason is listed")] += 1;
            }
            _ => {}
        }
    }

    fn ttft(&self) -> u64 {
        self.first_token.iter().sum()
    }
}

/// Calls of contexts, one after the other.
struct Calls {
    requests: Requests,
    now: i64,
    tally: Tally,
}

fn removed(seq: i64, from: i64, t: i64) -> MemoryCall {
    let what = MemoryChange::Remove;
    MemoryCall { pid: 7, tid: 7, t, context: 1, what, seq, to: 0, from, until: -1 }
}

impl Calls {
    fn new() -> Calls {
        Calls { requests: Requests::default(), now: 1000 * MS_OF_CLOCK, tally: Tally::default() }
    }

    /// What the machine is given, with what it tells.
    fn give(&mut self, what: impl FnOnce(&mut Requests, &mut dyn FnMut(Event))) -> &mut Calls {
        what(&mut self.requests, &mut |event| self.tally.count(&event));
        self
    }

    /// A call of process 7 of 9 ms, with 1 ms before it.
    fn next(&mut self, context: u64, width: u32) -> Call {
        let start = self.now + MS_OF_CLOCK;
        self.now = start + 9 * MS_OF_CLOCK;
        Call { id: 0, pid: 7, context, width, start, end: self.now, seen: true, encodes: false }
    }

    fn of(&mut self, context: u64, widths: &[u32]) -> &mut Calls {
        for &width in widths {
            let call = self.next(context, width);
            self.give(|r, sink| r.unread_call(&call, sink));
        }
        self
    }

    /// A call that computes chunks of a sequence, position, tokens and results.
    fn chunks(&mut self, context: u64, chunks: &[(i64, i64, u64, u64)]) -> &mut Calls {
        let call = self.next(context, 1);
        let chunk = |&(seq, pos, tokens, outputs): &(i64, i64, u64, u64)| Chunk { seq, pos, tokens, outputs };
        let chunks: Vec<Chunk> = chunks.iter().map(chunk).collect();
        self.give(|r, sink| r.call(&call, &chunks, sink))
    }

    /// What follows a position is removed from the memory of a sequence.
    fn remove(&mut self, seq: i64, from: i64) -> &mut Calls {
        let change = removed(seq, from, self.now);
        self.give(|r, sink| r.memory(&change, false, sink))
    }

    fn exit(&mut self) -> &mut Calls {
        self.give(|r, sink| r.ended(7, sink))
    }

    fn stop(&mut self) -> &mut Calls {
        self.give(|r, sink| r.stopped(Some(7), sink))
    }

    fn lost(&mut self, lost: u64) -> &mut Calls {
        self.give(|r, sink| r.lost(lost, sink))
    }

    fn rest(&mut self, now: i64, longest: Option<i64>) -> &mut Calls {
        self.give(|r, sink| r.rest(now, longest, sink))
    }

    fn arrival(&mut self, at: i64, seq: Option<u64>) -> &mut Calls {
        self.give(|r, sink| r.arrival(&Arrival { pid: 7, at, seq }, sink))
    }

    fn rows(&self) -> Vec<RequestNow> {
        self.requests.rows(|pid| pid == 7, self.now)
    }

    fn pause(&mut self, ms: i64) -> &mut Calls {
        self.now += ms * MS_OF_CLOCK;
        self
    }

    /// First tokens, output tokens, durations; and what was not observed, by its name.
    fn counts(&self) -> ([u64; 3], Vec<(&'static str, u64)>) {
        let t = &self.tally;
        let missed = Unobserved::ALL.iter().zip(t.missed).filter(|(_, n)| *n > 0);
        (
            [t.first_token.len() as u64, t.output_tokens, t.duration.len() as u64],
            missed.map(|((_, name), n)| (*name, n)).collect(),
        )
    }
}

#[test]
fn a_request_is_a_prompt_and_its_tokens() {
    let mut calls = Calls::new();
    // A prompt of 1100 tokens in three calls, and two more tokens after the first.
    calls.of(1, &[512, 512, 76, 1, 1]);
    assert_eq!(calls.counts(), ([1, 2, 0], vec![]));
    // From the start of the first call to the end of the third; from end to end; the sums are exact.
    assert_eq!((calls.tally.ttft(), calls.tally.output_ns), (29 * MS, 20 * MS));
    // The next one decodes: the first is over.
    calls.of(1, &[50]);
    assert_eq!(calls.counts().0, [1, 2, 0]);
    calls.of(1, &[1]);
    assert_eq!(calls.counts(), ([2, 3, 1], vec![]));
    assert_eq!((calls.tally.duration.iter().sum::<u64>(), calls.tally.tokens), (49 * MS, 5));
    calls.exit();
    assert_eq!(calls.counts(), ([2, 3, 2], vec![]));
    assert_eq!(calls.tally.duration.iter().sum::<u64>(), 49 * MS + 19 * MS);
}

#[test]
fn a_prompt_comes_in_parts() {
    // The rest of a whole number of batches is short; a server may take the last 512 tokens by themselves.
    for parts in [&[2048, 2048, 7][..], &[64, 1], &[300, 512], &[32, 32, 2]] {
        let mut calls = Calls::new();
        calls.of(1, parts).of(1, &[1, 1]).exit();
        assert_eq!(calls.counts().0[2], 1, "{parts:?}");
        assert_eq!(calls.counts().1, vec![], "{parts:?}");
    }
    let mut calls = Calls::new();
    calls.of(1, &[300, 7, 1, 1]).exit();
    assert_eq!(calls.counts(), ([0, 0, 0], vec![("several sequences", 1)]));
}

#[test]
fn a_server_at_rest_has_ended_its_last_request() {
    let mut calls = Calls::new();
    calls.of(1, &[100, 1, 1]);
    let last = calls.now;
    calls.rest(last + IDLE_NS, None);
    assert_eq!(calls.counts().0, [1, 2, 0]);
    // A call is in progress since shortly after.
    calls.rest(last + 2 * IDLE_NS, Some(last + MS_OF_CLOCK));
    assert_eq!(calls.counts().0, [1, 2, 0]);
    // It is another process's.
    calls.rest(last + 2 * IDLE_NS, Some(last + IDLE_NS));
    assert_eq!(calls.counts().0, [1, 2, 1]);
    // It goes on all the same: nothing is known of that.
    calls.pause(20_000).of(1, &[1, 1]);
    assert_eq!(calls.counts(), ([1, 2, 1], vec![("prompt not seen", 1)]));
    calls.of(1, &[100, 1]);
    assert_eq!(calls.counts(), ([2, 3, 1], vec![("prompt not seen", 1)]));
}

#[test]
fn what_began_before_the_recording_is_counted_once() {
    let mut calls = Calls::new();
    calls.of(1, &[1, 1, 1, 1]);
    assert_eq!(calls.counts(), ([0, 0, 0], vec![("prompt not seen", 1)]));
    assert_eq!(calls.tally.tokens, 4);
    calls.of(1, &[64, 1]).exit();
    assert_eq!(calls.counts(), ([1, 1, 1], vec![("prompt not seen", 1)]));
}

#[test]
fn a_prompt_alone_is_no_request() {
    let mut calls = Calls::new();
    calls.of(1, &[512, 10]).exit();
    assert_eq!(calls.counts(), ([0, 0, 0], vec![("no token decoded", 1)]));
}

#[test]
fn sequences_decoded_together_are_not_observed() {
    let mut calls = Calls::new();
    // The second prompt comes with a token of the first sequence, and both go on together.
    calls.of(1, &[100, 1, 1, 81, 2, 2, 2, 1, 1]);
    // The first one's tokens were alone; its duration is not known.
    assert_eq!(calls.counts(), ([1, 2, 0], vec![("several sequences", 2)]));
    // When the last one has ended, a new one is alone again.
    calls.pause(100).of(1, &[60, 1, 1]).exit();
    assert_eq!(calls.counts(), ([2, 4, 1], vec![("several sequences", 2)]));
}

#[test]
fn checks_of_drafted_tokens_are_no_prompts() {
    let mut calls = Calls::new();
    calls.of(1, &[100, 1, 5, 1, 1, 4, 1]);
    assert_eq!(calls.counts(), ([1, 1, 0], vec![("several sequences", 1)]));
    // A short prompt after a pause is one.
    let mut calls = Calls::new();
    calls.of(1, &[100, 1]).pause(60).of(1, &[5, 1]).exit();
    assert_eq!(calls.counts(), ([2, 2, 2], vec![]));
}

#[test]
fn contexts_that_alternate_are_not_observed() {
    let mut calls = Calls::new();
    // A draft model beside its target.
    calls.of(2, &[100]).of(1, &[100]);
    for _ in 0..5 {
        calls.of(2, &[1, 1, 1]).of(1, &[4]);
    }
    let (seen, missed) = calls.counts();
    assert_eq!(seen, [0, 0, 0]);
    assert_eq!(missed, [("several contexts", 2)]);
    // One after the other they are.
    let mut calls = Calls::new();
    calls.of(1, &[100, 1, 1]).of(2, &[100, 1]).of(1, &[100, 1]).exit();
    assert_eq!(calls.counts(), ([3, 4, 3], vec![]));
}

#[test]
fn what_was_not_seen_is_not_observed() {
    let mut calls = Calls::new();
    calls.of(1, &[100, 1]).lost(1);
    calls.lost(1);
    calls.of(1, &[1, 1]);
    assert_eq!(calls.counts(), ([1, 1, 0], vec![("events lost", 1)]));
    calls.of(1, &[100, 1]).stop();
    assert_eq!(calls.counts(), ([2, 2, 0], vec![("events lost", 1), ("recording ended", 1)]));
    let mut calls = Calls::new();
    let unseen = Call { seen: false, ..calls.next(1, 30) };
    calls.give(|r, sink| r.unread_call(&unseen, sink)).give(|r, sink| r.unread_call(&unseen, sink));
    calls.of(2, &[0, 0, 1]);
    assert_eq!(calls.counts(), ([0, 0, 0], vec![("batch size unknown", 1), ("end on device not seen", 1)]));
}

#[test]
fn many_contexts_are_bounded() {
    let mut calls = Calls::new();
    for context in 0..MOST as u64 + 3 {
        let call = Call { pid: context as u32, ..calls.next(context, 100) };
        calls.give(|r, sink| r.unread_call(&call, sink));
    }
    assert_eq!(calls.counts(), ([0, 0, 0], vec![("too many contexts", 3)]));
}

#[test]
fn many_sequences_are_bounded_and_those_of_other_processes_go_first() {
    let mut calls = Calls::new();
    let many = |calls: &mut Calls, pid| {
        for seq in 0..3000 {
            let call = Call { pid, ..calls.next(1, 1) };
            let chunk = Chunk { seq, pos: 0, tokens: 9, outputs: 1 };
            calls.give(|r, sink| r.call(&call, &[chunk], sink));
        }
    };
    many(&mut calls, 8);
    many(&mut calls, 7);
    assert_eq!((calls.counts(), calls.rows().len()), (([0, 0, 0], vec![("too many contexts", 3000)]), 3000));
    // Those that are over make room for all.
    calls.rest(calls.now + 2 * IDLE_NS, None);
    many(&mut calls, 9);
    assert_eq!(calls.counts(), ([3000, 0, 3000], vec![("too many contexts", 3000)]));
}

#[test]
fn sequences_of_a_call_are_requests_of_their_own() {
    let mut calls = Calls::new();
    // A prompt of five tokens right after a token of the other sequence, and next tokens of both.
    calls.chunks(1, &[(0, 0, 100, 1)]).chunks(1, &[(0, 100, 1, 1), (1, 0, 5, 1)]);
    calls.chunks(1, &[(0, 101, 1, 1), (1, 5, 1, 1)]).chunks(1, &[(0, 102, 1, 1), (1, 6, 1, 1)]);
    // What a call brought is counted with the next one of its sequence, or at the end.
    assert_eq!(calls.counts(), ([2, 3, 0], vec![]));
    let rows = calls.rows();
    let told = |r: &RequestNow| (r.seq, r.context, r.phase, r.prompt_tokens, r.cached_tokens, r.tokens);
    assert_eq!(
        rows.iter().map(told).collect::<Vec<_>>(),
        [(0, 1, RequestPhase::Decode, 100, Some(0), 4), (1, 1, RequestPhase::Decode, 5, Some(0), 3)]
    );
    let rate = rows[0].tokens_per_s.expect("tokens were decoded");
    assert!((rate - 100.0).abs() < 1e-6 && rows[1].ttft_ns == Some(9 * MS), "{rows:?}");
    // The next one begins with the last token of its prompt: all others are in the memory.
    calls.remove(1, 4).chunks(1, &[(1, 4, 1, 1)]);
    assert_eq!(calls.counts(), ([2, 4, 1], vec![]));
    assert_eq!((calls.rows()[1].prompt_tokens, calls.rows()[1].cached_tokens), (1, Some(4)));
    calls.exit();
    // Its only token is the one after its prompt.
    assert_eq!(calls.counts(), ([3, 5, 3], vec![]));
    assert_eq!((calls.tally.ttft(), calls.tally.tokens), (27 * MS, 8));
    assert!(calls.rows().is_empty());
}

#[test]
fn drafts_bring_what_is_accepted() {
    let mut calls = Calls::new();
    calls.chunks(1, &[(0, 0, 9, 1)]).chunks(1, &[(0, 9, 5, 5)]);
    assert_eq!(calls.counts(), ([0, 0, 0], vec![]));
    // Three of four were accepted; of the next four, none.
    calls.remove(0, 13).chunks(1, &[(0, 13, 5, 5)]).chunks(1, &[(0, 14, 1, 1)]);
    assert_eq!(calls.counts(), ([1, 5, 0], vec![]));
    assert_eq!((calls.tally.output_ns, calls.tally.tokens), (4 * (10 * MS / 4) + 10 * MS, 6));
    let row = calls.rows()[0];
    assert_eq!((row.tokens, row.drafted, row.accepted), (7, 8, 3));
    // The result of a draft is not known until something shows it.
    let told = |calls: &Calls| calls.rows()[0].drafted;
    assert_eq!((told(calls.chunks(1, &[(0, 15, 3, 3)])), told(calls.remove(0, 16))), (8, 10));
}

#[test]
fn a_draft_models_context_has_no_requests_and_delays_its_targets() {
    let mut calls = Calls::new();
    // It computes the same prompt, then drafts; the target verifies, and so on.
    calls.chunks(1, &[(0, 0, 9, 1)]).chunks(2, &[(0, 0, 9, 1)]);
    calls.chunks(2, &[(0, 9, 1, 1)]).chunks(2, &[(0, 10, 1, 1)]);
    calls.chunks(1, &[(0, 9, 3, 3)]).remove(0, 11).chunks(1, &[(0, 11, 1, 1)]);
    // Until the first draft is verified it may be any other model.
    assert_eq!(calls.counts(), ([1, 2, 0], vec![("several contexts", 1)]));
    // The first token is chosen when both have computed the prompt.
    assert_eq!((calls.tally.ttft(), calls.tally.output_ns), (19 * MS, 30 * MS));
    assert_eq!(calls.rows().len(), 1);
    // One that computes the prompt in its own way is known by what it drafts.
    let mut calls = Calls::new();
    calls.chunks(1, &[(0, 0, 9, 1)]).chunks(2, &[(0, 0, 8, 1)]);
    calls.chunks(2, &[(0, 8, 1, 1)]).chunks(2, &[(0, 9, 1, 1)]).chunks(2, &[(0, 10, 1, 1)]);
    calls.chunks(1, &[(0, 9, 3, 3)]).remove(0, 11).chunks(1, &[(0, 11, 1, 1)]);
    calls.chunks(2, &[(0, 11, 1, 1)]).exit();
    assert_eq!(calls.counts(), ([1, 3, 1], vec![("several contexts", 1)]));
}

#[test]
fn two_models_of_a_process_have_their_own_requests() {
    let mut calls = Calls::new();
    calls.chunks(1, &[(0, 0, 9, 1)]).chunks(1, &[(0, 9, 1, 1)]).pause(100);
    calls.chunks(2, &[(0, 0, 9, 1)]).chunks(2, &[(0, 9, 1, 1)]).chunks(1, &[(0, 10, 1, 1)]);
    calls.chunks(2, &[(0, 10, 1, 1)]);
    assert_eq!(calls.rows().iter().map(|r| (r.context, r.tokens)).collect::<Vec<_>>(), [(1, 3), (2, 3)]);
    calls.exit();
    assert_eq!(calls.counts(), ([2, 4, 2], vec![]));
    assert_eq!(calls.tally.ttft(), 18 * MS);
}

#[test]
fn changes_of_memory_wait_for_the_call_before_them() {
    let mut calls = Calls::new();
    // Three parts of a prompt, whose ends on a device are seen late: a server removes nothing after each.
    let after = removed(0, 16, calls.now + 20 * MS_OF_CLOCK);
    calls.chunks(1, &[(0, 0, 8, 0)]).give(|r, sink| r.memory(&after, true, sink));
    calls.chunks(1, &[(0, 8, 8, 0)]).chunks(1, &[(0, 16, 8, 1)]).chunks(1, &[(0, 24, 1, 1)]);
    calls.exit();
    assert_eq!(calls.counts(), ([1, 1, 1], vec![]));
    assert_eq!(calls.tally.ttft(), 29 * MS);
}

#[test]
fn tokens_of_calls_whose_end_is_not_seen_count() {
    let mut calls = Calls::new();
    for (pos, tokens) in [(0, 9), (9, 1)] {
        let call = Call { seen: false, ..calls.next(1, 1) };
        calls.give(|r, sink| r.call(&call, &[Chunk { seq: 0, pos, tokens, outputs: 1 }], sink));
    }
    let row = calls.rows()[0];
    assert_eq!((row.phase, row.prompt_tokens, row.tokens, row.ttft_ns), (RequestPhase::Decode, 9, 2, None));
    calls.exit();
    assert_eq!((calls.counts(), calls.tally.tokens), (([0, 0, 0], vec![("end on device not seen", 1)]), 1));
}

#[test]
fn a_draft_brings_no_more_than_it_has() {
    let mut calls = Calls::new();
    calls.chunks(1, &[(0, 0, 9, 1)]).chunks(1, &[(0, 9, 1 << 40, 1 << 40)]);
    calls.remove(0, 9 + (1 << 39)).exit();
    assert_eq!((calls.counts().0, calls.tally.tokens), ([1, (1 << 39), 1], (1 << 39) + 1));
}

#[test]
fn of_known_sequences_too_what_was_not_seen_is_not_observed() {
    let mut calls = Calls::new();
    calls.chunks(1, &[(0, 40, 1, 1)]).chunks(1, &[(0, 41, 1, 1)]);
    assert_eq!(calls.counts(), ([0, 0, 0], vec![("prompt not seen", 1)]));
    let row = calls.rows()[0];
    assert_eq!((row.tokens, row.ttft_ns, row.tokens_per_s, row.cached_tokens), (2, None, None, None));
    // A call whose batch was not read, lost events, a prompt without results, and one whose results are all wanted.
    calls.chunks(1, &[(0, 0, 9, 1)]).of(1, &[1]);
    calls.chunks(1, &[(1, 0, 9, 1)]).lost(1);
    calls.chunks(1, &[(2, 0, 9, 0)]).chunks(1, &[(3, 0, 9, 9)]).exit();
    let (seen, mut missed) = calls.counts();
    missed.sort_unstable();
    assert_eq!(seen, [0, 0, 0]);
    let want =
        [("no token decoded", 2), ("events lost", 1), ("prompt not seen", 2), ("several sequences", 1)];
    assert!(want.iter().all(|w| missed.contains(w)) && missed.len() == 4, "{missed:?}");
}

#[test]
fn a_known_sequence_at_rest_has_ended_its_request() {
    let mut calls = Calls::new();
    calls.chunks(1, &[(0, 0, 9, 1)]).chunks(1, &[(0, 9, 1, 1)]);
    calls.rest(calls.now + IDLE_NS, None);
    assert_eq!((calls.counts().0, calls.rows().len()), ([0, 0, 0], 1));
    calls.rest(calls.now + IDLE_NS + 1, None);
    assert_eq!((calls.counts().0, calls.rows().len()), ([1, 1, 1], 0));
    // It goes on all the same: nothing is known of that.
    calls.pause(20_000).chunks(1, &[(0, 10, 1, 1)]);
    assert_eq!(calls.counts(), ([1, 1, 1], vec![("prompt not seen", 1)]));
}

/// A request waits in a server's queue for 100 ms; the server names its sequence with the first result.
#[test]
fn the_time_to_the_first_token_begins_when_the_server_took_the_request_in() {
    let mut calls = Calls::new();
    let at = calls.now;
    calls.arrival(at, None);
    calls.pause(100).chunks(1, &[(0, 0, 20, 1)]);
    assert_eq!(calls.counts().0, [0, 0, 0]);
    calls.arrival(at, Some(0));
    assert_eq!(calls.rows()[0].ttft_ns, Some(110 * MS));
    calls.chunks(1, &[(0, 20, 1, 1)]).chunks(1, &[(0, 21, 1, 1)]);
    assert_eq!(calls.counts().0, [1, 1, 0]);
    assert_eq!((calls.tally.ttft(), calls.tally.output_ns), (110 * MS, 10 * MS));
    // The sequence of the next one is named with its whole answer.
    let at = calls.now;
    calls.arrival(at, None);
    calls
        .pause(50)
        .remove(0, 0)
        .chunks(1, &[(0, 0, 9, 1)])
        .chunks(1, &[(0, 9, 1, 1)])
        .chunks(1, &[(0, 10, 1, 1)]);
    assert_eq!(calls.counts().0, [1, 3, 1]);
    assert_eq!(calls.tally.duration.iter().sum::<u64>(), 130 * MS);
    calls.arrival(at, Some(0));
    assert_eq!(calls.counts().0, [2, 3, 1]);
    assert_eq!(calls.tally.ttft(), 110 * MS + 60 * MS);
    // Of one that is cancelled it is never named: its first call is what is known.
    let at = calls.now;
    calls.arrival(at, None);
    calls.pause(50).remove(0, 0).chunks(1, &[(0, 0, 9, 1)]).chunks(1, &[(0, 9, 1, 1)]);
    calls.exit();
    assert_eq!(calls.counts().0, [3, 5, 3]);
    assert_eq!(calls.tally.ttft(), 110 * MS + 60 * MS + 9 * MS);
}
