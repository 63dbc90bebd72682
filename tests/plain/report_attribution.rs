//! Off-CPU time in `report`: parts of each op's time, and the tasks that interfered. Every figure is derived from
//! the times used to make the trace.

use crate::synth_trace;

use analysis::questions::report::{By, PhaseReport, Report, ReportOptions, report};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use analysis::sums::attribution::interference::{THROTTLED, WAKING};
use analysis::sums::attribution::parts::TimeParts;
use analysis::sums::tables::{GAPS_ROW, OpRow, WAIT_ROW};
use pfi::Trace;
use pfi::record::{Availability, Detail, LevelChange, OffCpu};
use render::table::Style;
use synth_trace::causes::*;
use synth_trace::*;

fn read(bytes: Vec<u8>, tables: &[By]) -> Report {
    let trace = Trace::from_bytes(bytes).unwrap();
    report(
        &trace,
        &ReportOptions { top: None, tables: tables.to_vec(), ..ReportOptions::default() },
        &LoadProgress::default(),
    )
}

fn finish(s: Synth<Vec<u8>>) -> Report {
    read(s.enc.finish(&footer("target exited")).unwrap(), &By::ALL)
}

fn shown(r: &Report) -> String {
    let mut out = Vec::new();
    render::text::write(&mut out, r, &Style::default()).unwrap();
    String::from_utf8(out).unwrap()
}

fn decode(r: &Report) -> &PhaseReport {
    r.phases.iter().find(|p| p.phase == Phase::Decode).unwrap()
}

fn row<'r>(rows: &'r Option<Vec<OpRow>>, name: &str) -> &'r OpRow {
    rows.as_ref().unwrap().iter().find(|r| r.name == name).unwrap()
}

/// Thread 1 needs half the time of thread 0, and then waits.
fn busy(p: usize, ith: u16) -> u64 {
    (10_000 + 100 * p as u64) / (1 + u64::from(ith))
}

fn start(p: usize) -> i64 {
    start_of(FIRST_OP, p, |p| busy(p, 0))
}

/// One decode call, with the scheduler fully recorded.
fn one_call(spec: Spec, off: &[OffCpu]) -> Synth<Vec<u8>> {
    let mut s = Synth::new(Vec::new(), spec);
    s.enc.feature(&feature("scheduler", Availability::Whole, "tracepoints")).unwrap();
    s.call(1, busy);
    s.enc.task(900, "hog").unwrap();
    s.enc.task(901, "other").unwrap();
    for r in off {
        s.enc.off_cpu(r).unwrap();
    }
    s
}

const N: usize = 33;

#[test]
fn each_part_is_where_it_was() {
    let (embd, last) = (start(0), start(N - 1));
    let off = [
        // Thread 0 in the first op: 1000 preempted, 2000 asleep and 500 runnable, 3000 faulting.
        preempted(0, embd + 100, 1000),
        slept(0, embd + 2000, 2500, 500),
        faulted(0, embd + 5000, 3000),
        // Thread 1 waits after its first op from 5000 on: 700 of that asleep, all of it in the barrier.
        slept(1, embd + 6000, 700, 0),
        // Across the end of the second op of thread 1 (5050 long): 50 in the op, 250 in the barrier.
        preempted(1, start(1) + 5000, 300),
        // Before the graph and after it: attributed to no op.
        preempted(0, embd - 900, 300),
        preempted(0, last + busy(N - 1, 0) as i64 + 50, 300),
    ];
    let r = finish(one_call(Spec::default(), &off));
    let p = decode(&r);
    let first = row(&p.by_op, "GET_ROWS").causes.unwrap();
    // Thread 0 spends 100 (SYNC) on its own barrier, thread 1 waits for the rest of the slot.
    let slot = busy(0, 0) + SYNC;
    let want = TimeParts {
        computing_ns: busy(0, 0) - 6500 + busy(0, 1),
        barrier_ns: SYNC + (slot - busy(0, 1) - 700),
        preempted_ns: 1500,
        idle_ns: 2000 + 700,
        faulting_ns: 3000,
        off_cpu_in_barrier_ns: 700,
        ..TimeParts::default()
    };
    assert_eq!(first, want);
    assert_eq!(first.whole(), 2 * slot);
    let norm = row(&p.by_name, "RMS_NORM+MUL  attn_norm-{L}").causes.unwrap();
    assert_eq!((norm.preempted_ns, norm.off_cpu_in_barrier_ns), (300, 250));
}

