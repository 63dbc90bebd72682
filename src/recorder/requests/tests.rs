//! Tests of what is observed of requests, and what is not.

use super::*;

const MS: u64 = 1_000_000;

/// Calls of contexts, one after the other.
struct Calls {
    requests: Requests,
    now: u64,
    tally: RequestTally,
}

impl Calls {
    fn new() -> Calls {
        Calls { requests: Requests::default(), now: 1000 * MS, tally: RequestTally::default() }
    }

    /// Calls of process 7, each of 9 ms, with 1 ms before it.
    fn of(&mut self, context: u64, widths: &[u32]) -> &mut Calls {
        for &width in widths {
            let start = self.now + MS;
            self.now = start + 9 * MS;
            let call = RequestCall {
                pid: 7,
                run: 7,
                context,
                seq: None,
                prompt: None,
                width,
                start,
                end: Some(self.now),
            };
            self.requests.call(&call);
        }
        self
    }

    fn pause(&mut self, ms: u64) -> &mut Calls {
        self.now += ms * MS;
        self
    }

    /// First tokens, output tokens, durations; and what was not observed, by its name.
    fn counts(&mut self) -> ([u64; 3], Vec<(&'static str, u64)>) {
        while let Some((run, tally)) = self.requests.take() {
            assert_eq!(run, 7);
            self.tally.add(&tally);
        }
        let t = &self.tally;
        let missed = Unobserved::ALL.iter().zip(t.unobserved).filter(|(_, n)| *n > 0);
        (
            [t.first_token.count(), t.output_token.count(), t.duration.count()],
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
    assert_eq!((calls.tally.first_token.sum_ns, calls.tally.output_token.sum_ns), (29 * MS, 20 * MS));
    // The next one decodes: the first is over.
    calls.of(1, &[50]);
    assert_eq!(calls.counts().0, [1, 2, 0]);
    calls.of(1, &[1]);
    assert_eq!(calls.counts(), ([2, 3, 1], vec![]));
    assert_eq!((calls.tally.duration.sum_ns, calls.tally.tokens), (49 * MS, 3));
    calls.requests.exit(7);
    assert_eq!(calls.counts(), ([2, 3, 2], vec![]));
    assert_eq!(calls.tally.duration.sum_ns, 49 * MS + 19 * MS);
}

#[test]
fn a_prompt_comes_in_parts() {
    // The rest of a whole number of batches is short; a server may take the last 512 tokens by themselves.
    for parts in [&[2048, 2048, 7][..], &[64, 1], &[300, 512], &[32, 32, 2]] {
        let mut calls = Calls::new();
        calls.of(1, parts).of(1, &[1, 1]).requests.exit(7);
        assert_eq!(calls.counts().0[2], 1, "{parts:?}");
        assert_eq!(calls.counts().1, vec![], "{parts:?}");
    }
    let mut calls = Calls::new();
    calls.of(1, &[300, 7, 1, 1]).requests.exit(7);
    assert_eq!(calls.counts(), ([0, 0, 0], vec![("several sequences", 1)]));
}

#[test]
fn a_server_at_rest_has_ended_its_last_request() {
    let mut calls = Calls::new();
    calls.of(1, &[100, 1, 1]);
    let last = calls.now;
    calls.requests.rest(last + IDLE_NS, None);
    assert_eq!(calls.counts().0, [1, 2, 0]);
    // A call is in progress since shortly after.
    calls.requests.rest(last + 2 * IDLE_NS, Some(last + MS));
    assert_eq!(calls.counts().0, [1, 2, 0]);
    // It is another process's.
    calls.requests.rest(last + 2 * IDLE_NS, Some(last + IDLE_NS));
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
    calls.of(1, &[64, 1]).requests.exit(7);
    assert_eq!(calls.counts(), ([1, 1, 1], vec![("prompt not seen", 1)]));
}

#[test]
fn a_prompt_alone_is_no_request() {
    let mut calls = Calls::new();
    calls.of(1, &[512, 10]).requests.exit(7);
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
    calls.pause(100).of(1, &[60, 1, 1]).requests.exit(7);
    assert_eq!(calls.counts(), ([2, 4, 1], vec![("several sequences", 2)]));
}

#[test]
fn checks_of_drafted_tokens_are_no_prompts() {
    let mut calls = Calls::new();
    calls.of(1, &[100, 1, 5, 1, 1, 4, 1]);
    assert_eq!(calls.counts(), ([1, 1, 0], vec![("several sequences", 1)]));
    // A short prompt after a pause is one.
    let mut calls = Calls::new();
    calls.of(1, &[100, 1]).pause(60).of(1, &[5, 1]).requests.exit(7);
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
    calls.of(1, &[100, 1, 1]).of(2, &[100, 1]).of(1, &[100, 1]).requests.exit(7);
    assert_eq!(calls.counts(), ([3, 4, 3], vec![]));
}

#[test]
fn what_was_not_seen_is_not_observed() {
    let mut calls = Calls::new();
    calls.of(1, &[100, 1]).requests.lost(1);
    calls.requests.lost(1);
    calls.of(1, &[1, 1]);
    assert_eq!(calls.counts(), ([1, 1, 0], vec![("events lost", 1)]));
    calls.of(1, &[100, 1]).requests.gaps(true);
    calls.of(1, &[1, 100, 1]).requests.gaps(true);
    calls.requests.gaps(false);
    calls.of(1, &[1, 100, 1]).requests.stop(Some(7));
    assert_eq!(
        calls.counts(),
        ([3, 3, 0], vec![("events lost", 1), ("gaps in the recording", 1), ("recording ended", 1)])
    );
    let mut calls = Calls::new();
    let call =
        RequestCall { pid: 7, run: 7, context: 1, seq: None, prompt: None, width: 30, start: 5, end: None };
    calls.requests.call(&call);
    calls.requests.call(&call);
    calls.of(2, &[0, 0, 1]);
    assert_eq!(calls.counts(), ([0, 0, 0], vec![("batch size unknown", 1), ("end on device not seen", 1)]));
}

#[test]
fn many_contexts_are_bounded() {
    let mut calls = Calls::new();
    for context in 0..MOST as u64 + 3 {
        let call = RequestCall {
            pid: context as u32,
            run: 7,
            context,
            seq: None,
            prompt: None,
            width: 100,
            start: 5,
            end: Some(10),
        };
        calls.requests.call(&call);
    }
    assert_eq!(calls.counts(), ([0, 0, 0], vec![("too many contexts", 3)]));
    assert_eq!(calls.requests.open.len(), MOST);
}

#[test]
fn sequences_of_a_call_are_requests_of_their_own() {
    let mut calls = Calls::new();
    let mut call = |parts: &[(i32, u32, bool)]| {
        let start = calls.now + MS;
        calls.now = start + 9 * MS;
        for &(seq, width, prompt) in parts {
            let (seq, prompt, end) = (Some(seq), Some(prompt), Some(calls.now));
            let whole = RequestCall { pid: 7, run: 7, context: 1, seq, prompt, width, start, end };
            calls.requests.call(&whole);
        }
    };
    // A prompt of five tokens right after a token of the other sequence, and next tokens of both.
    call(&[(0, 100, true)]);
    call(&[(0, 1, true), (1, 5, true)]);
    call(&[(0, 1, true), (1, 1, true)]);
    call(&[(0, 1, true), (1, 1, true)]);
    assert_eq!(calls.counts(), ([2, 5, 0], vec![]));
    assert_eq!(calls.tally.first_token.sum_ns, 18 * MS);
    // A draft to check is not observed.
    let start = calls.now + MS;
    let draft = RequestCall {
        pid: 7,
        run: 7,
        context: 1,
        seq: Some(1),
        prompt: Some(false),
        width: 5,
        start,
        end: Some(start + MS),
    };
    calls.requests.call(&draft);
    assert_eq!(calls.counts().1.len(), 1);
}
