//! Options of the subcommands that run a model: which one, and how. Uses `runner::model`.

use super::args::{Args, Usage};
use super::progress::Progress;
use crate::runner::kernels::Isa;
use crate::runner::model::{Model, Placement};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// A model and the way to run it.
pub struct Chosen {
    pub path: PathBuf,
    /// 1 to the CPUs that this process has.
    pub threads: usize,
    /// Each thread stays on a CPU of its own.
    pub pin: bool,
    /// One that this processor has.
    pub isa: Isa,
    placement: Placement,
}

impl Chosen {
    /// Reads `-m`, `-t`, `--pin`, `--isa` and `--placement`.
    ///
    /// # Errors
    /// No model, or a value that this machine can't do.
    pub fn read(args: &mut Args) -> Result<Self, Usage> {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let chosen = Self {
            path: args.text(&["-m", "--model"])?.ok_or_else(|| Usage::new("-m FILE is needed"))?.into(),
            threads: args.option(&["-t", "--threads"])?.unwrap_or(cpus),
            pin: args.flag(&["--pin"]),
            isa: args.option(&["--isa"])?.unwrap_or_else(Isa::best),
            placement: args.option(&["--placement"])?.unwrap_or_default(),
        };
        if chosen.threads == 0 || chosen.threads > cpus {
            let asked = chosen.threads;
            return Err(Usage::new(format!("-t {asked}: this machine has {cpus} CPUs for this process")));
        }
        if !chosen.isa.available() {
            return Err(Usage::new(format!("--isa {}: this processor does not have it", chosen.isa)));
        }
        Ok(chosen)
    }

    /// Opens the model's file.
    ///
    /// # Errors
    /// There is none, or it is something that can't be mapped into memory.
    pub fn open(&self) -> Result<File> {
        let shown = self.path.display();
        if self.path.as_os_str() == "-" {
            bail!("a model is mapped into memory, so it can't come from standard input: give a file");
        }
        let file = File::open(&self.path).with_context(|| format!("open {shown}"))?;
        let kind = file.metadata().with_context(|| format!("open {shown}"))?.file_type();
        match kind.is_file() {
            true => Ok(file),
            false if kind.is_dir() => bail!("{shown} is a directory: give a model file"),
            false => bail!("{shown} is no regular file, which a model must be"),
        }
    }

    /// Loads the model; says on standard error how far it is, and where the weights are if not where they are fast.
    ///
    /// # Errors
    /// A file that is no model or can't be run.
    pub fn load(&self) -> Result<Model> {
        let shown = self.path.display();
        let mut progress = Progress::new("loading", self.open()?.metadata().map_or(0, |m| m.len()));
        let model = Model::load(&self.path, self.isa, self.placement, |done, _| progress.add(done));
        drop(progress);
        let model = model.with_context(|| shown.to_string())?;
        if self.placement == Placement::Auto && model.weights.placement == Placement::Mapped {
            let _ = writeln!(
                io::stderr(),
                "ggml-runner: {shown} does not fit into the free memory: its weights stay in the file, which is \
                 slower (--placement mapped says the same without this notice)"
            );
        }
        Ok(model)
    }
}
