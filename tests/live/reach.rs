//! What a recording touches: the memory of the recorded processes, at functions of their own engine, and nothing
//! that belongs to others, whatever a target claims.

use crate::common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::run::{Recorder, Target, record, wait_until};
use common::seen::Seen;
use common::waiting::wait_for_file;
use common::{fixture, live, skip};
use serde_json::Value;

/// Bytes of a process's code from this file that differ from the file.
fn patched(pid: u32, file: &Path) -> usize {
    let wanted = fs::metadata(file).expect("a file");
    let (code, memory) =
        (File::open(file).expect("a file"), File::open(format!("/proc/{pid}/mem")).expect("it runs"));
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let mut differ = 0;
    for line in maps.lines().filter(|l| l.contains(" r-xp ")) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        let (start, end) = words[0].split_once('-').expect("a range");
        if words[4].parse::<u64>().ok() != Some(wanted.ino()) {
            continue;
        }
        let len = (hex(end) - hex(start)) as usize;
        let (mut here, mut there) = (vec![0; len], vec![0; len]);
        memory.read_exact_at(&mut there, hex(start)).expect("its memory");
        // The last page extends past the file.
        let n = code.read_at(&mut here, hex(words[2])).expect("the file");
        differ += here[..n].iter().zip(&there).filter(|(a, b)| a != b).count();
    }
    differ
}

/// The library of a fixture.
fn library(program: &Path) -> PathBuf {
    program.with_file_name("libfakeggml.so").canonicalize().expect("a shared engine")
}

/// An engine that has computed at least its first tokens, as its account tells.
fn computing(program: &Path) -> (Target, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let account = dir.path().join("account");
    // Slowly: the account grows with each token.
    let args =
        ["-n", "1000000", "--op-ns", "1000000", "-t", "1", "--dump", account.to_str().expect("a path")];
    let target = Target::start(program, &args);
    wait_for_file(&account, |text| text.contains("\"graph\":3"));
    (target, dir)
}

const LONG: [&str; 6] = ["-n", "1000000", "--op-ns", "20000", "-t", "1"];

#[test]
fn a_process_beside_the_recorded_one_is_not_touched() {
    let _turn = live!(beside others, looking at code);
    let program = fixture!("modern");
    let library = library(&program);
    let (mut one, mut other) = (Target::start(&program, &LONG), Target::start(&program, &LONG));
    let recorder = Recorder::start(&["-p", &one.pid().to_string()]);
    recorder.wait_for_attached(one.pid());
    assert!(patched(one.pid(), &library) > 4, "it is probed");
    assert_eq!(patched(other.pid(), &library), 0, "the same library in another process");
    // Nor is one that starts meanwhile.
    let third = computing(&program);
    assert_eq!(patched(third.0.pid(), &library), 0, "the same library in a new process");
    recorder.wait_for_tokens(10);
    recorder.signal(libc::SIGINT);
    let (first, seen) = (one.pid(), recorder.finish().seen());
    assert_eq!(patched(first, &library), 0, "breakpoints go with the recording");
    assert!(one.running() && other.running());
    seen.books_close();
    assert!(seen.all.tokens.len() > 10 && seen.all.tokens.iter().all(|t| t.pid == first));
}

#[test]
fn programs_beside_the_one_named_are_not_touched() {
    let _turn = live!(beside others);
    let dir = tempfile::tempdir().expect("a directory");
    let named = fixture!("modern", dir.path().join("own"));
    let beside = named.with_file_name("beside");
    fs::copy(&named, &beside).expect("copied");
    let other = Target::start(&beside, &LONG);
    let recorder = Recorder::start(&["--exe", named.to_str().expect("a path")]);
    recorder.wait_for_probes();
    let mut one = Target::start(&named, &LONG);
    let library = library(&named);
    recorder.wait_for_attached(one.pid());
    wait_until("its library is mapped and probed", || patched(one.pid(), &library) > 4);
    assert_eq!(patched(other.pid(), &library), 0, "another program with the same library");
    recorder.wait_for_tokens(10);
    recorder.signal(libc::SIGINT);
    let (pid, seen) = (one.pid(), recorder.finish().seen());
    assert!(one.running());
    assert!(seen.all.tokens.len() > 10 && seen.all.tokens.iter().all(|t| t.pid == pid));
}

