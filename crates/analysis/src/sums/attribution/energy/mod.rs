//! Power, energy, frequency and temperature per phase. Each figure is of one named source.

mod primary;
mod track;

use std::collections::HashMap;

use serde::Serialize;

pub use self::primary::PrimaryEnergy;
use self::track::{OverPhase, SensorIntegral, Track};
use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::load::Loaded;
use crate::sums::usage::idle_times;
use common::order;
use pfi::record::{Availability, Sensor, SensorKind, SensorOrigin};
use pfi::sensor_values;

/// Sensor figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EnergyReport {
    /// What is not read, or read otherwise than documented, and why; null if there is nothing to say.
    pub remarks: Option<String>,
    /// The source for figures of one line; null if none knows the energy of a token.
    pub primary: Option<PrimaryEnergy>,
    /// Power or energy sources; empty if none.
    pub sources: Vec<SourceRow>,
    /// Frequencies, temperatures, cooling devices that did cool, and the share of time waited for a CPU.
    pub gauges: Vec<GaugeRow>,
}

/// A power or energy source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceRow {
    pub name: String,
    /// `power`, or `energy` for a counter.
    pub kind: &'static str,
    /// What it covers: `meter` (named by the user), `device` (the complete one), `estimate` (of that), `package`, `rail`,
    /// `model`, or `unknown`.
    pub origin: &'static str,
    #[serde(skip)]
    from: SensorOrigin,
    /// Computed by the kernel's Energy Model, not measured.
    pub model: bool,
    pub path: String,
    /// Shortest interval between changes of its value, ns; null if not known.
    pub interval_ns: Option<u64>,
    /// Time between two refreshes if that is longer than between two samples: this much of the beginning of a phase is
    /// not counted.
    pub refresh_ns: Option<u64>,
    /// It did not change during the recording, and cannot be trusted.
    pub stands_still: bool,
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
    /// While no call ran, see [`crate::sums::usage::IdleUse`]; omitted if there is no such time, or not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleEnergy>,
}

/// Energy of a time without calls, of which `covered_ns` is covered by samples of the sensor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IdleEnergy {
    pub joules: f64,
    pub covered_ns: u64,
    pub watts: f64,
}

/// Energy of the calls of a phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseEnergy {
    pub phase: Phase,
    /// Over the covered time; and the share of the calls' time that is covered.
    pub joules: f64,
    pub covered: f64,
    pub watts: Option<f64>,
    /// Extrapolated as if the uncovered time were like the rest; null if too little is covered, see `unknown`.
    pub joules_per_token: Option<f64>,
    /// The charge that a battery gave, uAh; null without a battery that tells its current.
    pub uah_per_token: Option<f64>,
    /// Why the energy of a token is not known; null if it is.
    pub unknown: Option<&'static str>,
}

/// A frequency (kHz), a temperature (thousandths of a degree Celsius), a cooling device's state, or pressure (the share of
/// time in which a task waited for a CPU).
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

/// Share of a phase's time that must be covered to report joules per token; of a slow sensor, which does not cover the
/// beginning of a phase, with at least one refresh interval.
const ENOUGH: f64 = 0.5;
const ENOUGH_SLOW: f64 = 0.25;
/// uA times ns in a uAh.
const UAH: f64 = 3.6e12;

/// Energy figures; `None` if no sensor was requested.
pub fn energy(loaded: &Loaded<'_>, line: &Timeline) -> Option<EnergyReport> {
    let causes = &loaded.causes;
    let said = causes.features.iter().find(|f| f.name == "sensors");
    if causes.sensors.is_empty() && said.is_none() {
        return None;
    }
    let mut samples = SensorSamples::new();
    for s in &causes.samples {
        sensor_values(s).for_each(|(id, value)| samples.entry(id).or_default().push((s.t, value)));
    }
    let mut report = of_samples(&causes.sensors, samples, line, &idle_times(loaded, line));
    report.remarks = said.filter(|f| f.state == Availability::Partly).map(|f| f.why.to_owned());
    Some(report)
}

/// The samples of each sensor, by its id: time and value.
pub type SensorSamples = HashMap<u32, Vec<(i64, i64)>>;

/// Energy figures of these calls, and of these times without calls, from samples, which may be of a part of a recording.
pub fn of_samples(
    sensors: &[Sensor<'_>],
    mut samples: SensorSamples,
    line: &Timeline,
    idle: &[(i64, i64)],
) -> EnergyReport {
    let tracks: Vec<(&Sensor<'_>, Track, u64)> = sensors
        .iter()
        .map(|sensor| {
            let mut of = samples.remove(&sensor.id).unwrap_or_default();
            order::by_key(&mut of, |(t, _)| (order::time(*t), 0));
            (sensor, Track::new(&of, sensor), of.len() as u64)
        })
        .collect();
    let mut report = EnergyReport { remarks: None, primary: None, sources: Vec::new(), gauges: Vec::new() };
    for (sensor, track, n) in &tracks {
        match sensor.kind {
            SensorKind::Power | SensorKind::Energy => {
                let current = |(s, ..): &&(&Sensor<'_>, Track, u64)| {
                    s.kind == SensorKind::Current && s.name == sensor.name && sensor.kind == SensorKind::Power
                };
                let current = tracks.iter().find(current).map(|(_, track, _)| track);
                let row = source(sensor, track, current, *n, line);
                report.sources.push(SourceRow { idle: of_idle(sensor, track, idle), ..row });
            }
            SensorKind::Current => {}
            kind => report.gauges.extend(gauge(sensor, kind, track, line)),
        }
    }
    report.primary = primary::primary(&report.sources);
    report
}

/// The energy of a token by the preferred source of a recording: see [`PrimaryEnergy`]. None if sensors were not
/// recorded, or no source knows it.
pub fn primary_energy(loaded: &Loaded<'_>, line: &Timeline) -> Option<PrimaryEnergy> {
    energy(loaded, line)?.primary
}

fn origin(of: SensorOrigin) -> &'static str {
    match of {
        SensorOrigin::Unknown => "unknown",
        SensorOrigin::Meter => "meter",
        SensorOrigin::Device => "device",
        SensorOrigin::Estimate => "estimate",
        SensorOrigin::Package => "package",
        SensorOrigin::Rail => "rail",
        SensorOrigin::Model => "model",
    }
}

/// Why the energy of a token is not known from this much; None: it is.
fn doubt(track: &Track, over: &OverPhase, covered: f64) -> Option<&'static str> {
    let slow =
        track.refresh.is_some_and(|refresh| over.integral.covered >= refresh && covered >= ENOUGH_SLOW);
    match over.tokens {
        _ if track.still => Some("the sensor did not change during the recording: it cannot be trusted"),
        None | Some(0) => Some("the number of tokens is not known"),
        _ if over.integral.covered == 0 && track.refresh.is_none() => {
            Some("the sensor had no value in these calls")
        }
        _ if covered >= ENOUGH || slow => None,
        _ if track.refresh.is_some() => Some("the sensor is refreshed too rarely for calls this short"),
        _ => Some("samples cover less than half of the calls' time"),
    }
}

