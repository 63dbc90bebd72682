//! What a process may use of the machine, and what it has used: affinity, quota, frequencies, memory, page faults.
//! Everything is optional: what cannot be read is left out.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::proc::StatFields;
use common::cpus as cpu_list;
use common::plain::clean;
use pfi::record::{self, StateAt};

use crate::cgroup::{self, Hierarchy, MemoryLimit, Quota};
use crate::threads::{self, Threads};

/// Longest file read, bytes; a longer one is cut.
const LONGEST: u64 = 256 << 10;
/// Maximum number of frequency policies.
const POLICIES: usize = 64;
/// A flag of a thread (include/linux/sched.h, since 2.4).
const PF_EXITING: u64 = 0x4;

/// A small file's text without the line end; None if it is empty, too.
pub(super) fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A file's number.
pub(super) fn number(path: &Path) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// A frequency policy of some CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Policy {
    cpus: String,
    governor: String,
    /// kHz.
    current: Option<u64>,
    limit: Option<u64>,
    hardware: Option<u64>,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadState {
    affinity: String,
    threads: String,
    online: String,
    cpuset: String,
    quota: Option<Quota>,
    memory: Option<MemoryLimit>,
    policies: Vec<Policy>,
    policy_text: String,
    huge_pages: String,
    /// Its numbers; the texts are those above.
    numbers: record::TargetState<'static>,
    usage: record::Usage,
}

/// Where states are read.
pub struct StateReader {
    proc: PathBuf,
    sys: PathBuf,
    hierarchies: Vec<Hierarchy>,
}

impl Default for StateReader {
    fn default() -> Self {
        Self::of(Path::new("/proc"), Path::new("/sys"))
    }
}

impl StateReader {
    fn of(proc: &Path, sys: &Path) -> Self {
        let hierarchies = cgroup::hierarchies(&text(&proc.join("self/mountinfo")).unwrap_or_default());
        Self { proc: proc.to_owned(), sys: sys.to_owned(), hierarchies }
    }

    /// Reads everything but the memory in huge pages, for which the kernel walks through all of it.
    pub fn read(&self, pid: u32) -> ReadState {
        let dir = self.proc.join(pid.to_string());
        let (status, groups) = (text(&dir.join("status")), text(&dir.join("cgroup")));
        let stat = text(&dir.join("stat")).unwrap_or_default();
        // An exiting process still has these files, but with the root group and the machine's CPUs in them.
        let kept = |text: Option<String>| text.filter(|_| lives(&stat)).unwrap_or_default();
        let (status, groups) = (kept(status), kept(groups));
        let memory = text(&self.proc.join("meminfo")).unwrap_or_default();
        let cpu = self.sys.join("devices/system/cpu");
        let affinity = cpus(field(&status, "Cpus_allowed_list"));
        let (minor_faults, major_faults) = faults(&stat).unzip();
        let policies = policies(&cpu.join("cpufreq"));
        let threads =
            if affinity.is_empty() { Threads::default() } else { threads::threads(&dir, &affinity) };
        let mut state = ReadState {
            threads: threads.others,
            affinity,
            online: cpus(text(&cpu.join("online")).as_deref()),
            cpuset: cpus(Some(&cgroup::cpuset(&self.hierarchies, &groups))),
            quota: cgroup::quota(&self.hierarchies, &groups),
            memory: cgroup::memory_limit(&self.hierarchies, &groups),
            policy_text: policies.iter().map(Policy::text).collect::<Vec<_>>().join(";"),
            policies,
            huge_pages: huge_page_mode(&self.sys.join("kernel/mm/transparent_hugepage/enabled")),
            numbers: record::TargetState {
                resident: bytes(&status, "VmRSS"),
                locked: bytes(&status, "VmLck"),
                swapped: bytes(&status, "VmSwap"),
                mem_total: bytes(&memory, "MemTotal"),
                mem_available: bytes(&memory, "MemAvailable"),
                minor_faults,
                major_faults,
                ..record::TargetState::default()
            },
            usage: record::Usage {
                cpu_us: StatFields::parse(stat.as_bytes()).and_then(|stat| micros(stat.cpu()?)),
                yields: threads.yields,
                preemptions: threads.preemptions,
                anonymous: bytes(&status, "RssAnon"),
                files: bytes(&status, "RssFile"),
                shared: bytes(&status, "RssShmem"),
                swapped: bytes(&status, "VmSwap"),
                ..record::Usage::default()
            },
        };
        state.count_in_groups();
        state
    }

