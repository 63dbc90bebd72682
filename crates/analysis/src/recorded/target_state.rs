//! What the recorded processes could use of the machine, and what they had used: the TargetState records, read into
//! numbers. Nothing that was not recorded has a value.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::recorded::load::Loaded;
use pfi::record;

/// The CPUs in a list like `0-3,8`; None if it is none.
pub fn cpu_list(text: &str) -> Option<BTreeSet<u32>> {
    Some(common::cpus::parse(text)?.into_iter().collect())
}

/// The state of a process at one time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TargetState {
    pub pid: u32,
    /// `start`, `change` or `end` of its recording.
    pub at: &'static str,
    /// When, from the beginning of the trace; null if that is lost.
    pub t_ns: Option<i64>,
    /// CPUs that the main thread may run on, of those that exist: some may be offline.
    pub affinity: Option<String>,
    /// Threads that may run on others.
    pub threads: Vec<ThreadCpus>,
    pub online: Option<String>,
    /// CPUs of its cpuset.
    pub cpuset: Option<String>,
    /// Number of online CPUs, and of those among them that the main thread may run on.
    pub cpus_online: Option<u32>,
    pub cpus_allowed: Option<u32>,
    /// The smallest quota of its cgroup and of those above; null: none, or it could not be read.
    pub quota: Option<CpuQuota>,
    /// CPUs that its threads can use together: `cpus_allowed`, or the quota if that is less.
    pub cpus_usable: Option<f64>,
    pub policies: Vec<FrequencyPolicy>,
    /// Mode of transparent huge pages.
    pub huge_pages: Option<String>,
    pub resident_bytes: Option<u64>,
    pub anon_huge_bytes: Option<u64>,
    pub file_huge_bytes: Option<u64>,
    pub locked_bytes: Option<u64>,
    pub swapped_bytes: Option<u64>,
    pub mem_total_bytes: Option<u64>,
    pub mem_available_bytes: Option<u64>,
    /// Since the process began.
    pub minor_faults: Option<u64>,
    pub major_faults: Option<u64>,
    /// The smallest memory limit of its cgroup and of those above; null: none, or it could not be read.
    pub memory_limit: Option<MemoryLimit>,
    /// Memory that it may use: the machine's, or the limit if that is less.
    pub memory_usable_bytes: Option<u64>,
}

/// A limit on the memory of a cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryLimit {
    pub group: String,
    pub bytes: u64,
    /// Processes of the cgroup that the kernel has killed because of it, since the cgroup was made.
    pub kills: Option<u64>,
}

/// The CPUs of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadCpus {
    pub tid: u32,
    pub cpus: String,
}

/// A limit on the CPU time of a cgroup.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuQuota {
    pub group: String,
    /// CPU time in each period, over the period.
    pub cpus: f64,
    pub period_us: u64,
    /// Since the cgroup was made: periods, those in which it was throttled, and for how long.
    pub periods: Option<u64>,
    pub throttled: Option<u64>,
    pub throttled_us: Option<u64>,
}

/// How the frequency of some CPUs is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FrequencyPolicy {
    pub cpus: String,
    pub governor: Option<String>,
    pub khz: Option<u64>,
    /// The highest that is allowed, and the highest of the hardware.
    pub max_khz: Option<u64>,
    pub hardware_khz: Option<u64>,
}

/// The states in a trace, in the order of time.
pub fn states(loaded: &Loaded<'_>) -> Vec<TargetState> {
    let begin = loaded.header.as_ref().map(|h| h.mono_ns);
    let mut all: Vec<&record::TargetState<'_>> = loaded.states.values().collect();
    common::order::by_key(&mut all, |s| (s.mono_ns, s.pid.into()));
    all.into_iter().map(|r| state(r, begin)).collect()
}

