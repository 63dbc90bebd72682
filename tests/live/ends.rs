//! How recordings end, and how bad input is handled: signals, deaths, errors. Each error is one line and a failure;
//! nothing recorded is lost, and nothing remains in the kernel.

use crate::common;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::endless::{code_is_clean, endless, to_pipe};
use common::run::{Recorder, Run, Target, profinfer, record, run, signal_to, wait, wait_until};
use common::seen::Seen;
use common::waiting::monotonic;
use common::{expect, fixture, live};
use pfi::Trace;

/// A recorder on a target, after it has written operators.
fn recording(target: &Target) -> Recorder {
    let recorder = Recorder::start(&["-p", &target.pid().to_string()]);
    recorder.wait_for_slices();
    recorder
}

/// Ids of the BPF programs that a process holds.
fn programs(pid: u32) -> Vec<u32> {
    let dir = format!("/proc/{pid}/fdinfo");
    let texts = fs::read_dir(dir).expect("fdinfo").filter_map(|e| fs::read_to_string(e.ok()?.path()).ok());
    let mut ids: Vec<u32> = texts
        .flat_map(|t| {
            t.lines().filter_map(|l| l.strip_prefix("prog_id:")?.trim().parse().ok()).collect::<Vec<_>>()
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Asks the kernel for a program by id (BPF_PROG_GET_FD_BY_ID = 13).
fn program_exists(id: u32) -> bool {
    let mut attr = [0u32; 32];
    attr[0] = id;
    // SAFETY: the attributes are a zeroed block larger than any kernel reads, with the matching size.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, 13, attr.as_mut_ptr(), size_of_val(&attr)) };
    if fd >= 0 {
        // SAFETY: the descriptor was just created and is not shared.
        unsafe { libc::close(fd as i32) };
    }
    fd >= 0
}

fn ends_by(signal: i32) {
    let _turn = live!(beside others, looking at code);
    let mut target = endless(&fixture!("modern"));
    let recorder = recording(&target);
    let held = programs(recorder.child.id());
    assert!(!held.is_empty() && !code_is_clean(target.pid()));
    recorder.signal(signal);
    let run = recorder.finish();
    let seen = run.seen();
    seen.books_close();
    assert_eq!(seen.footer().end, "signal");
    assert!(seen.slices() > 0);
    assert!(target.running());
    assert!(code_is_clean(target.pid()), "probes are left in the code");
    wait_until("programs leave the kernel", || !held.iter().any(|&id| program_exists(id)));
}

#[test]
fn ctrl_c_ends_and_flushes() {
    ends_by(libc::SIGINT);
}

#[test]
fn sigterm_ends_and_flushes() {
    ends_by(libc::SIGTERM);
}

fn waiting_in(pipe: &impl AsRawFd) -> usize {
    let mut n: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int to the given address.
    assert_eq!(unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut n) }, 0);
    n as usize
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let _turn = live!(beside others);
    let mut target = endless(&fixture!("modern"));
    let (mut recorder, events) = to_pipe(&target);
    let out = recorder.stdout.take().expect("piped");
    // Nobody reads: the recorder blocks in a write, and could not end cleanly.
    let mut steady = (0, 0);
    wait_until("the pipe is full", || {
        let n = waiting_in(&out);
        steady = if n == steady.0 { (n, steady.1 + 1) } else { (n, 0) };
        // A pipe holds 64 KiB; the last page may be partly used.
        n > 48 << 10 && steady.1 > 20
    });
    signal_to(recorder.id(), libc::SIGINT);
    let first = events.wait_for("stopping", |event| event["event"] == "stopping", String::new);
    assert_eq!(first["why"], "signal");
    // Signals within a tenth of a second count as one (SAME_NS in programs/profinfer/src/record/mod.rs).
    let next = first["t_ns"].as_u64().expect("a time") + 100_000_000;
    wait_until("the second is another one", || monotonic() > next);
    assert!(recorder.try_wait().expect("our child").is_none(), "one does not end it");
    signal_to(recorder.id(), libc::SIGINT);
    assert_eq!(wait(&mut recorder).code(), Some(130));
    assert!(target.running());
    wait_until("probes leave the code", || code_is_clean(target.pid()));
}

#[test]
fn a_killed_target_ends_the_recording() {
    let _turn = live!(beside others);
    let target = endless(&fixture!("modern"));
    let recorder = recording(&target);
    signal_to(target.pid(), libc::SIGKILL);
    // Reap it, or it would remain as our zombie.
    drop(target);
    let seen = recorder.finish().seen();
    seen.books_close();
    assert_eq!(seen.footer().end, "target exited");
    assert!(seen.slices() > 0);
}

#[test]
fn the_status_of_a_killed_command_is_passed_on() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let recorder =
        Recorder::start(&["--", program.to_str().expect("a path"), "-n", "1000000", "--op-ns", "1000"]);
    recorder.wait_for_slices();
    let children = format!("/proc/{0}/task/{0}/children", recorder.child.id());
    let tasks = format!("/proc/{}/task", recorder.child.id());
    let child = fs::read_to_string(&children).unwrap_or_default();
    // The thread that forked may not be the first one.
    let all: String = fs::read_dir(tasks)
        .expect("tasks")
        .filter_map(|t| fs::read_to_string(t.ok()?.path().join("children")).ok())
        .fold(child, |all, c| all + " " + &c);
    let pid: u32 = all.split_whitespace().next().expect("a child").parse().expect("a pid");
    signal_to(pid, libc::SIGKILL);
    let run = recorder.finish();
    assert_eq!(run.status.code(), Some(137), "{}", run.stderr);
    let seen = Seen::read(&run.trace);
    seen.books_close();
    assert_eq!(seen.footer().end, "target exited");
}

