//! Options of the subcommands that run a model: the model, and how to run it.

use super::progress::ProgressLine;
use anyhow::{Context, Result, bail};
use cli::args::{Args, Choice, Flag, FlagGroup, Usage};
use cli::values::{choice, parsed, whole};
use memmap2::Mmap;
use runner::engine::EngineSettings;
use runner::kernels::{ActivationScale, Isa};
use runner::model::{Model, Placement};
use runner::optimise::Steps;
use runner::parts::KernelParts;
use runner::reading::{self, TypeReading};
use runner::slots::SlotSettings;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

/// Read by [`ModelArgs::read`].
pub const FLAGS: FlagGroup = FlagGroup {
    title: "Model and machine",
    flags: &[
        Flag::value(
            "model",
            "FILE",
            "Model file: llama, qwen2, qwen2moe or gemma2 in f32, f16, bf16, q8_0, q4_0, q4_1, q4_K, q5_K, \
             q6_K, iq4_nl, iq4_xs, mxfp4",
        )
        .short('m'),
        Flag::value("threads", "N", "Number of threads [default: number of CPUs]").short('t'),
        Flag::switch("pin", "Pin each thread to its own CPU"),
        ISA,
        Flag::value("placement", "PLACE", "Where to keep the weights")
            .default("auto")
            .one_of::<Placement, _>(),
        Flag::value("activation", "SCALE", "What activations of 8 bits share a scale")
            .default("block")
            .one_of::<ActivationScale, _>(),
    ],
};

// Parsed by the type itself, which the runner's library has without these tables.
impl Choice<crate::identity::Flags> for Placement {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("packed", "repacked in memory", Self::Packed),
        ("mapped", "mapped from the file: slower, for models larger than memory", Self::Mapped),
        ("auto", "packed if the model fits into memory, else mapped", Self::Auto),
    ];
}

impl Choice<crate::identity::Flags> for ActivationScale {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("block", "32 values, or 256 of K types, as in llama.cpp", Self::Block),
        ("token", "all of a token, as in MNN", Self::Token),
    ];
}

/// An instruction set; its default is [`Isa::best`].
pub const ISA: Flag = Flag::value(
    "isa",
    "ISA",
    "Instruction set: scalar, avx2, avx512vnni, neon, dot, i8mm [default: the best available]",
);

/// A model and the way to run it.
#[derive(Clone)]
pub struct ModelArgs {
    pub path: PathBuf,
    /// 1 to the number of CPUs available to this process.
    pub threads: usize,
    /// Pin each thread to its own CPU.
    pub pin: bool,
    /// Supported by this processor.
    pub isa: Isa,
    placement: Placement,
    /// Parts of the kernels to use.
    pub parts: KernelParts,
    /// How experts are kept, if not all are to be in memory.
    pub slots: Option<SlotSettings>,
}

impl ModelArgs {
    /// Reads [`FLAGS`].
    ///
    /// # Errors
    /// No model, or a value that this machine does not support.
    pub fn read(args: &Args) -> Result<Self, Usage> {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        let chosen = Self {
            path: args.path("model")?.ok_or_else(|| args.missing("model"))?,
            threads: args.option("threads", whole(0, u64::MAX))?.unwrap_or(cpus),
            pin: args.flag("pin"),
            isa: args.option("isa", parsed)?.unwrap_or_else(Isa::best),
            placement: args.needed("placement", parsed)?,
            parts: KernelParts { activation: args.needed("activation", choice)?, ..KernelParts::default() },
            slots: None,
        };
        if chosen.threads == 0 || chosen.threads > cpus {
            let asked = chosen.threads;
            return Err(Usage::new(format!("-t {asked}: only {cpus} CPUs are available to this process")));
        }
        if !chosen.isa.available() {
            return Err(Usage::new(format!("--isa {}: not supported by this processor", chosen.isa)));
        }
        Ok(chosen)
    }

    /// Opens the model's file.
    ///
    /// # Errors
    /// There is none, or it cannot be mapped into memory.
    pub fn open(&self) -> Result<File> {
        let shown = self.path.display();
        if self.path.as_os_str() == "-" {
            bail!("the model is memory-mapped and cannot be read from standard input: give a file");
        }
        let file = File::open(&self.path).with_context(|| format!("open {shown}"))?;
        let kind = file.metadata().with_context(|| format!("open {shown}"))?.file_type();
        match kind.is_file() {
            true => Ok(file),
            false if kind.is_dir() => bail!("{shown} is a directory: give a model file"),
            false => bail!("{shown} is not a regular file"),
        }
    }

    /// Maps the model's file into memory.
    ///
    /// # Errors
    /// There is none, or it cannot be mapped.
    pub fn map(&self) -> Result<Mmap> {
        let file = self.open()?;
        // SAFETY: as for the model itself: everything read from the map is checked, and truncating the file while it
        // is mapped ends the process.
        unsafe { Mmap::map(&file) }.with_context(|| format!("map {}", self.path.display()))
    }

    /// Another model, run in the same way.
    pub fn another(&self, path: PathBuf) -> Self {
        Self { path, ..self.clone() }
    }

    /// Loads the model; shows progress on standard error, and where the weights are if not in fast memory.
    ///
    /// # Errors
    /// The file is not a model or cannot be run.
    pub fn load(&self) -> Result<Model> {
        let shown = self.path.display();
        let mut progress = ProgressLine::new("loading", self.open()?.metadata().map_or(0, |m| m.len()));
        let slots = self.slots.as_ref();
        let model =
            Model::load_in_slots(&self.path, self.isa, self.placement, self.parts, slots, |done, _| {
                progress.add(done);
            });
        drop(progress);
        let model = model.with_context(|| shown.to_string())?;
        if self.placement == Placement::Auto
            && self.parts.layout
            && model.weights.placement == Placement::Mapped
        {
            let _ = writeln!(
                io::stderr(),
                "ggml-runner: {shown} does not fit into free memory: using the weights in the file, which \
                 is slower (--placement mapped silences this notice)"
            );
        }
        Ok(model)
    }

    /// Settings of an engine that runs the model as asked, with all steps of its graph.
    pub fn settings(&self, context: usize) -> EngineSettings {
        EngineSettings {
            context,
            threads: self.threads,
            decode_threads: self.threads,
            pin: self.pin,
            two_backends: false,
            steps: Steps::ALL,
            truth: None,
        }
    }

    /// Measures how this machine reads the model's weights fastest for one token, unless prefetching was left out.
    ///
    /// # Errors
    /// Threads are not available.
    pub fn choose_readings(&self, model: &Model, threads: usize) -> Result<Vec<TypeReading>> {
        if !self.parts.prefetch {
            return Ok(Vec::new());
        }
        reading::of_model(&model.weights, threads).context("measure how weights are read fastest")
    }
}
