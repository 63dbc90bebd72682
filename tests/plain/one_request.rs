//! A request is the same to all views: what the recorder counts, the rows of `top`, the figures of `top`, and the table of
//! `report`, of made servers with all that their sequences may do.

use crate::common::made::header;
use crate::synth_trace::footer;

use agent::recorder::requests::Requests;
use agent::recorder::tally::RequestTally;
use analysis::questions::report::{Report, ReportOptions, report};
use analysis::recorded::load::LoadProgress;
use analysis::recorded::sequences::RequestRow;
use analysis::streams::live::Live;
use pfi::record::{Chunk, Device, Entry, MemoryCall, MemoryChange, ServerTask, Token, Ubatch};
use pfi::{Encoder, EncoderConfig, Trace};
use proptest::prelude::*;
use requests::{Arrival, Call, CallBatch, RequestNow, Unobserved};

const PID: u32 = 7;
const TARGET: u64 = 0x1000;
const DRAFT: u64 = 0x2000;
const MS: i64 = 1_000_000;
const SLOTS: usize = 4;

/// What happens next.
#[derive(Debug, Clone)]
enum Act {
    /// A request, of whose prompt some tokens are in the memory, waits in a server's queue if it comes from a client.
    Begin {
        slot: usize,
        kept: i64,
        prompt: u64,
        client: bool,
    },
    /// A call that computes for all slots: `part` tokens of each prompt, and a draft for each slot that decodes, part of which is
    /// accepted. `cut`: in two ubatches.
    Call {
        part: u64,
        draft: [u64; SLOTS],
        accepted: u64,
        ms: i64,
        cut: bool,
    },
    /// The server names the slot of a request.
    Name {
        slot: usize,
    },
    Copy {
        from: usize,
        to: usize,
    },
    Shift {
        slot: usize,
    },
    Change {
        what: MemoryChange,
    },
    Rest {
        slot: usize,
    },
    Pause {
        ms: i64,
    },
    /// A call whose batch was not read.
    Unread,
    /// Events of calls were lost.
    Lost,
}

/// A slot of the server.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Position of the next token.
    pos: i64,
    /// Tokens of the prompt that are still to be computed; None: it rests, or decodes.
    prompt: u64,
    decodes: bool,
    /// Number of the request at the server, until it is named; when it came.
    task: Option<(i64, i64)>,
}

/// A server: what it does goes to the recorder's sums, and into a trace.
struct Server {
    enc: Encoder<Vec<u8>>,
    requests: Requests,
    slots: [Slot; SLOTS],
    speculates: bool,
    now: i64,
    calls: u64,
    tasks: i64,
    lost: u64,
    /// Something was not seen.
    gaps: bool,
}

impl Server {
    /// `late`: its first slots are decoding when the recording begins.
    fn new(late: usize, speculates: bool) -> Server {
        let enc = Encoder::new(Vec::new(), EncoderConfig::default(), &header()).unwrap();
        let mut server = Server {
            enc,
            requests: Requests::default(),
            slots: [Slot::default(); SLOTS],
            speculates,
            now: 1000 * MS,
            calls: 0,
            tasks: 0,
            lost: 0,
            gaps: false,
        };
        for slot in server.slots.iter_mut().take(late) {
            (slot.pos, slot.decodes) = (50, true);
        }
        if speculates {
            // Its draft model is known from its first draft on.
            server.act(&Act::Begin { slot: 3, kept: 0, prompt: 9, client: false });
            for _ in 0..2 {
                server.act(&Act::Call { part: 9, draft: [0, 0, 0, 3], accepted: 1, ms: 10, cut: false });
            }
        }
        server
    }

    fn memory(&mut self, what: MemoryChange, seq: i64, (from, until): (i64, i64), to: i64) {
        self.now += MS / 10;
        let m = MemoryCall { pid: PID, tid: PID, t: self.now, context: TARGET, what, seq, to, from, until };
        self.requests.memory(&m, false);
        self.enc.memory(&m).unwrap();
    }

    fn task(&mut self, task: i64, at: i64, seq: Option<u64>) {
        self.now += MS / 10;
        self.requests.arrival(&Arrival { pid: PID, at: if seq.is_some() { at } else { self.now }, seq });
        self.enc.server_task(&ServerTask { pid: PID, tid: PID, t: self.now, task, seq }).unwrap();
    }

