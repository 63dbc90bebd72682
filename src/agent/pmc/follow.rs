//! The counters' part in the kernel: their events by CPU and counter, the accounts of threads, and the program that keeps
//! these apart when threads are switched. Uses `skel`, `source` (for guards), `tracepoint` and `refusal` of the agent.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject};

use super::names::Own;
use crate::agent::refusal::{self, Act};
use crate::agent::skel::pmc::{PmcSkel, PmcSkelBuilder};
use crate::agent::source::Guard;
use crate::agent::tracepoint;

/// Threads whose counts are kept apart at a time; the one longest unused gives way.
const ACCOUNTS: u32 = 4096;

/// What the objects of a recording share of the counters.
pub struct Shared {
    /// Counters.
    pub n: u32,
    /// Of them, those that our program counts itself, a bit each.
    pub switches: u32,
    pub migrations: u32,
    pub pmcs: MapHandle,
    pub accounts: MapHandle,
    /// What may change meanwhile: whether ops are counted.
    pub settings: MapHandle,
    skel: PmcSkel<'static>,
    link: RefCell<Option<Link>>,
    /// How often counting has begun.
    begun: Cell<u32>,
}

impl Shared {
    /// Makes the maps for CPUs below `possible`, and begins to count. A counter is one of ours or an event of the kernel's,
    /// which comes with [`Shared::set`].
    pub fn new(counters: &[Option<Own>], possible: u32) -> Result<Shared, String> {
        let failed = |act| move |e: libbpf_rs::Error| refusal::explain(act, &e);
        let bits = |own| {
            counters.iter().enumerate().filter(|(_, c)| **c == Some(own)).fold(0, |m, (i, _)| m | 1 << i)
        };
        let (n, switches, migrations) = (counters.len() as u32, bits(Own::Switches), bits(Own::Migrations));
        let next_off =
            tracepoint::switch_next().map_err(|e| format!("tracefs shows no sched_switch: {e}"))?;
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
        let shared = Shared { n, switches, migrations, pmcs, accounts, settings, skel, link, begun };
        shared.begin()?;
        Ok(shared)
    }

    /// Ops are counted from now on; what is under way is not known.
    ///
    /// # Errors
    /// Threads cannot be told apart, in words.
    pub fn begin(&self) -> Result<(), String> {
        if self.link.borrow().is_none() {
            let link = self.skel.progs.switched.attach().map_err(|e| refusal::explain(Act::Probe, &e))?;
            self.link.replace(Some(link));
            self.begun.set(self.begun.get().wrapping_add(1).max(1));
            self.tell(self.begun.get())?;
        }
        Ok(())
    }

    /// Ops are counted no more. Gives what is still to be removed: the kernel takes its time.
    pub fn end(&self) -> Option<Guard> {
        // Where it cannot be told, ops go on being counted, and their threads' switches must be seen.
        self.tell(0).ok()?;
        Some(Box::new(self.link.take()?))
    }

    fn tell(&self, counting: u32) -> Result<(), String> {
        let done = self.settings.update(&0u32.to_ne_bytes(), &counting.to_ne_bytes(), MapFlags::ANY);
        done.map_err(|e| refusal::explain(Act::Map, &e))
    }

    /// Counter `i` on a CPU is this event.
    pub fn set(&self, cpu: u32, i: u32, event: &OwnedFd) -> Result<(), String> {
        let (key, fd) = (cpu * self.n + i, event.as_fd().as_raw_fd());
        let done = self.pmcs.update(&key.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY);
        done.map_err(|e| refusal::explain(Act::Map, &e))
    }

    /// Counter `i` on a CPU is no more.
    pub fn clear(&self, cpu: u32, i: u32) {
        // Where it never was there is nothing to take away.
        drop(self.pmcs.delete(&(cpu * self.n + i).to_ne_bytes()));
    }
}
