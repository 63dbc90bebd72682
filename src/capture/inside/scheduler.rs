//! What the kernel tells of the recorded threads beside the library: all, if it may be watched by BPF; of processes of
//! one's own, when they left a CPU and came back; else only sums.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::sums::Sums;
use crate::capture::bpf::Bpf;
use crate::capture::event::{self, Event};
use crate::capture::perf::switches::Switches;
use crate::capture::skel::types::ev_kind;
use crate::capture::source::{CaptureOptions, EventStats, FeatureStatus, Sink, Source};
use machine::diagnose::{Act, KernelError};
use machine::kernel::btf::Btf;
use pfi::record::Availability;

/// What a recording from inside lacks, for doctor and the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// The kernel's scheduler may be watched.
    All,
    /// Only the target's own switches.
    Own,
    Nothing,
}

impl Beside {
    /// `kernel`: whether the kernel's scheduler may be watched.
    pub fn of(kernel: bool) -> Beside {
        match kernel {
            true => Beside::All,
            false if Switches::offered().is_ok() => Beside::Own,
            false => Beside::Nothing,
        }
    }

    pub fn lacks(self) -> &'static str {
        match self {
            Beside::All => "ops have no hardware counters",
            Beside::Own => {
                "when threads were preempted or slept is known; who else took the CPU, what they slept for and when they were \
                 woken is not, nor hardware counters"
            }
            Beside::Nothing => {
                "when threads waited for a CPU, and who else took it, is not known, only sums; nor hardware counters"
            }
        }
    }
}

/// The scheduler beside the library.
pub struct Scheduler {
    way: Way,
    sums: Sums,
}

enum Way {
    Kernel(Box<KernelScheduler>),
    /// With the reason why not the kernel's.
    Own(Box<Switches>, String),
    None(String),
}

/// A source without probes, of whose events only these are kept.
struct KernelScheduler {
    source: Bpf,
    /// Events that have arrived, one after the other.
    events: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl KernelScheduler {
    fn new(options: CaptureOptions, btf: Option<Btf>) -> KernelScheduler {
        let events = Rc::<RefCell<Vec<Vec<u8>>>>::default();
        let to = events.clone();
        let sink: Sink = Rc::new(RefCell::new(move |bytes: &[u8]| {
            if let Some((_, Event::OffCpuEvent(_))) = event::parse(bytes) {
                to.borrow_mut().push(bytes.to_vec());
            }
        }));
        KernelScheduler { source: Bpf::new(options, btf, None, sink), events }
    }
}

impl Scheduler {
    /// `kernel`: whether the kernel's scheduler may be watched. Err says what is missing.
    pub fn new(options: CaptureOptions, btf: Option<Btf>, kernel: Result<(), String>) -> Scheduler {
        let way = match kernel {
            Ok(()) => Way::Kernel(Box::new(KernelScheduler::new(options, btf))),
            Err(missing) => Way::Own(Box::default(), missing),
        };
        Scheduler { way, sums: Sums::default() }
    }

    /// The kernel's, if it is watched.
    pub fn kernel(&mut self) -> Option<&mut Bpf> {
        match &mut self.way {
            Way::Kernel(kernel) => Some(&mut kernel.source),
            _ => None,
        }
    }

    pub fn is_kernel(&self) -> bool {
        matches!(self.way, Way::Kernel(_))
    }

    /// Begins to watch; done only once. Returns why it cannot: the rest is recorded all the same.
    pub fn start(&mut self) -> Option<String> {
        let kernel = self.kernel()?;
        let why = match kernel.start() {
            Ok(()) => kernel.scheduler().filter(|s| s.state == Availability::None).map(|s| s.why),
            Err(e) => Some(e.to_string()),
        };
        // Of children, the library tells.
        kernel.news().clear();
        let why = why?;
        self.way = Way::None(why.clone());
        Some(why)
    }

    /// Follows a process.
    pub fn add_target(&mut self, pid: u32) {
        match &mut self.way {
            Way::Kernel(kernel) => kernel.source.add_target(pid),
            Way::Own(own, missing) => {
                // Of a process that has ended there is nothing to follow.
                if let Err(e) = own.follow(pid)
                    && e.raw_os_error() != Some(libc::ESRCH)
                {
                    self.way = Way::None(format!("{missing}; {}", KernelError::system(Act::Watch, e)));
                }
            }
            Way::None(_) => {}
        }
    }

