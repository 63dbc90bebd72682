//! The service's state: for clients that ask, and as a file for those that only read.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use crate::affinity::AffinityStatus;
use crate::hook::HookCounts;
use crate::net::NetworkStatus;
use crate::page_faults::PageFaults;
use crate::place::{OpenDir, PlaceError};
use crate::resident::energy::EnergyUsed;
use crate::run::Run;
use crate::store::DirectoryUsage;
use crate::supervisor::quarantine::Quarantined;
use crate::totals::Totals;
use crate::{clock, metrics, replace};
use common::plain;
use inspector::waiting::HeldBack;

/// Maximum ended runs and messages kept.
const KEPT: usize = 32;
/// A file older than this is rewritten even without changes, so that its age shows that the service is alive.
const FRESH: Duration = Duration::from_secs(10);
/// Maximum message length, characters.
const MESSAGE: usize = 1000;
/// Readable by anyone who can enter the directory: it shows no more than ps(1) and the names of recordings.
const MODE: u32 = 0o644;

/// The complete state. Unknown values are None; times are RFC 3339 in UTC.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ServiceState {
    pub version: String,
    pub pid: u32,
    /// When the service started, and the time of this state.
    pub since: String,
    pub now: String,
    pub state: ServicePhase,
    pub finder: FinderStatus,
    pub configuration: Configuration,
    pub rules: Vec<RuleStatus>,
    /// Current runs, and the last ended ones, in the order in which they began.
    pub runs: Vec<Run>,
    /// CPUs that rules give to engines, of current runs.
    pub affinity: Vec<AffinityStatus>,
    /// Programs that rules run when a trigger fires.
    pub on_trigger: HookCounts,
    pub counts: StatusCounts,
    /// Engine files that no recorder examines for a while, because one was killed or died with them.
    pub quarantined: Vec<Quarantined>,
    pub directory: String,
    pub store: DirectoryUsage,
    pub own: ServiceUsage,
    /// Metrics over the network; None: not wanted.
    pub network: Option<NetworkStatus>,
    /// Only in the metrics, because they change all the time: what was seen of requests and events, recordings removed since
    /// the service started, the machine's energy, page faults of the recorded processes.
    #[serde(skip)]
    pub files_removed: u64,
    #[serde(skip)]
    pub totals: Totals,
    #[serde(skip)]
    pub energy: Vec<EnergyUsed>,
    #[serde(skip)]
    pub faults: Option<PageFaults>,
    pub messages: Vec<Message>,
}

/// What the service is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServicePhase {
    /// Waiting for engines.
    #[default]
    Waiting,
    Recording,
    Stopping,
}

/// How engines are found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FinderStatus {
    pub backend: String,
    /// Why not by a better method.
    pub why: Option<String>,
    /// Users with processes that are not fully examined yet; those with the most first.
    pub held_back: Vec<HeldBack>,
    /// Mapped files whose examination was put off, of all users so far.
    pub files_put_off: u64,
    /// Files that were not read to the end because they are too large.
    pub files_too_large: u64,
}

/// The service's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Configuration {
    /// None: built-in defaults.
    pub file: Option<String>,
    /// When it was last read.
    pub read: String,
    /// Its errors; the previous configuration is in force.
    pub errors: Vec<String>,
}

/// A rule and its results.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RuleStatus {
    pub name: String,
    /// Runs that it matched.
    pub runs: u64,
    /// Process that currently records them.
    pub recorder: Option<u32>,
}

/// Runs since the service started. `seen` is the sum of the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StatusCounts {
    pub seen: u64,
    pub recorded: u64,
    /// Followed, and they computed nothing.
    pub empty: u64,
    /// Left out because no rule matches, or one that ignores them.
    pub by_rule: u64,
    /// Left out by sampling.
    pub sample_one_in: u64,
    /// Left out because the maximum was already being recorded, or too many of their user were known.
    pub max_concurrent: u64,
    /// Should have been recorded but were not: a message says why.
    pub missed: u64,
    /// Undecided: they wait until one of the recorded runs ends.
    pub waiting: u64,
}

/// Resources used by the service and its recorders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ServiceUsage {
    pub resident_bytes: Option<u64>,
    pub cpu_seconds: Option<f64>,
}

/// A line of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Message {
    pub at: String,
    pub text: String,
}

impl ServiceState {
    /// The state of a starting service.
    pub fn new(version: &str) -> ServiceState {
        let now = clock::rfc3339(SystemTime::now());
        let (version, pid) = (version.to_owned(), std::process::id());
        ServiceState { version, pid, since: now.clone(), now, ..ServiceState::default() }
    }

