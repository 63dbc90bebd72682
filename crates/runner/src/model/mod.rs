//! A model: hyper-parameters, weights and the graphs of its architecture.
//!
//! Everything from the file is checked before use: the metadata in [`params`], the tensors in [`weights`].

mod arch;
mod builder;
pub mod cache;
pub mod error;
mod exported;
pub mod graph;
pub mod memory;
pub mod params;
mod space;
pub mod weights;

pub use error::ModelError;
pub use params::{Arch, GraphForm, Params};
pub use weights::{Placement, Weights};

use crate::kernels::attention::multiplies_halves;
use crate::kernels::{Isa, Reading};
use crate::parts::KernelParts;
use crate::slots::SlotSettings;
use ggml::gguf::reader::Gguf;
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// A model that is ready to run.
pub struct Model {
    pub params: Params,
    pub weights: Weights,
    /// Instruction set that the weights are packed for.
    pub isa: Isa,
    /// Parts of the kernels that are used.
    pub parts: KernelParts,
}

impl Model {
    /// Maps and checks the file, and packs its matrices. `progress` receives (bytes done since the last call,
    /// bytes of the file).
    ///
    /// # Errors
    /// The file can't be read, is not a complete model of a supported architecture, or does not fit into memory.
    pub fn load(
        path: &Path,
        isa: Isa,
        placement: Placement,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, ModelError> {
        Self::load_with(path, isa, placement, KernelParts::default(), progress)
    }

    /// The same without some parts of the kernels.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_with(
        path: &Path,
        isa: Isa,
        placement: Placement,
        parts: KernelParts,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, ModelError> {
        Self::load_in_slots(path, isa, placement, parts, None, progress)
    }

    /// The same with some of each layer's experts in memory at a time, if there are settings for that.
    ///
    /// # Errors
    /// As [`Self::load`], and if the model has no experts, or those to pin do not exist.
    pub fn load_in_slots(
        path: &Path,
        isa: Isa,
        placement: Placement,
        parts: KernelParts,
        slots: Option<&SlotSettings>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self, ModelError> {
        let placement = if parts.layout { placement } else { Placement::Mapped };
        let failed = |source| ModelError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        // SAFETY: truncating a file while it is mapped kills the process with SIGBUS, as with every mapped model;
        // after the checks, no length is read from the mapping again, so changing content does no harm.
        let map = Arc::new(unsafe { Mmap::map(&file) }.map_err(failed)?);
        let gguf = Gguf::parse(&map)?;
        let params = Params::read(&gguf)?;
        let total = map.len() as u64;
        let mut told = |done| progress(done, total);
        let slots = slots.map(|settings| (settings, file));
        let order = weights::LoadOptions { isa, placement, parts, slots, progress: &mut told };
        let weights = weights::load(&gguf, &map, &params, order)?;
        if !parts.prefetch {
            weights.set_reading(None, Reading::PLAIN);
        }
        Ok(Self { params, weights, isa, parts })
    }

    /// Name of the instruction set, with `+fhm` where attention multiplies f16 values as they are.
    pub fn isa_name(&self) -> String {
        let halves = self.parts.attention && self.parts.halves && multiplies_halves(self.isa);
        format!("{}{}", self.isa, if halves { "+fhm" } else { "" })
    }
}
