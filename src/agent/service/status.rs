//! How the service stands: for whoever asks, and as a file for those who only look. Uses `clock`, `metrics`,
//! `replace`, `run` and `store`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use super::place::{Place, PlaceError};
use super::run::Run;
use super::shun::Shunned;
use super::store::Usage;
use super::waiting::HeldBack;
use super::{clock, metrics, replace};
use crate::plain;

/// Runs that ended, and messages, are kept so many.
const KEPT: usize = 32;
/// A file that is older is written again although nothing has changed, so that its age shows that the service lives.
const FRESH: Duration = Duration::from_secs(10);
/// Longest message that is kept, characters.
const MESSAGE: usize = 1000;
/// Who may enter the file's directory may read it: it says no more than ps(1) and the names of recordings.
const MODE: u32 = 0o644;

/// All of it. What is not known is None; times are RFC 3339 in UTC.
#[derive(Debug, Clone, Default, Serialize)]
pub struct State {
    pub version: String,
    pub pid: u32,
    /// When the service began, and when this was said.
    pub since: String,
    pub now: String,
    pub state: Phase,
    pub finder: Found,
    pub configuration: Configuration,
    pub rules: Vec<Rule>,
    /// Those going on, and the last that have ended, in the order they began.
    pub runs: Vec<Run>,
    pub counts: Counts,
    /// Engine files that no recorder looks at for a while, since one was killed or died with them.
    pub shunned: Vec<Shunned>,
    pub directory: String,
    pub store: Usage,
    pub own: Own,
    pub messages: Vec<Message>,
}

/// What the service does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// For engines.
    #[default]
    Waiting,
    Recording,
    Stopping,
}

/// By what engines are noticed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    pub road: String,
    /// Why not by a better one.
    pub why: Option<String>,
    /// Users of whose processes not all was looked at yet; those with most of it.
    pub held_back: Vec<HeldBack>,
    /// Mapped files that were not looked at when they were to be, of all users so far.
    pub files_put_off: u64,
    /// Files that were not looked through to their end, since they are too large.
    pub files_too_large: u64,
}

/// What the service goes by.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Configuration {
    /// None: what is built in.
    pub file: Option<String>,
    /// When it was last read.
    pub read: String,
    /// What was wrong with it then; the one before is in force.
    pub errors: Vec<String>,
}

/// A rule, and what it has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Rule {
    pub name: String,
    /// Runs that fell under it.
    pub runs: u64,
    /// Process that records them just now.
    pub recorder: Option<u32>,
}

/// Runs since the service began. `seen` is all the others together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub seen: u64,
    pub recorded: u64,
    /// Left out because no rule is for them, or one that says so.
    pub by_rule: u64,
    /// Left out because only one of so many is recorded.
    pub one_in: u64,
    /// Left out because as many were going on as may at once, or too many of their user were known.
    pub at_once: u64,
    /// To be recorded, and not: a message says why.
    pub missed: u64,
    /// Seen and not recorded: no token of theirs was within the budget.
    pub over_budget: u64,
    /// Not decided yet: they wait until one of those that are recorded ends.
    pub waiting: u64,
}

/// What the service itself takes, its recorders included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Own {
    pub resident_bytes: Option<u64>,
    pub cpu_seconds: Option<f64>,
}

/// What the log says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Message {
    pub at: String,
    pub text: String,
}

impl State {
    /// The state of a service that begins.
    pub fn new(version: &str) -> State {
        let now = clock::rfc3339(SystemTime::now());
        let (version, pid) = (version.to_owned(), std::process::id());
        State { version, pid, since: now.clone(), now, ..State::default() }
    }

    /// Keeps a message.
    pub fn say(&mut self, text: &str) {
        let text = text.chars().take(MESSAGE).collect();
        self.messages.push(Message { at: clock::rfc3339(SystemTime::now()), text });
        let many = self.messages.len().saturating_sub(KEPT);
        self.messages.drain(..many);
    }

    /// Takes what is known of a run by now.
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

    /// Runs that are going on.
    pub fn going(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(|r| r.ended.is_none())
    }

    /// As JSON, in one line.
    ///
    /// # Errors
    /// None that is known of.
    pub fn json(&mut self) -> Result<String, String> {
        self.now = clock::rfc3339(SystemTime::now());
        plain::json(self).map_err(|e| e.to_string())
    }

    /// What of it counts as news: not the time, nor what the service costs.
    fn news(&mut self) -> Result<String, String> {
        let own = std::mem::take(&mut self.own);
        self.now.clear();
        let json = plain::json(self).map_err(|e| e.to_string());
        self.own = own;
        json
    }
}

/// The files that tell of the state: as JSON, and for Prometheus.
#[derive(Debug)]
pub struct Files {
    paths: Vec<(PathBuf, Form)>,
    last: String,
    at: Option<Instant>,
    trouble: String,
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Json,
    Metrics,
}