#[test]
fn who_begins_another_program_is_let_go() {
    let _turn = live!(beside others);
    let dir = tempfile::tempdir().expect("a directory");
    let engine = fixture!("modern", dir.path().join("own"));
    let (named, library) = (engine.with_file_name("starter"), library(&engine));
    fs::copy("/bin/sh", &named).expect("copied");
    let recorder = Recorder::start(&["--exe", named.to_str().expect("a path")]);
    recorder.wait_for_probes();
    let go = dir.path().join("go");
    assert!(Command::new("mkfifo").arg(&go).status().expect("mkfifo").success());
    let script = format!("read go < {}; exec {} {}", go.display(), engine.display(), LONG.join(" "));
    let mut target = Target::start(&named, &["-c", &script]);
    recorder.wait_for_attached(target.pid());
    fs::write(&go, "\n").expect("go");
    wait_until("it has become another program", || {
        assert!(target.running());
        let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap_or_default();
        maps.lines().any(|l| l.contains(" r-xp ") && l.contains("libfakeggml"))
    });
    wait_until("it is let go", || patched(target.pid(), &library) == 0);
    // It is not accepted again when mappings are examined: the recorder learns of those of a process that starts now
    // later than of its own.
    let next = Target::start(&named, &["-c", &format!("read forever < {}", go.display())]);
    recorder.wait_for_attached(next.pid());
    assert_eq!(patched(target.pid(), &library), 0);
    recorder.signal(libc::SIGINT);
    assert!(recorder.finish().stderr.contains("ready: ") && target.running());
}