    /// Keeps a message.
    pub fn say(&mut self, text: &str) {
        let text = text.chars().take(MESSAGE).collect();
        self.messages.push(Message { at: clock::rfc3339(SystemTime::now()), text });
        let many = self.messages.len().saturating_sub(KEPT);
        self.messages.drain(..many);
    }

    /// Updates what is known of a run.
    pub fn run(&mut self, run: &Run) {
        let known = self.runs.iter_mut().find(|r| (r.pid, r.start) == (run.pid, run.start));
        match known {
            Some(known) => known.clone_from(run),
            None => self.runs.push(run.clone()),
        }
        let mut many = self.runs.iter().filter(|r| r.ended.is_some()).count().saturating_sub(KEPT);
        self.runs.retain(|r| {
            let goes = many > 0 && r.ended.is_some();
            many -= usize::from(goes);
            !goes
        });
    }

    /// Current runs.
    pub fn going(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|r| r.ended.is_none())
    }

    /// As one line of JSON.
    ///
    /// # Errors
    /// None are known.
    pub fn json(&mut self) -> serde_json::Result<String> {
        self.now = clock::rfc3339(SystemTime::now());
        plain::json(self)
    }

    /// The parts that count as changes: not the time, nor the service's own cost, nor that somebody reads its metrics.
    fn news(&mut self) -> serde_json::Result<String> {
        let (own, network) = (std::mem::take(&mut self.own), std::mem::take(&mut self.network));
        self.now.clear();
        let json = plain::json(self);
        (self.own, self.network) = (own, network);
        json
    }
}

/// Why state files are not up to date.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("{}", lines(.0))]
    Files(Vec<Unwritten>),
}

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct Unwritten {
    path: PathBuf,
    source: io::Error,
}

fn lines(files: &[Unwritten]) -> String {
    files.iter().map(Unwritten::to_string).collect::<Vec<_>>().join("; ")
}

/// The state files: JSON, and Prometheus.
#[derive(Debug)]
pub struct StateFiles {
    paths: Vec<(PathBuf, Form)>,
    /// The metrics of each process are wanted.
    pub per_process: bool,
    last: String,
    at: Option<Instant>,
    trouble: String,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Json,
    Metrics,
}

impl StateFiles {
    /// Files at these paths. The status file's directory is created if missing (mode 0700); the one for Prometheus
    /// is node_exporter's to create, because it could not read ours. Removes what a service left that was killed
    /// while writing, and also returns those names.
    ///
    /// # Errors
    /// The status file's directory cannot be created.
    pub fn new(status: &Path, metrics: Option<&Path>) -> Result<(StateFiles, Vec<String>), PlaceError> {
        let mut paths = vec![(status.to_owned(), Form::Json)];
        paths.extend(metrics.map(|path| (path.to_owned(), Form::Metrics)));
        if let Some(above) = status.parent().filter(|p| !p.as_os_str().is_empty() && !p.exists()) {
            OpenDir::open(above)?;
        }
        let mut removed = Vec::new();
        for (path, _) in &paths {
            if replace::clear(path).unwrap_or(false) {
                removed.push(path.display().to_string());
            }
        }
        let (last, trouble) = (String::new(), String::new());
        Ok((StateFiles { paths, per_process: false, last, at: None, trouble }, removed))
    }

    /// Writes them if something changed, or if they are 10 s old.
    ///
    /// # Errors
    /// One could not be written, and is unchanged; each problem is reported once.
    pub fn tell(&mut self, state: &mut ServiceState) -> Result<(), StatusError> {
        let news = state.news()?;
        if self.at.is_some_and(|at| at.elapsed() < FRESH) && news == self.last {
            return Ok(());
        }
        let mut unwritten = Vec::new();
        for (path, form) in &self.paths {
            let text = match form {
                Form::Json => state.json()? + "\n",
                Form::Metrics => metrics::exposition::text(&metrics::families(state, self.per_process)),
            };
            if let Err(source) = replace::replace(path, MODE, text.as_bytes()) {
                unwritten.push(Unwritten { path: path.clone(), source });
            }
        }
        (self.last, self.at) = (news, Some(Instant::now()));
        let before = std::mem::replace(&mut self.trouble, lines(&unwritten));
        if unwritten.is_empty() || before == self.trouble {
            Ok(())
        } else {
            Err(StatusError::Files(unwritten))
        }
    }