#[test]
fn kill_9_of_the_recorder_leaves_nothing_behind() {
    let _turn = live!(beside others, looking at code);
    let program = fixture!("modern");
    let mut target = endless(&program);
    let recorder = recording(&target);
    let held = programs(recorder.child.id());
    assert!(held.iter().all(|&id| program_exists(id)));
    assert!(!code_is_clean(target.pid()), "probes sit in the code");
    recorder.signal(libc::SIGKILL);
    let killed = recorder.finish();
    assert_eq!(killed.status.code(), None);
    wait_until("probes leave the code", || code_is_clean(target.pid()));
    wait_until("programs leave the kernel", || !held.iter().any(|&id| program_exists(id)));
    assert!(target.running(), "the target goes on");
    // What was written is complete up to its last block.
    let part = Seen::damaged(&killed.trace);
    assert!(part.slices() > 0 && part.all.footer.is_none());
    // A second recording works normally.
    let pid = target.pid().to_string();
    let again = record(&["-p", &pid, "--tokens", "20", "--buffer-size", "64MiB"]).seen();
    again.books_close();
    assert!(again.all.cpu_graphs.iter().filter(|g| !g.cut).all(|g| Some(g.seen) == g.expected));
}

#[test]
fn an_existing_file_is_replaced_only_with_force() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("kept.pfi");
    fs::write(&file, "precious").expect("written");
    let record = |more: &[&str]| {
        run(profinfer().arg("record").args(more).arg("-o").arg(&file).arg("--").arg(&program))
    };
    expect::one_line_error(&record(&[]), &["exists", "--force"]);
    assert_eq!(fs::read(&file).expect("still there"), b"precious");
    // Without a name, the next free one is taken.
    let other = tempfile::tempdir().expect("a directory");
    for name in ["run.pfi", "run.1.pfi", "run.2.pfi"] {
        let done = run(profinfer().current_dir(other.path()).args(["record", "--"]).arg(&program));
        assert!(done.status.success() && other.path().join(name).is_file(), "{}", done.stderr);
    }
    assert!(record(&["--force"]).status.success());
    Seen::read(&file).complete();
    let names = || fs::read_dir(dir.path()).expect("a directory").count();
    assert_eq!((names(), fs::metadata(&file).expect("there").permissions().mode() & 0o777), (1, 0o600));
    // If nothing is recorded, the old file stays.
    let before = fs::read(&file).expect("there");
    let none = run(profinfer().args(["record", "--force", "-o"]).arg(&file).args(["--", "true"]));
    assert_eq!(none.status.code(), Some(1), "{}", none.stderr);
    assert!(fs::read(&file).expect("there") == before && names() == 1);
    // Never writes to another user's file, neither through a symlink nor through a hard link.
    let victim = dir.path().join("victim");
    fs::rename(&file, &victim).expect("renamed");
    std::os::unix::fs::symlink(&victim, &file).expect("a link");
    expect::one_line_error(&record(&["--force"]), &["is a link, which is not followed"]);
    fs::remove_file(&file).expect("removed");
    fs::hard_link(&victim, &file).expect("a hard link");
    assert!(record(&["--force", "--mode", "0640"]).status.success());
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read(&victim).expect("there"), before);
}

