//! `record` reports what happens to it, even if standard error is not a terminal: the program that starts it waits for
//! the line `ready`, or for events (`--events`).

use crate::common;

use std::fs;
use std::io::{PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::path::Path;

use common::run::{Recorder, Run, Target, profinfer, record, run};
use common::seen::Seen;
use common::waiting::give_events;
use common::{fixture, live};
use serde_json::Value;

#[test]
fn it_says_when_it_is_ready_without_a_terminal() {
    let _turn = live!(beside others);
    let dir = tempfile::tempdir().expect("a directory");
    let program = fixture!("modern", dir.path().join("own"));
    let engine = program.to_str().expect("UTF-8");
    let target = Target::start(&program, &["-n", "1000000", "--op-ns", "20000", "--sleep"]);
    let pid = target.pid().to_string();
    for (args, what) in [
        (&["-p", &pid][..], format!("process {pid}")),
        (&["--exe", engine], format!("every process that runs or maps {engine}")),
        (&["--", engine, "-n", "1000000", "--op-ns", "20000", "--sleep"], engine.to_owned()),
    ] {
        let recorder = Recorder::start(args);
        let line = format!("profinfer: ready: recording {what}; press Ctrl-C to stop");
        recorder.wait_for_stderr(&line);
        assert!(recorder.stderr().lines().any(|l| l == line), "{args:?}: {}", recorder.stderr());
        recorder.wait_for_slices();
        recorder.signal(libc::SIGINT);
        let run = recorder.finish();
        run.seen().books_close();
        assert_eq!(run.stderr.matches("ready: ").count(), 1, "{args:?}: {}", run.stderr);
    }
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().expect("a name")).collect()
}

#[test]
fn events_tell_a_recording_from_its_probes_to_its_file() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let run = record(&["--", program.to_str().expect("UTF-8"), "-n", "20"]);
    let seen = run.seen();
    seen.complete();
    let events = &run.events;
    assert_eq!(names(events), ["attached", "ready", "stopping", "stopped"], "{events:#?}");
    assert!(events.iter().all(|event| event["v"] == 1));
    assert!(events.is_sorted_by_key(|event| event["t_ns"].as_u64().expect("a time")));
    let attached = &events[0];
    assert_eq!(attached["pid"], seen.all.processes[0].pid);
    assert!(attached["file"].as_str().is_some_and(|file| file.ends_with("/libfakeggml.so")), "{attached}");
    assert!(attached["probes"].as_u64() > Some(4), "{attached}");
    // It computes nothing before it is probed, on the clock of the trace.
    let first = seen.all.tokens.iter().map(|t| t.t).min().expect("tokens");
    assert!(attached["t_ns"].as_i64() < Some(first), "{attached}");
    assert_eq!(events[2]["why"], "target exited");
    let stopped = &events[3];
    let file = run.trace.to_str().expect("UTF-8");
    assert_eq!((&stopped["why"], &stopped["file"]), (&"target exited".into(), &file.into()));
    assert_eq!((&stopped["failed"], &stopped["status"]), (&false.into(), &0.into()));
    assert_eq!((&stopped["lost"], &stopped["calls"]), (&0.into(), &(seen.all.tokens.len() as u64).into()));
    assert_eq!(stopped["bytes"], std::fs::metadata(&run.trace).expect("there").len());
    // A recording without result says why.
    let run = record(&["--", program.to_str().expect("UTF-8"), "-p", "0", "-n", "0"]);
    let last = run.events.last().expect("events");
    assert_eq!(
        (&last["event"], &last["failed"], &last["file"]),
        (&"stopped".into(), &true.into(), &Value::Null)
    );
    assert!(last["why"].as_str().is_some_and(|why| why.contains("nothing recorded")), "{last}");
}

/// A complete recording with its events written there, of a command that lists its own descriptors.
fn with_events(writer: PipeWriter, program: &Path) -> Run {
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("run.pfi");
    let mut command = profinfer();
    command.arg("record").arg("-o").arg(&trace);
    give_events(&mut command, writer);
    let script = "ls -l /proc/self/fd; exec \"$0\" -n 20";
    let run = run(command.args(["--", "sh", "-c", script]).arg(program));
    assert!(run.status.success(), "{}", run.stderr);
    Seen::read(&trace).complete();
    run
}

#[test]
fn a_command_does_not_inherit_the_descriptor_of_events() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let (mut reader, writer) = pipe().expect("a pipe");
    let link = fs::read_link(format!("/proc/self/fd/{}", writer.as_raw_fd())).expect("its name");
    let run = with_events(writer, &program);
    assert!(run.stdout.contains("/proc/"), "it lists them: {}", run.stdout);
    assert!(!run.stdout.contains(link.to_str().expect("UTF-8")), "{}: {}", link.display(), run.stdout);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("events");
    assert!(text.contains("\"event\":\"stopped\""), "{text}");
}

#[test]
fn nobody_waits_for_a_reader_of_events() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    // It has gone: this is said once.
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    let run = with_events(writer, &program);
    assert_eq!(run.stderr.matches("--events: ").count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains("Broken pipe") && run.stderr.contains("continues"), "{}", run.stderr);
    // It does not read, and there is no room.
    let (reader, mut writer) = pipe().expect("a pipe");
    // SAFETY: a plain system call.
    let full = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
    let full = usize::try_from(full).expect("its size");
    writer.write_all(&vec![b'\n'; full]).expect("room");
    let run = with_events(writer, &program);
    assert!(!run.stderr.contains("--events"), "{}", run.stderr);
    drop(reader);
}

#[test]
fn a_descriptor_that_is_not_open_is_wrong_usage() {
    let _turn = live!(beside others);
    let run = Recorder::start_as(profinfer(), &["--events", "1000", "--", "true"]).finish();
    assert_eq!(run.status.code(), Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("--events 1000") && run.stderr.contains("not open"), "{}", run.stderr);
}
