//! Timelines of inconsistent traces: whatever records a file contains, the output is readable, and slices nest.

use crate::synth_trace;

use std::io::Write;

use analysis::questions::report::{By, ReportOptions, report};
use analysis::recorded::calls::timeline;
use analysis::recorded::idents::Idents;
use analysis::recorded::load::{LoadProgress, load};
use analysis::streams::lanes::{Lanes, Select, Walked};
use analysis::sums::ops::sort_runs;
use pfi::record::*;
use pfi::{CounterRun, Encoder, EncoderConfig, PlanHit, Slice, SliceRun, TensorDesc, Trace};
use proptest::prelude::*;
use render::timeline::chrome::Chrome;
use render::timeline::labels::Labels;
use render::timeline::merge::free_sequence;
use render::timeline::perfetto::Perfetto;
use render::timeline::{TimelineRun, TimelineSink};
use synth_trace::*;

/// Both formats of a trace.
fn drawn(bytes: Vec<u8>) -> (Vec<u8>, Vec<u8>, Walked) {
    let trace = Trace::from_bytes(bytes).unwrap();
    let options = ReportOptions { tables: vec![By::Name], ..ReportOptions::default() };
    let told = report(&trace, &options, &LoadProgress::default());
    let mut loaded = load(&trace, &LoadProgress::default());
    let line = timeline(&loaded);
    let idents = Idents::new(&loaded);
    let labels = Labels::new(&loaded, &line, &idents, Some(&told));
    sort_runs(&mut loaded);
    let lanes = Lanes::new(&loaded, Select::default());
    let run = TimelineRun::new(&loaded, &line, &lanes, &idents, &labels);
    let draw = |sink: &mut dyn TimelineSink| run.draw(sink).unwrap();
    let (mut proto, mut json) = (Vec::new(), Vec::new());
    let done = draw(&mut Perfetto::new(&mut proto as &mut dyn Write, &labels, loaded.header.as_ref(), 1));
    assert_eq!(draw(&mut Chrome::new(&mut json as &mut dyn Write, &labels, loaded.header.as_ref())), done);
    (proto, json, done)
}

/// A time in microseconds with three decimals, as ns.
fn ns(ts: &str) -> i128 {
    let (us, ns) = ts.split_once('.').unwrap();
    us.parse::<i128>().unwrap() * 1000 + ns.parse::<i128>().unwrap()
}

/// Checks an array of events, one per line: valid JSON, monotonic times on each track, and every begin has an end.
fn check(json: &[u8]) -> u64 {
    let text = std::str::from_utf8(json).unwrap();
    serde_json::from_str::<serde_json::Value>(text).unwrap();
    let mut tracks: Vec<((u64, u64), i128, i64)> = Vec::new();
    let mut slices = 0;
    for line in text.lines().filter(|l| l.starts_with("{\"ph\":\"B\"") || l.starts_with("{\"ph\":\"E\"")) {
        let event: serde_json::Value = serde_json::from_str(line.trim_end_matches(',')).unwrap();
        let key = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let at = line.split("\"ts\":").nth(1).unwrap().split(',').next().unwrap();
        let i = tracks.iter().position(|t| t.0 == key).unwrap_or_else(|| {
            tracks.push((key, 0, 0));
            tracks.len() - 1
        });
        let (_, last, depth) = &mut tracks[i];
        assert!(ns(at) >= *last, "{line}");
        *last = ns(at);
        *depth += if event["ph"] == "B" { 1 } else { -1 };
        assert!(*depth >= 0, "{line}");
        slices += u64::from(event["ph"] == "B");
    }
    assert!(tracks.iter().all(|t| t.2 == 0));
    slices
}

