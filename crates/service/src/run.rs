//! A run: a process of an engine and its children, as the service knows it.

use serde::{Deserialize, Serialize};

use crate::lines::plain;
use crate::recorder::figures::RunFigures;
use common::plain::hides;
use requests::RequestNow;

/// State of one run. Values not known (yet) are None.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub pid: u32,
    /// When the process began, clock ticks since boot (proc_pid_stat(5), field 22): with the pid, it identifies the
    /// run.
    pub start: u64,
    /// Effective user of that process when it was found.
    pub uid: u32,
    /// Its processes, itself and its children, that have used the engine and not ended; at most 256 are listed.
    pub processes: Vec<u32>,
    /// Its program, as the process itself sees it. Data from a target: escape it wherever it is shown.
    pub exe: String,
    /// Name of the rule that matches it.
    pub rule: String,
    /// Process that currently records it; None: it waits, or is not recorded.
    pub recorder: Option<u32>,
    /// Current level of detail, as named by `--level`.
    pub level: String,
    /// Name of the file being written in the service's directory; None: the run is kept in the ring, or not recorded.
    pub file: Option<String>,
    /// Threads that compute a prompt, and a token; None: not seen yet, or not recorded.
    pub threads: [Option<u32>; 2],
    /// Tokens that it gave, each request's first included; tokens of prompts are not counted. As in the metrics.
    pub tokens: u64,
    /// Duration of the run's first call that took a complete prompt, ns.
    pub ttft_ns: Option<u64>,
    /// Decoded tokens per second, over the last 10 s of decoding.
    pub rate: Option<f64>,
    /// Time per decoded token, ns: median, p90 and p99 since the run began.
    pub tpot_ns: [Option<u64>; 3],
    /// Its requests in progress, where the batches of its calls are read; at most 16 are listed, those that computed last.
    pub requests: Vec<RequestNow>,
    /// Lost and seen events of the run's recording; shared by runs recorded together.
    pub lost: u64,
    pub seen: u64,
    /// Expected cost of the recording as a share of a token's time; None: no budget has it measured.
    pub cost: Option<f64>,
    /// What it computed, while somebody watches; None: not reported yet, or nobody does. Not part of a recorder's report.
    #[serde(skip)]
    pub figures: Option<Box<RunFigures>>,
    /// How it ended; None while it runs.
    pub ended: Option<String>,
}

/// Maximum characters of a program's path.
pub const EXE: usize = 512;
/// Maximum processes listed per run.
pub const PROCESSES: usize = 256;
/// Maximum requests listed per run.
pub const REQUESTS: usize = 16;
/// Maximum characters of a level's name, and of the reason for an end.
const LEVEL: usize = 64;
const REASON: usize = 400;

/// Whether this can be the name of a recording in the service's directory, and nothing elsewhere.
pub fn is_file_name(name: &str) -> bool {
    let fits = |c: char| !hides(c) && c != '/';
    name.len() <= 255 && name.ends_with(".pfi") && !name.starts_with('.') && name.chars().all(fits)
}

/// Whether this can be a quantity.
pub fn real(x: &f64) -> bool {
    x.is_finite() && *x >= 0.0
}

impl Run {
    /// Takes a recorder's report on the run that it was given. The recorder reads data made by users, so facts that
    /// the service knows better stay unchanged, and impossible values become unknown.
    pub fn take(&mut self, said: Run) {
        self.processes = said.processes;
        self.processes.truncate(PROCESSES);
        self.level = plain(&said.level, LEVEL);
        self.file = said.file.filter(|name| is_file_name(name));
        self.threads = said.threads;
        (self.tokens, self.ttft_ns, self.tpot_ns) = (said.tokens, said.ttft_ns, said.tpot_ns);
        (self.rate, self.cost) = (said.rate.filter(real), said.cost.filter(real));
        self.requests = said.requests;
        self.requests.truncate(REQUESTS);
        self.requests.iter_mut().for_each(|r| r.tokens_per_s = r.tokens_per_s.filter(real));
        (self.lost, self.seen) = (said.lost, said.seen);
        self.ended = said.ended.map(|why| plain(&why, REASON));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_recorder_says_is_bounded_and_what_the_service_knows_stays() {
        let known =
            Run { pid: 7, start: 9, uid: 5, exe: "/bin/x".into(), rule: "a".into(), ..Run::default() };
        let said = Run {
            pid: 1,
            start: 1,
            uid: 0,
            exe: "other".into(),
            rule: "other".into(),
            processes: (0..10_000).collect(),
            level: "op\n".repeat(1000),
            file: Some("../../etc/passwd.pfi".into()),
            tokens: 3,
            rate: Some(f64::NAN),
            cost: Some(-1.0),
            requests: vec![RequestNow { tokens_per_s: Some(f64::NAN), ..RequestNow::default() }; 1000],
            recorder: Some(1),
            ended: Some("\u{1b}[2J".repeat(1000)),
            ..Run::default()
        };
        let mut run = known.clone();
        run.take(said);
        assert_eq!((run.pid, run.start, run.uid, run.recorder), (7, 9, 5, None));
        assert_eq!((run.exe.as_str(), run.rule.as_str(), run.tokens), ("/bin/x", "a", 3));
        assert_eq!((run.file, run.rate, run.cost), (None, None, None));
        assert_eq!((run.processes.len(), run.requests.len()), (PROCESSES, REQUESTS));
        assert!(run.requests.iter().all(|r| r.tokens_per_s.is_none()));
        assert!(run.level.len() < 200 && run.level.starts_with("op\\n"));
        assert!(run.ended.is_some_and(|why| why.len() < 4000 && !why.contains('\u{1b}')));
    }

    #[test]
    fn a_recordings_name_is_a_plain_one() {
        assert!(is_file_name("20261121T211945.219Z-llama-server-4711.pfi"));
        for no in ["", "x", ".pfi", "..", "/x.pfi", "a/b.pfi", "a\n.pfi", "a\u{ad}.pfi", &"x".repeat(300)] {
            assert!(!is_file_name(no), "{no}");
        }
    }
}