    /// Reads the memory in huge pages. The kernel walks through all pages of the process, during which the process may
    /// have to wait to map memory: not to be called often.
    pub fn read_huge(&self, pid: u32, state: &mut ReadState) {
        let Some(all) = text(&self.proc.join(pid.to_string()).join("smaps_rollup")) else { return };
        state.numbers.anon_huge = bytes(&all, "AnonHugePages");
        state.numbers.file_huge = bytes(&all, "FilePmdMapped");
    }
}

/// [`ReadState::limits`] of this process, which the commands that it starts inherit.
pub fn limits_here() -> String {
    StateReader::default().read(std::process::id()).limits()
}

impl ReadState {
    /// Reads what the groups with the limits count.
    fn count_in_groups(&mut self) {
        let n = &mut self.numbers;
        if let Some(memory) = &self.memory {
            (n.memory_limit, n.oom_kills) = (Some(memory.bytes), memory.oom_kills());
        }
        let Some(quota) = &self.quota else { return };
        let now = quota.throttling();
        (n.quota_us, n.period_us) = (Some(quota.quota_us), Some(quota.period_us));
        (n.periods, n.throttled, n.throttled_us) = (now.periods, now.throttled, now.throttled_us);
    }

    /// Whether a setting differs, not only a count.
    pub fn differs(&self, other: &ReadState) -> bool {
        let limit = |s: &ReadState| s.quota.as_ref().map(|q| (q.group.clone(), q.quota_us, q.period_us));
        let memory = |s: &ReadState| s.memory.as_ref().map(|m| (m.group.clone(), m.bytes));
        let policies = |s: &ReadState| -> Vec<Policy> {
            s.policies.iter().map(|p| Policy { current: None, ..p.clone() }).collect()
        };
        let texts =
            |s: &ReadState| [&s.affinity, &s.threads, &s.online, &s.cpuset, &s.huge_pages].map(String::clone);
        texts(self) != texts(other)
            || limit(self) != limit(other)
            || memory(self) != memory(other)
            || policies(self) != policies(other)
    }

    /// Takes from an earlier reading what can no longer be read as the process has ended. What its groups count is read
    /// once more: they may still be there.
    pub fn fill(&mut self, old: &ReadState) {
        let gone = self.affinity.is_empty();
        if gone {
            self.affinity.clone_from(&old.affinity);
            self.threads.clone_from(&old.threads);
        }
        if self.cpuset.is_empty() {
            self.cpuset.clone_from(&old.cpuset);
        }
        let (n, before) = (&mut self.numbers, &old.numbers);
        for (now, before) in [
            (&mut n.resident, before.resident),
            (&mut n.locked, before.locked),
            (&mut n.swapped, before.swapped),
            (&mut n.anon_huge, before.anon_huge),
            (&mut n.file_huge, before.file_huge),
            (&mut n.minor_faults, before.minor_faults),
            (&mut n.major_faults, before.major_faults),
        ] {
            *now = now.or(before);
        }
        if gone {
            (self.quota, self.memory) = (old.quota.clone(), old.memory.clone());
            self.count_in_groups();
            let n = &mut self.numbers;
            n.oom_kills = n.oom_kills.or(before.oom_kills);
            if n.periods.is_none() {
                (n.periods, n.throttled, n.throttled_us) =
                    (before.periods, before.throttled, before.throttled_us);
            }
        }
    }

