//! Recordings from inside the engine's process, which need no privilege: the same events as by BPF, engines that compute
//! the same and outlive their recorder, and programs that cannot be recorded so.

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::engines::{self, B8121, EARLY, EXTRA, FORWARD, FUSED, TODAY};
use crate::{experts, fixtures};
use common::run::{Recorder, Run, profinfer, record, run, wait, wait_until};
use common::seen::Seen;
use common::truth::Habits;
use common::{driver, engine, fixture, fixture_dir, live, model, skip};
use pfi::record::SourceKind;

const INSIDE: [&str; 2] = ["--source", "inside"];

fn from_inside(seen: &Seen) {
    assert_eq!(seen.all.header.as_ref().map(|h| h.source), Some(SourceKind::Inside));
}

/// What each graph computed: how many nodes it has, and on each thread, in order, the tensors of its ops with their
/// sources' dims.
fn computed(seen: &Seen) -> Vec<String> {
    let described = |id: u32| {
        let t = seen.tensor(id);
        let sources = t.src.iter().map(|s| s.map(|id| (&seen.tensor(id).name, seen.tensor(id).ne)));
        let name = &*seen.all.ops[&t.op].name;
        format!("{} {name} {} {:?} {:?} {:?}", t.name, t.ty, t.ne, t.nb, sources.collect::<Vec<_>>())
    };
    let pid = seen.all.tokens.first().expect("a call").pid;
    let graphs = seen.graphs(pid);
    let of = |graph: &&pfi::record::CpuGraph| {
        let hits = seen.hits(graph);
        let by_thread = hits.iter().map(|(ith, hits)| {
            let tensors = |(one, other): &(u32, Option<u32>)| (described(*one), other.map(described));
            (ith, hits.iter().map(tensors).collect::<Vec<_>>())
        });
        format!("{:?} {:?} {:?}", graph.expected, graph.seen, by_thread.collect::<Vec<_>>())
    };
    graphs.iter().map(of).collect()
}

/// Layouts, calls, splits, the tokens of each sequence, and the experts chosen.
fn told(seen: &Seen) -> (Vec<String>, Vec<experts::Chosen>) {
    let layouts = seen.all.engines.iter().map(|engine| engine.layout.to_owned());
    let call = |t: &pfi::record::Token| format!("{:?} {:?}", t.entry, t.n_tokens);
    let calls = seen.all.tokens.iter().map(call);
    let splits = seen.all.splits.iter().map(|s| format!("{} {}", s.n_nodes, s.backend));
    let batches = seen
        .all
        .causes
        .ubatches
        .iter()
        .map(|batch| format!("{} {} {:?}", batch.tokens, batch.whole, batch.data));
    (layouts.chain(calls).chain(splits).chain(batches).collect(), experts::traced(seen))
}

/// The command is recorded by the kernel's probes and from inside: all but times is the same, in the same order.
fn both_agree(options: &[&str], command: &[&str]) -> Seen {
    let [kernel, inside] = ["bpf", "inside"].map(|source| {
        let seen = record(&[&["--source", source], options, &["--"], command].concat()).seen();
        seen.complete();
        seen
    });
    from_inside(&inside);
    assert_eq!(told(&kernel), told(&inside), "{command:?}");
    let [kernel, of_inside] = [computed(&kernel), computed(&inside)];
    assert_eq!(kernel.len(), of_inside.len(), "graphs of {command:?}");
    for (i, (one, other)) in kernel.iter().zip(&of_inside).enumerate() {
        assert_eq!(one, other, "graph {i} of {command:?}");
    }
    inside
}

