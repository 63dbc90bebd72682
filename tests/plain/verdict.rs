//! The verdict and the advice of `report` and `advise`, from traces of which the causes are known.

use crate::synth_trace;

use std::process::{Command, Output};

use analysis::questions::report::{Report, ReportOptions, report};
use analysis::questions::verdict::RunVerdict;
use analysis::questions::verdict::limit::LimitKind;
use analysis::recorded::load::LoadProgress;
use pfi::Trace;
use pfi::record::{Availability, FileRead, Module, OffCpu, Peaks, ReadFile, StateAt, TargetState};
use synth_trace::causes::*;
use synth_trace::*;

/// Time of an op on a thread that is not disturbed, ns.
pub(crate) const OP: u64 = 100_000;
pub(crate) const CALLS: u64 = 6;
pub(crate) const POSITIONS: usize = 33;

pub(crate) fn even(_: usize, _: u16) -> u64 {
    OP
}

/// A run with the scheduler recorded, in which nothing is wrong.
pub(crate) fn begin(spec: Spec) -> Synth<Vec<u8>> {
    let mut s = Synth::new(Vec::new(), spec);
    s.enc.feature(&feature("scheduler", Availability::Whole, "tracepoints")).unwrap();
    s.enc.task(900, "hog").unwrap();
    s
}

fn state(at: StateAt) -> TargetState<'static> {
    let mono_ns = ORIGIN + at as u64;
    TargetState { pid: PID, at, mono_ns, affinity: "0-1", online: "0-1", ..TargetState::default() }
}

/// Adds the same state at the start and at the end, each changed by `change`.
pub(crate) fn states(
    s: &mut Synth<Vec<u8>>,
    change: impl Fn(StateAt, TargetState<'static>) -> TargetState<'static>,
) {
    for at in [StateAt::Start, StateAt::End] {
        s.enc.target_state(&change(at, state(at))).unwrap();
    }
}

pub(crate) fn peaks(s: &mut Synth<Vec<u8>>, mega: u64) {
    let p =
        Peaks { cluster: "all", cpus: "0-1", threads: 2, read: mega, isa: "avx512vnni", ..Peaks::default() };
    s.enc.peaks(&Peaks { measured_s: 1_764_000_000, ..p }).unwrap();
}

fn run(s: &mut Synth<Vec<u8>>) {
    (0..CALLS).for_each(|_| s.call(1, even));
}

pub(crate) fn end(s: Synth<Vec<u8>>) -> Vec<u8> {
    s.enc.finish(&footer("target exited")).unwrap()
}

fn of(file: Vec<u8>) -> Report {
    let options = ReportOptions { verdict: true, ..ReportOptions::default() };
    report(&Trace::from_bytes(file).unwrap(), &options, &LoadProgress::default())
}

pub(crate) fn verdict(file: Vec<u8>) -> RunVerdict {
    of(file).verdict.unwrap()
}

pub(crate) fn rules(v: &RunVerdict) -> Vec<&str> {
    v.advice.iter().map(|a| a.rule).collect()
}

fn text(r: &Report) -> String {
    let mut out = Vec::new();
    render::verdict::write(&mut out, r, "run.pfi", &render::table::Style::default()).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.lines().all(|l| l.chars().count() <= 100), "{text}");
    text
}

