//! The CPUs that may be used, grouped into clusters of like cores, as sysfs describes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use common::{cpus, order};
use machine::hardware::InheritedSettings;
use tune::{Cluster, Machine};

/// Capacities and frequencies that differ by less than this are of like cores: some firmware gives each core its own.
const LIKE: f64 = 0.05;
/// More clusters than this are merged where they differ only in the cache that they share.
const CACHES: usize = 6;

/// Why no CPU can be used.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("{0} lists no online CPU: is it a sysfs directory?")]
    NoCpus(PathBuf),
    #[error("the CPUs given ({asked}) are not among those that can be used here ({usable})")]
    Outside { asked: String, usable: String },
}

/// What sysfs says about one CPU.
#[derive(Debug, Clone, Default, PartialEq)]
struct CpuFacts {
    cpu: u32,
    capacity: Option<u64>,
    max_khz: Option<u64>,
    /// Hardware threads of its core, itself among them.
    siblings: BTreeSet<u32>,
    /// CPUs that share its last-level cache.
    cache: BTreeSet<u32>,
}

/// The machine below `sysfs`: this one's CPUs that this process may use, or all of another directory.
///
/// # Errors
/// No CPU is left.
pub fn read(sysfs: &Path, only: Option<&BTreeSet<u32>>) -> Result<Machine, MachineError> {
    let dir = sysfs.join("devices/system/cpu");
    let online = list(&dir.join("online")).ok_or_else(|| MachineError::NoCpus(dir.clone()))?;
    let own = (sysfs == Path::new("/sys")).then(|| InheritedSettings::of_this_thread().cpus()).flatten();
    let usable: BTreeSet<u32> =
        online.into_iter().filter(|cpu| own.as_ref().is_none_or(|own| own.contains(cpu))).collect();
    if let Some(outside) = only.filter(|only| !only.is_subset(&usable)) {
        let shown = |all: &BTreeSet<u32>| cpus::ranges(all.iter().copied());
        return Err(MachineError::Outside { asked: shown(outside), usable: shown(&usable) });
    }
    let wanted = usable.iter().filter(|cpu| only.is_none_or(|only| only.contains(cpu)));
    let facts: Vec<CpuFacts> = wanted.map(|cpu| facts(&dir, *cpu)).collect();
    if facts.is_empty() {
        return Err(MachineError::NoCpus(dir));
    }
    Ok(Machine { clusters: grouped(&facts) })
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn list(path: &Path) -> Option<BTreeSet<u32>> {
    Some(cpus::parse(&text(path)?)?.into_iter().collect())
}

fn facts(dir: &Path, cpu: u32) -> CpuFacts {
    let at = dir.join(format!("cpu{cpu}"));
    let number = |file: &str| text(&at.join(file))?.parse::<u64>().ok().filter(|n| *n > 0);
    let siblings = list(&at.join("topology/core_cpus_list"));
    let siblings = siblings.or_else(|| list(&at.join("topology/thread_siblings_list"))).unwrap_or_default();
    CpuFacts {
        cpu,
        capacity: number("cpu_capacity"),
        max_khz: number("cpufreq/cpuinfo_max_freq"),
        siblings,
        cache: last_cache(&at.join("cache")),
    }
}

/// Documentation/ABI/testing/sysfs-devices-system-cpu: `indexN` with `level` and `shared_cpu_list`.
fn last_cache(dir: &Path) -> BTreeSet<u32> {
    let index = |n: u32| {
        let at = dir.join(format!("index{n}"));
        Some((text(&at.join("level"))?.parse::<u32>().ok()?, list(&at.join("shared_cpu_list"))?))
    };
    (0..8).map_while(index).max_by_key(|(level, _)| *level).map(|(_, cpus)| cpus).unwrap_or_default()
}

fn alike(a: Option<u64>, b: Option<u64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) as f64 <= LIKE * a.max(b) as f64,
        (a, b) => a == b,
    }
}

/// Clusters of like CPUs, fastest first.
fn grouped(all: &[CpuFacts]) -> Vec<Cluster> {
    let mut kinds: Vec<Vec<&CpuFacts>> = Vec::new();
    let mut sorted: Vec<&CpuFacts> = all.iter().collect();
    // Capacities are at most a few thousand, frequencies a few million kHz.
    let speed =
        |c: &CpuFacts| (c.capacity.unwrap_or(0) << 32) | c.max_khz.unwrap_or(0).min(u64::from(u32::MAX));
    order::by_key(&mut sorted, |c| (u64::MAX - speed(c), c.cpu.into()));
    for cpu in sorted {
        let like = |kind: &&mut Vec<&CpuFacts>| {
            kind.first().is_some_and(|first| {
                let known = first.capacity.is_some() && cpu.capacity.is_some();
                alike(first.capacity, cpu.capacity) && (known || alike(first.max_khz, cpu.max_khz))
            })
        };
        match kinds.iter_mut().find(like) {
            Some(kind) => kind.push(cpu),
            None => kinds.push(vec![cpu]),
        }
    }
    let apart: Vec<Vec<&CpuFacts>> = kinds.iter().flat_map(|kind| by_cache(kind)).collect();
    let chosen = if apart.len() > CACHES { kinds } else { apart };
    chosen.iter().map(|kind| cluster(kind)).collect()
}

