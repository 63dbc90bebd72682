//! What the threads of a process tell of themselves: their CPUs, how often they slept, and the CPU time of some.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::proc::StatFields;
use crate::target_state::{cpus, field, text};

/// Maximum number of threads read, and of those named.
const THREADS: usize = 256;
const THREADS_TOLD: usize = 64;

/// The threads of a process.
#[derive(Default)]
pub struct Threads {
    /// Those with another mask than the main thread's.
    pub others: String,
    /// Switches of all threads together; None if one of them cannot be read.
    pub yields: Option<u64>,
    pub preemptions: Option<u64>,
}

/// Of the process with this directory in /proc, whose main thread may run on the CPUs `main`.
pub fn threads(dir: &Path, main: &str) -> Threads {
    let Ok(tasks) = fs::read_dir(dir.join("task")) else { return Threads::default() };
    let tids: Vec<u32> = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect();
    let read = |tid: &u32| text(&dir.join("task").join(tid.to_string()).join("status"));
    let statuses: Vec<(u32, String)> =
        tids.iter().take(THREADS).filter_map(|tid| Some((*tid, read(tid)?))).collect();
    let other = |(tid, status): &(u32, String)| {
        let cpus = cpus(field(status, "Cpus_allowed_list"));
        (!cpus.is_empty() && cpus != main).then(|| format!("{tid}:{cpus}"))
    };
    let of_all = |name: &str| {
        let number = |(_, status): &(u32, String)| field(status, name)?.parse::<u64>().ok();
        let mut each = statuses.iter().map(number);
        each.try_fold(0u64, |sum, one| sum.checked_add(one?)).filter(|_| tids.len() <= THREADS)
    };
    Threads {
        yields: of_all("voluntary_ctxt_switches"),
        preemptions: of_all("nonvoluntary_ctxt_switches"),
        others: statuses.iter().filter_map(other).take(THREADS_TOLD).collect::<Vec<_>>().join(";"),
    }
}

/// CPU time of these threads of a process, as far as they live; None: none of them does.
pub fn cpu_of(pid: u32, tids: &[u32]) -> Option<Duration> {
    let cpu = |tid: &u32| StatFields::read(Path::new(&format!("/proc/{pid}/task/{tid}/stat")))?.cpu();
    tids.iter().filter_map(cpu).reduce(|sum, one| sum + one)
}
