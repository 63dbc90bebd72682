//! Run-wide information in `report`: phases of the engine, energy, levels.

use crate::synth_trace;

use analysis::questions::report::{By, Report, ReportOptions, report};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use pfi::Trace;
use pfi::record::*;
use synth_trace::causes::*;
use synth_trace::*;

fn read(s: Synth<Vec<u8>>, tables: &[By]) -> Report {
    let trace = Trace::from_bytes(s.enc.finish(&footer("target exited")).unwrap()).unwrap();
    report(
        &trace,
        &ReportOptions { tables: tables.to_vec(), ..ReportOptions::default() },
        &LoadProgress::default(),
    )
}

fn shown(r: &Report) -> String {
    let mut out = Vec::new();
    render::text::write(&mut out, r, &Default::default()).unwrap();
    String::from_utf8(out).unwrap()
}

fn busy(p: usize, _: u16) -> u64 {
    1000 + 10 * p as u64
}

fn synth() -> Synth<Vec<u8>> {
    Synth::new(Vec::new(), Spec::default())
}

#[test]
fn phases_stand_in_the_order_of_a_run() {
    let mut s = synth();
    s.now += 100_000;
    let load = s.now - 90_000;
    s.enc.phase_call(&phase_call("sampling", s.now, 500)).unwrap();
    s.enc.phase_call(&phase_call("load", load, 50_000)).unwrap();
    s.enc.phase_call(&phase_call("tokenize", load + 60_000, 700)).unwrap();
    s.call(8, busy);
    s.enc.phase_call(&phase_call("sampling", s.now, 300)).unwrap();
    s.call(1, busy);
    let last = PhaseCall { cut: true, ..phase_call("detokenize", s.now, 1_000_000) };
    s.enc.phase_call(&last).unwrap();
    let span = s.now + 1_000_000 - load;
    let r = read(s, &By::ALL);
    let rows = r.stages.as_ref().unwrap();
    let names: Vec<_> = rows.iter().map(|r| (r.name.as_str(), r.of)).collect();
    let want = [
        ("load", "function"),
        ("tokenize", "function"),
        ("prefill", "call"),
        ("decode", "call"),
        ("embedding", "op"),
        ("sampling", "function"),
        ("detokenize", "function"),
    ];
    assert_eq!(names, want);
    let row = |name: &str| rows.iter().find(|r| r.name == name).unwrap();
    let sampling = row("sampling");
    assert_eq!((sampling.calls, sampling.total_ns, sampling.max_ns), (2, 800, Some(500)));
    assert_eq!(sampling.mean_ns, Some(400.0));
    assert!((row("load").share - 50_000.0 / span as f64).abs() < 1e-12);
    let cut = row("detokenize");
    assert_eq!((cut.calls, cut.cut_calls, cut.total_ns, cut.mean_ns), (1, 1, 0, None));
    // One lookup in prefill and one in decode.
    assert_eq!((row("embedding").calls, row("embedding").total_ns), (2, 2 * busy(0, 0)));
    let decode = r.phases.iter().find(|p| p.phase == Phase::Decode).unwrap();
    assert_eq!(row("decode").total_ns, decode.in_call_ns);
    assert!(shown(&r).contains("1 still running when recording stopped"), "{}", shown(&r));
}

