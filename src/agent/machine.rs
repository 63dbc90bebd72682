//! Facts about this machine for the trace's header, and where the agent itself runs. Uses nothing of this crate.

use std::fs;

use crate::order;

/// What the header says of the machine.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    pub kernel: String,
    pub arch: String,
    pub host: String,
    pub cpu_model: String,
    /// `cpu,core,cluster,max_khz,capacity` joined by ';', 0 where the machine does not say.
    pub topology: String,
}

/// Reads them.
pub fn read() -> Machine {
    let kernel = |name: &str| {
        fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default().trim().to_owned()
    };
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu_field = |name: &str| {
        let line = cpuinfo.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let topology: Vec<String> = cpus()
        .iter()
        .map(|c| format!("{},{},{},{},{}", c.cpu, c.core, c.cluster, c.max_khz, c.capacity))
        .collect();
    Machine {
        kernel: kernel("osrelease"),
        arch: std::env::consts::ARCH.to_owned(),
        host: kernel("hostname"),
        cpu_model: cpu_field("model name")
            .or_else(|| cpu_field("Hardware"))
            .or_else(|| cpu_field("CPU part").map(|part| format!("Arm part {part}")))
            .unwrap_or_default(),
        topology: topology.join(";"),
    }
}

struct Cpu {
    cpu: u32,
    core: u64,
    cluster: u64,
    max_khz: u64,
    capacity: u64,
}

fn cpus() -> Vec<Cpu> {
    let dir = "/sys/devices/system/cpu";
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut all: Vec<Cpu> = entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.strip_prefix("cpu")?.parse().ok())
        .map(|cpu: u32| {
            let number = |file: &str| {
                fs::read_to_string(format!("{dir}/cpu{cpu}/{file}"))
                    .ok()
                    .and_then(|t| t.trim().parse::<u64>().ok())
            };
            Cpu {
                cpu,
                core: number("topology/core_id").unwrap_or(0),
                cluster: number("topology/cluster_id")
                    .or_else(|| number("topology/physical_package_id"))
                    .unwrap_or(0),
                max_khz: number("cpufreq/cpuinfo_max_freq").unwrap_or(0),
                capacity: number("cpu_capacity").unwrap_or(0),
            }
        })
        .collect();
    order::by_key(&mut all, |c| (c.cpu.into(), 0));
    all
}

/// Where the agent itself runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentCpu {
    /// On the smallest core where cores differ, else on a CPU that the engine leaves free, if there is one.
    Auto,
    /// Wherever the scheduler puts it.
    Any,
    Cpu(u32),
}

/// Moves this thread there. Gives the CPU it is bound to, None when it is not bound.
pub fn settle(wish: AgentCpu) -> std::io::Result<Option<u32>> {
    let cpu = match wish {
        AgentCpu::Any => return Ok(None),
        AgentCpu::Cpu(cpu) => cpu,
        AgentCpu::Auto => {
            let all = cpus();
            let least = all.iter().map(|c| (c.capacity, c.max_khz)).min();
            let most = all.iter().map(|c| (c.capacity, c.max_khz)).max();
            match all.iter().find(|c| least != most && Some((c.capacity, c.max_khz)) == least) {
                Some(c) => c.cpu,
                None => return Ok(None),
            }
        }
    };
    bind(cpu).map(|()| Some(cpu)).or_else(|e| if wish == AgentCpu::Auto { Ok(None) } else { Err(e) })
}

/// Keeps this thread to a CPU.
pub fn bind(cpu: u32) -> std::io::Result<()> {
    run_on(&[cpu])
}

/// Keeps this thread off the CPUs in `busy`, if that leaves it any.
pub fn avoid(busy: &[u32]) {
    let free: Vec<u32> = cpus().iter().map(|c| c.cpu).filter(|c| !busy.contains(c)).collect();
    if !free.is_empty() {
        // Where none of them may be used (a cpuset), the scheduler's choice stays.
        let _ = run_on(&free);
    }
}

fn run_on(cpus: &[u32]) -> std::io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is an empty set; CPU_SET is given an index that it holds.
    let set = unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        for &cpu in cpus {
            if cpu as usize >= 8 * size_of::<libc::cpu_set_t>() {
                return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
            }
            libc::CPU_SET(cpu as usize, &mut set);
        }
        set
    };
    keep_to(&set)
}

/// What this process was started with, and its children are to have, whatever the recorder takes for itself: they inherit
/// the CPUs that a thread keeps to, and that it has no huge pages.
#[derive(Clone, Copy)]
pub struct Origin {
    /// None where the kernel has more CPUs than a set of the C library holds.
    cpus: Option<libc::cpu_set_t>,
    huge_pages: bool,
    /// How many descriptors it may have: a recorder takes all that it can get.
    files: Option<libc::rlimit>,
}

impl Origin {
    /// As it is for this thread now.
    pub fn of_this_thread() -> Origin {
        // SAFETY: the kernel fills the set that it is given, of the size as said; the other call only asks.
        unsafe {
            let mut set = std::mem::zeroed::<libc::cpu_set_t>();
            let got = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
            let disabled = libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0);
            let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            let known = libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0;
            Origin {
                cpus: (got == 0).then_some(set),
                huge_pages: disabled == 0,
                files: known.then_some(files),
            }
        }
    }

    /// Makes it so again. Plain system calls, fit for a child before its exec.
    pub fn restore(&self) -> std::io::Result<()> {
        if self.huge_pages {
            huge_pages(true);
        }
        if let Some(files) = &self.files {
            // SAFETY: the kernel reads one rlimit. Less than a process has is never refused.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, files) };
        }
        self.cpus.as_ref().map_or(Ok(()), keep_to)
    }
}

/// Allows this process huge pages, or not: in tables that are mostly empty each of them costs 2 MB.
pub fn huge_pages(allowed: bool) {
    // SAFETY: changes how later pages are had, none that is there; a kernel without huge pages refuses, and may.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(!allowed), 0, 0, 0) };
}

fn keep_to(set: &libc::cpu_set_t) -> std::io::Result<()> {
    // SAFETY: the set is as long as said, and only read.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
