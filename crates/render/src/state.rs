//! What limits a process besides the engine, and what it used, in lines of the report's section on the run: CPUs, memory and
//! frequencies.

use std::collections::BTreeMap;

use super::units::{bytes, time};
use analysis::recorded::target_state::{FrequencyPolicy, TargetState, throttled};
use analysis::sums::usage::{IdleUse, ProcessUsage};

/// Most processes shown.
const PROCESSES: usize = 4;
/// Governors that keep the frequency low, or wherever it was set.
const SLOW: [&str; 2] = ["powersave", "userspace"];

/// Label and text of each line; none if nothing is limited.
pub fn lines(states: &[TargetState]) -> Vec<(&'static str, String)> {
    let mut of: BTreeMap<u32, (&TargetState, &TargetState)> = BTreeMap::new();
    for s in states {
        of.entry(s.pid).or_insert((s, s)).1 = s;
    }
    let many = of.len() > 1;
    let mut out = Vec::new();
    for (pid, (first, last)) in &of {
        let told = cpus(first, last);
        let who = if many { format!("process {pid}: ") } else { String::new() };
        if !told.is_empty() && out.len() < PROCESSES {
            out.push(("CPUs", format!("{who}{}", told.join("; "))));
        }
        if let Some(limit) = last.memory_limit.as_ref().filter(|_| out.len() < PROCESSES) {
            out.push((
                "memory",
                format!("{who}limit of {} (cgroup {})", bytes(limit.bytes as f64), limit.group),
            ));
        }
    }
    // The same for all processes.
    let policies = states.last().map(|s| frequencies(&s.policies)).unwrap_or_default();
    out.extend((!policies.is_empty()).then(|| ("frequency", policies.join("; "))));
    out
}

/// Label and text of each line on what the processes used over time.
pub fn used(all: &[ProcessUsage]) -> Vec<(&'static str, String)> {
    let mut out = Vec::new();
    for u in all.iter().take(PROCESSES) {
        let who = if all.len() > 1 { format!("process {}: ", u.pid) } else { String::new() };
        out.extend(memory(u).map(|text| ("memory", format!("{who}{text}"))));
        out.extend(u.idle.as_ref().map(|idle| ("idle", format!("{who}{}", idle_text(idle)))));
    }
    out
}

/// `439.5 MiB resident at most: 284.0 MiB its own, 155.5 MiB of files; its own grew by 20.2 MiB in the last 4 requests (5.0
/// MiB each)`.
fn memory(u: &ProcessUsage) -> Option<String> {
    let size = |n: u64| bytes(n as f64);
    let mut text = format!("{} resident at most", size(u.most.resident()?));
    let parts = [(u.most.anonymous, "its own"), (u.most.files, "of files"), (u.most.shared, "shared")];
    let parts =
        parts.into_iter().filter_map(|(n, what)| Some(format!("{} {what}", size(n.filter(|n| *n > 0)?))));
    text.push_str(&format!(": {}", parts.collect::<Vec<_>>().join(", ")));
    if let Some(swapped) = u.last.swapped.filter(|n| *n > 0) {
        text.push_str(&format!("; {} swapped out at the end", size(swapped)));
    }
    if let Some(g) = u.growth {
        let how = if g.bytes < 0 { "shrank" } else { "grew" };
        let (all, each) = (g.bytes.unsigned_abs() as f64, g.bytes_per_request.abs());
        text.push_str(&format!(
            "; its own {how} by {} in the last {} requests ({} each)",
            bytes(all),
            g.requests,
            bytes(each)
        ));
    }
    Some(text)
}

/// `12.0 s without a call: 0.01 CPUs, 4.2 wake-ups/s`.
fn idle_text(idle: &IdleUse) -> String {
    let cpus = idle.cpus.map_or("CPU time unknown".into(), |n| format!("{n:.2} CPUs in use"));
    let wakeups = idle.wakeups_per_s.map_or("wake-ups unknown".into(), |n| format!("{n:.1} wake-ups/s"));
    format!("{} without a call: {cpus}, {wakeups}", time(idle.ns as f64))
}