#[test]
fn a_replaced_recording_that_is_killed_is_there() {
    let _turn = live!(beside others);
    let target = endless(&fixture!("modern"));
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("run.pfi");
    fs::write(&file, "old").expect("written");
    let pid = target.pid().to_string();
    let mut command = profinfer();
    command.args(["record", "--force", "-p", &pid, "-o"]).arg(&file).stderr(Stdio::null());
    let mut recorder = command.spawn().expect("started");
    // What follows the header comes a moment after it.
    let slices = || Trace::open(&file).map_or(0, |_| Seen::damaged(&file).slices());
    wait_until("the new one has the name, and slices", || slices() > 0);
    recorder.kill().expect("killed");
    wait(&mut recorder);
    assert!(Seen::damaged(&file).slices() > 0);
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1);
}

#[test]
fn command_lines_are_recorded_without_secrets_or_not_at_all() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let program = program.to_str().expect("a path");
    let engine = [program, "-n", "20", "--", "--api-key", "SECRET words", "--top-k", "40", "KEY=SECRET"];
    let recorded = |more: &[&str]| {
        let run = record(&[more, &["--"], &engine].concat());
        let bytes = fs::read(&run.trace).expect("a trace");
        assert!(!bytes.windows(6).any(|w| w == b"SECRET"), "{more:?}");
        let told = run_report(&run.trace);
        drop(run.seen());
        told
    };
    let told = recorded(&[]);
    assert!(
        told["run"]["processes"][0]["cmdline"]
            .as_str()
            .is_some_and(|c| c.ends_with("-- --api-key *** --top-k 40 KEY=***")),
        "{told}"
    );
    let command = told["run"]["command"].as_str().expect("a command");
    assert!(command.ends_with("-n 20 -- --api-key *** --top-k 40 KEY=***"), "{command}");
    let told = recorded(&["--no-cmdline"]);
    assert_eq!(told["run"]["processes"][0]["cmdline"], "");
    assert_eq!(told["run"]["processes"][0]["exe"], program);
    let command = told["run"]["command"].as_str().expect("a command");
    assert!(command.ends_with(&format!("--no-cmdline -- {program}")), "{command}");
}

fn run_report(trace: &Path) -> serde_json::Value {
    let out = profinfer().args(["report", "--json"]).arg(trace).output().expect("it runs");
    serde_json::from_slice(&out.stdout).expect("JSON")
}

