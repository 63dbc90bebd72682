//! Additional tracks of `profinfer export` next to calls and ops: thread states, values over time, the recorder's
//! messages. The expected times are those used to make the trace.

use crate::common::timeline;

use crate::synth_trace;

use pfi::record::*;
use pfi::{CounterRun, Encoder, EncoderConfig};
use serde_json::{Value, json};
use synth_trace::causes::*;
use synth_trace::*;
use timeline::*;

/// The track of this name, below thread `tid` unless that is 0.
fn named<'v>(all: &'v Value, name: &str, tid: u64) -> Option<&'v Value> {
    let parent = if tid == 0 { None } else { Some(&track(all, tid)["uuid"]) };
    let mut tracks = all["tracks"].as_array().unwrap().iter();
    tracks.find(|t| t["name"] == name && parent.is_none_or(|uuid| t["parent"] == *uuid))
}

/// Name, start relative to the first op of the first call, and length of each slice.
fn slices(track: &Value) -> Vec<(String, i64, u64)> {
    let all = track["slices"].as_array().unwrap().iter();
    let at = |s: &Value| s["t"].as_u64().unwrap() as i64 - FIRST_OP as i64;
    all.map(|s| (s["name"].as_str().unwrap().into(), at(s), s["dur"].as_u64().unwrap())).collect()
}

