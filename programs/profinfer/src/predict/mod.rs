//! `profinfer predict`: speed and memory of a model from the head of its file, before it is on the machine.

mod heads;

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::reading::{open, with_bar};
use super::report::{peaks, style};
use analysis::questions::predict_model::recorded::{Recorded, recorded};
use analysis::questions::predict_model::{KnownPeaks, PredictOptions, predict};
use analysis::recorded::load::LoadProgress;
use cli::args::{Args, Argument, Command, Flag, FlagGroup};
use cli::values::{amount, whole};
use ggml::gguf::types::StoredType;

pub const COMMAND: Command = Command {
    name: "predict",
    about: "Predict the speed and memory of a model from the head of its file",
    text: "\
Reads the metadata and the tensor descriptions of a GGUF file. The weights themselves are not needed: the first megabytes of
the file are enough, as long as they contain all tensor descriptions. Of a model in several files, all heads are needed.

Prints the memory for weights, KV cache and intermediate results; tok/s at the start of an answer and with a full context;
and the time to the first token of a prompt.

From the machine's peaks follows a ceiling, which no engine exceeds: memory has to deliver the weights, and the processor to
multiply them. It says nothing about the share that an engine reaches.

From a recording (--from) of any model on the same machine and engine follows a range: matrix products with the measured time
of the same type and size, else scaled; attention by context; other operators by layer. A type that was not recorded is
derived from the nearest one, with a wider range. Times are of the engine's calls, without sampling and without loading.",
    usage: &["MODEL.gguf [OPTIONS]"],
    arguments: &[Argument { name: "MODEL.gguf", help: "Model, or the beginning of its file" }],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: &[
        ("0", "done"),
        ("1", "failed, e.g. the architecture is not known"),
        ("2", "wrong usage"),
        ("3", "the model does not fit the memory: only the memory is printed"),
    ],
    examples: "\
profinfer predict model.gguf                              ceiling on this machine, after 'profinfer doctor --peaks'
profinfer record -o small.pfi -- llama-bench -m small.gguf -t 4 -p 128 -n 64
profinfer predict large.gguf --from small.pfi             what a larger model reaches there
profinfer predict model.gguf --peaks board.json --memory 8GiB -t 4   ceiling on a board
profinfer predict model.gguf --from board.pfi --context 8192 --cache-type q8_0
head -c 32M model.gguf > head.gguf                        on the machine that has the model, if it is a large one",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value(
            "from",
            "TRACE",
            "Recording of any model on the machine to predict for; '-' is standard input",
        ),
        Flag::value(
            "peaks",
            "PEAKS",
            "The machine's GFLOP/s and GB/s, e.g. 280,61, or a file written by 'profinfer doctor --peaks --json' or \
             'ggml-runner peak --json' [default: those of the recording, else those kept of this machine]",
        ),
        Flag::value("threads", "N", "Threads of the engine [default: as recorded, else 1]").short('t'),
        Flag::value("context", "N", "Tokens of the context").default("2048"),
        Flag::value("prompt", "N", "Tokens of the prompt").default("512"),
        Flag::value("ubatch", "N", "Most tokens of the prompt computed at once").default("512"),
        Flag::value("cache-type", "TYPE", "Type of the KV cache, e.g. q8_0").default("f16"),
        Flag::switch(
            "no-flash-attn",
            "Keep all attention scores: without flash attention, more memory is needed",
        ),
        Flag::value(
            "memory",
            "SIZE",
            "Memory of the machine [default: this machine's, if it is predicted for]",
        ),
        Flag::switch("json", "Print JSON: bytes, seconds, tok/s, nanoseconds of the parts"),
    ],
};

fn cache_type(text: &str) -> Result<StoredType, String> {
    let name = text.to_ascii_lowercase();
    let usable = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"];
    StoredType::named(&name)
        .filter(|t| usable.contains(&t.name))
        .ok_or_else(|| format!("expected one of {}", usable.join(", ")))
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let most = u64::from(u32::MAX);
    let file = Path::new(args.needed_argument("MODEL.gguf")?);
    let given = args.option("peaks", peaks::read)?;
    let mut options = PredictOptions {
        threads: args.option("threads", whole(1, 1024))?,
        context: args.needed("context", whole(1, most))?,
        prompt: args.needed("prompt", whole(1, most))?,
        ubatch: args.needed("ubatch", whole(1, most))?,
        cache: args.needed("cache-type", cache_type)?,
        memory: args.option("memory", amount(1 << 20))?,
        flash: !args.flag("no-flash-attn"),
    };
    let from = args.path("from")?;
    let read = heads::read(file)?;
    let recorded = from.as_deref().map(recording).transpose()?;
    let known = given.map(|peaks| KnownPeaks { source: "given", peaks });
    let here = known.is_none() && recorded.as_ref().is_none_or(is_here);
    let known = known
        .or_else(|| if here && recorded.as_ref().is_none_or(|r| r.peaks.is_empty()) { kept() } else { None });
    if here && options.memory.is_none() {
        options.memory = memory();
    }
    let found = predict(&read.shape, recorded.as_ref(), known.as_ref(), &options);
    let mut found = found.with_context(|| format!("cannot predict {}", file.display()))?;
    found.notes.insert(0, read.said);
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        render::json::write(&mut out, &found)?;
    } else {
        render::predict_model::write(&mut out, &found, &style())?;
    }
    out.flush()?;
    Ok(if found.memory.fits == Some(false) { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

fn recording(path: &Path) -> anyhow::Result<Recorded> {
    let trace = open(path, "predict from")?;
    let progress = LoadProgress::default();
    let found = with_bar(&progress, || recorded(&trace, &progress));
    found.with_context(|| format!("cannot predict from {}", path.display()))
}

/// Whether a recording is of a machine like this one.
#[cfg(feature = "agent")]
fn is_here(r: &Recorded) -> bool {
    !r.cpu_model.is_empty() && r.cpu_model == machine::hardware::read().cpu_model
}

#[cfg(not(feature = "agent"))]
fn is_here(_: &Recorded) -> bool {
    false
}

/// The peaks kept of this machine.
#[cfg(feature = "agent")]
fn kept() -> Option<KnownPeaks> {
    let all = machine::peaks::find(&mut |why| eprintln!("profinfer: {why}"));
    peaks::of_rows(&all).map(|peaks| KnownPeaks { source: "measured", peaks })
}

#[cfg(not(feature = "agent"))]
fn kept() -> Option<KnownPeaks> {
    None
}

/// Bytes of memory that this process may use: the machine's, or the limit of its cgroup if that is less.
#[cfg(feature = "agent")]
fn memory() -> Option<u64> {
    machine::target_state::StateReader::default().read(std::process::id()).usable_memory()
}

#[cfg(not(feature = "agent"))]
fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}
