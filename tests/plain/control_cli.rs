//! `profinfer status`, `dump` and `stop` against the service's end of the socket: the requests, the output, and
//! errors when no service is running.

use crate::common;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use common::skip;
use inspector::waiting::HeldBack;
use requests::{RequestNow, RequestPhase};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use service::run::Run;
use service::socket::{Control, ServiceRequest, dumped};
use service::status::{
    FinderStatus, Message, RuleStatus, ServicePhase, ServiceState, ServiceUsage, StateFiles, StatusCounts,
};
use service::store::DirectoryUsage;

fn profinfer(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    command.args(args).arg("--socket").arg(socket);
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

fn state() -> ServiceState {
    let mut state = ServiceState::new("0.1.0 (abc)");
    state.state = ServicePhase::Recording;
    let held_back = vec![HeldBack { uid: 1000, files: 77, processes: 2 }];
    state.finder =
        FinderStatus { backend: "exec and mmap events".into(), held_back, ..FinderStatus::default() };
    state.configuration.file = Some("/etc/profinfer/profinfer.toml".into());
    state.configuration.read = "2026-11-21T20:41:43.123Z".into();
    state.configuration.errors = vec!["line 3: \u{1b}[2Jno such key".into()];
    state.rules = vec![
        RuleStatus { name: "chat".into(), runs: 2, recorder: Some(4712) },
        RuleStatus { name: "rest".into(), runs: 1, recorder: None },
    ];
    state.counts = StatusCounts { seen: 3, recorded: 2, sample_one_in: 1, ..StatusCounts::default() };
    state.directory = "/var/lib/profinfer".into();
    state.store = DirectoryUsage {
        files: 3,
        writing: 1,
        bytes: 1 << 20,
        counted: 3 << 20,
        quota: 512 << 20,
        removed: 9,
    };
    state.own = ServiceUsage { resident_bytes: Some(4_300_800), cpu_seconds: Some(1.25) };
    let run = Run {
        pid: 42,
        uid: 0,
        recorder: Some(41),
        processes: vec![42],
        threads: [Some(2), Some(1)],
        start: 7,
        exe: "/opt/evil\n\u{1b}[31m\u{202e}/llama-server".into(),
        rule: "chat".into(),
        level: "op".into(),
        file: Some("20261121T204143.123Z-llama-server-42.pfi".into()),
        tokens: 1234,
        ttft_ns: Some(1_500_000_000),
        rate: Some(27.5),
        tpot_ns: [Some(36_000_000), Some(37_000_000), Some(48_500_000)],
        requests: vec![RequestNow {
            pid: 44,
            context: 1,
            seq: 3,
            phase: RequestPhase::Decode,
            prompt_tokens: 70,
            cached_tokens: Some(5),
            ttft_ns: Some(250_000_000),
            tokens: 12,
            tokens_per_s: Some(31.5),
            drafted: 8,
            accepted: 2,
            ..RequestNow::default()
        }],
        lost: 3,
        seen: 1000,
        cost: Some(0.008),
        figures: None,
        ended: None,
    };
    state.run(&run);
    state.run(&Run { pid: 43, rule: "rest".into(), ended: Some("target exited".into()), ..Run::default() });
    state.messages.push(Message { at: "2026-11-21T20:41:43.123Z".into(), text: "run\r42 began".into() });
    state
}

/// Waits until a client, or the end of the command, needs attention. Returns whether it has ended.
fn next_event(control: &Control, end: Option<BorrowedFd<'_>>) -> bool {
    let mut fds = Vec::new();
    control.fds(&mut |fd, events| fds.push(PollFd::from_borrowed_fd(fd, events)));
    let clients = fds.len();
    fds.extend(end.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let patience = Timespec { tv_sec: 120, tv_nsec: 0 };
    assert!(poll(&mut fds, Some(&patience)).expect("poll") > 0, "nothing happens");
    fds.get(clients).is_some_and(|fd| !fd.revents().is_empty())
}

/// A service that answers until the command ends, or until it is stopped.
fn serve(mut control: Control, mut command: Command) -> (Output, Vec<ServiceRequest>) {
    let mut asked = Vec::new();
    let (end, running) = std::io::pipe().expect("a pipe");
    let client = thread::spawn(move || {
        let output = command.output().expect("it runs");
        drop(running);
        output
    });
    let mut stopped = false;
    while !stopped && !next_event(&control, Some(end.as_fd())) {
        let (mut later, mut watching) = (None, None);
        control.poll(&mut |request, token| {
            asked.push(request);
            match request {
                ServiceRequest::Status => Some(state().json().map_err(Into::into)),
                ServiceRequest::Dump(Some(1)) => Some(Err("no run of process 1 is kept in memory".into())),
                ServiceRequest::Dump(_) => {
                    later = Some(token);
                    None
                }
                ServiceRequest::Watch => {
                    watching = Some(token);
                    None
                }
                ServiceRequest::Stop | ServiceRequest::Reload => {
                    stopped = true;
                    Some(Ok("null".into()))
                }
            }
        });
        if let Some(token) = watching {
            assert!(control.watch(token, "{\"event\":\"hello\"}"));
            control.show("{\"event\":\"second\",\"tok_s\":5.5}");
            control.show("{\"event\":\"stop\"}");
            stopped = true;
        }
        if let Some(token) = later {
            let files = ["a.pfi".to_owned(), "b.pfi".to_owned()];
            assert!(control.answer(token, &dumped(Path::new("/var/lib/profinfer"), &files)));
        }
    }
    drop(control);
    (client.join().expect("the command"), asked)
}

fn with_service(args: &[&str]) -> (Output, Vec<ServiceRequest>) {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("run/control.sock");
    let control = Control::bind(&socket).expect("a socket");
    serve(control, profinfer(&socket, args))
}

#[test]
fn status_tells_how_the_service_stands() {
    let (out, asked) = with_service(&["status"]);
    let said = text(&out.stdout);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(asked, [ServiceRequest::Status]);
    for line in [
        "Service: recording (0.1.0 (abc), process ",
        "  discovery    exec and mmap events\n",
        "77 mapped files of user 1000 not examined (2 of the user's processes wait)",
        "  settings     /etc/profinfer/profinfer.toml, read 2026-11-21T20:41:43.123Z\n",
        "line 3: \\u{1b}[2Jno such key\n",
        "  rules        chat (2 runs, recorder 4712), rest (1 run)\n",
        "  runs         3 seen: 2 recorded, 1 left out by sample_one_in\n",
        "  recordings   3 in /var/lib/profinfer, 1 being written: 1.0 MiB of 512.0 MiB, 9 removed\n",
        "  own cost     4.1 MiB of memory, 1.25 s of CPU time\n",
        "running        20261121T204143.123Z-llama-server-42.pfi  /opt/evil\\n\\u{1b}[31m\\u{202e}/llama-server\n",
        "  2026-11-21T20:41:43.123Z  run\\r42 began\n",
    ] {
        assert!(said.contains(line), "{line:?} is not in\n{said}");
    }
    let row = |pid: &str| said.lines().find(|l| l.split_whitespace().next() == Some(pid)).expect("a row");
    let cells: Vec<&str> = row("42").split_whitespace().take(11).collect();
    assert_eq!(
        cells,
        ["42", "chat", "op", "1234", "27.50", "1500.000", "36.000", "37.000", "48.500", "3", "0.80"]
    );
    let cells: Vec<&str> = row("44").split_whitespace().collect();
    assert_eq!(cells, ["44", "1", "3", "decode", "70", "5", "250.000", "12", "31.50", "25.00"]);
    let cells: Vec<&str> = row("43").split_whitespace().take(9).collect();
    assert_eq!(cells, ["43", "rest", "-", "0", "-", "-", "-", "-", "-"], "what is not known is no zero");
    assert!(row("43").contains("target exited"));
    assert!(said.chars().all(|c| c == '\n' || !c.is_control()), "{said:?}");
}

#[test]
fn status_as_json_is_what_the_service_says() {
    let (out, _) = with_service(&["status", "--json"]);
    let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((&json["runs"][0]["pid"], &json["store"]["quota"]), (&42.into(), &(512u64 << 20).into()));
    assert!(json["runs"][1]["rate"].is_null() && json["runs"][0]["ended"].is_null());
}

#[test]
fn dump_prints_the_files_written() {
    let (out, asked) = with_service(&["dump"]);
    assert_eq!(text(&out.stdout), "/var/lib/profinfer/a.pfi\n/var/lib/profinfer/b.pfi\n");
    assert_eq!((asked, out.status.code()), (vec![ServiceRequest::Dump(None)], Some(0)));
    let (out, asked) = with_service(&["dump", "-p", "42", "--json"]);
    let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((&json["directory"], &json["files"][1]), (&"/var/lib/profinfer".into(), &"b.pfi".into()));
    assert_eq!(asked, [ServiceRequest::Dump(Some(42))]);
    let (out, _) = with_service(&["dump", "-p", "1"]);
    assert_eq!((text(&out.stdout), out.status.code()), ("", Some(1)));
    assert_eq!(text(&out.stderr), "profinfer: no run of process 1 is kept in memory\n");
}

#[test]
fn stop_waits_for_the_end() {
    let (out, asked) = with_service(&["stop"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(asked.first(), Some(&ServiceRequest::Stop));
}

#[test]
fn where_nobody_answers_it_is_said() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("control.sock");
    for args in [&["status"][..], &["dump"], &["stop"]] {
        let out = profinfer(&socket, args).output().expect("it runs");
        assert_eq!(out.status.code(), Some(1));
        let said = text(&out.stderr);
        assert!(said.contains("no service answers at ") && said.contains("--socket"), "{said}");
    }
    let out = profinfer(&socket, &["dump", "-p", "x"]).output().expect("it runs");
    assert_eq!(out.status.code(), Some(2));
}

/// Another user's view: no access to the socket, but possibly to the file.
#[test]
fn another_user_is_shown_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
    let (socket, file): (PathBuf, PathBuf) =
        (dir.path().join("run/control.sock"), dir.path().join("run/status.json"));
    let _control = Control::bind(&socket).expect("a socket");
    [dir.path(), &dir.path().join("run")].into_iter().for_each(open);
    let mut refused = Command::new("true");
    let own = std::os::unix::fs::MetadataExt::uid(&dir.path().metadata().expect("its owner"));
    if own == 65534 || refused.uid(65534).status().is_err() {
        skip!("only root becomes another user");
    }
    // A copy that this user may run, wherever the sources are.
    let program = dir.path().join("profinfer");
    common::program::copy(env!("CARGO_BIN_EXE_profinfer"), &program);
    let status = || {
        let mut command = Command::new(&program);
        command.args(["status", "--socket"]).arg(&socket).arg("--file").arg(&file).uid(65534).gid(65534);
        command.current_dir("/").output().expect("it runs")
    };
    let out = status();
    let said = text(&out.stderr);
    assert!(
        said.contains("listens to its own user and to root only; and ") && said.contains("No such file"),
        "{said}"
    );
    assert_eq!(out.status.code(), Some(1));
    let (mut files, _) = StateFiles::new(&file, None).expect("a file");
    files.tell(&mut state()).expect("it is written");
    let out = status();
    assert!(text(&out.stderr).contains("to root only: showing "), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("3 seen: 2 recorded") && out.status.success());
}

#[test]
fn watch_prints_each_event_until_the_service_ends() {
    let (done, asked) = with_service(&["watch"]);
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(0), ""));
    let lines: Vec<Value> =
        text(&done.stdout).lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let events: Vec<&str> = lines.iter().map(|l| l["event"].as_str().expect("a name")).collect();
    assert_eq!((events, asked), (vec!["hello", "second", "stop"], vec![ServiceRequest::Watch]));
}

