//! `profinfer serve -- COMMAND`: the service of one command, which needs no privilege.

use crate::common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use common::run::{profinfer, signal_to, wait, wait_until};
use common::seen::Seen;
use common::waiting::{OwnChild, wait_for_change, wait_for_file};
use common::{fixture, live, skip};
use pfi::record::SourceKind;
use serde_json::Value;

use super::inside_after::changed_code;
use super::inside_user::open_to_all;

const NOBODY: u32 = 65534;
const INSIDE: [&str; 2] = ["--source", "inside"];
/// All ops of all tokens, whatever the cost.
const ALL: &str = "--budget=100%";

/// A service with its command.
struct Served {
    child: OwnChild,
    dir: tempfile::TempDir,
}

impl Served {
    fn start(options: &[&str], command: &[&str]) -> Served {
        let dir = tempfile::tempdir().expect("a directory");
        Served::start_by(profinfer(), dir, options, command)
    }

    /// `by` is the program, or one that starts it.
    fn start_by(mut by: Command, dir: tempfile::TempDir, options: &[&str], command: &[&str]) -> Served {
        let own = dir.path().join("d");
        if !own.exists() {
            fs::DirBuilder::new().mode(0o700).create(&own).expect("a directory");
        }
        let create = |name: &str| fs::File::create(dir.path().join(name)).expect("a file");
        by.args(["serve", "--directory"]).arg(&own).arg("--metrics").arg(own.join("m.prom"));
        by.args(options).arg("--").args(command);
        by.stdin(Stdio::piped()).stdout(create("out")).stderr(create("log"));
        // What is ignored, as SIGINT is by commands that a shell starts behind others, stays so for the command.
        let heed = || {
            // SAFETY: a plain system call.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: the closure makes one system call.
        unsafe { by.pre_exec(heed) };
        Served { child: OwnChild(by.spawn().expect("started")), dir }
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Waits until the log has this.
    fn wait_for_log(&self, text: &str) {
        let has = || self.text("log").contains(text);
        wait_for_change(text, self.dir.path(), Some(self.child.id()), has, || self.text("log"));
    }

    /// Waits until the status is so.
    fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = self.dir.path().join("d/status.json");
        let read = || serde_json::from_str(&fs::read_to_string(&path).ok()?).ok();
        let is = || read().is_some_and(|state| wanted(&state));
        wait_for_change(what, &self.dir.path().join("d"), Some(self.child.id()), is, || self.text("log"));
        read().expect("a state")
    }

    /// Waits until this many tokens are counted.
    fn wait_for_tokens(&self, n: u64) -> Value {
        self.wait_for("tokens come", |state| state["runs"][0]["tokens"].as_u64() >= Some(n))
    }

    /// The calls that the engine counted itself, once it has ended.
    fn calls(&self) -> u64 {
        let said = wait_for_file(&self.dir.path().join("out"), |text| text.contains("llama_decode"));
        let said: Value = serde_json::from_str(&said).expect("JSON");
        said["calls"]["llama_decode"].as_u64().expect("a number")
    }

    /// Its metric of tokens, once it is this.
    fn wait_for_metric(&self, tokens: u64) {
        let is =
            |line: &str| line.starts_with("profinfer_tokens_total{") && line.ends_with(&format!(" {tokens}"));
        wait_for_file(&self.dir.path().join("d/m.prom"), |text| text.lines().any(is));
    }

    fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("a pipe")
    }

    /// Its exit code, the signal that ended it, and its log.
    fn ended(&mut self) -> (Option<i32>, String) {
        (wait(&mut self.child).code(), self.text("log"))
    }

    fn traces(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.dir.path().join("d")).expect("the directory").flatten();
        all.map(|e| e.path()).filter(|path| path.extension().is_some_and(|x| x == "pfi")).collect()
    }

    /// Its only trace.
    fn seen(&self) -> Seen {
        let traces = self.traces();
        assert_eq!(traces.len(), 1, "{traces:?}: {}", self.text("log"));
        Seen::read(&traces[0])
    }
}

