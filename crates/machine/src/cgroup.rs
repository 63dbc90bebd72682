//! The CPU quota, the cpuset and the memory limit of a process, of cgroup hierarchies of version 2 and 1. docs: cgroup-v2.rst,
//! cgroup-v1/memory.rst and scheduler/sched-bwc.rst in the kernel's Documentation.

use std::path::{Component, Path, PathBuf};

use crate::target_state::{number, text};

/// A mounted hierarchy that may limit CPUs or memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Hierarchy {
    at: PathBuf,
    /// The group that is shown there: in a container, often not the root.
    root: PathBuf,
    v2: bool,
    cpu: bool,
    cpuset: bool,
    memory: bool,
}

/// A group's memory limit, bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    dir: PathBuf,
    /// Its path within the hierarchy.
    pub group: String,
    pub bytes: u64,
    v2: bool,
}

/// A group's CPU quota: the time in each period, microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// The group's directory, and its path within the hierarchy.
    pub dir: PathBuf,
    pub group: String,
    pub quota_us: u64,
    pub period_us: u64,
    v2: bool,
}

/// More than any memory: a limit of version 1 that is none.
const NO_LIMIT: u64 = 1 << 62;

/// Periods of a group with a quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttling {
    pub periods: Option<u64>,
    pub throttled: Option<u64>,
    pub throttled_us: Option<u64>,
}

/// The hierarchies in a list of mounts (proc_pid_mountinfo(5)).
pub fn hierarchies(mounts: &str) -> Vec<Hierarchy> {
    let one = |line: &str| {
        let (mount, fs) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, at) = (unescaped(mount.next()?), unescaped(mount.next()?));
        let mut fs = fs.split(' ');
        let (kind, options) = (fs.next()?, fs.nth(1)?);
        let has = |name| options.split(',').any(|option| option == name);
        let v2 = kind == "cgroup2";
        let [cpu, cpuset, memory] = ["cpu", "cpuset", "memory"].map(|name| v2 || has(name));
        let limits = (v2 || kind == "cgroup") && (cpu || cpuset || memory);
        limits.then_some(Hierarchy { at, root, v2, cpu, cpuset, memory })
    };
    mounts.lines().filter_map(one).collect()
}

/// A path without the escapes of spaces and line ends.
fn unescaped(path: &str) -> PathBuf {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (from, to)| path.replace(from, to))
        .into()
}

impl Hierarchy {
    /// The path below the mount of the group that a process is in, from its list of groups (proc_pid_cgroup(5)).
    /// None: it is not below the mount.
    fn group_in<'g>(&self, groups: &'g str, controller: &str) -> Option<&'g Path> {
        let one = |line: &'g str| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, group) = rest.split_once(':')?;
            let mine = match self.v2 {
                true => controllers.is_empty(),
                false => controllers.split(',').any(|c| c == controller),
            };
            mine.then_some(Path::new(group))
        };
        let group = groups.lines().find_map(one)?.strip_prefix(&self.root).ok()?;
        group.components().all(|c| matches!(c, Component::Normal(_))).then_some(group)
    }
}

/// The smallest quota of the groups of a process and of those above them.
pub fn quota(all: &[Hierarchy], groups: &str) -> Option<Quota> {
    let mut least: Option<Quota> = None;
    for hierarchy in all.iter().filter(|h| h.cpu) {
        let Some(group) = hierarchy.group_in(groups, "cpu") else { continue };
        for above in group.ancestors() {
            let dir = hierarchy.at.join(above);
            let Some((quota_us, period_us)) = limit(&dir, hierarchy.v2) else { continue };
            let less = |old: &Quota| {
                u128::from(quota_us) * u128::from(old.period_us)
                    < u128::from(old.quota_us) * u128::from(period_us)
            };
            if least.as_ref().is_none_or(less) {
                let group = format!("/{}", above.display());
                least = Some(Quota { dir, group, quota_us, period_us, v2: hierarchy.v2 });
            }
        }
    }
    least
}