/// The service's end of a socket, and a command that watches it; the closure gets both.
fn watched(mut with: impl FnMut(&mut Control, &mut std::process::Child)) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("run/control.sock");
    let mut control = Control::bind(&socket).expect("a socket");
    let mut command = profinfer(&socket, &["watch"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut token = None;
    while token.is_none() {
        next_event(&control, None);
        control.poll(&mut |_, of| {
            token = Some(of);
            None
        });
    }
    assert!(control.watch(token.expect("a client"), "{\"event\":\"hello\"}"));
    with(&mut control, &mut child);
    drop(control);
    child.wait_with_output().expect("it ends")
}

#[test]
fn watch_ends_well_with_ctrl_c_and_badly_with_a_service_that_is_gone() {
    let interrupted = watched(|control, child| {
        // It has its handler once it has printed something.
        let mut byte = [0];
        std::io::Read::read_exact(child.stdout.as_mut().expect("its output"), &mut byte).expect("a line");
        common::run::signal_to(child.id(), libc::SIGINT);
        common::run::wait(child);
        control.poll(&mut |_, _| None);
        control.show("{}");
        control.poll(&mut |_, _| None);
        assert_eq!(control.watchers(), 0, "who has gone watches no longer");
    });
    assert_eq!((interrupted.status.code(), text(&interrupted.stderr)), (Some(0), ""));
    let gone = watched(|_, _| {});
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("has gone without saying so"), "{}", text(&gone.stderr));
}

