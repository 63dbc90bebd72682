//! Recordings without BPF: probe events through perf's rings, compared with the target's own account and with the
//! trace of the BPF backend.

use crate::common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::endless::endless;
use common::run::{Recorder, Run, Target, profinfer, record, signal_to, wait_until};
use common::seen::Seen;
use common::truth::{self, Node};
use common::{driver, engine, fixture, live, model, skip};
use pfi::record::SourceKind;
use pfi::record::Tensor;

const LISTING: &str = "/sys/kernel/tracing/uprobe_events";

/// Our probe definitions in the kernel, of one recorder or of any.
fn definitions(of: Option<u32>) -> usize {
    let prefix = of.map_or(":profinfer_".to_owned(), |pid| format!(":profinfer_{pid}_"));
    let listing = std::fs::read_to_string(LISTING).expect("tracefs");
    listing.lines().filter(|l| l.contains(&prefix)).count()
}

/// The information about every op on every thread that the hits alone give: order, name, op, type, dims. Sources
/// only where the trace claims to know them; returns how many ops have them.
fn graph_agrees(seen: &Seen, cpu: &pfi::record::CpuGraph, graph: &truth::Graph, ops: &[truth::Op]) -> usize {
    let mut known = 0;
    let hits = seen.hits(cpu);
    assert_eq!(hits.len(), cpu.n_threads as usize, "threads");
    for hits in hits.values() {
        let got: Vec<u64> = hits.iter().map(|h| seen.tensor(h.0).addr).collect();
        let want: Vec<u64> = ops.iter().map(|o| graph.nodes[o.0].addr).collect();
        assert_eq!(got, want, "order of ops of CPU graph {}", cpu.seq);
        for (hit, op) in hits.iter().zip(ops) {
            known += usize::from(tensor_agrees(seen, seen.tensor(hit.0), &graph.nodes[op.0]));
            if let (Some(f), Some(i)) = (hit.1, op.1) {
                tensor_agrees(seen, seen.tensor(f), &graph.nodes[i]);
            }
        }
    }
    known
}

/// True: its sources are in the trace, and are correct.
fn tensor_agrees(seen: &Seen, got: &Tensor, want: &Node) -> bool {
    assert!(got.known, "{}: only its address is known", want.name);
    assert_eq!(&*got.name, want.name);
    let (op, ty) = (&seen.all.ops[&got.op], &seen.all.types[&got.ty]);
    assert_eq!(
        (op.name, op.desc, ty.name, got.ne),
        (&*want.op, &*want.desc, &*want.ty, want.ne),
        "{}",
        want.name
    );
    let sources: Vec<&Tensor> = got.src.iter().flatten().map(|id| seen.tensor(*id)).collect();
    if sources.iter().any(|s| !s.known && s.addr == 1) {
        return false;
    }
    let wanted: Vec<&Node> = want.src.iter().filter_map(Option::as_ref).collect();
    assert_eq!(sources.len(), wanted.len(), "sources of {}", want.name);
    for (got, want) in sources.iter().zip(wanted) {
        assert_eq!(
            (got.addr, &*got.name, got.ne),
            (want.addr, &*want.name, want.ne),
            "source of {}",
            want.name
        );
    }
    true
}

struct Case {
    run: Run,
    dump: PathBuf,
    _dir: tempfile::TempDir,
}

/// Records the fake with `options` of the recorder and `args` of the fake.
fn fake(recorder: Command, program: &Path, options: &[&str], args: &[&str]) -> Case {
    let dir = tempfile::tempdir().expect("a directory");
    let dump = dir.path().join("dump");
    // The recorder may have to wait for a CPU on a busy machine, and nothing may be lost.
    let mut all: Vec<String> =
        ["--buffer-size", "64MiB"].iter().chain(options).map(|s| (*s).to_owned()).collect();
    all.extend(["--".into(), program.display().to_string(), "--dump".into(), dump.display().to_string()]);
    all.extend(args.iter().map(|s| (*s).to_owned()));
    Case { run: Recorder::start_as(recorder, &all).finish(), dump, _dir: dir }
}

