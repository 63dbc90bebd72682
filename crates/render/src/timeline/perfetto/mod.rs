//! A timeline as Perfetto protobuf. Each lane is a separate packet sequence: its track is the sequence's default,
//! its names are interned on first use, and its times are delta-encoded.
//!
//! Field numbers are those of Perfetto's protos/perfetto/trace/*.proto, which never change.

use std::collections::HashMap;
use std::io::{self, Write};

use super::labels::Labels;
use super::{ArgValue, CPU, DeviceQueue, SliceArgs, SliceName, TOKEN, TimelineSink, category};
use crate::proto::{bytes, fixed, interned, number, varint, varint_len};
use analysis::streams::lanes::LaneOwner;
use pfi::record::Header;

mod device;

use device::QueueNames;

/// Fields of TracePacket.
mod packet {
    pub const CLOCK_SNAPSHOT: u32 = 6;
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const INTERNED: u32 = 12;
    pub const FLAGS: u32 = 13;
    pub const CLOCK: u32 = 58;
    pub const DEFAULTS: u32 = 59;
    pub const TRACK: u32 = 60;
    pub const FIRST: u32 = 87;
}

/// Fields of TrackEvent.
mod event {
    pub const CATEGORY: u32 = 3;
    pub const ANNOTATION: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const NAME: u32 = 10;
    pub const TRACK: u32 = 11;
    pub const VALUE: u32 = 44;
    pub const FLOW: u32 = 47;
    pub const BEGIN: u64 = 1;
    pub const END: u64 = 2;
    pub const INSTANT: u64 = 3;
    pub const COUNTER: u64 = 4;
}

/// Fields of InternedData, and of DebugAnnotation.
mod names {
    pub const CATEGORIES: u32 = 1;
    pub const EVENTS: u32 = 2;
    pub const ANNOTATIONS: u32 = 3;
    pub const GRAPHICS_CONTEXTS: u32 = 23;
    pub const GPU_SPECIFICATIONS: u32 = 24;
    pub const TEXTS: u32 = 29;
    pub const OF_ANNOTATION: u32 = 1;
    pub const BOOL: u32 = 2;
    pub const UINT: u32 = 3;
    pub const DOUBLE: u32 = 5;
    pub const TEXT: u32 = 6;
    pub const TEXT_IID: u32 = 17;
}

/// Fields of TrackDescriptor.
mod descriptor {
    pub const UUID: u32 = 1;
    pub const NAME: u32 = 2;
    pub const PROCESS: u32 = 3;
    pub const THREAD: u32 = 4;
    pub const PARENT: u32 = 5;
    pub const COUNTER: u32 = 8;
    pub const RANK: u32 = 12;
    /// Of the root, which has the id 0: threads are ordered by their ranks if it is 1.
    pub const THREAD_ORDERING: u32 = 20;
}

/// Added to a thread's index in GGML's pool, so that these threads come before those without a rank, which count as 0.
const FIRST_RANK: i64 = -(1 << 16);

/// Perfetto's clock numbers; those from 64 on are local to a sequence.
const REALTIME: u64 = 1;
const MONOTONIC: u64 = 3;
const BOOTTIME: u64 = 6;
const DIFFERENCES: u64 = 64;

/// The state of the sequence begins here.
const CLEARED: u64 = 1;

/// A Trace is one repeated field: a packet.
const PACKET: u8 = 0x0a;
/// Field and wire type of a packet's timestamp.
const TIMESTAMP: u8 = (packet::TIMESTAMP << 3) as u8;

/// Bytes buffered before they are written.
const FULL: usize = 256 << 10;

/// Values of ops that are left out: a part of the slice's name, and a mean where each slice has its bytes and duration.
const LEFT_OUT: [&str; 2] = ["tensor", "mean_gb_per_s"];

/// A byte range in [`PacketSequence::tails`].
#[derive(Clone, Copy, Default)]
struct TailRange {
    from: usize,
    len: usize,
}

/// The current sequence.
#[derive(Default)]
struct PacketSequence {
    sequence: u64,
    /// Time of the last event, on the output clock.
    last: u64,
    /// The event's bytes before the number of its call, by op; empty until the op's name is interned.
    ops: Vec<TailRange>,
    tails: Vec<u8>,
    /// The number of the current call, the current CPU, and their annotations.
    shared: (Option<u64>, Option<u16>, Vec<u8>),
    end: Vec<u8>,
    /// Number of event names interned so far; those of ops are represented only by their id.
    events: u64,
    others: Vec<(String, u64)>,
    categories: Vec<&'static str>,
    annotations: Vec<&'static str>,
    texts: HashMap<String, u64>,
}