fn unfolded(r: &Report) -> String {
    text(r).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// All threads compute all the time, at `share` of the ceiling.
fn healthy(share: f64) -> Vec<u8> {
    let at = |mega| {
        let mut s = begin(Spec::default());
        peaks(&mut s, mega);
        run(&mut s);
        states(&mut s, |_, state| state);
        end(s)
    };
    let v = verdict(at(1000));
    let reached = v.phases[0].ceiling.as_ref().expect("weights and peaks are known").reached;
    at((1000.0 * reached / share) as u64)
}

#[test]
fn a_run_near_the_ceiling_gets_no_advice() {
    let r = of(healthy(0.8));
    let v = r.verdict.as_ref().unwrap();
    assert_eq!(rules(v), Vec::<&str>::new());
    assert_eq!(v.missing, Vec::<String>::new());
    assert_eq!(v.limit.as_ref().unwrap().kind, LimitKind::Memory);
    let top = v.phases[0].ceiling.as_ref().unwrap();
    assert!((top.reached - 0.8).abs() < 0.02 && top.source == "measured", "{top:?}");
    assert!((top.tokens_per_s.unwrap() * top.reached / v.phases[0].tokens_per_s.unwrap() - 1.0).abs() < 0.01);
    let text = text(&r);
    assert!(text.contains("none: 81 % of what memory delivers to these threads"), "{text}");
    assert!(!unfolded(&r).contains("more threads"), "two CPUs are all that there are: {text}");
    assert!(text.lines().count() <= 11, "{text}");
}

#[test]
fn the_bar_adds_up_to_the_whole() {
    let mut s = begin(Spec::default());
    for _ in 0..CALLS {
        let first = s.now + 3 * LEAD;
        s.call(1, |_, ith| OP / (1 + u64::from(ith)));
        s.enc.off_cpu(&preempted(0, start_of(first, 1, |_| OP) + 1000, OP / 3)).unwrap();
        s.enc.off_cpu(&faulted(1, start_of(first, 5, |_| OP) + 1000, OP / 5)).unwrap();
    }
    let v = verdict(end(s));
    let bar = v.phases[0].bar.unwrap();
    assert!((bar.all().iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9, "{bar:?}");
    let wall = v.phases[0].bar_wall.unwrap();
    assert_eq!(wall.percent().iter().map(|(_, n)| n).sum::<u32>(), 100);
    // Thread 1 computes half of the time and waits for the other; each was off-CPU in one op of 33.
    let whole = (2 * POSITIONS) as f64;
    assert!((bar.waiting_for_cpu.unwrap() - 1.0 / 3.0 / whole).abs() < 1e-3, "{bar:?}");
    assert!((bar.faults.unwrap() - 0.2 / whole).abs() < 1e-3, "{bar:?}");
    assert!((bar.computing - 0.75).abs() < 0.02 && (bar.barrier.unwrap() - 0.25).abs() < 0.02, "{bar:?}");
}

/// Killed after a call had begun and before its graph: what a call reads is as if it had not begun.
#[test]
fn a_call_that_was_cut_changes_no_ceiling() {
    let bytes = |cut: bool| {
        let mut s = begin(Spec::default());
        peaks(&mut s, 10_000);
        run(&mut s);
        let t = s.now as i64;
        let (entry, device) = (pfi::record::Entry::Decode, pfi::record::Device::Idle);
        let (seq, n_tokens) = (CALLS, Some(1));
        let begun =
            pfi::record::Token { seq, pid: PID, tid: TID, entry, n_tokens, t, dur: 1000, cut, device };
        cut.then(|| s.enc.token(&begun).unwrap());
        let v = verdict(end(s));
        v.phases[0].ceiling.as_ref().expect("peaks are known").weight_bytes
    };
    assert_eq!(bytes(true), bytes(false));
}

#[test]
fn threads_above_the_cpus_of_their_masks_come_first() {
    let of = |affinity, threads, waits| {
        let mut s = begin(Spec::default());
        for _ in 0..CALLS {
            let first = s.now + 3 * LEAD;
            s.call(1, even);
            let at = |op| start_of(first, op, |_| OP) + 1000;
            (0..waits).for_each(|op| s.enc.off_cpu(&preempted(0, at(op), OP / 2)).unwrap());
        }
        states(&mut s, |_, state| TargetState { affinity, threads, online: "0-3", ..state });
        verdict(end(s))
    };
    let with = |affinity, threads| of(affinity, threads, POSITIONS);
    for v in [with("0", ""), with("0-1", "4243:1;4244:1")] {
        assert_eq!(rules(&v)[0], "oversubscribed");
        assert!(v.advice[0].actions[0] == "-t 1" && v.advice[0].evidence.starts_with("2 threads on 1 CPU"));
        assert!(v.advice[0].actions[1].contains("taskset -acp 0-3"), "{:?}", v.advice[0]);
    }
    assert!(!rules(&with("0-1", "4243:0;4244:1")).contains(&"oversubscribed"));
    // A mask alone is no evidence: nobody waited for a CPU.
    assert_eq!(rules(&of("0", "", 0)), Vec::<&str>::new());
    // Offline CPUs are none.
    assert_eq!(rules(&with("3-9", ""))[0], "oversubscribed");
}

#[test]
fn a_quota_that_cuts_periods_short_is_named() {
    // Periods that were cut short, each of them by so many us of its threads' time.
    let with = |threads, quota_us, throttled, us| {
        let mut s = begin(Spec { threads, ..Spec::default() });
        run(&mut s);
        states(&mut s, |at, state| TargetState {
            quota_us: Some(quota_us),
            period_us: Some(100_000),
            quota_group: "/g",
            periods: Some(10 + 100 * at as u64),
            throttled: Some(throttled * at as u64),
            throttled_us: Some(throttled * us * at as u64),
            ..state
        });
        verdict(end(s))
    };
    let v = with(2, 150_000, 40, 50_000);
    assert_eq!(rules(&v)[0], "cpu-quota");
    let a = &v.advice[0];
    assert!(a.evidence.contains("a quota of 1.50 CPUs on 2 threads; 40 % of its periods"), "{a:?}");
    assert!(a.actions[0].contains("CPUQuota=200%") && a.actions[1].starts_with("or -t 1"), "{a:?}");
    assert_eq!(rules(&with(2, 150_000, 1, 50_000)), Vec::<&str>::new());
    // The end of a period is reached by a hair: the quota costs nothing.
    assert_eq!(rules(&with(1, 100_000, 40, 2_000)), Vec::<&str>::new());
    // A CPU for the thread, and the rest of the group takes of it: neither fewer threads nor as many CPUs are advised.
    let v = with(1, 100_000, 40, 50_000);
    let a = v.advice.iter().find(|a| a.rule == "cpu-quota").unwrap();
    assert!(a.title.ends_with("of 1.00 CPUs: other threads in its control group use it up"), "{a:?}");
    assert!(a.actions[0].contains("2 CPUs or more") && a.actions[0].contains("CPUQuota=200%"), "{a:?}");
    assert!(a.actions[1].contains("outside of it") && a.evidence.contains("on 1 thread;"), "{a:?}");
}

/// As many threads as the quota allows: more of them are named nowhere.
#[test]
fn what_a_quota_forbids_is_not_held_out() {
    let with = |quota_us, mega| {
        let mut s = begin(Spec { threads: 1, ..Spec::default() });
        for (threads, read) in [(1, mega), (2, mega * 9 / 5)] {
            let p = Peaks { cluster: "all", cpus: "0-1", threads, read, isa: "avx2", ..Peaks::default() };
            s.enc.peaks(&Peaks { measured_s: 1_764_000_000, ..p }).unwrap();
        }
        run(&mut s);
        states(&mut s, |_, state| TargetState {
            quota_us,
            period_us: Some(100_000),
            quota_group: "/g",
            ..state
        });
        of(end(s))
    };
    let reached = |r: &Report| r.verdict.as_ref().unwrap().phases[0].ceiling.as_ref().unwrap().reached;
    let near = (1000.0 * reached(&with(None, 1000)) / 0.8) as u64;
    let free = unfolded(&with(None, near));
    assert!(free.contains("with 2 threads") && free.contains("-t 2"), "{free}");
    let bound = unfolded(&with(Some(100_000), near));
    let ways = ["2 threads", "more threads", "-t 2"];
    assert!(ways.iter().all(|way| !bound.contains(way)) && bound.contains("a higher CPU"), "{bound}");
}

/// Thread 0 needs ten times as long in each op, nine tenths of it without a CPU.
fn disturbed() -> Vec<u8> {
    disturbed_by(900, 900)
}

/// `by` took the CPU each time, and `from` ran on it last.
fn disturbed_by(by: u32, from: u32) -> Vec<u8> {
    let mut s = begin(Spec::default());
    s.enc.task(77, "rcu_preempt").unwrap();
    for _ in 0..CALLS {
        let first = s.now + 3 * LEAD;
        let slow = |_, ith: u16| if ith == 0 { 10 * OP } else { OP };
        s.call(1, slow);
        for p in 0..POSITIONS {
            let away = preempted(0, start_of(first, p, |_| 10 * OP) + 1000, 9 * OP);
            s.enc.off_cpu(&OffCpu { by, from, ..away }).unwrap();
        }
    }
    states(&mut s, |_, state| state);
    end(s)
}

/// It runs for microseconds, and nobody can stop it.
#[test]
fn a_kernel_thread_is_never_the_one_to_stop() {
    let v = verdict(disturbed_by(77, 900));
    assert!(v.advice[0].actions[0].starts_with("stop hog"), "{:?}", v.advice);
    let v = verdict(disturbed_by(77, 77));
    assert_eq!(rules(&v), Vec::<&str>::new());
    let limit = v.limit.as_ref().unwrap();
    assert_eq!(limit.text, "CPU contention: the kernel's own threads had the CPU");
    assert!(v.no_advice.as_ref().is_some_and(|why| why.contains("record again")), "{:?}", v.no_advice);
}

#[test]
fn time_between_calls_is_shown_and_looked_at() {
    let with = |pause| {
        let mut s = begin(Spec::default());
        for _ in 0..CALLS {
            s.call(1, even);
            s.now += pause;
        }
        of(end(s))
    };
    let (quick, slow) = (with(0), with(POSITIONS as u64 * OP));
    assert!(!rules(quick.verdict.as_ref().unwrap()).contains(&"between-calls"));
    assert!(rules(slow.verdict.as_ref().unwrap()).contains(&"between-calls"));
    assert!(text(&slow).contains("tok/s with the time between calls (50 %)"), "{}", text(&slow));
    assert!(!text(&quick).contains("between calls"), "{}", text(&quick));
}

/// A client that waits for longer than a call takes.
#[test]
fn time_between_calls_can_be_the_limit() {
    let with = |pause| {
        let mut s = begin(Spec::default());
        for _ in 0..CALLS {
            s.call(1, even);
            s.now += pause;
        }
        verdict(end(s))
    };
    let v = with(3 * POSITIONS as u64 * OP);
    assert_eq!(v.limit.as_ref().unwrap().kind, LimitKind::BetweenCalls);
    assert!(rules(&v)[0] == "between-calls" && v.first_removes_limit && v.no_advice.is_none(), "{v:?}");
    let quick = with(POSITIONS as u64 * OP / 4);
    assert_ne!(quick.limit.unwrap().kind, LimitKind::BetweenCalls);
}

/// Where nothing removes the limit, a number says what would have to change.
#[test]
fn a_healthy_run_is_told_what_would_have_to_change() {
    for share in [0.8, 0.3] {
        let v = verdict(healthy(share));
        let why = v.no_advice.as_ref().expect("a reason");
        let top = v.phases[0].ceiling.as_ref().unwrap().tokens_per_s.unwrap();
        assert!(!v.first_removes_limit && v.limit.is_some(), "{v:?}");
        assert!(why.starts_with("none: ") && why.contains(&format!(" of {top:.1} tok/s")), "{why}");
    }
    let why = verdict(healthy(0.8)).no_advice.unwrap();
    assert!(why.contains(" MB that a call reads") && why.contains("a memory faster than "), "{why}");
    let why = verdict(healthy(0.3)).no_advice.unwrap();
    assert!(why.contains("3.3 times as high") && why.contains("profinfer tune -- "), "{why}");
}

#[test]
fn prompts_in_small_parts_are_told() {
    let with = |widths: &[u32]| {
        let mut s = begin(Spec::default());
        s.ubatches(widths, even);
        run(&mut s);
        verdict(end(s))
    };
    let v = with(&[16; 16]);
    assert_eq!(rules(&v), ["small-batches"]);
    let a = &v.advice[0];
    assert!(a.title.contains("16 tokens at a time") && a.actions[0].starts_with("-ub 512"), "{a:?}");
    // Decoding is limited by something else.
    assert!(
        v.no_advice.as_ref().is_some_and(|why| why.starts_with("none for the limit: ")),
        "{:?}",
        v.no_advice
    );
    assert_eq!(rules(&with(&[128, 128])), Vec::<&str>::new());
    assert_eq!(rules(&with(&[16, 16])), Vec::<&str>::new(), "a short prompt");
}

/// The file is read in the first call, and is in memory after it.
#[test]
fn a_first_call_that_reads_the_file_is_told() {
    let with = |cold: u64, later: u64| {
        let mut s = begin(Spec::default());
        let first = s.now + 3 * LEAD;
        s.call(8, |p, _| if p == 1 { cold + OP } else { OP });
        if cold > 0 {
            s.enc.off_cpu(&faulted(0, start_of(first, 1, |_| OP) + 1000, cold)).unwrap();
            s.enc.off_cpu(&faulted(1, start_of(first, 1, |_| OP) + 1000, cold)).unwrap();
        }
        for _ in 0..CALLS {
            let first = s.now + 3 * LEAD;
            s.call(1, even);
            for p in 0..later as usize {
                s.enc.off_cpu(&faulted(1, start_of(first, p, |_| OP) + 1000, OP / 2)).unwrap();
            }
        }
        verdict(end(s))
    };
    let v = with(100 * OP, 0);
    assert_eq!(rules(&v), ["cold-start"]);
    assert!(v.advice[0].actions[0].starts_with("measure again"), "{:?}", v.advice[0]);
    assert_eq!(rules(&with(100 * OP, POSITIONS as u64)), ["major-faults"]);
    assert_eq!(rules(&with(0, 0)), Vec::<&str>::new());
}

/// A disk that reads ahead far more than a token needs: what it pushes out of memory is read again.
#[test]
fn what_is_read_ahead_for_nothing_is_told() {
    let with = |bytes: u64, read_ahead_kb: u64| {
        let mut s = begin(Spec::default());
        let setting = "/sys/class/bdi/254:0/read_ahead_kb";
        let file = ReadFile { id: 0, name: "model.gguf", setting, read_ahead_kb: Some(read_ahead_kb) };
        s.enc.read_file(&file).unwrap();
        for _ in 0..CALLS {
            let first = s.now + 3 * LEAD;
            s.call(1, even);
            for p in 0..POSITIONS {
                s.enc.off_cpu(&faulted(1, start_of(first, p, |_| OP) + 1000, OP / 2)).unwrap();
            }
            let t = first as i64;
            s.enc.file_read(&FileRead { pid: PID, tid: TID, file: 0, t, dur: 0, addr: 0, bytes }).unwrap();
        }
        verdict(end(s))
    };
    let v = with(1 << 30, 8192);
    assert_eq!((rules(&v)[0], v.limit.as_ref().map(|l| l.kind)), ("read-ahead", Some(LimitKind::PageFaults)));
    let first = &v.advice[0];
    assert_eq!(first.actions[0], "echo 128 | sudo tee /sys/class/bdi/254:0/read_ahead_kb");
    assert!(first.evidence.contains("a call read 1073.7 MB"), "{}", first.evidence);
    assert!(first.gain.is_some_and(|g| g.least > 1.0 && g.least < 2.0), "{:?}", first.gain);
    // The kernel's work for a thread seems to be the operator's: nothing else says that storage is the limit.
    assert!(v.limit.as_ref().is_some_and(|l| l.text.contains("page faults")), "{:?}", v.limit);
    // What is needed is read, or the read-ahead is the kernel's own: nothing to gain there.
    for v in [with(1, 8192), with(1 << 30, 128)] {
        assert_eq!(rules(&v), ["major-faults"]);
    }
}

#[test]
fn calls_from_changing_threads_are_told() {
    let with = |changes: bool| {
        let mut s = begin(Spec::default());
        for i in 0..20 {
            s.caller = if changes { 9000 + i } else { TID };
            s.call(1, even);
        }
        verdict(end(s))
    };
    assert_eq!(rules(&with(true))[0], "changing-callers");
    assert!(!rules(&with(false)).contains(&"changing-callers"));
}

/// Of a run that could be faster with more threads, both ceilings are named.
#[test]
fn the_ceiling_is_that_of_the_runs_threads() {
    let with = |most: u64| {
        let mut s = begin(Spec { threads: 1, ..Spec::default() });
        for (threads, read) in [(1, 100), (2, most)] {
            let p = Peaks { cluster: "all", cpus: "0-1", threads, read, isa: "avx2", ..Peaks::default() };
            s.enc.peaks(&Peaks { measured_s: 1_764_000_000, ..p }).unwrap();
        }
        run(&mut s);
        states(&mut s, |_, state| state);
        of(end(s))
    };
    let r = with(180);
    let v = r.verdict.as_ref().unwrap();
    let (top, more) = (v.phases[0].ceiling.as_ref().unwrap(), v.phases[0].machine.as_ref().unwrap());
    assert_eq!((top.threads, top.peak, more.threads, more.peak), (Some(1), 0.1, Some(2), 0.18));
    assert_eq!(r.ceiling.as_ref().unwrap().peak.gb_per_s, top.peak, "of the tables of ops");
    assert_eq!(rules(v), ["more-threads"]);
    assert!(v.advice[0].title.contains("the ceiling with 2 is 1.80 times as high"), "{:?}", v.advice);
    assert!(with(105).verdict.unwrap().phases[0].machine.is_none(), "scatter");
}

#[test]
fn a_program_in_the_way_is_named_with_the_gain_of_its_end() {
    let r = of(disturbed());
    let v = r.verdict.as_ref().unwrap();
    assert_eq!(rules(v), ["cpu-contention"]);
    let a = &v.advice[0];
    assert!(a.title.contains("hog") && a.actions[0].starts_with("stop hog"), "{a:?}");
    let gain = a.gain.unwrap();
    // Without it, a call takes a tenth.
    assert!(gain.least <= 10.0 && gain.most >= 10.0 && gain.most / gain.least < 2.0, "{gain:?}");
    assert_eq!(v.limit.as_ref().unwrap().kind, LimitKind::CpuContention);
    let text = text(&r);
    assert!(text.contains("Limit      CPU contention: hog"), "{text}");
}

/// Both threads on CPU 0, which they take from each other, although they may use CPU 1, where a program was seen.
#[test]
fn threads_kept_off_a_cpu_they_may_use_are_told_from_too_many() {
    let with = |affinity, cpu, seen: bool| {
        let mut s = begin(Spec::default());
        s.cpu = cpu;
        for _ in 0..CALLS {
            let first = s.now + 3 * LEAD;
            s.call(1, |_, ith: u16| if ith == 0 { 10 * OP } else { OP });
            for p in 0..POSITIONS {
                let away = preempted(0, start_of(first, p, |_| 10 * OP) + 1000, 9 * OP);
                s.enc.off_cpu(&OffCpu { by: TID + 1, from: TID + 1, ..away }).unwrap();
            }
            if seen {
                s.enc.off_cpu(&preempted(1, first as i64 + 1000, 10)).unwrap();
            }
        }
        states(&mut s, |_, state| TargetState { affinity, ..state });
        of(end(s))
    };
    let together: fn(u64, usize, u16) -> Option<u16> = |_, _, _| Some(0);
    let r = with("0-1", together, true);
    let v = r.verdict.as_ref().unwrap();
    assert_eq!(rules(v), ["cpu-contention"]);
    let a = &v.advice[0];
    assert!(a.title.contains("hog") && a.actions.last().unwrap() == "or leave it a CPU: -t 1", "{a:?}");
    assert!(a.gain.is_some_and(|g| g.most > 5.0), "{a:?}");
    let wanted = "CPU contention: 2 threads shared CPU 0, though more are allowed; hog ran on CPU 1";
    assert!(text(&r).contains(wanted), "{}", text(&r));
    // Nobody was seen there: nobody is named.
    let a = &with("0-1", together, false).verdict.unwrap().advice[0];
    assert!(
        a.rule == "cpu-contention"
            && a.title.starts_with("give each thread a CPU")
            && a.actions[0].starts_with("find what keeps"),
        "{a:?}"
    );
    // They may use no other, or used both, or where they ran is not known.
    assert_eq!(rules(&with("0", together, true).verdict.unwrap())[0], "oversubscribed");
    for cpu in [(|_, _, ith| Some(ith)) as fn(u64, usize, u16) -> Option<u16>, |_, _, _| None] {
        let v = with("0-1", cpu, true).verdict.unwrap();
        let nothing = v.advice.iter().all(|a| a.rule != "cpu-contention" || a.gain.is_none());
        assert!(nothing, "{:?}", v.advice);
    }
}

#[test]
fn unequal_cores_in_one_team_are_told() {
    let with = |cpu| {
        let mut s = begin(Spec { clusters: true, ..Spec::default() });
        s.cpu = cpu;
        run(&mut s);
        states(&mut s, |_, state| TargetState { affinity: "0-3", online: "0-3", ..state });
        verdict(end(s))
    };
    let v = with(|_, _, ith| Some(if ith == 0 { 3 } else { 0 }));
    assert_eq!(rules(&v), ["slow-cores"]);
    assert_eq!(v.advice[0].actions[0], "taskset -c 2,3 COMMAND -t 2");
    assert_eq!(rules(&with(|_, _, ith| Some(2 + ith))), Vec::<&str>::new());
}

#[test]
fn a_clock_that_is_held_down_is_told() {
    let with = |policies| {
        let mut s = begin(Spec::default());
        run(&mut s);
        states(&mut s, |_, state| TargetState { policies, ..state });
        verdict(end(s))
    };
    let v = with("0-1:schedutil:1200000:1200000:2400000");
    assert_eq!(rules(&v), ["throttled"]);
    assert!(v.advice[0].evidence.contains("50 % of cpuinfo_max_freq"), "{:?}", v.advice[0]);
    let slow = with("0-1:powersave:800000:2400000:2400000");
    assert!(rules(&slow) == ["throttled"] && slow.advice[0].evidence.contains("powersave"));
    // A driver that raises the clock whatever the governor is called, and one that tells no clock.
    assert_eq!(rules(&with("0-1:powersave:2300000:2400000:2400000")), Vec::<&str>::new());
    assert_eq!(rules(&with("0-1:powersave:::")), Vec::<&str>::new());
}

#[test]
fn a_cpu_backend_below_the_processor_is_told() {
    let with = |path, isa: bool| {
        let mut s = begin(Spec::default());
        s.enc.module(&Module { engine: 0, path, build_id: "00", role: "cpu" }).unwrap();
        if isa {
            peaks(&mut s, 1);
        }
        run(&mut s);
        verdict(end(s))
    };
    let v = with("/opt/llama/libggml-cpu-sandybridge.so", true);
    assert_eq!(rules(&v), ["cpu-variant"]);
    assert!(v.advice[0].title.contains("sandybridge"), "{:?}", v.advice[0]);
    assert_eq!(rules(&with("/opt/llama/libggml-cpu-zen4.so", true)), Vec::<&str>::new());
    // What the processor has is not known.
    assert_eq!(rules(&with("/opt/llama/libggml-cpu-sandybridge.so", false)), Vec::<&str>::new());
}

#[test]
fn without_evidence_there_is_no_advice_and_what_is_missing_is_told() {
    let short = verdict(end(begin(Spec::default())));
    assert!(short.advice.is_empty() && short.limit.is_none(), "{short:?}");
    assert!(short.missing[0].contains("no engine call was recorded"), "{:?}", short.missing);
    let mut s = Synth::new(Vec::new(), Spec::default());
    run(&mut s);
    let plain = verdict(end(s));
    assert_eq!(rules(&plain), Vec::<&str>::new());
    assert!(plain.missing.iter().any(|m| m.contains("--sched")), "{:?}", plain.missing);
    assert!(plain.missing.iter().any(|m| m.contains("doctor --peaks")), "{:?}", plain.missing);
}

/// The engine's threads take each other's CPU, now here, now there: nothing is promised of what nobody measured.
#[test]
fn threads_that_share_a_cpu_now_and_then_are_bound() {
    let with = |affinity| {
        let mut s = begin(Spec::default());
        s.cpu = |graph, _, _| Some((graph % 2) as u16);
        for _ in 0..30 {
            let first = s.now + 3 * LEAD;
            s.call(1, |_, ith: u16| if ith == 0 { 10 * OP } else { OP });
            for p in 0..POSITIONS {
                let away = preempted(0, start_of(first, p, |_| 10 * OP) + 1000, 9 * OP);
                let by = if p % 8 == 0 { 900 } else { TID + 1 };
                s.enc.off_cpu(&OffCpu { by, from: by, ..away }).unwrap();
            }
        }
        states(&mut s, |_, state| TargetState { affinity, ..state });
        verdict(end(s))
    };
    let v = with("0-1");
    assert_eq!(rules(&v), ["cpu-contention"]);
    let a = &v.advice[0];
    assert!(a.gain.is_none() && a.actions[1].contains("bind each thread"), "{a:?}");
    assert!(a.evidence.contains("hog") && v.first_removes_limit, "{a:?}");
}

fn advise(files: &[(&str, Vec<u8>)], args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    Command::new(env!("CARGO_BIN_EXE_profinfer")).current_dir(&dir).arg("advise").args(args).output().unwrap()
}

#[test]
fn a_later_recording_is_held_against_the_promise() {
    let check = |new: Vec<u8>| {
        let out = advise(&[("a.pfi", disturbed()), ("b.pfi", new)], &["a.pfi", "--check", "b.pfi", "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        (out.status.code(), json["outcome"].as_str().unwrap().to_owned(), json["still_there"] == true)
    };
    assert_eq!(check(healthy(0.8)), (Some(0), "kept".into(), false));
    assert_eq!(check(disturbed()), (Some(3), "below".into(), true));
    let none = advise(&[("a.pfi", healthy(0.8)), ("b.pfi", disturbed())], &["a.pfi", "--check", "b.pfi"]);
    assert_eq!(none.status.code(), Some(1));
    let error = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(error.contains("the first recording has no advice"), "{error}");
    let wrong = advise(
        &[("a.pfi", disturbed()), ("b.pfi", disturbed())],
        &["a.pfi", "--check", "b.pfi", "--rule", "x"],
    );
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(error.contains("no advice by the rule 'x'; it has: cpu-contention"), "{error}");
}

/// Two recordings of one model, with other settings.
#[test]
fn two_recordings_are_answered_beside_each_other() {
    let with = |threads: u16, op: u64, layers: u32| {
        let mut s = begin(Spec { threads, layers, ..Spec::default() });
        for _ in 0..40 {
            s.call(1, |_, _| op);
        }
        end(s)
    };
    let ask = |other: Vec<u8>, more: &[&str]| {
        let files = [("a.pfi", with(1, 2 * OP, 2)), ("b.pfi", other)];
        let out = advise(&files, &[&["a.pfi", "--with", "b.pfi"], more].concat());
        (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, text, error) = ask(with(2, OP, 2), &[]);
    assert_eq!((code, &*error), (Some(0), ""));
    assert!(
        text.starts_with("B is 2.00 times as fast as A") && text.contains("they differ in threads: 1 and 2"),
        "{text}"
    );
    assert!(text.contains("  do        -t 2") && text.contains("profinfer tune -- "), "{text}");
    let (_, json, _) = ask(with(2, OP, 2), &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let [low, high] = [0, 1].map(|i| json["interval"][i].as_f64().unwrap());
    let change = json["change"].as_f64().unwrap();
    assert!(json["faster"] == "B" && low <= change && change <= high, "{json}");
    // Slower, and no different: fewer threads are as good.
    assert!(ask(with(2, 4 * OP, 2), &[]).1.contains("A is "), "more threads that are slower");
    let (_, same, _) = ask(with(2, 2 * OP, 2), &[]);
    assert!(
        same.starts_with("A and B are equally fast") && same.contains("-t 1: as fast with fewer threads"),
        "{same}"
    );
    let (code, _, error) = ask(with(2, OP, 3), &[]);
    assert!(code == Some(1) && error.contains("different models (layers: 2 and 3)"), "{error}");
}
