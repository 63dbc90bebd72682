use super::*;
use crate::recorded::call::Phase;
use crate::recorded::load::Loaded;
use pfi::record::{Device, Entry, MemoryCall, MemoryChange, ServerTask, Tensor, Token, Ubatch};

const MS: i64 = 1_000_000;
const TARGET: u64 = 0x1000;
const DRAFT: u64 = 0x2000;

/// A recording by hand: calls of 10 ms, one after the other, with pauses of 1 ms.
#[derive(Default)]
struct Made {
    tokens: Vec<Token>,
    batches: Vec<(u64, u64, Vec<u8>, u32)>,
    memory: Vec<MemoryCall>,
    tasks: Vec<ServerTask>,
    /// Its graphs give an embedding.
    pooled: bool,
    now: i64,
}

impl Made {
    fn call(&mut self, context: u64, chunks: &[(i64, i64, u64, u64)]) -> &mut Made {
        self.call_of(context, 10 * MS, chunks)
    }

    fn call_of(&mut self, context: u64, dur: i64, chunks: &[(i64, i64, u64, u64)]) -> &mut Made {
        let seq = self.tokens.len() as u64;
        let (mut data, mut n) = (Vec::new(), 0u32);
        for &(id, pos, tokens, outputs) in chunks {
            let zigzag = |v: i64| ((v << 1) ^ (v >> 63)) as u64;
            for mut v in [zigzag(id), zigzag(pos), tokens, outputs] {
                while v >= 128 {
                    data.push(v as u8 | 128);
                    v >>= 7;
                }
                data.push(v as u8);
            }
            n = u32::wrapping_add(n, tokens as u32);
        }
        let dur = dur as u64;
        self.tokens.push(Token {
            seq,
            pid: 1,
            tid: 1,
            entry: Entry::Process,
            n_tokens: None,
            t: self.now,
            dur,
            cut: false,
            device: Device::Idle,
        });
        self.batches.push((seq, context, data, n));
        self.now += dur as i64 + MS;
        self
    }

    fn memory(&mut self, what: MemoryChange, seq: i64, from: i64, until: i64, to: i64) -> &mut Made {
        let t = self.now - MS / 2;
        self.memory.push(MemoryCall { pid: 1, tid: 1, t, context: TARGET, what, seq, to, from, until });
        self
    }

    /// The sequences, and what the report says of them.
    fn told(&self) -> (Sequences, SequenceReport) {
        let mut loaded = Loaded { tokens: self.tokens.clone(), ..Loaded::default() };
        let ubatch = |(seq, context, data, tokens): &'_ (u64, u64, Vec<u8>, u32)| Ubatch {
            token: Some(*seq),
            pid: 1,
            tid: 1,
            t: 0,
            context: *context,
            tokens: *tokens,
            unread: 0,
            whole: false,
            data: data.clone().leak(),
        };
        loaded.causes.ubatches = self.batches.iter().map(ubatch).collect();
        loaded.causes.memory = self.memory.clone();
        loaded.causes.server_tasks = self.tasks.clone();
        if self.pooled {
            loaded.tensors.insert(1, pooled());
        }
        let line = crate::recorded::calls::timeline(&loaded);
        let all = line.sequences.expect("batches were recorded");
        let report = report(&loaded, &line.calls, &all, None);
        (all, report)
    }
}

/// What only a graph that gives an embedding has.
fn pooled() -> Tensor {
    Tensor {
        pid: 1,
        addr: 1,
        known: true,
        op: 0,
        ty: 0,
        flags: 0,
        name: "result_embd_pooled".into(),
        ne: [64, 1, 1, 1],
        nb: None,
        src: [].into(),
        view_src: None,
    }
}

fn kinds(all: &Sequences) -> Vec<Option<CallKind>> {
    all.works.iter().map(|w| w.as_ref().and_then(CallWork::kind)).collect()
}

#[test]
fn an_embedding_is_no_token() {
    let mut made = Made { pooled: true, ..Made::default() };
    made.call(TARGET, &[(0, 0, 100, 1)]).call(TARGET, &[(0, 0, 50, 1), (1, 0, 60, 1)]);
    let (_, report) = made.told();
    let said: Vec<_> = report.requests.iter().map(|r| (r.prompt_tokens, r.ttft_ns, r.tokens)).collect();
    assert_eq!(said, [(100, None, 0), (50, None, 0), (60, None, 0)]);
    assert_eq!(report.ttft, None);
}