/// Writes a trace.
pub struct Perfetto<'o> {
    out: &'o mut dyn Write,
    labels: &'o Labels,
    /// Offset from trace time to written time, and the clock of the latter.
    offset: i64,
    clock: u64,
    next_sequence: u64,
    /// The root is described.
    rooted: bool,
    lane: PacketSequence,
    queue: QueueNames,
    buf: Vec<u8>,
    body: Vec<u8>,
}

impl<'o> Perfetto<'o> {
    /// Begins a trace whose sequences are numbered from `first` on. Without a header the offset from the trace's
    /// clock to CLOCK_BOOTTIME is not known, and times stay on CLOCK_MONOTONIC.
    pub fn new(out: &'o mut dyn Write, labels: &'o Labels, header: Option<&Header<'_>>, first: u64) -> Self {
        let mut p = Perfetto {
            out,
            labels,
            offset: header.map_or(0, |h| h.boot_ns.wrapping_sub(h.mono_ns).cast_signed()),
            clock: if header.is_some() { BOOTTIME } else { MONOTONIC },
            next_sequence: first,
            rooted: false,
            lane: PacketSequence::default(),
            queue: QueueNames::default(),
            buf: Vec::with_capacity(FULL + (4 << 10)),
            body: Vec::new(),
        };
        p.next_lane();
        p
    }

    /// Writes a clock snapshot: the same instant on the clocks that the recorder read together. It must come
    /// after everything else, because readers expect the values of a clock in one file to increase.
    ///
    /// # Errors
    /// Write errors.
    pub fn same_instant(&mut self, h: &Header<'_>) -> io::Result<()> {
        let mut snapshot = Vec::new();
        for (clock, t) in [(REALTIME, h.real_ns), (MONOTONIC, h.mono_ns), (BOOTTIME, h.boot_ns)] {
            bytes(&mut snapshot, 1, &reading(clock, t, false));
        }
        self.body.clear();
        bytes(&mut self.body, packet::CLOCK_SNAPSHOT, &snapshot);
        self.packet()?;
        self.flush()
    }

    fn next_lane(&mut self) {
        let ops = self.labels.ops.len();
        let lane = &mut self.lane;
        lane.sequence = self.next_sequence;
        self.next_sequence += 1;
        lane.ops.clear();
        lane.ops.resize(ops, TailRange::default());
        lane.tails.clear();
        lane.shared = (None, None, Vec::new());
        lane.events = 0;
        lane.others.clear();
        lane.categories.clear();
        lane.annotations.clear();
        lane.texts.clear();
        lane.end.clear();
        let mut event = Vec::new();
        number(&mut event, event::TYPE, event::END);
        number(&mut lane.end, packet::SEQUENCE, lane.sequence);
        bytes(&mut lane.end, packet::TRACK_EVENT, &event);
    }

    fn time(&self, t: i64) -> u64 {
        t.saturating_add(self.offset).max(0).cast_unsigned()
    }

    /// The delta to write for a time: the time since the last event.
    fn since(&mut self, t: i64) -> u64 {
        let now = self.time(t).max(self.lane.last);
        now - std::mem::replace(&mut self.lane.last, now)
    }

    /// Writes the packet in `body`, after adding its sequence.
    fn packet(&mut self) -> io::Result<()> {
        number(&mut self.body, packet::SEQUENCE, self.lane.sequence);
        self.buf.push(PACKET);
        varint(&mut self.buf, self.body.len() as u64);
        self.buf.extend_from_slice(&self.body);
        self.flush_full()
    }

    fn flush_full(&mut self) -> io::Result<()> {
        if self.buf.len() < FULL {
            return Ok(());
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buf)?;
        self.buf.clear();
        Ok(())
    }

    /// Writes the end of a slice.
    fn end_event(&mut self, t: i64) -> io::Result<()> {
        let since = self.since(t);
        self.buf.push(PACKET);
        varint(&mut self.buf, (1 + varint_len(since) + self.lane.end.len()) as u64);
        self.buf.push(TIMESTAMP);
        varint(&mut self.buf, since);
        self.buf.extend_from_slice(&self.lane.end);
        self.flush_full()
    }