/// A command outlives a killed service, but no test.
impl Drop for Served {
    fn drop(&mut self) {
        let path = self.dir.path().join("d/status.json");
        let state = fs::read(path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let runs = state.as_ref().and_then(|state| state["runs"].as_array()).into_iter().flatten();
        for pid in runs.filter_map(|run| run["pid"].as_u64()) {
            let is_engine = |command: Vec<u8>| String::from_utf8_lossy(&command).contains("fakellama");
            if fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(is_engine) {
                // SAFETY: a plain system call. One that has just ended needs no signal.
                unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            }
        }
    }
}

/// An engine that computes 81 tokens at most, then waits for a line, and ends with status 7.
fn then_wait(program: &Path) -> String {
    format!("{} -t 1 -p 4 -n 80 --op-ns 300000 --sleep; read line; exit 7", program.display())
}

/// 81 tokens as the engine itself counted them, in the metrics, the status and the file, which is complete.
fn all_is_told(mut served: Served, source: SourceKind) -> String {
    served.wait_for_metric(81);
    assert_eq!(served.calls(), 81);
    let state = served.wait_for_tokens(81);
    let run = &state["runs"][0];
    assert_eq!((run["tokens"].as_u64(), run["rule"].as_str()), (Some(81), Some("default")));
    assert_eq!(state["counts"]["seen"], 1);
    served.stdin().write_all(b"\n").expect("it reads");
    let (code, log) = served.ended();
    assert_eq!(code, Some(7), "{log}");
    assert!(log.contains("the command has ended with status 7"), "{log}");
    let seen = served.seen();
    seen.books_close();
    let recorded_by = seen.all.header.as_ref().map(|h| h.source);
    assert_eq!((seen.all.tokens.len(), recorded_by), (81, Some(source)), "{log}");
    // The kernel's probes are taken out once no engine is left; from inside, a recording lasts as long as the command.
    let end = if source == SourceKind::Inside { "target exited" } else { "no engine left" };
    assert_eq!(seen.footer().end, end);
    assert!(!served.dir.path().join("d/control.sock").exists(), "it leaves no socket");
    log
}

#[test]
fn tokens_are_those_of_the_engine_and_the_exit_status_is_its() {
    let _turn = live!(from inside);
    let command = then_wait(&fixture!("modern"));
    let served = Served::start(&[&INSIDE[..], &[ALL]].concat(), &["sh", "-c", &command]);
    all_is_told(served, SourceKind::Inside);
}

/// Neither root nor any capability, and no source is named.
#[test]
fn an_ordinary_user_has_all_of_it() {
    let _turn = live!(beside others, from inside);
    let dir = tempfile::tempdir().expect("a directory");
    if !open_to_all(dir.path()) {
        skip!("the fixture could not be built here");
    }
    let own = dir.path().join("d");
    fs::DirBuilder::new().mode(0o700).create(&own).expect("a directory");
    chown(&own, Some(NOBODY), Some(NOBODY)).expect("given");
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"]);
    nobody.args(["--bounding-set=-all", "./profinfer"]).current_dir(dir.path()).env("HOME", dir.path());
    let command = then_wait(Path::new("./fakellama"));
    let served = Served::start_by(nobody, dir, &[ALL], &["sh", "-c", &command]);
    let log = all_is_told(served, SourceKind::Inside);
    assert!(log.contains("recorded from inside the engine's process (CAP_BPF"), "{log}");
}

/// Where the kernel's probes are allowed, the same command line uses them.
#[test]
fn with_privilege_it_is_recorded_by_the_kernels_probes() {
    let _turn = live!(beside others);
    let command = then_wait(&fixture!("modern"));
    let log = all_is_told(Served::start(&[ALL], &["sh", "-c", &command]), SourceKind::Bpf);
    assert!(!log.contains("from inside"), "{log}");
}

/// An engine that goes on for ever.
fn endless(options: &[&str]) -> Option<Served> {
    let program = common::fixture_dir("modern")?.join("fakellama");
    let program = program.to_str().expect("UTF-8");
    let command = [program, "-t", "1", "-n", "1000000", "--op-ns", "300000", "--sleep"];
    Some(Served::start(&[&INSIDE[..], options].concat(), &command))
}

/// The same, of which some tokens are recorded; and its process.
fn computing(options: &[&str]) -> Option<(Served, u32)> {
    let served = endless(options)?;
    let pid = served.wait_for_tokens(3)["runs"][0]["pid"].as_u64().expect("a pid");
    Some((served, pid as u32))
}

/// Beside each other, each with its own files, socket and command.
#[test]
fn a_signal_reaches_the_command_whose_recording_is_completed() {
    let _turn = live!(from inside);
    let (Some((mut one, _)), Some((mut other, pid))) = (computing(&[ALL]), computing(&[])) else {
        skip!("the fixture could not be built here");
    };
    for (signal, served) in [(libc::SIGTERM, &mut one), (libc::SIGINT, &mut other)] {
        signal_to(served.child.id(), signal);
        let (code, log) = served.ended();
        assert_eq!(code, Some(128 + signal), "{log}");
        assert!(log.contains(&format!("signal {signal} is passed on to the command")), "{log}");
        let seen = served.seen();
        seen.books_close();
        assert!(seen.all.tokens.len() >= 3 && seen.footer().end == "target exited");
    }
    assert!(other.seen().all.tokens.iter().all(|t| t.pid == pid), "only its own command");
}

fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The engine goes on with its own code, and what was recorded until then is whole.
#[test]
fn a_killed_service_leaves_its_engine_running() {
    let _turn = live!(from inside);
    let Some((mut served, pid)) = computing(&[ALL]) else { skip!("the fixture could not be built here") };
    assert!(!changed_code(pid).is_empty(), "its functions have jumps");
    signal_to(served.child.id(), libc::SIGKILL);
    wait(&mut served.child);
    wait_until("its code is its own again", || changed_code(pid).is_empty());
    let whole = || Seen::damaged(&served.traces()[0]).all.footer.as_ref().is_some_and(|f| f.end == "signal");
    wait_for_change("the file ends", &served.dir.path().join("d"), None, whole, || served.text("log"));
    served.seen().books_close();
    assert!(is_alive(pid));
    signal_to(pid, libc::SIGKILL);
}

/// Of a recorder that is killed only the recording ends: the exit status of the command is known all the same.
#[test]
fn a_killed_recorder_does_not_end_the_service() {
    let _turn = live!(from inside);
    let Some((mut served, pid)) = computing(&[ALL]) else { skip!("the fixture could not be built here") };
    let recorder = served.wait_for_tokens(3)["runs"][0]["recorder"].as_u64().expect("a pid");
    signal_to(recorder as u32, libc::SIGKILL);
    served.wait_for_log("goes on, and is not recorded any longer");
    assert!(is_alive(pid));
    signal_to(pid, libc::SIGTERM);
    let (code, log) = served.ended();
    assert_eq!(code, Some(143), "{log}");
}

/// A recording that ends before its command: the service, with its metrics, goes on.
#[test]
fn the_first_tokens_are_recorded_and_the_command_goes_on() {
    let _turn = live!(from inside);
    let rule = "[[rule]]\nname = \"first\"\nbudget = \"100%\"\ntokens = 2\n";
    let conf = tempfile::NamedTempFile::new().expect("a file");
    fs::write(conf.path(), rule).expect("written");
    let path = conf.path().to_str().expect("UTF-8");
    let Some(mut served) = endless(&["--conf", path, "--idle-timeout", "1s"]) else {
        skip!("the fixture could not be built here")
    };
    let its_end = |state: &Value| state["runs"][0]["ended"].as_str().map(str::to_owned);
    let state = served
        .wait_for("the recorder has ended", |s| its_end(s).is_some() && s["rules"][0]["recorder"].is_null());
    assert_eq!(its_end(&state).as_deref(), Some("its first 2 tokens are recorded"));
    let pid = state["runs"][0]["pid"].as_u64().expect("a pid") as u32;
    assert_eq!(changed_code(pid), Vec::<String>::new());
    signal_to(served.child.id(), libc::SIGTERM);
    assert_eq!(served.ended().0, Some(143));
}

#[test]
fn a_command_that_is_no_engine_is_told() {
    let _turn = live!(from inside);
    let mut served = Served::start(&INSIDE, &["sh", "-c", "exit 3"]);
    let (code, log) = served.ended();
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("nothing was recorded: ") && log.contains("ended with status 3"), "{log}");
}

#[test]
fn a_command_that_cannot_be_started_is_an_error() {
    let _turn = live!(from inside);
    let mut served = Served::start(&INSIDE, &["./no-such-program"]);
    let (code, log) = served.ended();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("cannot start ./no-such-program"), "{log}");
    // A directory entry that is there, and no program.
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut served = Served::start(&INSIDE, &[file.path().to_str().expect("UTF-8")]);
    let (code, log) = served.ended();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("the command was not started"), "{log}");
}

#[test]
fn who_has_no_rule_for_it_is_told_before_it_runs() {
    let _turn = live!(from inside);
    let conf = tempfile::NamedTempFile::new().expect("a file");
    fs::write(conf.path(), "[[rule]]\nname = \"a\"\nexe = \"llama-server\"\n").expect("written");
    let path = conf.path().to_str().expect("UTF-8");
    let mut served = Served::start(&["--conf", path, "--source", "inside"], &["sh", "-c", "echo began"]);
    let (code, log) = served.ended();
    assert_eq!((code, served.text("out")), (Some(1), String::new()), "{log}");
    assert!(log.contains("no rule records /"), "{log}");
}