#[test]
fn a_small_buffer_loses_and_counts() {
    let _turn = live!();
    let program = fixture!("modern");
    for transport in [&[][..], &["--pbuf"], &["--source", "perf"]] {
        let dir = tempfile::tempdir().expect("a directory");
        let go = dir.path().join("go");
        let wait_for = go.to_str().expect("a path");
        let target = Target::start(&program, &["--wait-for", wait_for, "-n", "200", "--moe"]);
        let pid = target.pid().to_string();
        let mut args = vec!["--buffer-size", "4KiB", "-p", &pid];
        args.extend(transport);
        let recorder = Recorder::start(&args);
        recorder.wait_for_probes();
        // Nobody drains the buffer while the target runs; it ends anyway.
        recorder.signal(libc::SIGSTOP);
        fs::write(&go, "").expect("go");
        let said = target.said();
        recorder.signal(libc::SIGCONT);
        let run = recorder.finish();
        let seen = run.seen();
        seen.books_close();
        let lost: u64 = seen.footer().kinds.iter().map(|k| k.lost).sum();
        assert!(lost > 10_000, "a page holds little of this: {lost}");
        assert!(run.stderr.contains("LOST"), "{}", run.stderr);
        let calls = &said["calls"];
        let ops = calls["extra"].as_u64().zip(calls["fused"].as_u64()).map(|(e, f)| e + f);
        assert_eq!(Some(seen.kind("op").seen), ops, "every hit was counted");
        assert_eq!(Some(seen.kind("token-enter").seen), calls["llama_decode"].as_u64());
    }
}

#[test]
fn commands_that_cannot_be_recorded() {
    let _turn = live!(beside others);
    expect::one_line_error(&record(&["--", "/nonexistent/engine"]), &["/nonexistent/engine", "No such file"]);
    expect::one_line_error(&record(&["--", "no-such-engine-anywhere"]), &["no-such-engine-anywhere", "PATH"]);
    expect::one_line_error(&record(&["--", "true"]), &["no GGML"]);
    expect::one_line_error(&record(&["--exe", "/bin/true"]), &["no GGML"]);
    expect::one_line_error(&record(&["--exe", "/nonexistent/engine"]), &["/nonexistent/engine"]);
}

#[test]
fn processes_that_cannot_be_recorded() {
    let _turn = live!(beside others);
    let sleep = Target::start("sleep", &["1000"]);
    let pid = sleep.pid().to_string();
    expect::one_line_error(&record(&["-p", &pid, "--duration", "200ms"]), &["no GGML", &pid]);
    let gone = Target::start::<&str>("true", &[]);
    let pid = gone.pid().to_string();
    drop(run(&mut Command::new("true")));
    let mut gone = gone;
    wait(&mut gone.0);
    expect::one_line_error(&record(&["-p", &pid]), &[&pid, "does not exist"]);
}

#[test]
fn the_cpu_of_the_recorder() {
    let _turn = live!();
    let program = fixture!("modern");
    let run = record(&["--agent-cpu", "4000", "--", program.to_str().expect("a path")]);
    expect::one_line_error(&run, &["4000", "--agent-cpu"]);
    assert!(run.stdout.is_empty(), "the command was not started");
    // The recorder stays on its CPU, the command does not.
    let script = format!("grep -E 'Cpus_allowed_list|THP' /proc/self/status; exec {}", program.display());
    let run = record(&["--agent-cpu", "0", "--", "sh", "-c", &script]);
    run.seen().complete();
    let status = fs::read_to_string("/proc/thread-self/status").expect("our own status");
    // Nor does the command lose huge pages, as the recorder does.
    let ours = |line: &&str| line.starts_with("Cpus_allowed_list") || line.starts_with("THP");
    let ours: Vec<&str> = status.lines().filter(ours).collect();
    assert!(!ours.is_empty() && run.stdout.lines().take(ours.len()).eq(ours), "{}", run.stdout);
}

#[test]
fn without_privileges() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    // The originals may be in directories closed to user nobody: copy everything to where that user has access.
    let dir = tempfile::tempdir().expect("a directory");
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    open(dir.path(), 0o777);
    let copy = |from: PathBuf| {
        let to = dir.path().join(from.file_name().expect("a name"));
        fs::copy(&from, &to).expect("copied");
        open(&to, 0o755);
        to
    };
    let recorder = copy(common::profinfer());
    let engine = copy(program.clone());
    copy(program.with_file_name("libfakeggml.so"));
    let file = dir.path().join("run.pfi");
    let mut command = Command::new(&recorder);
    // Setting the user id also drops the supplementary groups. By default it is recorded from inside (inside.rs).
    command.uid(65534).gid(65534).args(["record", "--source", "bpf", "-o"]).arg(&file).arg("--").arg(&engine);
    let run: Run = run(&mut command);
    expect::one_line_error(&run, &[]);
    assert!(run.stderr.contains("root") || run.stderr.contains("CAP_"), "{}", run.stderr);
    assert!(!file.exists(), "no file is left behind");
}