    /// A call of a context; `None`: its batch is not read.
    fn call(&mut self, context: u64, chunks: Option<&[Chunk]>, ms: i64, cut: bool) {
        let (id, start, end) = (self.calls, self.now + MS, self.now + MS + ms * MS);
        (self.calls, self.now) = (id + 1, end);
        let mut batch = CallBatch::default();
        for part in parts(chunks.unwrap_or_default(), cut).into_iter().filter(|p| !p.is_empty()) {
            let record = Ubatch {
                token: Some(id),
                pid: PID,
                tid: PID,
                t: start,
                context,
                tokens: part.iter().map(|c| c.tokens as u32).sum(),
                unread: 0,
                whole: false,
                data: &[],
            };
            batch.add(&record, part.iter().copied(), 64);
            self.enc.ubatch(&record, part.into_iter()).unwrap();
        }
        assert!(chunks.is_none() || batch.is_whole());
        let call = Call { id, pid: PID, context, width: 8, start, end, seen: true, encodes: false };
        self.requests.call(PID, &call, &batch.chunks);
        let dur = (end - start) as u64;
        let (entry, device) = (Entry::Decode, Device::Idle);
        self.enc
            .token(&Token {
                seq: id,
                pid: PID,
                tid: PID,
                entry,
                n_tokens: None,
                t: start,
                dur,
                cut: false,
                device,
            })
            .unwrap();
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Begin { slot, kept, prompt, client } => self.begin(slot, kept, prompt, client),
            Act::Call { part, draft, accepted, ms, cut } => self.compute(part, draft, accepted, ms, cut),
            Act::Name { slot } if self.slots[slot].decodes => {
                if let Some((task, at)) = self.slots[slot].task.take() {
                    self.task(task, at, Some(slot as u64));
                }
            }
            Act::Copy { from, to } if from != to => {
                self.memory(MemoryChange::Copy, from as i64, (-1, -1), to as i64);
                self.slots[to] = Slot { pos: self.slots[from].pos, ..Slot::default() };
            }
            Act::Shift { slot } if self.slots[slot].decodes && self.slots[slot].pos > 20 => {
                let (seq, pos) = (slot as i64, self.slots[slot].pos);
                self.memory(MemoryChange::Remove, seq, (5, 15), 0);
                self.memory(MemoryChange::Shift, seq, (15, pos), -10);
                self.slots[slot].pos -= 10;
            }
            Act::Change { what } => {
                self.memory(what, if what == MemoryChange::Load { 1 } else { -1 }, (-1, -1), 0);
                if what != MemoryChange::Save {
                    let of = if what == MemoryChange::Load { 1..2 } else { 0..SLOTS };
                    self.slots[of].fill(Slot::default());
                }
            }
            Act::Rest { slot } => {
                (self.slots[slot].decodes, self.slots[slot].prompt) = (false, 0);
            }
            Act::Pause { ms } => self.now += ms * MS,
            Act::Unread => {
                self.gaps = true;
                self.call(TARGET, None, 10, false);
            }
            Act::Lost => {
                (self.gaps, self.lost) = (true, self.lost + 1);
                self.requests.lost(self.lost);
            }
            Act::Name { .. } | Act::Copy { .. } | Act::Shift { .. } => {}
        }
    }

    fn begin(&mut self, slot: usize, kept: i64, prompt: u64, client: bool) {
        let task = client.then(|| {
            self.tasks += 1;
            self.task(self.tasks, 0, None);
            let came = self.now;
            self.now += 20 * MS;
            (self.tasks, came)
        });
        let pos = self.slots[slot].pos.min(kept);
        self.memory(MemoryChange::Remove, slot as i64, (pos, -1), 0);
        self.slots[slot] = Slot { pos, prompt, decodes: false, task };
    }

    fn compute(&mut self, part: u64, draft: [u64; SLOTS], accepted: u64, ms: i64, cut: bool) {
        let mut chunks = Vec::new();
        for (seq, slot) in self.slots.iter().enumerate() {
            let tokens = match slot.prompt {
                0 if slot.decodes => 1 + draft[seq],
                rest => rest.min(part),
            };
            let outputs = if slot.decodes { tokens } else { u64::from(tokens == slot.prompt) };
            chunks.push(Chunk { seq: seq as i64, pos: slot.pos, tokens, outputs });
        }
        chunks.retain(|c| c.tokens > 0);
        if chunks.is_empty() {
            return;
        }
        if self.speculates {
            for c in chunks.iter().filter(|c| c.outputs == c.tokens && c.tokens > 1) {
                for i in 0..c.tokens as i64 - 1 {
                    self.call(
                        DRAFT,
                        Some(&[Chunk { pos: c.pos + i, tokens: 1, outputs: 1, ..*c }]),
                        1,
                        false,
                    );
                }
            }
        }
        self.call(TARGET, Some(&chunks), ms, cut);
        if self.speculates {
            self.call(DRAFT, Some(&chunks), 2, false);
        }
        for c in chunks {
            let slot = &mut self.slots[c.seq as usize];
            if slot.decodes {
                let brought = 1 + accepted.min(c.tokens - 1);
                slot.pos += brought as i64;
                if brought < c.tokens {
                    let from = slot.pos;
                    self.memory(MemoryChange::Remove, c.seq, (from, -1), 0);
                }
            } else {
                slot.pos += c.tokens as i64;
                slot.prompt -= c.tokens;
                slot.decodes = slot.prompt == 0;
            }
        }
    }

    fn end(mut self) -> (RequestTally, Vec<RequestNow>, Report, Option<u64>) {
        let rows = self.requests.rows(None, self.now as u64);
        self.requests.exit(PID);
        let tally = self.requests.take().map(|(_, tally)| tally).unwrap_or_default();
        let trace = Trace::from_bytes(self.enc.finish(&footer("target exited")).unwrap()).unwrap();
        let mut live = Live::default();
        live.tick(0);
        for block in 0..trace.blocks().len() {
            live.feed(&trace.block(block).unwrap());
        }
        live.finish();
        let phases = live.whole(self.now as u64).phases;
        let tokens = phases.iter().map(|p| p.tokens).sum();
        (tally, rows, report(&trace, &ReportOptions::default(), &LoadProgress::default()), tokens)
    }
}