    /// Memory that the process may use, bytes: the machine's, or the limit of its cgroup if that is less.
    pub fn usable_memory(&self) -> Option<u64> {
        self.numbers.mem_total.into_iter().chain(self.numbers.memory_limit).min()
    }

    /// What keeps the process from using all of its machine: its CPUs, and the quota and memory limit of its cgroup.
    /// Empty: nothing that can be read.
    pub fn limits(&self) -> String {
        let mut out = Vec::new();
        // The mask usually contains CPUs that the machine could have, and has not.
        let listed = |list: &str| cpu_list::parse(list).filter(|cpus| !cpus.is_empty());
        if let (Some(mask), Some(online)) = (listed(&self.affinity), listed(&self.online))
            && !cpu_list::within(&online, &mask)
        {
            let usable = cpu_list::ranges(online.into_iter().filter(|cpu| mask.contains(cpu)));
            out.push(format!("CPUs {usable} of {}", self.online));
        }
        if let Some(q) = &self.quota {
            let cpus = q.quota_us as f64 / q.period_us as f64;
            out.push(format!("time of {cpus:.2} CPUs by the quota of cgroup {}", q.group));
        }
        if let Some(m) = &self.memory {
            let mb = m.bytes as f64 / 1e6;
            out.push(format!("{mb:.1} MB of memory by the limit of cgroup {}", m.group));
        }
        out.join(", ")
    }

    /// That the kernel has killed a process because of the group's memory limit since an earlier reading; None: it has
    /// not, or it is not known.
    pub fn killed_since(&self, first: &ReadState) -> Option<String> {
        let (n, memory) = (&self.numbers, self.memory.as_ref()?);
        n.oom_kills?.checked_sub(first.numbers.oom_kills?).filter(|kills| *kills > 0)?;
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let last = n.resident.map(|bytes| format!("; it last had {:.1} MB", mb(bytes))).unwrap_or_default();
        Some(format!(
            "the kernel has killed a process of cgroup {}, whose memory limit is {:.1} MB{last}: raise the limit, or \
             use a smaller model or context",
            memory.group,
            mb(memory.bytes)
        ))
    }

    /// The record.
    pub fn record(&self, pid: u32, at: StateAt, mono_ns: u64) -> record::TargetState<'_> {
        record::TargetState {
            pid,
            at,
            mono_ns,
            affinity: &self.affinity,
            threads: &self.threads,
            online: &self.online,
            cpuset: &self.cpuset,
            quota_group: self.quota.as_ref().map_or("", |quota| &quota.group),
            policies: &self.policy_text,
            huge_pages: &self.huge_pages,
            memory_group: self.memory.as_ref().map_or("", |memory| &memory.group),
            ..self.numbers
        }
    }

    /// What it uses, at the time `t`, and what these of its threads did; None: it is exiting, or gone.
    pub fn usage(&self, pid: u32, t: i64, team: &[u32]) -> Option<record::Usage> {
        let team_us = threads::cpu_of(pid, team).and_then(micros);
        (!self.affinity.is_empty()).then_some(record::Usage { pid, t, team_us, ..self.usage })
    }
}

impl Policy {
    fn text(&self) -> String {
        let khz = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
        format!(
            "{}:{}:{}:{}:{}",
            self.cpus,
            self.governor,
            khz(self.current),
            khz(self.limit),
            khz(self.hardware)
        )
    }
}