/// The same ops in the same order, with the same structure, calls, tokens and splits, as by the kernel's probes.
#[test]
fn both_sources_say_the_same() {
    let _turn = live!(beside others, from inside);
    let lib = match engine("v0.5.0") {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let (driver, fake) = (driver(), fixture!("modern"));
    let model = model("moe", "q4_0");
    let paths = [&driver, &lib, &model, &fake].map(|path| path.to_str().expect("UTF-8").to_owned());
    let [driver, lib, model, fake] = paths.each_ref().map(String::as_str);
    let real = [driver, "--engine", lib, "--model", model, "-p", "7", "-n", "6", "-t", "2"];
    let fake = [fake, "-n", "20", "--moe", "--split", "-t", "3"];
    for (command, graphs) in [(&real[..], 7), (&fake, 42)] {
        let seen = both_agree(&["--experts"], command);
        assert_eq!(seen.all.cpu_graphs.len(), graphs, "{command:?}");
        assert!(!seen.all.causes.experts.is_empty(), "{command:?}");
        // The fake engine makes no ubatches.
        assert_eq!(seen.all.causes.ubatches.is_empty(), graphs != 7, "{command:?}");
    }
}

/// Programs of others that hold an engine: Python's interpreter with a library or an extension module, and node with an
/// addon, whose every graph has threads of its own.
#[test]
fn hosts_of_engines_say_the_same() {
    let _turn = live!(beside others, from inside);
    let (v0_5_0, b11549) = match (engine("v0.5.0"), engine("b11549")) {
        (Ok(one), Ok(other)) => (one, other),
        (Err(why), _) | (_, Err(why)) => skip!("{why}"),
    };
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/engines/host.js");
    let paths = [host, v0_5_0.join("llama-addon.node"), model("moe", "q4_0"), v0_5_0, b11549];
    let paths = paths.map(|path| path.to_str().expect("UTF-8").to_owned());
    let [host, addon, model, directory, module] = paths.each_ref().map(String::as_str);
    let library = driver().with_file_name("libdriver.so").display().to_string();
    let python = ["python3", "-c", engines::IN_PYTHON, &library, "--engine"];
    let run = ["--model", model, "-p", "7", "-n", "4", "-t", "2"];
    let commands = [
        ["node", host, addon, model, "4"].to_vec(),
        [&python[..], &[directory], &run].concat(),
        [&python[..], &[module], &run].concat(),
    ];
    for command in commands {
        let seen = both_agree(&["--experts"], &command);
        assert_eq!((seen.all.tokens.len(), seen.all.cpu_graphs.len()), (5, 5), "{command:?}");
        assert!(!seen.all.causes.experts.is_empty(), "{command:?}");
        let token = record(&[&INSIDE[..], &["--level", "token", "--"], &command].concat()).seen();
        token.complete();
        assert_eq!((token.all.tokens.len(), token.slices()), (5, 0), "{command:?}");
    }
}

/// Ops from inside, and from the kernel who took the CPU.
#[test]
fn root_sees_the_scheduler_too() {
    let _turn = live!();
    let program = fixture!("modern");
    let command = [program.to_str().expect("UTF-8"), "-n", "60", "--sleep", "-t", "2"];
    let seen = record(&[&INSIDE[..], &["--sched", "--"], &command].concat()).seen();
    seen.complete();
    from_inside(&seen);
    let threads: std::collections::BTreeSet<u32> = seen.all.runs.iter().map(|run| run.tid).collect();
    for tid in &threads {
        let away = seen.all.causes.off_cpu.iter().filter(|e| e.tid == *tid).count();
        assert!(away > 60, "thread {tid} sleeps in each op, and was away {away} times");
    }
    assert_eq!(threads.len(), 2);
    let state =
        |seen: &Seen| seen.all.causes.features.iter().find(|f| f.name == "scheduler").map(|f| f.state);
    assert_eq!(state(&seen), Some(pfi::record::Availability::Whole));
    let without = record(&[&INSIDE[..], &["--no-sched", "--"], &command].concat()).seen();
    assert!(without.all.causes.off_cpu.is_empty() && state(&without).is_none());
}

/// A probe of the kernel on a jump would make the engine go on in the middle of it.
#[test]
fn other_recorders_leave_its_engine_alone() {
    let _turn = live!();
    let program = fixture!("modern");
    let program = program.to_str().expect("UTF-8");
    let recorder =
        Recorder::start(&[&INSIDE[..], &["--", program, "-n", "1000000", "--op-ns", "1000"]].concat());
    recorder.wait_for_slices();
    let pid = recorder.wait_for_event("attached")["pid"].as_u64().expect("a pid") as u32;
    let number = pid.to_string();
    for by in [["bpf", "-p", &number], ["bpf", "--exe", program], ["perf", "-p", &number]] {
        let mut command = profinfer();
        command.args(["record", "-o", "/dev/null", "--force", "--duration", "2", "--source"]);
        let done = command.args(by).output().expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains(&format!("process {pid} is recorded from inside")), "{said}");
        assert!(!done.status.success(), "{said}");
    }
    // Perf events would be in all processes of the file, not only in another one of it.
    let other = record(&["--source", "perf", "--", program, "-n", "1"]);
    assert!(other.stderr.contains(&format!("process {pid} has the same file")), "{}", other.stderr);
    assert!(!other.status.success(), "{}", other.stderr);
    let before = Seen::read(&recorder.trace).all.tokens.len();
    recorder.wait_for_tokens(before);
    common::run::signal_to(pid, libc::SIGKILL);
    let run = recorder.finish();
    assert_eq!(run.status.code(), Some(137), "it computed until it was killed: {}", run.stderr);
}

