//! Power, energy, frequency and temperature per phase.
//!
//! Between two samples, power is interpolated linearly and an energy counter is taken to grow evenly. When a
//! sensor is silent for long, nothing is assumed: that time is not covered.

use std::collections::HashMap;

use serde::Serialize;

use crate::calls::{Phase, Timeline};
use crate::load::Loaded;
use common::order;
use pfi::record::{Sensor, SensorKind};
use pfi::sensor_values;

/// Sensor figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EnergyReport {
    /// Power or energy sources; empty if none.
    pub sources: Vec<SourceRow>,
    /// Frequencies and temperatures.
    pub gauges: Vec<GaugeRow>,
}

/// A power or energy source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceRow {
    pub name: String,
    /// `power`, or `energy` for a counter.
    pub kind: &'static str,
    pub path: String,
    /// Shortest interval between changes of its value, ns; null if not known.
    pub interval_ns: Option<u64>,
    pub samples: u64,
    /// Samples left out: more than twenty times the median, negative, or of a counter that went backwards.
    pub odd_samples: u64,
    /// How often the sensor was silent, and for how long in total.
    pub gaps: u64,
    pub gaps_ns: u64,
    /// Over all covered time.
    pub joules: f64,
    pub covered_ns: u64,
    pub phases: Vec<PhaseEnergy>,
}

/// Energy of the calls of a phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseEnergy {
    pub phase: Phase,
    /// Over the covered time; and the share of the calls' time that is covered.
    pub joules: f64,
    pub covered: f64,
    pub watts: Option<f64>,
    /// Extrapolated as if the uncovered time were like the rest; null if less than half is covered.
    pub joules_per_token: Option<f64>,
}