/// The value of a line `name: value`.
pub(super) fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// The same in kB, as bytes.
fn bytes(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A list of CPUs as the kernel writes it; empty if it is none.
pub(super) fn cpus(text: Option<&str>) -> String {
    let text = text.unwrap_or_default().trim();
    let is_list = text.bytes().all(|b| b.is_ascii_digit() || b == b',' || b == b'-');
    if is_list { text.to_owned() } else { String::new() }
}

/// A name in a list: without what separates its fields.
fn word(text: Option<String>) -> String {
    text.map(|t| clean(&t).replace([':', ';'], "_")).unwrap_or_default()
}

/// Minor and major page faults of a process so far; `None` if it cannot be read.
pub fn faults_of(pid: u32) -> Option<(u64, u64)> {
    faults(&text(Path::new(&format!("/proc/{pid}/stat")))?)
}

/// A field of proc_pid_stat(5), by its number there.
fn stat_field<N: FromStr>(stat: &str, number: usize) -> Option<N> {
    StatFields::parse(stat.as_bytes())?.number(number)
}

/// Minor and major page faults.
fn faults(stat: &str) -> Option<(u64, u64)> {
    Some((stat_field(stat, 10)?, stat_field(stat, 12)?))
}

/// Whether the process, at least its main thread, has not begun to exit.
fn lives(stat: &str) -> bool {
    stat_field(stat, 9).is_some_and(|flags: u64| flags & PF_EXITING == 0)
}

fn micros(time: Duration) -> Option<u64> {
    time.as_micros().try_into().ok()
}

/// The mode in brackets, as in `always [madvise] never`.
fn huge_page_mode(path: &Path) -> String {
    let all = text(path).unwrap_or_default();
    let mode = all.split_once('[').and_then(|(_, rest)| Some(rest.split_once(']')?.0));
    clean(mode.unwrap_or_default())
}

/// The frequency policies, by their first CPU.
fn policies(dir: &Path) -> Vec<Policy> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let numbered = |name: &str| name.strip_prefix("policy")?.parse::<u32>().ok();
    let mut all: Vec<u32> = entries.filter_map(|e| numbered(e.ok()?.file_name().to_str()?)).collect();
    common::order::by_key(&mut all, |n| ((*n).into(), 0));
    let policy = |n: u32| {
        let at = dir.join(format!("policy{n}"));
        let khz = |file| number(&at.join(file));
        Policy {
            cpus: cpus(text(&at.join("related_cpus")).map(|list| listed(&list)).as_deref()),
            governor: word(text(&at.join("scaling_governor"))),
            current: khz("scaling_cur_freq"),
            limit: khz("scaling_max_freq"),
            hardware: khz("cpuinfo_max_freq"),
        }
    };
    all.into_iter().take(POLICIES).map(policy).collect()
}

