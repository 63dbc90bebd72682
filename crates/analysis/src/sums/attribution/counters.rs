//! Hardware and software counters: which ones a trace has, and their sums over slices.

use serde::Serialize;

use crate::recorded::labels::state;
use crate::recorded::load::Loaded;
use common::order;
use pfi::counts;
use pfi::record::OpCounts;

/// A requested counter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CounterFacts {
    pub name: String,
    /// `events`, `bytes` or `ns`: the unit of the totals in the rows.
    pub unit: String,
    /// What was opened, and where.
    pub events: String,
    /// `whole`, `partly` or `none`, and the reason if it is not `whole`.
    pub state: &'static str,
    pub why: String,
    /// Share of the requested time during which it counted; null if not reported. Below 1 the counter was
    /// multiplexed.
    pub running_share: Option<f64>,
}

/// One counter's figures for a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CounterSum {
    pub name: String,
    /// In the counter's unit; null when no slice has a value.
    pub total: Option<u64>,
    /// Share of the row's slices that have a value.
    pub share: f64,
    /// Byte counters: rate in 10^9 bytes/s over the slowest thread's time (interval mode: thread 0's), from the
    /// calls in which every thread has a value.
    pub gb_per_s: Option<f64>,
}

/// All counters' figures for a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CounterRow {
    pub counters: Vec<CounterSum>,
    /// Instructions per cycle; null unless both were counted.
    pub ipc: Option<f64>,
    /// Share of cycles stalled in the back end (mostly on memory).
    pub stalled_share: Option<f64>,
}

impl CounterRow {
    /// Bytes of this row by its counter of memory traffic; slices without a count are taken to have as much as those
    /// with one.
    pub fn bytes(&self, of: &TrafficCounter) -> Option<f64> {
        let sum = self.counters.get(of.slot).filter(|c| c.share > 0.0)?;
        Some(sum.total? as f64 * of.each as f64 / sum.share)
    }
}

/// Names of the counters that ratios are made of, both as users request them and as PMUs name them.
const CYCLES: [&str; 2] = ["cycles", "cpu-cycles"];
const INSTRUCTIONS: [&str; 2] = ["instructions", "inst-retired"];
const STALLED: [&str; 2] = ["stalled-cycles-backend", "stall-backend"];

/// Counters of bytes between the last caches and memory, best first: those that see every level's misses, then those of
/// nearer caches, which also count what another cache holds.
const TRAFFIC: [&str; 8] = [
    "ll-cache-miss",
    "l3d-cache-refill",
    "ll-cache-miss-rd",
    "l3d-cache-refill-rd",
    "l2d-cache-refill",
    "l2d-cache-refill-rd",
    "l1d-cache-refill",
    "l1d-cache-refill-rd",
];
/// Counters of missed lines that have no size in the trace; their size is known on x86-64, where every processor has
/// lines of 64 bytes.
const MISSES: [&str; 2] = ["cache-misses", "llc-load-misses"];
const X86_LINE: u64 = 64;

/// The counter that shows the memory traffic of an op.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficCounter {
    slot: usize,
    /// As it is called in views: `l3d_cache_refill`, `cache-misses x 64 bytes`.
    pub name: String,
    /// Bytes of each unit of its total.
    each: u64,
}

/// The best counter of memory traffic in this list; `None` if none was counted. `arch` is the machine's, as `uname -m`
/// names it.
pub fn traffic(facts: &[CounterFacts], arch: &str) -> Option<TrafficCounter> {
    let counted = |names: &[&str], bytes: bool| {
        let called = |f: &CounterFacts, name: &str| f.name.to_lowercase().replace('_', "-") == name;
        let is = |f: &CounterFacts, name: &str| {
            called(f, name) && f.state != "none" && (f.unit == "bytes") == bytes
        };
        names.iter().find_map(|name| facts.iter().position(|f| is(f, name)))
    };
    let named = |slot: usize| facts.get(slot).map(|f| f.name.clone());
    if let Some(slot) = counted(&TRAFFIC, true) {
        return Some(TrafficCounter { slot, name: named(slot)?, each: 1 });
    }
    let slot = counted(&MISSES, false).filter(|_| arch == "x86_64")?;
    Some(TrafficCounter { slot, name: format!("{} x {X86_LINE} bytes", named(slot)?), each: X86_LINE })
}

