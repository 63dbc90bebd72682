//! What the machine gives a target: CPUs and clock, from its recorded states and from where its ops ran.
//! What was not recorded is `None`.

use std::collections::{BTreeMap, BTreeSet};

use crate::recorded::calls::Phase;
use crate::recorded::load::Loaded;
use crate::recorded::target_state::{TargetState, cpu_list, throttled};
use crate::sums::op_cpus::cpu_table;
use crate::sums::ops::OpTimes;

/// The CPUs that a target may use.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuFacts {
    /// CPUs that are online; 0 if that is not known.
    pub online: u32,
    /// Of those, the ones that engine threads came back on after they were off-CPU, in order.
    pub used: Vec<u16>,
    /// CPUs in the affinity masks of its compute threads together.
    pub allowed: Option<u32>,
    /// CPUs' worth of time that the control group allows; `None` also if it sets no limit.
    pub quota: Option<f64>,
    /// Share of the group's periods that were cut short during the recording; and how many of its CPUs stood still for that
    /// on average.
    pub throttled: Option<f64>,
    pub stood_still: Option<f64>,
    /// Share of the op time by CPU; empty if not recorded.
    pub time: Vec<(u32, f64)>,
}

impl CpuFacts {
    /// Threads that can compute at the same time: on the CPUs allowed (or online), and within the quota. A thread beyond it
    /// only makes the others wait longer. `None`: not known.
    pub fn usable(&self) -> Option<u32> {
        let within = self.quota.map_or(u32::MAX, |cpus| (cpus as u32).max(1));
        self.allowed.or((self.online > 0).then_some(self.online)).map(|cpus| cpus.min(within))
    }

    /// Share of the op time on these CPUs; `None` if not recorded.
    pub fn on(&self, cpus: &[u32]) -> Option<f64> {
        (!self.time.is_empty())
            .then(|| self.time.iter().filter(|(cpu, _)| cpus.contains(cpu)).map(|(_, share)| share).sum())
    }

    /// From the states of a process and the ops of the phase of most interest.
    pub fn new(loaded: &Loaded<'_>, times: &OpTimes, phase: Phase, states: &[&TargetState]) -> CpuFacts {
        let mut used: Vec<u16> = Vec::new();
        for r in &loaded.causes.off_cpu {
            if !used.contains(&r.to_cpu) {
                used.push(r.to_cpu);
            }
        }
        common::order::by_key(&mut used, |cpu| ((*cpu).into(), 0));
        let last = states.last();
        let topology = loaded.header.as_ref().map_or("", |h| h.topology);
        let listed = topology.split(';').filter(|s| !s.is_empty()).count() as u32;
        let cut_short = states.first().zip(last).and_then(|(a, b)| throttled(a, b)).filter(|cut| cut.0 > 0);
        let period_us = last.and_then(|s| Some(s.quota.as_ref()?.period_us)).unwrap_or(0).max(1);
        let rows = cpu_table(loaded, times, phase).map(|t| t.cpus).unwrap_or_default();
        CpuFacts {
            online: last.and_then(|s| s.cpus_online).unwrap_or(listed),
            used,
            allowed: last.and_then(|s| allowed(loaded, s)),
            quota: last.and_then(|s| Some(s.quota.as_ref()?.cpus)),
            throttled: cut_short.map(|(periods, n, _)| n as f64 / periods as f64),
            stood_still: cut_short.map(|(periods, _, us)| us as f64 / periods as f64 / period_us as f64),
            time: rows.iter().filter_map(|r| Some((r.cpu?.into(), r.share))).collect(),
        }
    }
}

/// The CPUs that the compute threads may run on together. Those without a mask of their own have the main thread's.
fn allowed(loaded: &Loaded<'_>, state: &TargetState) -> Option<u32> {
    let online = cpu_list(state.online.as_deref()?)?;
    let main = cpu_list(state.affinity.as_deref()?)?;
    let own: BTreeMap<u32, &str> = state.threads.iter().map(|t| (t.tid, t.cpus.as_str())).collect();
    let threads: BTreeSet<u32> = loaded.runs.iter().map(|r| r.tid).collect();
    let mask = |tid: &u32| own.get(tid).and_then(|cpus| cpu_list(cpus)).unwrap_or_else(|| main.clone());
    let all: BTreeSet<u32> = match threads.is_empty() {
        true => main.clone(),
        false => threads.iter().flat_map(mask).collect(),
    };
    let n = all.intersection(&online).count() as u32;
    (n > 0).then_some(n)
}

/// CPU frequencies during the recording.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClockFacts {
    /// Lowest highest frequency that was allowed, over the hardware's, of the CPUs that ops ran on.
    pub cap: Option<f64>,
    /// Of the same CPUs, the governor `powersave` if one of them has it.
    pub powersave: bool,
    /// Highest frequency that was seen, over the hardware's.
    pub seen: Option<f64>,
}