/// The kernel removes the probes of a recording after its end, one by one.
#[test]
fn a_recording_by_perf_events_that_has_just_ended_is_in_no_ones_way() {
    let _turn = live!(beside others, by perf events);
    let program = fixture!("modern");
    let command = ["--", program.to_str().expect("UTF-8"), "-n", "2"];
    for _ in 0..2 {
        record(&[&["--source", "perf"], &command[..]].concat()).seen().complete();
        let seen = record(&[&INSIDE[..], &command].concat()).seen();
        seen.complete();
        assert_eq!(seen.all.cpu_graphs.len(), 3);
        assert!(!seen.all.notices.iter().any(|n| n.text.contains("not as in its file")));
    }
}

/// Each way in which an engine can be built: every hit, every tensor, as it says itself.
#[test]
fn every_variant_says_the_same() {
    let _turn = live!(from inside);
    let variants = [
        "modern",
        "modern-clang",
        "stripped",
        "local-forward",
        "dead-barrier",
        "reltable",
        "old",
        "ancient",
        "name128",
        "prefixed",
        "late",
        "linked",
        "lto",
    ];
    for name in variants {
        let program = fixture!(name);
        for args in
            [&["-n", "12", "--moe", "-t", "3"][..], &["-n", "12", "--fresh-threads", "--split"], &["--roam"]]
        {
            println!("{name} {args:?}");
            from_inside(&fixtures::agrees(&program, &INSIDE, args));
        }
    }
}

#[test]
fn levels_are_those_of_other_sources() {
    let _turn = live!(from inside);
    let program = fixture!("modern");
    let program = program.to_str().expect("UTF-8");
    let at =
        |level: &str| record(&[&INSIDE[..], &["--level", level, "--", program, "-n", "12"]].concat()).seen();
    let token = at("token");
    token.complete();
    assert_eq!((token.all.tokens.len(), token.all.graphs.len(), token.slices()), (13, 0, 0));
    let graph = at("graph");
    graph.complete();
    assert_eq!((graph.all.graphs.len(), graph.slices()), (13, 0));
}

