//! The probes of a recording by perf events: each defined once, opened on every CPU while it is attached, with the
//! counts of its hits.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::event;
use super::fields::{self, SamplePositions};
use super::sample::Meaning;
use crate::capture::error::ProbeError;
use crate::capture::inside::recorded_inside_with;
use crate::capture::source::{Count, Guard, Probe as Placed, Prober};
use engine::layout::Layout;
use engine::probes::{Prog, Role};
use machine::kernel::tracefs::{self, Definition, Tracefs};

/// How long the processes that have a file are known for: an engine has dozens of probes.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// One probe's hits on one CPU.
#[derive(Debug, Default, Clone, Copy)]
struct Taken {
    /// Samples read from the ring.
    received: u64,
    /// Of these, the samples of processes that are not recorded.
    strangers: u64,
}

struct DefinedProbe {
    meaning: Meaning,
    definition: Arc<Definition>,
    /// Hits by CPU, as counted by the kernel, from past attachments.
    counted: Arc<[AtomicU64]>,
    taken: Vec<Taken>,
}

/// Device, inode, offset, engine and program.
type ProbeKey = (u64, u64, u64, u16, usize);

pub struct Probes {
    tracefs: Tracefs,
    /// Each CPU's number and the event whose ring receives its samples.
    leaders: Vec<(u32, OwnedFd)>,
    /// Probe only the calling thread.
    own: bool,
    probes: Vec<DefinedProbe>,
    /// A definition stays until the end: otherwise its number would be reused while samples of it are still waiting.
    places: HashMap<ProbeKey, usize>,
    by_id: HashMap<u16, usize>,
    /// Files, by inode, that no process recorded from inside had then.
    unchanged: HashMap<u64, Instant>,
    /// Samples that belong to none of our probes.
    pub unknown: u64,
}

/// An attached probe. Sampling a single process would need an event per thread and CPU, which is too expensive. So
/// it is attached to all processes that run the file, which is one of the engine's own.
struct AttachedProbe {
    events: Vec<OwnedFd>,
    counted: Arc<[AtomicU64]>,
    /// Removed only after the events are closed.
    definition: Arc<Definition>,
}

impl Drop for AttachedProbe {
    fn drop(&mut self) {
        // On every CPU first, so that none keeps counting while others are read.
        self.events.iter().for_each(|e| drop(event::disable(e)));
        for (e, counted) in self.events.iter().zip(self.counted.iter()) {
            counted.fetch_add(event::count(e).unwrap_or(0), Ordering::Relaxed);
        }
        // The kernel waits for all CPUs when it closes the last one.
        if tracefs::close(&mut self.events) {
            self.definition.leave();
        }
    }
}

impl Placed for AttachedProbe {
    fn leave_all(&mut self) -> Vec<Guard> {
        Vec::new()
    }
}

impl Probes {
    pub fn new(tracefs: Tracefs, leaders: Vec<(u32, OwnedFd)>, own: bool) -> Probes {
        let (probes, places, by_id) = (Vec::new(), HashMap::new(), HashMap::new());
        Probes { tracefs, leaders, own, probes, places, by_id, unchanged: HashMap::new(), unknown: 0 }
    }

    /// The probe that a sample belongs to. Counts the sample.
    pub fn received(&mut self, cpu: usize, raw: &[u8]) -> Option<usize> {
        let id = raw.get(..2).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
        let found = id.and_then(|id| self.by_id.get(&id)).copied();
        match found.and_then(|i| self.probes.get_mut(i)?.taken.get_mut(cpu)) {
            Some(taken) => taken.received += 1,
            None => self.unknown += 1,
        }
        found
    }

    /// A sample belongs to a process that is not recorded.
    pub fn stranger(&mut self, cpu: usize, probe: usize) {
        if let Some(taken) = self.probes.get_mut(probe).and_then(|p| p.taken.get_mut(cpu)) {
            taken.strangers += 1;
        }
    }

    pub fn meaning(&self, probe: usize) -> Option<&Meaning> {
        Some(&self.probes.get(probe)?.meaning)
    }

