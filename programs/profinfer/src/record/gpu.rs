//! Flags of `record` for work on a device.

use std::path::{Path, PathBuf};

use agent::capture::source::GpuDetail;
use agent::recorder::recording::{RecordOptions, Target};
use cli::args::Choice;
use cli::args::{Args, Flag, FlagGroup, Usage};
use cli::values::{choice, whole};
use engine::enqueue::{self, OpProbe};
use engine::layer::{LAYERS, Layer};
use machine::owner;

pub const FLAGS: FlagGroup = FlagGroup {
    title: "Devices",
    flags: &[
        Flag::value("gpu", "DETAIL", "Level of detail for devices, at level op")
            .default("op")
            .one_of::<GpuDetail, _>(),
        Flag::value(
            "op-probe",
            "SYMBOL:ARG",
            "Function that enqueues one node, of a backend that profinfer does not know, and the number of its \
             argument, from 1 to 4, that is the node (ggml_rk_compute_forward:2). It replaces those that profinfer \
             knows; its symbol must be in the backend's library",
        )
        .valid(|text| op_probe(text).map(drop)),
    ],
};

impl Choice<crate::identity::Flags> for GpuDetail {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("off", "their splits only, as for any backend", Self::Off),
        ("split", "the same, plus what each split computes", Self::Split),
        (
            "op",
            "the same, plus when the host enqueues each node, where the backend's function is known, and when the \
             device ran each submission, where the kernel's driver tells it",
            Self::Op,
        ),
        (
            "kernel",
            "the same, plus the device's own times of each kernel, from a layer for OpenCL, Vulkan or CUDA",
            Self::Kernel,
        ),
    ];
}

/// Reads them into the options.
///
/// # Errors
/// None of the choices.
pub fn read(args: &Args, options: &mut RecordOptions) -> Result<(), Usage> {
    options.capture.gpu = args.needed("gpu", choice)?;
    // Names of probes live as long as the program; this one is given once.
    let leak = |(symbol, argument): (&str, u8)| OpProbe { symbol: String::leak(symbol.to_owned()), argument };
    options.op_probe = args.option("op-probe", |text| op_probe(text).map(leak))?;
    if options.op_probe.is_some() && options.capture.gpu < GpuDetail::Op {
        return Err(Usage::new(format!(
            "{}--op-probe needs --gpu op or kernel: without it no node is recorded as enqueued",
            args.place(&["op-probe", "gpu"])
        )));
    }
    Ok(())
}

fn op_probe(text: &str) -> Result<(&str, u8), String> {
    let number = whole(1, enqueue::ARGUMENTS.into());
    let parts = text.rsplit_once(':').filter(|(symbol, _)| !symbol.is_empty());
    let (symbol, argument) = parts.ok_or("expected SYMBOL:ARG, such as ggml_rk_compute_forward:2")?;
    let argument = number(argument).map_err(|why| format!("argument '{argument}': {why}"))?;
    Ok((symbol, argument))
}

/// Where this program's layers are: beside it, or, of a package, whose programs are in a `bin`, in a directory of their own.
fn directory(own: &Path) -> PathBuf {
    let dir = own.parent().unwrap_or(Path::new("/"));
    let packaged = dir.parent().filter(|_| dir.ends_with("bin")).map(|above| above.join("lib/profinfer"));
    packaged.filter(|packaged| packaged.join(LAYERS[0].file).is_file()).unwrap_or_else(|| dir.to_owned())
}

/// Whether these files may become part of an engine: loaders separate paths by colons, and nobody else must be able to
/// change them.
fn loadable(mut files: impl Iterator<Item = PathBuf>) -> Result<(), String> {
    files.try_for_each(|file| {
        let why = match file.as_os_str().as_encoded_bytes().contains(&b':') {
            true => Err("its path has a colon, at which loaders divide it".to_owned()),
            false => owner::only_ours(&file),
        };
        why.map_err(|why| {
            format!("--gpu kernel does not load {}: {why}; move this program and its layers", file.display())
        })
    })
}

/// The layers that a started command loads, for the times of kernels. A running process has loaded its own, or will not.
///
/// # Errors
/// A layer is missing.
pub fn layers(args: &Args, target: &Target, gpu: GpuDetail) -> Result<Vec<PathBuf>, Usage> {
    if gpu < GpuDetail::Kernel || !matches!(target, Target::Command(_)) {
        return Ok(Vec::new());
    }
    let dir = directory(&std::env::current_exe().unwrap_or_default());
    let path = |layer: &Layer| {
        let files = [Some(layer.file), layer.manifest].into_iter().flatten().map(|file| dir.join(file));
        match files.clone().find(|file| !file.is_file()) {
            None => match loadable(files) {
                Ok(()) => Ok(dir.join(layer.file)),
                Err(why) => Err(Usage::new(format!("{}{why}", args.place(&["gpu"])))),
            },
            Some(missing) => Err(Usage::new(format!(
                "{}--gpu kernel needs the layer for {}, and there is no {}: it comes with this program and belongs \
                 beside it (`make layers` builds it)",
                args.place(&["gpu"]),
                layer.runtime,
                missing.display()
            ))),
        }
    };
    LAYERS.iter().map(path).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn layers_are_taken_from_a_package_or_from_beside_the_program() {
        let dir = tempfile::tempdir().expect("a directory");
        let packaged = dir.path().join("lib/profinfer");
        fs::create_dir_all(&packaged).expect("made");
        assert_eq!(directory(&dir.path().join("bin/profinfer")), dir.path().join("bin"));
        fs::write(packaged.join(LAYERS[0].file), "x").expect("written");
        assert_eq!(directory(&dir.path().join("bin/profinfer")), packaged);
        // In /tmp/mine/, what is in /tmp/lib/ is somebody else's.
        assert_eq!(directory(&dir.path().join("mine/profinfer")), dir.path().join("mine"));
    }

    #[test]
    fn a_layer_that_others_can_change_is_not_loaded() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(&path, "x").expect("written");
            path
        };
        let (good, odd) = (at("own/layer.so"), at("a:b/layer.so"));
        assert_eq!(loadable([good.clone()].into_iter()), Ok(()));
        let said = loadable([good.clone(), odd].into_iter()).expect_err("a colon");
        assert!(said.contains("a:b/layer.so: its path has a colon"), "{said}");
        fs::set_permissions(dir.path().join("own"), fs::Permissions::from_mode(0o777)).expect("its mode");
        let said = loadable([good].into_iter()).expect_err("everybody can exchange it");
        assert!(said.contains("other users can change") && said.contains("move this program"), "{said}");
    }
}
