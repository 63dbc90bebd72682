//! A run: a process of an engine and its children, as the service knows it. Uses nothing of this crate.

use serde::{Deserialize, Serialize};

/// How one run stands. What is not known (yet) is None.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub pid: u32,
    /// When the process began, clock ticks since boot (proc_pid_stat(5), field 22): with the pid, it names the run.
    pub start: u64,
    /// Those of its processes, itself and its children, that have used the engine and not ended; at most 256 are told.
    pub processes: Vec<u32>,
    /// Its program, as the process itself sees it. Data from a target: to be escaped wherever it is shown.
    pub exe: String,
    /// Name of the rule that it is recorded by.
    pub rule: String,
    /// Level of detail just now, as `--level` names it.
    pub level: String,
    /// Name of the file being written in the service's directory; None: the run is kept in the ring, or not recorded.
    pub file: Option<String>,
    /// Tokens decoded, and prompts' tokens not counted.
    pub tokens: u64,
    /// Duration of the run's first call that took a whole prompt, ns.
    pub ttft_ns: Option<u64>,
    /// Tokens decoded a second, over the last 10 s of decoding.
    pub rate: Option<f64>,
    /// Time of a decoded token, ns: median, 90th and 99th percentile since the run began.
    pub tpot_ns: [Option<u64>; 3],
    /// Events of the run's recording that were lost and that were seen; shared by runs recorded together.
    pub lost: u64,
    pub seen: u64,
    /// What the recording is thought to cost of a token's time, as a share; None: no budget has it measured.
    pub cost: Option<f64>,
    /// How it ended; None while it goes on.
    pub ended: Option<String>,
}
