//! Counters in `report`: sums by op and thread, missing values, and metrics derived from two counters.

use crate::synth_trace;

use analysis::questions::report::{By, PhaseReport, Report, ReportOptions, report};
use analysis::recorded::load::LoadProgress;
use analysis::sums::attribution::counters::CounterRow;
use pfi::record::{Availability, Counter};
use pfi::{CounterRun, Trace};
use synth_trace::causes::counter;
use synth_trace::*;

const CYCLES: u32 = 3;
const INSTRUCTIONS: u32 = 0;
const LINES: u32 = 9;
const REFUSED: u32 = 12;
const N: usize = 33;

fn busy(p: usize, ith: u16) -> u64 {
    10_000 + 100 * p as u64 + 1000 * u64::from(ith)
}

/// Counts of a slice, in order of counter id; thread 1 has no cycles at position 2.
fn counts(p: usize, ith: u16) -> [Option<u64>; 3] {
    let cycles = 2000 + p as u64 + 10 * u64::from(ith);
    [Some(3 * cycles), (p != 2 || ith == 0).then_some(cycles), Some(100 + p as u64)]
}

fn count(p: usize, ith: u16, i: usize) -> u64 {
    counts(p, ith)[i].unwrap_or(0)
}

/// One decode call; the counts of each thread come in two records, and the second one in the file has the first
/// positions.
fn trace(finish: impl FnOnce(&mut Synth<Vec<u8>>)) -> Report {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.enc.counter(&counter(CYCLES, "cycles", "events", 1)).unwrap();
    s.enc.counter(&counter(INSTRUCTIONS, "INST_RETIRED", "events", 1)).unwrap();
    s.enc.counter(&counter(LINES, "l3d_cache_refill", "bytes", 64)).unwrap();
    let why = "the PMU of CPU 0 has no such event";
    let none = Counter { state: Availability::None, why, ..counter(REFUSED, "stall_backend", "events", 1) };
    s.enc.counter(&none).unwrap();
    let graph = s.graphs;
    s.call(1, busy);
    let counters = 1 << CYCLES | 1 << INSTRUCTIONS | 1 << LINES;
    for ith in 0..2 {
        for range in [5..N, 0..5] {
            let run = CounterRun { graph, ith, plan: 0, first: range.start as u32, counters };
            let told: Vec<_> = range.flat_map(|p| counts(p, ith)).collect();
            s.enc.op_counts(&run, &told).unwrap();
        }
    }
    finish(&mut s);
    let trace = Trace::from_bytes(s.enc.finish(&footer("target exited")).unwrap()).unwrap();
    report(
        &trace,
        &ReportOptions { top: None, tables: By::ALL.to_vec(), ..ReportOptions::default() },
        &LoadProgress::default(),
    )
}

fn op(p: &PhaseReport, name: &str) -> CounterRow {
    p.by_name.as_ref().unwrap().iter().find(|r| r.name == name).unwrap().counted.clone().unwrap()
}

fn all(i: usize, positions: &[usize]) -> u64 {
    positions.iter().map(|p| count(*p, 0, i) + count(*p, 1, i)).sum()
}

#[test]
fn sums_and_what_follows_from_them() {
    let r = trace(|_| ());
    let p = &r.phases[0];
    // Qcur of both layers; thread 1 has no cycles in the first one.
    let q = op(p, "MUL_MAT  Qcur-{L}");
    let (instructions, cycles, lines) = (&q.counters[0], &q.counters[1], &q.counters[2]);
    assert_eq!(
        (instructions.name.as_str(), instructions.total, instructions.share),
        ("INST_RETIRED", Some(all(0, &[2, 17])), 1.0)
    );
    assert_eq!((cycles.name.as_str(), cycles.total, cycles.share), ("cycles", Some(all(1, &[2, 17])), 0.75));
    assert_eq!(lines.total, Some(64 * all(2, &[2, 17])));
    // Thread 1 is the slowest.
    let seconds = (busy(2, 1) + busy(17, 1)) as f64;
    assert!((lines.gb_per_s.unwrap() - 64.0 * all(2, &[2, 17]) as f64 / seconds).abs() < 1e-9);
    assert_eq!((instructions.gb_per_s, cycles.gb_per_s), (None, None));
    // Only slices with both counters go into the ratio.
    assert_eq!((q.ipc, q.stalled_share), (Some(3.0), None));
    let refused = &q.counters[3];
    assert_eq!((refused.name.as_str(), refused.total, refused.share), ("stall_backend", None, 0.0));
    let positions: Vec<usize> = (0..N).collect();
    let threads = p.by_thread.as_ref().unwrap();
    let thread = |i: usize| threads.iter().filter_map(|t| t.counted.as_ref()?.counters[i].total).sum::<u64>();
    let ops = |i: usize| {
        let rows = p.by_op.as_ref().unwrap().iter();
        rows.filter_map(|r| r.counted.as_ref()?.counters[i].total).sum::<u64>()
    };
    for i in 0..2 {
        assert_eq!((thread(i), ops(i)), (all(i, &positions), all(i, &positions)));
    }
}

