//! Energy of the calls of the last seconds, by the rules of `report`: a recording of these seconds alone would have these
//! figures.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::{EndedCall, Ending};
use crate::recorded::calls::{Call, CallSource, Phase, RunWork, Timeline};
use crate::sums::attribution::energy::{EnergyReport, SensorSamples, of_samples};
use pfi::record::{Sensor, SensorKind, SensorOrigin, SensorSample};
use pfi::sensor_values;

/// Calls and samples of this time are kept: a slow sensor is refreshed a few times in it.
const KEPT_NS: u64 = 10_000_000_000;
/// Maximum number of calls and samples kept, and sensors.
const CALLS: usize = 32_768;
const SAMPLES: usize = 1024;
const SENSORS: usize = 64;

/// Energy of calls of the last seconds. Of the source that `report` prefers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EnergyNow {
    /// From the begin of the first of these calls to the end of the last, s.
    pub seconds: f64,
    pub source: Option<String>,
    /// What it covers: `meter`, `device`, `estimate`, `package`, `rail`, `model`, or `unknown`.
    pub origin: Option<String>,
    /// Computed by the kernel's Energy Model, not measured.
    pub model: bool,
    /// Of all these calls, and over their time.
    pub joules: Option<f64>,
    pub watts: Option<f64>,
    pub decode_j_per_token: Option<f64>,
    pub prefill_j_per_token: Option<f64>,
    /// Why the energy is not known; null if it is.
    pub unknown: Option<String>,
}

impl EnergyNow {
    /// Not known, for this reason.
    pub fn unknown(why: &str) -> EnergyNow {
        EnergyNow { unknown: Some(why.to_owned()), ..EnergyNow::default() }
    }
}

/// A sensor's definition.
struct LiveSensor {
    id: u32,
    name: String,
    kind: SensorKind,
    path: String,
    interval_ns: u64,
    origin: SensorOrigin,
}

impl LiveSensor {
    fn record(&self) -> Sensor<'_> {
        let (id, name, kind, path) = (self.id, self.name.as_str(), self.kind, self.path.as_str());
        Sensor { id, name, kind, path, interval_ns: self.interval_ns, cpus: "", origin: self.origin }
    }
}

/// A call that has ended.
struct PastCall {
    source: CallSource,
    call: Call,
}

#[derive(Default)]
pub struct LiveEnergy {
    sensors: Vec<LiveSensor>,
    samples: VecDeque<(i64, Vec<(u32, i64)>)>,
    calls: VecDeque<PastCall>,
}

impl LiveEnergy {
    pub fn define(&mut self, r: &Sensor<'_>) {
        if !matches!(r.kind, SensorKind::Power | SensorKind::Energy | SensorKind::Current) {
            return;
        }
        let (id, kind, interval_ns, origin) = (r.id, r.kind, r.interval_ns, r.origin);
        let sensor = LiveSensor { id, name: r.name.into(), kind, path: r.path.into(), interval_ns, origin };
        if let Some(old) = self.sensors.iter_mut().find(|s| s.id == id) {
            *old = sensor;
        } else if self.sensors.len() < SENSORS {
            self.sensors.push(sensor);
        }
    }

    pub fn sample(&mut self, r: &SensorSample<'_>) {
        if self.sensors.is_empty() {
            return;
        }
        let known = |id: u32| self.sensors.iter().any(|s| s.id == id);
        let values = sensor_values(r).filter(|(id, _)| known(*id)).collect();
        let oldest = r.t.saturating_sub_unsigned(KEPT_NS);
        while self.samples.len() >= SAMPLES || self.samples.front().is_some_and(|(t, _)| *t < oldest) {
            self.samples.pop_front();
        }
        self.samples.push_back((r.t, values));
        while self.calls.front().is_some_and(|c| c.call.end() < oldest) {
            self.calls.pop_front();
        }
    }

    pub(super) fn call(&mut self, source: CallSource, phase: Phase, tokens: Option<u64>, c: &EndedCall) {
        if self.sensors.is_empty() || c.end != Ending::Known {
            return;
        }
        if self.calls.len() >= CALLS {
            self.calls.pop_front();
        }
        let call = Call {
            seq: 0,
            pid: c.pid,
            tid: 0,
            entry: None,
            start: c.start,
            dur: c.dur,
            tokens,
            phase,
            graphs: 0,
            cut: false,
            unseen: false,
            device: c.device,
        };
        self.calls.push_back(PastCall { source, call });
    }

    /// Of the calls of these processes that lie between the first and the last sample.
    pub fn now(&self, pids: &[u32]) -> EnergyNow {
        let Some((first, last)) = self.samples.front().zip(self.samples.back()).map(|(a, b)| (a.0, b.0))
        else {
            return EnergyNow::unknown("no sensor of power or energy is recorded");
        };
        let of = || {
            let own = self.calls.iter().filter(|c| pids.contains(&c.call.pid));
            own.filter(|c| c.call.start >= first && c.call.end() <= last)
        };
        // The outermost calls, as in `report`.
        let Some(source) = of().map(|c| c.source).min_by_key(|source| *source as usize) else {
            return EnergyNow::unknown("no call has ended in the last ten seconds");
        };
        let calls: Vec<Call> = of().filter(|c| c.source == source).map(|c| c.call.clone()).collect();
        let line = Timeline {
            source,
            work: RunWork::Tokens,
            calls,
            cpu_phase: Vec::new(),
            cpu_call: Vec::new(),
            graph_phase: HashMap::new(),
            graph_call: HashMap::new(),
            sequences: None,
        };
        let mut samples = SensorSamples::new();
        for (t, values) in &self.samples {
            values.iter().for_each(|(id, value)| samples.entry(*id).or_default().push((*t, *value)));
        }
        let sensors: Vec<Sensor<'_>> = self.sensors.iter().map(LiveSensor::record).collect();
        figures(&of_samples(&sensors, samples, &line, &[]), &line)
    }
}

