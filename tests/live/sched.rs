//! `record --sched` compared with the kernel's own accounting of the same threads: /proc/PID/task/TID/schedstat and
//! the context switch counts in `status`.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::busy::{Busy, pin};
use common::run::{Recorder, Target, record, wait_until};
use common::seen::Seen;
use common::{fixture, live, model, runner, skip};
use pfi::record::{Availability, OffCpu, SourceKind, Tristate};

/// `OffCpu.state`: runnable; asleep; not interruptible by a signal; not run before.
const PREEMPTED: u8 = 0;
const INTERRUPTIBLE: u8 = 1;
const UNINTERRUPTIBLE: u8 = 2;
const NEW: u8 = 255;

/// BPF with either buffer, and without BPF.
const WAYS: [&[&str]; 3] = [&[], &["--pbuf"], &["--source", "perf"]];

/// CLOCK_MONOTONIC, ns.
fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn threads(pid: u32) -> BTreeSet<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    tasks
        .map(|t| t.expect("a task").file_name().to_str().and_then(|n| n.parse().ok()).expect("a number"))
        .collect()
}

fn proc_text(pid: u32, tid: u32, name: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}")).unwrap_or_default()
}

/// Total time that a thread has waited for a CPU, ns, in the kernel's accounting: updated when a wait is over.
fn run_delay(pid: u32, tid: u32) -> u64 {
    let text = proc_text(pid, tid, "schedstat");
    text.split_ascii_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("schedstat")
}

/// How often a thread has left a CPU.
fn switches(pid: u32, tid: u32) -> u64 {
    let text = proc_text(pid, tid, "status");
    let of = |l: &str| l.split_once("_ctxt_switches:").and_then(|(_, n)| n.trim().parse::<u64>().ok());
    text.lines().filter_map(of).sum()
}

/// The CPU that a thread is pinned to.
fn cpu_of(pid: u32, tid: u32) -> Option<usize> {
    let text = proc_text(pid, tid, "status");
    text.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?.trim().parse().ok()
}

fn of_thread(seen: &Seen, tid: u32) -> Vec<&OffCpu> {
    seen.all.causes.off_cpu.iter().filter(|r| r.tid == tid).collect()
}

/// A thread's name when a record was written.
fn name_at(seen: &Seen, tid: u32, record: usize) -> &'static str {
    let told = seen.all.causes.tasks.iter().filter(|(at, t)| t.tid == tid && *at <= record);
    told.map(|(_, t)| t.comm).next_back().unwrap_or_default()
}

/// Conditions for every successful recording with --sched: counts agree, nothing is lost, only threads of `pid`, and
/// each thread's off-CPU intervals do not overlap. Without BPF, what the kernel does not show cannot be derived, and
/// some machines hide one of their tasks from tracing.
fn sound(seen: &Seen, pid: u32) {
    seen.books_close();
    let feature = seen.all.causes.features.iter().find(|f| f.name == "scheduler").expect("the feature");
    let offcpu = seen.kind("offcpu");
    match seen.all.header.as_ref().map(|h| h.source) {
        Some(SourceKind::Perf) => {
            assert_eq!(feature.state, Availability::Partly, "{}", feature.why);
        }
        _ => {
            assert_eq!(feature.state, Availability::Whole, "{}", feature.why);
            assert_eq!(offcpu.lost, 0, "times away that were lost");
        }
    }
    let records = &seen.all.causes.off_cpu;
    assert_eq!(offcpu.recorded, records.len() as u64, "records of events");
    let mut ends: BTreeMap<u32, i64> = BTreeMap::new();
    // The buffers of several CPUs are read in turn.
    let mut in_order: Vec<_> = records.iter().collect();
    in_order.sort_by_key(|r| r.t);
    for r in in_order {
        assert_eq!(r.pid, pid, "a foreign thread: {r:?}");
        let end = ends.entry(r.tid).or_insert(i64::MIN);
        assert!(r.t >= *end, "two times away at once: {r:?}");
        *end = r.t + r.dur as i64;
        assert!(r.runnable.is_none_or(|n| n <= r.dur), "{r:?}");
        assert!(r.state != PREEMPTED || r.runnable == Some(r.dur), "a preempted thread could run: {r:?}");
    }
}