fn known(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn state(r: &record::TargetState<'_>, begin: Option<u64>) -> TargetState {
    let (online, allowed) = (cpu_list(r.online), cpu_list(r.affinity));
    let count = |set: &BTreeSet<u32>| set.len() as u32;
    let usable = |a: &BTreeSet<u32>, o: &BTreeSet<u32>| a.intersection(o).count() as u32;
    let cpus_allowed = allowed.as_ref().zip(online.as_ref()).map(|(a, o)| usable(a, o)).filter(|n| *n > 0);
    let quota = quota(r);
    let least = |n: u32| quota.as_ref().map_or(f64::from(n), |q| q.cpus.min(n.into()));
    TargetState {
        pid: r.pid,
        at: r.at.name(),
        t_ns: begin.map(|begin| r.mono_ns.wrapping_sub(begin) as i64),
        affinity: known(r.affinity),
        threads: r.threads.split(';').filter_map(thread).collect(),
        online: known(r.online),
        cpuset: known(r.cpuset),
        cpus_online: online.as_ref().map(count),
        cpus_allowed,
        cpus_usable: cpus_allowed.map(least).or(quota.as_ref().map(|q| q.cpus)),
        quota,
        policies: r.policies.split(';').filter_map(policy).collect(),
        huge_pages: known(r.huge_pages),
        resident_bytes: r.resident,
        anon_huge_bytes: r.anon_huge,
        file_huge_bytes: r.file_huge,
        locked_bytes: r.locked,
        swapped_bytes: r.swapped,
        mem_total_bytes: r.mem_total,
        mem_available_bytes: r.mem_available,
        minor_faults: r.minor_faults,
        major_faults: r.major_faults,
        memory_limit: r.memory_limit.map(|bytes| MemoryLimit {
            group: r.memory_group.to_owned(),
            bytes,
            kills: r.oom_kills,
        }),
        memory_usable_bytes: r.memory_limit.into_iter().chain(r.mem_total).min(),
    }
}

fn quota(r: &record::TargetState<'_>) -> Option<CpuQuota> {
    let (quota_us, period_us) = (r.quota_us?, r.period_us.filter(|us| *us > 0)?);
    Some(CpuQuota {
        group: r.quota_group.to_owned(),
        cpus: quota_us as f64 / period_us as f64,
        period_us,
        periods: r.periods,
        throttled: r.throttled,
        throttled_us: r.throttled_us,
    })
}

fn thread(text: &str) -> Option<ThreadCpus> {
    let (tid, cpus) = text.split_once(':')?;
    Some(ThreadCpus { tid: tid.parse().ok()?, cpus: cpus.to_owned() })
}

fn policy(text: &str) -> Option<FrequencyPolicy> {
    let mut fields = text.split(':');
    let (cpus, governor) = (fields.next()?.to_owned(), known(fields.next()?));
    let mut khz = || fields.next()?.parse().ok();
    Some(FrequencyPolicy { cpus, governor, khz: khz(), max_khz: khz(), hardware_khz: khz() })
}

/// What happened to a quota's cgroup between two states of a process: its periods, those in which it was throttled, and
/// for how many microseconds. None: not known.
pub fn throttled(from: &TargetState, to: &TargetState) -> Option<(u64, u64, u64)> {
    let (a, b) = (
        from.quota.as_ref()?,
        to.quota.as_ref().filter(|b| Some(&b.group) == from.quota.as_ref().map(|a| &a.group))?,
    );
    let since = |a: Option<u64>, b: Option<u64>| b?.checked_sub(a?);
    Some((
        since(a.periods, b.periods)?,
        since(a.throttled, b.throttled)?,
        since(a.throttled_us, b.throttled_us)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfi::record::StateAt;

    fn loaded(states: Vec<record::TargetState<'static>>) -> Loaded<'static> {
        let states = states.into_iter().map(|s| ((s.pid, s.mono_ns), s)).collect();
        Loaded { states, ..Loaded::default() }
    }

    #[test]
    fn a_process_may_use_what_is_online_allowed_and_within_its_quota() {
        let one = record::TargetState {
            pid: 7,
            at: StateAt::End,
            mono_ns: 9,
            affinity: "0-2,100",
            threads: "8:1;9:2-3;x:1",
            online: "1-3",
            quota_us: Some(150_000),
            period_us: Some(100_000),
            quota_group: "/g",
            policies: "0-1:schedutil:1:2:3;2:::5:",
            resident: Some(0),
            ..record::TargetState::default()
        };
        let s = states(&loaded(vec![one])).remove(0);
        assert_eq!(
            (s.at, s.cpus_online, s.cpus_allowed, s.cpus_usable),
            ("end", Some(3), Some(2), Some(1.5))
        );
        assert_eq!(s.threads.iter().map(|t| (t.tid, &*t.cpus)).collect::<Vec<_>>(), [(8, "1"), (9, "2-3")]);
        assert_eq!((s.policies[0].khz, s.policies[0].hardware_khz), (Some(1), Some(3)));
        assert_eq!((&s.policies[1].governor, s.policies[1].max_khz), (&None, Some(5)));
        assert_eq!((s.resident_bytes, s.swapped_bytes, s.t_ns), (Some(0), None, None));
        let wide = record::TargetState { quota_us: Some(900_000), ..one };
        assert_eq!(states(&loaded(vec![wide]))[0].cpus_usable, Some(2.0));
    }

    #[test]
    fn what_was_not_recorded_or_is_damaged_has_no_value() {
        let empty = states(&loaded(vec![record::TargetState::default()])).remove(0);
        assert_eq!(empty, TargetState { at: "start", ..TargetState::default() });
        for cpus in ["", "a", "1-", "-1", "3-1", "99999999999", "1,,2", "8192-4294967295"] {
            assert_eq!(cpu_list(cpus), None, "{cpus}");
        }
        assert_eq!(cpu_list("0-4294967295"), None);
        let zero =
            record::TargetState { quota_us: Some(1), period_us: Some(0), ..record::TargetState::default() };
        assert_eq!(states(&loaded(vec![zero]))[0].quota, None);
    }

    #[test]
    fn throttling_is_the_difference_of_one_group() {
        let at = |mono_ns, group, throttled| record::TargetState {
            mono_ns,
            quota_us: Some(1),
            period_us: Some(2),
            quota_group: group,
            periods: Some(100 + mono_ns),
            throttled,
            throttled_us: Some(mono_ns),
            ..record::TargetState::default()
        };
        let of = |a, b| {
            let all = states(&loaded(vec![a, b]));
            throttled(&all[0], &all[1])
        };
        assert_eq!(of(at(1, "/g", Some(5)), at(50, "/g", Some(44))), Some((49, 39, 49)));
        assert_eq!(of(at(1, "/g", Some(5)), at(50, "/h", Some(44))), None);
        assert_eq!(of(at(1, "/g", Some(5)), at(50, "/g", None)), None);
        assert_eq!(of(at(1, "/g", Some(5)), at(50, "/g", Some(4))), None, "of a group made anew");
    }
}