/// A frequency (kHz) or a temperature (thousandths of a degree Celsius).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GaugeRow {
    pub name: String,
    pub kind: &'static str,
    pub cpus: String,
    pub phases: Vec<GaugePhase>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GaugePhase {
    pub phase: Phase,
    /// Over the calls' time.
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

/// A value more than this many times the median is discarded.
const ODD: f64 = 20.0;
/// A sensor is silent after this many times its usual sampling interval or its own interval, whichever is longer.
const SILENT: u64 = 10;
/// Share of a phase's time that must be covered to report joules per token.
const ENOUGH: f64 = 0.5;

/// From one sample to the next; values in the sensor's unit per second (energy: W).
#[derive(Debug, Clone, Copy, PartialEq)]
struct SampleInterval {
    from: i64,
    to: i64,
    start: f64,
    end: f64,
}

/// A sensor's values over time.
#[derive(Debug, Default, PartialEq)]
struct Track {
    pieces: Vec<SampleInterval>,
    odd: u64,
    gaps: u64,
    gaps_ns: u64,
}

impl SampleInterval {
    fn at(&self, t: i64) -> f64 {
        let whole = self.from.abs_diff(self.to).max(1) as f64;
        self.start + (self.end - self.start) * self.from.abs_diff(t) as f64 / whole
    }
}

fn median(mut values: Vec<u64>) -> Option<u64> {
    order::by_key(&mut values, |v| (*v, 0));
    values.get(values.len() / 2).copied()
}

impl Track {
    /// From samples in time order.
    fn new(samples: &[(i64, i64)], sensor: &Sensor<'_>) -> Track {
        let mut track = Track::default();
        let counter = sensor.kind == SensorKind::Energy;
        let power = sensor.kind == SensorKind::Power;
        let values = samples.iter().filter_map(|(_, v)| u64::try_from(*v).ok()).filter(|v| *v > 0).collect();
        let limit = median(values).map_or(f64::INFINITY, |m| m as f64 * ODD);
        let fits = |v: i64| !power || (v >= 0 && v as f64 <= limit);
        let kept: Vec<(i64, i64)> = samples.iter().copied().filter(|(_, v)| fits(*v)).collect();
        track.odd = (samples.len() - kept.len()) as u64;
        let pauses = kept.windows(2).filter_map(|w| Some(w.first()?.0.abs_diff(w.last()?.0))).collect();
        let usual = median(pauses).unwrap_or(0).max(sensor.interval_ns);
        for w in kept.windows(2) {
            let &[(from, a), (to, b)] = w else { continue };
            let pause = from.abs_diff(to);
            if pause == 0 {
                continue;
            }
            if pause > usual.saturating_mul(SILENT) {
                track.gaps += 1;
                track.gaps_ns = track.gaps_ns.saturating_add(pause);
                continue;
            }
            if !counter {
                track.pieces.push(SampleInterval { from, to, start: a as f64, end: b as f64 });
            } else if b >= a {
                // µJ over ns, in W.
                let watts = a.abs_diff(b) as f64 / pause as f64 * 1e3;
                track.pieces.push(SampleInterval { from, to, start: watts, end: watts });
            } else {
                track.odd += 1;
            }
        }
        if counter {
            // Positive floats sort like their bits.
            let all = track.pieces.iter().map(|p| p.start).filter(|w| *w > 0.0).map(f64::to_bits).collect();
            let limit = median(all).map_or(f64::INFINITY, |m| f64::from_bits(m) * ODD);
            let before = track.pieces.len();
            track.pieces.retain(|p| p.start <= limit);
            track.odd += (before - track.pieces.len()) as u64;
        }
        track
    }

    /// Integral over a time range (value times ns), its covered part (ns), and the minimum and maximum value.
    fn over(&self, from: i64, to: i64, sum: &mut SensorIntegral) {
        let first = self.pieces.partition_point(|p| p.to <= from);
        for p in self.pieces.get(first..).unwrap_or_default() {
            let (a, b) = (p.from.max(from), p.to.min(to));
            if a >= b {
                break;
            }
            let (start, end) = (p.at(a), p.at(b));
            sum.integral += (start + end) / 2.0 * a.abs_diff(b) as f64;
            sum.covered = sum.covered.saturating_add(a.abs_diff(b));
            sum.min = sum.min.min(start.min(end));
            sum.max = sum.max.max(start.max(end));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct SensorIntegral {
    integral: f64,
    covered: u64,
    min: f64,
    max: f64,
}

impl Default for SensorIntegral {
    fn default() -> SensorIntegral {
        SensorIntegral { integral: 0.0, covered: 0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

/// Energy figures; `None` if no sensor was requested.
pub fn energy(loaded: &Loaded<'_>, line: &Timeline) -> Option<EnergyReport> {
    let causes = &loaded.causes;
    if causes.sensors.is_empty() && causes.features.iter().all(|f| f.name != "sensors") {
        return None;
    }
    let mut samples: HashMap<u32, Vec<(i64, i64)>> = HashMap::new();
    for s in &causes.samples {
        sensor_values(s).for_each(|(id, value)| samples.entry(id).or_default().push((s.t, value)));
    }
    let mut report = EnergyReport { sources: Vec::new(), gauges: Vec::new() };
    for sensor in &causes.sensors {
        let mut of = samples.remove(&sensor.id).unwrap_or_default();
        order::by_key(&mut of, |(t, _)| (order::time(*t), 0));
        let track = Track::new(&of, sensor);
        match sensor.kind {
            SensorKind::Power | SensorKind::Energy => {
                report.sources.push(source(sensor, &track, of.len() as u64, line));
            }
            SensorKind::Frequency => report.gauges.push(gauge(sensor, "frequency", &track, line)),
            SensorKind::Temperature => report.gauges.push(gauge(sensor, "temperature", &track, line)),
        }
    }
    Some(report)
}

/// A track over the complete calls of a phase, with their time and tokens.
fn over_phase(track: &Track, line: &Timeline, phase: Phase) -> Option<(SensorIntegral, u64, Option<u64>)> {
    let mut sum = SensorIntegral::default();
    let (mut ns, mut tokens, mut any) = (0u64, Some(0u64), false);
    for c in line.calls.iter().filter(|c| c.phase == phase && !c.cut) {
        any = true;
        ns = ns.saturating_add(c.dur);
        tokens = tokens.zip(c.tokens).map(|(a, b)| a.saturating_add(b));
        track.over(c.start, c.end(), &mut sum);
    }
    any.then_some((sum, ns, tokens))
}

fn source(sensor: &Sensor<'_>, track: &Track, samples: u64, line: &Timeline) -> SourceRow {
    // Power is in µW, which times ns is 1e-15 J; the pieces of a counter are in W.
    let joule = if sensor.kind == SensorKind::Power { 1e-15 } else { 1e-9 };
    let phase = |phase: &Phase| {
        let (sum, ns, tokens) = over_phase(track, line, *phase)?;
        let joules = sum.integral * joule;
        let covered = if ns == 0 { 0.0 } else { sum.covered as f64 / ns as f64 };
        let tokens = tokens.filter(|n| *n > 0 && covered >= ENOUGH);
        Some(PhaseEnergy {
            phase: *phase,
            joules,
            covered,
            watts: (sum.covered > 0).then(|| joules * 1e9 / sum.covered as f64),
            joules_per_token: tokens.map(|n| joules / covered / n as f64),
        })
    };
    let mut all = SensorIntegral::default();
    track.over(i64::MIN, i64::MAX, &mut all);
    SourceRow {
        name: sensor.name.into(),
        kind: if sensor.kind == SensorKind::Power { "power" } else { "energy" },
        path: sensor.path.into(),
        interval_ns: (sensor.interval_ns > 0).then_some(sensor.interval_ns),
        samples,
        odd_samples: track.odd,
        gaps: track.gaps,
        gaps_ns: track.gaps_ns,
        joules: all.integral * joule,
        covered_ns: all.covered,
        phases: Phase::ALL.iter().filter_map(phase).collect(),
    }
}

fn gauge(sensor: &Sensor<'_>, kind: &'static str, track: &Track, line: &Timeline) -> GaugeRow {
    let phase = |phase: &Phase| {
        let (sum, ..) = over_phase(track, line, *phase)?;
        (sum.covered > 0).then(|| GaugePhase {
            phase: *phase,
            mean: sum.integral / sum.covered as f64,
            min: sum.min,
            max: sum.max,
        })
    };
    let phases = Phase::ALL.iter().filter_map(phase).collect();
    GaugeRow { name: sensor.name.into(), kind, cpus: sensor.cpus.into(), phases }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sensor(kind: SensorKind) -> Sensor<'static> {
        Sensor { id: 1, name: "x", kind, path: "", interval_ns: 0, cpus: "" }
    }

    fn over(track: &Track, from: i64, to: i64) -> (f64, u64) {
        let mut sum = SensorIntegral::default();
        track.over(from, to, &mut sum);
        (sum.integral, sum.covered)
    }

    #[test]
    fn power_runs_in_a_straight_line() {
        let track = Track::new(&[(0, 10), (100, 30), (200, 30)], &sensor(SensorKind::Power));
        assert_eq!(over(&track, 0, 200), (20.0 * 100.0 + 30.0 * 100.0, 200));
        // From 15 at 25 to 25 at 75.
        assert_eq!(over(&track, 25, 75), (20.0 * 50.0, 50));
        assert_eq!(over(&track, 150, 999), (30.0 * 50.0, 50));
        assert_eq!(over(&track, 300, 400), (0.0, 0));
    }

    #[test]
    fn a_counter_of_energy_is_its_differences() {
        let track = Track::new(&[(0, 5_000_000), (1_000_000_000, 7_000_000)], &sensor(SensorKind::Energy));
        // 2 J in one second.
        assert_eq!(over(&track, 0, 500_000_000), (2.0 * 5e8, 500_000_000));
    }

    #[test]
    fn jumps_and_silence_are_told_and_left_out() {
        let mut samples: Vec<(i64, i64)> = (0..20).map(|i| (i * 10, 100)).collect();
        samples[5].1 = 1_000_000;
        samples[9].1 = -4;
        samples.push((1000, 100));
        let track = Track::new(&samples, &sensor(SensorKind::Power));
        assert_eq!((track.odd, track.gaps, track.gaps_ns), (2, 1, 810));
        assert_eq!(over(&track, 0, 1000), (100.0 * 190.0, 190));
        // A counter that restarts, and one that jumps.
        let counter: Vec<(i64, i64)> =
            [0, 10, 20, 0, 10, 9000, 9010].iter().zip(0..).map(|(v, t)| (t * 10, *v)).collect();
        let track = Track::new(&counter, &sensor(SensorKind::Energy));
        assert_eq!((track.odd, track.pieces.len()), (2, 4));
        assert_eq!(Track::new(&[(5, 1)], &sensor(SensorKind::Power)), Track::default());
    }
}
