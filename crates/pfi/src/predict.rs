//! Wire coding of calls and slices: each field is stored as its difference from a prediction, and correctly
//! predicted fields are left out. Input is untrusted.
#![warn(clippy::indexing_slicing)]

use super::coding::{put_varint, unzigzag, varint, zigzag};
use super::record::*;

/// Appends a mask of the values that differ from the prediction, and their differences.
pub(crate) fn put_diffs(out: &mut Vec<u8>, values: &[u64], predicted: &[u64]) {
    let pairs = || values.iter().zip(predicted);
    put_varint(out, pairs().rev().fold(0, |mask, (v, p)| mask << 1 | u64::from(v != p)));
    for (v, p) in pairs().filter(|(v, p)| v != p) {
        put_varint(out, zigzag(v.wrapping_sub(*p) as i64));
    }
}

/// Reads what `put_diffs` wrote, value by value.
pub(crate) struct Diffs<'a> {
    data: &'a [u8],
    pos: usize,
    mask: u64,
}

impl<'a> Diffs<'a> {
    pub fn new(data: &'a [u8]) -> Option<Diffs<'a>> {
        let (mask, pos) = varint(data, 0)?;
        Some(Diffs { data, pos, mask })
    }

    pub fn next(&mut self, predicted: u64) -> Option<u64> {
        let differs = self.mask & 1 != 0;
        self.mask >>= 1;
        if !differs {
            return Some(predicted);
        }
        let (v, pos) = varint(self.data, self.pos)?;
        self.pos = pos;
        Some(predicted.wrapping_add(unzigzag(v) as u64))
    }

    /// The bytes after the last value; skips values that a later version appended.
    pub fn rest(mut self) -> Option<&'a [u8]> {
        while self.mask != 0 {
            self.next(0)?;
        }
        self.data.get(self.pos..)
    }
}

/// How a field is predicted.
#[derive(Clone, Copy)]
enum PredictRule {
    /// As in the previous record of this kind.
    Same,
    /// One more than there.
    Next,
    /// Time and duration of the previous record that has one, of any of these kinds.
    Time,
    Duration,
}

use PredictRule::{Duration, Next, Same, Time};

const FIRST_KIND: usize = 10;
const MAX_FIELDS: usize = 15;

/// The fields of kinds 10 to 14, in order.
const RULES: [&[PredictRule]; 5] = [
    &[Next, Same, Same, Same, Same, Time, Duration, Same, Same],
    &[Next, Next, Same, Same, Same, Same, Same, Time, Duration, Same, Same],
    &[Next, Next, Same, Same, Same, Same, Time, Duration, Same, Same, Same],
    &[Next, Next, Next, Same, Same, Same, Same, Same, Same, Time, Duration, Same, Same, Same, Same],
    &[Same, Same, Same, Same, Same, Same, Time, Same],
];

type RecordFields = [u64; MAX_FIELDS];

/// State from which the next record is predicted. One per block.
pub(crate) struct CallPredictor {
    last: [RecordFields; 5],
    time: u64,
    duration: u64,
}

fn padded<const N: usize>(values: [u64; N]) -> RecordFields {
    let mut out = [0; MAX_FIELDS];
    out.iter_mut().zip(values).for_each(|(to, from)| *to = from);
    out
}

fn some(v: Option<u64>) -> u64 {
    v.map_or(0, |v| v.wrapping_add(1))
}

fn maybe(v: u64) -> Option<u64> {
    v.checked_sub(1)
}

/// A field of at most 32 bits that may be absent; None if the number is larger.
fn maybe32(v: u64) -> Option<Option<u32>> {
    maybe(v).map(|v| v.try_into().ok()).map_or(Some(None), |v| v.map(Some))
}

/// 0: idle, 1: unseen, otherwise the time plus 2.
fn some_device(device: Device) -> u64 {
    match device {
        Device::Idle => 0,
        Device::Unseen => 1,
        Device::Busy(ns) => ns.saturating_add(2),
    }
}

fn device(v: u64) -> Device {
    match v {
        0 => Device::Idle,
        1 => Device::Unseen,
        more => Device::Busy(more - 2),
    }
}

fn flag(v: u64) -> bool {
    v != 0
}

/// A record of kinds 10 to 14 as numbers, and its trailing bytes.
fn fields<'a>(record: &Record<'a>) -> Option<(RecordFields, &'a [u8])> {
    let values = match record {
        Record::Token(r) => padded([
            r.seq,
            r.pid.into(),
            r.tid.into(),
            r.entry as u64,
            some(r.n_tokens.map(Into::into)),
            r.t as u64,
            r.dur,
            r.cut.into(),
            some_device(r.device),
        ]),
        Record::Graph(r) => padded([
            r.seq,
            some(r.token),
            r.pid.into(),
            r.tid.into(),
            r.cgraph,
            r.n_nodes.into(),
            r.ubatch.into(),
            r.t as u64,
            r.dur,
            r.cut.into(),
            some_device(r.device),
        ]),
        Record::Split(r) => padded([
            r.seq,
            some(r.graph),
            r.backend.into(),
            r.pid.into(),
            r.tid.into(),
            r.n_nodes.into(),
            r.t as u64,
            r.dur,
            r.cut.into(),
            some_device(r.device),
            some(r.plan.map(Into::into)),
        ]),
        Record::CpuGraph(r) => [
            r.seq,
            some(r.graph),
            some(r.split),
            r.pid.into(),
            r.tid.into(),
            some(r.plan.map(Into::into)),
            r.n_nodes.into(),
            r.n_threads.into(),
            r.ubatch.into(),
            r.t as u64,
            r.dur,
            some(r.expected.map(Into::into)),
            r.seen.into(),
            r.barrier.into(),
            r.cut.into(),
        ],
        Record::Slices(r) => padded([
            r.graph,
            r.ith.into(),
            r.tid.into(),
            r.plan.into(),
            r.first.into(),
            r.n.into(),
            r.t as u64,
            r.barrier.into(),
        ]),
        _ => return None,
    };
    Some((values, if let Record::Slices(r) = record { r.data } else { &[] }))
}

