//! Layers: libraries that a graphics runtime loads into the engine's process because an environment variable says so.
//! They hand over the times of kernels (crates/layers).

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::discover::EngineModule;
use crate::engine::elf::{ElfError, ElfFile};
use crate::host::open;

/// One layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// The runtime that loads it.
    pub runtime: &'static str,
    pub file: &'static str,
    /// The variable with a list of paths, separated by colons.
    pub variable: &'static str,
}

pub const LAYERS: [Layer; 1] =
    [Layer { runtime: "OpenCL", file: "libprofinfer-cl.so", variable: "OPENCL_LAYERS" }];

/// Why a layer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Elf(#[from] ElfError),
    #[error("{} is not a layer of profinfer: it does not have profinfer_gpu_kernels", path.display())]
    NotALayer { path: PathBuf },
}

/// The variables that make runtimes load these layers, before those that the environment already names.
pub fn variables(layers: &[PathBuf]) -> Vec<(&'static str, OsString)> {
    let of = |path: &PathBuf| LAYERS.iter().find(|l| path.file_name().is_some_and(|name| name == l.file));
    let known = layers.iter().filter_map(|path| Some((of(path)?.variable, path)));
    known
        .map(|(variable, path)| {
            let mut value = path.clone().into_os_string();
            if let Some(others) = std::env::var_os(variable).filter(|others| !others.is_empty()) {
                value.push(":");
                value.push(others);
            }
            (variable, value)
        })
        .collect()
}

/// The layer in a file, as a module of an engine.
///
/// # Errors
/// The file cannot be read, or is something else.
pub fn module(path: &Path) -> Result<EngineModule, LayerError> {
    let io = |source| LayerError::Io { path: path.to_owned(), source };
    let file = Arc::new(open::regular(path).map_err(io)?);
    let meta = file.metadata().map_err(io)?;
    let elf = ElfFile::of(file.clone(), path.display().to_string(), Arc::default())?;
    let module = EngineModule::new(elf, path.to_owned(), path.to_owned(), (meta.dev(), meta.ino()));
    match module.roles.layer {
        true => Ok(EngineModule { file: Some(file), ..module }),
        false => Err(LayerError::NotALayer { path: path.to_owned() }),
    }
}