    /// Removes them: the service ends, and there is no state any longer.
    pub fn remove(&self) {
        for (path, _) in &self.paths {
            // A missing file is fine.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    fn run(pid: u32, ended: bool) -> Run {
        Run { pid, start: 7, ended: ended.then(|| "exited".to_owned()), ..Run::default() }
    }

    #[test]
    fn runs_are_those_going_on_and_the_last_that_ended() {
        let mut state = ServiceState::new("1.2.3");
        for pid in 0..100 {
            state.run(&run(pid, false));
        }
        for pid in 0..90 {
            state.run(&run(pid, true));
        }
        let pids: Vec<u32> = state.runs.iter().map(|r| r.pid).collect();
        assert!(pids.iter().copied().eq(58..100), "{pids:?}");
        assert_eq!(state.going().count(), 10);
        // The same pid, another process.
        state.run(&Run { start: 8, ..run(95, false) });
        assert_eq!(state.going().count(), 11);
        for i in 0..100 {
            state.say(&format!("{i}{}", "ä".repeat(5000)));
        }
        assert_eq!(state.messages.len(), KEPT);
        assert!(state.messages.iter().all(|m| m.text.chars().count() == MESSAGE));
    }

    #[test]
    fn files_are_written_when_there_is_something_new() {
        let dir = tempfile::tempdir().expect("a directory");
        let (status, metrics) = (dir.path().join("run/status.json"), dir.path().join("prom/profinfer.prom"));
        fs::create_dir(dir.path().join("prom")).expect("a directory");
        fs::write(dir.path().join("prom/.profinfer.prom.tmp"), "half").expect("a file");
        let (mut files, removed) = StateFiles::new(&status, Some(&metrics)).expect("directories");
        assert_eq!(removed, [metrics.display().to_string()]);
        let mut state = ServiceState::new("1.2.3");
        state.own = ServiceUsage { resident_bytes: Some(4096), cpu_seconds: Some(0.25) };
        files.tell(&mut state).expect("it is written");
        let read =
            |path: &Path| (fs::read_to_string(path).expect("a file"), fs::metadata(path).expect("one").ino());
        let first = read(&status);
        let json: Value = serde_json::from_str(&first.0).expect("JSON");
        assert_eq!((&json["version"], &json["state"]), (&"1.2.3".into(), &"waiting".into()));
        assert_eq!(json["own"]["resident_bytes"], 4096);
        assert!(json["now"].as_str() >= json["since"].as_str() && json["now"] != "");
        assert!(read(&metrics).0.contains("profinfer_up 1\n"));
        // Only our own cost has changed.
        state.own.cpu_seconds = Some(0.5);
        files.tell(&mut state).expect("nothing to write");
        assert_eq!(read(&status), first);
        state.run(&run(42, false));
        state.state = ServicePhase::Recording;
        files.tell(&mut state).expect("it is written");
        let json: Value = serde_json::from_str(&read(&status).0).expect("JSON");
        assert_eq!((&json["runs"][0]["pid"], &json["own"]["cpu_seconds"]), (&42.into(), &0.5.into()));
        files.at = None;
        let before = read(&status).1;
        files.tell(&mut state).expect("it is written");
        assert_ne!(read(&status).1, before, "an old one is written again");
        files.remove();
        assert!(!status.exists() && !metrics.exists());
    }

    #[test]
    fn trouble_is_told_once_and_the_other_file_is_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let (status, metrics) = (dir.path().join("status.json"), dir.path().join("profinfer.prom"));
        fs::create_dir(&status).expect("a directory in its place");
        let (mut files, _) = StateFiles::new(&status, Some(&metrics)).expect("directories");
        let mut state = ServiceState::new("1");
        let error = files.tell(&mut state).expect_err("a directory is there").to_string();
        assert!(error.starts_with("cannot write ") && error.contains("status.json"), "{error}");
        assert!(metrics.exists());
        state.say("news");
        files.tell(&mut state).expect("it was told before");
        fs::remove_dir(&status).expect("it goes");
        state.say("news");
        files.tell(&mut state).expect("it is written");
        assert!(status.is_file());
        // node_exporter could not read a directory of ours.
        let (mut files, _) =
            StateFiles::new(&status, Some(&dir.path().join("none/x.prom"))).expect("directories");
        let error = files.tell(&mut state).expect_err("it is not there").to_string();
        assert!(error.ends_with("none/x.prom: No such file or directory (os error 2)"), "{error}");
    }
}