#[test]
fn sampling_is_split_by_sampler() {
    let mut s = synth();
    s.call(8, busy);
    for dur in [500, 460] {
        let now = s.now;
        sampling(&mut s, now, dur);
        s.call(1, busy);
    }
    // One that the end cuts, and a sampler outside of any.
    s.enc.sampler_call(&sampler_call(2, s.now + 10, (70, 0))).unwrap();
    s.enc.phase_call(&PhaseCall { cut: true, ..phase_call("sampling", s.now, 900) }).unwrap();
    s.enc.feature(&feature("samplers", Availability::Whole, "9 calls of samplers")).unwrap();
    let r = read(s, &By::ALL);
    let found = r.sampling.as_ref().expect("sampling");
    let stage = r.stages.as_ref().unwrap().iter().find(|r| r.name == "sampling").unwrap();
    assert_eq!((found.calls, found.total_ns, &found.unknown), (2, 960, &None));
    assert_eq!((stage.calls, stage.cut_calls, stage.total_ns), (3, 1, 960));
    let rows = found.samplers.as_ref().expect("samplers");
    let told: Vec<_> =
        rows.iter().map(|r| (r.name.as_deref(), r.does, r.calls, r.total_ns, r.max_ns)).collect();
    let want = [
        (Some("dist"), "apply", 2, 300, 150),
        (Some("top-k"), "apply", 2, 200, 100),
        (Some("chain"), "apply", 2, 100, 50),
        (Some("top-k"), "accept", 2, 80, 40),
    ];
    assert_eq!(told, want);
    assert!(rows.iter().all(|r| !r.with_members));
    assert_eq!(rows.iter().map(|r| r.total_ns).sum::<u64>() + found.rest_ns.unwrap(), found.total_ns);
    assert!((rows[0].share - 300.0 / 960.0).abs() < 1e-12);
    let text = shown(&r);
    for part in ["Sampling by sampler", "dist ", "(outside samplers)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn samplers_that_are_not_known_are_told() {
    let said = |make: &dyn Fn(&mut Synth<Vec<u8>>)| {
        let mut s = synth();
        s.call(8, busy);
        make(&mut s);
        s.enc.phase_call(&phase_call("sampling", s.now, 500)).unwrap();
        let r = read(s, &By::ALL);
        let found = r.sampling.clone().expect("sampling");
        let why = found.unknown.clone().expect("told");
        assert!(shown(&r).contains(&format!("not known: {why}")), "{}", shown(&r));
        (found, why)
    };
    // An older recorder, and one whose source cannot.
    let (found, why) = said(&|_| {});
    assert_eq!((found.samplers, found.rest_ns, found.total_ns), (None, None, 500));
    assert!(why.starts_with("the samplers were not recorded: the recorder was older"), "{why}");
    let (found, why) =
        said(&|s| s.enc.feature(&feature("samplers", Availability::None, "no function")).unwrap());
    assert_eq!((found.samplers, &*why), (None, "the samplers were not recorded: no function"));
    // A chain that calls its samplers directly.
    let (found, why) = said(&|s| {
        s.enc.sampler_call(&sampler_call(1, s.now + 10, (400, 0))).unwrap();
        s.enc.sampler_name(&SamplerName { id: 1, name: "chain", why: "" }).unwrap();
    });
    assert!(
        found.samplers.unwrap()[0].with_members && why.starts_with("how much each sampler of the chain"),
        "{why}"
    );
    assert_eq!(found.rest_ns, Some(100));
    // One without a name.
    let (found, why) = said(&|s| {
        s.enc.sampler_call(&sampler_call(7, s.now + 10, (400, 0))).unwrap();
        s.enc.sampler_name(&SamplerName { id: 7, name: "", why: "its process had ended" }).unwrap();
    });
    assert_eq!(found.samplers.unwrap()[0].name, None);
    assert_eq!(why, "what some samplers are called (its process had ended)");
}

const POWER: Sensor<'_> = Sensor {
    id: 0,
    name: "battery",
    kind: SensorKind::Power,
    path: "/x",
    interval_ns: 0,
    cpus: "",
    origin: SensorOrigin::Device,
};
const COUNTER: Sensor<'_> = Sensor { id: 1, name: "package-0", kind: SensorKind::Energy, ..POWER };
const CLOCK: Sensor<'_> =
    Sensor { id: 2, name: "cluster 1", kind: SensorKind::Frequency, cpus: "4-7", ..POWER };