/// A separate file system, removed when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(at: PathBuf) -> Option<Mounted> {
        fs::create_dir(&at).expect("made");
        let done = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&at).status();
        done.is_ok_and(|s| s.success()).then_some(Mounted(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_file_of_the_same_number_elsewhere_is_another() {
    let _turn = live!(beside others);
    let (program, dir) = (fixture!("modern"), tempfile::tempdir().expect("a directory"));
    let (Some(one), Some(two)) = (Mounted::new(dir.path().join("one")), Mounted::new(dir.path().join("two")))
    else {
        skip!("no file system can be mounted");
    };
    for at in [&one.0, &two.0] {
        for name in ["fakellama", "libfakeggml.so"] {
            fs::copy(program.with_file_name(name), at.join(name)).expect("copied");
        }
    }
    let inode = |at: &Path| fs::metadata(at.join("fakellama")).expect("a file").ino();
    if inode(&one.0) != inode(&two.0) {
        skip!("the kernel numbers files of all file systems together");
    }
    let named = one.0.join("fakellama");
    let mut other = Target::start(two.0.join("fakellama"), &LONG);
    let recorder = Recorder::start(&["--exe", named.to_str().expect("a path")]);
    recorder.wait_for_probes();
    // What starts first is examined first.
    let (third, _dir) = computing(&two.0.join("fakellama"));
    let mut first = Target::start(&named, &LONG);
    recorder.wait_for_attached(first.pid());
    recorder.wait_for_tokens(10);
    assert!(patched(first.pid(), &one.0.join("libfakeggml.so")) > 4, "it is probed");
    recorder.signal(libc::SIGINT);
    let (pid, seen) = (first.pid(), recorder.finish().seen());
    assert!(first.running() && other.running());
    assert!(seen.all.processes.iter().all(|p| p.pid == pid), "{}, {}", other.pid(), third.pid());
    assert!(seen.all.tokens.len() > 10 && seen.all.tokens.iter().all(|t| t.pid == pid));
}

/// Offset of a program's code in its file: some way into the executable segment.
fn code_of(pid: u32, file: &Path) -> u64 {
    let inode = fs::metadata(file).expect("a file").ino().to_string();
    wait_until("it runs", || {
        fs::read_to_string(format!("/proc/{pid}/maps"))
            .is_ok_and(|m| m.lines().any(|l| l.contains(" r-xp ") && l.contains(&inode)))
    });
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let line =
        maps.lines().find(|l| l.contains(" r-xp ") && l.split_ascii_whitespace().nth(4) == Some(&inode));
    let offset = line.and_then(|l| l.split_ascii_whitespace().nth(2)).expect("its code");
    u64::from_str_radix(offset, 16).expect("a number") + 0x101
}

#[test]
fn a_backend_of_somebody_else_s_code_is_not_probed() {
    let _turn = live!(beside others);
    // The function that computes splits is inlined there, so the functions are found through the backends.
    for name in ["dead-barrier", "dead-barrier-stripped"] {
        let (engine, dir) = (fixture!(name), tempfile::tempdir().expect("a directory"));
        let file = dir.path().join("victim");
        fs::copy("/bin/sleep", &file).expect("copied");
        let victim = Target::start(&file, &["1000"]);
        let place = format!("{}:{:#x}", file.display(), code_of(victim.pid(), &file));
        let args = [&LONG[..], &["--split", "--vtable", &place]].concat();
        let mut target = Target::start(&engine, &args);
        let recorder = Recorder::start(&["-p", &target.pid().to_string()]);
        // When it says so, it has examined what the backends name.
        recorder.wait_for_stderr("is not a file of this engine");
        assert!(patched(target.pid(), &library(&engine)) > 4, "{name}: it is probed");
        assert_eq!(patched(victim.pid(), &file), 0, "{name}: {}", recorder.stderr());
        let new = Target::start(&file, &["1000"]);
        code_of(new.pid(), &file);
        assert_eq!(patched(new.pid(), &file), 0, "{name}: a new process");
        recorder.wait_for_trace("splits are recorded", |all| !all.splits.is_empty());
        assert_eq!(patched(victim.pid(), &file), 0, "{name}: {}", recorder.stderr());
        assert!(target.running());
        recorder.signal(libc::SIGINT);
        // The engine's own functions are probed.
        let run = recorder.finish();
        let seen = run.seen();
        let vtable = seen.all.probes.iter().filter(|p| p.symbol.contains("vtable")).count();
        assert_eq!(vtable, 2, "{name}: entry and return: {}", run.stderr);
        assert!(run.stderr.contains("2 backend function(s) found"), "{name}: {}", run.stderr);
        assert!(run.stderr.contains("victim is not a file of this engine"), "{name}: {}", run.stderr);
        assert!(!seen.all.splits.is_empty(), "{name}");
    }
}

#[test]
fn a_library_that_two_engines_share_counts_for_each_process_once() {
    let _turn = live!(beside others);
    let (program, dir) = (fixture!("late"), tempfile::tempdir().expect("a directory"));
    let own = dir.path().join("libfakeggml.so");
    fs::copy(program.with_file_name("libfakeggml.so"), &own).expect("copied");
    let (go, shared) = (dir.path().join("go"), program.with_file_name("libfakeggml-cpu.so"));
    // It has its own base, and the other engine's library in addition.
    let script = "import mmap, os, sys, time\n\
                  keep = []\n\
                  for path in sys.argv[1:]:\n\
                  \x20   f = os.open(path, os.O_RDONLY)\n\
                  \x20   keep.append(mmap.mmap(f, os.fstat(f).st_size, flags=mmap.MAP_PRIVATE, prot=5))\n\
                  time.sleep(1000)\n";
    let twin = Target::spawn(Command::new("python3").arg("-c").arg(script).arg(&own).arg(&shared));
    let mapped = |pid: u32, name: &str| {
        fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|m| m.contains(name))
    };
    wait_until("it has both mapped", || mapped(twin.pid(), "libfakeggml-cpu.so"));
    let target = Target::start(&program, &["-n", "40", "--wait-for", go.to_str().expect("a path")]);
    wait_until("it runs", || mapped(target.pid(), "libfakeggml"));
    let both = [twin.pid().to_string(), target.pid().to_string()];
    let recorder = Recorder::start(&["-p", &both[0], "-p", &both[1]]);
    recorder.wait_for_probes();
    recorder.wait_for_attached(target.pid());
    // The part that computes is opened from here on, and is probed in advance.
    fs::write(&go, "").expect("go");
    let (pid, said) = (target.pid(), target.said());
    recorder.signal(libc::SIGINT);
    let seen = recorder.finish().seen();
    seen.complete();
    let calls = |name: &str| said["calls"][name].as_u64().expect("a count");
    let ops: u64 = seen.graphs(pid).iter().map(|g| u64::from(g.seen)).sum();
    assert_eq!(ops, calls("extra") + calls("fused"));
    assert_eq!(seen.all.cpu_graphs.len() as u64, calls("graph_compute"));
    assert_eq!(seen.kind("op").seen, ops, "no hit came through the other engine's programs");
}

/// Probe definitions of recorders in the kernel.
fn definitions(pid: u32) -> Vec<String> {
    let roots = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    let listing =
        roots.iter().find_map(|r| fs::read_to_string(format!("{r}/uprobe_events")).ok()).unwrap_or_default();
    let group = format!("profinfer_{pid}_");
    listing.lines().filter(|l| l.contains(&group)).map(str::to_owned).collect()
}

#[test]
fn a_recorder_that_is_killed_leaves_nothing_in_the_kernel() {
    let _turn = live!(beside others, by perf events);
    let program = fixture!("modern");
    for source in ["bpf", "perf"] {
        let mut target = Target::start(&program, &LONG);
        let mut recorder = Recorder::start(&["-p", &target.pid().to_string(), "--source", source]);
        recorder.wait_for_slices();
        let pid = recorder.child.id();
        assert!(patched(target.pid(), &library(&program)) > 4, "{source}");
        assert!(definitions(pid).len() > 4, "{source}");
        recorder.signal(libc::SIGKILL);
        recorder.child.wait().expect("it ends");
        wait_until("its definitions are gone", || definitions(pid).is_empty());
        assert_eq!(patched(target.pid(), &library(&program)), 0, "{source}");
        assert!(target.running());
    }
}

/// Three at a time, each of which ends in its own way; PROFINFER_ROUNDS times (2).
#[test]
fn recorders_on_one_engine_harm_neither_it_nor_each_other_nor_the_kernel() {
    let _turn = live!(beside others, by perf events);
    let rounds = std::env::var("PROFINFER_ROUNDS").map_or(2, |n| n.parse().expect("a number"));
    let program = fixture!("modern");
    let mut target = Target::start(&program, &LONG);
    let mut recorders = Vec::new();
    for round in 0..rounds {
        // Its work lasts some hundred rounds.
        if round % 50 == 49 {
            target = Target::start(&program, &LONG);
        }
        let pid = target.pid().to_string();
        let [ends, dies, goes_on] = ["bpf", "perf", if round % 2 == 0 { "bpf" } else { "perf" }]
            .map(|source| Recorder::start(&["-p", &pid, "--source", source]));
        recorders.extend([&ends, &dies, &goes_on].map(|recorder| recorder.child.id()));
        [&ends, &dies, &goes_on].into_iter().for_each(Recorder::wait_for_slices);
        dies.signal(libc::SIGKILL);
        ends.signal(libc::SIGINT);
        ends.finish().seen().books_close();
        goes_on.wait_for_tokens(Seen::damaged(&goes_on.trace).all.tokens.len());
        goes_on.signal(libc::SIGINT);
        goes_on.finish().seen().books_close();
        assert_eq!(dies.finish().status.code(), None);
        assert!(target.running(), "round {round}");
    }
    wait_until("nothing is left", || recorders.iter().all(|&pid| definitions(pid).is_empty()));
    let tainted = fs::read_to_string("/proc/sys/kernel/tainted").expect("it says");
    assert_eq!(tainted.trim().parse::<u64>().expect("a number") & 1 << 7, 0, "no oops");
}

#[test]
fn a_recorder_that_ends_leaves_nothing_in_the_kernel() {
    let _turn = live!(beside others);
    let mut recorder = Recorder::start(&["--", fixture!("modern").to_str().expect("a path"), "-n", "20"]);
    let pid = recorder.child.id();
    assert!(common::run::wait(&mut recorder.child).success());
    wait_until("its definitions are gone", || definitions(pid).is_empty());
    let trace = recorder.trace.display().to_string();
    let is_guard = |process: &Path| {
        let of = |name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
        of("comm").trim() == "profinfer-guard" && of("cmdline").contains(&trace)
    };
    let guarded = || fs::read_dir("/proc").expect("/proc").flatten().any(|p| is_guard(&p.path()));
    wait_until("its guard has ended", || !guarded());
}

#[test]
fn a_child_that_computes_at_once_is_told() {
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    // Returns whether the recording says that calls may be missing. If it does not, all calls must be in it.
    let run_with = |children: u64, more: &[&str]| {
        let program = engine.to_str().expect("a path");
        let n = children.to_string();
        let engine = [program, "-p", "0", "-n", "30", "--op-ns", "100000", "--fork", &n];
        let run = record(&[&["--"], &engine[..], more].concat());
        let said: Vec<Value> = run.stdout.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        let calls: u64 = said.iter().filter_map(|s| s["calls"]["llama_decode"].as_u64()).sum();
        assert_eq!(calls, children * 30);
        let (seen, stderr) = (run.seen(), run.stderr);
        let partly = seen.all.causes.features.iter().any(|f| f.name == "children");
        assert_eq!(stderr.contains("may have computed before it was probed"), partly, "{stderr}");
        let whole = seen.all.tokens.iter().filter(|t| !t.cut).count() as u64;
        assert!(partly || whole == calls, "{whole} of {calls} and nothing told: {stderr}");
        assert!(whole > 0, "no child was recorded: {stderr}");
        if partly {
            seen.books_close();
        } else {
            seen.complete();
        }
        partly
    };
    run_with(3, &["--child-hold", "0"]);
    // One at a time: while probes of one are placed, the next may be forked without those that are about to be placed.
    run_with(8, &["--child-hold", "0", "--at-once", "1"]);
    // A child that sleeps until it is probed gets no notice.
    assert!((0..3).any(|_| !run_with(1, &["--child-hold", "1"])));
}

#[test]
fn a_recorded_command_keeps_its_own_limits() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let line = format!(
        "ulimit -Sn 1000; exec {} record -o /dev/null -- sh -c 'ulimit -Sn; exec {} -n 20'",
        common::profinfer().display(),
        program.display()
    );
    let run = common::run::run(Command::new("sh").args(["-c", &line]));
    assert_eq!(run.stdout.lines().next(), Some("1000"), "{}", run.stderr);
}