/// Slots of the two counters of a ratio: numerator and denominator.
type Ratio = Option<(usize, usize)>;

/// Maximum number of counters in an OpCounts record.
const MAX: usize = 32;

/// The counters of a trace.
pub struct TraceCounters {
    facts: Vec<CounterFacts>,
    scale: Vec<u64>,
    /// Slot of each counter id.
    slots: [Option<usize>; MAX],
    /// Slots that count bytes.
    bytes: Vec<bool>,
    ipc: Ratio,
    stalled: Ratio,
}

/// Values of one slice, by slot.
pub type SlotValues = [Option<u64>];

/// Sums of one counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SlotSum {
    total: u64,
    /// Slices with a value.
    known: u64,
    /// Of calls in which every thread has a value.
    whole: u64,
    whole_ns: u64,
}

/// Sums of all counters over some slices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CounterSums {
    slices: u64,
    by_slot: Vec<SlotSum>,
    /// Numerator and denominator of [`TraceCounters::ipc`] and [`TraceCounters::stalled`], from slices that have both
    /// values.
    ipc: (u64, u64),
    stalled: (u64, u64),
}

impl TraceCounters {
    pub fn new(loaded: &Loaded<'_>) -> TraceCounters {
        let mut list: Vec<_> = loaded.causes.counters.iter().filter(|c| c.id < MAX as u32).collect();
        order::by_key(&mut list, |c| (c.id.into(), 0));
        let mut slots = [None; MAX];
        for (slot, c) in list.iter().enumerate() {
            if let Some(s) = slots.get_mut(c.id as usize) {
                *s = Some(slot);
            }
        }
        let named = |names: &[&str]| {
            list.iter().position(|c| names.contains(&c.name.to_lowercase().replace('_', "-").as_str()))
        };
        let cycles = named(&CYCLES);
        let facts = list
            .iter()
            .map(|c| CounterFacts {
                name: c.name.into(),
                unit: c.unit.into(),
                events: c.events.into(),
                state: state(c.state),
                why: c.why.into(),
                running_share: (c.enabled_ns > 0).then(|| c.running_ns as f64 / c.enabled_ns as f64),
            })
            .collect();
        TraceCounters {
            facts,
            scale: list.iter().map(|c| u64::from(c.scale.max(1))).collect(),
            bytes: list.iter().map(|c| c.unit == "bytes").collect(),
            slots,
            ipc: named(&INSTRUCTIONS).zip(cycles),
            stalled: named(&STALLED).zip(cycles),
        }
    }

    pub fn facts(&self) -> &[CounterFacts] {
        &self.facts
    }

    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// The slot of the counter requested under this name.
    pub fn slot(&self, name: &str) -> Option<usize> {
        self.facts.iter().position(|f| f.name == name)
    }

    /// Slots of the byte counters.
    pub fn byte_slots(&self) -> impl Iterator<Item = usize> {
        self.bytes.iter().enumerate().filter(|(_, b)| **b).map(|(slot, _)| slot)
    }

    /// A row's figures; `None` if no slice has a value of any counter.
    pub fn row(&self, sums: &CounterSums) -> Option<CounterRow> {
        let empty = SlotSum::default();
        let of = |slot: usize| sums.by_slot.get(slot).unwrap_or(&empty);
        if (0..self.facts.len()).all(|slot| of(slot).known == 0) {
            return None;
        }
        let one = |(slot, (facts, scale)): (usize, (&CounterFacts, &u64))| {
            let sum = of(slot);
            CounterSum {
                name: facts.name.clone(),
                total: (sum.known > 0).then(|| sum.total.saturating_mul(*scale)),
                share: sum.known as f64 / sums.slices.max(1) as f64,
                gb_per_s: (facts.unit == "bytes" && sum.whole_ns > 0)
                    .then(|| sum.whole as f64 * *scale as f64 / sum.whole_ns as f64),
            }
        };
        let ratio = |(part, whole): (u64, u64)| (whole > 0).then(|| part as f64 / whole as f64);
        Some(CounterRow {
            counters: self.facts.iter().zip(&self.scale).enumerate().map(one).collect(),
            ipc: ratio(sums.ipc),
            stalled_share: ratio(sums.stalled),
        })
    }
}

