//! A sensor's values over time, and their integral over the calls of a phase.
//!
//! Between two samples, power is interpolated linearly and a running total is taken to grow evenly. When a sensor is
//! silent for long, nothing is assumed: that time is not covered. A sensor that is refreshed less often than it is read
//! shows, for a while after a phase begins, what was before it: its first refresh interval there is not covered either.

use crate::recorded::calls::{Phase, Timeline};
use common::order;
use pfi::record::{Sensor, SensorKind, SensorOrigin};

/// A value more than this many times the median is discarded.
const ODD: f64 = 20.0;
/// A sensor is silent after this many times its usual sampling interval or its own interval, whichever is longer.
const SILENT: u64 = 10;
/// A sensor is slow if it changes only every this many samples, or less often.
const SLOW: u64 = 2;
/// From this number of changes on, the lower quartile of the times between them is taken for the refresh interval: the
/// shortest may be of a power whose current and voltage were refreshed one after the other.
const CHANGES: usize = 4;

/// From one sample to the next; values in the sensor's unit; of a running total its growth, in units of 1e-6 per 1e-9 s
/// times 1e3: W, or a share of time.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SampleInterval {
    from: i64,
    to: i64,
    start: f64,
    end: f64,
}

/// A sensor's values over time.
#[derive(Debug, Default, PartialEq)]
pub struct Track {
    pieces: Vec<SampleInterval>,
    /// Samples left out: outliers, negative, or of a total that became smaller.
    pub odd: u64,
    /// How often the sensor was silent, and for how long in total.
    pub gaps: u64,
    pub gaps_ns: u64,
    /// Time between two refreshes of a sensor that is slow, ns.
    pub refresh: Option<u64>,
    /// Time between two samples, ns.
    pause: u64,
    /// It had at least two values, and all were the same.
    pub still: bool,
    total: bool,
}

/// The integral of a track over some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SensorIntegral {
    /// Value times ns.
    pub sum: f64,
    /// ns.
    pub covered: u64,
    pub min: f64,
    pub max: f64,
}

/// A track over the complete calls of a phase.
pub struct OverPhase {
    pub integral: SensorIntegral,
    /// The calls' time, ns, and their tokens if all are known.
    pub ns: u64,
    pub tokens: Option<u64>,
}