/// A recording with --sched of a running process, while `during` runs; returns the trace and the result of
/// `during`.
fn attached<T>(pid: u32, options: &[&str], during: impl FnOnce() -> T) -> (Seen, T) {
    let pid = pid.to_string();
    let args = [&["--sched", "-p", &pid], options].concat();
    let recorder = Recorder::start(&args);
    recorder.wait_for_probes();
    let got = during();
    recorder.signal(libc::SIGINT);
    (recorder.finish().seen(), got)
}

/// Sum of the waits for a CPU that ended within the window, from the trace: schedstat also counts a wait when it is
/// over.
fn waited(seen: &Seen, tid: u32, window: (u64, u64)) -> u64 {
    ended(seen, tid, window).map(|r| r.runnable.unwrap_or_else(|| panic!("no wake-up seen: {r:?}"))).sum()
}

/// The times away that ended within the window.
fn ended(seen: &Seen, tid: u32, (from, to): (u64, u64)) -> impl Iterator<Item = &OffCpu> {
    let within = move |r: &&OffCpu| (from as i64..to as i64).contains(&(r.t + r.dur as i64)) && !r.cut;
    of_thread(seen, tid).into_iter().filter(within)
}

/// A moment, and what each thread has waited for a CPU until then by the kernel's accounting.
type RecorderBackoff = (u64, BTreeMap<u32, u64>);

const MS: Duration = Duration::from_millis(1);

/// How often the kernel's accounting is compared with ours, and after how many switches each time.
const COMPARED: usize = 40;
const SWITCHES: u64 = 5;

/// The kernel's own accounting for each thread, read again and again, and the interferer by name. Differences: up to a
/// microsecond per switch, because the run queue's clock is read before the tracepoint; and a thread that is
/// preempted on its way to sleep, which the tracepoint correctly shows as runnable and schedstat omits. A machine that
/// is itself a guest may be stopped between the two moments: then one of many comparisons is off.
fn interfered(options: &[&str]) {
    let program = runner();
    let model = model("tiny", "q4_0");
    let args =
        ["run", "--no-roofline", "--pin", "-p", "7", "-n", "1000000", "--ctx", "1000010", "-t", "2", "-m"];
    let target = Target::spawn(Command::new(program).args(args).arg(model));
    let pid = target.pid();
    let mut pinned = None;
    wait_until("a worker on a CPU of its own", || {
        let worker = threads(pid).into_iter().find(|t| *t != pid);
        pinned = worker.and_then(|w| Some((w, cpu_of(pid, w)?)));
        pinned.is_some()
    });
    let (victim, cpu) = pinned.expect("waited for");
    let (seen, read) = attached(pid, options, || {
        let _interferer = Busy::start("interferer", cpu, MS, MS);
        let read = |_| -> RecorderBackoff {
            let end = switches(pid, victim) + SWITCHES;
            wait_until("it loses its CPU", || switches(pid, victim) >= end);
            (now(), threads(pid).into_iter().map(|t| (t, run_delay(pid, t))).collect())
        };
        (0..=COMPARED).map(read).collect::<Vec<RecorderBackoff>>()
    });
    drop(target);
    sound(&seen, pid);
    if seen.kind("offcpu").lost > 0 {
        println!("not compared: {} times away were not shown to the recorder", seen.kind("offcpu").lost);
        return;
    }
    for &tid in read[0].1.keys() {
        let compared: Vec<_> = read
            .windows(2)
            .map(|r| {
                let window = (r[0].0, r[1].0);
                (
                    waited(&seen, tid, window),
                    r[1].1[&tid] - r[0].1[&tid],
                    ended(&seen, tid, window).count() as u64,
                )
            })
            .collect();
        let sum = |of: fn(&(u64, u64, u64)) -> u64| compared.iter().map(of).sum::<u64>();
        println!(
            "{tid}: {:.3} ms by the trace, {:.3} by schedstat, {} times away",
            sum(|c| c.0) as f64 / 1e6,
            sum(|c| c.1) as f64 / 1e6,
            sum(|c| c.2)
        );
        // The kernel reads its clock at a different moment: it counts from when a woken thread is in its CPU's
        // queue, we count from the wakeup. Between them is an interrupt to that CPU: about ten microseconds on a
        // virtual machine.
        let near = |c: &&(u64, u64, u64)| c.0.abs_diff(c.1) <= 15_000 * c.2 + c.1 / 50;
        let near = compared.iter().filter(near).count();
        assert!(near * 4 >= COMPARED * 3, "thread {tid}: {near} of {compared:?}");
    }
    // Others may use that CPU too: they preempted the thread, or were running there when the thread came back.
    let by_interferer = |(i, r): &(usize, &OffCpu)| {
        r.tid == victim
            && r.state == PREEMPTED
            && usize::from(r.cpu) == cpu
            && [r.by, r.from].iter().any(|t| name_at(&seen, *t, *i) == "interferer")
    };
    let taken = seen.all.causes.off_cpu.iter().enumerate().filter(by_interferer).count();
    assert!(taken > 0, "the interferer is not named");
}