/// Everything that the fake did is in the trace; returns the trace, and how many ops have sources.
fn agrees(case: &Case) -> (Seen, usize) {
    let (seen, said) = (case.run.seen(), case.run.said());
    seen.complete();
    assert_eq!(seen.all.header.as_ref().map(|h| h.source), Some(SourceKind::Perf));
    assert!(
        seen.all.notices.iter().any(|n| n.text.contains("without BPF")),
        "the trace says how it was made"
    );
    let pid = said["pid"].as_u64().expect("a pid") as u32;
    let graphs = truth::read(&case.dump);
    let parts: Vec<_> =
        graphs.iter().flat_map(|g| truth::fake_ops(g).into_iter().map(move |ops| (g, ops))).collect();
    let cpu = seen.graphs(pid);
    assert_eq!(cpu.len(), parts.len(), "CPU graphs");
    let mut known = 0;
    for (cpu, (graph, ops)) in cpu.into_iter().zip(&parts) {
        // A graph's demand may be unknown, but never wrong.
        let want = ops.len() as u32 * cpu.n_threads;
        assert_eq!((cpu.seen, cpu.expected.unwrap_or(want)), (want, want), "hits of graph {}", cpu.seq);
        known += graph_agrees(&seen, cpu, graph, ops);
    }
    let calls = |name: &str| said["calls"][name].as_u64().expect("a count");
    assert_eq!(
        seen.all.tokens.len() as u64,
        calls("llama_decode") + calls("llama_encode") + calls("llama_process")
    );
    assert_eq!(seen.all.graphs.len() as u64, calls("sched"));
    (seen, known)
}

fn without_bpf(errno: i32) -> Command {
    let mut command = profinfer();
    common::refuse::refuse(&mut command, errno, &[libc::SYS_bpf]);
    command
}

#[test]
fn where_bpf_is_refused_perf_events_record_the_same() {
    let _turn = live!(beside others, by perf events);
    let program = fixture!("modern");
    // Graphs long enough to be read while they run.
    let args = ["-n", "12", "--moe", "-t", "2", "--op-ns", "300000"];
    for errno in [libc::ENOSYS, libc::EPERM] {
        let case = fake(without_bpf(errno), &program, &[], &args);
        assert!(case.run.stderr.contains("recorded by perf events, without BPF"), "{}", case.run.stderr);
        let (seen, known) = agrees(&case);
        assert!(known > 0, "sources were read");
        assert!(seen.all.cpu_graphs.iter().any(|g| g.expected.is_some()), "lists of nodes were read");
    }
    let bpf = fake(profinfer(), &program, &["--source", "bpf"], &args).run.seen();
    assert_eq!(bpf.all.header.as_ref().map(|h| h.source), Some(SourceKind::Bpf));
}

#[test]
fn every_variant_is_recorded() {
    let _turn = live!(beside others, by perf events);
    let variants = ["modern", "local-forward", "stripped", "old", "ancient", "name128", "late", "static-pie"];
    for name in variants {
        let program = fixture!(name);
        for args in
            [&["-n", "12", "--moe", "-t", "3"][..], &["-n", "12", "--repack", "--fresh-threads", "--split"]]
        {
            println!("{name} {args:?}");
            agrees(&fake(profinfer(), &program, &["--source", "perf"], args));
        }
    }
}

#[test]
fn levels_and_structure_leave_out_what_they_say() {
    let _turn = live!(beside others, by perf events);
    let program = fixture!("modern");
    let perf = |options: &[&str], args: &[&str]| {
        fake(profinfer(), &program, &[&["--source", "perf"], options].concat(), args).run.seen()
    };
    let token = perf(&["--level", "token"], &[]);
    token.complete();
    assert_eq!((token.all.tokens.len(), token.all.graphs.len(), token.slices()), (9, 0, 0));
    let graph = perf(&["--level", "graph"], &["--split"]);
    graph.complete();
    assert_eq!((graph.all.graphs.len(), graph.all.splits.len(), graph.slices()), (9, 27, 0));
    let names: Vec<&str> = graph.all.splits.iter().map(|s| graph.all.backends[&s.backend].name).collect();
    assert!(names.contains(&"CPU") && names.iter().any(|n| n.starts_with("CUDA")), "{names:?}");
    let bare = perf(&["--no-str"], &["-n", "12"]);
    bare.complete();
    assert!(bare.slices() > 0 && bare.all.tensors.values().all(|t| !t.known));
    assert_eq!((bare.kind("tensor").seen, bare.kind("nodes").seen), (0, 0));
}