#[test]
fn a_process_that_was_there_before_is_told() {
    let _turn = live!(beside others);
    let dir = tempfile::tempdir().expect("a directory");
    let program = fixture!("modern", dir.path().join("own"));
    let target = Target::start(&program, &LONG);
    let recorder = Recorder::start(&["--exe", program.to_str().expect("a path")]);
    let told = format!("process {} had loaded the engine before it was probed", target.pid());
    recorder.wait_for_stderr(&told);
    assert!(patched(target.pid(), &library(&program)) > 4, "it is probed");
    recorder.wait_for_tokens(0);
    recorder.signal(libc::SIGINT);
    let run = recorder.finish();
    assert!(run.stderr.contains(&told), "{}", run.stderr);
    assert!(run.seen().all.notices.iter().any(|n| n.text.contains(&told)));
}

/// A cgroup with a limit on processes; removed at the end.
struct Few(PathBuf);

impl Few {
    fn new(most: &str) -> Option<Few> {
        let name = format!("profinfer-test-{}", std::process::id());
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].iter().find_map(|root| {
            let dir = Path::new(root).join(&name);
            fs::create_dir(&dir).ok()?;
            let few = Few(dir);
            fs::write(few.0.join("pids.max"), most).ok()?;
            Some(few)
        })
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        wait_until("the group is empty", || fs::remove_dir(&self.0).is_ok() || !self.0.exists());
    }
}

#[test]
fn a_recording_ends_well_where_no_thread_is_to_be_had() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    for most in ["1", "2", "4"] {
        let Some(few) = Few::new(most) else { skip!("no control group for a limit of processes") };
        let target = Target::start(&program, &LONG);
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec {} record -o - --duration 1s -p {} > {}",
            few.0.display(),
            common::profinfer().display(),
            target.pid(),
            "/dev/null"
        );
        let run = common::run::run(Command::new("sh").args(["-c", &script]));
        assert!(!run.stderr.contains("panicked"), "{most}: {}", run.stderr);
        match most {
            // The signal thread cannot be started, and an error says so.
            "1" => assert_eq!(run.status.code(), Some(1), "{}", run.stderr),
            _ => assert!(run.status.success(), "{most}: {}", run.stderr),
        }
        drop(target);
    }
}
