//! `profinfer experts`: which experts of a model to keep, and what caches of them would bring.

mod storage;

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::reading::{named_or_newest, open, with_bar};
use super::report::style;
use analysis::questions::experts::simulate::ReadTimes;
use analysis::questions::experts::{CacheOptions, ExpertCaches, experts};
use analysis::recorded::load::LoadProgress;
use cli::args::{Args, Argument, Command, Flag, FlagGroup, Usage};
use cli::values::{amount, parsed, time, whole};
use ggml::expert_pins::PinFile;
use storage::Batches;

pub const COMMAND: Command = Command {
    name: "experts",
    about: "Predict caches of experts: which experts to keep, how many, and what it brings",
    text: "\
For a mixture-of-experts model that does not fit into memory. Replays the recorded experts (record --experts) through caches of
several sizes, each expert of a layer in a slot of its own:

  lru      the expert that was needed the longest time ago makes room
  lfu      the one that was needed least often makes room
  next     lru, and the experts likely to follow those of the layer before are read early
  pin      the experts needed most stay: those of one half of the requests for the other half, or those of --pins
  optimum  what no cache can exceed that reads an expert when it is needed (Belady)

A hit is an expert that is in a slot when its layer begins. The rates are those of decode; prompts go through the caches as well.
With what reading an expert takes, tokens per second are predicted from the time of a token as recorded: record with enough
memory.",
    usage: &["[FILE] [OPTIONS]"],
    arguments: &[Argument {
        name: "FILE",
        help: "Trace to read; '-' is standard input [default: the newest *.pfi here]",
    }],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
profinfer experts run.pfi                                 hit rates for four sizes
profinfer experts run.pfi --memory 6GiB --storage model.gguf   tok/s with 6 GiB of experts, on this disk
profinfer experts run.pfi --slots 8,16,32 --read-time 1.8ms
profinfer experts run.pfi --slots 8 --pins other.csv      does the list of another recording serve this one?
profinfer experts run.pfi --csv > pin.csv                 experts by use, for 'ggml-runner run --expert-policy pin:pin.csv'
profinfer experts run.pfi --json | jq '.caches[] | select(.policy == \"lru\")'",
    run,
};

/// Experts read at the same time whose times are measured; more take as much in proportion.
const MOST_TOGETHER: u32 = 16;

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("slots", "N", "Experts per layer to keep (repeat, or separate by commas)").many(),
        Flag::value("memory", "SIZE", "Memory for the experts of all layers, e.g. 6GiB").excludes(&["slots"]),
        Flag::value(
            "pins",
            "FILE",
            "Experts that 'pin' keeps: a list as --csv prints, of another recording [default: those of one half of this one for \
             the other]",
        ),
        Flag::value("read-time", "TIME", "What reading one expert of a layer takes, e.g. 1.8ms; several take as much each"),
        Flag::value(
            "storage",
            "MODEL",
            "Measure it, for one expert and for several at the same time: random reads of this file, around the page cache",
        )
        .excludes(&["read-time"]),
        Flag::value("readers", "N", "Threads that read then, as many as the engine has").default("4"),
        Flag::value(
            "pid",
            "PID[:N]",
            "Process to show, or its N-th context [default: the one with the most calls]",
        ),
        Flag::switch("json", "Print JSON: nanoseconds, bytes, ratios (1 = 100 %)"),
        Flag::switch("csv", "Print the experts of each layer by use as comma-separated values")
            .excludes(&["json"]),
    ],
};

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = named_or_newest(args.argument("FILE"))?;
    let mut options = CacheOptions {
        pid: args.option("pid", parsed)?,
        slots: args.list("slots", whole(1, 1024))?,
        memory: args.option("memory", amount(1 << 20))?,
        pins: args.path("pins")?.map(|path| PinFile::read(&path)).transpose()?,
        times: ReadTimes {
            ns: args.option("read-time", time)?.map(|t| t.as_nanos() as f64).into_iter().collect(),
        },
    };
    let storage: Option<PathBuf> = args.path("storage")?;
    if storage.as_ref().is_some_and(|s| s.as_os_str() == "-") {
        return Err(Usage::new("--storage: give a file, not standard input").into());
    }
    let shown = file.to_string_lossy();
    let trace = open(&file, "read")?;
    let progress = LoadProgress::default();
    let read = |options: &CacheOptions| {
        with_bar(&progress, || experts(&trace, options, &progress))
            .with_context(|| shown.clone().into_owned())
    };
    let mut found = read(&options)?;
    if let Some(storage) = storage {
        if found.expert_matrices.is_empty() {
            bail!("{shown}: the bytes of an expert are not known: give --read-time instead of --storage");
        }
        let batches = Batches {
            matrices: &found.expert_matrices,
            most: found.used.min(MOST_TOGETHER) as usize,
            readers: args.needed("readers", whole(1, 256))?,
        };
        options.times = storage::read_times(&storage, &batches)?;
        found = read(&options)?;
    }
    write(args, &found)?;
    Ok(ExitCode::SUCCESS)
}

fn write(args: &Args, found: &ExpertCaches) -> anyhow::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        render::json::write(&mut out, found)?;
    } else if args.flag("csv") {
        render::expert_caches::csv(&mut out, found)?;
    } else {
        render::expert_caches::write(&mut out, found, &style())?;
    }
    Ok(out.flush()?)
}