#[test]
fn parts_are_the_time_of_all_slices_and_waits() {
    let off: Vec<OffCpu> =
        (0..40).map(|i| preempted(i % 2, FIRST_OP as i64 + 7001 * i64::from(i), 900)).collect();
    for barrier in [true, false] {
        let r = finish(one_call(Spec { barrier, ..Spec::default() }, &off));
        let p = decode(&r);
        let threads = p.by_thread.as_ref().unwrap();
        let whole: u64 = threads.iter().map(|t| t.op_ns + t.wait_ns.unwrap_or(0)).sum();
        for rows in [&p.by_op, &p.by_name, &p.by_layer] {
            let parts: Vec<TimeParts> = rows.as_ref().unwrap().iter().filter_map(|r| r.causes).collect();
            assert_eq!(parts.iter().map(TimeParts::whole).sum::<u64>(), whole);
            // The last of them begin after the end of the graph.
            assert_eq!(parts.iter().map(|p| p.preempted_ns).sum::<u64>(), 900 * 40 - outside(&off));
        }
        for t in threads {
            assert_eq!(t.causes.unwrap().whole(), t.op_ns + t.wait_ns.unwrap_or(0));
        }
        assert!(row(&p.by_op, GAPS_ROW).causes.is_none());
        let waits = p.by_op.as_ref().unwrap().iter().find(|r| r.name == WAIT_ROW);
        assert!(waits.is_none_or(|r| r.causes.is_none()));
    }
}

/// The preempted time outside all slices and waits: each thread's last slice has its own end.
fn outside(off: &[OffCpu]) -> u64 {
    let end = |ith: u32| start(N - 1) + busy(N - 1, ith as u16) as i64;
    let beyond = |r: &OffCpu| {
        let to = r.t + r.dur as i64;
        (to - end(r.tid - TID).max(r.t)).max(0) as u64
    };
    off.iter().map(beyond).sum()
}

#[test]
fn a_thread_that_was_not_followed_has_no_parts() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.enc
        .feature(&feature("scheduler", Availability::Partly, "thread 4244 was not seen from its start"))
        .unwrap();
    s.call(1, busy);
    s.enc.off_cpu(&preempted(0, start(3), 500)).unwrap();
    let r = finish(s);
    let p = decode(&r);
    let threads = p.by_thread.as_ref().unwrap();
    let of = |ith: u16| threads.iter().find(|t| t.ith == ith).unwrap().causes;
    assert_eq!(of(1), None);
    assert_eq!(of(0).map(|p| (p.preempted_ns, p.unknown_ns)), Some((500, 0)));
    // In the op rows its time is unknown, not computing.
    let embd = row(&p.by_op, "GET_ROWS").causes.unwrap();
    assert_eq!((embd.computing_ns, embd.unknown_ns), (busy(0, 0), busy(0, 0) + SYNC));
    assert!(shown(&r).contains("unknown %"));
}

/// Thread states are reported only for ops that have a time, and not for ops of a graph during which a level's
/// probes were attached.
#[test]
fn a_graph_into_which_a_level_came_is_in_no_figure() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.enc.feature(&feature("scheduler", Availability::Whole, "tracepoints")).unwrap();
    let (t, why) = (s.now as i64 - 1, "");
    let to = Detail::Scheduler;
    s.enc
        .level_change(&LevelChange { t, to, one_in: 1, predicted_ppm: None, measured_ppm: None, why })
        .unwrap();
    s.call(1, busy);
    let first = (s.now + 3 * LEAD) as i64;
    s.cut = true;
    s.call(1, |_, _| 1_000_000);
    for ith in [0, 1] {
        s.enc.off_cpu(&preempted(ith, first + 100, 700)).unwrap();
    }
    let r = finish(s);
    for t in decode(&r).by_thread.as_ref().unwrap() {
        let parts = t.causes.unwrap();
        assert_eq!((parts.whole(), parts.preempted_ns), (t.op_ns + t.wait_ns.unwrap_or(0), 0));
    }
    let embd = row(&decode(&r).by_name, "GET_ROWS  embd");
    assert_eq!(embd.causes.unwrap().computing_ns, busy(0, 0) + busy(0, 1));
}

