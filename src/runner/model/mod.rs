//! A model: hyper-parameters, weights and the graphs of its architecture. May use `compute`, `kernels`, `abi`, `ggml`.
//!
//! Everything that comes from the file is checked before it is used: [`params`] the metadata, [`weights`] the tensors.

mod arch;
mod builder;
pub mod cache;
pub mod error;
pub mod graph;
pub mod memory;
pub mod params;
mod space;
pub mod weights;

pub use error::ModelError;
pub use params::{Arch, Params};
pub use weights::{Placement, Weights};

use crate::ggml::gguf::reader::Gguf;
use crate::runner::kernels::Isa;
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
}

impl Model {
    /// Maps and checks the file, and packs its matrices. `progress` is told (bytes done since the last call, bytes of
    /// the file).
    ///
    /// # Errors
    /// A file that can't be read, is no complete model of a supported architecture, or does not fit into memory.
    pub fn load(
        path: &Path,
        isa: Isa,
        placement: Placement,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self, ModelError> {
        let failed = |source| ModelError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        // SAFETY: a file that is cut while it is mapped ends the process with SIGBUS, as with every mapped model;
        // content that changes under us is never trusted for lengths after the checks.
        let map = Arc::new(unsafe { Mmap::map(&file) }.map_err(failed)?);
        let gguf = Gguf::parse(&map)?;
        let params = Params::read(&gguf)?;
        let total = map.len() as u64;
        let mut told = |done| progress(done, total);
        let order = weights::Order { isa, placement, progress: &mut told };
        let weights = weights::load(&gguf, &map, &params, order)?;
        Ok(Self { params, weights, isa })
    }
}
