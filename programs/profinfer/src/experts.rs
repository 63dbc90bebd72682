//! `profinfer experts`: which experts of a model to keep, and what caches of them would bring.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::reading::{named_or_newest, not_over, open, with_bar};
use super::report::style;
use super::storage::{self, Batches};
use analysis::questions::experts::simulate::ReadTimes;
use analysis::questions::experts::{CacheOptions, ExpertCaches, experts};
use analysis::recorded::load::LoadProgress;
use cli::args::{Args, Argument, Choices, Command, Flag, FlagGroup, Usage};
use cli::output::{FORCE, MODE, OutputRules};
use cli::values::{amount, any_of, parsed, time, whole};
use ggml::expert_pins::PinFile;

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
memory. Of a run whose model did not fit, the experts that were read from the disk meanwhile are listed: its file must be mapped,
and recorded by root.",
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
profinfer experts run.pfi --slots 8 --by prompt           does a list of some requests serve the others?
profinfer experts run.pfi --svg experts.svg               hit rates over slots, and hits and misses over tokens
profinfer experts run.pfi --memory 6GiB --ot              which layers' experts llama.cpp should leave on a device of 6 GiB
profinfer experts run.pfi --csv > pin.csv                 experts by use, for 'ggml-runner run --expert-policy pin:pin.csv'
profinfer experts run.pfi --json | jq '.caches[] | select(.policy == \"lru\")'",
    run,
};

/// Experts read at the same time whose times are measured; more take as much in proportion.
const MOST_TOGETHER: u32 = 16;

/// What else is listed.
const BY: &[(&str, &str)] = &[("prompt", "each request, and which list of pinned experts serves it")];

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
        Flag::value("by", "WHAT", "List further rows").choices(Choices::from_fn(|i| BY.get(i).copied())),
        Flag::value("svg", "OUT", "Write a picture to this file; '-' is standard output").excludes(&["json", "csv"]),
        FORCE,
        MODE,
        Flag::value(
            "pid",
            "PID[:N]",
            "Process to show, or its N-th context [default: the one with the most calls]",
        ),
        Flag::switch("json", "Print JSON: nanoseconds, bytes, ratios (1 = 100 %)"),
        Flag::switch("csv", "Print the experts of each layer by use as comma-separated values")
            .excludes(&["json"]),
        Flag::switch(
            "ot",
            "Print the option of llama.cpp that leaves on the device the experts of as many layers as --memory holds, and the \
             others to the CPU",
        )
        .needs(&["memory"])
        .excludes(&["json", "csv", "svg"]),
    ],
};

fn by(what: &str) -> Result<(), String> {
    let known = BY.iter().any(|(name, _)| *name == what);
    if known { Ok(()) } else { Err(format!("expected {}", any_of(BY.iter().map(|(name, _)| *name)))) }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = named_or_newest(args.argument("FILE"))?;
    let mut options = CacheOptions {
        pid: args.option("pid", parsed)?,
        slots: args.list("slots", whole(1, 1024))?,
        memory: args.option("memory", amount(1 << 20))?,
        pins: args.path("pins")?.map(|path| PinFile::read(&path)).transpose()?,
        by_prompt: args.option("by", by)?.is_some(),
        picture: args.flag("svg"),
        times: ReadTimes {
            ns: args.option("read-time", time)?.map(|t| t.as_nanos() as f64).into_iter().collect(),
        },
    };
    let storage: Option<PathBuf> = args.path("storage")?;
    if storage.as_ref().is_some_and(|s| s.as_os_str() == "-") {
        return Err(Usage::new("--storage: give a file, not standard input").into());
    }
    let picture = args.path("svg")?.map(|out| anyhow::Ok((out, OutputRules::read(args)?))).transpose()?;
    if let Some((out, rules)) = &picture {
        not_over(out, &file)?;
        rules.check(out)?;
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
            cached: false,
        };
        options.times = storage::read_times(&storage, &batches)?;
        found = read(&options)?;
    }
    if let Some((out, rules)) = picture {
        let chart = render::expert_chart::chart(&found);
        return super::dag::write(&out, rules, |out| render::chart::file(out, &chart));
    }
    write(args, &found)?;
    Ok(ExitCode::SUCCESS)
}

fn write(args: &Args, found: &ExpertCaches) -> anyhow::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        render::json::write(&mut out, found)?;
    } else if args.flag("ot") {
        render::expert_caches::overrides(&mut out, found)?;
    } else if args.flag("csv") {
        render::expert_caches::csv(&mut out, found)?;
    } else {
        render::expert_caches::write(&mut out, found, &style())?;
    }
    Ok(out.flush()?)
}