fn real_engine(name: &str, habits: Habits, op: &str) {
    let _turn = live!(from inside);
    let lib = match engine(name) {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    for (preset, threads) in [("tiny", 1), ("moe", 2)] {
        let dir = tempfile::tempdir().expect("a directory");
        let dump = dir.path().join("dump");
        let threads_text = threads.to_string();
        let (driver, model) = (driver(), model(preset, "q4_0"));
        let paths = [&driver, &lib, &model, &dump].map(|path| path.to_str().expect("UTF-8").to_owned());
        let [driver, lib, model, file] = paths.each_ref().map(String::as_str);
        let command = [
            driver,
            "--engine",
            lib,
            "--model",
            model,
            "--dump",
            file,
            "-p",
            "7",
            "-n",
            "4",
            "-t",
            &threads_text,
        ];
        let run = record(&[&INSIDE[..], &["--"], &command].concat());
        let seen = run.seen();
        from_inside(&seen);
        let pid = seen.all.tokens.first().expect("a call").pid;
        engines::agrees(&seen, pid, &dump, (threads, 4), habits, op);
    }
}

#[test]
fn v0_5_0() {
    real_engine("v0.5.0", TODAY, FUSED);
}

/// Compiled by clang; its modules are opened at run time, each CPU variant first to be asked for its score.
#[test]
fn b8121() {
    real_engine("b8121", B8121, EXTRA);
}

/// Local functions, whose callers know which registers they leave alone.
#[test]
fn b3889() {
    real_engine("b3889", EARLY, FORWARD);
}

/// One library, opened by a program that looks its functions up by name.
#[test]
fn b11549() {
    real_engine("b11549", TODAY, FUSED);
}

/// By its own variable for backends, an engine loads the library where something has dropped the loader's.
#[test]
fn where_ld_preload_is_dropped() {
    let _turn = live!(from inside);
    for name in ["v0.5.0", "b8121"] {
        let lib = match engine(name) {
            Ok(path) => path,
            Err(why) => skip!("{why}"),
        };
        let (driver, model) = (driver(), model("tiny", "q4_0"));
        let paths = [&driver, &lib, &model].map(|path| path.to_str().expect("UTF-8").to_owned());
        let [driver, lib, model] = paths.each_ref().map(String::as_str);
        let engine =
            ["env", "-u", "LD_PRELOAD", driver, "--engine", lib, "--model", model, "-p", "7", "-n", "4"];
        let seen = record(&[&INSIDE[..], &["--"], &engine].concat()).seen();
        seen.complete();
        from_inside(&seen);
        assert_eq!(seen.all.tokens.len(), 5, "{name}");
    }
}

#[test]
fn logits_are_the_same_bits() {
    let _turn = live!(from inside);
    for name in ["v0.5.0", "b11549"] {
        let lib = match engine(name) {
            Ok(path) => path,
            Err(why) => skip!("{why}"),
        };
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| dir.path().join(name).display().to_string();
        let command = |out: &str| {
            let driver = driver().display().to_string();
            let of = [driver, "--engine".into(), lib.display().to_string(), "--model".into()];
            let with = ["--ids", "1,2,3,4,5,6,7,8", "-n", "8", "-t", "2", "--every"].map(str::to_owned);
            let model = model("moe", "q4_0").display().to_string();
            [&of[..], &[model], &with, &[file(out)]].concat()
        };
        let plain = command("plain");
        let done = Command::new(&plain[0]).args(&plain[1..]).output().expect("it runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let all = [&["--source".to_owned(), "inside".into(), "--".into()][..], &command("recorded")].concat();
        record(&all).seen().complete();
        let bits = ["plain", "recorded"].map(|name| fs::read(file(name)).expect("written"));
        assert!(!bits[0].is_empty() && bits[0] == bits[1], "{name}: logits differ");
    }
}

/// As a user without any capability, as in a container: by itself, without being asked for.
#[test]
fn nobody_may_record_what_it_starts() {
    let _turn = live!(beside others, from inside);
    let Some(from) = fixture_dir("modern") else { skip!("the fixture could not be built here") };
    // The originals may be in directories that are closed to others.
    let dir = tempfile::tempdir().expect("a directory");
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    open(dir.path(), 0o777);
    for name in ["fakellama", "libfakeggml.so"] {
        fs::copy(from.join(name), dir.path().join(name)).expect("copied");
        open(&dir.path().join(name), 0o755);
    }
    let own = dir.path().join("profinfer");
    fs::copy(env!("CARGO_BIN_EXE_profinfer"), &own).expect("copied");
    open(&own, 0o755);
    let trace = dir.path().join("trace.pfi");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"]);
    command.args(["--bounding-set=-all", "--no-new-privs"]).arg(&own).arg("record").arg("-o").arg(&trace);
    command.current_dir(dir.path()).env("HOME", dir.path()).args(["--", "./fakellama", "-n", "20"]);
    // What the default filters of containers refuse.
    let refused = [
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_ptrace,
        libc::SYS_mount,
        libc::SYS_process_vm_readv,
    ];
    common::refuse::refuse(&mut command, libc::EPERM, &refused);
    let done = command.output().expect("setpriv");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("recorded from inside the engine's process"), "{said}");
    let mut report = profinfer();
    let report = run(report.args(["report", "--json"]).arg(&trace));
    let report: serde_json::Value = serde_json::from_str(&report.stdout).expect("JSON");
    assert_eq!((&report["run"]["source"], &report["quality"]["complete"]), (&"inside".into(), &true.into()));
}

/// A user, a PID and a mount namespace of its own, as in a container.
#[test]
fn in_namespaces_of_its_own() {
    let _turn = live!(from inside);
    let program = fixture!("modern");
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("trace.pfi");
    let mut command = Command::new("unshare");
    command.args(["-Urpf", "--mount-proc", env!("CARGO_BIN_EXE_profinfer"), "record", "-o"]).arg(&trace);
    let done = command.arg("--").arg(&program).args(["-n", "20"]).output().expect("unshare");
    let said = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() && said.starts_with("unshare: ") {
        skip!("{said}");
    }
    assert!(done.status.success() && said.contains("this is a PID namespace of its own"), "{said}");
    let seen = Seen::read(&trace);
    seen.complete();
    from_inside(&seen);
    assert_eq!(seen.all.tokens.len(), 21);
}

#[test]
fn children_by_fork_and_by_other_programs_are_recorded() {
    let _turn = live!(from inside);
    let program = fixture!("modern");
    let program = program.to_str().expect("UTF-8");
    let tokens = |run: Run| {
        let seen = run.seen();
        seen.complete();
        let pids: std::collections::BTreeSet<u32> = seen.all.tokens.iter().map(|t| t.pid).collect();
        (pids.len(), seen.all.tokens.len())
    };
    let forked = record(&[&INSIDE[..], &["--", program, "-n", "5", "--fork", "3"]].concat());
    assert_eq!(tokens(forked), (3, 18));
    let both = format!("{program} -n 5; {program} -n 5 & wait");
    let shell = record(&[&INSIDE[..], &["--", "sh", "-c", &both]].concat());
    assert_eq!(tokens(shell), (2, 12));
}

/// Files of memory and other traces that a recording could leave.
fn leftovers() -> Vec<String> {
    let names = |dir: &str| fs::read_dir(dir).into_iter().flatten().flatten();
    let all = names("/tmp").chain(names("/dev/shm")).map(|e| e.file_name().to_string_lossy().into_owned());
    all.filter(|name| name.contains("profinfer-inside")).collect()
}

#[test]
fn an_engine_outlives_its_recorder_and_says_the_same() {
    let _turn = live!(from inside);
    let program = fixture!("modern");
    let dir = tempfile::tempdir().expect("a directory");
    let (said, go) = (dir.path().join("said"), dir.path().join("go"));
    // Far more events than fit into the rings.
    let engine =
        format!("{} -n 30000 --op-ns 0 --hold-for {} >{}", program.display(), go.display(), said.display());
    let mut recorder =
        Recorder::start(&[&INSIDE[..], &["--buffer-size", "64K", "--", "sh", "-c", &engine]].concat());
    recorder.wait_for_event("attached");
    recorder.child.kill().expect("killed");
    recorder.child.wait().expect("reaped");
    fs::write(&go, "").expect("go");
    let mut text = String::new();
    wait_until("the engine ends by itself", || {
        text = fs::read_to_string(&said).unwrap_or_default();
        text.ends_with("}\n")
    });
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(told["calls"]["llama_decode"], 30001);
    assert_eq!(leftovers(), Vec::<String>::new());
}

#[test]
fn what_a_killed_engine_did_is_kept() {
    let _turn = live!(from inside);
    let program = fixture!("modern");
    let command = ["--", program.to_str().expect("UTF-8"), "-n", "1000000", "--op-ns", "50000"];
    let recorder = Recorder::start(&[&INSIDE[..], &command].concat());
    recorder.wait_for_slices();
    let pid = recorder.wait_for_event("attached")["pid"].as_u64().expect("a pid") as u32;
    common::run::signal_to(pid, libc::SIGKILL);
    let run = recorder.finish();
    assert_eq!(run.status.code(), Some(137), "{}", run.stderr);
    let seen = Seen::read(&run.trace);
    assert!(seen.slices() > 100 && seen.footer().end == "target exited", "{} slices", seen.slices());
    assert!(seen.all.graphs.iter().filter(|g| g.cut).count() <= 1);
}

#[test]
fn an_engine_that_goes_on_is_left_alone() {
    let _turn = live!(from inside);
    let program = fixture!("modern");
    let dir = tempfile::tempdir().expect("a directory");
    let said = dir.path().join("said");
    let engine = format!("exec {} -n 3000 --op-ns 2000 >{}", program.display(), said.display());
    let run =
        record(&[&INSIDE[..], &["--tokens", "20", "--leave-running", "--", "sh", "-c", &engine]].concat());
    let seen = run.seen();
    assert!(seen.footer().end == "tokens" && seen.all.tokens.len() >= 20);
    wait_until("the engine ends by itself", || {
        fs::read_to_string(&said).is_ok_and(|text| text.ends_with("}\n"))
    });
}

#[test]
fn programs_without_a_loader_are_refused() {
    let program = fixture!("static");
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = profinfer();
    command
        .args(["record", "--source", "inside", "-o"])
        .arg(dir.path().join("t.pfi"))
        .arg("--")
        .arg(&program);
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    let status = wait(&mut child);
    let mut said = String::new();
    std::io::Read::read_to_string(child.stderr.as_mut().expect("piped"), &mut said).expect("read");
    assert!(status.code() == Some(1) && said.contains("is statically linked"), "{status}: {said}");
    let running = record_pid(std::process::id());
    assert!(running.contains("a running process cannot be recorded from inside"), "{running}");
}

fn record_pid(pid: u32) -> String {
    let mut command = profinfer();
    command.args(["record", "--source", "inside", "-o", "/dev/null", "--force", "-p", &pid.to_string()]);
    String::from_utf8_lossy(&command.output().expect("it starts").stderr).into_owned()
}
