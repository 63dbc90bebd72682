//! What agents use: `diagnose` of a command, the list of running engines, and a server that records.

use crate::common;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use common::run::{Target, wait};
use common::service::children;
use common::waiting::{OwnChild, PATIENCE, pidfd, readable, wait_for_change};
use common::{live, model, profinfer, runner_name};
use serde_json::{Value, json};

/// From inside, which needs no privilege.
fn from_inside(command: &mut Command) -> &mut Command {
    command.env("PROFINFER_SOURCE", "inside").env_remove("SUDO_UID")
}

/// The runner on a small model: this many tokens.
fn engine(tokens: &str) -> Vec<String> {
    let model = model("tiny", "q4_0").into_os_string().into_string().expect("UTF-8");
    let words = [runner_name(), "run", "--no-roofline", "-m", &model, "-p", "7", "-n", tokens];
    words.map(str::to_owned).to_vec()
}

/// As many tokens as take longer than any test.
const ENDLESS: &str = "1000000";

fn rules_and_speed(verdict: &Value) {
    let phases = verdict["phases"].as_array().expect("phases");
    assert!(
        phases.iter().any(|p| p["phase"] == "decode" && p["tokens_per_s"].as_f64() > Some(0.0)),
        "{verdict}"
    );
    assert!(
        verdict["advice"].as_array().is_some_and(|all| all.iter().all(|a| a["rule"].is_string())),
        "{verdict}"
    );
}

#[test]
fn a_command_is_diagnosed_from_inside() {
    let _turn = live!(from inside);
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(profinfer());
    command.current_dir(&dir).args(["diagnose", "--json", "--"]).args(engine("8"));
    let out = from_inside(&mut command).output().expect("profinfer runs");
    let messages = String::from_utf8_lossy(&out.stderr);
    let all: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {messages}"));
    assert!(out.status.success(), "{messages}");
    assert!(messages.contains("tok/s") || messages.contains("token"), "the runner's own output: {messages}");
    assert_eq!((&all["schema"]["version"], &all["status"]), (&1.into(), &0.into()), "{all}");
    assert_eq!(all["quality"]["complete"], true, "{}", all["quality"]);
    rules_and_speed(&all["verdict"]);
    let file = dir.path().join("run.pfi").canonicalize().expect("the recording");
    assert_eq!(all["file"].as_str().map(Path::new), Some(file.as_path()));
    // The same again, from its file.
    let mut again = Command::new(profinfer());
    let out = again.args(["diagnose", "--json"]).arg(&file).output().expect("profinfer runs");
    let again: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((&again["verdict"], &again["quality"]), (&all["verdict"], &all["quality"]));
}

#[test]
fn a_command_that_fails_is_diagnosed_and_its_status_is_said() {
    let _turn = live!(from inside);
    let dir = tempfile::tempdir().expect("a directory");
    let line = format!("{}; exit 7", engine("4").join(" "));
    let mut command = Command::new(profinfer());
    command.current_dir(&dir).args(["diagnose", "--json", "--", "sh", "-c", &line]);
    let out = from_inside(&mut command).output().expect("profinfer runs");
    let all: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((out.status.code(), &all["status"]), (Some(7), &7.into()));
    rules_and_speed(&all["verdict"]);
}

#[test]
fn running_engines_are_listed() {
    let _turn = live!(from inside);
    let words = engine(ENDLESS);
    let target = Target::start(&words[0], &words[1..]);
    // It maps its code as it begins to run.
    let listed = || {
        let out = Command::new(profinfer()).args(["diagnose", "--list", "--json"]).output().expect("it runs");
        let all: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        assert_eq!(all["schema"], json!({ "name": "profinfer.engines", "version": 1 }));
        let engines = all["engines"].as_array().expect("a list").clone();
        assert!(engines.iter().all(|e| e["pid"] != std::process::id()), "no engine runs in a test: {all}");
        engines.into_iter().find(|e| e["pid"] == target.pid())
    };
    let found = listed().or_else(listed).expect("the engine is listed");
    assert_eq!(found["exe"].as_str().map(Path::new), Path::new(&words[0]).canonicalize().ok().as_deref());
    assert!(found["cmdline"].as_str().is_some_and(|line| line.contains("--no-roofline")), "{found}");
}

#[test]
fn all_engines_that_run_are_recorded_without_a_target() {
    // Alone: it records whatever runs.
    let _turn = live!();
    let dir = tempfile::tempdir().expect("a directory");
    let words = engine(ENDLESS);
    let target = Target::start(&words[0], &words[1..]);
    let mut command = Command::new(profinfer());
    command.current_dir(&dir).args(["diagnose", "--json", "--tokens", "20", "--duration", "60s"]);
    let out = command.env_remove("SUDO_UID").output().expect("profinfer runs");
    let all: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)));
    assert!(
        all["runs"].as_array().is_some_and(|runs| runs.iter().any(|r| r["pid"] == target.pid())),
        "{all}"
    );
}