#[test]
fn bytes_read_and_written_are_rates_of_their_own() {
    let mut s = Synth::new(Vec::new(), Spec { threads: 1, ..Spec::default() });
    s.enc.counter(&counter(0, "l3d_cache_refill", "bytes", 64)).unwrap();
    s.enc.counter(&counter(1, "mem_access_wr", "bytes", 16)).unwrap();
    let graph = s.graphs;
    s.call(1, busy);
    let run = CounterRun { graph, ith: 0, plan: 0, first: 0, counters: 3 };
    let told: Vec<_> = (0..N).flat_map(|p| [Some(1000 + p as u64), Some(300)]).collect();
    s.enc.op_counts(&run, &told).unwrap();
    let trace = Trace::from_bytes(s.enc.finish(&footer("target exited")).unwrap()).unwrap();
    let r = report(
        &trace,
        &ReportOptions { tables: By::ALL.to_vec(), ..ReportOptions::default() },
        &LoadProgress::default(),
    );
    let q = op(&r.phases[0], "MUL_MAT  Qcur-{L}");
    let seconds = (busy(2, 0) + busy(17, 0)) as f64;
    let rates = [64.0 * (1002 + 1017) as f64, 16.0 * 600.0].map(|bytes| bytes / seconds);
    let told: Vec<f64> = q.counters.iter().map(|c| c.gb_per_s.unwrap()).collect();
    assert!(told.iter().zip(rates).all(|(told, rate)| (told - rate).abs() < 1e-9), "{told:?} {rates:?}");
}

#[test]
fn a_call_without_all_threads_counts_for_no_bandwidth() {
    let r = trace(|s| {
        // The second call has counts for thread 0 only.
        let graph = s.graphs;
        s.call(1, busy);
        let told: Vec<_> = (0..N).map(|_| Some(1_000_000)).collect();
        let run = CounterRun { graph, ith: 0, plan: 0, first: 0, counters: 1 << LINES };
        s.enc.op_counts(&run, &told).unwrap();
    });
    let embd = op(&r.phases[0], "GET_ROWS  embd");
    let lines = &embd.counters[2];
    assert_eq!((lines.total, lines.share), (Some(64 * (all(2, &[0]) + 1_000_000)), 0.75));
    assert!((lines.gb_per_s.unwrap() - (64 * all(2, &[0])) as f64 / busy(0, 1) as f64).abs() < 1e-9);
}

#[test]
fn what_is_not_whole_is_said() {
    let r = trace(|s| {
        let shared = Counter { running_ns: 400, ..counter(CYCLES, "cycles", "events", 1) };
        s.enc.counter(&shared).unwrap();
    });
    let mut out = Vec::new();
    render::text::write(&mut out, &r, &Default::default()).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("Counters by op, decode"), "{text}");
    assert!(text.contains("cycles: counted 40.00 % of the time, the rest is extrapolated"), "{text}");
    assert!(text.contains("stall_backend: not available: the PMU of CPU 0 has no such event"), "{text}");
    // A counter without any value has no column; one with gaps shows its coverage.
    let head = text.lines().find(|l| l.contains("IPC")).unwrap();
    assert!(head.contains("coverage %") && !head.contains("stall"), "{head}");
    // Coverage over the counters shown, without the unavailable one.
    let table = text.split("Counters by op").nth(1).unwrap();
    let line = table.lines().find(|l| l.ends_with("  GET_ROWS")).unwrap();
    assert!(line.ends_with(" 100.00  GET_ROWS"), "{text}");
}

/// Undefined ids, records beyond the plan, truncated lists: no panic and no figure.
#[test]
fn counts_that_fit_nothing_are_left_out() {
    let r = trace(|s| {
        let graph = s.graphs;
        s.call(1, busy);
        for (first, counters, n) in [(0, 1 << 31, 5), (30, 1 << CYCLES, 40), (u32::MAX - 1, 1 << CYCLES, 9)] {
            let run = CounterRun { graph, ith: 0, plan: 0, first, counters };
            s.enc.op_counts(&run, &vec![Some(7); n]).unwrap();
        }
    });
    let embd = op(&r.phases[0], "GET_ROWS  embd");
    assert_eq!(embd.counters[1].total, Some(all(1, &[0])));
    let last = op(&r.phases[0], "MUL_MAT  result_output");
    assert_eq!(last.counters[1].total, Some(all(1, &[32]) + 7));
}
