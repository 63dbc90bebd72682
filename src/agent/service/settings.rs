//! What the service goes by, typed. Uses [`super::rules`].

use std::path::PathBuf;
use std::time::Duration;

use super::rules::Rule;

/// What one file may at least have: a run's header and its first blocks fit in it many times.
pub const LEAST_FILE: u64 = 1 << 20;
/// What is kept in memory is written out into one file, with two blocks of descriptions around it.
const AROUND: u64 = 2 << 20;
/// Memory that a recorder takes at least.
pub const LEAST_MEMORY: u64 = 16 << 20;
/// Rules that there may be at most: a recorder, with probes of its own, belongs to each that is in use.
pub const MOST_RULES: usize = 64;

/// All that a service goes by. Paths are absolute, sizes bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where recordings are written.
    pub directory: PathBuf,
    /// What all of them may have together; at least [`Settings::file_size`], which is lowered where it is not.
    pub quota: u64,
    /// A recording that has reached this size is followed by the next; at least [`LEAST_FILE`].
    pub file_size: u64,
    /// One that has been written for so long, too.
    pub file_age: Duration,
    /// Recordings that were ended longer ago are removed; None: only the quota removes them.
    pub keep: Option<Duration>,
    /// File that says how the service stands, as JSON.
    pub status: PathBuf,
    /// File of the same for node_exporter, `*.prom`; None: none is written.
    pub metrics: Option<PathBuf>,
    /// Socket by which it is told what to do; a name that fits into an address (unix(7)).
    pub socket: PathBuf,
    /// A recorder that has had nothing to record for so long ends.
    pub linger: Duration,
    /// Bytes of memory that the service, and each of its recorders, may have.
    pub memory: u64,
    /// Share of a core that a recorder may take: 1.0 = one core.
    pub cpu: f64,
    /// Runs of one rule and user that are recorded at a time; others wait. Of all rules and users four times as many are.
    pub at_once: u32,
    /// Recorders at a time.
    pub recorders: u32,
    /// A recorder that shows no sign of life for so long is killed.
    pub recorder_timeout: Duration,
    /// The first that matches counts.
    pub rules: Vec<Rule>,
    /// What is allowed, but hardly meant: a sentence each.
    pub warnings: Vec<String>,
}

impl Default for Settings {
    /// What is built in, without a rule.
    fn default() -> Self {
        Self {
            directory: "/var/lib/profinfer".into(),
            quota: 512 << 20,
            file_size: 64 << 20,
            file_age: Duration::from_secs(3600),
            keep: None,
            status: "/run/profinfer/status.json".into(),
            metrics: None,
            socket: "/run/profinfer/control.sock".into(),
            linger: Duration::from_secs(30),
            memory: 256 << 20,
            cpu: 0.25,
            at_once: 16,
            recorders: 16,
            recorder_timeout: Duration::from_secs(30),
            rules: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Settings {
    /// Bytes of a ring that fit into one file with what stands around them.
    pub fn ring_bytes(&self, rule: &Rule) -> u64 {
        rule.ring_size.min(self.file_size.saturating_sub(AROUND))
    }
}