#[test]
fn two_slots_are_two_requests_and_a_prompt_stalls_the_other() {
    let mut made = Made::default();
    made.call_of(TARGET, 40 * MS, &[(0, 0, 100, 1)])
        .call(TARGET, &[(0, 100, 1, 1)])
        .call_of(TARGET, 90 * MS, &[(0, 101, 1, 1), (1, 0, 300, 0)])
        .call_of(TARGET, 30 * MS, &[(0, 102, 1, 1), (1, 300, 50, 1)])
        .call(TARGET, &[(0, 103, 1, 1), (1, 350, 1, 1)])
        .call(TARGET, &[(0, 104, 1, 1), (1, 351, 1, 1)]);
    let (all, report) = made.told();
    use CallKind::*;
    assert_eq!(kinds(&all), [Prefill, Decode, Mixed, Mixed, Decode, Decode].map(Some));
    let [a, b] = report.requests.as_slice() else { panic!("{report:?}") };
    assert_eq!((a.seq, a.prompt_tokens, a.cached_tokens, a.tokens), (0, 100, Some(0), 6));
    assert_eq!((b.seq, b.prompt_tokens, b.prefill_calls, b.tokens), (1, 350, 2, 3));
    assert_eq!((a.ttft_ns, b.ttft_ns), (Some(40 * MS as u64), Some(121 * MS as u64)));
    // A call that only decodes takes 10 ms: the prompt took 80 and 20 more.
    assert_eq!((a.stalled_ns, b.stalled_ns), (100 * MS as u64, 0));
    let row =
        |kind, n| report.batching.rows.iter().find(|r| r.kind == kind && r.sequences == n).expect("a row");
    assert_eq!((row(Decode, 2).calls, row(Decode, 2).tokens, report.batching.most), (2, Some(4), 2));
    assert!((row(Decode, 2).tokens_per_s.expect("a rate") - 200.0).abs() < 1e-6);
    assert_eq!(report.sequences.len(), 2);
    assert!(report.speculation.is_none());
}

#[test]
fn calls_with_a_token_for_each_sequence_are_decode() {
    let mut made = Made::default();
    made.call(TARGET, &[(0, 0, 5, 1), (1, 0, 5, 1)]).call(TARGET, &[(0, 5, 1, 1), (1, 5, 1, 1)]);
    let mut loaded = Loaded { tokens: made.tokens.clone(), ..Loaded::default() };
    assert_eq!(crate::recorded::calls::timeline(&loaded).calls[1].phase, Phase::Unknown);
    let (all, _) = made.told();
    assert_eq!(all.works[1].as_ref().and_then(CallWork::phase), Some(Phase::Decode));
    assert_eq!((all.tokens(0), all.tokens(1)), (Some(10), Some(2)));
    loaded.tokens.clear();
}

#[test]
fn the_next_request_of_a_slot_says_what_it_found_in_the_memory() {
    let mut made = Made::default();
    made.call(TARGET, &[(0, 0, 20, 1)])
        .call(TARGET, &[(0, 20, 1, 1)])
        // The conversation goes on: nothing is removed, the new text is computed.
        .memory(MemoryChange::Remove, 0, 21, -1, 0)
        .call(TARGET, &[(0, 21, 9, 1)])
        .call(TARGET, &[(0, 30, 1, 1)])
        // The same prompt again: its last token is computed for its logits.
        .memory(MemoryChange::Remove, 0, 29, -1, 0)
        .call(TARGET, &[(0, 29, 1, 1)])
        .call(TARGET, &[(0, 30, 1, 1)])
        // Another prompt with the same beginning, in two parts.
        .memory(MemoryChange::Remove, 0, 8, -1, 0)
        .call(TARGET, &[(0, 8, 4, 0)])
        .memory(MemoryChange::Remove, 0, 12, -1, 0)
        .call(TARGET, &[(0, 12, 3, 1)])
        .call(TARGET, &[(0, 15, 1, 1)]);
    let (_, report) = made.told();
    let rows: Vec<_> = report.requests.iter().map(|r| (r.prompt_tokens, r.cached_tokens, r.tokens)).collect();
    assert_eq!(rows, [(20, Some(0), 2), (9, Some(21), 2), (1, Some(29), 2), (7, Some(8), 2)]);
    assert_eq!(report.sequences[0].requests, 4);
}

#[test]
fn a_request_waits_from_when_the_server_took_it_in() {
    let mut made = Made::default();
    made.call(TARGET, &[(0, 0, 20, 1)]).call(TARGET, &[(0, 20, 1, 1)]);
    made.memory(MemoryChange::Remove, 0, 0, -1, 0).call(TARGET, &[(0, 0, 9, 1)]);
    made.memory(MemoryChange::Remove, 0, 0, -1, 0).call(TARGET, &[(0, 0, 9, 1)]);
    let mut task = |t, task, seq| made.tasks.push(ServerTask { pid: 1, tid: 1, t: t * MS, task, seq });
    // All came before the first call; one, on another slot, was cancelled. The last request's result was not seen.
    (5..9).for_each(|n| task(n - 9, n, None));
    [(21, 5, 0), (31, 6, 0), (32, 8, 1)].into_iter().for_each(|(t, n, seq)| task(t, n, Some(seq)));
    let (_, report) = made.told();
    let queued: Vec<_> = report.requests.iter().map(|r| r.queued_ns.map(|ns| ns / MS as u64)).collect();
    assert_eq!(queued, [Some(4), Some(25), None]);
    assert_eq!(report.queued.map(|l| l.n), Some(2));
}

