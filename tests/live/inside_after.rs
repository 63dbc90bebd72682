//! After a recording from inside: an engine that goes on has its own code again, computes the same, and others may probe it.

use crate::common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::run::{Recorder, profinfer, record, run, signal_to, wait_until};
use common::seen::Seen;
use common::{driver, engine, fixture, live, model, skip};

const INSIDE: [&str; 4] = ["--source", "inside", "--leave-running", "--"];

/// The files whose code in a process's memory is not that of the file.
pub fn changed_code(pid: u32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("memory");
    let differs = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[range, how, offset, _, _, path] = &words[..] else { return None };
        let number = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        if !how.contains('x') || !path.starts_with('/') || path.starts_with("/memfd:") {
            return None;
        }
        let (from, to) = range.split_once('-').map(|(from, to)| (number(from), number(to))).expect("a range");
        let [mut mine, mut own] = [(); 2].map(|()| vec![0; (to - from) as usize]);
        memory.read_exact_at(&mut mine, from).expect("its memory");
        let n =
            fs::File::open(path).and_then(|file| file.read_at(&mut own, number(offset))).expect("the file");
        (mine[..n] != own[..n]).then(|| path.to_owned())
    };
    maps.lines().filter_map(differs).collect()
}

/// Records a part of what a command does; its code is changed before the end and not after it. Returns its process.
fn recorded_for_a_while(command: &str) -> u32 {
    let recorder = Recorder::start(&[&INSIDE[..], &["sh", "-c", command]].concat());
    recorder.wait_for_slices();
    let pid = recorder.wait_for_event("attached")["pid"].as_u64().expect("a pid") as u32;
    assert!(!changed_code(pid).is_empty(), "its functions have jumps");
    recorder.signal(libc::SIGINT);
    let run = recorder.finish();
    let seen = run.seen();
    assert!(!run.stderr.contains("keeps jumps"), "{}", run.stderr);
    assert!(seen.footer().end == "signal" && seen.slices() > 0);
    assert_eq!(changed_code(pid), Vec::<String>::new());
    pid
}

#[test]
fn a_real_engine_has_its_code_again_and_says_the_same() {
    let _turn = live!(from inside);
    let lib = match engine("v0.5.0") {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (driver, lib, model) = (driver(), lib.display().to_string(), model("moe", "q4_0"));
    // After the prompt it writes the logits to a pipe, whose reader comes when the recording has ended.
    let ids = |logits: &str, out: &str| {
        format!(
            "exec {} --engine {lib} --model {} --ids 1,2,3,4,5,6,7,8 -n 40 -t 2 --logits {logits} >{out}",
            driver.display(),
            model.display()
        )
    };
    let plain = run(Command::new("sh").args(["-c", &ids(&file("logits"), &file("plain"))]));
    assert!(plain.status.success(), "{}", plain.stderr);
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .expect("a pipe");
    let pid = recorded_for_a_while(&ids(&file("pipe"), &file("recorded")));
    let logits = fs::read(&pipe).expect("it goes on");
    wait_until("it ends by itself", || !Path::new(&format!("/proc/{pid}")).exists());
    assert!(!logits.is_empty() && logits == fs::read(file("logits")).expect("written"));
    let said = ["plain", "recorded"].map(|name| fs::read_to_string(file(name)).expect("written"));
    assert!(said[0].len() > 40 && said[0] == said[1], "the same tokens");
}

/// Threads by the dozen, which come and go; then another recorder, whose probes are the kernel's.
#[test]
fn others_may_probe_it_then() {
    let _turn = live!(beside others, looking at code);
    let program = fixture!("modern");
    for options in ["-t 3", "-t 24 --fresh-threads --op-ns 1"] {
        let pid =
            recorded_for_a_while(&format!("exec {} -n 1000000 {options} >/dev/null", program.display()));
        let by_kernel = record(&["--source", "bpf", "-p", &pid.to_string(), "--tokens", "5"]);
        let seen = by_kernel.seen();
        assert!(seen.slices() > 0 && seen.all.tokens.len() >= 5);
        signal_to(pid, libc::SIGKILL);
    }
}

#[test]
fn a_stopped_job_stays_stopped() {
    let _turn = live!(from inside);
    let program = fixture!("modern");
    let command = format!("exec {} -n 1000000 >/dev/null", program.display());
    let recorder = Recorder::start(&[&INSIDE[..], &["sh", "-c", &command]].concat());
    recorder.wait_for_slices();
    let pid = recorder.wait_for_event("attached")["pid"].as_u64().expect("a pid") as u32;
    signal_to(pid, libc::SIGSTOP);
    let state = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    };
    wait_until("it stops", || state() == Some('T'));
    recorder.signal(libc::SIGINT);
    let ended = recorder.finish();
    assert!(!ended.stderr.contains("keeps jumps"), "{}", ended.stderr);
    assert_eq!(changed_code(pid), Vec::<String>::new());
    wait_until("it is stopped again", || state() == Some('T'));
    signal_to(pid, libc::SIGCONT);
    wait_until("it goes on", || matches!(state(), Some('R' | 'S')));
    signal_to(pid, libc::SIGKILL);
}

/// Where ptrace is refused, as by the filters of some containers.
#[test]
fn a_process_that_may_not_be_stopped_keeps_its_jumps_and_goes_on() {
    let _turn = live!(from inside);
    let program = fixture!("modern");
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("t.pfi");
    let engine = format!("exec {} -n 1000000 >/dev/null", program.display());
    let mut command = profinfer();
    command.args(["record", "-o"]).arg(&trace).args([
        "--source",
        "inside",
        "--tokens",
        "20",
        "--leave-running",
    ]);
    command.args(["--", "sh", "-c", &engine]);
    common::refuse::refuse(&mut command, libc::EPERM, &[libc::SYS_ptrace]);
    let done = run(&mut command);
    assert!(done.status.success() && done.stderr.contains("keeps jumps in its code"), "{}", done.stderr);
    assert!(done.stderr.contains("ptrace is refused"), "{}", done.stderr);
    let pid = Seen::read(&trace).all.tokens.first().expect("a call").pid;
    assert!(!changed_code(pid).is_empty());
    let threads = || fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("it goes on");
    let before = threads();
    wait_until("it computes", || threads() != before);
    signal_to(pid, libc::SIGKILL);
}