#[test]
fn an_interferer_costs_what_the_kernel_says() {
    let _turn = live!();
    if !Path::new("/proc/self/schedstat").exists() {
        skip!("this kernel has no schedstat (CONFIG_SCHED_INFO)");
    }
    interfered(&[]);
    interfered(&["--source", "perf"]);
}

/// Ping-pong over pipes: `rounds` times one byte to the reader, which wakes it, and one back.
fn ping(mut there: &File, mut back: &File, rounds: usize) {
    for _ in 0..rounds {
        there.write_all(b"x").expect("a pipe");
        back.read_exact(&mut [0]).expect("an answer");
    }
}

fn pipe_of_files() -> (File, File) {
    let (read, write) = std::io::pipe().expect("a pipe");
    (OwnedFd::from(read).into(), OwnedFd::from(write).into())
}

/// A thread of ours among others, all switching as fast as they can: every off-CPU interval of ours is in the
/// trace, checked against the kernel's own count, and nothing of the others.
fn storm(program: &Path, options: &[&str]) {
    const ROUNDS: usize = 30_000;
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("echo");
    for end in ["in", "out"] {
        assert!(Command::new("mkfifo").arg(pipe.with_extension(end)).status().is_ok_and(|s| s.success()));
    }
    let target = Target::start(program, &["--echo", pipe.to_str().expect("a path"), "-n", "2"]);
    let pid = target.pid();
    let there = File::options().write(true).open(pipe.with_extension("in")).expect("a pipe");
    let back = File::options().read(true).open(pipe.with_extension("out")).expect("a pipe");
    let echo = *threads(pid).iter().find(|t| **t != pid).expect("the thread that echoes");
    pin(echo, 0);
    // Its state says so before it has left its CPU; this file is read only after that.
    let asleep = || proc_text(pid, echo, "syscall").starts_with(|c: char| c.is_ascii_digit());
    wait_until("it waits for the first byte", asleep);
    // Room for all events: a recorder that is compiled for tests reads them slowly.
    let options = [options, &["--buffer-size", "64MiB"]].concat();
    let (seen, (from, to, kernel)) = attached(pid, &options, || {
        let (from, before) = (now(), switches(pid, echo));
        std::thread::scope(|s| {
            s.spawn(|| {
                pin(0, 0);
                ping(&there, &back, ROUNDS);
            });
            let (mut a, mut b) = (pipe_of_files(), pipe_of_files());
            std::mem::swap(&mut a.0, &mut b.0);
            s.spawn(move || {
                pin(0, 1);
                ping(&a.1, &a.0, ROUNDS);
            });
            s.spawn(move || {
                pin(0, 1);
                while (&b.0).read_exact(&mut [0]).is_ok() && (&b.1).write_all(b"x").is_ok() {}
            });
        });
        wait_until("it waits for one more", asleep);
        (from, now(), switches(pid, echo) - before)
    });
    sound(&seen, pid);
    let within = |r: &&&OffCpu| (from as i64..to as i64).contains(&r.t);
    let all = of_thread(&seen, echo);
    let records = all.iter().filter(within).count() as u64;
    let lost = seen.kind("offcpu").lost;
    println!(
        "{kernel} times away, {records} in the trace, {lost} lost, within {} ms",
        (to - from) / 1_000_000
    );
    // One at the window's edge may be counted on its other side.
    assert!(records <= kernel + 1 && kernel <= records + lost + 1, "{records} of {kernel}, {lost} lost");
    assert!(kernel >= ROUNDS as u64);
    assert_eq!(all.iter().filter(|r| r.cut).count(), 1, "it waits to the end");
    drop((there, back));
    target.said();
}