#[test]
fn op_ends_are_told_by_barriers() {
    let _turn = live!(beside others, by perf events);
    let program = fixture!("modern");
    let case = fake(profinfer(), &program, &["--source", "perf", "--op-end", "barrier"], &["-n", "100"]);
    let (seen, _) = agrees(&case);
    assert_eq!(seen.used("op-end").map(|r| r.name), Some("ggml_barrier"));
    let busy = seen.all.runs.iter().filter(|r| r.barrier).count();
    assert!(busy * 10 > seen.all.runs.len() * 9, "{busy} of {}", seen.all.runs.len());
}

#[test]
fn children_are_followed() {
    let _turn = live!(beside others, by perf events);
    let program = fixture!("modern");
    let dir = tempfile::tempdir().expect("a directory");
    let go = dir.path().join("go");
    let engine = format!("{} --hold-for {} -n 5", program.display(), go.display());
    let recorder = Recorder::start(&[
        "--source",
        "perf",
        "--buffer-size",
        "64MiB",
        "--",
        "sh",
        "-c",
        &format!("({engine} & {engine}; wait)"),
    ]);
    recorder.wait_for_two_attached();
    std::fs::write(&go, "").expect("go");
    let seen = recorder.finish().seen();
    seen.complete();
    let mut by_process: BTreeMap<u32, usize> = BTreeMap::new();
    for t in &seen.all.tokens {
        *by_process.entry(t.pid).or_default() += 1;
    }
    assert_eq!(by_process.into_values().collect::<Vec<_>>(), [6, 6], "calls of two processes");
    assert!(seen.kind("fork").seen >= 2 && seen.kind("exit").seen >= 2);
}

#[test]
fn only_those_asked_for_are_recorded() {
    let _turn = live!(beside others, by perf events);
    let program = fixture!("modern");
    let other = Target::start(&program, &["-n", "1000000", "--op-ns", "50000"]);
    let case = fake(profinfer(), &program, &["--source", "perf"], &["-n", "50"]);
    let (seen, _) = agrees(&case);
    assert!(seen.all.tokens.iter().all(|t| t.pid != other.pid()));
}

/// Kills the process that waits for a recorder's end: a copy of it, with the same command line.
fn kill_guard(recorder: &Recorder) {
    let trace = recorder.trace.to_str().expect("a path");
    for process in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let of = |file| std::fs::read_to_string(process.path().join(file)).unwrap_or_default();
        let is_guard = of("comm") == "profinfer-guard\n" && of("cmdline").contains(trace);
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        pid.filter(|_| is_guard).into_iter().for_each(|pid| signal_to(pid, libc::SIGKILL));
    }
}

#[test]
fn a_killed_recorder_leaves_nothing_for_long() {
    let _turn = live!();
    let program = fixture!("modern");
    let target = Target::start(&program, &["-n", "1000000", "--op-ns", "50000"]);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--source", "perf", "-p", &pid]);
    let me = recorder.child.id();
    recorder.wait_for_engine();
    // One that lives is in no one's way.
    let other = Target::start(&program, &["-n", "1000000", "--op-ns", "50000"]);
    let lives = Recorder::start(&["--source", "perf", "-p", &other.pid().to_string()]);
    lives.wait_for_engine();
    wait_until("its events are there while it runs", || definitions(Some(me)) > 4);
    // If the process that removes them was killed too, the next recorder removes them.
    kill_guard(&recorder);
    recorder.child.kill().expect("killed");
    recorder.child.wait().expect("reaped");
    let mut told = false;
    wait_until("the kernel lets go", || {
        let run = record(&["--source", "perf", "-p", &pid, "--tokens", "2"]);
        assert!(run.status.success(), "{}", run.stderr);
        told |= run.stderr.contains(" probes left by a killed recorder");
        definitions(Some(me)) == 0
    });
    assert!(told, "that something was removed is said");
    lives.signal(libc::SIGINT);
    assert!(lives.finish().status.success());
    wait_until("nor does one that ends", || definitions(None) == 0);
}

