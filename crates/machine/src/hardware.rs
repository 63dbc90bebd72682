//! Facts about this machine for the trace's header, and the placement of the agent itself.

use std::fs;

use rustix::io::Errno;
use rustix::thread::{self, CpuSet, sched_getaffinity, sched_setaffinity};

use common::order;

/// What the header contains about the machine.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    pub kernel: String,
    pub arch: String,
    pub host: String,
    pub cpu_model: String,
    /// `cpu,core,cluster,max_khz,capacity` joined by ';', 0 if unknown.
    pub topology: String,
}

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
    /// On the smallest core if cores differ, otherwise on a CPU that the engine leaves free, if there is one.
    Auto,
    /// Wherever the scheduler puts it.
    Any,
    Cpu(u32),
}

/// Moves this thread there. Returns the CPU it is bound to, None if it is not bound.
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

/// Binds this thread to a CPU.
pub fn bind(cpu: u32) -> std::io::Result<()> {
    run_on(&[cpu])
}

/// Keeps this thread off the CPUs in `busy`, if there are others.
pub fn avoid(busy: &[u32]) {
    let free: Vec<u32> = cpus().iter().map(|c| c.cpu).filter(|c| !busy.contains(c)).collect();
    if !free.is_empty() {
        // If none of them may be used (a cpuset), the affinity is left unchanged.
        let _ = run_on(&free);
    }
}

fn run_on(cpus: &[u32]) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu as usize >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL.into());
        }
        set.set(cpu as usize);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// The settings with which this process was started, and which its children get, whatever the recorder changes for
/// itself: they inherit a thread's CPU affinity and whether it has huge pages.
#[derive(Clone, Copy)]
pub struct InheritedSettings {
    /// None if the kernel has more CPUs than a set holds.
    cpus: Option<CpuSet>,
    huge_pages: bool,
    /// Limit on open descriptors: a recorder raises its own to the maximum. By the C library: rustix takes for granted
    /// that the kernel reports limits.
    files: Option<libc::rlimit>,
}

impl InheritedSettings {
    /// The current settings of this thread.
    pub fn of_this_thread() -> InheritedSettings {
        let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes one rlimit to the given place.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) } == 0;
        InheritedSettings {
            cpus: sched_getaffinity(None).ok(),
            huge_pages: thread::transparent_huge_pages_are_disabled().is_ok_and(|disabled| !disabled),
            files: known.then_some(files),
        }
    }

    /// The same, on these CPUs only.
    ///
    /// # Errors
    /// Those of them that this thread may not use.
    pub fn on(self, cpus: &[u32]) -> Result<InheritedSettings, Vec<u32>> {
        let allowed = |cpu: u32| {
            let cpu = cpu as usize;
            cpu < CpuSet::MAX_CPU && self.cpus.is_none_or(|all| all.is_set(cpu))
        };
        let refused: Vec<u32> = cpus.iter().copied().filter(|cpu| !allowed(*cpu)).collect();
        if !refused.is_empty() {
            return Err(refused);
        }
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu as usize));
        Ok(InheritedSettings { cpus: Some(set), ..self })
    }

    /// The CPUs; None if they are not known.
    pub fn cpus(&self) -> Option<Vec<u32>> {
        let all = self.cpus.as_ref()?;
        Some((0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).map(|cpu| cpu as u32).collect())
    }

    /// Restores them. Plain system calls, safe in a child before its exec.
    pub fn restore(&self) -> std::io::Result<()> {
        if self.huge_pages {
            huge_pages(true);
        }
        if let Some(files) = &self.files {
            // SAFETY: the kernel reads one rlimit. Lowering a limit is never refused.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, files) };
        }
        match &self.cpus {
            Some(cpus) => Ok(sched_setaffinity(None, cpus)?),
            None => Ok(()),
        }
    }
}

/// Allows this process huge pages, or not: in tables that are mostly empty each of them costs 2 MB.
pub fn huge_pages(allowed: bool) {
    // A kernel without huge pages refuses, which is harmless.
    let _ = thread::disable_transparent_huge_pages(!allowed);
}