fn of_any(seed: [u64; 9], names: &str) -> Vec<u8> {
    let header = Header { boot_ns: seed[8], ..header(true) };
    let cfg = EncoderConfig { block_bytes: 4096, ..EncoderConfig::default() };
    let mut e = Encoder::new(Vec::new(), cfg, &header).unwrap();
    let mut state = seed[0] | 1;
    let mut next = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let backend = e.backend([7; 16], names);
    e.process(&Process { pid: 1, engine: 0, exe: names, cmdline: names }).unwrap();
    let src = [Some(0), None];
    for i in 0..4 {
        let d = TensorDesc {
            pid: 1,
            addr: i,
            known: i != 2,
            op: i as u16,
            ty: 9,
            flags: 0,
            name: names.as_bytes(),
            ne: [seed[1], 1, 0, seed[2]],
            nb: None,
            src: &src,
            view_src: None,
        };
        e.tensor(&d).unwrap();
    }
    let hits: Vec<PlanHit> =
        (0..6).map(|i| PlanHit { tensor: i, fused: (i % 3 == 0).then_some(i + 1) }).collect();
    let plan = e.plan(1, 6, &hits).unwrap();
    for i in 0..12u64 {
        let mut time = |odd: u64| if next(20) == 0 { odd as i64 } else { 1_000_000 + next(5000) as i64 };
        let (t, u, v) = (time(seed[3]), time(seed[4]), time(seed[5]));
        let mut dur = || if next(25) == 0 { seed[6] } else { next(4000) };
        let (a, b, c) = (dur(), dur(), dur());
        let (pid, tid, cut) = (next(2) as u32, next(3) as u32, next(5) == 0);
        let (seq, entry) = (next(6), Entry::Decode);
        e.token(&Token {
            seq,
            pid,
            tid,
            entry,
            n_tokens: Some(seq as u32),
            t,
            dur: a,
            cut,
            device: Device::Idle,
        })
        .unwrap();
        let n_nodes = 3;
        e.graph(&Graph {
            seq,
            token: Some(i),
            pid,
            tid,
            cgraph: 1,
            n_nodes,
            ubatch: 1,
            t: u,
            dur: b,
            cut,
            device: Device::Idle,
        })
        .unwrap();
        e.split(&Split {
            seq,
            graph: None,
            backend: backend + i as u32 % 2,
            pid,
            tid,
            n_nodes,
            t: v,
            dur: c,
            cut,
            device: Device::Idle,
            plan: None,
        })
        .unwrap();
        let barrier = next(2) == 0;
        let graph = CpuGraph {
            seq,
            graph: None,
            split: None,
            pid,
            tid,
            plan: Some(plan),
            n_nodes,
            n_threads: 2,
            ubatch: 1,
            t,
            dur: b,
            expected: Some(9),
            seen: next(10) as u32,
            barrier,
            cut,
        };
        e.cpu_graph(&graph).unwrap();
        let mut at = if next(20) == 0 { seed[7] >> 1 } else { 1_000_000 + next(5000) };
        let slices: Vec<Slice> = (0..next(9))
            .map(|_| {
                let start = at;
                at = at.saturating_add(next(900));
                Slice { start, end: (next(4) > 0).then(|| start.saturating_add(next(900))) }
            })
            .collect();
        if !slices.is_empty() {
            let (ith, first) = (next(3) as u16, next(5) as u32);
            let run = SliceRun { graph: next(7), ith, tid: next(9) as u32, plan, first, barrier };
            e.slices(&run, &slices).unwrap();
        }
        let run = CounterRun { graph: next(7), ith: 0, plan, first: 0, counters: 5 };
        e.op_counts(&run, &[Some(seed[6]), None, Some(3)]).unwrap();
        e.counter(&causes::counter(2 * (i as u32 % 2), names, names, next(3) as u32)).unwrap();
        e.task(next(9) as u32, names).unwrap();
        e.off_cpu(&causes::preempted(next(4) as u32, u, c)).unwrap();
        e.off_cpu(&causes::slept(next(4) as u32, v, a, seed[7])).unwrap();
        e.phase_call(&PhaseCall { what: names, pid, tid, t: v, dur: a, cut }).unwrap();
        let kind = [SensorKind::Energy, SensorKind::Power][i as usize % 2];
        e.sensor(&Sensor {
            id: 1,
            name: names,
            kind,
            path: "",
            interval_ns: 0,
            cpus: names,
            origin: pfi::record::SensorOrigin::Unknown,
        })
        .unwrap();
        e.sample(t, &[(1, seed[6] as i64), (7, 1)]).unwrap();
        e.notice(&Notice { t: u, text: names }).unwrap();
    }
    e.finish(&footer("signal")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_records(seed in any::<[u64; 9]>(), names in ".{0,12}") {
        let (proto, json, done) = drawn(of_any(seed, &names));
        prop_assert!(done.slices > 0);
        // Thread states are slices too.
        prop_assert!(check(&json) >= done.slices);
        let free = free_sequence(&mut proto.as_slice());
        prop_assert!(matches!(free, Ok(n) if n > 2), "{free:?}");
    }

    /// A damaged or truncated file.
    #[test]
    fn damaged_files(at in 0usize..60_000, bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut s = Synth::new(Vec::new(), Spec::default());
        s.call(3, |p, _| 1000 + p as u64);
        s.call(1, |_, _| 900);
        causes::one_of_each(&mut s);
        let mut file = s.enc.finish(&footer("signal")).unwrap();
        let at = 16 + at % (file.len() - 16);
        if bytes.is_empty() {
            file.truncate(at);
        } else {
            let end = file.len().min(at + bytes.len());
            file[at..end].copy_from_slice(&bytes[..end - at]);
        }
        let (_, json, done) = drawn(file);
        prop_assert!(check(&json) >= done.slices);
    }
}
