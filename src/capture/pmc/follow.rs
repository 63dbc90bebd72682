//! The kernel side of the counters: their events by CPU and counter, the accounts of threads, and the program that
//! separates the accounts at context switches.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject};

use super::names::OwnCounter;
use crate::capture::skel::pmc::{PmcSkel, PmcSkelBuilder};
use crate::capture::source::Guard;
use machine::diagnose::{Act, KernelError};
use machine::kernel::tracepoint;

/// Maximum number of threads counted separately; the least recently used one is evicted.
const ACCOUNTS: u32 = 4096;

/// Why counts cannot be attributed to threads.
#[derive(Debug, thiserror::Error)]
pub enum SharedCountersError {
    #[error("tracefs has no sched_switch event: {0}")]
    NoEvent(#[source] io::Error),
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// What a recording's objects share for the counters.
pub struct SharedCounters {
    /// Number of counters.
    pub n: u32,
    /// Those that our program counts itself, one bit each.
    pub switches: u32,
    pub migrations: u32,
    pub pmcs: MapHandle,
    pub accounts: MapHandle,
    /// Settings that may change during the recording: whether ops are counted.
    pub settings: MapHandle,
    skel: PmcSkel<'static>,
    link: RefCell<Option<Link>>,
    /// How many times counting has started.
    begun: Cell<u32>,
}

impl SharedCounters {
    /// Creates the maps for CPUs below `possible`, and starts counting. A counter is either one of ours or a kernel
    /// event, which is added by [`SharedCounters::set`].
    pub fn new(
        counters: &[Option<OwnCounter>],
        possible: u32,
    ) -> Result<SharedCounters, SharedCountersError> {
        let failed = |act| move |e| KernelError::libbpf(act, e);
        let bits = |own| {
            counters.iter().enumerate().filter(|(_, c)| **c == Some(own)).fold(0, |m, (i, _)| m | 1 << i)
        };
        let (n, switches, migrations) =
            (counters.len() as u32, bits(OwnCounter::Switches), bits(OwnCounter::Migrations));
        let next_off = tracepoint::switch_next().map_err(SharedCountersError::NoEvent)?;
        // The skeleton borrows its object's storage, and lives as long as the recording.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = PmcSkelBuilder::default().open(storage).map_err(failed(Act::Load))?;
        if let Some(data) = open.maps.rodata_data.as_deref_mut() {
            let k = &mut data.k;
            (k.n_pmc, k.pmc_switches, k.pmc_migrations, k.next_off) = (n, switches, migrations, next_off);
        }
        open.maps.pmcs.set_max_entries(n.saturating_mul(possible).max(1)).map_err(failed(Act::Map))?;
        open.maps.accounts.set_max_entries(ACCOUNTS).map_err(failed(Act::Map))?;
        let skel = open.load().map_err(failed(Act::Load))?;
        let handle = |map| MapHandle::try_from(map).map_err(failed(Act::Map));
        let (pmcs, accounts) = (handle(&skel.maps.pmcs)?, handle(&skel.maps.accounts)?);
        let (settings, link) = (handle(&skel.maps.settings)?, RefCell::new(None));
        let begun = Cell::new(0);
        let shared = SharedCounters { n, switches, migrations, pmcs, accounts, settings, skel, link, begun };
        shared.begin()?;
        Ok(shared)
    }

    /// Starts counting ops; the counts of ops in progress are unknown.
    ///
    /// # Errors
    /// Why threads cannot be counted separately.
    pub fn begin(&self) -> Result<(), KernelError> {
        if self.link.borrow().is_none() {
            let link = self.skel.progs.switched.attach().map_err(|e| KernelError::libbpf(Act::Probe, e))?;
            self.link.replace(Some(link));
            self.begun.set(self.begun.get().wrapping_add(1).max(1));
            self.tell(self.begun.get())?;
        }
        Ok(())
    }

    /// Stops counting ops. Returns what must still be removed, which takes the kernel a while.
    pub fn end(&self) -> Option<Guard> {
        // If this fails, ops are still counted, and their threads' switches must be seen.
        self.tell(0).ok()?;
        Some(Box::new(self.link.take()?))
    }

    fn tell(&self, counting: u32) -> Result<(), KernelError> {
        let done = self.settings.update(&0u32.to_ne_bytes(), &counting.to_ne_bytes(), MapFlags::ANY);
        done.map_err(|e| KernelError::libbpf(Act::Map, e))
    }

    /// Sets the event of counter `i` on a CPU.
    pub fn set(&self, cpu: u32, i: u32, event: &OwnedFd) -> Result<(), KernelError> {
        let (key, fd) = (cpu * self.n + i, event.as_fd().as_raw_fd());
        let done = self.pmcs.update(&key.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY);
        done.map_err(|e| KernelError::libbpf(Act::Map, e))
    }

    /// Removes counter `i` of a CPU.
    pub fn clear(&self, cpu: u32, i: u32) {
        // If it was never set, there is nothing to remove.
        drop(self.pmcs.delete(&(cpu * self.n + i).to_ne_bytes()));
    }
}