#[test]
fn a_storm_of_switches_loses_nothing() {
    let _turn = live!();
    let program = fixture!("modern");
    for options in WAYS {
        storm(&program, options);
    }
}

/// Hundreds of short-lived threads, forty at a time on the few CPUs.
#[test]
fn threads_by_the_hundred() {
    let _turn = live!();
    let program = fixture!("modern");
    for options in WAYS {
        let engine = ["--", program.to_str().expect("a path")];
        let args = [&["--sched", "--buffer-size", "64MiB"], options, &engine].concat();
        let args = [&args[..], &["--fresh-threads", "-n", "6", "-t", "40", "--op-ns", "1"]].concat();
        let (run, threads) = (record(&args), 1 + 39 * 7);
        let seen = run.seen();
        sound(&seen, run.said()["pid"].as_u64().expect("a pid") as u32);
        // Without BPF a recorder that gets no CPU time may learn of a graph too late.
        if options.contains(&"perf") {
            continue;
        }
        let ran: BTreeSet<u32> = seen.all.runs.iter().map(|r| r.tid).collect();
        assert_eq!(ran.len(), threads, "threads that ran ops, {options:?}");
        let followed = ran.iter().filter(|tid| !of_thread(&seen, **tid).is_empty()).count();
        let hidden = usize::try_from(seen.kind("offcpu").lost).expect("a number");
        assert!(
            followed + hidden >= threads - 1,
            "{followed} of {threads} threads were ever off the CPU, {options:?}"
        );
    }
}

/// Disposable pools: every worker of every graph is seen from its creation, although it lives for one graph only.
fn newborn(program: &Path, options: &[&str]) {
    // With few CPUs the workers yield to one another endlessly.
    let args = [&["--sched", "--buffer-size", "64MiB"], options, &["--", program.to_str().expect("a path")]]
        .concat();
    let args = [&args[..], &["--fresh-threads", "-n", "20", "-t", "4", "--op-ns", "5000"]].concat();
    let run = record(&args);
    let (seen, said) = (run.seen(), run.said());
    let pid = said["pid"].as_u64().expect("a pid") as u32;
    sound(&seen, pid);
    let mut first: BTreeMap<u32, i64> = BTreeMap::new();
    for r in &seen.all.runs {
        let t = first.entry(r.tid).or_insert(i64::MAX);
        *t = (*t).min(r.t);
    }
    // Without BPF a recorder that gets no CPU time may learn of a graph too late: that graph then shows fewer hits.
    let hits = || seen.all.cpu_graphs.iter().map(|g| g.seen);
    let short = hits().filter(|n| Some(*n) < hits().max()).count();
    assert!(short == 0 || options.contains(&"perf"), "{short} graphs miss hits, {options:?}");
    assert!(first.len() + 3 * short > 3 * 21, "{} threads ran ops, {short} graphs miss hits", first.len());
    // Without BPF: if a thread follows a task hidden from tracing, its start is not shown, which is counted as
    // lost.
    let mut hidden = seen.kind("offcpu").lost;
    for (tid, op) in first.into_iter().filter(|(tid, _)| *tid != pid) {
        let born = of_thread(&seen, tid).first().copied().copied();
        if hidden > 0 && born.is_none_or(|b| b.state != NEW) {
            hidden -= 1;
            continue;
        }
        let born = born.unwrap_or_else(|| panic!("thread {tid} is not in the trace, {options:?}"));
        assert_eq!(
            (born.state, born.runnable),
            (NEW, Some(born.dur)),
            "its first record, {options:?}: {born:?}"
        );
        assert!(born.t + born.dur as i64 <= op, "it ran an op before it ran at all: {born:?}");
        assert_eq!(born.waker, pid, "who made it");
        assert!(!name_at(&seen, born.by, 0).is_empty() || born.by == 0);
    }
}