    /// Writes the beginning of an op. Its name and values are prepared when it is first seen in this sequence.
    fn op(&mut self, t: i64, at: usize, call: Option<u64>, cpu: Option<u16>) -> io::Result<()> {
        let mut new = Vec::new();
        let known = self.lane.ops.get(at).copied().filter(|tail| tail.len > 0);
        let Some(tail) = known.or_else(|| self.first_op(at, &mut new)) else {
            let values = [(TOKEN, call), (CPU, cpu.map(u64::from))];
            let values: SliceArgs =
                values.into_iter().filter_map(|(name, n)| Some((name, ArgValue::Count(n?)))).collect();
            return self.other(t, event::BEGIN, (self.labels.name(None), category::OP), &values, None);
        };
        if (self.lane.shared.0, self.lane.shared.1) != (call, cpu) {
            let mut annotations = Vec::new();
            for (name, value) in [(TOKEN, call), (CPU, cpu.map(u64::from))] {
                if let Some(n) = value {
                    let value = self.annotation(name, &ArgValue::Count(n), false, &mut new);
                    bytes(&mut annotations, event::ANNOTATION, &value);
                }
            }
            self.lane.shared = (call, cpu, annotations);
        }
        let since = self.since(t);
        let op = self.lane.tails.get(tail.from..tail.from + tail.len).unwrap_or_default();
        let shared = &self.lane.shared.2;
        self.body.clear();
        number(&mut self.body, packet::TIMESTAMP, since);
        if !new.is_empty() {
            bytes(&mut self.body, packet::INTERNED, &new);
        }
        varint(&mut self.body, u64::from(packet::TRACK_EVENT) << 3 | 2);
        varint(&mut self.body, (op.len() + shared.len()) as u64);
        self.body.extend_from_slice(op);
        self.body.extend_from_slice(shared);
        self.packet()
    }

    /// Writes an event with the names it interns.
    fn telling(&mut self, t: i64, new: &[u8], event: &[u8]) -> io::Result<()> {
        let since = self.since(t);
        self.body.clear();
        number(&mut self.body, packet::TIMESTAMP, since);
        if !new.is_empty() {
            bytes(&mut self.body, packet::INTERNED, new);
        }
        bytes(&mut self.body, packet::TRACK_EVENT, event);
        self.packet()
    }

    /// The first op of a name in this sequence: interns the name, and keeps the event for the next ones.
    fn first_op(&mut self, at: usize, new: &mut Vec<u8>) -> Option<TailRange> {
        let op = self.labels.ops.get(at)?;
        let mut event = Vec::new();
        number(&mut event, event::TYPE, event::BEGIN);
        number(&mut event, event::CATEGORY, self.category(category::OP, new));
        self.lane.events += 1;
        interned(new, names::EVENTS, self.lane.events, &op.name);
        number(&mut event, event::NAME, self.lane.events);
        for (name, value) in op.values.iter().filter(|(name, _)| !LEFT_OUT.contains(name)) {
            let annotation = self.annotation(name, value, true, new);
            bytes(&mut event, event::ANNOTATION, &annotation);
        }
        let tail = TailRange { from: self.lane.tails.len(), len: event.len() };
        self.lane.tails.extend_from_slice(&event);
        if let Some(place) = self.lane.ops.get_mut(at) {
            *place = tail;
        }
        Some(tail)
    }

