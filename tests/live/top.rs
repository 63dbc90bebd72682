//! `top` on a live engine: as JSON, and on a pseudoterminal, which it must restore.

use crate::common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::run::{Target, profinfer, run, signal_to, wait};
use common::{live, model, runner};
use serde_json::Value;

/// The runner's arguments for this many tokens.
fn engine(tokens: &str) -> Vec<String> {
    let model = model("tiny", "q4_0");
    let model = model.to_str().expect("a path");
    let args = ["run", "--no-roofline", "-m", model, "-t", "2", "-p", "8", "-n", tokens];
    args.map(String::from).to_vec()
}

fn pictures(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
}

fn phase<'v>(span: &'v Value, name: &str) -> &'v Value {
    let phases = span["phases"].as_array().expect("phases");
    phases.iter().find(|p| p["phase"] == name).unwrap_or_else(|| panic!("no {name} in {span:#}"))
}

#[test]
fn pictures_of_a_running_engine_are_what_is_recorded() {
    let _turn = live!(beside others);
    let target = Target::start(runner(), &engine("1000000"));
    let dir = tempfile::tempdir().expect("a directory");
    let (trace, pid) = (dir.path().join("run.pfi"), target.pid().to_string());
    let mut top = profinfer();
    top.args(["top", "--json", "--rows", "1000", "--interval", "200ms", "--count", "5", "--level", "op"]);
    // A machine with two clusters and a thermal zone.
    top.arg("--sysfs").arg(sensors(dir.path()));
    let run = run(top.arg("-o").arg(&trace).args(["-p", &pid]));
    assert!(run.status.success(), "{}", run.stderr);
    assert!(run.stderr.contains("next: profinfer report"), "{}", run.stderr);
    let all = pictures(&run.stdout);
    assert_eq!(all.len(), 5, "{}", run.stdout);
    let last = &all[4];
    assert_eq!(
        (&last["state"], &last["level"]),
        (&"running".into(), &"op with structure".into()),
        "{last:#}"
    );
    assert_eq!((last["budget"].is_null(), last["cost"].is_null()), (true, true), "{last:#}");
    assert!(last["events"].as_u64() > Some(0) && last["bytes"].as_u64() > Some(0), "{last:#}");
    let calls = |p: &Value| phase(&p["run"], "decode")["calls"].as_u64().expect("calls");
    assert!(calls(&all[2]) < calls(last), "{} {}", calls(&all[2]), calls(last));
    let values: Vec<_> = last["sensors"].as_array().expect("sensors").iter().map(|s| &s["value"]).collect();
    assert_eq!(values, [1_800_000, 2_400_000, 61_000], "{last:#}");
    assert!(last["faults"]["minor_per_s"].as_f64() >= Some(0.0), "{last:#}");
    for span in ["now", "run"] {
        let decode = phase(&last[span], "decode");
        let causes = &decode["causes"];
        assert!(
            causes["computing_ns"].as_u64() > Some(0),
            "the scheduler is recorded by default: {decode:#}"
        );
        assert!(decode["tokens_per_s"].as_f64() > Some(0.0), "{decode:#}");
        let shares =
            decode["ops"].as_array().expect("ops").iter().map(|o| o["share"].as_f64().expect("share"));
        let sum: f64 = shares.sum();
        assert!(sum > 0.0 && sum <= 1.0, "{sum}");
        assert_eq!(decode["threads"].as_array().map(Vec::len), Some(2), "{decode:#}");
    }
    // The file has everything in the last frame, and what arrived until the end.
    let report = profinfer().args(["report", "--json"]).arg(&trace).output().expect("it runs");
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let whole = phase(&report, "decode");
    assert!(whole["calls"].as_u64() >= Some(calls(last)), "{}", whole["calls"]);
    let ops = whole["by_name"].as_array().expect("rows");
    for op in phase(&last["run"], "decode")["ops"].as_array().expect("ops") {
        let row = ops.iter().find(|r| r["name"] == op["name"]).unwrap_or_else(|| panic!("no {op}"));
        assert!(row["calls"].as_u64() >= op["calls"].as_u64(), "{row} {op}");
        assert!(row["total_ns"].as_u64() >= op["total_ns"].as_u64(), "{row} {op}");
    }
}

