//! The slots of a model: decides, reads, and tells the threads what to compute. Uses the files beside it.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memmap2::Mmap;

use super::buffer::{PartShape, SlotBuffer};
use super::counts::{LayerCounts, LayerReport, PhasesReport, SlotPhase, SlotReport};
use super::op::{PlacedExpert, SlotOp, SlotRound};
use super::readers::{ExpertReadError, PartRead, Readers};
use super::source::{ExpertSource, ExpertsFrom};
use super::{SlotError, SlotPolicy, SlotSettings};
use crate::kernels::Reading;
use ggml::expert_cache::{ExpertPolicy, ExpertRead, ExpertSlots, Successors};
use ggml::quant::TensorType;

/// Experts of a round that had to be read: while they are computed, as many are read for the next.
const TOGETHER: usize = 4;
/// Buffers of each shape for experts that do not stay, shared by all layers.
pub const PASSING: usize = 2 * TOGETHER;

/// A weight tensor of a layer's experts.
#[derive(Debug, Clone, Copy)]
pub struct ExpertPart {
    /// Offset of the first expert in the file.
    pub offset: u64,
    /// Bytes of each expert.
    pub bytes: u64,
    /// Shape of each expert.
    pub shape: PartShape,
}

struct StoredPart {
    offset: u64,
    bytes: u64,
    /// Those of the slots, then [`PASSING`] others.
    buffers: Vec<Arc<SlotBuffer>>,
}

/// The experts of a layer.
struct StoredLayer {
    /// In the order of the graph.
    parts: Vec<StoredPart>,
    /// Bytes of an expert in the file.
    bytes: u64,
}

/// What is decided; only the thread that runs the graph uses it.
struct SlotState {
    slots: Vec<ExpertSlots>,
    /// From each layer to the next, with [`SlotPolicy::Next`].
    successors: Vec<Successors>,
    counts: Vec<LayerCounts>,
    phase: SlotPhase,
    /// The graph has one token.
    single: bool,
    /// The last op of this graph: its layer and its experts.
    before: Option<(usize, Vec<u16>)>,
    op: SlotOp,
}

/// The experts of a model, of which some are in slots. Only one graph at a time may use them.
pub struct ExpertStore {
    settings: SlotSettings,
    experts: usize,
    layers: Vec<StoredLayer>,
    /// Bytes of all buffers.
    memory: u64,
    readers: Readers,
    round: SlotRound,
    state: Mutex<SlotState>,
    warm_up: AtomicBool,
    /// Experts pinned when the model was loaded, and their bytes.
    pinned: (u64, u64),
}

/// A weight tensor whose experts are in slots.
#[derive(Clone)]
pub struct SlotPart {
    store: Arc<ExpertStore>,
    layer: usize,
    part: usize,
}

impl ExpertStore {
    /// Empty slots, or those with pinned experts, for layers of `experts` experts, whose tensors are given in the order
    /// of the graph.
    ///
    /// # Errors
    /// Not enough memory or threads, a file that cannot be read, or experts to pin that do not exist.
    pub fn new(
        settings: &SlotSettings,
        (file, map): (File, &Arc<Mmap>),
        experts: usize,
        layers: &[Vec<ExpertPart>],
    ) -> Result<Self, SlotError> {
        let parts = || layers.iter().flatten();
        let at = parts().map(|p| p.offset).min().unwrap_or(0);
        let source = ExpertSource::new(file, map, settings.from, at).map_err(SlotError::Source)?;
        let most = parts().map(|p| p.bytes).max().unwrap_or(0);
        let readers = Readers::start(source, settings.readers.max(1), most).map_err(SlotError::Thread)?;
        let policy = match settings.policy {
            SlotPolicy::Lru | SlotPolicy::Next => ExpertPolicy::Lru,
            SlotPolicy::Lfu => ExpertPolicy::Lfu,
            SlotPolicy::Pin(_) => ExpertPolicy::Pin,
        };
        let successors = match settings.policy {
            SlotPolicy::Next => layers.windows(2).map(|_| Successors::new(experts, experts)).collect(),
            _ => Vec::new(),
        };
        let (stored, memory) = stored(layers, settings.slots.min(experts))?;
        let mut store = Self {
            settings: SlotSettings { slots: settings.slots.min(experts), ..settings.clone() },
            experts,
            layers: stored,
            memory,
            readers,
            round: SlotRound::new(experts),
            state: Mutex::new(SlotState {
                slots: layers.iter().map(|_| ExpertSlots::new(policy, settings.slots, experts)).collect(),
                successors,
                counts: vec![LayerCounts::default(); layers.len()],
                phase: SlotPhase::Decode,
                single: false,
                before: None,
                op: SlotOp::default(),
            }),
            warm_up: AtomicBool::new(false),
            pinned: (0, 0),
        };
        if let SlotPolicy::Pin(file) = &settings.policy {
            store.pin(file.by_layer(layers.len(), experts)?)?;
        }
        Ok(store)
    }