/// Two decode calls; samples every microsecond from before to after them, and one source at a constant 3 W.
fn sampled(s: &mut Synth<Vec<u8>>, power: impl Fn(i64) -> Option<i64>) -> u64 {
    for sensor in [POWER, COUNTER, CLOCK] {
        s.enc.sensor(&sensor).unwrap();
    }
    let from = s.now as i64 - 5000;
    s.call(1, busy);
    s.call(1, busy);
    let to = s.now as i64;
    for (i, t) in (from..to).step_by(1000).enumerate() {
        let i = i as i64;
        // 2 mJ per microsecond is 2 kW.
        let mut values =
            vec![(COUNTER.id, 2_000 * i), (CLOCK.id, if i % 2 == 0 { 1_000_000 } else { 2_000_000 })];
        values.extend(power(i).map(|p| (POWER.id, p)));
        s.enc.sample(t, &values).unwrap();
    }
    (to - from) as u64
}

#[test]
fn joules_of_a_phase_are_power_over_its_calls() {
    let mut s = synth();
    sampled(&mut s, |i| Some(3_000_000 + i64::from(i == 0)));
    let r = read(s, &By::ALL);
    let decode = r.phases.iter().find(|p| p.phase == Phase::Decode).unwrap();
    let e = r.energy.as_ref().unwrap();
    let [battery, package] = &e.sources[..] else { panic!("{:?}", e.sources) };
    let seconds = decode.in_call_ns as f64 / 1e9;
    for (source, watts) in [(battery, 3.0), (package, 2000.0)] {
        let p = &source.phases[0];
        assert_eq!((p.phase, p.covered), (Phase::Decode, 1.0));
        assert!((p.joules / (watts * seconds) - 1.0).abs() < 1e-9, "{p:?}");
        assert!((p.watts.unwrap() / watts - 1.0).abs() < 1e-9);
        assert!((p.joules_per_token.unwrap() / (watts * seconds / 2.0) - 1.0).abs() < 1e-9);
        assert_eq!((source.odd_samples, source.gaps), (0, 0));
    }
    let clock = &e.gauges[0].phases[0];
    assert!((clock.mean / 1.5e6 - 1.0).abs() < 0.02, "{clock:?}");
    assert_eq!((clock.min, clock.max), (1e6, 2e6));
    let text = shown(&r);
    assert!(
        text.contains("3.00") && text.contains("1.50 GHz") && text.contains("cluster 1 (CPU 4-7)"),
        "{text}"
    );
}

#[test]
fn a_source_that_jumps_or_vanishes_is_told() {
    let mut s = synth();
    // It jumps twice, and is missing from the second call on.
    sampled(&mut s, |i| {
        (i < 45).then_some(if i == 10 || i == 20 { 900_000_000 } else { 3_000_000 + i64::from(i == 0) })
    });
    let r = read(s, &By::ALL);
    let battery = &r.energy.as_ref().unwrap().sources[0];
    let p = &battery.phases[0];
    assert_eq!(battery.odd_samples, 2);
    assert!((p.watts.unwrap() - 3.0).abs() < 1e-9);
    assert!(p.covered < 0.5 && p.joules_per_token.is_none(), "{p:?}");
    assert!(shown(&r).contains("battery: 2 of 45 samples excluded"), "{}", shown(&r));
}