#[test]
fn the_runner_agrees_with_itself() {
    let _turn = live!(beside others, by perf events);
    let mut command = profinfer();
    command.args(["selftest", "--source", "perf", "--runner"]).arg(crate::common::runner());
    let run = common::run::run(&mut command);
    let failed: Vec<&str> = run.stdout.lines().filter(|l| l.starts_with("FAILED")).collect();
    // The accuracy of the times depends on other tests on the machine; and where a machine hides a task from
    // tracing, some returns of a thread are never shown, which selftest reports. tests/live/sched.rs checks the
    // records themselves.
    let excused = |l: &&str| l.contains("accuracy") || l.starts_with("FAILED   scheduler: ");
    assert!(failed.iter().all(excused), "{}", run.stdout);
    assert!(run.stdout.contains("order of ops") && run.stdout.contains(" ok, "), "{}", run.stdout);
}

/// An engine of 2024, whose graphs have no number, and a current one.
#[test]
fn real_engines_are_recorded() {
    let _turn = live!(beside others, by perf events);
    let early = truth::Habits { runs_nops: true, wants_flag: false, fuses: false };
    let today = truth::Habits { runs_nops: false, wants_flag: true, fuses: true };
    for (name, habits) in [("b3889", early), ("b11549", today)] {
        let lib = match engine(name) {
            Ok(path) => path,
            Err(why) => skip!("{why}"),
        };
        let dir = tempfile::tempdir().expect("a directory");
        let dump = dir.path().join("dump");
        let mut command = Command::new(driver());
        command.arg("--engine").arg(&lib).arg("--model").arg(model("tiny", "q4_0")).arg("--dump").arg(&dump);
        let mut target = Target::controlled(command.args(["--control", "--ctx", "256", "-t", "2"]));
        let pid = target.pid();
        target.tell("", 1);
        let recorder = Recorder::start(&["--source", "perf", "-p", &pid.to_string()]);
        recorder.wait_for_probes();
        target.tell("prefill 7\n", 2);
        target.tell("run 4\n", 3);
        drop(target.0.stdin.take());
        target.said();
        let seen = recorder.finish().seen();
        seen.complete();
        let graphs = truth::read(&dump);
        let cpu = seen.graphs(pid);
        assert_eq!(cpu.len(), graphs.len(), "{name}: CPU graphs");
        for (cpu, graph) in cpu.into_iter().zip(&graphs) {
            graph_agrees(&seen, cpu, graph, &truth::ops(graph, habits));
        }
        assert_eq!(seen.all.tokens.len(), graphs.len(), "{name}: calls");
    }
}

/// Programs on a tracepoint decide whether perf events on it get the event.
#[test]
fn the_scheduler_s_events_reach_others_while_a_recorder_has_programs_on_them() {
    let _turn = live!();
    let program = fixture!("modern");
    let target = endless(&program);
    let pmc = ["--sched", "--pmc", "task-clock", "-p", &target.pid().to_string()];
    let recorder = Recorder::start(&pmc);
    let path = program.to_str().expect("UTF-8");
    let other = record(&["--source", "perf", "--sched", "--", path, "-n", "200", "--op-ns", "20000"]).seen();
    assert!(!other.all.causes.off_cpu.is_empty(), "its threads slept and woke");
    recorder.signal(libc::SIGINT);
    let own = recorder.finish().seen();
    assert!(!own.all.causes.off_cpu.is_empty(), "and so did these");
}