/// Numbers separated by spaces, as ranges.
fn listed(list: &str) -> String {
    cpu_list::ranges(list.split_ascii_whitespace().filter_map(|n| n.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (file, content) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, content).expect("a file");
        }
    }

    /// A board: process 7 on CPUs 0 and 1 of four, in a group with a quota.
    fn board(root: &Path) -> StateReader {
        let group = root.join("cgroup").display().to_string();
        write(
            root,
            &[
                ("proc/self/mountinfo", &format!("1 2 0:3 / {group} rw - cgroup2 c rw\n")),
                ("proc/meminfo", "MemTotal:        8000 kB\nMemAvailable:    1000 kB\n"),
                (
                    "proc/7/status",
                    "Name:\tx\nVmLck:\t       0 kB\nVmRSS:\t    3000 kB\nVmSwap:\t 4 kB\nRssAnon:\t 900 kB\nRssFile:\t 2100 kB\nCpus_allowed_list:\t0-1\n",
                ),
                ("proc/7/stat", "7 (a ) 5) S 1 7 7 0 -1 4194304 2000 0 30 0 17 5 0 0 20 0 9 0 81234 1 2\n"),
                ("proc/7/cgroup", "0::/g\n"),
                (
                    "proc/7/smaps_rollup",
                    "0-1 ---p 0 0 0 [rollup]\nRss: 3000 kB\nAnonHugePages:      2048 kB\nFilePmdMapped:         0 kB\n",
                ),
                (
                    "proc/7/task/7/status",
                    "Cpus_allowed_list:\t0-1\nvoluntary_ctxt_switches:\t20\nnonvoluntary_ctxt_switches:\t3\n",
                ),
                ("proc/7/task/8/status", "Cpus_allowed_list:\t1\nvoluntary_ctxt_switches:\t5\n"),
                ("cgroup/g/cpu.max", "50000 100000\n"),
                ("cgroup/g/cpu.stat", "nr_periods 10\nnr_throttled 9\nthrottled_usec 77\n"),
                ("cgroup/g/memory.max", "max\n"),
                ("cgroup/memory.max", "4096000\n"),
                ("cgroup/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
                ("sys/devices/system/cpu/online", "0-3\n"),
                ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
                ("sys/devices/system/cpu/cpufreq/policy2/related_cpus", "2 3\n"),
                ("sys/devices/system/cpu/cpufreq/policy2/scaling_governor", "schedutil\n"),
                ("sys/devices/system/cpu/cpufreq/policy2/scaling_cur_freq", "600000\n"),
                ("sys/devices/system/cpu/cpufreq/policy2/scaling_max_freq", "1200000\n"),
                ("sys/devices/system/cpu/cpufreq/policy2/cpuinfo_max_freq", "2400000\n"),
                ("sys/devices/system/cpu/cpufreq/policy0/related_cpus", "0 1\n"),
            ],
        );
        StateReader::of(&root.join("proc"), &root.join("sys"))
    }

    #[test]
    fn a_board_s_state_is_what_its_files_say() {
        let root = tempfile::tempdir().expect("a directory");
        let reader = board(root.path());
        let mut state = reader.read(7);
        assert_eq!(state.numbers.anon_huge, None, "not asked for");
        reader.read_huge(7, &mut state);
        let expected = record::TargetState {
            pid: 7,
            at: StateAt::Start,
            mono_ns: 5,
            affinity: "0-1",
            threads: "8:1",
            online: "0-3",
            cpuset: "",
            quota_us: Some(50_000),
            period_us: Some(100_000),
            quota_group: "/g",
            periods: Some(10),
            throttled: Some(9),
            throttled_us: Some(77),
            policies: "0-1::::;2-3:schedutil:600000:1200000:2400000",
            huge_pages: "madvise",
            resident: Some(3000 << 10),
            anon_huge: Some(2048 << 10),
            file_huge: Some(0),
            locked: Some(0),
            swapped: Some(4096),
            mem_total: Some(8000 << 10),
            mem_available: Some(1000 << 10),
            minor_faults: Some(2000),
            major_faults: Some(30),
            memory_limit: Some(4_096_000),
            memory_group: "/",
            oom_kills: Some(2),
        };
        assert_eq!(state.record(7, StateAt::Start, 5), expected);
        let used = record::Usage {
            pid: 7,
            t: 5,
            cpu_us: Some(220_000),
            team_us: None,
            yields: Some(25),
            preemptions: None,
            anonymous: Some(900 << 10),
            files: Some(2100 << 10),
            shared: None,
            swapped: Some(4096),
        };
        assert_eq!(state.usage(7, 5, &[]), Some(used), "what a thread does not tell is not known of all");
        let limits = "CPUs 0-1 of 0-3, time of 0.50 CPUs by the quota of cgroup /g, 4.1 MB of memory by the limit of \
            cgroup /";
        assert_eq!(state.limits(), limits);
        state.affinity = "0-127".into();
        assert!(state.limits().starts_with("time of "), "a mask with all CPUs: {}", state.limits());
    }

    #[test]
    fn what_is_not_there_is_absent_and_no_zero() {
        let root = tempfile::tempdir().expect("a directory");
        let nothing = StateReader::of(&root.path().join("proc"), &root.path().join("sys"));
        let mut state = nothing.read(7);
        assert_eq!(state.limits(), "");
        nothing.read_huge(7, &mut state);
        assert_eq!(state.record(0, StateAt::Start, 0), record::TargetState::default());
        assert_eq!(state.usage(0, 0, &[]), None);
        // Files with anything in them.
        let reader = board(root.path());
        for file in ["status", "stat", "cgroup", "smaps_rollup", "task/8/status"] {
            for content in
                ["", "\0\u{fffd}\n)", "Cpus_allowed_list:\t0-1;x\nVmRSS: 9 MB\nVmLck: -1 kB", ":::", ")"]
            {
                write(root.path(), &[(&format!("proc/7/{file}"), content)]);
                reader.read_huge(7, &mut reader.read(7));
            }
        }
        let broken = reader.read(7);
        assert_eq!((&*broken.affinity, broken.numbers.resident, broken.numbers.locked), ("", None, None));
    }

    #[test]
    fn a_setting_is_a_change_and_a_count_is_none() {
        let root = tempfile::tempdir().expect("a directory");
        let reader = board(root.path());
        let first = reader.read(7);
        write(
            root.path(),
            &[
                ("sys/devices/system/cpu/cpufreq/policy2/scaling_cur_freq", "700000\n"),
                ("cgroup/g/cpu.stat", "nr_periods 20\nnr_throttled 19\nthrottled_usec 99\n"),
            ],
        );
        assert!(!reader.read(7).differs(&first));
        for (file, content) in [
            ("sys/devices/system/cpu/cpufreq/policy2/scaling_max_freq", "700000\n"),
            ("cgroup/g/cpu.max", "60000 100000\n"),
            ("proc/7/task/8/status", "Cpus_allowed_list:\t0\n"),
            ("sys/devices/system/cpu/online", "0-2\n"),
        ] {
            let before = reader.read(7);
            write(root.path(), &[(file, content)]);
            assert!(reader.read(7).differs(&before), "{file}");
        }
    }

    #[test]
    fn of_an_ended_process_the_last_is_kept() {
        let root = tempfile::tempdir().expect("a directory");
        let reader = board(root.path());
        let mut last = reader.read(7);
        reader.read_huge(7, &mut last);
        write(root.path(), &[("cgroup/g/cpu.stat", "nr_periods 20\nnr_throttled 19\nthrottled_usec 99\n")]);
        write(root.path(), &[("cgroup/memory.events", "oom_kill 3\n")]);
        let counted = record::TargetState {
            periods: Some(20),
            throttled: Some(19),
            throttled_us: Some(99),
            oom_kills: Some(3),
            ..last.record(7, StateAt::End, 9)
        };
        // First as a zombie, which has the root group in version 1.
        let zombie = "7 (a ) 5) Z 1 7 7 0 -1 4228100 2000 0 30 0 17 5 0 0 20 0 1 0 81234 0 0\n";
        write(
            root.path(),
            &[
                ("proc/7/stat", zombie),
                ("proc/7/cgroup", "0::/\n"),
                ("proc/7/status", "Name:\tx\nState:\tZ (zombie)\nCpus_allowed_list:\t0-3\n"),
            ],
        );
        for gone in [false, true] {
            if gone {
                fs::remove_dir_all(root.path().join("proc/7")).expect("removed");
            }
            let mut end = reader.read(7);
            end.fill(&last);
            assert_eq!(end.record(7, StateAt::End, 9), counted, "gone: {gone}");
            let killed = end.killed_since(&last).expect("one more");
            assert!(
                killed.contains("cgroup /, whose memory limit is 4.1 MB; it last had 3.1 MB"),
                "{killed}"
            );
            assert_eq!(end.killed_since(&end), None);
        }
    }

    #[test]
    fn this_process_has_a_state() {
        let reader = StateReader::default();
        let state = reader.read(std::process::id());
        assert!(!state.affinity.is_empty() && !state.online.is_empty(), "{state:?}");
        assert!(state.numbers.resident > Some(0) && state.numbers.minor_faults.is_some(), "{state:?}");
    }
}