/// A group's quota and period; None if it has none.
fn limit(dir: &Path, v2: bool) -> Option<(u64, u64)> {
    let (quota, period) = match v2 {
        true => {
            let both = text(&dir.join("cpu.max"))?;
            let (quota, period) = both.split_once(' ')?;
            // The quota is `max` if there is none.
            (quota.parse().ok()?, period.trim().parse().ok()?)
        }
        // The quota is -1 if there is none.
        false => (number(&dir.join("cpu.cfs_quota_us"))?, number(&dir.join("cpu.cfs_period_us"))?),
    };
    (period > 0).then_some((quota, period))
}

impl Quota {
    /// The group's periods so far.
    pub fn throttling(&self) -> Throttling {
        let stat = text(&self.dir.join("cpu.stat")).unwrap_or_default();
        let of = |name: &str| {
            let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
            stat.lines().find_map(value)
        };
        let throttled_us = match self.v2 {
            true => of("throttled_usec"),
            false => of("throttled_time").map(|ns: u64| ns / 1000),
        };
        Throttling { periods: of("nr_periods"), throttled: of("nr_throttled"), throttled_us }
    }
}

/// The smallest memory limit of the groups of a process and of those above them.
pub fn memory_limit(all: &[Hierarchy], groups: &str) -> Option<MemoryLimit> {
    let limits = all.iter().filter(|h| h.memory).flat_map(|hierarchy| {
        let above = hierarchy.group_in(groups, "memory").into_iter().flat_map(Path::ancestors);
        above.filter_map(|group| {
            let (dir, v2) = (hierarchy.at.join(group), hierarchy.v2);
            // `max` without a limit; in version 1, the largest multiple of a page.
            let bytes = number(&dir.join(if v2 { "memory.max" } else { "memory.limit_in_bytes" }))?;
            let group = format!("/{}", group.display());
            (bytes < NO_LIMIT).then_some(MemoryLimit { dir, group, bytes, v2 })
        })
    });
    limits.min_by_key(|limit| limit.bytes)
}

impl MemoryLimit {
    /// Processes of the group that the kernel has killed so far because of a limit.
    pub fn oom_kills(&self) -> Option<u64> {
        let stat = text(&self.dir.join(if self.v2 { "memory.events" } else { "memory.oom_control" }))?;
        stat.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }
}