#[test]
fn states_of_threads() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.enc.feature(&feature("scheduler", Availability::Whole, "tracepoints")).unwrap();
    s.call(1, |_, _| 10_000);
    s.enc.task(900, "hog").unwrap();
    s.enc.task(901, "other").unwrap();
    let at = |ns: i64| FIRST_OP as i64 + ns;
    for r in [preempted(1, at(1000), 500), slept(1, at(4000), 800, 100), faulted(1, at(6000), 90)] {
        s.enc.off_cpu(&r).unwrap();
    }
    let level = |t, to| LevelChange { t, to, one_in: 1, predicted_ppm: None, measured_ppm: None, why: "x" };
    s.enc.level_change(&level(at(7000), Detail::Op)).unwrap();
    s.enc.level_change(&level(at(8000), Detail::Scheduler)).unwrap();
    s.enc.off_cpu(&preempted(1, at(9000), 5)).unwrap();
    let files = files(&s.enc.finish(&footer("signal")).unwrap());
    let Some(all) = files.export(&[]) else { return };
    let states = named(&all, "thread state", u64::from(TID) + 1).unwrap();
    let want = [
        ("preempted by hog", 1000, 500),
        ("running", 1500, 2500),
        ("idle", 4000, 700),
        ("runnable: other", 4700, 100),
        ("running", 4800, 1200),
        ("page fault", 6000, 90),
        // Its state while less was recorded is unknown.
        ("preempted by hog", 9000, 5),
    ];
    assert_eq!(slices(states), want.map(|(name, t, dur)| (name.to_string(), t, dur)));
    let args = |i: usize| states["slices"][i]["args"].clone();
    assert_eq!((args(0), args(1)), (json!({"cpu": 1, "tid": 900}), json!({"cpu": 1})));
    // Thread 0 never left its CPU.
    assert!(named(&all, "thread state", TID.into()).is_none());
    let told = named(&all, "profinfer record", 0).unwrap()["instants"].as_array().unwrap();
    let names: Vec<_> = told.iter().map(|i| i["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["level op", "level scheduler"]);
    assert_eq!(told[0]["args"]["why"], "x");
}

#[test]
fn values_over_time() {
    let mut s = Synth::new(Vec::new(), Spec { threads: 1, ..Spec::default() });
    for (id, kind) in [(0, SensorKind::Power), (1, SensorKind::Energy), (2, SensorKind::Frequency)] {
        let cpus = if id == 2 { "0-3" } else { "" };
        s.enc
            .sensor(&Sensor {
                id,
                name: "soc",
                kind,
                path: "/x",
                interval_ns: 0,
                cpus,
                origin: pfi::record::SensorOrigin::Unknown,
            })
            .unwrap();
    }
    s.enc.counter(&counter(3, "l3d_cache_refill", "bytes", 64)).unwrap();
    s.call(2, |_, _| 10_000);
    let run = CounterRun { graph: 0, ith: 0, plan: 0, first: 0, counters: 1 << 3 };
    s.enc.op_counts(&run, &[Some(5), None, Some(7)]).unwrap();
    let t = ORIGIN as i64;
    s.enc.sample(t, &[(0, 2_500_000), (1, 100), (2, 1_800_000)]).unwrap();
    s.enc.sample(t + 1_000_000, &[(1, 4100)]).unwrap();
    s.enc.notice(&Notice { t: t + 9, text: "a probe left" }).unwrap();
    let end = s.now - PAUSE;
    let files = files(&s.enc.finish(&footer("signal")).unwrap());
    let Some(all) = files.export(&[]) else { return };
    let of = |name: &str| {
        let track = named(&all, name, 0).unwrap_or_else(|| panic!("no {name}"));
        let values = track["counts"].as_array().unwrap().iter();
        let values: Vec<_> = values.map(|v| (v[0].as_i64().unwrap() - t, v[1].as_f64().unwrap())).collect();
        (track["unit"].as_str().unwrap().to_string(), values)
    };
    assert_eq!(of("power soc"), ("W".into(), vec![(0, 2.5)]));
    // 4000 uJ in a millisecond.
    assert_eq!(of("power (from energy) soc"), ("W".into(), vec![(0, 4.0)]));
    assert_eq!(of("frequency soc (CPU 0-3)"), ("MHz".into(), vec![(0, 1800.0)]));
    let dur = end as i64 - t;
    let (unit, speed) = of("tok/s");
    assert_eq!((unit.as_str(), speed[1]), ("tok/s", (dur, 0.0)));
    assert_eq!(speed[0], (0, 2e9 / dur as f64));
    let (unit, rate) = of("l3d_cache_refill/s");
    let graph = dur - 4 * LEAD as i64;
    assert_eq!(unit, "bytes/s");
    assert_eq!(rate, [(2 * LEAD as i64, 12.0 * 64.0 * 1e9 / graph as f64), (2 * LEAD as i64 + graph, 0.0)]);
    assert_eq!(named(&all, "profinfer record", 0).unwrap()["instants"][0]["name"], "a probe left");
}

#[test]
fn a_call_and_its_graphs_are_joined() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.ubatches(&[2, 2], |_, _| 1000);
    s.call(1, |_, _| 1000);
    let files = files(&s.enc.finish(&footer("signal")).unwrap());
    let Some(all) = files.export(&[]) else { return };
    let slices = track(&all, TID.into())["slices"].as_array().unwrap();
    let flows = |name: &str| -> Vec<&Value> {
        slices.iter().filter(|s| s["name"] == name).map(|s| &s["flows"][0]).collect()
    };
    let (prefill, decode, graphs) = (flows("prefill 0"), flows("decode 1"), flows("graph"));
    assert_eq!(graphs, [prefill[0], prefill[0], decode[0]]);
    assert!(prefill[0] != decode[0] && prefill[0].is_u64());
}

#[test]
fn graphs_that_hits_are_missing_from_are_told() {
    let mut e = Encoder::new(Vec::new(), EncoderConfig::default(), &header(true)).unwrap();
    let graph = CpuGraph {
        seq: 0,
        graph: None,
        split: None,
        pid: PID,
        tid: TID,
        plan: None,
        n_nodes: 5,
        n_threads: 2,
        ubatch: 1,
        t: ORIGIN as i64,
        dur: 200,
        expected: Some(10),
        seen: 7,
        barrier: true,
        cut: false,
    };
    e.cpu_graph(&graph).unwrap();
    e.cpu_graph(&CpuGraph { seq: 1, t: ORIGIN as i64 + 300, seen: 10, ..graph }).unwrap();
    let files = files(&e.finish(&footer("signal")).unwrap());
    let Some(all) = files.export(&[]) else { return };
    let told = named(&all, "profinfer record", 0).unwrap()["instants"].as_array().unwrap();
    assert_eq!(told.len(), 1);
    assert_eq!((&told[0]["t"], &told[0]["args"]["missing"]), (&(ORIGIN + 200).into(), &3.into()));
}