impl Default for SensorIntegral {
    fn default() -> SensorIntegral {
        SensorIntegral { sum: 0.0, covered: 0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl SampleInterval {
    fn at(&self, t: i64) -> f64 {
        let whole = self.from.abs_diff(self.to).max(1) as f64;
        self.start + (self.end - self.start) * self.from.abs_diff(t) as f64 / whole
    }
}

/// The value above this share of the others.
fn quantile(mut values: Vec<u64>, above: usize, of: usize) -> Option<u64> {
    order::by_key(&mut values, |v| (*v, 0));
    values.get(values.len() * above / of.max(1)).copied()
}

fn median(values: Vec<u64>) -> Option<u64> {
    quantile(values, 1, 2)
}

fn pauses(samples: &[(i64, i64)]) -> Vec<u64> {
    samples.windows(2).filter_map(|w| Some(w.first()?.0.abs_diff(w.last()?.0))).collect()
}

impl Track {
    /// From samples in time order.
    pub fn new(samples: &[(i64, i64)], sensor: &Sensor<'_>) -> Track {
        let total = matches!(sensor.kind, SensorKind::Energy | SensorKind::Pressure);
        let power = matches!(sensor.kind, SensorKind::Power | SensorKind::Current);
        let mut track = Track { total, ..Track::default() };
        let values = samples.iter().filter_map(|(_, v)| u64::try_from(*v).ok()).filter(|v| *v > 0).collect();
        let limit = median(values).map_or(f64::INFINITY, |m| m as f64 * ODD);
        let fits = |v: i64| !power || (v >= 0 && v as f64 <= limit);
        let kept: Vec<(i64, i64)> = samples.iter().copied().filter(|(_, v)| fits(*v)).collect();
        track.odd = (samples.len() - kept.len()) as u64;
        track.pause = median(pauses(&kept)).unwrap_or(0);
        let changed = changes(&kept);
        track.still = kept.len() > 1 && changed.is_empty() && (power || sensor.kind == SensorKind::Energy);
        let seen = pauses(&changed);
        let seen = if seen.len() < CHANGES { None } else { quantile(seen, 1, 4) };
        let refresh = seen.unwrap_or(0).max(sensor.interval_ns);
        let measured = power || sensor.kind == SensorKind::Energy && sensor.origin != SensorOrigin::Model;
        track.refresh = (measured && refresh >= track.pause.saturating_mul(SLOW)).then_some(refresh);
        let silent = track.pause.max(sensor.interval_ns).saturating_mul(SILENT);
        track.silence(&kept, silent);
        if total && track.refresh.is_some() {
            // Between its refreshes a total stands still: it grows from one to the next.
            track.grow(&changed, silent.max(refresh.saturating_mul(SILENT)));
        } else {
            track.grow(&kept, silent);
        }
        if sensor.kind == SensorKind::Energy && sensor.origin != SensorOrigin::Model {
            track.without_jumps();
        }
        track
    }

    /// Notes the times without samples.
    fn silence(&mut self, samples: &[(i64, i64)], silent: u64) {
        for pause in pauses(samples).into_iter().filter(|pause| *pause > silent) {
            self.gaps += 1;
            self.gaps_ns = self.gaps_ns.saturating_add(pause);
        }
    }

    fn grow(&mut self, samples: &[(i64, i64)], silent: u64) {
        for w in samples.windows(2) {
            let &[(from, a), (to, b)] = w else { continue };
            let pause = from.abs_diff(to);
            if pause == 0 || pause > silent {
                continue;
            }
            if !self.total {
                self.pieces.push(SampleInterval { from, to, start: a as f64, end: b as f64 });
            } else if b >= a {
                let rate = a.abs_diff(b) as f64 / pause as f64 * 1e3;
                self.pieces.push(SampleInterval { from, to, start: rate, end: rate });
            } else {
                self.odd += 1;
            }
        }
    }

    /// Removes the pieces in which a counter of energy jumped.
    fn without_jumps(&mut self) {
        // Positive floats sort like their bits.
        let all = self.pieces.iter().map(|p| p.start).filter(|w| *w > 0.0).map(f64::to_bits).collect();
        let limit = median(all).map_or(f64::INFINITY, |m| f64::from_bits(m) * ODD);
        let before = self.pieces.len();
        self.pieces.retain(|p| p.start <= limit);
        self.odd += (before - self.pieces.len()) as u64;
    }

    /// Adds the integral over a time range.
    pub fn over(&self, from: i64, to: i64, sum: &mut SensorIntegral) {
        let first = self.pieces.partition_point(|p| p.to <= from);
        for p in self.pieces.get(first..).unwrap_or_default() {
            let (a, b) = (p.from.max(from), p.to.min(to));
            if a >= b {
                break;
            }
            let (start, end) = (p.at(a), p.at(b));
            sum.sum += (start + end) / 2.0 * a.abs_diff(b) as f64;
            sum.covered = sum.covered.saturating_add(a.abs_diff(b));
            sum.min = sum.min.min(start.min(end));
            sum.max = sum.max.max(start.max(end));
        }
    }

    /// Over the complete calls of a phase; None if there are none.
    pub fn over_phase(&self, line: &Timeline, phase: Phase) -> Option<OverPhase> {
        let mut all = OverPhase { integral: SensorIntegral::default(), ns: 0, tokens: Some(0) };
        let mut any = false;
        let runs = self.refresh.map(|refresh| runs(line, refresh));
        for c in line.calls.iter().filter(|c| c.phase == phase && !c.cut) {
            any = true;
            all.ns = all.ns.saturating_add(c.dur);
            all.tokens = all.tokens.zip(c.tokens).map(|(a, b)| a.saturating_add(b));
            let (from, to) = match &runs {
                Some(runs) => self.trusted(runs, c.start),
                None => (c.start, c.end()),
            };
            self.over(from.max(c.start), to.min(c.end()), &mut all.integral);
        }
        any.then_some(all)
    }

    /// The part of the run around `t` of which a slow sensor tells only this run.
    fn trusted(&self, runs: &[PhaseRun], t: i64) -> (i64, i64) {
        let after = runs.partition_point(|run| run.start <= t);
        let Some(run) = after.checked_sub(1).and_then(|i| runs.get(i)) else { return (t, t) };
        let refresh = self.refresh.unwrap_or(0);
        if !self.total {
            return (run.start.saturating_add_unsigned(refresh.saturating_add(self.pause)), run.end);
        }
        // Whole pieces of a total, each of which is seen up to a sample late.
        let from = run.start.saturating_add_unsigned(self.pause);
        let first = self.pieces.partition_point(|p| p.from < from);
        let last = self.pieces.partition_point(|p| p.to <= run.end);
        match self.pieces.get(first..last).unwrap_or_default() {
            [] => (t, t),
            [one] => (one.from, one.to),
            [a, .., b] => (a.from, b.to),
        }
    }
}

/// The samples with another value than the one before.
fn changes(samples: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let pairs = samples.iter().zip(samples.iter().skip(1));
    pairs.filter(|(a, b)| a.1 != b.1).map(|(_, b)| *b).collect()
}

/// Calls of one phase without another phase, or a pause as long as a refresh, between them.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PhaseRun {
    phase: Phase,
    start: i64,
    end: i64,
}

fn runs(line: &Timeline, refresh: u64) -> Vec<PhaseRun> {
    let mut calls: Vec<PhaseRun> =
        line.calls.iter().map(|c| PhaseRun { phase: c.phase, start: c.start, end: c.end() }).collect();
    order::by_key(&mut calls, |c| (order::time(c.start), 0));
    let mut runs: Vec<PhaseRun> = Vec::new();
    for call in calls {
        match runs.last_mut() {
            Some(run) if run.phase == call.phase && call.start < run.end.saturating_add_unsigned(refresh) => {
                run.end = run.end.max(call.end);
            }
            _ => runs.push(call),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sensor(kind: SensorKind) -> Sensor<'static> {
        Sensor { id: 1, name: "x", kind, path: "", interval_ns: 0, cpus: "", origin: SensorOrigin::Unknown }
    }

    fn over(track: &Track, from: i64, to: i64) -> (f64, u64) {
        let mut sum = SensorIntegral::default();
        track.over(from, to, &mut sum);
        (sum.sum, sum.covered)
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
        assert_eq!(Track::new(&[(5, 1)], &sensor(SensorKind::Power)).pieces, []);
    }

    const MS: i64 = 1_000_000;

    /// Reads every 50 ms a meter that every 250 ms, first at 130, shows the mean power since then: 1 W until 1 s, then
    /// 3 W until 2.2 s, then 1 W.
    fn slow(kind: SensorKind) -> Track {
        let energy = |t: i64| t + 2 * (t - 1000).clamp(0, 1200);
        let shown = |t: i64| (t - 130).div_euclid(250) * 250 + 130;
        let value = |t: i64| match kind {
            SensorKind::Power => (energy(shown(t)) - energy(shown(t) - 250)) * 1_000_000 / 250,
            _ => energy(shown(t)) * 1000,
        };
        // A wobble of a millionth tells the refreshes apart.
        let wobble = |t: i64| shown(t) / 250 % 2;
        let samples: Vec<(i64, i64)> =
            (8..80).map(|i| (i * 50 * MS, value(i * 50) + wobble(i * 50))).collect();
        Track::new(&samples, &sensor(kind))
    }

    fn mean(track: &Track, (from, to): (i64, i64)) -> f64 {
        let (sum, covered) = over(track, from, to);
        sum / covered as f64
    }

    #[test]
    fn the_first_refresh_interval_of_a_slow_sensor_is_not_counted() {
        let runs = [
            PhaseRun { phase: Phase::Prefill, start: 0, end: 1000 * MS },
            PhaseRun { phase: Phase::Decode, start: 1000 * MS, end: 2200 * MS },
        ];
        let power = slow(SensorKind::Power);
        assert_eq!(power.refresh, Some(250 * MS as u64));
        // As it is shown, decode has too little.
        let all = mean(&power, (1000 * MS, 2200 * MS)) / 1e6;
        assert!(all < 2.8, "{all}");
        let trusted = mean(&power, power.trusted(&runs, 1500 * MS)) / 1e6;
        assert!((trusted - 3.0).abs() < 0.08, "{trusted}");
        let total = slow(SensorKind::Energy);
        assert_eq!(total.refresh, Some(250 * MS as u64));
        let (from, to) = total.trusted(&runs, 1500 * MS);
        assert!(from > 1000 * MS && to < 2200 * MS && to - from >= 500 * MS, "{from} {to}");
        let trusted = mean(&total, (from, to));
        assert!((trusted - 3.0).abs() < 0.01, "{trusted}");
        // No whole refresh within a short run.
        let short = [PhaseRun { phase: Phase::Decode, start: 1000 * MS, end: 1200 * MS }];
        for track in [power, total] {
            let (from, to) = track.trusted(&short, 1000 * MS);
            assert!(from >= to, "{from} {to}");
        }
    }

    #[test]
    fn a_sensor_as_fast_as_its_samples_is_not_slow() {
        let samples: Vec<(i64, i64)> = (0..20).map(|i| (i * 50 * MS, 100 + i % 3)).collect();
        assert_eq!(Track::new(&samples, &sensor(SensorKind::Power)).refresh, None);
        let told = Sensor { interval_ns: 1_000_000_000, ..sensor(SensorKind::Power) };
        assert_eq!(Track::new(&samples, &told).refresh, Some(1_000_000_000));
    }

    #[test]
    fn a_sensor_that_stands_still_is_known() {
        for (kind, still) in [
            (SensorKind::Power, true),
            (SensorKind::Energy, true),
            (SensorKind::Frequency, false),
            (SensorKind::Pressure, false),
        ] {
            let track = Track::new(&[(0, 27_000_000), (50, 27_000_000), (100, 27_000_000)], &sensor(kind));
            assert_eq!(track.still, still, "{kind:?}");
        }
        assert!(!Track::new(&[(0, 5), (50, 5), (100, 6)], &sensor(SensorKind::Power)).still);
        assert!(!Track::new(&[(0, 5)], &sensor(SensorKind::Power)).still);
    }

    #[test]
    fn pressure_is_a_share_and_a_model_has_no_outliers() {
        let samples: Vec<(i64, i64)> =
            [0, 1, 2, 3, 4, 5, 1005, 2005].iter().zip(0..).map(|(v, t)| (t * MS, *v)).collect();
        let track = Track::new(&samples, &sensor(SensorKind::Pressure));
        assert_eq!((track.odd, mean(&track, (6 * MS, 7 * MS))), (0, 1.0));
        let model = Sensor { origin: SensorOrigin::Model, ..sensor(SensorKind::Energy) };
        assert_eq!(
            (Track::new(&samples, &model).odd, Track::new(&samples, &sensor(SensorKind::Energy)).odd),
            (0, 2)
        );
    }

    #[test]
    fn wild_samples_do_no_harm() {
        let samples = [(i64::MIN, i64::MAX), (0, i64::MIN), (1, i64::MAX), (i64::MAX, 0), (i64::MAX, -1)];
        for kind in [SensorKind::Power, SensorKind::Energy, SensorKind::Pressure, SensorKind::Current] {
            let track = Track::new(&samples, &Sensor { interval_ns: u64::MAX, ..sensor(kind) });
            let wild = [PhaseRun { phase: Phase::Decode, start: i64::MIN, end: i64::MAX }];
            for t in [i64::MIN, 0, i64::MAX] {
                let (from, to) = track.trusted(&wild, t);
                over(&track, from, to);
            }
        }
    }
}