/// The chunks of the parts of a batch, of which each has half of every chunk.
fn parts(chunks: &[Chunk], cut: bool) -> Vec<Vec<Chunk>> {
    if !cut {
        return vec![chunks.to_vec()];
    }
    let half = |c: &Chunk| c.tokens.div_ceil(2);
    let first = |c: &Chunk| {
        let outputs = if c.outputs == c.tokens { half(c) } else { 0 };
        Chunk { tokens: half(c), outputs, ..*c }
    };
    let second = |c: &Chunk| {
        let (pos, tokens) = (c.pos + half(c) as i64, c.tokens - half(c));
        Chunk { pos, tokens, outputs: c.outputs - first(c).outputs, ..*c }
    };
    // One token alone has its results in the first part.
    let first = chunks.iter().map(|c| if c.tokens == 1 { *c } else { first(c) });
    let second = chunks.iter().filter(|c| c.tokens > 1).map(second);
    vec![first.collect(), second.collect()]
}

fn slot() -> impl Strategy<Value = usize> {
    0..SLOTS
}

fn acts() -> impl Strategy<Value = Act> {
    let begin = (slot(), 0..60i64, 1..40u64, any::<bool>());
    let call = (1..30u64, [0..4u64, 0..4u64, 0..4u64, 0..4u64], 0..4u64, 1..40i64, any::<bool>());
    let change = prop::sample::select(vec![MemoryChange::Clear, MemoryChange::Save, MemoryChange::Load]);
    prop_oneof![
        4 => begin.prop_map(|(slot, kept, prompt, client)| Act::Begin { slot, kept, prompt, client }),
        12 => call.prop_map(|(part, draft, accepted, ms, cut)| Act::Call { part, draft, accepted, ms, cut }),
        3 => slot().prop_map(|slot| Act::Name { slot }),
        1 => (slot(), slot()).prop_map(|(from, to)| Act::Copy { from, to }),
        1 => slot().prop_map(|slot| Act::Shift { slot }),
        1 => change.prop_map(|what| Act::Change { what }),
        1 => slot().prop_map(|slot| Act::Rest { slot }),
        1 => (0..2000i64).prop_map(|ms| Act::Pause { ms }),
    ]
}

/// What both a row of `top` and one of `report` say of a request.
type Told = (i64, u64, Option<u64>, u64, u64, Option<u64>);

fn of_top(rows: &[RequestNow]) -> Vec<Told> {
    rows.iter().map(|r| (r.seq, r.prompt_tokens, r.cached_tokens, r.tokens, r.accepted, r.ttft_ns)).collect()
}

