//! Options of the subcommands that run a model: which one, and how. Uses `runner::model`.

use super::progress::Progress;
use crate::cli::args::{Args, Flag, Group, Usage};
use crate::cli::values::{parsed, whole};
use crate::runner::kernels::Isa;
use crate::runner::model::{Model, Placement};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// Read by [`Chosen::read`].
pub const FLAGS: Group = Group {
    title: "Model and machine",
    flags: &[
        Flag::value(
            "model",
            "FILE",
            "The model: llama, qwen2, qwen2moe or gemma2 in f32, f16, bf16, q8_0, q4_0, q4_1, q4_K, q6_K",
        )
        .short('m'),
        Flag::value("threads", "N", "Threads [default: CPUs]").short('t'),
        Flag::switch("pin", "Keep each thread on a CPU of its own"),
        ISA,
        Flag::value("placement", "PLACE", "Where weights lie").default("auto").choices(&[
            ("packed", "repacked in memory"),
            ("mapped", "in the file: slower, for models larger than memory"),
            ("auto", "packed where the model fits into memory, else mapped"),
        ]),
    ],
};

/// An instruction set; its default is [`Isa::best`].
pub const ISA: Flag = Flag::value(
    "isa",
    "ISA",
    "Instruction set: scalar, avx2, avx512vnni, neon, dot, i8mm [default: the best there is]",
);

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
    /// Reads [`FLAGS`].
    ///
    /// # Errors
    /// No model, or a value that this machine can't do.
    pub fn read(args: &Args) -> Result<Self, Usage> {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let chosen = Self {
            path: args.path("model")?.ok_or_else(|| args.missing("model"))?,
            threads: args.option("threads", whole(0, u64::MAX))?.unwrap_or(cpus),
            pin: args.flag("pin"),
            isa: args.option("isa", parsed)?.unwrap_or_else(Isa::best),
            placement: args.needed("placement", parsed)?,
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