fn cpus(first: &TargetState, last: &TargetState) -> Vec<String> {
    let mut told = Vec::new();
    if let (Some(allowed), Some(online)) = (last.cpus_allowed, last.cpus_online)
        && allowed < online
    {
        let list = last.affinity.as_deref().unwrap_or_default();
        told.push(format!("may run on {allowed} of {online} CPUs ({list})"));
    }
    if !last.threads.is_empty() {
        told.push(format!("threads with other CPUs: {}", last.threads.len()));
    }
    if let Some(quota) = &last.quota {
        let throttled = match throttled(first, last) {
            Some((0, ..)) | None => String::new(),
            Some((_, 0, _)) => ", never throttled".to_owned(),
            Some((periods, n, us)) => {
                format!(", throttled in {n} of {periods} periods for {} (all threads)", time(us as f64 * 1e3))
            }
        };
        told.push(format!("CPU quota of {:.2} CPUs (cgroup {}){throttled}", quota.cpus, quota.group));
    }
    told
}

/// The policies that limit, those alike together.
fn frequencies(all: &[FrequencyPolicy]) -> Vec<String> {
    let mut alike: Vec<(String, Vec<&str>)> = Vec::new();
    for p in all {
        let limit = p.max_khz.zip(p.hardware_khz).filter(|(max, hardware)| max < hardware);
        let slow = p.governor.as_deref().filter(|g| limit.is_some() || SLOW.contains(g));
        let ghz = |khz: u64| khz as f64 / 1e6;
        let text = match (limit, slow) {
            (None, None) => continue,
            (None, Some(governor)) => format!("governor {governor}"),
            (Some((max, hardware)), governor) => {
                let governor = governor.map(|g| format!(", governor {g}")).unwrap_or_default();
                format!("limited to {:.2} of {:.2} GHz{governor}", ghz(max), ghz(hardware))
            }
        };
        match alike.iter_mut().find(|(known, _)| *known == text) {
            Some((_, cpus)) => cpus.push(&p.cpus),
            None => alike.push((text, vec![&p.cpus])),
        }
    }
    alike.into_iter().map(|(text, cpus)| format!("CPUs {}: {text}", cpus.join(","))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use analysis::recorded::target_state::{CpuQuota, ThreadCpus};

    fn free(pid: u32) -> TargetState {
        let policy = |cpus: &str| FrequencyPolicy {
            cpus: cpus.into(),
            governor: Some("schedutil".into()),
            khz: Some(600_000),
            max_khz: Some(2_400_000),
            hardware_khz: Some(2_400_000),
        };
        TargetState {
            pid,
            affinity: Some("0-1".into()),
            cpus_online: Some(2),
            cpus_allowed: Some(2),
            policies: vec![policy("0"), policy("1")],
            ..TargetState::default()
        }
    }

    #[test]
    fn a_process_without_limits_has_no_line() {
        assert!(lines(&[free(7), free(7)]).is_empty());
        assert!(lines(&[TargetState::default()]).is_empty() && lines(&[]).is_empty());
    }

    #[test]
    fn limits_are_said_with_what_they_did() {
        let quota = |n| CpuQuota {
            group: "/g".into(),
            cpus: 0.5,
            period_us: 100_000,
            periods: Some(10 + n),
            throttled: Some(n),
            throttled_us: Some(50_000 * n),
        };
        let limited = |n| {
            let mut s = TargetState { cpus_allowed: Some(1), affinity: Some("0".into()), ..free(7) };
            s.quota = Some(quota(n));
            s.policies.iter_mut().for_each(|p| p.max_khz = Some(1_200_000));
            s
        };
        let expected = [
            (
                "CPUs",
                "may run on 1 of 2 CPUs (0); CPU quota of 0.50 CPUs (cgroup /g), throttled in 39 of 39 \
              periods for 1.95 s (all threads)",
            ),
            ("frequency", "CPUs 0,1: limited to 1.20 of 2.40 GHz, governor schedutil"),
        ];
        let told = lines(&[limited(1), limited(40)]);
        assert_eq!(told.iter().map(|(a, b)| (*a, &**b)).collect::<Vec<_>>(), expected);
        // Another process is named, and its own limits only.
        let mut other = free(9);
        other.threads = vec![ThreadCpus { tid: 10, cpus: "1".into() }];
        other.policies[1].governor = Some("powersave".into());
        let told = lines(&[limited(1), other]);
        assert!(
            told[0].1.starts_with("process 7: may run on 1 of 2 CPUs") && !told[0].1.contains("throttled")
        );
        assert_eq!(told[1].1, "process 9: threads with other CPUs: 1");
        assert_eq!(told[2].1, "CPUs 1: governor powersave");
    }
}