fn figures(report: &EnergyReport, line: &Timeline) -> EnergyNow {
    let Some(primary) = &report.primary else {
        let why = report.sources.iter().flat_map(|s| &s.phases).find_map(|p| p.unknown);
        return EnergyNow::unknown(why.unwrap_or("no sensor of power or energy is recorded"));
    };
    let of = |phase: Phase| line.calls.iter().filter(move |c| c.phase == phase);
    let joules = |phase: Phase, each: Option<f64>| match of(phase).count() {
        0 => Some(0.0),
        _ => Some(each? * of(phase).filter_map(|c| c.tokens).fold(0u64, u64::saturating_add) as f64),
    };
    let decode = joules(Phase::Decode, primary.decode_j_per_token);
    let prefill = joules(Phase::Prefill, primary.prefill_j_per_token);
    // Of calls of an unknown phase no tokens are known.
    let joules = decode.zip(prefill).filter(|_| of(Phase::Unknown).count() == 0).map(|(a, b)| a + b);
    let ns = line.calls.iter().fold(0u64, |sum, c| sum.saturating_add(c.dur));
    let begin = line.calls.iter().map(|c| c.start).min().unwrap_or(0);
    let end = line.calls.iter().map(Call::end).max().unwrap_or(begin);
    let unknown = joules.is_none().then(|| {
        let phases = report.sources.iter().flat_map(|s| &s.phases);
        phases.filter_map(|p| p.unknown).next().unwrap_or("a part of the calls has no phase").to_owned()
    });
    EnergyNow {
        seconds: begin.abs_diff(end) as f64 / 1e9,
        source: Some(primary.source.clone()),
        origin: Some(primary.origin.to_owned()),
        model: primary.model,
        joules,
        watts: joules.filter(|_| ns > 0).map(|j| j * 1e9 / ns as f64),
        decode_j_per_token: primary.decode_j_per_token,
        prefill_j_per_token: primary.prefill_j_per_token,
        unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfi::record::Device;

    const MS: i64 = 1_000_000;

    fn ended(pid: u32, start: i64) -> EndedCall {
        EndedCall {
            pid,
            start,
            dur: 8 * MS as u64,
            end: super::super::ending(false, Device::Idle),
            device: 0,
        }
    }

    /// A meter of 5 W, read every 50 ms for `ms`, and calls of 8 ms every 10 ms, the first a prompt of four tokens.
    fn live(kind: SensorKind, ms: i64) -> LiveEnergy {
        let mut all = LiveEnergy::default();
        all.define(&Sensor {
            id: 3,
            name: "meter",
            kind,
            path: "/m",
            interval_ns: 0,
            cpus: "",
            origin: SensorOrigin::Meter,
        });
        for t in (0..=ms).step_by(10) {
            if t % 50 == 0 {
                // A wobble, since what never changes cannot be trusted.
                let value = if kind == SensorKind::Power { 5_000_000 + t / 50 % 2 } else { 5_000 * t };
                all.samples.push_back((t * MS, vec![(3, value)]));
            }
            let (phase, tokens) = if t == 0 { (Phase::Prefill, 4) } else { (Phase::Decode, 1) };
            all.call(CallSource::Token, phase, Some(tokens), &ended(7, t * MS));
            all.call(CallSource::CpuGraph, phase, Some(tokens), &ended(7, t * MS));
        }
        all
    }

    #[test]
    fn power_and_a_counter_give_the_energy_of_a_token() {
        for kind in [SensorKind::Power, SensorKind::Energy] {
            let now = live(kind, 2000).now(&[7]);
            let near = |value: Option<f64>, of: f64| (value.expect("known") / of - 1.0).abs() < 1e-3;
            assert_eq!(
                (now.source.as_deref(), now.origin.as_deref(), now.model),
                (Some("meter"), Some("meter"), false)
            );
            // 8 ms at 5 W.
            assert!(near(now.decode_j_per_token, 0.04) && near(now.prefill_j_per_token, 0.01), "{now:?}");
            assert!(
                near(now.watts, 5.0) && near(now.joules, 0.04 * 200.0) && now.unknown.is_none(),
                "{now:?}"
            );
        }
    }

    #[test]
    fn no_energy_has_a_reason() {
        let why = |now: EnergyNow| {
            assert_eq!((now.joules, now.watts, now.decode_j_per_token), (None, None, None));
            now.unknown.expect("a reason")
        };
        assert!(why(LiveEnergy::default().now(&[7])).contains("no sensor"));
        assert!(why(live(SensorKind::Power, 2000).now(&[8])).contains("no call"));
        let mut still = live(SensorKind::Power, 2000);
        still.samples.iter_mut().flat_map(|(_, values)| values).for_each(|(_, value)| *value = 27_000_000);
        assert!(why(still.now(&[7])).contains("did not change"));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut all = live(SensorKind::Power, 0);
        for i in 0..2 * CALLS as i64 {
            all.call(CallSource::Token, Phase::Decode, Some(1), &ended(7, i));
        }
        assert_eq!(all.calls.len(), CALLS);
        let data = [];
        for i in 0..3000 {
            all.sample(&SensorSample { t: i * 50 * MS, data: &data });
        }
        assert!(
            all.samples.len() <= 201 && all.calls.is_empty(),
            "{} {}",
            all.samples.len(),
            all.calls.len()
        );
    }
}