/// Under a budget the scheduler is on for part of the time: its level is reported, and the counter level may never
/// be on.
#[test]
fn what_ran_outside_of_the_schedulers_level_is_unknown_and_not_computing() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    let level = |t: u64, to| LevelChange {
        t: t as i64,
        to,
        one_in: 1,
        predicted_ppm: None,
        measured_ppm: None,
        why: "",
    };
    s.enc.feature(&feature("scheduler", Availability::Partly, "on for some of it")).unwrap();
    s.enc.level_change(&level(s.now - 1, Detail::Structure)).unwrap();
    s.call(1, busy);
    s.enc.level_change(&level(s.now - 100, Detail::Scheduler)).unwrap();
    let first = (s.now + 3 * LEAD) as i64;
    s.call(1, busy);
    // The third call is still running when the recording ends.
    s.enc.level_change(&level(s.now + 3 * LEAD + 20_000, Detail::Structure)).unwrap();
    s.call(1, busy);
    for ith in [0, 1] {
        s.enc.off_cpu(&preempted(ith, first + 100, 1000)).unwrap();
    }
    let r = finish(s);
    for t in decode(&r).by_thread.as_ref().unwrap() {
        let (parts, whole) = (t.causes.unwrap(), t.op_ns + t.wait_ns.unwrap_or(0));
        assert_eq!((parts.whole(), parts.unknown_ns * 3, parts.preempted_ns), (whole, whole * 2, 1000));
    }
}

#[test]
fn without_records_there_is_nothing_new() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.call(1, busy);
    let r = finish(s);
    assert!(r.interference.is_none() && r.counters.is_none());
    let json = serde_json::to_string(&r).unwrap();
    for word in ["\"causes\"", "\"counted\"", "nterference", "preempted"] {
        assert!(!json.contains(word) && !shown(&r).contains(word), "{word}");
    }
}

#[test]
fn what_is_asked_for_and_not_there_is_said() {
    let bytes = one_call(Spec::default(), &[]).enc.finish(&footer("x")).unwrap();
    let none = Synth::new(Vec::new(), Spec::default()).enc.finish(&footer("x")).unwrap();
    for by in [By::Cause, By::Counter, By::Interference] {
        let text = shown(&read(none.clone(), &[by]));
        assert!(text.contains(": none recorded (use record --"), "{by:?}: {text}");
    }
    let text = shown(&read(bytes.clone(), &[By::Interference]));
    assert!(text.contains("runnable)\n  none\n"), "{text}");
    let text = shown(&read(bytes, &[By::Cause]));
    assert!(text.contains("Causes by layer, decode") && !text.contains("Operators by"), "{text}");
}

#[test]
fn who_was_in_the_way_is_named_with_its_victims() {
    let (embd, norm) = (start(0), start(1));
    let off = [
        preempted(0, embd + 100, 1000),
        preempted(0, norm + 100, 2500),
        // Runnable after wakeup while 901 ran, 400 of it in the barrier of the first op.
        slept(1, embd + 6000, 700, 400),
        // Throttled by the quota, and waking an idle CPU.
        OffCpu { by: 0, ..preempted(1, norm + 10, 70) },
        OffCpu { from: 0, ..slept(1, norm + 200, 70, 30) },
        // Preempted by another engine thread.
        OffCpu { by: TID + 1, ..preempted(0, norm + 4000, 55) },
    ];
    let r = finish(one_call(Spec::default(), &off));
    let rows = r.interference.as_ref().unwrap();
    let names: Vec<_> = rows.iter().map(|r| (r.name.as_str(), r.runnable_ns, r.in_ops_ns)).collect();
    let own = format!("thread {}", TID + 1);
    let want = [
        ("hog", 3500, 3500),
        ("other", 400, 0),
        (THROTTLED, 70, 70),
        (own.as_str(), 55, 55),
        (WAKING, 30, 30),
    ];
    assert_eq!(names, want);
    let hog = &rows[0];
    assert_eq!(
        (hog.preemptions, hog.times, hog.tids.as_slice(), hog.cpus.as_slice()),
        (2, 2, &[900][..], &[0][..])
    );
    let origin = ORIGIN as i64;
    assert_eq!((hog.first_ns, hog.last_ns), (embd + 100 - origin, norm + 2600 - origin));
    let ops: Vec<_> = hog.ops.iter().map(|op| (op.name.as_str(), op.ns)).collect();
    assert_eq!(ops, [("RMS_NORM+MUL  attn_norm-{L}", 2500), ("GET_ROWS  embd", 1000)]);
    assert_eq!((rows[1].preemptions, rows[1].times, rows[1].own), (0, 1, false));
    assert!(rows[3].own && rows[2].tids.is_empty());
    let text = shown(&r);
    assert!(text.contains("hog (thread 900)") && text.contains("GET_ROWS  embd 1.00 us"), "{text}");
}