/// A sensor, and its value at a sample.
type SensorOf = (Sensor<'static>, fn(i64) -> i64);

/// What several sources say of two decode calls: the power or the total of each at a sample, and its current.
fn several(sensors: &[SensorOf]) -> Report {
    let mut s = synth();
    for (sensor, _) in sensors {
        s.enc.sensor(sensor).unwrap();
    }
    let from = s.now as i64 - 5000;
    s.call(1, busy);
    s.call(1, busy);
    for (i, t) in (from..s.now as i64).step_by(1000).zip(0..).map(|(t, i)| (i, t)) {
        let values: Vec<_> = sensors.iter().map(|(sensor, of)| (sensor.id, of(i))).collect();
        s.enc.sample(t, &values).unwrap();
    }
    read(s, &By::ALL)
}

const fn of_origin(id: u32, name: &'static str, kind: SensorKind, origin: SensorOrigin) -> Sensor<'static> {
    Sensor { id, name, kind, origin, ..POWER }
}

#[test]
fn one_of_several_sources_is_preferred_by_rule_and_a_model_says_that_it_is_one() {
    // 3 W; 1 A; two clusters of 1 and 2 kW by the model; 2 kW.
    let battery: SensorOf =
        (of_origin(0, "battery", SensorKind::Power, SensorOrigin::Device), |i| 3_000_000 + i64::from(i == 0));
    let current: SensorOf = (of_origin(1, "battery", SensorKind::Current, SensorOrigin::Device), |i| {
        1_000_000 + i64::from(i == 0)
    });
    let small: SensorOf =
        (of_origin(2, "model of CPUs 0-3", SensorKind::Energy, SensorOrigin::Model), |i| 1000 * i);
    let big: SensorOf =
        (of_origin(3, "model of CPUs 4-7", SensorKind::Energy, SensorOrigin::Model), |i| 2000 * i);
    let package: SensorOf =
        (of_origin(4, "package-0", SensorKind::Energy, SensorOrigin::Package), |i| 2000 * i);
    let all = several(&[small, big, package, battery, current]);
    let seconds = all.phases.iter().find(|p| p.phase == Phase::Decode).unwrap().in_call_ns as f64 / 1e9 / 2.0;
    let energy = all.energy.as_ref().unwrap();
    assert_eq!(energy.sources.len(), 4, "{:?}", energy.sources);
    let p = energy.primary.as_ref().unwrap();
    assert_eq!((p.source.as_str(), p.origin, p.model), ("battery", "device", false));
    let close = |a: Option<f64>, b: f64| assert!((a.unwrap() / b - 1.0).abs() < 1e-5, "{a:?} {b}");
    close(p.decode_j_per_token, 3.0 * seconds);
    close(p.decode_uah_per_token, 1e6 * seconds / 3600.0);
    assert_eq!(p.prefill_j_per_token, None);
    let text = shown(&all);
    assert!(text.contains("uAh/token") && text.contains(" J, "), "{text}");
    assert!(text.contains("model of CPUs 0-3 (not measured: a model)"), "{text}");
    // Without the battery, the package; without both, the clusters together.
    let p = several(&[small, big, package]).energy.unwrap().primary.unwrap();
    assert_eq!((p.source.as_str(), p.model, p.decode_uah_per_token), ("package-0", false, None));
    let only = several(&[small, big]);
    let p = only.energy.as_ref().unwrap().primary.as_ref().unwrap();
    assert_eq!(
        (p.source.as_str(), p.origin, p.model),
        ("model of CPUs 0-3 + model of CPUs 4-7", "model", true)
    );
    close(p.decode_j_per_token, 3000.0 * seconds);
    let text = shown(&only);
    let line = text.lines().find(|l| l.contains("a token")).unwrap_or_default();
    assert!(line.contains("not measured: a model") && !text.contains("uAh"), "{text}");
    let json = serde_json::to_value(only.energy.as_ref().unwrap()).unwrap();
    assert_eq!((&json["primary"]["model"], &json["sources"][0]["model"]), (&true.into(), &true.into()));
}

#[test]
fn a_source_that_stands_still_is_not_trusted() {
    let contract: SensorOf = (of_origin(0, "psy", SensorKind::Power, SensorOrigin::Device), |_| 27_000_000);
    let model: SensorOf =
        (of_origin(2, "model of CPUs 0", SensorKind::Energy, SensorOrigin::Model), |i| 1000 * i);
    let r = several(&[contract, model]);
    let energy = r.energy.as_ref().unwrap();
    assert!(energy.sources[0].stands_still && energy.sources[0].phases[0].joules_per_token.is_none());
    assert!(energy.primary.as_ref().unwrap().model);
    let text = shown(&r);
    assert!(text.contains("psy (did not change)") && text.contains("it cannot be trusted"), "{text}");
    let alone = several(&[contract]);
    assert!(alone.energy.unwrap().primary.is_none());
}

#[test]
fn no_source_is_said() {
    let mut s = synth();
    s.enc.feature(&feature("sensors", Availability::None, "/sys shows no sensor")).unwrap();
    s.call(1, busy);
    let r = read(s, &By::ALL);
    assert!(r.energy.as_ref().unwrap().sources.is_empty());
    assert!(shown(&r).contains("no source: the machine reports neither power nor energy"));
}

fn change(t: u64, to: Detail, one_in: u32, predicted: u32, measured: Option<u32>) -> LevelChange<'static> {
    let why = "the budget of 1 %";
    LevelChange { t: t as i64, to, one_in, predicted_ppm: Some(predicted), measured_ppm: measured, why }
}

#[test]
fn levels_have_their_time_their_cost_and_their_calls() {
    let mut s = synth();
    let start = s.now;
    s.call(1, busy);
    let first = s.now - 100;
    s.enc.level_change(&change(first, Detail::Scheduler, 1, 9000, None)).unwrap();
    s.call(1, busy);
    s.call(1, busy);
    // A level's probes were attached during this one.
    s.cut = true;
    s.call(1, |_, _| 1_000_000_000);
    s.cut = false;
    let second = s.now - 100;
    s.enc.level_change(&change(second, Detail::Graph, 1, 100, Some(15_000))).unwrap();
    // No op of this one is recorded.
    let whole = s.now;
    let (seq, t, dur) = (s.graphs, whole as i64, 50_000);
    let cpu = CpuGraph {
        seq,
        graph: None,
        split: None,
        pid: PID,
        tid: TID,
        plan: None,
        n_nodes: 9,
        n_threads: 2,
        ubatch: 1,
        t: t + 10,
        dur: dur - 20,
        expected: None,
        seen: 0,
        barrier: false,
        cut: false,
    };
    s.enc.cpu_graph(&cpu).unwrap();
    let token = Token {
        seq: s.calls,
        pid: PID,
        tid: TID,
        entry: Entry::Decode,
        n_tokens: Some(1),
        t,
        dur,
        cut: false,
        device: pfi::record::Device::Idle,
    };
    s.enc.token(&token).unwrap();
    let end = whole + dur;
    let r = read(s, &By::ALL);
    let l = r.levels.as_ref().unwrap();
    let rows: Vec<_> =
        l.levels.iter().map(|l| (l.level.as_deref(), l.times, l.time_ns, l.decode_calls)).collect();
    let want = [
        (None, 1, first - start, 1),
        (Some("graph"), 1, end - second, 1),
        (Some("scheduler"), 1, second - first, 3),
    ];
    assert_eq!(rows, want);
    let cost: Vec<_> = l.levels.iter().map(|l| (l.predicted, l.measured)).collect();
    assert_eq!(cost, [(None, None), (Some(0.0001), None), (Some(0.009), Some(0.015))]);
    assert!((l.levels[1].tokens_per_s.unwrap() - 1e9 / dur as f64).abs() < 1e-6);
    assert!((l.levels.iter().map(|l| l.share).sum::<f64>() - 1.0).abs() < 1e-9);
    let p = &r.phases[0];
    // Calls without ops, or with only some of them, are excluded from op shares.
    assert_eq!((p.calls, p.cpu_graphs, p.graphs_below_ops, p.level_changes), (5, 3, 2, 2));
    assert!(p.by_name.iter().flatten().all(|row| row.max_ns < Some(1_000_000_000)), "{:?}", p.by_name);
    assert_eq!(p.op_ns + p.wait_ns.unwrap() + p.gaps_ns, p.graph_ns);
    let text = shown(&r);
    assert!(text.contains("2 times during these calls; 3 of 5 CPU graphs have ops"), "{text}");
    assert!(text.contains("0.90") && text.contains("1.50") && text.contains("the budget of 1 %"), "{text}");
}

#[test]
fn without_records_nothing_is_said_unless_asked() {
    let mut s = synth();
    s.call(1, busy);
    let r = read(s, &By::ALL);
    assert!(r.stages.is_none() && r.energy.is_none() && r.levels.is_none() && r.experts.is_none());
    for (by, flag) in [
        (By::Phase, "--phases"),
        (By::Energy, "--sensors"),
        (By::Level, "--budget"),
        (By::Expert, "--experts"),
    ] {
        let text = shown(&read(synth(), &[by]));
        assert!(text.contains(&format!(": none recorded (use record {flag})")), "{by:?}: {text}");
    }
}
