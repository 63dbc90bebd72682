//! Times of a split's nodes on a Vulkan device, from the timestamps that the engine itself takes (ggml-vulkan with
//! GGML_VK_PERF_LOGGER): one before the first node, and one after each node, or group of fused nodes, that it enqueues. It
//! fetches them once a graph. Allocates only when created, and for new processes and devices.

use std::collections::HashMap;
use std::io::Write;

use crate::capture::event::{self, TICKS_CHUNK};
use pfi::record::KernelSource;
use pfi::{Encoder, KernelRun, KernelTimes, WriteError};

/// Timestamps of one fetch, at most: as many as BPF sends.
const MOST: usize = 100 * TICKS_CHUNK;
/// Threads that fetch at the same time.
const THREADS: usize = 4;
/// Kernels of one record.
const RECORD: usize = 256;
/// How fast two clocks of one machine may drift apart: 100 ppm, more than oscillators do.
const DRIFT: i64 = 10_000;

/// Why the nodes of a split have no times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untimed {
    Count,
    Twice,
    Unread,
    NoPeriod,
    Periods,
    Misfit,
}

impl Untimed {
    pub const KINDS: usize = 6;
    pub const TEXTS: [&str; Self::KINDS] = [
        "the engine took another number of timestamps than it enqueued groups of nodes",
        "the engine fetched timestamps more than once in a graph",
        "not all timestamps of a graph could be read",
        "the engine queried the device's timestampPeriod before the recording began: record it from its start",
        "devices of the engine have ticks of different lengths",
        "the timestamps span more than the call in which they were taken",
    ];
}

/// Length of a tick, as devices of a process tell it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Period {
    Known(f32),
    Several,
}

/// Between which values the offset lies that maps a device's time to the host's, ns, and when that was found out.
#[derive(Debug, Clone, Copy)]
struct OffsetRange {
    low: i64,
    high: i64,
    at: i64,
}

/// What a thread has fetched during the call of a split.
struct Fetch {
    tid: u32,
    split: u64,
    device: u64,
    fetches: u32,
    total: u32,
    end: u64,
    ticks: Vec<u64>,
}

/// A split that has returned.
#[derive(Debug, Clone, Copy)]
pub struct TimedSplit {
    pub tgid: u32,
    pub tid: u32,
    pub seq: u64,
    pub start: u64,
}

/// Timestamps that were fetched.
pub struct DeviceTicks {
    fetches: Vec<Fetch>,
    periods: HashMap<u32, Period>,
    offsets: HashMap<(u32, u64), OffsetRange>,
    times: Vec<KernelTimes>,
}

impl Default for DeviceTicks {
    fn default() -> Self {
        let fetch = || Fetch {
            tid: 0,
            split: u64::MAX,
            device: 0,
            fetches: 0,
            total: 0,
            end: 0,
            ticks: Vec::with_capacity(MOST),
        };
        DeviceTicks {
            fetches: (0..THREADS).map(|_| fetch()).collect(),
            periods: HashMap::new(),
            offsets: HashMap::new(),
            times: Vec::with_capacity(RECORD),
        }
    }
}

impl DeviceTicks {
    /// Timestamps were fetched during the call of a split, or the length of a tick was told.
    pub fn event(&mut self, e: &event::Ticks, split: Option<u64>) {
        if e.total == 0 {
            let ns = f32::from_bits(e.period);
            if ns.is_finite() && ns > 0.0 {
                let known = self.periods.entry(e.h.tgid).or_insert(Period::Known(ns));
                if *known != Period::Known(ns) {
                    *known = Period::Several;
                }
            }
            return;
        }
        let Some(split) = split else { return };
        let own = self.fetches.iter().position(|f| (f.tid, f.split) == (e.h.tid, split));
        // A split that never returned makes room.
        let free = || self.fetches.iter().position(|f| f.tid == e.h.tid || f.fetches == 0);
        let Some(fetch) = own.or_else(free).and_then(|i| self.fetches.get_mut(i)) else { return };
        if own.is_none() {
            (fetch.tid, fetch.split, fetch.fetches) = (e.h.tid, split, 0);
        }
        if e.first == 0 {
            fetch.fetches = fetch.fetches.saturating_add(1);
            (fetch.device, fetch.total) = (e.device, e.total);
            fetch.ticks.clear();
        }
        let n = (e.n as usize).min(e.tick.len());
        // After a lost event the rest does not count.
        if fetch.ticks.len() == e.first as usize && fetch.ticks.len() + n <= MOST {
            fetch.ticks.extend_from_slice(e.tick.get(..n).unwrap_or_default());
            fetch.end = e.h.ts;
        }
    }