    pub fn admit(&mut self, pid: u32, engine: u16) {
        match &mut self.way {
            Way::Kernel(kernel) => kernel.source.admit(pid, engine),
            Way::Own(own, _) => own.admit(pid),
            Way::None(_) => {}
        }
    }

    pub fn drop_target(&mut self, pid: u32) {
        match &mut self.way {
            Way::Kernel(kernel) => kernel.source.drop_target(pid),
            Way::Own(own, _) => own.drop_target(pid),
            Way::None(_) => {}
        }
    }

    /// Readable when much has arrived.
    pub fn fds(&self) -> Vec<i32> {
        match &self.way {
            Way::Own(own, _) => own.fds().collect(),
            _ => Vec::new(),
        }
    }

    /// Takes what has arrived. It comes back, in order, by [`Scheduler::replay`].
    pub fn take(&mut self, push: &mut dyn FnMut(&[u8])) {
        match &mut self.way {
            Way::Kernel(kernel) => {
                kernel.source.poll(Duration::ZERO);
                kernel.events.borrow_mut().drain(..).for_each(|bytes| push(&bytes));
            }
            Way::Own(own, _) => own.take(push),
            Way::None(_) => {}
        }
    }

    /// Handles what is no event yet, and passes on the events that it makes. False: it is an event.
    pub fn replay(&mut self, bytes: &[u8], out: &mut dyn FnMut(&[u8])) -> bool {
        match &mut self.way {
            Way::Own(own, _) => own.replay(bytes, out),
            _ => false,
        }
    }

    /// Reads the sums of these processes, from time to time.
    pub fn pass(&mut self, pids: impl Iterator<Item = u32>) {
        if !self.is_kernel() {
            self.sums.pass(pids);
        }
    }

    /// Stops watching; these processes are still there.
    pub fn leave(&mut self, pids: impl Iterator<Item = u32>) {
        if !self.is_kernel() {
            self.sums.read(pids);
        }
        match &mut self.way {
            Way::Kernel(kernel) => kernel.source.leave_processes(),
            Way::Own(own, _) => own.leave(),
            Way::None(_) => {}
        }
    }

    /// Nothing more arrives.
    pub fn finish(&mut self) {
        if let Some(kernel) = self.kernel() {
            kernel.finish();
        }
    }

    /// Sends the off-CPU intervals that are still open at the end.
    pub fn close(&mut self, out: &mut dyn FnMut(&[u8])) {
        if let Way::Own(own, _) = &mut self.way {
            own.close(out);
        }
    }

    pub fn status(&self) -> Option<FeatureStatus> {
        let sums = self.sums.text().map_or_else(String::new, |text| format!("; {text}"));
        match &self.way {
            Way::Kernel(kernel) => kernel.source.scheduler(),
            Way::Own(_, missing) => {
                let why = format!(
                    "the kernel's records of the target's own switches ({missing}); who took the CPU, what threads slept for and \
                     when they were woken is not known{sums}"
                );
                Some(FeatureStatus { state: Availability::Partly, why })
            }
            Way::None(missing) => {
                let why = format!("not known from inside a process without root ({missing}){sums}");
                Some(FeatureStatus { state: Availability::None, why })
            }
        }
    }

    pub fn run_stats(&self) -> (u64, u64) {
        match &self.way {
            Way::Kernel(kernel) => kernel.source.run_stats(),
            _ => (0, 0),
        }
    }

    /// Adds its events.
    pub fn count(&self, stats: &mut EventStats) {
        let of = &mut stats.kinds[ev_kind::EV_OFFCPU.0 as usize];
        match &self.way {
            Way::Kernel(kernel) => {
                let all = kernel.source.event_stats();
                *of = all.kinds[ev_kind::EV_OFFCPU.0 as usize].clone();
                stats.counters.iter_mut().zip(all.counters).for_each(|(count, more)| *count += more);
            }
            Way::Own(own, _) => {
                let (sent, lost) = own.counts();
                of.seen = sent;
                for (cpu, lost) in lost {
                    let cpu = cpu as usize;
                    if stats.lost_cpu.len() <= cpu {
                        stats.lost_cpu.resize(cpu + 1, 0);
                    }
                    stats.lost_cpu[cpu] += lost;
                    (of.seen, of.lost) = (of.seen + lost, of.lost + lost);
                }
            }
            Way::None(_) => {}
        }
    }
}
