//! `ggml-runner run`: measures tokens per second, and prints the ids that a model generates.

use super::experts;
use super::model::{self, ModelArgs};
use super::random::Random;
use super::roofline::{Figures, MeasuredPhase, Share, rounded};
use super::sampling::{self, Sampling};
use anyhow::{Context, Result, bail};
use cli::args::{Args, Choice, Command, Flag, FlagGroup, Usage};
use cli::output::{self, FORCE, OutputRules, Overwrite, SHARED};
use cli::values::{choice, parsed, whole};
use common::plain::clean;
use runner::compute::Slow;
use runner::engine::{EngineSettings, RunnerEngine, UBATCH};
use runner::kernels::Reading;
use runner::model::{Model, memory};
use runner::optimise::dump::Stage;
use runner::optimise::{Report, Steps};
use runner::parts::KernelParts;
use runner::reading::{ReadingChoice, TypeReading};
use runner::slots::SlotReport;
use runner::truth::{IDS_HEAD, Truth};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const COMMAND: Command = Command {
    name: "run",
    about: "Run a GGUF model and print tokens per second, like llama-bench",
    text: "\
Processes a prompt (prefill), then generates tokens one by one (decode). Prints the tokens per second of both, and the IDs
of the generated tokens.",
    usage: &["-m FILE [OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[model::FLAGS, FLAGS, experts::FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
ggml-runner run -m model.gguf -p 64 -n 32 -t 4
ggml-runner run -m model.gguf --tokens 1,15043,3186 -n 16 --json
ggml-runner run -m moe.gguf --expert-slots 16 --expert-policy next",
    run,
};

/// The defaults are those of llama-bench.
const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("prompt", "N", "Process a prompt of N random tokens")
            .short('p')
            .default("512")
            .excludes(&["tokens"]),
        Flag::value("tokens", "1,2,3", "Use these token IDs as the prompt"),
        Flag::value("seed", "N", "Seed of the random number generator").default("42"),
        Flag::value("decode", "N", "Number of tokens to generate").short('n').default("128"),
        sampling::TEMPERATURE,
        Flag::value("repeat", "N", "Measure this many times and print the medians").short('r').default("1"),
        Flag::switch("no-warmup", "Skip the warm-up run before measuring"),
        Flag::value(
            "decode-threads",
            "N",
            "Number of threads for decoding, if fewer are faster [default: those of -t]",
        ),
        Flag::value("ctx", "N", "Context length in tokens [default: as needed]"),
        Flag::switch(
            "two-backends",
            "Run the layers alternately on two backends, so that a profiler sees a split graph",
        ),
        Flag::value(
            "ground-truth",
            "FILE",
            "Write the start and end of each call, graph and op by this program's own clock, to compare \
             with a recording (profinfer accuracy)",
        ),
        Flag::value(
            "slow",
            "NAME:SHARE",
            "Slow down an op by a share of its time, e.g. ffn_up-{L}:5% (in all layers), ffn_up-3:5% or \
             MUL_MAT:5%, to test whether a profiler finds it",
        ),
        Flag::value(
            "ablate",
            "LIST",
            "Switch off parts, to measure what each gains: fold, shapes, cse, dead, fuse, plan (steps that the graph goes \
             through before it runs); layout, hugepages, uint4 (Q4_0 only), prefetch, attention, halves (f16 products in \
             attention; of the kernels)",
        ),
        Flag::value(
            "graph-dump",
            "WHEN",
            "Print the graph that decodes a token as DOT instead of running it",
        )
        .one_of::<Stage, _>(),
        Flag::switch("no-roofline", "Skip measuring the machine's peaks, which takes some seconds"),
        Flag::value("logits", "FILE", "Write the logits of the prompt's last token, as 32-bit floats"),
        FORCE,
        Flag::switch("json", "Print one JSON object"),
    ],
};

impl Choice<crate::identity::Flags> for Stage {
    const ALL: &'static [(&'static str, &'static str, Self)] =
        &[("before", "as it is built", Self::Before), ("after", "as it runs", Self::After)];
}

/// What the user asked for.
struct RunArgs {
    chosen: ModelArgs,
    /// Tokens of a random prompt, unless `tokens` are given.
    prompt: usize,
    tokens: Option<Vec<i32>>,
    seed: u64,
    decode: usize,
    sampling: Sampling,
    repeat: usize,
    warmup: bool,
    decode_threads: usize,
    context: Option<usize>,
    two_backends: bool,
    ground_truth: Option<PathBuf>,
    logits: Option<PathBuf>,
    /// What to do with existing files.
    over: Overwrite,
    slow: Option<Slow>,
    steps: Steps,
    dump: Option<Stage>,
    roofline: bool,
    json: bool,
}