/// Like CPUs, apart where they have caches of their own that several of them share.
fn by_cache<'a>(kind: &[&'a CpuFacts]) -> Vec<Vec<&'a CpuFacts>> {
    let mut caches: BTreeMap<Vec<u32>, Vec<&CpuFacts>> = BTreeMap::new();
    for cpu in kind {
        caches.entry(cpu.cache.iter().copied().collect()).or_default().push(cpu);
    }
    // A cache of a single core makes no cluster.
    let shared =
        caches.values().all(|of| of.len() > of.iter().map(|c| c.siblings.len()).max().unwrap_or(1).max(1));
    let own = caches.into_values().collect::<Vec<_>>();
    if own.len() > 1 && shared { own } else { vec![kind.to_vec()] }
}

fn cluster(kind: &[&CpuFacts]) -> Cluster {
    let (mut first, mut more) = (Vec::new(), Vec::new());
    for cpu in kind {
        // The lowest of a core's threads is its first.
        let is_first =
            cpu.siblings.iter().find(|s| kind.iter().any(|c| c.cpu == **s)).is_none_or(|s| *s == cpu.cpu);
        if is_first { first.push(cpu.cpu) } else { more.push(cpu.cpu) }
    }
    order::by_key(&mut first, |cpu| ((*cpu).into(), 0));
    order::by_key(&mut more, |cpu| ((*cpu).into(), 0));
    Cluster {
        cpus: first,
        siblings: more,
        capacity: kind.iter().filter_map(|c| c.capacity).max(),
        max_khz: kind.iter().filter_map(|c| c.max_khz).max(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, content: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("a parent")).expect("created");
        fs::write(path, content).expect("written");
    }

    /// A phone: four small cores, three large ones, one prime.
    fn phone(root: &Path) {
        write(root, "devices/system/cpu/online", "0-7\n");
        for cpu in 0..8 {
            let (capacity, khz) = match cpu {
                0..4 => ("312", "1800000"),
                4..7 => ("870", "2600000"),
                _ => ("1024", "3000000"),
            };
            let at = format!("devices/system/cpu/cpu{cpu}");
            write(root, &format!("{at}/cpu_capacity"), capacity);
            write(root, &format!("{at}/cpufreq/cpuinfo_max_freq"), khz);
            write(root, &format!("{at}/topology/core_cpus_list"), &cpu.to_string());
            write(root, &format!("{at}/cache/index0/level"), "3");
            write(root, &format!("{at}/cache/index0/shared_cpu_list"), "0-7");
        }
    }

    fn cpus_of(machine: &Machine) -> Vec<Vec<u32>> {
        machine.clusters.iter().map(|c| c.cpus.clone()).collect()
    }

    #[test]
    fn a_phone_has_three_clusters() {
        let root = tempfile::tempdir().expect("a directory");
        phone(root.path());
        let machine = read(root.path(), None).expect("CPUs");
        assert_eq!(cpus_of(&machine), [vec![7], vec![4, 5, 6], vec![0, 1, 2, 3]]);
        assert_eq!(machine.clusters[1].capacity, Some(870));
        assert_eq!(machine.clusters[2].max_khz, Some(1_800_000));
        let some = read(root.path(), Some(&BTreeSet::from([3, 4]))).expect("CPUs");
        assert_eq!(cpus_of(&some), [vec![4], vec![3]]);
        let outside = read(root.path(), Some(&BTreeSet::from([8]))).expect_err("no such CPU").to_string();
        assert!(outside.contains("(8)") && outside.contains("(0-7)"), "{outside}");
    }

    #[test]
    fn threads_of_a_core_and_caches_are_told_apart() {
        let root = tempfile::tempdir().expect("a directory");
        write(root.path(), "devices/system/cpu/online", "0-7");
        for cpu in 0..8 {
            let at = format!("devices/system/cpu/cpu{cpu}");
            write(
                root.path(),
                &format!("{at}/topology/thread_siblings_list"),
                &format!("{},{}", cpu % 4, cpu % 4 + 4),
            );
            write(root.path(), &format!("{at}/cache/index0/level"), "1");
            write(root.path(), &format!("{at}/cache/index0/shared_cpu_list"), &format!("{cpu}"));
            write(root.path(), &format!("{at}/cache/index1/level"), "3");
            let shared = if cpu % 4 < 2 { "0-1,4-5" } else { "2-3,6-7" };
            write(root.path(), &format!("{at}/cache/index1/shared_cpu_list"), shared);
        }
        let machine = read(root.path(), None).expect("CPUs");
        assert_eq!(cpus_of(&machine), [vec![0, 1], vec![2, 3]]);
        assert_eq!(machine.clusters[0].siblings, [4, 5]);
    }

    #[test]
    fn a_directory_without_cpus_is_named() {
        let root = tempfile::tempdir().expect("a directory");
        assert!(read(root.path(), None).is_err_and(|e| e.to_string().contains("is it a sysfs")));
        for text in ["", "x", "4294967295-1", "-1"] {
            write(root.path(), "devices/system/cpu/online", text);
            assert!(read(root.path(), None).is_err(), "{text}");
        }
    }

    #[test]
    fn this_machine_is_read() {
        let machine = read(Path::new("/sys"), None).expect("CPUs");
        assert!(machine.clusters.iter().all(|c| !c.cpus.is_empty()));
    }
}
