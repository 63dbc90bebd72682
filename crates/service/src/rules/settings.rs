//! The service's settings, typed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::net::endpoint::NetSettings;
use crate::place;
use crate::rules::Rule;
use machine::user::User;

/// Minimum file size: a run's header and its first blocks fit many times.
pub const LEAST_FILE: u64 = 1 << 20;
/// The ring is written into one file, with two blocks of descriptions around it.
const AROUND: u64 = 2 << 20;
/// Minimum memory of a recorder.
pub const LEAST_MEMORY: u64 = 16 << 20;
/// Maximum rules: each rule in use has a recorder with its own probes.
pub const MOST_RULES: usize = 64;

/// A command to start.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceCommand {
    pub argv: Vec<OsString>,
    /// Its program, for the rules.
    pub program: PathBuf,
    /// The user to run it as; None: the service's own.
    pub user: Option<User>,
}

impl ServiceCommand {
    pub fn uid(&self) -> u32 {
        self.user.as_ref().map_or_else(place::us, |user| user.uid)
    }
}

/// All settings of a service. Paths are absolute, sizes in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceSettings {
    /// The directory for recordings.
    pub directory: PathBuf,
    /// Maximum total size; at least [`ServiceSettings::file_size`], which is lowered if necessary.
    pub quota: u64,
    /// Start a new file at this size; at least [`LEAST_FILE`].
    pub file_size: u64,
    /// Start a new file after this time.
    pub file_age: Duration,
    /// Remove recordings that ended longer ago than this; None: only the quota removes them.
    pub keep: Option<Duration>,
    /// Status file, JSON.
    pub status: PathBuf,
    /// Metrics file for node_exporter, `*.prom`; None: not written.
    pub metrics: Option<PathBuf>,
    /// Metrics of each process, too.
    pub per_process: bool,
    /// Metrics over the network; off by default.
    pub net: NetSettings,
    /// Control socket; its name must fit into an address (unix(7)).
    pub socket: PathBuf,
    /// A recorder without anything to record ends after this time.
    pub idle_timeout: Duration,
    /// Measure the machine's peaks when no engine has run for this time and they are not known; None: never.
    pub peaks_after: Option<Duration>,
    /// Memory limit of the service and of each recorder, bytes.
    pub memory: u64,
    /// CPU limit of a recorder as a share of a core: 1.0 = one core.
    pub cpu: f64,
    /// Maximum concurrently recorded runs per rule and user; others wait. The limit over all rules and users is
    /// four times this.
    pub max_concurrent: u32,
    /// Maximum concurrent recorders.
    pub recorders: u32,
    /// A recorder without a sign of life for this long is killed.
    pub recorder_timeout: Duration,
    /// The first matching rule applies.
    pub rules: Vec<Rule>,
    /// The only program to record, which is started; None: whatever runs on this machine.
    pub command: Option<ServiceCommand>,
    /// Allowed but unlikely to be intended: one sentence each.
    pub warnings: Vec<String>,
}

impl Default for ServiceSettings {
    /// The built-in defaults, without a rule.
    fn default() -> Self {
        Self {
            directory: "/var/lib/profinfer".into(),
            quota: 512 << 20,
            file_size: 64 << 20,
            file_age: Duration::from_secs(3600),
            keep: None,
            status: "/run/profinfer/status.json".into(),
            metrics: None,
            per_process: false,
            net: NetSettings::default(),
            socket: "/run/profinfer/control.sock".into(),
            idle_timeout: Duration::from_secs(30),
            peaks_after: Some(Duration::from_secs(300)),
            memory: 256 << 20,
            cpu: 0.25,
            max_concurrent: 16,
            recorders: 16,
            recorder_timeout: Duration::from_secs(30),
            rules: Vec::new(),
            command: None,
            warnings: Vec::new(),
        }
    }
}

impl ServiceSettings {
    /// Size of a ring that fits into one file with the blocks around it, bytes.
    pub fn ring_bytes(&self, rule: &Rule) -> u64 {
        rule.ring_size.min(self.file_size.saturating_sub(AROUND))
    }

    /// Where the sensors are that rules want; None: no rule wants any.
    pub fn sysfs(&self) -> Option<&Path> {
        let mut rules = self.rules.iter().filter(|rule| !rule.ignore);
        rules.find_map(|rule| Some(rule.record.sensors.as_ref()?.sysfs.as_path()))
    }

    /// `proc` beside it: the machine's, or that of a tree that was made for a test.
    pub fn proc(&self) -> PathBuf {
        self.sysfs().and_then(Path::parent).unwrap_or(Path::new("/")).join("proc")
    }
}
