//! Values that change over the time of a run: sensors, memory and CPU time of processes, tokens per second, counter rates.

use crate::recorded::calls::Timeline;
use crate::recorded::load::Loaded;
use crate::streams::lanes::Select;
use crate::sums::usage;
use common::order;
use pfi::record::{Sensor, SensorKind, Usage};
use pfi::{counts, sensor_values};

/// A value over time; each value holds until the next one.
#[derive(Debug, Clone, PartialEq)]
pub struct GaugeSeries {
    pub name: String,
    pub unit: String,
    /// The process it belongs to; none: the machine.
    pub pid: Option<u32>,
    /// In time order (CLOCK_MONOTONIC, ns).
    pub values: Vec<(i64, f64)>,
}

/// A value from `t` to `end`, with no value after that.
struct ValueSpan {
    pid: u32,
    t: i64,
    end: i64,
    value: f64,
}

/// All gauges of the run that have values.
pub fn gauges(loaded: &Loaded<'_>, line: &Timeline, select: &Select) -> Vec<GaugeSeries> {
    let sensors = loaded.causes.sensors.iter().map(|s| sensor(loaded, s, select));
    let mut all: Vec<GaugeSeries> = sensors.filter(|g| !g.values.is_empty()).collect();
    let calls = line.calls.iter().filter(|c| !c.cut && c.dur > 0 && select.has(c.pid, c.start));
    let calls = calls.filter_map(|c| {
        let value = c.tokens? as f64 * 1e9 / c.dur as f64;
        Some(ValueSpan { pid: c.pid, t: c.start, end: c.end(), value })
    });
    all.extend(of_processes("tok/s", "tok/s", calls.collect()));
    all.extend(uses(loaded, select));
    all.extend(counter_rates(loaded, select));
    all
}

/// One gauge for each process; it is zero between the spans.
fn of_processes(name: &str, unit: &str, mut spans: Vec<ValueSpan>) -> Vec<GaugeSeries> {
    order::by_key(&mut spans, |s| (s.pid.into(), order::time(s.t)));
    let of_one = |same: &[ValueSpan]| {
        let mut values: Vec<(i64, f64)> = same.iter().flat_map(|s| [(s.t, s.value), (s.end, 0.0)]).collect();
        order::by_key(&mut values, |v| (order::time(v.0), 0));
        GaugeSeries { name: name.into(), unit: unit.into(), pid: same.first().map(|s| s.pid), values }
    };
    spans.chunk_by(|a, b| a.pid == b.pid).map(of_one).collect()
}

fn sensor(loaded: &Loaded<'_>, s: &Sensor<'_>, select: &Select) -> GaugeSeries {
    let (unit, scale, what) = match s.kind {
        SensorKind::Power => ("W", 1e-6, "power"),
        SensorKind::Energy => ("W", 1e3, "power (from energy)"),
        SensorKind::Frequency => ("MHz", 1e-3, "frequency"),
        SensorKind::Temperature => ("°C", 1e-3, "temperature"),
        SensorKind::Current => ("mA", 1e-3, "current"),
        SensorKind::Cooling => ("", 1.0, "cooling"),
        // µs per ns.
        SensorKind::Pressure => ("%", 1e5, "share of time"),
    };
    let one = |sample: &pfi::record::SensorSample<'_>| {
        let value = sensor_values(sample).find(|(id, _)| *id == s.id)?.1;
        Some((sample.t, value as f64))
    };
    let mut values: Vec<(i64, f64)> = loaded.causes.samples.iter().filter_map(one).collect();
    order::by_key(&mut values, |v| (order::time(v.0), 0));
    if matches!(s.kind, SensorKind::Energy | SensorKind::Pressure) {
        // A running total: its increase gives the power, or the share, in between. A decrease is ignored.
        let grown = values.windows(2).filter_map(|w| match w {
            [(t, a), (u, b)] if u > t && b >= a => Some((*t, (b - a) / t.abs_diff(*u) as f64)),
            _ => None,
        });
        values = grown.collect();
    }
    values.retain(|(t, _)| select.from <= *t && *t < select.to);
    values.iter_mut().for_each(|v| v.1 *= scale);
    let cpus = if s.cpus.is_empty() { String::new() } else { format!(" (CPU {})", s.cpus) };
    GaugeSeries { name: format!("{what} {}{cpus}", s.name), unit: unit.into(), pid: None, values }
}