fn entry(v: u64) -> Option<Entry> {
    [Entry::Process, Entry::Decode, Entry::Encode].get(usize::try_from(v).ok()?).copied()
}

/// The record of kind `kind` with these numbers; None if a value exceeds its type.
#[expect(clippy::indexing_slicing, reason = "indices are constants")]
fn record<'a>(kind: usize, v: &RecordFields, data: &'a [u8]) -> Option<Record<'a>> {
    let u = |i: usize| u32::try_from(v[i]).ok();
    Some(match kind {
        10 => Record::Token(Token {
            seq: v[0],
            pid: u(1)?,
            tid: u(2)?,
            entry: entry(v[3])?,
            n_tokens: maybe32(v[4])?,
            t: v[5] as i64,
            dur: v[6],
            cut: flag(v[7]),
            device: device(v[8]),
        }),
        11 => Record::Graph(Graph {
            seq: v[0],
            token: maybe(v[1]),
            pid: u(2)?,
            tid: u(3)?,
            cgraph: v[4],
            n_nodes: u(5)?,
            ubatch: u(6)?,
            t: v[7] as i64,
            dur: v[8],
            cut: flag(v[9]),
            device: device(v[10]),
        }),
        12 => Record::Split(Split {
            seq: v[0],
            graph: maybe(v[1]),
            backend: u(2)?,
            pid: u(3)?,
            tid: u(4)?,
            n_nodes: u(5)?,
            t: v[6] as i64,
            dur: v[7],
            cut: flag(v[8]),
            device: device(v[9]),
            plan: maybe32(v[10])?,
        }),
        13 => Record::CpuGraph(CpuGraph {
            seq: v[0],
            graph: maybe(v[1]),
            split: maybe(v[2]),
            pid: u(3)?,
            tid: u(4)?,
            plan: maybe32(v[5])?,
            n_nodes: u(6)?,
            n_threads: u(7)?,
            ubatch: u(8)?,
            t: v[9] as i64,
            dur: v[10],
            expected: maybe32(v[11])?,
            seen: u(12)?,
            barrier: flag(v[13]),
            cut: flag(v[14]),
        }),
        14 => Record::Slices(Slices {
            graph: v[0],
            ith: v[1].try_into().ok()?,
            tid: u(2)?,
            plan: u(3)?,
            first: u(4)?,
            n: u(5)?,
            t: v[6] as i64,
            barrier: flag(v[7]),
            data,
        }),
        _ => return None,
    })
}

impl CallPredictor {
    /// For a block whose first timestamp is `first_ts`.
    pub fn new(first_ts: u64) -> CallPredictor {
        CallPredictor { last: [[0; MAX_FIELDS]; 5], time: first_ts, duration: 0 }
    }

    #[expect(clippy::indexing_slicing, reason = "a row of the table, and a field of it")]
    fn predict(&self, row: usize, i: usize, rule: PredictRule) -> u64 {
        match rule {
            Same => self.last[row][i],
            Next => self.last[row][i].wrapping_add(1),
            Time => self.time,
            Duration => self.duration,
        }
    }

    #[expect(clippy::indexing_slicing, reason = "a row of the table")]
    fn learn(&mut self, row: usize, values: &RecordFields) {
        self.last[row] = *values;
        for (rule, v) in RULES[row].iter().zip(values) {
            match rule {
                Time => self.time = *v,
                Duration => self.duration = *v,
                Same | Next => {}
            }
        }
    }

    /// Appends a record of kinds 10 to 14 without its kind. For another kind appends nothing and returns false.
    #[expect(clippy::indexing_slicing, reason = "a row of the table, and a field of it")]
    pub fn put(&mut self, out: &mut Vec<u8>, record: &Record) -> bool {
        let Some((values, data)) = fields(record) else { return false };
        let row = record.kind() - FIRST_KIND;
        let mut predicted = values;
        for (i, rule) in RULES[row].iter().enumerate() {
            predicted[i] = self.predict(row, i, *rule);
        }
        put_diffs(out, &values, &predicted);
        out.extend_from_slice(data);
        self.learn(row, &values);
        true
    }

    /// Decodes the record of kind `kind` in `body`, which begins after the kind.
    #[expect(clippy::indexing_slicing, reason = "rows have no more fields than there are")]
    pub fn take<'a>(&mut self, kind: usize, body: &'a [u8]) -> Option<Record<'a>> {
        let row = kind.checked_sub(FIRST_KIND)?;
        let mut diffs = Diffs::new(body)?;
        let mut values = [0; MAX_FIELDS];
        for (i, rule) in RULES.get(row)?.iter().enumerate() {
            values[i] = diffs.next(self.predict(row, i, *rule))?;
        }
        let data = diffs.rest()?;
        self.learn(row, &values);
        record(kind, &values, data)
    }
}