#[test]
fn says_no_more_than_it_must() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let said = record(&["--", program.to_str().expect("a path"), "-n", "200", "--op-ns", "20000"]);
    assert!(!said.stderr.contains(['\r', '\x1b']), "a status line without a terminal: {:?}", said.stderr);
    let lines: Vec<&str> = said.stderr.lines().collect();
    let end = lines.iter().position(|l| l.contains("none lost")).expect("how it ended");
    // The verdict follows, and nothing else.
    assert!(end <= 1 && lines[end + 1].starts_with("Model "), "{}", said.stderr);
    assert!(lines.last().is_some_and(|l| l.starts_with("Details ")), "{}", said.stderr);
    let quiet = record(&["-q", "--", program.to_str().expect("a path")]);
    quiet.seen().complete();
    assert_eq!(quiet.stderr, "");
}

/// The pid in the line that names the process.
fn process_in(said: &str) -> u32 {
    let after = said.split("process ").nth(1).expect("a process is named");
    after.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("its number")
}

fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_command_ends_with_its_recording_unless_it_is_left_running() {
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    let endless = [engine.to_str().expect("UTF-8"), "-n", "1000000", "--op-ns", "20000", "--sleep"];
    for end in [["--tokens", "5"], ["--duration", "800ms"]] {
        let run = record(&[&end[..], &["--"], &endless].concat());
        assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
        assert!(run.stderr.contains("terminating the command"), "{}", run.stderr);
        assert!(!is_there(process_in(&run.stderr)), "{}", run.stderr);
        run.seen().books_close();
    }
    // A command that ignores SIGTERM.
    let stubborn = ["sh", "-c", "trap '' TERM; exec \"$0\" \"$@\""];
    let run = record(&[&["--tokens", "5", "--"], &stubborn[..], &endless].concat());
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    assert!(!is_there(process_in(&run.stderr)), "{}", run.stderr);

    let run = record(&[&["--tokens", "5", "--leave-running", "--"], &endless[..]].concat());
    assert_eq!(run.status.code(), Some(0), "{}", run.stderr);
    let pid = process_in(&run.stderr);
    assert!(run.stderr.contains("the command keeps running") && is_there(pid), "{}", run.stderr);
    signal_to(pid, libc::SIGKILL);
}

#[test]
fn an_engine_that_computes_nothing_leaves_no_recording() {
    let _turn = live!(beside others);
    let (engine, runner) = (fixture!("modern"), common::runner());
    let (engine, runner) = (engine.to_str().expect("UTF-8"), runner.to_str().expect("UTF-8"));
    // One that has nothing to do, and one that does not find its model.
    for command in [&[engine, "-p", "0", "-n", "0"][..], &[runner, "run", "-m", "/none.gguf"]] {
        let run = record(&[&["--"], command].concat());
        assert_eq!(run.status.code(), Some(1), "{command:?}: {}", run.stderr);
        let said = run.stderr.lines().last().expect("a message");
        assert!(said.contains("nothing recorded") && said.contains("computed nothing"), "{}", run.stderr);
        assert!(!run.trace.exists(), "{command:?}");
    }
    // An existing file stays.
    let dir = tempfile::tempdir().expect("a directory");
    let old = dir.path().join("old.pfi");
    fs::write(&old, "old").expect("written");
    let args = ["record", "--force", "-o", old.to_str().expect("UTF-8"), "--", engine, "-p", "0", "-n", "0"];
    assert_eq!(run(profinfer().args(args)).status.code(), Some(1));
    assert_eq!(fs::read(&old).expect("there"), b"old");
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1);
}