/// What each process held and used.
fn uses(loaded: &Loaded<'_>, select: &Select) -> Vec<GaugeSeries> {
    let mut all = Vec::new();
    for (pid, samples) in usage::by_process(loaded) {
        let samples: Vec<&Usage> = samples.into_iter().filter(|r| select.has(pid, r.t)).collect();
        let memory = |of: fn(&Usage) -> Option<u64>| {
            samples.iter().filter_map(|r| Some((r.t, of(r)? as f64 / 1e6))).collect::<Vec<_>>()
        };
        let rate = |of: fn(&Usage) -> Option<u64>, per_ns: f64| {
            let grown = |w: &[&Usage]| {
                let &[a, b] = w else { return None };
                let more = of(b)?.checked_sub(of(a)?)?;
                (b.t > a.t).then(|| (a.t, more as f64 * per_ns / a.t.abs_diff(b.t) as f64))
            };
            samples.windows(2).filter_map(grown).collect()
        };
        let series = [
            ("memory, its own", "MB", memory(|r| r.anonymous)),
            ("memory, of files", "MB", memory(|r| r.files)),
            ("memory, swapped out", "MB", memory(|r| r.swapped.filter(|n| *n > 0))),
            ("CPUs in use", "CPUs", rate(|r| r.cpu_us, 1e3)),
            ("wake-ups/s", "1/s", rate(|r| r.yields, 1e9)),
        ];
        let series = series.into_iter().filter(|(.., values)| values.len() > 1);
        all.extend(series.map(|(name, unit, values)| GaugeSeries {
            name: name.into(),
            unit: unit.into(),
            pid: Some(pid),
            values,
        }));
    }
    all
}

/// Counts per second of each CPU graph, over all threads. Uncounted ops are not part of the rate.
fn counter_rates(loaded: &Loaded<'_>, select: &Select) -> Vec<GaugeSeries> {
    let graphs = &loaded.cpu_graphs;
    let mut index: Vec<(u64, u64)> = graphs.iter().zip(0..).map(|(g, i)| (g.seq, i)).collect();
    order::by_key(&mut index, |g| *g);
    let ids: Vec<u32> = loaded.causes.counters.iter().map(|c| c.id).collect();
    // By graph and counter; the maximum value means no count.
    let mut sums = vec![u64::MAX; graphs.len().saturating_mul(ids.len())];
    for r in &loaded.causes.counts {
        let at = index.partition_point(|g| g.0 < r.graph);
        let Some((_, graph)) = index.get(at).filter(|g| g.0 == r.graph) else { continue };
        let told = || (0..32).filter(|id| r.counters >> id & 1 != 0);
        let slots: Vec<Option<usize>> = told().map(|id| ids.iter().position(|known| *known == id)).collect();
        for (slot, value) in slots.iter().cycle().zip(counts(r)) {
            let (Some(slot), Some(value)) = (slot, value) else { continue };
            if let Some(sum) = sums.get_mut(*graph as usize * ids.len() + slot) {
                *sum = if *sum == u64::MAX { value } else { sum.saturating_add(value) };
            }
        }
    }
    let mut all = Vec::new();
    for (slot, c) in loaded.causes.counters.iter().enumerate() {
        let mut spans = Vec::new();
        for (i, g) in graphs.iter().enumerate().filter(|(_, g)| g.dur > 0 && select.has(g.pid, g.t)) {
            let sum = sums.get(i * ids.len() + slot).filter(|sum| **sum != u64::MAX);
            let value = sum.map(|sum| *sum as f64 * f64::from(c.scale.max(1)) * 1e9 / g.dur as f64);
            let end = g.t.saturating_add_unsigned(g.dur);
            spans.extend(value.map(|value| ValueSpan { pid: g.pid, t: g.t, end, value }));
        }
        all.extend(of_processes(&format!("{}/s", c.name), &format!("{}/s", c.unit), spans));
    }
    all
}