impl Files {
    /// Files of these paths. The status file's directory is made where it is missing (mode 0700), that for Prometheus is
    /// node_exporter's to make: ours it could not read. What a service that was killed while it wrote has left is removed:
    /// those names are given, too.
    ///
    /// # Errors
    /// The status file's directory cannot be made.
    pub fn new(status: &Path, metrics: Option<&Path>) -> Result<(Files, Vec<String>), PlaceError> {
        let mut paths = vec![(status.to_owned(), Form::Json)];
        paths.extend(metrics.map(|path| (path.to_owned(), Form::Metrics)));
        if let Some(above) = status.parent().filter(|p| !p.as_os_str().is_empty() && !p.exists()) {
            Place::open(above)?;
        }
        let mut removed = Vec::new();
        for (path, _) in &paths {
            if replace::clear(path).unwrap_or(false) {
                removed.push(path.display().to_string());
            }
        }
        Ok((Files { paths, last: String::new(), at: None, trouble: String::new() }, removed))
    }

    /// Writes them, where there is something new, or where they are 10 s old.
    ///
    /// # Errors
    /// One could not be written, and is as it was; each trouble is told once.
    pub fn tell(&mut self, state: &mut State) -> Result<(), String> {
        let news = state.news()?;
        if self.at.is_some_and(|at| at.elapsed() < FRESH) && news == self.last {
            return Ok(());
        }
        let mut trouble = String::new();
        for (path, form) in &self.paths {
            let text = match form {
                Form::Json => state.json()? + "\n",
                Form::Metrics => metrics::text(state),
            };
            if let Err(e) = replace::replace(path, MODE, text.as_bytes()) {
                let line = format!("cannot write {}: {e}", path.display());
                trouble = if trouble.is_empty() { line } else { format!("{trouble}; {line}") };
            }
        }
        (self.last, self.at) = (news, Some(Instant::now()));
        let told = std::mem::replace(&mut self.trouble, trouble) == self.trouble;
        if told || self.trouble.is_empty() { Ok(()) } else { Err(self.trouble.clone()) }
    }

    /// Removes them: the service ends, and there is no state any more.
    pub fn remove(&self) {
        for (path, _) in &self.paths {
            // One that is not there is what is wanted.
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
        let mut state = State::new("1.2.3");
        for pid in 0..100 {
            state.run(&run(pid, false));
        }
        for pid in 0..90 {
            state.run(&run(pid, true));
        }
        let pids: Vec<u32> = state.runs.iter().map(|r| r.pid).collect();
        assert!(pids.iter().copied().eq(58..100), "{pids:?}");
        assert_eq!(state.going().count(), 10);
        // The same number, another process.
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
        let (mut files, removed) = Files::new(&status, Some(&metrics)).expect("directories");
        assert_eq!(removed, [metrics.display().to_string()]);
        let mut state = State::new("1.2.3");
        state.own = Own { resident_bytes: Some(4096), cpu_seconds: Some(0.25) };
        files.tell(&mut state).expect("it is written");
        let read =
            |path: &Path| (fs::read_to_string(path).expect("a file"), fs::metadata(path).expect("one").ino());
        let first = read(&status);
        let json: Value = serde_json::from_str(&first.0).expect("JSON");
        assert_eq!((&json["version"], &json["state"]), (&"1.2.3".into(), &"waiting".into()));
        assert_eq!(json["own"]["resident_bytes"], 4096);
        assert!(json["now"].as_str() >= json["since"].as_str() && json["now"] != "");
        assert!(read(&metrics).0.contains("profinfer_up 1\n"));
        // Nothing but our own cost.
        state.own.cpu_seconds = Some(0.5);
        files.tell(&mut state).expect("nothing to write");
        assert_eq!(read(&status), first);
        state.run(&run(42, false));
        state.state = Phase::Recording;
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
        let (mut files, _) = Files::new(&status, Some(&metrics)).expect("directories");
        let mut state = State::new("1");
        let error = files.tell(&mut state).expect_err("a directory is there");
        assert!(error.starts_with("cannot write ") && error.contains("status.json"), "{error}");
        assert!(metrics.exists());
        state.say("news");
        files.tell(&mut state).expect("it was told before");
        fs::remove_dir(&status).expect("it goes");
        state.say("news");
        files.tell(&mut state).expect("it is written");
        assert!(status.is_file());
        // A directory of ours would be one that node_exporter cannot read.
        let (mut files, _) = Files::new(&status, Some(&dir.path().join("none/x.prom"))).expect("directories");
        let error = files.tell(&mut state).expect_err("it is not there");
        assert!(error.ends_with("none/x.prom: No such file or directory (os error 2)"), "{error}");
    }
}