    fn other(
        &mut self,
        t: i64,
        kind: u64,
        (name, category): (&str, &'static str),
        values: &SliceArgs,
        flow: Option<u64>,
    ) -> io::Result<()> {
        let mut new = Vec::new();
        let mut event = Vec::new();
        number(&mut event, event::TYPE, kind);
        number(&mut event, event::CATEGORY, self.category(category, &mut new));
        let iid = self.other_name(name, &mut new);
        number(&mut event, event::NAME, iid);
        for (name, value) in values {
            let annotation = self.annotation(name, value, false, &mut new);
            bytes(&mut event, event::ANNOTATION, &annotation);
        }
        if let Some(flow) = flow {
            fixed(&mut event, event::FLOW, track(FLOWS, 0, 0, flow));
        }
        self.telling(t, &new, &event)
    }

    fn category(&mut self, name: &'static str, new: &mut Vec<u8>) -> u64 {
        known_or_new(&mut self.lane.categories, name, names::CATEGORIES, new)
    }

    fn other_name(&mut self, name: &str, new: &mut Vec<u8>) -> u64 {
        if let Some((_, iid)) = self.lane.others.iter().find(|(known, _)| known == name) {
            return *iid;
        }
        self.lane.events += 1;
        let iid = self.lane.events;
        interned(new, names::EVENTS, iid, name);
        // Many distinct names in a file would make this search slow, so further names are interned again each
        // time.
        if self.lane.others.len() < 256 {
            self.lane.others.push((name.to_string(), iid));
        }
        iid
    }

    /// A value's bytes; texts that repeat are interned.
    fn annotation(
        &mut self,
        name: &'static str,
        value: &ArgValue,
        repeats: bool,
        new: &mut Vec<u8>,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        let name = known_or_new(&mut self.lane.annotations, name, names::ANNOTATIONS, new);
        number(&mut out, names::OF_ANNOTATION, name);
        match value {
            ArgValue::Text(text) if repeats => {
                let next = self.lane.texts.len() as u64 + 1;
                let iid = *self.lane.texts.entry(text.clone()).or_insert(next);
                if iid == next {
                    interned(new, names::TEXTS, iid, text);
                }
                number(&mut out, names::TEXT_IID, iid);
            }
            ArgValue::Text(text) => bytes(&mut out, names::TEXT, text.as_bytes()),
            ArgValue::Count(n) => number(&mut out, names::UINT, *n),
            ArgValue::Real(x) => fixed(&mut out, names::DOUBLE, x.to_bits()),
            ArgValue::Yes => number(&mut out, names::BOOL, 1),
        }
        out
    }

    fn descriptor(&mut self, track: &[u8]) -> io::Result<()> {
        self.body.clear();
        bytes(&mut self.body, packet::TRACK, track);
        self.packet()
    }
}

/// The id of a name in a list, from 1 on; a new one is added and interned.
fn known_or_new(list: &mut Vec<&'static str>, name: &'static str, field: u32, new: &mut Vec<u8>) -> u64 {
    if let Some(at) = list.iter().position(|known| *known == name) {
        return at as u64 + 1;
    }
    list.push(name);
    interned(new, field, list.len() as u64, name);
    list.len() as u64
}

/// One clock in a snapshot.
fn reading(clock: u64, t: u64, differences: bool) -> Vec<u8> {
    let mut out = Vec::new();
    number(&mut out, 1, clock);
    number(&mut out, 2, t);
    if differences {
        number(&mut out, 3, 1);
    }
    out
}

/// A track id: the same for the same place in every export, and far from the ids that other programs count up.
fn track(kind: u64, pid: u32, tid: u32, ith: u64) -> u64 {
    let mut x = 0x7072_6f66_7469_6d65_u64 ^ kind;
    for part in [u64::from(pid), u64::from(tid), ith] {
        x = (x ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 29;
    }
    x | 1 << 62
}

/// Kinds of ids made by [`track`].
const PROCESSES: u64 = 1;
const THREADS: u64 = 2;
const POOLS: u64 = 3;
const BESIDE: u64 = 4;
const FLOWS: u64 = 5;

fn process_track(pid: u32) -> u64 {
    track(PROCESSES, pid, 0, 0)
}

impl TimelineSink for Perfetto<'_> {
    fn process(&mut self, pid: u32, name: &str, cmdline: &str) -> io::Result<()> {
        let mut process = Vec::new();
        number(&mut process, 1, u64::from(pid));
        if !cmdline.is_empty() {
            bytes(&mut process, 2, cmdline.as_bytes());
        }
        if !name.is_empty() {
            bytes(&mut process, 6, name.as_bytes());
        }
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.rooted, true) {
            number(&mut out, descriptor::UUID, 0);
            number(&mut out, descriptor::THREAD_ORDERING, 1);
            self.descriptor(&out)?;
            out.clear();
        }
        number(&mut out, descriptor::UUID, process_track(pid));
        bytes(&mut out, descriptor::PROCESS, &process);
        self.descriptor(&out)
    }

    fn lane(&mut self, place: &LaneOwner, name: &str) -> io::Result<()> {
        self.next_lane();
        let mut out = Vec::new();
        let (uuid, rank) = match *place {
            LaneOwner::Thread { pid, tid, ith } => {
                let uuid = track(THREADS, pid, tid, 0);
                let mut thread = Vec::new();
                number(&mut thread, 1, u64::from(pid));
                number(&mut thread, 2, u64::from(tid));
                if !name.is_empty() {
                    bytes(&mut thread, 5, name.as_bytes());
                }
                number(&mut out, descriptor::UUID, uuid);
                bytes(&mut out, descriptor::THREAD, &thread);
                (uuid, ith)
            }
            LaneOwner::Pool { pid, caller, ith } => {
                let uuid = track(POOLS, pid, caller, u64::from(ith));
                number(&mut out, descriptor::UUID, uuid);
                bytes(&mut out, descriptor::NAME, name.as_bytes());
                (uuid, Some(ith))
            }
        };
        number(&mut out, descriptor::PARENT, process_track(place.pid()));
        if let Some(ith) = rank {
            number(&mut out, descriptor::RANK, (FIRST_RANK + i64::from(ith)).cast_unsigned());
        }
        self.start(Some(uuid))?;
        self.descriptor(&out)
    }