/// Another process of the same name is not the target.
#[test]
fn our_own_threads_stand_apart_from_others_of_their_name() {
    let mut s = one_call(Spec::default(), &[]);
    s.enc.task(TID + 1, "engine").unwrap();
    s.enc.task(77, "engine").unwrap();
    for (by, dur) in [(TID + 1, 100), (77, 300)] {
        s.enc.off_cpu(&OffCpu { by, ..preempted(0, start(by as usize % 9), dur) }).unwrap();
    }
    let r = finish(s);
    let rows: Vec<_> =
        r.interference.as_ref().unwrap().iter().map(|r| (r.name.as_str(), r.own, r.runnable_ns)).collect();
    assert_eq!(rows, [("engine", false, 300), ("engine", true, 100)]);
    assert!(shown(&r).contains("of the target"), "{}", shown(&r));
}

#[test]
fn a_name_counts_from_where_it_is_told() {
    let mut s = one_call(Spec::default(), &[preempted(0, start(0), 100)]);
    s.enc.task(900, "renamed").unwrap();
    s.enc.off_cpu(&preempted(0, start(1), 200)).unwrap();
    let r = finish(s);
    let rows: Vec<_> =
        r.interference.as_ref().unwrap().iter().map(|r| (r.name.as_str(), r.runnable_ns)).collect();
    assert_eq!(rows, [("renamed", 200), ("hog", 100)]);
}

#[test]
fn ops_have_a_verdict_where_there_is_something_to_stand_on() {
    use analysis::sums::attribution::verdict::{Bound, Peak};
    let judged = |off: &[OffCpu], peaks: Vec<Peak>, scheduler: bool| {
        let mut s = one_call(Spec::default(), off);
        if !scheduler {
            s = Synth::new(Vec::new(), Spec::default());
            s.call(1, busy);
        }
        let trace = Trace::from_bytes(s.enc.finish(&footer("x")).unwrap()).unwrap();
        let options = ReportOptions { tables: By::ALL.to_vec(), peaks, ..ReportOptions::default() };
        report(&trace, &options, &LoadProgress::default())
    };
    let embd = |r: &Report| row(&decode(r).by_op, "GET_ROWS").verdict.clone();
    let hog = [preempted(0, start(0) + 10, 9000), preempted(1, start(0) + 10, 4900)];
    let r = judged(&hog, vec![], true);
    assert_eq!(embd(&r).map(|v| v.bound), Some(Bound::Preempted));
    assert!(
        shown(&r).contains("preempted: 69 % of the threads' time is runnable but off-CPU"),
        "{}",
        shown(&r)
    );
    // Nothing in this small model exceeds the caches, so the trace itself gives no ceiling.
    assert_eq!((r.ceiling.is_none(), embd(&judged(&[], vec![], true))), (true, None));
    // 256 bytes of the table, 4 of the id, 256 written in 10 us.
    let slow = Peak { gb_per_s: 0.06, gflop_per_s: Some(1000.0), ..Peak::default() };
    let r = judged(&[], vec![slow], false);
    assert_eq!(embd(&r).map(|v| v.bound), Some(Bound::Memory), "{:?}", row(&decode(&r).by_op, "GET_ROWS"));
    assert!(shown(&r).contains("Causes by op, decode (bottlenecks)"), "{}", shown(&r));
    assert!(row(&decode(&r).by_op, GAPS_ROW).verdict.is_none());
}