#[test]
fn new_threads_are_followed_from_birth() {
    let _turn = live!();
    let program = fixture!("modern");
    for options in WAYS {
        newborn(&program, options);
    }
}

/// What happens before an engine is found explains no operator: a shell and its commands are not followed, and the
/// engine that the shell becomes is.
#[test]
fn before_an_engine_is_found_nothing_is_recorded() {
    let _turn = live!();
    let program = fixture!("modern");
    let script = format!("sleep 0.1; sleep 0.1; exec {} -n 20 -t 4 --op-ns 5000", program.display());
    let run = record(&["--sched", "--", "sh", "-c", &script]);
    let (seen, said) = (run.seen(), run.said());
    sound(&seen, said["pid"].as_u64().expect("a pid") as u32);
    let long = |r: &&OffCpu| r.state == INTERRUPTIBLE && r.dur > 50_000_000;
    let asleep: Vec<_> = seen.all.causes.off_cpu.iter().filter(long).collect();
    assert!(asleep.is_empty(), "times away of a shell that waits for its commands: {asleep:?}");
    assert!(!seen.all.causes.off_cpu.is_empty(), "times away of the engine");
}

/// Weights that are not in memory: the threads that touch them wait for a device inside a page fault.
#[test]
fn a_page_read_from_the_file_is_a_fault() {
    let _turn = live!();
    let path = common::place().join("cold.gguf");
    fs::copy(model("llama1b-L4", "q4_0"), &path).expect("a copy");
    let file = File::open(&path).expect("the copy");
    file.sync_all().expect("written");
    // SAFETY: plain system call on an open file; clean pages leave memory.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let program = runner();
    let args =
        ["--sched", "--level", "token", "--", program.to_str().expect("a path"), "run", "--no-roofline"];
    let args = [&args[..], &["-p", "2", "-n", "2", "-m", path.to_str().expect("a path")]].concat();
    let seen = record(&args).seen();
    let _ = fs::remove_file(&path);
    let records = &seen.all.causes.off_cpu;
    sound(&seen, records.first().expect("it waited").pid);
    let read = |r: &&OffCpu| r.state == UNINTERRUPTIBLE && r.fault == Tristate::Yes && r.io == Tristate::Yes;
    let faults: Vec<&OffCpu> = records.iter().filter(read).collect();
    println!(
        "{} waits for pages, {} ms",
        faults.len(),
        faults.iter().map(|r| r.dur).sum::<u64>() / 1_000_000
    );
    assert!(
        !faults.is_empty(),
        "no wait for a page: {:?}",
        records.iter().map(|r| (r.state, r.io == Tristate::Yes)).collect::<BTreeSet<_>>()
    );
    assert!(faults.iter().all(|r| r.waker == 0), "a device woke them");
}
