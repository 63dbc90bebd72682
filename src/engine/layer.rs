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
    /// A file beside it that the loader looks for.
    pub manifest: Option<&'static str>,
    /// The variables that make the runtime load it: lists, separated by colons.
    variables: &'static [(&'static str, Entry)],
}

/// What is put at the beginning of a variable's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    File,
    Directory,
    Name(&'static str),
}

pub const LAYERS: [Layer; 2] = [
    Layer {
        runtime: "OpenCL",
        file: "libprofinfer-cl.so",
        manifest: None,
        variables: &[("OPENCL_LAYERS", Entry::File)],
    },
    Layer {
        runtime: "Vulkan",
        file: "libprofinfer-vk.so",
        manifest: Some("VkLayer_profinfer.json"),
        variables: &[
            ("VK_ADD_LAYER_PATH", Entry::Directory),
            ("VK_INSTANCE_LAYERS", Entry::Name("VK_LAYER_PROFINFER_gpu")),
        ],
    },
];

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
    let known = layers.iter().filter_map(|path| Some((path, of(path)?)));
    let all = known.flat_map(|(path, layer)| layer.variables.iter().map(move |v| (path, v)));
    all.map(|(path, (variable, entry))| {
        let mut value = match entry {
            Entry::File => path.clone().into_os_string(),
            Entry::Directory => path.parent().unwrap_or(Path::new("/")).as_os_str().to_owned(),
            Entry::Name(name) => name.into(),
        };
        if let Some(others) = std::env::var_os(variable).filter(|others| !others.is_empty()) {
            value.push(":");
            value.push(others);
        }
        (*variable, value)
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