/// The CPUs of a process's cpuset, of the first hierarchy that says; empty if none does.
pub fn cpuset(all: &[Hierarchy], groups: &str) -> String {
    let of = |hierarchy: &Hierarchy| {
        let group = hierarchy.group_in(groups, "cpuset")?;
        // In version 2, groups above the first one with the controller do not have the file.
        let names: &[&str] = if hierarchy.v2 {
            &["cpuset.cpus.effective"]
        } else {
            &["cpuset.effective_cpus", "cpuset.cpus", "cpus"]
        };
        group
            .ancestors()
            .flat_map(|above| names.iter().map(move |name| above.join(name)))
            .find_map(|file| text(&hierarchy.at.join(file)))
    };
    all.iter().filter(|h| h.cpuset).find_map(of).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (file, content) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, content).expect("a file");
        }
    }

    fn mounted(root: &Path, v2: bool) -> Vec<Hierarchy> {
        let at = root.display();
        hierarchies(&match v2 {
            true => format!("30 23 0:26 / {at} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"),
            false => format!(
                "22 20 0:20 / /proc rw - proc proc rw\n\
                 33 25 0:29 / {at}/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n\
                 34 25 0:30 / {at}/cpuset rw - cgroup cgroup rw,cpuset\n\
                 36 25 0:32 / {at}/memory rw - cgroup cgroup rw,memory\n\
                 35 25 0:31 / {at}/freezer rw - cgroup cgroup rw,freezer\n"
            ),
        })
    }

    #[test]
    fn the_smallest_quota_on_the_way_up_counts() {
        let root = tempfile::tempdir().expect("a directory");
        write(
            root.path(),
            &[
                ("a/cpu.max", "150000 100000\n"),
                ("a/cpu.stat", "usage_usec 5\nnr_periods 40\nnr_throttled 39\nthrottled_usec 123456\n"),
                ("a/b/cpu.max", "max 100000\n"),
                ("a/b/c/cpu.max", "400000 200000\n"),
                ("a/b/cpuset.cpus.effective", "0-2,5\n"),
            ],
        );
        let all = mounted(root.path(), true);
        let quota = quota(&all, "1:name=x:/other\n0::/a/b/c\n").expect("a quota");
        assert_eq!((&*quota.group, quota.quota_us, quota.period_us), ("/a", 150_000, 100_000));
        let told = Throttling { periods: Some(40), throttled: Some(39), throttled_us: Some(123_456) };
        assert_eq!(quota.throttling(), told);
        assert_eq!(cpuset(&all, "0::/a/b/c\n"), "0-2,5");
    }

    #[test]
    fn version_1_has_its_own_files_and_hierarchies() {
        let root = tempfile::tempdir().expect("a directory");
        write(
            root.path(),
            &[
                ("cpu,cpuacct/g/cpu.cfs_quota_us", "50000\n"),
                ("cpu,cpuacct/g/cpu.cfs_period_us", "100000\n"),
                ("cpu,cpuacct/g/cpu.stat", "nr_periods 4\nnr_throttled 3\nthrottled_time 7000999\n"),
                ("cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
                ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
                ("cpuset/s/cpuset.cpus", "1\n"),
                ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/m/memory.limit_in_bytes", "4096000\n"),
                ("memory/m/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"),
                ("memory/m/n/memory.limit_in_bytes", "8192000\n"),
            ],
        );
        let all = mounted(root.path(), false);
        assert_eq!(all.len(), 3, "{all:?}");
        let groups = "5:cpuset:/s\n4:freezer:/f\n3:cpu,cpuacct:/g\n";
        let quota = quota(&all, groups).expect("a quota");
        assert_eq!((&*quota.group, quota.quota_us, quota.period_us), ("/g", 50_000, 100_000));
        let told = Throttling { periods: Some(4), throttled: Some(3), throttled_us: Some(7000) };
        assert_eq!(quota.throttling(), told);
        assert_eq!(cpuset(&all, groups), "1");
        assert_eq!(super::quota(&all, "3:cpu,cpuacct:/\n"), None, "-1 is no quota");
        let limit = memory_limit(&all, "7:memory:/m/n\n").expect("a limit");
        assert_eq!((&*limit.group, limit.bytes, limit.oom_kills()), ("/m", 4_096_000, Some(5)));
        assert_eq!(memory_limit(&all, "7:memory:/\n"), None, "no memory has so much");
    }

    #[test]
    fn a_container_s_mount_shows_a_part_of_the_groups() {
        let root = tempfile::tempdir().expect("a directory");
        write(root.path(), &[("in/cpu.max", "1000 100000\n"), ("cpu.max", "2000 100000\n")]);
        let all = hierarchies(&format!("1 2 0:3 /docker/x {} rw - cgroup2 c rw\n", root.path().display()));
        let of = |groups| quota(&all, groups).map(|q| q.group);
        assert_eq!(of("0::/docker/x/in").as_deref(), Some("/in"));
        assert_eq!(of("0::/docker/x").as_deref(), Some("/"));
        // Of another container, or written to lead elsewhere.
        for outside in ["0::/docker/y", "0::/../x", "0::/docker/x/../../in", "", "0", "0::", "::::"] {
            assert_eq!(of(outside), None, "{outside}");
        }
    }

    #[test]
    fn what_is_not_there_or_damaged_is_unknown() {
        let root = tempfile::tempdir().expect("a directory");
        let all = mounted(root.path(), true);
        for content in ["", "max", "x y", "5", "5 0", "-1 100000", "99999999999999999999999 1"] {
            write(root.path(), &[("a/cpu.max", content)]);
            assert_eq!(quota(&all, "0::/a"), None, "{content}");
        }
        assert_eq!(cpuset(&all, "0::/a"), "");
        write(root.path(), &[("a/cpu.max", "5 10")]);
        assert_eq!(quota(&all, "0::/a").expect("a quota").throttling(), Throttling::default());
        assert_eq!(hierarchies("x - cgroup2\n - \n1 2 3 - cgroup2 a"), []);
    }
}