    /// A split has returned, during which the host began to enqueue its groups of nodes at these times. Writes the times
    /// of the groups on the device, or returns why there are none. `None`: nothing was fetched.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn write<W: Write>(
        &mut self,
        split: TimedSplit,
        groups: impl ExactSizeIterator<Item = u64> + Clone,
        enc: &mut Encoder<W>,
    ) -> Result<Option<Result<(), Untimed>>, WriteError> {
        let TimedSplit { tgid, tid, seq, start } = split;
        let own = |f: &&mut Fetch| (f.tid, f.split) == (tid, seq) && f.fetches > 0;
        let Some(fetch) = self.fetches.iter_mut().find(own) else { return Ok(None) };
        let fetches = fetch.leave();
        let why = match (fetches, self.periods.get(&tgid)) {
            (2.., _) => Untimed::Twice,
            _ if fetch.ticks.len() != fetch.total as usize => Untimed::Unread,
            _ if fetch.ticks.len() != groups.len().saturating_add(1) => Untimed::Count,
            (_, None) => Untimed::NoPeriod,
            (_, Some(Period::Several)) => Untimed::Periods,
            (_, Some(Period::Known(period))) => {
                let device = DeviceSpan { ticks: &fetch.ticks, period: f64::from(*period) };
                let Some(range) = device.offset((start, fetch.end), groups.clone()) else {
                    return Ok(Some(Err(Untimed::Misfit)));
                };
                let known = self.offsets.entry((tgid, fetch.device)).or_insert(range);
                *known = known.then(range);
                let run = KernelRun {
                    pid: tgid,
                    tid,
                    source: KernelSource::VulkanLogger,
                    queue: fetch.device,
                    error_ns: known.high.saturating_sub(known.low).max(0).cast_unsigned(),
                };
                let offset = known.high;
                self.times.clear();
                for (host, (started, ended)) in groups.zip(device.times(offset)) {
                    if self.times.len() == RECORD {
                        enc.device_kernels(&run, &self.times)?;
                        self.times.clear();
                    }
                    // When it was queued and submitted is not known: not before the host began to enqueue it.
                    let (queued, submitted) = (host, host);
                    self.times.push(KernelTimes { name: 0, host, queued, submitted, started, ended });
                }
                enc.device_kernels(&run, &self.times)?;
                return Ok(Some(Ok(())));
            }
        };
        Ok(Some(Err(why)))
    }

    /// A split has returned whose times come from elsewhere.
    pub fn discard(&mut self, split: &TimedSplit) {
        let own = |f: &&mut Fetch| (f.tid, f.split) == (split.tid, split.seq);
        for fetch in self.fetches.iter_mut().filter(own) {
            fetch.leave();
        }
    }

    /// A process has ended: another one may get its number.
    pub fn forget(&mut self, tgid: u32) {
        self.periods.remove(&tgid);
        self.offsets.retain(|(of, _), _| *of != tgid);
    }
}

impl Fetch {
    /// Makes room for another split; returns how often this one fetched.
    fn leave(&mut self) -> u32 {
        self.split = u64::MAX;
        std::mem::take(&mut self.fetches)
    }
}

