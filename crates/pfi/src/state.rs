//! Records of what the machine can do, of what a target may use of it, and of what it uses. All are self-contained. Since 1.6.
#![warn(clippy::indexing_slicing)]

use serde::{Deserialize, Serialize};

/// Peak rates of a cluster of equal cores with a number of threads, as measured on this machine before the recording;
/// one record for each. Rates are in 10^6 per second, a multiply-add is two operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peaks<'a> {
    /// `all`: the cores of all clusters together, or of the only one.
    pub cluster: &'a str,
    /// CPUs of the cluster, e.g. `0-3,8`.
    pub cpus: &'a str,
    pub threads: u32,
    /// When they were measured, CLOCK_REALTIME, seconds.
    pub measured_s: u64,
    /// Bytes read from memory in huge pages.
    pub read: u64,
    /// The same in pages of the smallest size.
    pub read_small_pages: Option<u64>,
    /// Bytes of a = b + x·c.
    pub triad: Option<u64>,
    /// f32 operations.
    pub f32: Option<u64>,
    /// Operations on 8-bit integers, with the fastest instruction for them.
    pub int8: Option<u64>,
    /// The best instruction set that was used, e.g. `avx512vnni`; empty if it is not known.
    pub isa: &'a str,
}

/// When a [`TargetState`] was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StateAt {
    /// When the process was first seen at work, or when this trace began.
    #[default]
    Start,
    /// When something that is set, not counted, had changed.
    Change,
    /// At the end of the trace, or the last time before the process ended.
    End,
}

impl StateAt {
    /// As in results.
    pub const fn name(self) -> &'static str {
        match self {
            StateAt::Start => "start",
            StateAt::Change => "change",
            StateAt::End => "end",
        }
    }
}

/// What a target may use of the machine, and what it used. A text that could not be read is empty, a number is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetState<'a> {
    pub pid: u32,
    pub at: StateAt,
    /// When it was read, CLOCK_MONOTONIC, ns; absolute, as the record is repeated in later blocks.
    pub mono_ns: u64,
    /// CPUs that the main thread may run on, e.g. `0-3,8`: its own mask within its cpuset.
    pub affinity: &'a str,
    /// Threads with another mask: `tid:cpus` joined by ';', at most 64 of them.
    pub threads: &'a str,
    /// CPUs that are online.
    pub online: &'a str,
    /// CPUs of its cpuset.
    pub cpuset: &'a str,
    /// The smallest of the CPU quotas on the way from its cgroup to the root; absent if none is set, or none could be
    /// read. The time of all its threads together in each period, microseconds.
    pub quota_us: Option<u64>,
    pub period_us: Option<u64>,
    /// The cgroup with that quota, below the hierarchy's root; empty without a quota.
    pub quota_group: &'a str,
    /// That cgroup's periods so far in which something ran, those in which it was throttled, and for how long.
    pub periods: Option<u64>,
    pub throttled: Option<u64>,
    pub throttled_us: Option<u64>,
    /// One entry per CPU frequency policy: `cpus:governor:current:limit:hardware`, the last three in kHz: the current
    /// frequency, the highest that is allowed and the highest of the hardware; joined by ';'. A field that could not be
    /// read is empty.
    pub policies: &'a str,
    /// Mode of transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: &'a str,
    /// The target's memory, bytes: resident, of that in huge pages (anonymous, and of files), locked, and swapped out.
    pub resident: Option<u64>,
    pub anon_huge: Option<u64>,
    pub file_huge: Option<u64>,
    pub locked: Option<u64>,
    pub swapped: Option<u64>,
    /// The machine's memory, bytes.
    pub mem_total: Option<u64>,
    pub mem_available: Option<u64>,
    /// The target's page faults so far, without and with I/O.
    pub minor_faults: Option<u64>,
    pub major_faults: Option<u64>,
    /// The smallest memory limit on the way from its cgroup to the root, bytes; absent if none is set, or none could be
    /// read. Since 1.9, as the two that follow.
    pub memory_limit: Option<u64>,
    /// The cgroup with that limit, below the hierarchy's root; empty without a limit.
    pub memory_group: &'a str,
    /// Processes of that cgroup that the kernel has killed because of the limit, so far.
    pub oom_kills: Option<u64>,
}

/// What a process holds and has used, at most once a second. A number that could not be read is absent. Since 1.13.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub pid: u32,
    pub t: i64,
    /// CPU time of its threads since it began, those that have ended among them, user and system, microseconds.
    pub cpu_us: Option<u64>,
    /// The same of those threads that compute graphs that another one calls, as far as they live and were seen at it.
    pub team_us: Option<u64>,
    /// How often those of its threads that live have given up the CPU, and lost it to others, since they began.
    pub yields: Option<u64>,
    pub preemptions: Option<u64>,
    /// Resident memory, bytes: its own, that of mapped files, and shared with others; and its own memory in swap.
    pub anonymous: Option<u64>,
    pub files: Option<u64>,
    pub shared: Option<u64>,
    pub swapped: Option<u64>,
}