const TRUTH: &str = " with --ground-truth";
const LOGITS: &str = " with --logits";

impl RunArgs {
    fn rules(&self, hint: &'static str) -> OutputRules {
        OutputRules::new(self.over, SHARED).hint(hint)
    }
}

/// A phase, named as in llama-bench.
struct Test {
    kind: &'static str,
    n: usize,
    threads: usize,
    seconds: f64,
}

/// One measurement.
#[derive(Default)]
struct Times {
    prefill: Vec<Duration>,
    decode: Vec<Duration>,
}

fn run(args: &Args) -> Result<ExitCode> {
    let request = parse(args)?;
    for (path, hint) in [(&request.ground_truth, TRUTH), (&request.logits, LOGITS)] {
        path.iter().try_for_each(|path| request.rules(hint).check(path))?;
    }
    let model = Arc::new(request.chosen.load()?);
    let decodes = request.decode > 0 && request.dump.is_none();
    let readings = match decodes {
        true => request.chosen.choose_readings(&model, request.decode_threads)?,
        false => Vec::new(),
    };
    let count = request.tokens.as_ref().map_or(request.prompt, Vec::len);
    let needed = count.saturating_add(request.decode);
    let context = request.context.unwrap_or(needed);
    if needed > context {
        bail!(
            "a prompt of {count} tokens plus {} to generate do not fit into a context of {context}: use a \
             larger --ctx",
            request.decode
        );
    }
    let truth = request.ground_truth.is_some().then(|| account(&request, &model, count)).transpose()?;
    let settings = EngineSettings {
        decode_threads: request.decode_threads,
        two_backends: request.two_backends,
        steps: request.steps,
        truth: truth.clone(),
        ..request.chosen.settings(context)
    };
    let mut engine = RunnerEngine::new(Arc::clone(&model), settings)?;
    if let Some(slow) = request.slow.clone() {
        engine.slow_down(slow).context("--slow")?;
    }
    if let Some(stage) = request.dump {
        let mut out = io::stdout().lock();
        out.write_all(engine.dump(stage).as_bytes())?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let tokens = prompt(&request, model.weights.vocab());
    let mut times = Times::default();
    let mut generated = Vec::with_capacity(request.decode);
    for round in 0..request.repeat.saturating_add(usize::from(request.warmup)) {
        let warmup = request.warmup && round == 0;
        generated.clear();
        engine.forget();
        if let Some(truth) = &truth {
            truth.warm_up(warmup);
        }
        if let Some(slots) = &model.weights.slots {
            slots.warm_up(warmup);
        }
        let (prefill, decode) = measure(&mut engine, &request, &tokens, round == 0, &mut generated)?;
        if !warmup {
            times.prefill.push(prefill);
            times.decode.push(decode);
        }
    }
    if let (Some(truth), Some(path)) = (truth, &request.ground_truth) {
        output::whole(path, request.rules(TRUTH), |()| true, |out| truth.write(out))?;
    }
    let tests = [
        Test {
            kind: "pp",
            n: tokens.len(),
            threads: request.chosen.threads,
            seconds: median(&mut times.prefill),
        },
        Test {
            kind: "tg",
            n: request.decode,
            threads: request.decode_threads,
            seconds: median(&mut times.decode),
        },
    ];
    let shares = if request.roofline { shares(&mut engine, &tests)? } else { [None, None] };
    print(&request, &engine, &tests, (&shares, &readings), &generated)?;
    Ok(ExitCode::SUCCESS)
}

/// Room for the engine's own account of everything to come.
fn account(r: &RunArgs, model: &Model, prompt: usize) -> Result<Arc<Truth>> {
    // More than any architecture here needs, apart from the sums of experts, in the longest form of a graph.
    const OPS_OF_LAYER: usize = 96;
    let layers = model.params.layers + 1;
    let of_layer = OPS_OF_LAYER + model.params.experts.as_ref().map_or(0, |e| e.used);
    let prefill = prompt.div_ceil(UBATCH);
    // The warm-up decodes one token.
    let graphs = prefill.saturating_add(r.decode).saturating_mul(r.repeat).saturating_add(prefill + 1);
    // A call, a graph, and its parts on the backends.
    let spans = graphs.saturating_mul(2 + if r.two_backends { layers } else { 1 });
    let ops = graphs.saturating_mul(layers * of_layer);
    // Gate, up and down; the warm-up runs the prompt once more.
    let chosen = model.params.experts.as_ref().map_or(0, |e| {
        let all = prompt.saturating_add(r.decode).saturating_mul(r.repeat).saturating_add(prompt + 1);
        all.saturating_mul(3 * layers * (e.used + IDS_HEAD))
    });
    let none = "--ground-truth: not enough memory for this run's timestamps; use fewer tokens";
    let bytes = Truth::bytes(r.chosen.threads, spans, ops, chosen) as u64;
    if memory::available().is_some_and(|there| bytes > memory::usable(there)) {
        bail!("{none} ({bytes} bytes)");
    }
    Truth::new(r.chosen.threads, spans, ops, chosen).map(Arc::new).context(none)
}

fn parse(args: &Args) -> Result<RunArgs> {
    let mut chosen = ModelArgs::read(args)?;
    let steps: Steps = args.option("ablate", parsed)?.unwrap_or_default();
    chosen.parts = KernelParts { activation: chosen.parts.activation, ..steps.parts() };
    chosen.slots = experts::read(args)?;
    let request = RunArgs {
        prompt: args.needed("prompt", whole(0, u64::MAX))?,
        tokens: args.option("tokens", ids)?,
        seed: args.needed("seed", whole(0, u64::MAX))?,
        decode: args.needed("decode", whole(0, u64::MAX))?,
        sampling: Sampling::read(args)?,
        repeat: args.needed("repeat", whole(1, u64::MAX))?,
        warmup: !args.flag("no-warmup"),
        decode_threads: args.option("decode-threads", whole(0, u64::MAX))?.unwrap_or(chosen.threads),
        context: args.option("ctx", whole(0, u64::MAX))?,
        two_backends: args.flag("two-backends"),
        ground_truth: args.path("ground-truth")?,
        logits: args.path("logits")?,
        over: Overwrite::of(args),
        slow: args.option("slow", parsed)?,
        steps,
        dump: args.option("graph-dump", choice)?,
        roofline: !args.flag("no-roofline"),
        json: args.flag("json"),
        chosen,
    };
    check(&request)?;
    Ok(request)
}

fn check(r: &RunArgs) -> Result<(), Usage> {
    if r.decode_threads == 0 || r.decode_threads > r.chosen.threads {
        let most = r.chosen.threads;
        return Err(Usage::new(format!(
            "--decode-threads {}: give 1 to {most} (the value of -t)",
            r.decode_threads
        )));
    }
    let none = r.tokens.as_ref().map_or(r.prompt == 0, Vec::is_empty);
    if none && r.decode == 0 {
        return Err(Usage::new("nothing to do: -p and -n are both 0"));
    }
    if none && r.logits.is_some() {
        return Err(Usage::new("--logits requires a prompt"));
    }
    Ok(())
}

fn ids(text: &str) -> Result<Vec<i32>, String> {
    let id = |t: &str| t.trim().parse().map_err(|_| format!("'{t}' is not a token ID"));
    text.split(',').filter(|t| !t.is_empty()).map(id).collect()
}

/// The tokens of the prompt: given or random.
fn prompt(r: &RunArgs, vocab: usize) -> Vec<i32> {
    if let Some(tokens) = &r.tokens {
        return tokens.clone();
    }
    let mut random = Random(r.seed);
    let mut next = || i32::try_from(random.bits() % vocab.max(1) as u64).unwrap_or(0);
    (0..r.prompt).map(|_| next()).collect()
}

/// Computes these tokens; the next one, and the time in the call.
fn timed(engine: &mut RunnerEngine, tokens: &[i32], sampling: &mut Sampling) -> Result<(i32, Duration)> {
    let start = Instant::now();
    let logits = engine.decode(tokens)?;
    let took = start.elapsed();
    Ok((sampling.choose(logits)?, took))
}

/// Time in the calls of one prompt and its continuation; a warm-up decodes only one token. The first round writes the logits.
fn measure(
    engine: &mut RunnerEngine,
    r: &RunArgs,
    tokens: &[i32],
    first: bool,
    generated: &mut Vec<i32>,
) -> Result<(Duration, Duration)> {
    // The same tokens in each round.
    let mut sampling = r.sampling.clone();
    let (mut token, prefill) = match tokens {
        [] => (0, Duration::ZERO),
        _ => timed(engine, tokens, &mut sampling)?,
    };
    if let Some(path) = r.logits.as_deref().filter(|_| first) {
        let bytes: Vec<u8> = engine.logits().iter().flat_map(|v| v.to_le_bytes()).collect();
        output::whole(path, r.rules(LOGITS), |()| true, |out| out.write_all(&bytes))?;
    }
    let mut decode = Duration::ZERO;
    for _ in 0..if first && r.warmup { r.decode.min(1) } else { r.decode } {
        generated.push(token);
        let (next, took) = timed(engine, &[token], &mut sampling)?;
        (token, decode) = (next, decode + took);
    }
    Ok((prefill, decode))
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}

fn rate(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

/// Both phases with their rooflines.
fn shares(engine: &mut RunnerEngine, [prompt, decode]: &[Test; 2]) -> Result<[Option<Share>; 2]> {
    let phase = |name, t: &Test, past| MeasuredPhase {
        name,
        threads: t.threads,
        tokens: t.n,
        past,
        seconds: t.seconds,
    };
    let prefill = Share::of(engine, phase("prefill", prompt, None), None)?;
    let decode = Share::of(engine, phase("decode", decode, Some(prompt.n)), prefill.as_ref())?;
    Ok([prefill, decode])
}

/// The JSON object.
#[derive(Serialize)]
struct Answer<'a> {
    model: &'a str,
    arch: &'a str,
    weight_bytes: u64,
    isa: String,
    placement: String,
    graph: &'a Report,
    prefill: Measured,
    decode: Measured,
    /// How decoding reads the weights, by their type.
    readings: &'a [TypeReading],
    /// With --expert-slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    expert_slots: Option<SlotReport>,
    tokens: &'a [i32],
}

#[derive(Serialize)]
struct Measured {
    n: usize,
    threads: usize,
    ms: f64,
    tok_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    roofline: Option<Figures>,
}

impl Measured {
    fn of(t: &Test, share: Option<&Share>) -> Measured {
        Measured {
            n: t.n,
            threads: t.threads,
            ms: rounded(t.seconds * 1e3, 6),
            tok_s: rounded(rate(t.n, t.seconds), 6),
            roofline: share.map(Share::figures),
        }
    }
}

fn print(
    r: &RunArgs,
    engine: &RunnerEngine,
    tests: &[Test; 2],
    (shares, readings): (&[Option<Share>; 2], &[TypeReading]),
    generated: &[i32],
) -> Result<()> {
    let model = engine.model();
    let name = r.chosen.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut out = io::stdout().lock();
    let expert_slots = model.weights.slots.as_ref().map(|s| s.report());
    if r.json {
        let [prefill, decode] = [0, 1].map(|i| Measured::of(&tests[i], shares[i].as_ref()));
        let answer = Answer {
            model: &name,
            arch: model.params.arch.name(),
            weight_bytes: model.weights.bytes,
            isa: model.isa_name(),
            placement: model.weights.placement.to_string(),
            graph: engine.report(),
            prefill,
            decode,
            readings,
            expert_slots,
            tokens: generated,
        };
        writeln!(out, "{}", common::plain::json(&answer)?)?;
        return Ok(out.flush()?);
    }
    let mib = model.weights.bytes as f64 / (1u64 << 20) as f64;
    writeln!(
        out,
        "| {:<30} | {:>10} | {:<10} | {:>7} | {:>8} | {:>9} |",
        "model", "size", "isa", "threads", "test", "tok/s"
    )?;
    writeln!(out, "| {:-<30} | {:->9}: | {:-<10} | {:->6}: | {:->7}: | {:->8}: |", "", "", "", "", "", "")?;
    for Test { kind, n, threads, seconds } in tests.iter().filter(|t| t.n > 0) {
        let (test, t_s) = (format!("{kind}{n}"), rate(*n, *seconds));
        let isa = model.isa_name();
        writeln!(
            out,
            "| {:<30} | {mib:>6.2} MiB | {isa:<10} | {threads:>7} | {test:>8} | {t_s:>9.2} |",
            clean(&name)
        )?;
    }
    let ids: Vec<String> = generated.iter().map(i32::to_string).collect();
    writeln!(out, "\ntokens: {}", ids.join(" "))?;
    writeln!(out, "{}", engine.report())?;
    for share in shares.iter().flatten() {
        writeln!(out, "{}", share.line())?;
    }
    for r in readings {
        writeln!(out, "reads {}: {}", r.ty, reading_line(&r.choice))?;
    }
    if let Some(slots) = &expert_slots {
        experts::print(slots, &mut out)?;
    }
    Ok(out.flush()?)
}

/// The chosen way to read weights, and what that gains: `1 stream, prefetch 4096 bytes ahead (+12 % over no prefetch)`.
fn reading_line(choice: &ReadingChoice) -> String {
    let gain = choice
        .gain_over(Reading::PLAIN)
        .map_or(String::new(), |gain| format!(" ({:+.0} % against no prefetch)", 100.0 * gain));
    format!("{}{gain}", choice.chosen)
}