/// `profinfer mcp` that may record, in a directory of its own.
struct Server {
    child: OwnChild,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Server {
        let dir = tempfile::tempdir().expect("a directory");
        let log = File::create(dir.path().join("log")).expect("a log");
        let mut command = Command::new(profinfer());
        command.args(["mcp", "--allow-record", "--allow-command", "--directory"]).arg(dir.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = OwnChild(from_inside(&mut command).spawn().expect("profinfer runs"));
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Server { input: child.stdin.take(), output, child, dir }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().expect("open"), "{message}").expect("it listens");
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    fn record(&mut self, id: u32, tokens: &str, seconds: u32) {
        self.record_command(id, &engine(tokens), seconds);
    }

    fn record_command(&mut self, id: u32, command: &[String], seconds: u32) {
        let params = json!({ "name": "record", "arguments": { "command": command, "seconds": seconds } });
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }));
    }

    fn recording(&self) -> PathBuf {
        self.dir.path().join("run.pfi")
    }

    /// Once operators are recorded: the recorder and its command.
    fn at_work(&self) -> Vec<u32> {
        let file = self.recording();
        let grown = || file.metadata().is_ok_and(|found| found.len() > 1 << 16);
        wait_for_change("a recording", self.dir.path(), Some(self.child.id()), grown, String::new);
        let recorders = children(self.child.id());
        assert_eq!(recorders.len(), 1, "{recorders:?}");
        let commands = children(recorders[0]);
        assert!(!commands.is_empty(), "no command");
        [recorders, commands].concat()
    }
}

/// All of these processes end.
fn end(pids: &[u32]) {
    let until = Instant::now() + PATIENCE;
    for pid in pids {
        if let Some(fd) = pidfd(*pid) {
            assert!(readable(&[fd.as_fd()], until), "process {pid} is left");
        }
    }
}

#[test]
fn a_server_records_a_command_and_says_the_verdict() {
    let _turn = live!(from inside);
    let mut server = Server::start();
    server.record(1, "8", 60);
    let answer = server.next();
    let found = &answer["result"]["structuredContent"];
    assert_eq!((&answer["id"], &found["status"]), (&1.into(), &0.into()), "{answer}");
    rules_and_speed(&found["verdict"]);
    assert_eq!(found["file"].as_str().map(PathBuf::from), server.recording().canonicalize().ok());
}

#[test]
fn a_recording_ends_with_its_time_and_its_cancellation() {
    let _turn = live!(from inside);
    let mut server = Server::start();
    server.record(1, ENDLESS, 1);
    let answer = server.next();
    assert_eq!(answer["id"], 1, "{answer}");
    rules_and_speed(&answer["result"]["structuredContent"]["verdict"]);
    std::fs::remove_file(server.recording()).expect("a recording");
    server.record(2, ENDLESS, 300);
    let pids = server.at_work();
    // Another one is refused, and the server answers.
    server.record(3, "1", 1);
    let refused = server.next();
    assert_eq!((&refused["id"], &refused["result"]["isError"]), (&3.into(), &true.into()), "{refused}");
    server.send(
        &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 2 } }),
    );
    end(&pids);
    server.send(&json!({ "jsonrpc": "2.0", "id": 4, "method": "ping" }));
    assert_eq!(server.next()["id"], 4, "what is cancelled is not answered");
}

/// A recorder that waits for its command to end is not told a second time: it would leave the command behind.
#[test]
fn a_cancelled_call_ends_its_command_though_the_server_ends_too() {
    let _turn = live!(from inside);
    let mut server = Server::start();
    let stubborn = format!("trap '' TERM; exec {}", engine(ENDLESS).join(" "));
    server.record_command(1, &["sh".into(), "-c".into(), stubborn], 300);
    let pids = server.at_work();
    server.send(
        &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } }),
    );
    let file = server.recording();
    let complete = || pfi::Trace::open(&file).is_ok_and(|trace| trace.has_footer());
    wait_for_change("the recording ends", server.dir.path(), Some(server.child.id()), complete, String::new);
    drop(server.input.take());
    assert!(wait(&mut server.child).success());
    end(&pids);
}

#[test]
fn the_end_of_a_server_leaves_no_recorder() {
    let _turn = live!(from inside);
    // The end of its input, Ctrl-C, and what no program sees.
    for signal in [None, Some(libc::SIGINT), Some(libc::SIGKILL)] {
        let mut server = Server::start();
        server.record(1, ENDLESS, 300);
        let pids = server.at_work();
        match signal {
            None => drop(server.input.take()),
            Some(signal) => common::run::signal_to(server.child.id(), signal),
        }
        let status = wait(&mut server.child);
        assert_eq!(status.success(), signal != Some(libc::SIGKILL), "{signal:?}: {status}");
        end(&pids);
    }
}