/// Power is in µW, which times ns is 1e-15 J; the pieces of a counter are in W.
fn joule(sensor: &Sensor<'_>) -> f64 {
    if sensor.kind == SensorKind::Power { 1e-15 } else { 1e-9 }
}

/// Of a slow sensor, which still shows what was before, the first refresh of each time is left out.
fn of_idle(sensor: &Sensor<'_>, track: &Track, times: &[(i64, i64)]) -> Option<IdleEnergy> {
    let mut all = SensorIntegral::default();
    let mut ended = i64::MIN;
    for &(from, to) in times {
        let late = if from == ended { 0 } else { track.refresh.unwrap_or(0) };
        track.over(from.saturating_add_unsigned(late), to, &mut all);
        ended = to;
    }
    let joules = all.sum * joule(sensor);
    (all.covered > 0 && !track.still).then(|| IdleEnergy {
        joules,
        covered_ns: all.covered,
        watts: joules * 1e9 / all.covered as f64,
    })
}

fn source(
    sensor: &Sensor<'_>,
    track: &Track,
    current: Option<&Track>,
    samples: u64,
    line: &Timeline,
) -> SourceRow {
    let joule = joule(sensor);
    let share = |over: &OverPhase| match over.ns {
        0 => 0.0,
        ns => over.integral.covered as f64 / ns as f64,
    };
    let charge = |phase: Phase| {
        let track = current?;
        let over = track.over_phase(line, phase)?;
        let covered = share(&over);
        let known = doubt(track, &over, covered).is_none();
        known.then_some(over.integral.sum / UAH / covered / over.tokens? as f64)
    };
    let phase = |phase: &Phase| {
        let over = track.over_phase(line, *phase)?;
        let (joules, covered) = (over.integral.sum * joule, share(&over));
        let unknown = doubt(track, &over, covered);
        let tokens = over.tokens.filter(|_| unknown.is_none());
        let joules_per_token = tokens.map(|n| joules / covered / n as f64);
        Some(PhaseEnergy {
            phase: *phase,
            joules,
            covered,
            watts: (over.integral.covered > 0).then(|| joules * 1e9 / over.integral.covered as f64),
            joules_per_token,
            uah_per_token: joules_per_token.and_then(|_| charge(*phase)),
            unknown,
        })
    };
    let mut all = SensorIntegral::default();
    track.over(i64::MIN, i64::MAX, &mut all);
    SourceRow {
        name: sensor.name.into(),
        kind: if sensor.kind == SensorKind::Power { "power" } else { "energy" },
        origin: origin(sensor.origin),
        from: sensor.origin,
        model: sensor.origin == SensorOrigin::Model,
        path: sensor.path.into(),
        interval_ns: (sensor.interval_ns > 0).then_some(sensor.interval_ns),
        refresh_ns: track.refresh,
        stands_still: track.still,
        samples,
        odd_samples: track.odd,
        gaps: track.gaps,
        gaps_ns: track.gaps_ns,
        joules: all.sum * joule,
        covered_ns: all.covered,
        phases: Phase::ALL.iter().filter_map(phase).collect(),
        idle: None,
    }
}

/// None for a cooling device that never cooled.
fn gauge(sensor: &Sensor<'_>, kind: SensorKind, track: &Track, line: &Timeline) -> Option<GaugeRow> {
    let kind = match kind {
        SensorKind::Frequency => "frequency",
        SensorKind::Temperature => "temperature",
        SensorKind::Cooling => "cooling",
        SensorKind::Pressure => "pressure",
        SensorKind::Power | SensorKind::Energy | SensorKind::Current => return None,
    };
    let phase = |phase: &Phase| {
        let over = track.over_phase(line, *phase)?.integral;
        (over.covered > 0).then(|| GaugePhase {
            phase: *phase,
            mean: over.sum / over.covered as f64,
            min: over.min,
            max: over.max,
        })
    };
    let phases: Vec<GaugePhase> = Phase::ALL.iter().filter_map(phase).collect();
    let matters = kind != "cooling" || phases.iter().any(|p| p.max > 0.0);
    matters.then(|| GaugeRow { name: sensor.name.into(), kind, cpus: sensor.cpus.into(), phases })
}