    /// Hits of the probes selected by `of`: those of recorded processes, plus all lost ones, whose process is
    /// unknown. Adds the losses on each CPU to `by_cpu`.
    pub fn tally(&self, of: impl Fn(Prog) -> bool, by_cpu: &mut [u64]) -> Count {
        let mut all = Count::default();
        for p in self.probes.iter().filter(|p| of(p.meaning.prog)) {
            for ((counted, taken), lost_here) in p.counted.iter().zip(&p.taken).zip(by_cpu.iter_mut()) {
                let lost = counted.load(Ordering::Relaxed).saturating_sub(taken.received);
                all.seen += taken.received - taken.strangers + lost;
                all.lost += lost;
                *lost_here += lost;
            }
        }
        all
    }

    fn probe(
        &mut self,
        prog: Prog,
        file: &File,
        offset: u64,
        (engine, l, structure): (u16, &Layout, bool),
    ) -> Result<usize, ProbeError> {
        let meta = file.metadata().map_err(ProbeError::Descriptor)?;
        let key = (meta.dev(), meta.ino(), offset, engine, prog as usize);
        if let Some(&i) = self.places.get(&key) {
            return Ok(i);
        }
        let arguments = fields::arguments(prog, l, structure);
        let definition = self.tracefs.define(file, offset, prog.is_return(), &arguments)?;
        let at = |name: &str| self.tracefs.field(&definition, name);
        let places = SamplePositions::of(prog, l, structure, at).ok_or(ProbeError::NoField)?;
        let id = u16::try_from(definition.id).map_err(|_| ProbeError::EventId)?;
        let i = self.probes.len();
        self.probes.push(DefinedProbe {
            meaning: Meaning { prog, engine, places },
            definition: Arc::new(definition),
            counted: self.leaders.iter().map(|_| AtomicU64::new(0)).collect(),
            taken: vec![Taken::default(); self.leaders.len()],
        });
        self.places.insert(key, i);
        self.by_id.insert(id, i);
        Ok(i)
    }

    /// Looks whether all processes that have this file have its code as it is there.
    ///
    /// # Errors
    /// One is recorded from inside: it has jumps.
    fn check_unchanged(&mut self, file: &File) -> Result<(), ProbeError> {
        let inode = file.metadata().map_err(ProbeError::Descriptor)?.ino();
        if self.unchanged.get(&inode).is_some_and(|at| at.elapsed() < KNOWN_FOR) {
            return Ok(());
        }
        if let Some(pid) = recorded_inside_with(inode) {
            return Err(ProbeError::JumpsThere(pid));
        }
        self.unchanged.insert(inode, Instant::now());
        Ok(())
    }

    fn attach(&self, i: usize) -> Result<Box<dyn Placed>, ProbeError> {
        let probe = self.probes.get(i).ok_or(ProbeError::NoProbe)?;
        let id = probe.definition.id;
        // A thread that enters a graph wakes us: the graph can be read only while it runs.
        let urgent = probe.meaning.prog == Prog::GraphEnter;
        let mut attached = AttachedProbe {
            events: Vec::with_capacity(self.leaders.len()),
            counted: probe.counted.clone(),
            definition: probe.definition.clone(),
        };
        for (cpu, leader) in &self.leaders {
            let e = event::tracepoint(id, *cpu, urgent, self.own).map_err(event::failed)?;
            event::join(&e, leader).map_err(event::failed)?;
            attached.events.push(e);
        }
        // Only now, so that no hit is counted before its sample has a ring to go to.
        attached.events.iter().try_for_each(event::enable).map_err(event::failed)?;
        Ok(Box::new(attached))
    }
}

/// Attaches probes of one engine.
pub struct PerfEngineProbes {
    pub engine: u16,
    pub layout: Layout,
    pub structure: bool,
    pub probes: Rc<RefCell<Probes>>,
}

impl Prober for PerfEngineProbes {
    /// A node is known by its index in a list that only the BPF programs read; only they read the times of kernels and the
    /// tokens of a batch, and count calls without an event for each.
    fn takes(&self, role: Role) -> bool {
        !matches!(
            role,
            Role::Node
                | Role::Kernel
                | Role::Dispatch
                | Role::Batch
                | Role::Ubatch
                | Role::Memory
                | Role::Task
        )
    }

    fn place(&self, prog: Prog, file: &Path, offset: u64) -> Result<Box<dyn Placed>, ProbeError> {
        let open = File::open(file).map_err(ProbeError::open(file))?;
        let probes = &mut *self.probes.borrow_mut();
        probes.check_unchanged(&open)?;
        let i = probes.probe(prog, &open, offset, (self.engine, &self.layout, self.structure))?;
        probes.attach(i)
    }
}
