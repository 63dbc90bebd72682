//! The service as a child process, in its own directory, and engines that only this service records.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::run::{Run, run, signal_to, wait, wait_until};
use super::seen::Seen;

/// A service; stopped, with its recorders, after the test.
pub struct Service {
    pub child: Child,
    dir: tempfile::TempDir,
}

/// Rules cover engines of this test only; engines of others are ignored.
const OTHERS: &str = "\n[[rule]]\nname = \"others\"\nignore = true\n";

/// Waits until the kernel has removed the probes of earlier recorders: it removes one at a time and delays new ones
/// meanwhile. The wait is bounded: a test may have a recorder of its own.
fn wait_for_removal() {
    let roots = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    let listing = || roots.iter().find_map(|r| fs::read_to_string(format!("{r}/uprobe_events")).ok());
    for _ in 0..200 {
        if !listing().is_some_and(|l| l.contains("profinfer_")) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

impl Service {
    /// With these lines in `[service]`, and these rules; `ENGINE` in them is replaced with the engine's path.
    pub fn start(own: &str, rules: &str) -> Service {
        Service::start_in(tempfile::tempdir().expect("a directory"), own, rules)
    }

    pub fn start_in(dir: tempfile::TempDir, own: &str, rules: &str) -> Service {
        wait_for_removal();
        configure(dir.path(), own, rules);
        let service = Service { child: spawn(dir.path()), dir };
        service.wait_until_ready();
        wait_until("what hits cost is learnt", || service.log().contains("ready to record"));
        service
    }

    /// Waits until it is listening.
    pub fn wait_until_ready(&self) {
        wait_until("the service answers", || self.try_state().is_some());
    }

    pub fn configure(&self, own: &str, rules: &str) {
        configure(self.dir.path(), own, rules);
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The engine's program: a private copy for this test.
    pub fn engine(&self) -> PathBuf {
        self.path("engine/fakellama")
    }

    /// `profinfer WHAT --socket ... ARGS`.
    pub fn ask(&self, what: &str, args: &[&str]) -> Run {
        run(super::run::profinfer().arg(what).arg("--socket").arg(self.path("sock/control")).args(args))
    }

    fn try_state(&self) -> Option<serde_json::Value> {
        let said = self.ask("status", &["--json"]);
        serde_json::from_str(&said.stdout).ok().filter(|_| said.status.success())
    }

    pub fn state(&self) -> serde_json::Value {
        self.try_state().expect("the service answers")
    }

    /// Waits for the given state.
    pub fn wait_for(
        &self,
        what: &str,
        mut done: impl FnMut(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        let mut last = serde_json::Value::Null;
        let begin = std::time::Instant::now();
        while !done(&last) {
            last = self.try_state().unwrap_or_default();
            assert!(begin.elapsed().as_secs() < 60, "in vain: {what}: {last}\n{}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        last
    }

    /// Waits until this many runs have been recorded and none is running.
    pub fn wait_for_runs(&self, n: u64) -> serde_json::Value {
        self.wait_for("runs are recorded", |s| s["counts"]["recorded"] == n && s["state"] == "waiting")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Traces, oldest first.
    pub fn traces(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("d")).into_iter().flatten().flatten();
        let mut traces: Vec<PathBuf> =
            entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|x| x == "pfi")).collect();
        traces.sort();
        traces
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.traces().iter().map(|t| Seen::read(t)).collect()
    }

    pub fn signal(&self, signal: i32) {
        signal_to(self.child.id(), signal);
    }

    /// Stops it with a signal; returns its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(libc::SIGTERM);
        wait(&mut self.child).code()
    }

    /// Kills it and starts another in its place.
    pub fn succeed(&mut self) {
        self.signal(libc::SIGKILL);
        wait(&mut self.child);
        self.child = spawn(self.dir.path());
        self.wait_until_ready();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Recorders are in its process group; those of a service killed earlier end by themselves.
        // SAFETY: a signal to a group led by the child.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.wait();
    }
}

fn configure(dir: &Path, own: &str, rules: &str) {
    let engine = dir.join("engine");
    if !engine.exists() {
        let from = super::fixture_dir("modern").expect("the fixture");
        let copied = Command::new("cp").arg("-r").arg(from).arg(&engine).status().expect("cp");
        assert!(copied.success());
    }
    let at = |name: &str| dir.join(name).display().to_string();
    let rules = rules.replace("ENGINE", &at("engine/fakellama"));
    let text = format!(
        "[service]\ndirectory = \"{}\"\nstatus = \"{}\"\nsocket = \"{}\"\n{own}\n{rules}{OTHERS}",
        at("d"),
        at("status.json"),
        at("sock/control")
    );
    fs::write(dir.join("conf.toml"), text).expect("written");
}

fn spawn(dir: &Path) -> Child {
    let log = fs::File::options().create(true).append(true).open(dir.join("log")).expect("a log");
    let mut command = super::run::profinfer();
    // What it measures of the machine stays in the test's directory.
    command.env("XDG_CACHE_HOME", dir.join("cache"));
    command.arg("serve").arg("--conf").arg(dir.join("conf.toml"));
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
    command.spawn().expect("started")
}
