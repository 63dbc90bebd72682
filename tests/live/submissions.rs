//! Device time by the kernel's tracepoints. No GPU's driver is needed: one test reads tracepoints that every kernel has
//! through the same code, the other gives events the names and fields of the kernel's GPU scheduler and records the CUDA
//! backend on a runtime without a device (tests/gpu/fake_driver.c).

use crate::common;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use agent::capture::submissions::{EventDef, Role, SourceDef, Step, Watch};
use common::reported::{report, text};
use common::run::{record, wait_until};
use common::{driver, engine, live, made, model, skip};
use engine::elf::ElfFile;
use machine::kernel::tracepoint;
use machine::usage;
use pfi::record::{Availability, Record, SubmissionSource};
use pfi::{Encoder, Submission, Trace, submissions};

/// A child as a submission: forked by its parent, it runs from its exec to its exit.
const fn event(name: &'static str, step: Step, key: &'static [&'static str]) -> EventDef {
    EventDef { name, step, keys: key, fields: &[(Role::Ring, "filename")], needed: true }
}
static CHILDREN: [SourceDef; 1] = [SourceDef {
    source: SubmissionSource::Scheduler,
    system: "sched",
    events: &[
        event("sched_process_fork", Step::Queued, &["child_pid"]),
        event("sched_process_exec", Step::Run, &["pid"]),
        event("sched_process_exit", Step::Done, &["pid"]),
    ],
    device: "",
    ring: "",
    ticks: None,
}];

/// Names of the rings by id, and the submissions of each.
fn read(trace: &Trace) -> Vec<(String, Submission)> {
    let (mut names, mut out) = (std::collections::HashMap::new(), Vec::new());
    for i in 0..trace.blocks().len() {
        for r in trace.block(i).expect("whole").records() {
            match r.expect("a record") {
                Record::DeviceRing(r) => drop(names.insert(r.id, r.name.to_owned())),
                Record::Submissions(s) => out.extend(submissions(&s).map(|x| (names[&s.ring].clone(), x))),
                _ => {}
            }
        }
    }
    out
}

#[test]
fn tracepoints_are_read_on_all_cpus_by_the_traces_clock() {
    let _turn = live!();
    let mut watch = Watch::start(&CHILDREN).expect("every kernel has these");
    let mut enc = Encoder::new(Vec::new(), Default::default(), &made::header()).expect("written");
    let mut expected = Vec::new();
    for _ in 0..8 {
        let before = usage::now();
        let mut child = Command::new("/bin/sleep").arg("0.02").spawn().expect("it starts");
        let forked = usage::now();
        child.wait().expect("it ends");
        expected.push((before, forked, usage::now()));
        watch.pass(&mut enc).expect("written");
    }
    watch.finish(&mut enc).expect("written");
    let status = watch.feature_status();
    assert_eq!(status.state, Availability::Whole, "{}", status.why);
    let trace = Trace::from_bytes(enc.finish(&common::events::footer(1)).expect("written")).expect("a trace");
    let me = std::process::id();
    let ours: Vec<_> = read(&trace).into_iter().filter(|(_, s)| s.pid == me).collect();
    assert_eq!(ours.len(), expected.len(), "{ours:?}");
    for ((name, s), (before, forked, ended)) in ours.iter().zip(expected) {
        assert!(name.ends_with("/sleep"), "{name}");
        let (queued, run) = (s.queued.expect("a fork"), s.run.expect("an exec"));
        assert!(
            before <= queued && queued <= forked && queued <= run && run < s.end && s.end <= ended,
            "{s:?}"
        );
        assert!(s.end - run >= 20_000_000, "it slept for 20 ms: {s:?}");
    }
}

/// Events with the names and fields of the kernel's own, at the functions of the fake driver; removed when dropped.
struct FakeTracepoints(Vec<&'static str>);

impl FakeTracepoints {
    fn define(library: &Path) -> FakeTracepoints {
        let elf = ElfFile::open(library).expect("a library");
        let args = if cfg!(target_arch = "x86_64") {
            ["%di", "%si", "%dx", "%cx"]
        } else {
            ["%x0", "%x1", "%x2", "%x3"]
        };
        let [context, seqno, dev, name] = args;
        let fence = format!("fence_context={context}:u64 fence_seqno={seqno}:u64");
        let ring = format!("dev=+0({dev}):string name=+0({name}):string");
        let mut made = FakeTracepoints(Vec::new());
        let events = [
            ("driver_job_queue", "drm_sched_job_queue", format!("{fence} {ring}")),
            ("driver_job_run", "drm_sched_job_run", format!("{fence} {ring}")),
            ("driver_job_done", "drm_sched_job_done", fence),
        ];
        for (symbol, event, fields) in events {
            let [found] = elf.find([symbol]);
            let offset = elf.file_offset(found.expect("a function").vaddr).expect("in the file");
            tell(&format!("p:gpu_scheduler/{event} {}:{offset:#x} {fields}", library.display()))
                .expect("the kernel takes it");
            made.0.push(event);
        }
        made
    }
}

fn tell(command: &str) -> io::Result<()> {
    let events = tracepoint::root().join("uprobe_events");
    OpenOptions::new().append(true).open(events)?.write_all(format!("{command}\n").as_bytes())
}

impl Drop for FakeTracepoints {
    fn drop(&mut self) {
        for event in &self.0 {
            // The kernel releases a closed event slightly later.
            wait_until("the event is released", || match tell(&format!("-:gpu_scheduler/{event}")) {
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => false,
                done => done.map(|()| true).expect("the kernel takes it"),
            });
        }
    }
}

const DECODES: &str = "16";

#[test]
fn each_submission_of_a_recording_is_told() {
    let _turn = live!();
    let engine = match engine("cuda-v0.5.0") {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    tracepoint::ensure_mounted().expect("tracefs");
    if tracepoint::root().join("events/gpu_scheduler").exists() {
        skip!("this kernel has the events of GPU drivers itself");
    }
    let run = |settings: &[&str]| {
        let libraries = format!("LD_LIBRARY_PATH={}", engine.display());
        let (driver, engine) = (driver().display().to_string(), format!("--engine={}", engine.display()));
        let model = format!("--model={}", model("tiny", "q4_0").display());
        let program =
            [&*driver, &engine, &model, "-p", "16", "-t", "1", "--gpu-layers", "99", "--json", "-n", DECODES];
        record(&[&["--", "env", &libraries], settings, &program].concat())
    };
    let without = run(&[]);
    without.seen().books_close();
    let told = text(&without);
    assert!(told.contains("submissions: this kernel has no tracepoint of a GPU driver"), "{told}");

    let dir = tempfile::tempdir().expect("a directory");
    let library = dir.path().join("fake_driver.so");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(common::source("gpu/fake_driver.c"));
    assert!(cc.status().expect("a compiler").success());
    let run = {
        let _tracepoints = FakeTracepoints::define(&library);
        run(&[&format!("LD_PRELOAD={}", library.display())])
    };
    run.seen().books_close();
    let jobs = run
        .stderr
        .lines()
        .rev()
        .find_map(|l| l.strip_prefix("jobs of the fake driver: ")?.parse::<u64>().ok());
    let jobs = jobs.filter(|n| *n > 0).unwrap_or_else(|| panic!("{}", run.stderr));
    let (report, told) = (report(&run), text(&run));
    let rings = &report["submissions"]["rings"];
    assert_eq!(rings.as_array().map(Vec::len), Some(1), "{rings:#}");
    let ring = &rings[0];
    let is = |key: &str, value: &str| assert_eq!(ring[key], value, "{ring:#}");
    [("source", "gpu_scheduler"), ("device", "0000:00:00.0"), ("ring", "fake"), ("basis", "kernel")]
        .into_iter()
        .for_each(|(key, value)| is(key, value));
    let number = |at: &serde_json::Value| at.as_u64().unwrap_or_else(|| panic!("{ring:#}"));
    assert_eq!((number(&ring["submissions"]), number(&ring["own"])), (jobs, jobs), "{ring:#}");
    // Both jobs run for 2 ms, and between them are 2 ms.
    assert!(number(&ring["busy_ns"]) >= jobs * 2_000_000, "{ring:#}");
    assert_eq!(number(&ring["gaps"]["n"]), jobs / 2, "{ring:#}");
    assert!(number(&ring["gaps"]["p50_ns"]) >= 2_000_000, "{ring:#}");
    assert!(number(&ring["idle_ns"]) + number(&ring["busy_ns"]) == number(&report["submissions"]["span_ns"]));
    assert!(
        told.contains("Device time by submission") && told.contains("0000:00:00.0 fake (gpu_scheduler)"),
        "{told}"
    );
}