impl CounterSums {
    /// Adds a slice; `None` means it has no record.
    pub fn slice(&mut self, counters: &TraceCounters, values: Option<&SlotValues>) {
        self.slices += 1;
        let Some(values) = values else { return };
        self.by_slot.resize(counters.facts.len(), SlotSum::default());
        for (sum, value) in self.by_slot.iter_mut().zip(values) {
            if let Some(value) = value {
                sum.total = sum.total.saturating_add(*value);
                sum.known += 1;
            }
        }
        let both = |ratio: Ratio| {
            let (part, whole) = ratio?;
            values.get(part).copied().flatten().zip(values.get(whole).copied().flatten())
        };
        for (to, ratio) in [(&mut self.ipc, counters.ipc), (&mut self.stalled, counters.stalled)] {
            if let Some((part, whole)) = both(ratio) {
                *to = (to.0.saturating_add(part), to.1.saturating_add(whole));
            }
        }
    }

    /// Adds what all threads of a call counted in a slot, and how long the call took.
    pub fn call(&mut self, slot: usize, count: u64, ns: u64) {
        if let Some(sum) = self.by_slot.get_mut(slot) {
            sum.whole = sum.whole.saturating_add(count);
            sum.whole_ns = sum.whole_ns.saturating_add(ns);
        }
    }

    pub fn merge(&mut self, o: &CounterSums) {
        self.slices += o.slices;
        if self.by_slot.len() < o.by_slot.len() {
            self.by_slot.resize(o.by_slot.len(), SlotSum::default());
        }
        for (to, from) in self.by_slot.iter_mut().zip(&o.by_slot) {
            to.total = to.total.saturating_add(from.total);
            to.known += from.known;
            to.whole = to.whole.saturating_add(from.whole);
            to.whole_ns = to.whole_ns.saturating_add(from.whole_ns);
        }
        for (to, from) in [(&mut self.ipc, o.ipc), (&mut self.stalled, o.stalled)] {
            *to = (to.0.saturating_add(from.0), to.1.saturating_add(from.1));
        }
    }
}

/// Yields the values of a thread's slices in the order of their positions.
#[derive(Default)]
pub struct ThreadValues<'c, 'a> {
    /// Records of one graph, plan and thread by position.
    rest: &'c [OpCounts<'a>],
    /// Counts of the first of `rest` once it is read, and the slot of each count of a slice. The slot is `None`
    /// if the trace does not define the counter; its count is then ignored.
    open: Vec<Option<u64>>,
    slots: Vec<Option<usize>>,
    read: bool,
    values: Vec<Option<u64>>,
}

impl<'c, 'a> ThreadValues<'c, 'a> {
    /// Continues with these records.
    pub fn of(&mut self, records: &'c [OpCounts<'a>]) {
        self.rest = records;
        self.read = false;
    }

    /// The values at position `at`, which never decreases.
    pub fn at(&mut self, counters: &TraceCounters, at: u32) -> Option<&SlotValues> {
        while self.rest.first().is_some_and(|r| r.first.saturating_add(r.n) <= at) {
            self.rest = self.rest.split_first_chunk::<1>().map_or(&[], |(_, rest)| rest);
            self.read = false;
        }
        let record = self.rest.first().filter(|r| r.first <= at)?;
        if !self.read {
            self.read = true;
            self.open.clear();
            self.open.extend(counts(record));
            self.slots.clear();
            let told = counters.slots.iter().enumerate().filter(|(id, _)| record.counters >> id & 1 != 0);
            self.slots.extend(told.map(|(_, slot)| *slot));
            self.values.clear();
            self.values.resize(counters.facts.len(), None);
        }
        let each = self.slots.len();
        let from = (at - record.first) as usize * each;
        let told = self.open.get(from..from.checked_add(each)?)?;
        for (slot, value) in self.slots.iter().zip(told) {
            if let Some(to) = slot.and_then(|slot| self.values.get_mut(slot)) {
                *to = *value;
            }
        }
        Some(&self.values)
    }
}