/// The last request of each sequence.
fn of_report(rows: &[&RequestRow]) -> Vec<Told> {
    let told = |r: &&RequestRow| (r.seq, r.prompt_tokens, r.cached_tokens, r.tokens, r.accepted, r.ttft_ns);
    (0..SLOTS as i64).filter_map(|seq| rows.iter().rfind(|r| r.seq == seq).map(told)).collect()
}

fn missed(tally: &RequestTally, which: &[Unobserved]) -> u64 {
    let all = Unobserved::ALL.iter().zip(tally.unobserved);
    all.filter(|((why, _), _)| which.contains(why)).map(|(_, n)| n).sum()
}

fn sum<T>(rows: &[&RequestRow], of: impl Fn(&RequestRow) -> T) -> T
where
    T: std::iter::Sum,
{
    rows.iter().map(|r| of(r)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(
        std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(256)) })]

    #[test]
    fn the_service_top_and_report_count_the_same(
        late in 0..3usize, speculates: bool, told in prop::collection::vec(acts(), 1..120),
    ) {
        let mut server = Server::new(late, speculates);
        told.iter().for_each(|act| server.act(act));
        let (tally, now, report, live) = server.end();
        let Some(sequences) = &report.sequences else { return Ok(()) };
        // Nothing tells the contexts of this recording apart: the target's was the first.
        let rows: Vec<&RequestRow> = sequences.requests.iter().filter(|r| r.context == 1).collect();
        prop_assert_eq!(of_top(&now), of_report(&rows));
        let ended = |r: &&RequestRow| !r.late && r.tokens > 0;
        let seen: Vec<&RequestRow> = rows.iter().copied().filter(ended).collect();
        prop_assert_eq!(tally.first_token.count(), seen.len() as u64);
        prop_assert_eq!(tally.first_token.sum_ns, sum(&seen, |r| r.ttft_ns.unwrap()));
        prop_assert_eq!(tally.duration.count(), seen.len() as u64);
        // A client waits in the queue, too.
        prop_assert_eq!(tally.duration.sum_ns, sum(&seen, |r| r.duration_ns + r.queued_ns.unwrap_or(0)));
        // Of a draft whose result is not known, the time of its tokens is not either.
        let unknown = sum(&seen, |r| u64::from(r.at_least));
        prop_assert!(tally.output_token.count() + seen.len() as u64 <= sum(&seen, |r| r.tokens));
        if unknown == 0 {
            prop_assert_eq!(tally.output_token.count() + seen.len() as u64, sum(&seen, |r| r.tokens));
        }
        let not = [Unobserved::NoPrompt, Unobserved::NoToken];
        // Until its first draft, a draft model may be any other.
        prop_assert!(seen.len() as u64 + missed(&tally, &not) >= rows.len() as u64);
        if !speculates {
            prop_assert_eq!(seen.len() as u64 + missed(&tally, &not), rows.len() as u64);
            prop_assert_eq!(missed(&tally, &not), tally.unobserved.iter().sum::<u64>());
            prop_assert_eq!(tally.tokens, sum(&rows, |r| r.tokens));
            let calls: u64 = report.phases.iter().map(|p| p.tokens.unwrap()).sum();
            prop_assert_eq!(live, Some(calls));
            let first = sum(&rows, |r| u64::from(r.tokens > 0 && !r.late));
            prop_assert_eq!(calls, sum(&rows, |r| r.prompt_tokens + r.tokens) - first);
        }
    }

    #[test]
    fn where_something_was_not_seen_the_service_counts_no_more_than_report(
        speculates: bool, mut told in prop::collection::vec(acts(), 1..80),
        gaps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..4),
    ) {
        for (at, lost) in gaps {
            told.insert(at.index(told.len() + 1), if lost { Act::Lost } else { Act::Unread });
        }
        let mut server = Server::new(0, speculates);
        told.iter().for_each(|act| server.act(act));
        assert!(server.gaps);
        let (tally, _, report, _) = server.end();
        let Some(sequences) = &report.sequences else { return Ok(()) };
        let rows: Vec<&RequestRow> = sequences.requests.iter().filter(|r| r.context == 1).collect();
        prop_assert!(tally.first_token.count() <= rows.len() as u64);
        prop_assert!(tally.first_token.sum_ns <= sum(&rows, |r| r.ttft_ns.unwrap_or(0)));
        prop_assert!(tally.duration.count() <= tally.first_token.count());
        let seen = tally.output_token.count() + tally.first_token.count();
        prop_assert!(seen <= sum(&rows, |r| r.tokens));
    }
}
