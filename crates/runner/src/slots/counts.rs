//! What the slots brought: hits, reads and waiting, by phase and layer. Uses nothing else.

use serde::Serialize;
use std::ops::AddAssign;
use std::time::Duration;

/// What a call of the engine is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotPhase {
    /// Before the measurement.
    WarmUp,
    /// More than one token.
    Prefill,
    /// One token.
    Decode,
}

/// Counts of some ops; an op is a layer's experts in one graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotCounts {
    pub ops: u64,
    /// Experts that the ops needed, each once in an op.
    pub needed: u64,
    /// Those that were in a slot when the op began.
    pub hits: u64,
    /// Experts that were read because an op needed them.
    pub demand_reads: u64,
    /// Experts that were read because they were likely to be needed.
    pub early_reads: u64,
    /// Bytes of both in the file.
    pub read_bytes: u64,
    /// Time in which the computing threads could only wait for reads.
    pub wait: Duration,
}

impl AddAssign for SlotCounts {
    fn add_assign(&mut self, more: Self) {
        self.ops += more.ops;
        self.needed += more.needed;
        self.hits += more.hits;
        self.demand_reads += more.demand_reads;
        self.early_reads += more.early_reads;
        self.read_bytes += more.read_bytes;
        self.wait += more.wait;
    }
}

/// Counts of a layer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LayerCounts {
    phases: [SlotCounts; 3],
}

impl LayerCounts {
    pub(super) fn of(&mut self, phase: SlotPhase) -> &mut SlotCounts {
        let [warm_up, prefill, decode] = &mut self.phases;
        match phase {
            SlotPhase::WarmUp => warm_up,
            SlotPhase::Prefill => prefill,
            SlotPhase::Decode => decode,
        }
    }
}

/// Counts as they are printed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhaseReport {
    pub ops: u64,
    pub needed: u64,
    pub hits: u64,
    /// Hits of the needed experts, 0 to 1; none if none was needed.
    pub hit_rate: Option<f64>,
    pub demand_reads: u64,
    pub early_reads: u64,
    pub read_bytes: u64,
    pub wait_ms: f64,
}

impl From<SlotCounts> for PhaseReport {
    fn from(c: SlotCounts) -> Self {
        let hit_rate = (c.needed > 0).then(|| c.hits as f64 / c.needed as f64);
        let SlotCounts { ops, needed, hits, demand_reads, early_reads, read_bytes, wait } = c;
        let wait_ms = (wait.as_secs_f64() * 1e9).round() / 1e6;
        Self { ops, needed, hits, hit_rate, demand_reads, early_reads, read_bytes, wait_ms }
    }
}

/// A layer, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhasesReport {
    /// Calls before the measurement.
    pub warm_up: PhaseReport,
    pub prefill: PhaseReport,
    pub decode: PhaseReport,
}

impl From<&[LayerCounts]> for PhasesReport {
    fn from(layers: &[LayerCounts]) -> Self {
        let [warm_up, prefill, decode] = [0, 1, 2].map(|phase| {
            let mut sum = SlotCounts::default();
            layers.iter().filter_map(|l| l.phases.get(phase)).for_each(|c| sum += *c);
            PhaseReport::from(sum)
        });
        Self { warm_up, prefill, decode }
    }
}

/// A layer with its number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerReport {
    pub layer: usize,
    #[serde(flatten)]
    pub counts: PhasesReport,
}

/// How experts were kept, and what that brought.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlotReport {
    pub policy: &'static str,
    /// Slots of each layer.
    pub slots: usize,
    /// Experts of each layer.
    pub experts: usize,
    /// `disk` or `memory`.
    pub from: &'static str,
    /// `direct`: reads that bypass the page cache; `buffered`: reads through it; `memory`: copies from the mapped file.
    pub access: &'static str,
    /// Threads that read.
    pub readers: usize,
    /// Memory of all slots, and of the buffers for experts that do not stay.
    pub slot_bytes: u64,
    /// Experts that were pinned when the model was loaded, and their bytes in the file.
    pub pinned_reads: u64,
    pub pinned_bytes: u64,
    #[serde(flatten)]
    pub counts: PhasesReport,
    pub layers: Vec<LayerReport>,
}
