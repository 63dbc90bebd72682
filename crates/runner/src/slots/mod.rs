//! Experts in slots: a model of experts that does not fit into memory keeps a few of each layer, and reads others from its
//! file when they are needed.
//!
//! Which expert stays and which is read is decided by [`ggml::expert_cache`] alone, in an order that a recording of the
//! experts repeats exactly. The set of an op is the distinct experts of the graph's tokens in a layer, in the order in which
//! they appear first, token by token. For each graph, for each layer L with such an op, in order:
//!
//! 1. `need(set of L)` on the slots of L.
//! 2. In a graph of one token, with [`SlotPolicy::Next`]: if L is not the first, `learn(set of L-1, set of L)` on the
//!    successors of L-1; then, if L is not the last, `expect(after(set of L), size of the set of L)` on the slots of L+1.
//!
//! All reads that this names are done, and no others. Those of an op are asked for before the early ones for the next layer,
//! and threads begin them in that order. [`ExpertStore`] computes an op in rounds: first the experts that are there, then
//! those that were read meanwhile, so that an expert is never computed with before it is complete, and never replaced before
//! it was computed with.
//!
//! Uses the kernels and facts about GGML; `compute` and `model` use it.

mod buffer;
mod counts;
mod op;
mod readers;
mod source;
mod store;
#[cfg(test)]
mod tests;

pub use buffer::{PartShape, SlotBuffer};
pub use counts::{PhaseReport, PhasesReport, SlotCounts, SlotPhase, SlotReport};
pub use readers::ExpertReadError;
pub use source::ExpertsFrom;
pub use store::{ExpertPart, ExpertStore, SlotPart};

use crate::kernels::MatrixError;
use ggml::expert_pins::{PinError, PinFile};

/// Threads that read experts, unless another number is asked for: one alone does not keep a disk busy.
pub const READERS: usize = 4;

/// Which expert goes, and which are read early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotPolicy {
    /// The one that was needed the longest time ago goes.
    Lru,
    /// The one that was needed least often goes.
    Lfu,
    /// None goes; these stay from the beginning.
    Pin(PinFile),
    /// As with `Lru`; and when a token has chosen its experts of a layer, those that are likely in the next are read.
    Next,
}

impl SlotPolicy {
    /// Its name, without the file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Pin(_) => "pin",
            Self::Next => "next",
        }
    }
}

/// How a model's experts are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSettings {
    /// Slots of each layer.
    pub slots: usize,
    pub policy: SlotPolicy,
    pub from: ExpertsFrom,
    /// Threads that read; at least 1.
    pub readers: usize,
}

/// Why a model's experts cannot be kept in slots.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    #[error(
        "this model ({0}) has no experts, so it cannot keep some of them in slots: run it without --expert-slots"
    )]
    NoExperts(&'static str),
    #[error(transparent)]
    Pin(#[from] PinError),
    #[error("read experts from the model file: {0}")]
    Source(std::io::Error),
    #[error("start a thread that reads experts: {0}")]
    Thread(std::io::Error),
    #[error("memory for experts: {0}")]
    Memory(#[from] MatrixError),
    #[error(transparent)]
    Read(#[from] ExpertReadError),
}