    /// Reads the experts that stay.
    fn pin(&mut self, wanted: Vec<Vec<u16>>) -> Result<(), SlotError> {
        for (layer, wanted) in wanted.into_iter().enumerate() {
            let empty = ExpertSlots::new(ExpertPolicy::Pin, self.settings.slots, self.experts);
            let (warmed, reads) = empty.warmed(&wanted);
            self.ask(layer, &reads);
            if let Some(slots) = self.lock().slots.get_mut(layer) {
                *slots = warmed;
            }
            let bytes = self.layers.get(layer).map_or(0, |l| l.bytes);
            self.pinned.0 += reads.len() as u64;
            self.pinned.1 += reads.len() as u64 * bytes;
        }
        self.buffers().for_each(|b| self.readers.wait(b));
        self.readers.take_waited();
        Ok(self.readers.check()?)
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All buffers, shared ones more than once.
    fn buffers(&self) -> impl Iterator<Item = &Arc<SlotBuffer>> {
        self.layers.iter().flat_map(|l| &l.parts).flat_map(|p| &p.buffers)
    }

    /// Asks for a part of an expert.
    fn ask_part(&self, layer: usize, part: usize, placed: PlacedExpert) {
        let part = self.layers.get(layer).and_then(|l| l.parts.get(part));
        let Some((part, buffer)) = part.and_then(|p| Some((p, p.buffers.get(placed.buffer)?))) else {
            return;
        };
        let start = part.offset.saturating_add(part.bytes.saturating_mul(placed.expert.into()));
        self.readers
            .read(PartRead { buffer: Arc::clone(buffer), range: start..start.saturating_add(part.bytes) });
    }

    /// Asks for all parts of experts that stay, in the order in which the graph uses them.
    fn ask(&self, layer: usize, reads: &[ExpertRead]) {
        for part in 0..self.layers.get(layer).map_or(0, |l| l.parts.len()) {
            for read in reads {
                if let Some(slot) = read.slot {
                    self.ask_part(layer, part, PlacedExpert { expert: read.expert, buffer: slot as usize });
                }
            }
        }
    }

    /// Whether calls from now on are counted as part of the warm-up.
    pub fn warm_up(&self, yes: bool) {
        self.warm_up.store(yes, Ordering::Relaxed);
    }

    /// A graph begins: its tokens, and those of its call.
    pub fn begin_graph(&self, tokens: usize, of: usize) {
        let mut state = self.lock();
        state.phase = match (self.warm_up.load(Ordering::Relaxed), of > 1) {
            (true, _) => SlotPhase::WarmUp,
            (false, true) => SlotPhase::Prefill,
            (false, false) => SlotPhase::Decode,
        };
        state.single = tokens == 1;
        state.before = None;
    }

    /// Whether everything could be read so far.
    ///
    /// # Errors
    /// The first part that could not.
    pub fn check(&self) -> Result<(), ExpertReadError> {
        self.readers.check()
    }

    /// The weight tensor of a layer's experts.
    pub fn part(self: &Arc<Self>, layer: usize, part: usize) -> SlotPart {
        SlotPart { store: Arc::clone(self), layer, part }
    }

    /// Reads weights for one token in this way from now on; those of all types if none is given.
    pub fn set_reading(&self, ty: Option<TensorType>, reading: Reading) {
        self.buffers().for_each(|b| b.set_reading(ty, reading));
    }

    /// What was counted so far.
    pub fn report(&self) -> SlotReport {
        let state = self.lock();
        let layer = |(layer, c)| LayerReport {
            layer,
            counts: PhasesReport::from(std::slice::from_ref::<LayerCounts>(c)),
        };
        SlotReport {
            policy: self.settings.policy.name(),
            slots: self.settings.slots,
            experts: self.experts,
            from: match self.settings.from {
                ExpertsFrom::Disk => "disk",
                ExpertsFrom::Memory => "memory",
            },
            access: self.readers.source().name(),
            readers: self.readers.count(),
            slot_bytes: self.memory,
            pinned_reads: self.pinned.0,
            pinned_bytes: self.pinned.1,
            counts: PhasesReport::from(state.counts.as_slice()),
            layers: state.counts.iter().enumerate().map(layer).collect(),
        }
    }

    /// A layer's op begins: decides what is read, and asks for it.
    fn begin_op(&self, layer: usize, wanted: Vec<u16>) {
        let mut guard = self.lock();
        let SlotState { slots, counts, phase, single, op, .. } = &mut *guard;
        let (Some(here), Some(stored)) = (slots.get_mut(layer), self.layers.get(layer)) else { return };
        let place = |expert: &u16, slot: u32| PlacedExpert { expert: *expert, buffer: slot as usize };
        let hits: Vec<_> = wanted.iter().filter_map(|e| Some(place(e, here.slot(*e)?))).collect();
        let mut reads = Vec::new();
        let hit = here.need(&wanted, &mut reads);
        let mut passing = 0;
        let absent = reads.iter().map(|read| match read.slot {
            Some(slot) => place(&read.expert, slot),
            None => {
                passing += 1;
                PlacedExpert { expert: read.expert, buffer: self.settings.slots + (passing - 1) % PASSING }
            }
        });
        let absent: Vec<_> = absent.collect();
        let kept = hits.iter().all(|h| here.slot(h.expert).is_some_and(|s| s as usize == h.buffer));
        *op = SlotOp { ahead: kept && passing <= PASSING, hits, absent, ..SlotOp::default() };
        if op.ahead {
            for (part, _) in stored.parts.iter().enumerate() {
                op.absent.iter().for_each(|p| self.ask_part(layer, part, *p));
            }
        }
        if let Some(counts) = counts.get_mut(layer) {
            let counts = counts.of(*phase);
            counts.ops += 1;
            counts.needed += wanted.len() as u64;
            counts.hits += hit as u64;
            counts.demand_reads += reads.len() as u64;
            counts.read_bytes += reads.len() as u64 * stored.bytes;
            counts.wait += self.readers.take_waited();
        }
        if *single {
            self.look_ahead(&mut guard, layer, wanted);
        }
    }

    /// A token has chosen its experts of a layer: learns from it, and asks for those that are likely in the next.
    fn look_ahead(&self, state: &mut SlotState, layer: usize, wanted: Vec<u16>) {
        let SlotState { slots, successors, counts, phase, before, .. } = state;
        if let Some((from, experts)) = before.as_ref().filter(|(from, _)| from + 1 == layer)
            && let Some(successors) = successors.get_mut(*from)
        {
            successors.learn(experts, &wanted);
        }
        if let (Some(successors), Some(next), Some(stored), Some(counts)) = (
            successors.get(layer),
            slots.get_mut(layer + 1),
            self.layers.get(layer + 1),
            counts.get_mut(layer + 1),
        ) {
            let mut reads = Vec::new();
            next.expect(&successors.after(&wanted), wanted.len(), &mut reads);
            self.ask(layer + 1, &reads);
            let counts = counts.of(*phase);
            counts.early_reads += reads.len() as u64;
            counts.read_bytes += reads.len() as u64 * stored.bytes;
            counts.wait += self.readers.take_waited();
        }
        *before = Some((layer, wanted));
    }

    /// Chooses the experts of a node's next round.
    fn next_round(&self, layer: usize, part: usize, first: bool) {
        let mut guard = self.lock();
        let SlotState { counts, phase, op, .. } = &mut *guard;
        let Some(buffers) = self.layers.get(layer).and_then(|l| l.parts.get(part)).map(|p| &p.buffers) else {
            return self.round.set(&[], true);
        };
        let pending = |p: &PlacedExpert| buffers.get(p.buffer).is_some_and(|b| b.is_pending());
        let wait = |placed: &[PlacedExpert]| {
            placed.iter().filter_map(|p| buffers.get(p.buffer)).for_each(|b| self.readers.wait(b));
        };
        if first {
            let SlotOp { hits, absent, ahead, .. } = op;
            if !*ahead {
                wait(hits);
            }
            // Those that were read early may not be there yet.
            let (late, ready): (Vec<_>, Vec<_>) = hits.iter().partition(|p| pending(p));
            op.later = late;
            op.later.extend_from_slice(absent);
            (op.done, op.asked) = (0, 0);
            if !ready.is_empty() {
                self.round.set(&ready, op.later.is_empty());
                return add_wait(counts, layer, *phase, self.readers.take_waited());
            }
        }
        if !op.ahead {
            let upto = op.later.len().min(op.done + PASSING);
            for placed in op.later.get(op.asked..upto).unwrap_or_default() {
                self.ask_part(layer, part, *placed);
            }
            op.asked = upto;
        }
        let end = op.later.len().min(op.done + TOGETHER);
        let now = op.later.get(op.done..end).unwrap_or_default();
        wait(now);
        self.round.set(now, end == op.later.len());
        op.done = end;
        add_wait(counts, layer, *phase, self.readers.take_waited());
    }
}

fn add_wait(counts: &mut [LayerCounts], layer: usize, phase: SlotPhase, waited: Duration) {
    if let Some(counts) = counts.get_mut(layer) {
        counts.of(phase).wait += waited;
    }
}

/// Buffers for the parts of all layers, and their bytes.
fn stored(layers: &[Vec<ExpertPart>], slots: usize) -> Result<(Vec<StoredLayer>, u64), SlotError> {
    type Shared = Vec<Arc<SlotBuffer>>;
    let mut memory = 0;
    let mut made = |shape, count| -> Result<Shared, SlotError> {
        let buffers: Shared =
            (0..count).map(|_| Ok(Arc::new(SlotBuffer::new(shape)?))).collect::<Result<_, SlotError>>()?;
        memory += buffers.iter().map(|b| b.bytes()).sum::<u64>();
        Ok(buffers)
    };
    // By part and shape: the parts of one expert are needed at the same time.
    let mut passing: Vec<((usize, PartShape), Shared)> = Vec::new();
    let mut all = Vec::with_capacity(layers.len());
    for layer in layers {
        let mut parts = Vec::with_capacity(layer.len());
        for (nth, part) in layer.iter().enumerate() {
            let key = (nth, part.shape);
            if !passing.iter().any(|(k, _)| *k == key) {
                passing.push((key, made(part.shape, PASSING)?));
            }
            let mut buffers = made(part.shape, slots)?;
            let shared = passing.iter().find(|(k, _)| *k == key).map(|(_, shared)| shared.iter().cloned());
            buffers.extend(shared.into_iter().flatten());
            parts.push(StoredPart { offset: part.offset, bytes: part.bytes, buffers });
        }
        let bytes = layer.iter().fold(0, |sum: u64, p| sum.saturating_add(p.bytes));
        all.push(StoredLayer { parts, bytes });
    }
    Ok((all, memory))
}

impl SlotPart {
    /// Chooses the experts that all threads compute next. Of all threads only one calls this, between two barriers; with
    /// `first` when a node begins. `ids` are the experts of all tokens, one after the other.
    pub fn next_round(&self, first: bool, ids: impl Iterator<Item = usize>) {
        if first && self.part == 0 {
            let mut seen = vec![false; self.store.experts];
            let new = |e: usize| seen.get_mut(e).is_some_and(|s| !std::mem::replace(s, true)).then_some(e);
            let wanted = ids.filter_map(new).filter_map(|e| u16::try_from(e).ok()).collect();
            self.store.begin_op(self.layer, wanted);
        }
        self.store.next_round(self.layer, self.part, first);
    }

    /// The round is the last one of the node.
    pub fn is_last_round(&self) -> bool {
        self.store.round.is_last()
    }

    /// The nth expert of the round.
    pub fn expert(&self, nth: usize) -> Option<usize> {
        self.store.round.expert(nth)
    }

    /// Where an expert is that is computed in this round.
    pub fn buffer(&self, expert: usize) -> Option<&SlotBuffer> {
        let part = self.store.layers.get(self.layer)?.parts.get(self.part)?;
        part.buffers.get(self.store.round.buffer(expert)?).map(|b| &**b)
    }
}