impl ClockFacts {
    /// `None`: the kernel tells no frequencies.
    pub fn new(states: &[&TargetState], cpus: &CpuFacts) -> Option<ClockFacts> {
        let mine = |list: &str| match cpu_list(list) {
            Some(set) => cpus.time.is_empty() || cpus.time.iter().any(|(cpu, _)| set.contains(cpu)),
            None => false,
        };
        let policies: Vec<_> = states
            .iter()
            .flat_map(|s| &s.policies)
            .filter(|p| mine(&p.cpus) && p.hardware_khz > Some(0))
            .collect();
        let over = |khz: Option<u64>, p: &crate::recorded::target_state::FrequencyPolicy| {
            Some(khz? as f64 / p.hardware_khz.filter(|k| *k > 0)? as f64)
        };
        (!policies.is_empty()).then(|| ClockFacts {
            cap: policies.iter().filter_map(|p| over(p.max_khz, p)).reduce(f64::min),
            powersave: policies.iter().any(|p| p.governor.as_deref() == Some("powersave")),
            seen: policies.iter().filter_map(|p| over(p.khz, p)).reduce(f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::target_state::{CpuQuota, FrequencyPolicy, ThreadCpus};
    use pfi::record::Slices;

    fn state(affinity: &str, threads: &[(u32, &str)]) -> TargetState {
        TargetState {
            affinity: Some(affinity.into()),
            online: Some("0-3".into()),
            cpus_online: Some(4),
            threads: threads
                .iter()
                .map(|(tid, cpus)| ThreadCpus { tid: *tid, cpus: (*cpus).into() })
                .collect(),
            ..TargetState::default()
        }
    }

    fn slices(tid: u32) -> Slices<'static> {
        Slices { graph: 0, ith: 0, tid, plan: 0, first: 0, n: 0, t: 0, barrier: false, data: &[] }
    }

    fn team(tids: &[u32]) -> Loaded<'static> {
        let runs = tids.iter().map(|&tid| slices(tid)).collect();
        Loaded { runs, ..Loaded::default() }
    }

    fn cpus(loaded: &Loaded<'_>, states: &[&TargetState]) -> CpuFacts {
        CpuFacts::new(loaded, &OpTimes::default(), Phase::Decode, states)
    }

    #[test]
    fn threads_may_use_the_cpus_of_their_masks_together() {
        let of = |affinity, masks: &[_], tids: &[_]| cpus(&team(tids), &[&state(affinity, masks)]).allowed;
        assert_eq!(of("0-1", &[], &[7, 8]), Some(2));
        // The main thread does not compute.
        assert_eq!(of("0-3", &[(7, "1"), (8, "1")], &[7, 8]), Some(1));
        assert_eq!(of("0", &[(8, "1-2"), (9, "3")], &[7, 8]), Some(3));
        assert_eq!(of("2,9", &[], &[]), Some(1), "offline CPUs do not count");
        assert_eq!(cpus(&team(&[7]), &[]), CpuFacts::default());
    }

    #[test]
    fn a_quota_cuts_periods_short_between_two_states() {
        let with = |periods, n| TargetState {
            quota: Some(CpuQuota {
                group: "/g".into(),
                cpus: 0.5,
                period_us: 100,
                periods: Some(periods),
                throttled: Some(n),
                throttled_us: Some(100 * n),
            }),
            ..state("0-1", &[])
        };
        let (a, b) = (with(10, 5), with(50, 35));
        let of = cpus(&team(&[7]), &[&a, &b]);
        assert_eq!((of.quota, of.throttled, of.allowed), (Some(0.5), Some(0.75), Some(2)));
        assert_eq!(of.stood_still, Some(0.75));
        assert_eq!((of.usable(), CpuFacts::default().usable()), (Some(1), None));
        assert_eq!(cpus(&team(&[7]), &[&a, &a]).throttled, None, "no period in between");
    }

    #[test]
    fn frequencies_are_those_of_the_cpus_in_use() {
        let policy = |cpus: &str, khz, max_khz| FrequencyPolicy {
            cpus: cpus.into(),
            governor: Some("powersave".into()),
            khz: Some(khz),
            max_khz: Some(max_khz),
            hardware_khz: Some(2000),
        };
        let s = TargetState {
            policies: vec![policy("0-1", 500, 1000), policy("2-3", 2000, 2000)],
            ..state("0-3", &[])
        };
        let on = |time: &[(u32, f64)]| {
            ClockFacts::new(&[&s], &CpuFacts { time: time.to_vec(), ..CpuFacts::default() }).expect("known")
        };
        assert_eq!((on(&[(1, 1.0)]).cap, on(&[(1, 1.0)]).seen), (Some(0.5), Some(0.25)));
        assert_eq!((on(&[(2, 1.0)]).cap, on(&[(2, 1.0)]).seen), (Some(1.0), Some(1.0)));
        assert_eq!((on(&[]).cap, on(&[]).seen, on(&[]).powersave), (Some(0.5), Some(1.0), true));
        assert_eq!(ClockFacts::new(&[], &CpuFacts::default()), None);
    }
}