#[test]
fn a_watcher_that_stands_still_loses_events_and_is_told_how_many() {
    let (mut shown, mut reader) = (0u64, None);
    let done = watched(|control, child| {
        common::run::signal_to(child.id(), libc::SIGSTOP);
        let event = format!("{{\"event\":\"second\",\"pad\":\"{}\"}}", "x".repeat(1000));
        // More than the queue and the kernel's buffer hold.
        while shown < 4000 {
            control.show(&event);
            shown += 1;
        }
        let mut out = child.stdout.take().expect("its output");
        reader = Some(thread::spawn(move || {
            let mut all = Vec::new();
            std::io::Read::read_to_end(&mut out, &mut all).map(|_| all).expect("its output")
        }));
        common::run::signal_to(child.id(), libc::SIGCONT);
        // Until the queue is empty, and the next event has room.
        let mut waiting = true;
        while std::mem::take(&mut waiting) {
            control.poll(&mut |_, _| None);
            control.fds(&mut |_, events| waiting |= events.contains(PollFlags::OUT));
            if waiting {
                next_event(control, None);
            }
        }
        control.show("{\"event\":\"stop\"}");
    });
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let out = reader.expect("a thread").join().expect("it has read all");
    let lines: Vec<Value> = text(&out).lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let of = |name: &str| lines.iter().filter(|l| l["event"] == name).count() as u64;
    let dropped: u64 = lines.iter().filter_map(|l| l["dropped"].as_u64()).sum();
    assert!(dropped > 1000 && of("second") + dropped == shown, "{} and {dropped} of {shown}", of("second"));
    assert_eq!(lines.last().map(|l| l["event"].clone()), Some("stop".into()));
}