/// A tree like /sys with three sensors.
fn sensors(dir: &Path) -> PathBuf {
    let sys = dir.join("sys");
    for (file, text) in [
        ("devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "1800000"),
        ("devices/system/cpu/cpufreq/policy0/related_cpus", "0 1"),
        ("devices/system/cpu/cpufreq/policy2/scaling_cur_freq", "2400000"),
        ("devices/system/cpu/cpufreq/policy2/related_cpus", "2 3"),
        ("class/thermal/thermal_zone0/temp", "61000"),
        ("class/thermal/thermal_zone0/type", "package"),
    ] {
        let path = sys.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    sys
}

#[test]
fn it_waits_for_an_engine_and_ends_with_it() {
    let _turn = live!(beside others);
    let dir = tempfile::tempdir().expect("a directory");
    let go = dir.path().join("go");
    assert!(Command::new("mkfifo").arg(&go).status().is_ok_and(|s| s.success()));
    let script = format!("read x <{}; \"$0\" \"$@\"; exit 7", go.display());
    let mut top = profinfer();
    top.args(["top", "--json", "--interval", "100ms", "--", "sh", "-c", &script]).arg(runner());
    top.args(engine("2000")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut top = top.spawn().expect("it starts");
    let (mut out, mut stdout) = (BufReader::new(top.stdout.take().expect("a pipe")), String::new());
    out.read_line(&mut stdout).expect("a picture without an engine");
    std::fs::write(&go, "\n").expect("the command waits");
    out.read_to_string(&mut stdout).expect("text");
    let ended = top.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(7), "{stderr}");
    let all = pictures(&stdout);
    let last = all.last().expect("a picture");
    assert_eq!((&all[0]["state"], &last["state"]), (&"waiting".into(), &"ended".into()), "{stdout}");
    assert_eq!((&last["end"], &last["budget"]), (&"target exited".into(), &0.01.into()), "{last:#}");
    assert!(phase(&last["run"], "decode")["tokens"].as_u64() > Some(0), "{last:#}");
    assert!(stderr.contains("level now"), "{stderr}");
}

#[test]
fn two_processes_are_no_sum_of_both() {
    let _turn = live!(beside others);
    let both = [Target::start(runner(), &engine("1000000")), Target::start(runner(), &engine("1000000"))];
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("run.pfi");
    let mut top = profinfer();
    top.args(["top", "--json", "--interval", "1s", "--duration", "3s", "--level", "op", "-o"]).arg(&trace);
    for target in &both {
        top.args(["-p", &target.pid().to_string()]);
    }
    let run = run(&mut top);
    assert!(run.status.success(), "{}", run.stderr);
    let all = pictures(&run.stdout);
    let last = all.last().expect("a picture");
    let rows = last["processes"].as_array().expect("rows");
    let pids: Vec<u64> = rows.iter().filter_map(|r| r["pid"].as_u64()).collect();
    let wanted = both.each_ref().map(|t| u64::from(t.pid()));
    assert!(pids.len() == 2 && wanted.iter().all(|pid| pids.contains(pid)), "{rows:?}");
    assert!(rows.iter().all(|r| r["decode_tokens_per_s"].as_f64() > Some(0.0)), "{rows:?}");
    // The rest is about the one with the most calls, as in the report.
    let shown = rows.iter().find(|r| r["shown"] == true).expect("one is shown");
    assert!(rows.iter().all(|r| r["calls"].as_u64() <= shown["calls"].as_u64()), "{rows:?}");
    let decode = phase(&last["run"], "decode");
    assert!(decode["calls"].as_u64() <= shown["calls"].as_u64(), "{decode:#}");
    let report = profinfer().args(["report", "--json"]).arg(&trace).output().expect("it runs");
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let runs = report["runs"].as_array().expect("runs");
    let first = runs.iter().find(|r| r["shown"] == true).expect("one is shown");
    assert_eq!((&first["pid"], &first["calls"]), (&shown["pid"], &shown["calls"]), "{first:#}");
    assert_eq!(phase(&report, "decode")["calls"], decode["calls"]);
}

/// A pseudoterminal of 24 lines and 80 columns: our end, and the program's.
fn terminal() -> (File, File) {
    let (mut ours, mut theirs) = (0, 0);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let (name, usual) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: two numbers to fill, no name, the usual settings, and a size.
    let made = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, name, usual, &raw const size) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    for fd in [ours, theirs] {
        // SAFETY: the descriptor was just created and is not shared.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: both were just created and are not shared.
    unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) }
}

