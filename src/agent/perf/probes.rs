//! The probes of a recording by perf events: each defined once, opened on every CPU while it is attached, and the books
//! of its hits. Uses `event`, `fields`, `replay` and `tracefs`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::layout::Layout;
use super::super::source::{Count, Guard, Probe as Placed, Prober, Prog};
use super::super::tracefs::{Definition, Tracefs};
use super::event;
use super::failed;
use super::fields::{self, Places};
use super::replay::Meaning;

/// One probe's hits on one CPU.
#[derive(Debug, Default, Clone, Copy)]
struct Taken {
    /// Samples that came out of the ring.
    received: u64,
    /// Of them, those of processes that are not recorded.
    strangers: u64,
}

struct Probe {
    meaning: Meaning,
    definition: Arc<Definition>,
    /// Hits by CPU, as the kernel counted them, of the times that it was attached and is no more.
    counted: Arc<[AtomicU64]>,
    taken: Vec<Taken>,
}

/// Which place of which file, for what.
type Key = (u64, u64, u64, u16, usize);

/// All probes.
pub struct Probes {
    tracefs: Tracefs,
    /// Each CPU's number and the event whose ring takes its samples.
    leaders: Vec<(u32, OwnedFd)>,
    /// Only the calling thread is probed.
    own: bool,
    probes: Vec<Probe>,
    /// A definition stays until the end: its number would else come again while samples of it are still waiting.
    places: HashMap<Key, usize>,
    by_id: HashMap<u16, usize>,
    /// Samples of no probe of ours.
    pub unknown: u64,
}

/// A probe that sits. The samples of a process need an event for each of its threads on each CPU, which nobody wants to pay
/// for: it sits in all processes that run the file, which is one of the engine's own.
struct Attached {
    events: Vec<OwnedFd>,
    counted: Arc<[AtomicU64]>,
    /// Removed only when the events are closed.
    _definition: Arc<Definition>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        // On every CPU first, so that none goes on counting while others are read.
        self.events.iter().for_each(|e| drop(event::disable(e)));
        for (e, counted) in self.events.drain(..).zip(self.counted.iter()) {
            counted.fetch_add(event::count(&e).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

impl Placed for Attached {
    fn leave_all(&mut self) -> Vec<Guard> {
        Vec::new()
    }
}

impl Probes {
    pub fn new(tracefs: Tracefs, leaders: Vec<(u32, OwnedFd)>, own: bool) -> Probes {
        let (probes, places, by_id) = (Vec::new(), HashMap::new(), HashMap::new());
        Probes { tracefs, leaders, own, probes, places, by_id, unknown: 0 }
    }

    /// The probe that a sample is of. It is counted.
    pub fn received(&mut self, cpu: usize, raw: &[u8]) -> Option<usize> {
        let id = raw.get(..2).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
        let found = id.and_then(|id| self.by_id.get(&id)).copied();
        match found.and_then(|i| self.probes.get_mut(i)?.taken.get_mut(cpu)) {
            Some(taken) => taken.received += 1,
            None => self.unknown += 1,
        }
        found
    }

    /// A sample is of a process that is not recorded.
    pub fn stranger(&mut self, cpu: usize, probe: usize) {
        if let Some(taken) = self.probes.get_mut(probe).and_then(|p| p.taken.get_mut(cpu)) {
            taken.strangers += 1;
        }
    }

    pub fn meaning(&self, probe: usize) -> Option<&Meaning> {
        Some(&self.probes.get(probe)?.meaning)
    }

    /// Hits of the probes that `of` names: those of recorded processes, and the lost ones of anybody, for nobody knows
    /// whose they were. What was lost on each CPU is added to `by_cpu`.
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
    ) -> Result<usize, String> {
        let meta = file.metadata().map_err(|e| e.to_string())?;
        let key = (meta.dev(), meta.ino(), offset, engine, prog as usize);
        if let Some(&i) = self.places.get(&key) {
            return Ok(i);
        }
        let arguments = fields::arguments(prog, l, structure);
        let definition = self.tracefs.define(file, offset, prog.is_return(), &arguments)?;
        let at = |name: &str| self.tracefs.field(&definition, name);
        let places = Places::of(prog, l, structure, at)
            .ok_or("the kernel's format of the event does not show what was asked for")?;
        let id = u16::try_from(definition.id).map_err(|_| "the event's number has more than 16 bits")?;
        let i = self.probes.len();
        self.probes.push(Probe {
            meaning: Meaning { prog, engine, places },
            definition: Arc::new(definition),
            counted: self.leaders.iter().map(|_| AtomicU64::new(0)).collect(),
            taken: vec![Taken::default(); self.leaders.len()],
        });
        self.places.insert(key, i);
        self.by_id.insert(id, i);
        Ok(i)
    }

    fn attach(&self, i: usize) -> Result<Box<dyn Placed>, String> {
        let probe = self.probes.get(i).ok_or("no such probe")?;
        let id = probe.definition.id;
        // Whoever enters a graph wakes us: what the graph is can be read only while it runs.
        let urgent = probe.meaning.prog == Prog::GraphEnter;
        let mut attached = Attached {
            events: Vec::with_capacity(self.leaders.len()),
            counted: probe.counted.clone(),
            _definition: probe.definition.clone(),
        };
        for (cpu, leader) in &self.leaders {
            let e = event::tracepoint(id, *cpu, urgent, self.own).map_err(|e| failed(&e))?;
            event::join(&e, leader).map_err(|e| failed(&e))?;
            attached.events.push(e);
        }
        // Only now, so that no hit is counted whose sample had no ring to go to.
        attached.events.iter().try_for_each(event::enable).map_err(|e| failed(&e))?;
        Ok(Box::new(attached))
    }
}

/// Attaches probes of one engine.
pub struct EngineProbes {
    pub engine: u16,
    pub layout: Layout,
    pub structure: bool,
    pub probes: Rc<RefCell<Probes>>,
}

impl Prober for EngineProbes {
    fn place(&self, prog: Prog, file: &Path, offset: u64) -> Result<Box<dyn Placed>, String> {
        let open = File::open(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let probes = &mut *self.probes.borrow_mut();
        let i = probes.probe(prog, &open, offset, (self.engine, &self.layout, self.structure))?;
        probes.attach(i)
    }
}