    fn begin(&mut self, t: i64, name: SliceName<'_>) -> io::Result<()> {
        match name {
            SliceName::Op { op, call, cpu } => self.op(t, op, call, cpu),
            SliceName::Other { name, category, values, flow } => {
                self.other(t, event::BEGIN, (name, category), values, flow)
            }
        }
    }

    fn end(&mut self, t: i64) -> io::Result<()> {
        self.end_event(t)
    }

    fn track(
        &mut self,
        pid: Option<u32>,
        tid: Option<u32>,
        name: &str,
        unit: Option<&str>,
    ) -> io::Result<()> {
        self.next_lane();
        let of_name = name.bytes().fold(0u64, |sum, b| sum.wrapping_mul(131).wrapping_add(b.into()));
        let uuid = track(BESIDE, pid.unwrap_or(0), tid.unwrap_or(0), of_name);
        let mut out = Vec::new();
        number(&mut out, descriptor::UUID, uuid);
        bytes(&mut out, descriptor::NAME, name.as_bytes());
        match (pid, tid) {
            (Some(pid), Some(tid)) => number(&mut out, descriptor::PARENT, track(THREADS, pid, tid, 0)),
            (Some(pid), None) => number(&mut out, descriptor::PARENT, process_track(pid)),
            _ => {}
        }
        if let Some(unit) = unit {
            let mut counter = Vec::new();
            bytes(&mut counter, 6, unit.as_bytes());
            bytes(&mut out, descriptor::COUNTER, &counter);
        }
        self.start(Some(uuid))?;
        self.descriptor(&out)
    }

    fn value(&mut self, t: i64, _: &str, value: f64) -> io::Result<()> {
        let (mut new, mut event) = (Vec::new(), Vec::new());
        number(&mut event, event::TYPE, event::COUNTER);
        number(&mut event, event::CATEGORY, self.category(category::COUNTER, &mut new));
        fixed(&mut event, event::VALUE, value.to_bits());
        self.telling(t, &new, &event)
    }

    fn instant(&mut self, t: i64, name: &str, values: &SliceArgs) -> io::Result<()> {
        self.other(t, event::INSTANT, (name, category::RECORDER), values, None)
    }

    fn queue(&mut self, queue: &DeviceQueue<'_>) -> io::Result<()> {
        self.begin_queue(queue)
    }

    fn kernel(&mut self, time: (i64, i64), name: &str, values: &SliceArgs) -> io::Result<()> {
        self.render_stage(time, name, values)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.flush()?;
        self.out.flush()
    }
}

impl Perfetto<'_> {
    /// Begins the state of the current sequence: its clock, and the default track of its events, if they have one. The delta
    /// clock begins at zero: readers reject a value of the file's clock that is before the last one they read,
    /// and nothing is before zero.
    fn start(&mut self, uuid: Option<u64>) -> io::Result<()> {
        self.lane.last = 0;
        let mut snapshot = Vec::new();
        bytes(&mut snapshot, 1, &reading(DIFFERENCES, 0, true));
        bytes(&mut snapshot, 1, &reading(self.clock, 0, false));
        number(&mut snapshot, 2, self.clock);
        let mut defaults = Vec::new();
        if let Some(uuid) = uuid {
            let mut of_events = Vec::new();
            number(&mut of_events, event::TRACK, uuid);
            bytes(&mut defaults, packet::TRACK_EVENT, &of_events);
        }
        number(&mut defaults, packet::CLOCK, DIFFERENCES);
        self.body.clear();
        bytes(&mut self.body, packet::CLOCK_SNAPSHOT, &snapshot);
        number(&mut self.body, packet::FLAGS, CLEARED);
        bytes(&mut self.body, packet::DEFAULTS, &defaults);
        number(&mut self.body, packet::FIRST, 1);
        self.packet()
    }
}
