//! On which CPUs the threads of other processes may run (sched_setaffinity(2)). By the C library: rustix knows 1024 CPUs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cgroup::{self, Hierarchy};
use crate::target_state::text;
use common::cpus;

/// Bytes of a set: for as many CPUs as a kernel can have.
const BYTES: usize = (cpus::HIGHEST as usize + 1) / 8;
/// How often a process's threads are listed until no new one is among them.
const PASSES: usize = 4;

/// A set of CPUs as the kernel takes it; aligned as it wants.
#[repr(C, align(8))]
struct Set([u8; BYTES]);

/// The CPUs on which a thread may run, sorted.
///
/// # Errors
/// There is no such thread.
pub fn of_thread(tid: u32) -> io::Result<Vec<u32>> {
    let mut set = Set([0; BYTES]);
    // SAFETY: the kernel writes at most the stated number of bytes.
    let n =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid as libc::pid_t, BYTES, set.0.as_mut_ptr()) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let is_set = |cpu: &u32| set.0[*cpu as usize / 8] & 1 << (cpu % 8) != 0;
    Ok((0..(8 * n.min(BYTES)) as u32).filter(is_set).collect())
}

/// Lets a thread run on these CPUs only; None: on all that its cpuset has, as if nobody had ever asked.
///
/// # Errors
/// There is no such thread, it is another user's and CAP_SYS_NICE is missing, or none of the CPUs is in its cpuset and
/// online.
pub fn set_thread(tid: u32, cpus: Option<&[u32]>) -> io::Result<()> {
    let mut set = Set([if cpus.is_none() { 0xff } else { 0 }; BYTES]);
    for &cpu in cpus.unwrap_or_default() {
        *set.0.get_mut(cpu as usize / 8).ok_or(io::ErrorKind::InvalidInput)? |= 1 << (cpu % 8);
    }
    // SAFETY: the kernel reads the stated number of bytes.
    let done =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid as libc::pid_t, BYTES, set.0.as_ptr()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The threads of a process; none if it has ended.
pub fn threads(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// As [`set_thread`], for all threads of a process, also those that are started meanwhile. A thread that has ended is no
/// error. Returns how many there are.
///
/// # Errors
/// One of them is refused; others may be set.
pub fn set_process(pid: u32, cpus: Option<&[u32]>) -> io::Result<usize> {
    let mut done: Vec<u32> = Vec::new();
    for _ in 0..PASSES {
        // What a thread that is set starts from now on has its CPUs.
        let new: Vec<u32> = threads(pid).into_iter().filter(|tid| !done.contains(tid)).collect();
        if new.is_empty() {
            break;
        }
        for tid in new {
            match set_thread(tid, cpus) {
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                set => set?,
            }
            done.push(tid);
        }
    }
    Ok(done.len())
}

/// The CPUs of each thread of a process.
pub fn of_process(pid: u32) -> Vec<(u32, Vec<u32>)> {
    threads(pid).into_iter().filter_map(|tid| Some((tid, of_thread(tid).ok()?))).collect()
}

/// Which CPUs processes may have: those of their cpuset that are online.
pub struct AllowedCpus {
    proc: PathBuf,
    online: PathBuf,
    hierarchies: Vec<Hierarchy>,
}

impl Default for AllowedCpus {
    fn default() -> Self {
        AllowedCpus::of(Path::new("/proc"), Path::new("/sys"))
    }
}

impl AllowedCpus {
    fn of(proc: &Path, sys: &Path) -> Self {
        let hierarchies = cgroup::hierarchies(&text(&proc.join("self/mountinfo")).unwrap_or_default());
        Self { proc: proc.to_owned(), online: sys.join("devices/system/cpu/online"), hierarchies }
    }

    /// The CPUs that a process may have, sorted; None: not known.
    pub fn of_process(&self, pid: u32) -> Option<Vec<u32>> {
        let online = cpus::parse(&text(&self.online)?)?;
        let groups = self.groups(pid)?;
        match cgroup::cpuset(&self.hierarchies, &groups).as_str() {
            "" => Some(online),
            set => {
                let set = cpus::parse(set)?;
                Some(online.into_iter().filter(|cpu| set.binary_search(cpu).is_ok()).collect())
            }
        }
    }

    /// The groups of a process: none before any hierarchy is mounted, and none on a kernel without cgroups, which has no
    /// such file. None: there is no such process.
    fn groups(&self, pid: u32) -> Option<String> {
        let process = self.proc.join(pid.to_string());
        text(&process.join("cgroup")).or_else(|| process.join("stat").exists().then(String::new))
    }

    /// Its CPU quota as a number of CPUs, the time for which its group was throttled so far (µs), and the group; None:
    /// there is no quota.
    pub fn quota(&self, pid: u32) -> Option<(f64, Option<u64>, String)> {
        let groups = self.groups(pid)?;
        let quota = cgroup::quota(&self.hierarchies, &groups)?;
        let cpus = quota.quota_us as f64 / quota.period_us as f64;
        Some((cpus, quota.throttling().throttled_us, quota.group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_set_and_set_free() {
        let before = of_thread(0).expect("this thread");
        assert!(!before.is_empty() && before.is_sorted());
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = child.id();
        let one = [before[before.len() - 1]];
        assert_eq!(set_process(pid, Some(&one)).expect("set"), 1);
        assert_eq!(of_process(pid), [(pid, one.to_vec())]);
        assert_eq!(set_process(pid, None).expect("set free"), 1);
        assert!(cpus::within(&before, &of_thread(pid).expect("alive")));
        assert!(set_thread(pid, Some(&[cpus::HIGHEST])).is_err() && set_thread(pid, Some(&[9999])).is_err());
        child.kill().and_then(|()| child.wait()).expect("killed");
        assert_eq!(set_process(pid, None).expect("nothing is left"), 0);
        assert!(of_thread(pid).is_err() && of_process(pid).is_empty());
    }

    #[test]
    fn allowed_are_those_of_the_cpuset_that_are_online() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, what: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("one above")).expect("a directory");
            fs::write(path, what).expect("written");
        };
        let at = dir.path().display();
        write("proc/self/mountinfo", &format!("1 2 0:3 / {at}/cg rw - cgroup2 c rw\n"));
        write("proc/7/cgroup", "0::/a\n");
        write("sys/devices/system/cpu/online", "0-2,5\n");
        let of = || AllowedCpus::of(&dir.path().join("proc"), &dir.path().join("sys"));
        assert_eq!(of().of_process(7), Some(vec![0, 1, 2, 5]));
        write("cg/a/cpuset.cpus.effective", "2-7\n");
        assert_eq!(of().of_process(7), Some(vec![2, 5]));
        assert_eq!(of().quota(7), None);
        write("cg/a/cpu.max", "150000 100000\n");
        write("cg/a/cpu.stat", "throttled_usec 5\n");
        assert_eq!(of().quota(7), Some((1.5, Some(5), "/a".to_owned())));
        write("cg/a/cpuset.cpus.effective", "x\n");
        assert_eq!((of().of_process(7), of().of_process(8)), (None, None));
    }

    #[test]
    fn without_cgroups_all_that_are_online_are_allowed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (proc, sys) = (dir.path().join("proc"), dir.path().join("sys"));
        for process in ["self", "7", "8"] {
            fs::create_dir_all(proc.join(process)).expect("a directory");
        }
        fs::create_dir_all(sys.join("devices/system/cpu")).expect("a directory");
        fs::write(sys.join("devices/system/cpu/online"), "0-3\n").expect("written");
        let of = |pid| AllowedCpus::of(&proc, &sys).of_process(pid);
        // No hierarchy is mounted yet: the file is empty.
        fs::write(proc.join("7/cgroup"), "").expect("written");
        assert_eq!(of(7), None, "it has ended");
        for process in ["7/stat", "8/stat"] {
            fs::write(proc.join(process), "x").expect("written");
        }
        assert_eq!((of(7), of(8)), (Some(vec![0, 1, 2, 3]), Some(vec![0, 1, 2, 3])));
        assert_eq!((of(9), AllowedCpus::of(&proc, &sys).quota(8)), (None, None));
    }
}
