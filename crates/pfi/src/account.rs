//! Records in which the recorder accounts for itself: rungs of the ladder, notices, event statistics. All are
//! self-contained (postcard). The rules at the top of `record` apply here too.
#![warn(clippy::indexing_slicing)]

use serde::{Deserialize, Serialize};

/// A rung of the ladder, as verified on the first graph and at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RungRecord<'a> {
    pub engine: u32,
    /// `token`, `graph`, `split`, `cpu-graph`, `op`, `op-end`.
    pub role: &'a str,
    /// e.g. `ggml_cpu_extra_compute_forward + ggml_compute_forward_rms_norm_mul_fused`, `barrier`, `vtable`.
    pub name: &'a str,
    /// True if it is in use, false if it was abandoned.
    pub used: bool,
    pub expected: Option<u64>,
    pub seen: u64,
    /// Why it was chosen or abandoned.
    pub why: &'a str,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notice<'a> {
    pub t: i64,
    pub text: &'a str,
}

/// Event statistics. `seen = recorded + lost` per kind of event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Footer<'a> {
    /// Why the recording ended: `target exited`, `signal`, `duration`, `tokens`, or an error's text.
    pub end: &'a str,
    /// Per kind of kernel event: name, seen by BPF, received by the agent, lost in transport.
    #[serde(borrow)]
    pub kinds: Vec<KindCount<'a>>,
    /// Lost events per CPU, all kinds, index = CPU.
    pub lost_cpu: Vec<u64>,
    /// Op hits outside any graph seen from its start (profinfer attached in the middle of it).
    pub orphans: u64,
    /// Failed reads of target memory in BPF.
    pub read_errors: u64,
    /// The agent's own CPU time, user and system, and peak resident memory.
    pub agent_user_us: u64,
    pub agent_sys_us: u64,
    pub agent_peak_rss: u64,
    /// Wall time from the first probe attached to the last detached, ns.
    pub wall_ns: u64,
    /// Time spent in our BPF programs and number of runs (by the kernel's accounting); 0/0 if the kernel keeps
    /// none.
    pub bpf_ns: u64,
    pub bpf_runs: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KindCount<'a> {
    pub kind: &'a str,
    pub seen: u64,
    pub recorded: u64,
    pub lost: u64,
}
