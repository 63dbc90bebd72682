//! The sums of `top` over a growing trace finally equal those of `report` on the complete trace.

use crate::synth_trace;

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use analysis::questions::report::{By, PhaseReport, Report, ReportOptions, report};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use analysis::streams::live::{Live, LiveSpan, PhaseSpan, limit};
use analysis::sums::attribution::parts::TimeParts;
use analysis::sums::tables::{GAPS_ROW, WAIT_ROW};
use pfi::record::{Availability, Detail, LevelChange, Sensor, SensorKind, SensorOrigin};
use pfi::{Output, Tail, Tap, Trace};
use synth_trace::causes::{FIRST_OP, faulted, feature, preempted, slept};
use synth_trace::*;

/// A file that can be read while it is written.
#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Like a full pipe or a slow disk.
        self.0.borrow_mut().write(&bytes[..bytes.len().min(5000)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output for Shared {
    fn seekable(&self) -> bool {
        true
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().write_at(pos, bytes)
    }
}

/// A trace that is read as it grows.
struct Growing {
    synth: Synth<Tap>,
    tail: Tail,
    live: Live,
    file: Shared,
    clock: u64,
}

impl Growing {
    fn new(spec: Spec) -> Growing {
        let (tail, file) = (Tail::default(), Shared::default());
        let synth = Synth::new(tail.tap(Some(Box::new(file.clone()))), spec);
        let mut live = Live::default();
        live.tick(0);
        Growing { synth, tail, live, file, clock: 0 }
    }

    /// Flushes the pending data to the file, as after a second, and reads it.
    fn read(&mut self) {
        for _ in 0..2 {
            self.clock += 1_000_000_000;
            self.synth.enc.tick(self.clock).unwrap();
        }
        self.tail.read(&mut |block| self.live.feed(block));
        self.live.tick(self.clock);
    }

    fn end(mut self) -> (LiveSpan, Report) {
        self.synth.enc.finish(&footer("target exited")).unwrap();
        self.tail.read(&mut |block| self.live.feed(block));
        self.live.finish();
        let trace = Trace::from_bytes(self.file.0.take()).unwrap();
        assert_eq!(trace.verify(), [], "the file is a whole trace");
        let options = ReportOptions { tables: By::ALL.to_vec(), verdict: true, ..ReportOptions::default() };
        (self.live.whole(self.clock), report(&trace, &options, &LoadProgress::default()))
    }
}

fn ops_are_the_same(live: &PhaseSpan, report: &PhaseReport) {
    let mut ours: Vec<_> = live.ops.iter().map(|o| (o.name.clone(), o.calls, o.total_ns, o.share)).collect();
    ours.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let rows = report.by_name.iter().flatten().filter(|r| r.name != WAIT_ROW && r.name != GAPS_ROW);
    let mut theirs: Vec<_> = rows.map(|r| (r.name.clone(), r.calls, r.total_ns, r.share)).collect();
    theirs.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(ours, theirs);
    assert!(live.ops.is_sorted_by_key(|o| std::cmp::Reverse(o.total_ns)));
    let mut ours: Vec<_> = live.threads.iter().map(|t| (t.ith, t.op_share, t.wait_share)).collect();
    ours.sort_by_key(|t| t.0);
    let rows = report.by_thread.iter().flatten();
    let mut theirs: Vec<_> = rows.map(|r| (r.ith, r.op_share, r.wait_share)).collect();
    theirs.sort_by_key(|t| t.0);
    assert_eq!(ours, theirs);
}

/// Where the time went: of each phase that the verdict has.
fn bars_are_the_same(live: &LiveSpan, report: &Report) {
    let phases = &report.verdict.as_ref().expect("it was asked for").phases;
    for theirs in phases {
        let ours = live.phases.iter().find(|p| p.phase == theirs.phase).expect("the phase");
        assert_eq!(ours.bar, theirs.bar, "{:?}", theirs.phase);
    }
    assert!(!phases.is_empty());
}

fn are_the_same((live, report): (LiveSpan, Report)) {
    bars_are_the_same(&live, &report);
    let phases: Vec<_> = live.phases.iter().map(|p| p.phase).collect();
    assert_eq!(phases, report.phases.iter().map(|p| p.phase).collect::<Vec<_>>());
    assert!(!phases.is_empty());
    for (ours, theirs) in live.phases.iter().zip(&report.phases) {
        let calls = |p: &PhaseReport| (p.calls, p.cut_calls, p.tokens, p.in_call_ns, p.tokens_per_s);
        assert_eq!(
            (ours.calls, ours.cut_calls, ours.tokens, ours.in_call_ns, ours.tokens_per_s),
            calls(theirs)
        );
        let graphs = |p: &PhaseReport| (p.cpu_graphs, p.graph_ns, p.op_ns, p.wait_ns, p.gaps_ns, p.op_time);
        assert_eq!(
            (ours.cpu_graphs, ours.graph_ns, ours.op_ns, ours.wait_ns, ours.gaps_ns, ours.op_time),
            graphs(theirs)
        );
        ops_are_the_same(ours, theirs);
        let per_token: f64 = ours.ops.iter().filter_map(|o| o.ns_per_token).sum();
        if let Some(tokens) = ours.tokens {
            assert!((per_token * tokens as f64 - ours.op_ns as f64).abs() < ours.op_ns as f64 * 1e-9);
        }
    }
}

/// Time of position `p` on a thread in some call.
fn busy(call: u64) -> impl Fn(usize, u16) -> u64 {
    move |p, ith| 500 + (call * 7919 + p as u64 * 104_729 + u64::from(ith) * 1_299_709) % 90_000
}

fn run(spec: Spec, calls: u64) -> Growing {
    let mut g = Growing::new(spec);
    for call in 0..calls {
        match call % 50 {
            0 => g.synth.ubatches(&[8, 8, 1], busy(call)),
            25 => g.synth.call(4, busy(call)),
            _ => g.synth.call(1, busy(call)),
        }
        if call % 7 == 0 {
            g.read();
        }
    }
    g
}

#[test]
fn of_every_kind_of_trace() {
    let all = Spec::default();
    for spec in [
        all,
        Spec { barrier: false, ..all },
        Spec { structure: false, ..all },
        Spec { widths: false, ..all },
        Spec { experts: true, threads: 3, ..all },
        Spec { threads: 1, barrier: false, layers: 5, ..all },
    ] {
        println!("{spec:?}");
        are_the_same(run(spec, 120).end());
    }
}

#[test]
fn over_many_blocks() {
    let g = run(Spec { layers: 12, threads: 4, ..Spec::default() }, 700);
    assert!(g.file.0.borrow().len() > 4 * (128 << 10), "{} bytes", g.file.0.borrow().len());
    are_the_same(g.end());
}

#[test]
fn without_calls_of_their_own_graphs_stand_for_them() {
    let mut g = Growing::new(Spec::default());
    for i in 0..30 {
        g.synth.now = g.synth.graph(None, if i % 10 == 0 { 5 } else { 1 }, g.synth.now + 1000, busy(i));
        g.read();
    }
    are_the_same(g.end());
}

#[test]
fn a_level_that_changes_is_no_gap() {
    let mut g = run(Spec::default(), 20);
    let change = LevelChange {
        t: g.synth.now as i64,
        to: Detail::Structure,
        one_in: 1,
        predicted_ppm: None,
        measured_ppm: None,
        why: "it fits",
    };
    g.synth.enc.level_change(&change).unwrap();
    for call in 0..20 {
        g.synth.call(1, busy(call));
        g.read();
    }
    are_the_same(g.end());
}

/// A run in which threads are preempted, sleep and fault in their ops and at barriers, for `lost` ns of each call.
fn with_scheduler(spec: Spec, lost: u64) -> Growing {
    let mut g = Growing::new(spec);
    g.synth.enc.feature(&feature("scheduler", Availability::Whole, "")).unwrap();
    for call in 0..60 {
        let first = (g.synth.now + FIRST_OP - ORIGIN) as i64;
        for (ith, at) in [(0, 3_000), (1, 20_000)] {
            g.synth.enc.off_cpu(&preempted(ith, first + at, lost)).unwrap();
            let next = first + at + lost as i64 + 1_000;
            g.synth.enc.off_cpu(&slept(ith, next, 2_000, 500)).unwrap();
            g.synth.enc.off_cpu(&faulted(ith, next + 4_000, 900)).unwrap();
        }
        g.synth.call(if call % 20 == 0 { 5 } else { 1 }, busy(call));
        if call % 7 == 0 {
            g.read();
        }
    }
    g
}

fn causes_of(report: &PhaseReport) -> TimeParts {
    let mut sum = TimeParts::default();
    report.by_thread.iter().flatten().filter_map(|t| t.causes).for_each(|parts| sum.merge(&parts));
    sum
}

#[test]
fn what_threads_did_is_the_same() {
    for spec in
        [Spec::default(), Spec { threads: 4, ..Spec::default() }, Spec { barrier: false, ..Spec::default() }]
    {
        let (live, report) = with_scheduler(spec, 30_000).end();
        assert_eq!(live.phases.len(), 2);
        bars_are_the_same(&live, &report);
        assert!(live.phases.iter().all(|p| p.bar.and_then(|bar| bar.waiting_for_cpu) > Some(0.0)));
        for (ours, theirs) in live.phases.iter().zip(&report.phases) {
            let causes = ours.causes.expect("the scheduler was recorded");
            assert_eq!(causes, causes_of(theirs), "{:?}", ours.phase);
            assert!(causes.preempted_ns > 0 && causes.idle_ns > 0 && causes.faulting_ns > 0, "{causes:?}");
            assert_eq!(causes.unknown_ns, 0);
        }
    }
    let (live, _) = run(Spec::default(), 20).end();
    assert!(live.phases.iter().all(|p| p.causes.is_none() && limit(p).is_none()), "not recorded is not zero");
}

#[test]
fn the_limit_is_what_took_the_time() {
    let said = |lost| {
        let (live, _) = with_scheduler(Spec::default(), lost).end();
        limit(live.phases.last().expect("decode")).expect("known")
    };
    assert!(said(1_000).starts_with("computing: "), "{}", said(1_000));
    assert!(
        said(3_000_000).starts_with("CPU contention: threads waited for a CPU for "),
        "{}",
        said(3_000_000)
    );
}

#[test]
fn a_level_without_the_scheduler_is_unknown_time() {
    let mut g = with_scheduler(Spec::default(), 30_000);
    let change = |t: u64, to| LevelChange {
        t: t as i64,
        to,
        one_in: 1,
        predicted_ppm: None,
        measured_ppm: None,
        why: "",
    };
    for to in [Detail::Scheduler, Detail::Structure] {
        g.synth.enc.level_change(&change(g.synth.now, to)).unwrap();
        (0..10).for_each(|call| g.synth.call(1, busy(call)));
    }
    let (live, _) = g.end();
    let causes = live.phases.last().and_then(|p| p.causes).expect("known in part");
    assert!(causes.unknown_ns > 0 && causes.computing_ns > causes.unknown_ns, "{causes:?}");
}

#[test]
fn speeds_and_sensors_are_those_of_the_last_update() {
    let mut g = Growing::new(Spec::default());
    for (id, kind) in [(0, SensorKind::Frequency), (1, SensorKind::Temperature)] {
        let (name, path, cpus) = ("x", "/x", "0-1");
        g.synth
            .enc
            .sensor(&Sensor { id, name, kind, path, interval_ns: 0, cpus, origin: SensorOrigin::Unknown })
            .unwrap();
    }
    g.synth.enc.sample(1, &[(0, 1_000_000), (1, 50_000)]).unwrap();
    g.synth.enc.sample(2, &[(0, 2_000_000)]).unwrap();
    for calls in [5, 0, 5] {
        (0..calls).for_each(|call| g.synth.call(1, busy(call)));
        g.read();
        g.live.mark();
    }
    // What had no value in the last sample has none now.
    let sensors: Vec<_> = g.live.sensors().into_iter().map(|s| (s.kind, s.value)).collect();
    assert_eq!(sensors, [(SensorKind::Frequency, 2_000_000)]);
    let speeds = g.live.speeds(Phase::Decode);
    assert_eq!(speeds.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true], "{speeds:?}");
    assert!(speeds.iter().flatten().all(|speed| *speed > 0.0));
    assert!(g.live.speeds(Phase::Prefill).iter().all(Option::is_none));
}

#[test]
fn the_energy_of_the_last_seconds_is_that_of_a_report_of_them() {
    let mut g = Growing::new(Spec::default());
    let (name, path, cpus, origin) = ("battery", "/x", "", SensorOrigin::Device);
    let sensor = Sensor { id: 4, name, kind: SensorKind::Power, path, interval_ns: 0, cpus, origin };
    g.synth.enc.sensor(&sensor).unwrap();
    assert!(g.live.energy(&[1]).unknown.is_some_and(|why| why.contains("no sensor")));
    for call in 0..200 {
        g.synth.enc.sample(g.synth.now as i64, &[(4, 3_000_000 + call as i64 % 7 * 100_000)]).unwrap();
        g.synth.call(if call == 0 { 5 } else { 1 }, busy(call));
        g.read();
    }
    g.synth.enc.sample(g.synth.now as i64, &[(4, 3_000_000)]).unwrap();
    g.read();
    let pid = g.live.processes()[0].pid.unwrap();
    let now = g.live.energy(&[pid]);
    assert!(g.live.energy(&[pid + 1]).joules.is_none(), "of another process nothing is known");
    let (_, report) = g.end();
    let primary = report.energy.unwrap().primary.unwrap();
    assert_eq!((now.source.as_deref(), now.origin.as_deref()), (Some("battery"), Some("device")));
    assert_eq!(
        (now.decode_j_per_token, now.prefill_j_per_token),
        (primary.decode_j_per_token, primary.prefill_j_per_token)
    );
    let decode = report.phases.iter().find(|p| p.phase == Phase::Decode).unwrap();
    let prefill = report.phases.iter().find(|p| p.phase == Phase::Prefill).unwrap();
    let tokens = |p: &PhaseReport| p.tokens.unwrap() as f64;
    let joules = primary.decode_j_per_token.unwrap() * tokens(decode)
        + primary.prefill_j_per_token.unwrap() * tokens(prefill);
    assert!((now.joules.unwrap() / joules - 1.0).abs() < 1e-9, "{now:?} {joules}");
}
