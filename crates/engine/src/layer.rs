//! Layers: libraries that a device's runtime loads into the engine's process because an environment variable says so.
//! They hand over the times of kernels (crates/layers).

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::discover::EngineModule;
use crate::elf::{ElfError, ElfFile};
use machine::open;

/// One layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// The runtime that loads it.
    pub runtime: &'static str,
    pub file: &'static str,
    /// A file beside it that the loader looks for.
    pub manifest: Option<&'static str>,
    /// The variables that make the runtime load it.
    variables: &'static [(&'static str, Entry)],
}

/// What is put into a variable: at the beginning of its list, separated by colons, except where said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    File,
    Directory,
    Name(&'static str),
    /// The file, in a variable that holds one.
    OnlyFile,
}

pub const LAYERS: [Layer; 3] = [
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
    Layer {
        runtime: "CUDA",
        file: "libprofinfer-cu.so",
        manifest: None,
        variables: &[("CUDA_INJECTION64_PATH", Entry::OnlyFile)],
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

/// Variables of a started command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Variables {
    pub set: Vec<(&'static str, OsString)>,
    /// Those that already name another library and hold one only, with the runtime whose layer is therefore not loaded.
    pub kept: Vec<(&'static str, &'static str)>,
}

/// The variables that make runtimes load these layers, before those that the environment already names.
pub fn variables(layers: &[PathBuf], environ: impl Fn(&str) -> Option<OsString>) -> Variables {
    let mut all = Variables::default();
    for path in layers {
        let Some(layer) = LAYERS.iter().find(|l| path.file_name().is_some_and(|name| name == l.file)) else {
            continue;
        };
        for (variable, entry) in layer.variables {
            let others = environ(variable).filter(|others| !others.is_empty());
            let mut value = match entry {
                Entry::File | Entry::OnlyFile => path.clone().into_os_string(),
                Entry::Directory => path.parent().unwrap_or(Path::new("/")).as_os_str().to_owned(),
                Entry::Name(name) => name.into(),
            };
            match (entry, others) {
                (Entry::OnlyFile, Some(other)) if other != value => {
                    all.kept.push((layer.runtime, variable));
                    continue;
                }
                (Entry::OnlyFile, _) | (_, None) => {}
                (_, Some(others)) => {
                    value.push(":");
                    value.push(others);
                }
            }
            all.set.push((variable, value));
        }
    }
    all
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(environ: &[(&str, &str)]) -> Variables {
        let paths = LAYERS.map(|l| Path::new("/opt/p").join(l.file));
        variables(&paths, |name| environ.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn each_runtime_is_given_its_layer() {
        let own = [
            ("OPENCL_LAYERS", "/opt/p/libprofinfer-cl.so"),
            ("VK_ADD_LAYER_PATH", "/opt/p"),
            ("VK_INSTANCE_LAYERS", "VK_LAYER_PROFINFER_gpu"),
            ("CUDA_INJECTION64_PATH", "/opt/p/libprofinfer-cu.so"),
        ];
        let expected =
            Variables { set: own.map(|(name, value)| (name, value.into())).into(), kept: Vec::new() };
        assert_eq!(of(&[]), expected);
        let again = [("CUDA_INJECTION64_PATH", "/opt/p/libprofinfer-cu.so"), ("OPENCL_LAYERS", "")];
        assert_eq!(of(&again), expected);
    }

    #[test]
    fn what_the_environment_names_stays() {
        let all = of(&[("OPENCL_LAYERS", "other.so"), ("CUDA_INJECTION64_PATH", "/opt/nsys.so")]);
        assert_eq!(all.set[0].1, "/opt/p/libprofinfer-cl.so:other.so");
        assert!(!all.set.iter().any(|(name, _)| *name == "CUDA_INJECTION64_PATH"), "{all:?}");
        assert_eq!(all.kept, [("CUDA", "CUDA_INJECTION64_PATH")]);
    }
}