impl OffsetRange {
    /// What is known together with a later range. If they contradict each other, the clock was set: the later one counts.
    fn then(self, later: OffsetRange) -> OffsetRange {
        let drift = later.at.saturating_sub(self.at).max(0) / DRIFT;
        let low = later.low.max(self.low.saturating_sub(drift));
        let high = later.high.min(self.high.saturating_add(drift));
        if low <= high { OffsetRange { low, high, at: later.at } } else { later }
    }
}

/// The timestamps of a graph.
struct DeviceSpan<'t> {
    ticks: &'t [u64],
    period: f64,
}

impl DeviceSpan<'_> {
    /// A timestamp in ns of the device's time. Counters of fewer than 64 bits begin anew at zero: a timestamp that is
    /// earlier than the first gives no time.
    fn ns(&self) -> impl Iterator<Item = Option<i64>> {
        let first = self.ticks.first().copied().unwrap_or_default();
        let base = (u128::from(first) as f64 * self.period) as i64;
        // Differences are short enough to be exact.
        let since = move |tick: &u64| tick.checked_sub(first).map(|d| (d as f64 * self.period) as i64);
        self.ticks.iter().map(move |tick| base.checked_add(since(tick)?))
    }

    /// The offset to the host's time. The first timestamp is not before the call, and the last one not after the fetch
    /// has returned; and no group ends on the device before the host enqueues it.
    fn offset(&self, (start, end): (u64, u64), groups: impl Iterator<Item = u64>) -> Option<OffsetRange> {
        let (mut low, mut last) = (i64::MIN, 0);
        let hosts = std::iter::once(start).chain(groups);
        let mut before = i64::MIN;
        for (host, ns) in hosts.zip(self.ns()) {
            let ns = ns.filter(|ns| *ns >= before)?;
            low = low.max(host.cast_signed().saturating_sub(ns));
            (before, last) = (ns, ns);
        }
        let (high, at) = (end.cast_signed().saturating_sub(last), end.cast_signed());
        (low <= high).then_some(OffsetRange { low, high, at })
    }

    /// Start and end of each group, on the host's clock.
    fn times(&self, offset: i64) -> impl Iterator<Item = (u64, u64)> {
        let host =
            move |ns: Option<i64>| ns.unwrap_or_default().saturating_add(offset).max(0).cast_unsigned();
        let (starts, ends) = (self.ns(), self.ns().skip(1));
        starts.zip(ends).map(move |(start, end)| (host(start), host(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::event::Head;
    use crate::recorder::sample;
    use pfi::Trace;
    use pfi::record::Record;

    const SPLIT: TimedSplit = TimedSplit { tgid: 7, tid: 8, seq: 3, start: 1000 };

    fn period(ns: f32) -> event::Ticks {
        let h = Head { tgid: 7, tid: 8, ..Head::default() };
        event::Ticks { h, period: ns.to_bits(), ..Default::default() }
    }

    /// The events of a fetch that returned at 2000.
    fn fetched(ticks: &[u64]) -> Vec<event::Ticks> {
        let part = |(i, part): (usize, &[u64])| {
            let h = Head { ts: 2000, tgid: 7, tid: 8, ..Head::default() };
            let (total, first, n) = (ticks.len() as u32, (i * TICKS_CHUNK) as u32, part.len() as u32);
            let mut e = event::Ticks { h, device: 5, total, first, n, ..Default::default() };
            e.tick[..part.len()].copy_from_slice(part);
            e
        };
        ticks.chunks(TICKS_CHUNK).enumerate().map(part).collect()
    }

    /// What is found, start and end of each group, and the error.
    type Found = (Option<Result<(), Untimed>>, Vec<(u64, u64)>, u64);

    /// What is written after these events, for groups that were enqueued at these times.
    fn written(events: &[event::Ticks], groups: &[u64]) -> Found {
        let mut enc = Encoder::new(Vec::new(), Default::default(), &sample::HEADER).expect("written");
        let mut ticks = DeviceTicks::default();
        events.iter().for_each(|e| ticks.event(e, Some(SPLIT.seq)));
        let why = ticks.write(SPLIT, groups.iter().copied(), &mut enc).expect("written");
        assert_eq!(ticks.write(SPLIT, groups.iter().copied(), &mut enc).expect("written"), None, "only once");
        let trace = Trace::from_bytes(enc.finish(&sample::footer()).expect("written")).expect("a trace");
        let (mut times, mut error) = (Vec::new(), 0);
        for i in 0..trace.blocks().len() {
            for r in trace.block(i).expect("whole").records() {
                if let Record::DeviceKernels(k) = r.expect("a record") {
                    assert_eq!((k.source, k.tid, k.queue), (KernelSource::VulkanLogger, 8, 5));
                    let of = pfi::kernel_times(&k).map(|k| {
                        assert_eq!((k.host, k.host), (k.queued, k.submitted));
                        (k.started, k.ended)
                    });
                    times.extend(of);
                    error = k.error_ns;
                }
            }
        }
        (why, times, error)
    }

    fn known(ticks: &[u64]) -> Vec<event::Ticks> {
        [vec![period(2.0)], fetched(ticks)].concat()
    }

    #[test]
    fn an_interval_is_that_of_the_group_enqueued_in_its_place() {
        // Ticks of 2 ns: the last one is at the return of the fetch, or up to 800 ns earlier.
        let (why, times, error) = written(&known(&[500, 510, 560, 600]), &[1010, 1020, 1190]);
        assert_eq!((why, error), (Some(Ok(())), 800));
        assert_eq!(times, [(1800, 1820), (1820, 1920), (1920, 2000)]);
    }

    #[test]
    fn a_large_graph_comes_in_parts() {
        let ticks: Vec<u64> = (0..301).collect();
        let groups: Vec<u64> = (0..300).map(|i| 1000 + i).collect();
        let (why, times, _) = written(&known(&ticks), &groups);
        assert_eq!((why, times.len(), times[299]), (Some(Ok(())), 300, (1998, 2000)));
        // One part is lost.
        let mut events = known(&ticks);
        events.remove(3);
        assert_eq!(written(&events, &groups), (Some(Err(Untimed::Unread)), vec![], 0));
    }

    #[test]
    fn what_does_not_fit_gives_no_time() {
        let why = |events: &[event::Ticks], groups: &[u64]| {
            let (why, times, _) = written(events, groups);
            assert!(times.is_empty());
            why
        };
        let groups = [1010, 1020];
        assert_eq!(why(&known(&[1, 2, 3]), &[1010]), Some(Err(Untimed::Count)));
        assert_eq!(
            why(&[known(&[1, 2, 3]), fetched(&[1, 2, 3])].concat(), &groups),
            Some(Err(Untimed::Twice))
        );
        assert_eq!(why(&fetched(&[1, 2, 3]), &groups), Some(Err(Untimed::NoPeriod)));
        assert_eq!(
            why(&[vec![period(1.0)], known(&[1, 2, 3])].concat(), &groups),
            Some(Err(Untimed::Periods))
        );
        assert_eq!(why(&known(&[1, 2, 600]), &groups), Some(Err(Untimed::Misfit)), "longer than the call");
        assert_eq!(why(&known(&[5, 2, 6]), &groups), Some(Err(Untimed::Misfit)), "the counter wrapped");
        assert_eq!(why(&[], &groups), None, "nothing was fetched");
    }

    #[test]
    fn ranges_of_the_offset_are_narrowed_until_they_contradict() {
        let range = |low, high, at| OffsetRange { low, high, at };
        let all = |r: OffsetRange| (r.low, r.high);
        assert_eq!(all(range(10, 50, 0).then(range(20, 90, 0))), (20, 50));
        assert_eq!(all(range(10, 50, 0).then(range(0, 90, 100_000))), (0, 60), "drift");
        assert_eq!(all(range(10, 50, 0).then(range(70, 90, 0))), (70, 90));
    }
}