fn settings(terminal: &File) -> (libc::tcflag_t, Vec<libc::cc_t>) {
    // SAFETY: all zeros is a valid value of the struct, which the call fills.
    let t = unsafe {
        let mut t = std::mem::zeroed::<libc::termios>();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &raw mut t), 0);
        t
    };
    (t.c_lflag, t.c_cc.to_vec())
}

fn on(terminal: &File, command: &mut Command) -> Child {
    let end = || Stdio::from(terminal.try_clone().expect("a copy"));
    command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it starts")
}

/// Nothing here takes this long unless it hangs.
const PATIENCE_MS: i32 = 60_000;

/// Reads until `text` was shown `times` times, or no more data arrives.
fn shown(terminal: &mut File, so_far: &mut String, text: &str, times: usize) {
    let mut bytes = [0; 4096];
    while so_far.matches(text).count() < times {
        let mut asked = libc::pollfd { fd: terminal.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as the count says.
        let more = unsafe { libc::poll(&raw mut asked, 1, PATIENCE_MS) };
        assert_eq!(more, 1, "in vain: {text:?} in {so_far:?}");
        match terminal.read(&mut bytes) {
            // Reading from a terminal whose other end is closed fails.
            Ok(0) | Err(_) => return,
            Ok(n) => so_far.push_str(&String::from_utf8_lossy(&bytes[..n])),
        }
    }
}

/// Text without its control sequences.
fn bare(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_string();
    first
        + &parts
            .map(|p| p.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or(""))
            .collect::<String>()
}

/// What `top` shows on a terminal until `end` has taken effect, from the first frame with ops on; and its exit
/// code.
fn watched(args: &[String], end: impl FnOnce(&Child, &File)) -> (String, Option<i32>) {
    let (mut ours, theirs) = terminal();
    let before = settings(&theirs);
    let mut child = on(&theirs, profinfer().arg("top").args(args));
    let mut text = String::new();
    shown(&mut ours, &mut text, "op and name", 2);
    let during = settings(&theirs);
    assert_eq!(during.0 & (libc::ICANON | libc::ECHO), 0, "keys come at once: {text}");
    end(&child, &ours);
    let status = wait_reading(&mut child, theirs, &mut ours, &mut text, &before);
    (text, status)
}

fn wait_reading(
    child: &mut Child,
    theirs: File,
    ours: &mut File,
    text: &mut String,
    before: &(libc::tcflag_t, Vec<libc::cc_t>),
) -> Option<i32> {
    shown(ours, text, "\x1b[?1049l", 1);
    let status = wait(child);
    assert_eq!(&settings(&theirs), before, "the terminal is as it was");
    drop(theirs);
    shown(ours, text, "never shown", 1);
    status.code()
}

/// The frames in order, and the text that remained on the terminal.
fn taken_apart(text: &str) -> (Vec<String>, String) {
    for (on, off) in [("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h"), ("\x1b[?7l", "\x1b[?7h")] {
        assert_eq!((text.matches(on).count(), text.matches(off).count()), (1, 1), "{on:?} {text:?}");
    }
    let (screen, rest) = text.split_once("\x1b[?1049l").expect("left");
    let pictures = screen.split("\x1b[H").skip(2).map(bare).collect();
    (pictures, bare(rest))
}

#[test]
fn a_terminal_is_left_as_it_was() {
    let _turn = live!(beside others);
    let target = Target::start(runner(), &engine("1000000"));
    let args = ["--interval", "100ms", "--level", "op", "-p", &target.pid().to_string()].map(String::from);
    let (text, status) = watched(&args, |child, _| signal_to(child.id(), libc::SIGTERM));
    assert_eq!(status, Some(0), "{text}");
    let (pictures, rest) = taken_apart(&text);
    assert!(pictures.len() >= 2, "{text:?}");
    for picture in &pictures {
        assert!(picture.starts_with("profinfer top: process "), "{picture:?}");
        let lines: Vec<&str> = picture.lines().collect();
        assert!(lines.len() <= 24 && lines.iter().all(|l| l.chars().count() <= 80), "{picture:?}");
    }
    for line in ["ended: signal", "Ops, decode, over the run", "MUL_MAT  ", "Threads: "] {
        assert!(rest.contains(line), "{line}: {rest}");
    }
}

#[test]
fn a_key_ends_it_and_a_command_is_not_heard() {
    let _turn = live!(beside others);
    let mut args = ["--interval", "100ms", "--level", "op", "--", "sh", "-c"].map(String::from).to_vec();
    // It is stopped with the recording; the timeout is for a recorder that fails to stop it.
    let said = "echo HEARD; echo HEARD >&2; exec timeout 60 \"$0\" \"$@\"";
    args.extend([said.to_string(), runner().display().to_string()]);
    args.extend(engine("1000000"));
    let (text, status) = watched(&args, |_, ours| {
        use std::io::Write;
        (&*ours).write_all(b"q").expect("a key");
    });
    let (_, rest) = taken_apart(&text);
    assert!(rest.contains("ended: as requested"), "{rest}");
    assert_eq!(status, Some(0), "{text}");
    let named = text.matches("echo HEARD").count();
    assert_eq!(text.matches("HEARD").count(), named, "only as part of what it is called: {text}");
}

#[test]
fn keys_change_what_is_shown() {
    let _turn = live!(beside others);
    let target = Target::start(runner(), &engine("1000000"));
    let dir = tempfile::tempdir().expect("a directory");
    let (mut ours, theirs) = terminal();
    let before = settings(&theirs);
    let mut top = profinfer();
    top.args(["top", "--interval", "100ms", "--level", "op", "-p", &target.pid().to_string()]);
    top.arg("--sysfs")
        .arg(sensors(dir.path()))
        .env("LC_ALL", "C")
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    let mut child = on(&theirs, &mut top);
    // It holds the terminal open, too.
    drop(top);
    let mut text = String::new();
    let mut expect = |key: &str, wanted: &str| {
        use std::io::Write;
        (&ours).write_all(key.as_bytes()).expect("a key");
        let so_far = text.matches(wanted).count();
        shown(&mut ours, &mut text, wanted, so_far + 1);
    };
    expect("", "op and name");
    expect("", "1.80 to 2.40 GHz, 61 C (package)");
    expect("", "decode, 0 to ");
    expect("", "% computing, ");
    expect("", "s sort: time   f phase: busiest");
    expect("s", "s sort: calls");
    expect("f", "f phase: decode");
    expect("f", "No ops of prefill recorded yet");
    expect("ff", "f phase: busiest");
    expect("?", "share of the time of the CPU graphs");
    expect("h", "op and name");
    expect("p", "paused; press p to resume");
    expect("pq", "\x1b[?1049l");
    assert_eq!(wait_reading(&mut child, theirs, &mut ours, &mut text, &before), Some(0), "{text}");
    // This locale has no other characters; the colours are those of a terminal.
    assert!(text.is_ascii() && text.contains("\x1b[1m"), "{text:?}");
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let refused = |args: &[&str]| {
        let run = run(profinfer().arg("top").args(args));
        assert!(run.stdout.is_empty(), "{}", run.stdout);
        (run.status.code(), run.stderr)
    };
    for (args, why) in [
        (&["--interval", "1ms", "-p", "1"][..], "must be 50ms or more"),
        (&["--lines", "--json", "-p", "1"], "cannot be combined"),
        (&["--sort", "tim", "-p", "1"], "expected time, calls or mean; the nearest is 'time'"),
        (&[], "-p PID, --exe PATH, or -- COMMAND"),
    ] {
        let (code, said) = refused(args);
        assert!(code == Some(2) && said.contains(why), "{code:?} {said}");
    }
    let (code, said) = refused(&["-o", "-", "-p", "1"]);
    assert!(code == Some(1) && said.contains("give a file with -o"), "{said}");
    let (code, said) = refused(&["--force", "-o", "/dev/null", "-p", "1"]);
    assert!(code == Some(1) && said.contains("not a regular file"), "{said}");
    let _turn = live!(beside others);
    let (code, said) = refused(&["-p", "4194305"]);
    assert!(code == Some(1) && said.contains("does not exist"), "{said}");
}