#[test]
fn of_drafts_the_accepted_tokens_count() {
    let mut made = Made::default();
    made.call(TARGET, &[(0, 0, 10, 1)]).call(TARGET, &[(0, 10, 1, 1)]);
    // Four drafted after the token at 11; two are accepted, so that the rest is removed from 14 on.
    for _ in 0..4 {
        made.call_of(DRAFT, MS, &[(0, 11, 1, 1)]);
    }
    made.call_of(TARGET, 12 * MS, &[(0, 11, 5, 5)]).memory(MemoryChange::Remove, 0, 14, -1, 0);
    // The draft model follows: the tokens are chosen when it has.
    made.call_of(DRAFT, 2 * MS, &[(0, 11, 5, 1)]);
    // All are accepted; then none, which only the next position shows; the result of the last is not seen.
    made.call_of(TARGET, 12 * MS, &[(0, 14, 5, 5)]).memory(MemoryChange::Remove, 0, 19, -1, 0);
    made.call_of(TARGET, 12 * MS, &[(0, 19, 5, 5)]).call_of(TARGET, 12 * MS, &[(0, 20, 3, 3)]);
    let (all, report) = made.told();
    assert_eq!(kinds(&all)[6], Some(CallKind::Verify));
    assert_eq!(all.requests[0].steps[1].end, made.tokens[7].t + 2 * MS);
    assert_eq!([6, 8, 9, 10].map(|i| all.tokens(i)), [Some(3), Some(5), Some(1), Some(1)]);
    let row = report.requests.iter().find(|r| r.context == 1).expect("the target's");
    assert_eq!((row.drafts, row.drafted, row.accepted, row.at_least), (4, 14, 6, true));
    assert_eq!(row.tokens, 2 + 3 + 5 + 1 + 1);
    let s = report.speculation.expect("drafts");
    assert_eq!((s.drafts, s.unseen, s.drafted, s.accepted), (4, 1, 12, 6));
    assert_eq!(s.accepted_lengths, [(0, 1), (2, 1), (4, 1)]);
    assert_eq!((s.draft_calls, s.draft_ns), (Some(5), Some(6 * MS as u64)));
    // 12 ms and a quarter of 6 for 3 tokens on average, 10 ms for one without.
    let cost = s.cost.expect("known");
    assert!((cost.with_ns - 13.5e6 / 3.0).abs() < 1.0 && cost.gain > 1.0, "{cost:?}");
}

#[test]
fn a_draft_model_is_known_before_it_drafts() {
    let mut made = Made::default();
    made.call(TARGET, &[(0, 0, 10, 1)]).call_of(DRAFT, 2 * MS, &[(0, 0, 10, 1)]);
    made.call(TARGET, &[(0, 10, 1, 1)]).call_of(DRAFT, MS, &[(0, 11, 1, 1)]);
    made.call_of(TARGET, 12 * MS, &[(0, 11, 2, 2)]);
    let (_, report) = made.told();
    let row = report.requests.iter().find(|r| r.context == 1).expect("the target's");
    assert_eq!((row.ttft_ns, row.tokens), (Some(13 * MS as u64), 3));
}

#[test]
fn a_context_shift_or_a_late_start_begins_no_request() {
    let mut made = Made::default();
    made.call(TARGET, &[(2, 500, 1, 1)])
        .call(TARGET, &[(2, 501, 1, 1)])
        .memory(MemoryChange::Remove, 2, 100, 300, 0)
        .memory(MemoryChange::Shift, 2, 300, 502, -200)
        .call(TARGET, &[(2, 302, 1, 1)]);
    let (all, report) = made.told();
    let [only] = report.requests.as_slice() else { panic!("{report:?}") };
    assert_eq!((only.late, only.ttft_ns, only.cached_tokens, only.tokens), (true, None, None, 3));
    assert_eq!(kinds(&all), [Some(CallKind::Decode); 3]);
    // Everything is forgotten: what follows is new.
    made.memory(MemoryChange::Clear, -1, -1, -1, 0).call(TARGET, &[(2, 0, 6, 1)]);
    assert_eq!(made.told().1.requests.len(), 2);
}

#[test]
fn batches_that_were_not_read_completely_have_no_kind() {
    let mut made = Made::default();
    made.call(TARGET, &[(0, 0, 6, 1)]).call(TARGET, &[(0, 6, 1, 1)]);
    let (mut all, _) = made.told();
    if let Some(Some(work)) = all.works.get_mut(1) {
        work.unread = 3;
    }
    assert_eq!((kinds(&all)[1], all.tokens(1)), (None, None));
}

#[test]
fn hostile_batches_do_no_harm() {
    let mut made = Made::default();
    let wild = [i64::MIN, i64::MAX, -1, 0, 7];
    for a in wild {
        for b in wild {
            made.call(TARGET, &[(a, b, u64::MAX, u64::MAX), (b, a, 0, 3), (a, a, 1, 1)]);
            made.memory(MemoryChange::Remove, a, b, a, b).memory(MemoryChange::Shift, b, a, b, a);
            made.memory(MemoryChange::Copy, a, b, a, b).memory(MemoryChange::Keep, b, a, b, a);
        }
    }
    let (_, report) = made.told();
    assert!(report.requests.len() <= 75);
}
