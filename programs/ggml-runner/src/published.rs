//! `ggml-runner roofline`: the speed that a device's numbers allow for a model's, before either is there.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use cli::args::{Args, Command, Flag, FlagGroup};
use cli::values::whole;
use ggml::roofline::{Ceilings, StepWork, Transformer};
use serde::{Deserialize, Serialize};

use super::roofline::rounded;

pub const COMMAND: Command = Command {
    name: "roofline",
    about: "Compute the speed that a device's bandwidth and arithmetic peaks allow for a model",
    text: "\
Reads a device's peaks and a model's dimensions from a JSON file and prints the shortest time of linear layers, attention
and the rest, with what bounds each: the formulas of MNN's roofline analysis for a dense transformer with 16-bit activations.
GB/s, Gop/s and GFLOP/s are 10^9 per second; a multiply-add is two operations.

The file has two objects:

    {\"device\": {\"name\": \"a phone\", \"gb_per_s\": 106.6, \"int8_gop_per_s\": 2989.3, \"f32_gflop_per_s\": 378.0},
     \"model\": {\"name\": \"Qwen-1.8B\", \"hidden\": 2048, \"intermediate\": 5504, \"vocabulary\": 151936, \"blocks\": 24,
                \"heads\": 16, \"bits\": 4}}",
    usage: &["--device FILE [OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FlagGroup {
        title: "Options",
        flags: &[
            Flag::value("device", "FILE", "Read the device and the model from this JSON file"),
            Flag::value("prompt", "N", "Tokens of the prompt").short('p').default("512"),
            Flag::value("depth", "N", "Tokens in the context that a decoded token sees").short('d').default("512"),
            Flag::switch("json", "Print JSON"),
        ],
    }],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
ggml-runner roofline --device conf/roofline/mnn-qwen1.8b.json -p 560 -d 585
ggml-runner roofline --device device.json --json | jq '.phases[].tok_s'",
    run,
};

/// Longest file that is read.
const LONGEST: u64 = 64 << 10;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    device: Device,
    model: Model,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    name: String,
    gb_per_s: f64,
    int8_gop_per_s: f64,
    f32_gflop_per_s: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    name: String,
    hidden: u32,
    intermediate: u32,
    vocabulary: u32,
    blocks: u32,
    heads: u32,
    /// Of a weight.
    bits: f64,
}

/// The answer.
#[derive(Serialize)]
struct Answer {
    device: String,
    model: String,
    phases: Vec<PhaseAnswer>,
}

#[derive(Serialize)]
struct PhaseAnswer {
    phase: &'static str,
    tokens: u32,
    tok_s: f64,
    parts: Vec<Part>,
}

/// A part of a phase: its work, its shortest time, and what bounds it.
#[derive(Serialize)]
struct Part {
    part: &'static str,
    gop: f64,
    mb: f64,
    ms: f64,
    bound_by: &'static str,
}

fn run(args: &Args) -> Result<ExitCode> {
    let file = args.path("device")?.ok_or_else(|| args.missing("device"))?;
    let tokens = |flag| args.needed(flag, whole(1, 1 << 20)).map(|n: u32| n);
    let (prompt, depth) = (tokens("prompt")?, tokens("depth")?);
    let input = read(&file).with_context(|| file.display().to_string())?;
    let answer = answer(&input, prompt, depth);
    let mut out = io::stdout().lock();
    match args.flag("json") {
        true => render::json::write(&mut out, &answer)?,
        false => text(&mut out, &answer)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<Input> {
    let size = std::fs::metadata(file).context("cannot read it")?.len();
    if size > LONGEST {
        bail!("it has {size} bytes; a device and a model take less than {LONGEST}");
    }
    let bytes = std::fs::read(file).context("cannot read it")?;
    let input: Input =
        serde_json::from_slice(&bytes).context("not a device and a model; --help has an example")?;
    let Input { device: d, model: m } = &input;
    let rates = [
        ("gb_per_s", d.gb_per_s),
        ("int8_gop_per_s", d.int8_gop_per_s),
        ("f32_gflop_per_s", d.f32_gflop_per_s),
    ];
    let dims = [
        ("hidden", m.hidden),
        ("intermediate", m.intermediate),
        ("vocabulary", m.vocabulary),
        ("blocks", m.blocks),
        ("heads", m.heads),
    ];
    let all = rates.into_iter().chain([("bits", m.bits)]).chain(dims.map(|(name, n)| (name, n.into())));
    if let Some((name, value)) = all.into_iter().find(|(_, v)| !(v.is_finite() && *v > 0.0)) {
        bail!("{name} is {value}: it must be more than 0");
    }
    Ok(input)
}

fn answer(Input { device, model }: &Input, prompt: u32, depth: u32) -> Answer {
    let ceilings = Ceilings {
        bandwidth: device.gb_per_s * 1e9,
        int8: device.int8_gop_per_s * 1e9,
        f32: device.f32_gflop_per_s * 1e9,
    };
    let Model { hidden, intermediate, vocabulary, blocks, heads, bits, .. } = *model;
    let of = Transformer { hidden, intermediate, vocabulary, blocks, heads, weight_bytes: bits / 8.0 };
    let phase = |phase, tokens: u32, context| {
        let works = [
            ("linear", of.linear(tokens)),
            ("attention", of.attention(tokens, context)),
            ("others", of.others(tokens)),
        ];
        let seconds: f64 = works.iter().map(|(_, work)| work.seconds(&ceilings)).sum();
        let parts = works.map(|(name, work)| part(name, &work, &ceilings)).into();
        PhaseAnswer { phase, tokens, tok_s: rounded(f64::from(tokens) / seconds, 2), parts }
    };
    Answer {
        device: device.name.clone(),
        model: model.name.clone(),
        phases: vec![phase("prefill", prompt, prompt), phase("decode", 1, depth)],
    }
}

fn part(part: &'static str, work: &StepWork, ceilings: &Ceilings) -> Part {
    let seconds = work.seconds(ceilings);
    let memory = seconds <= work.bytes / ceilings.bandwidth;
    Part {
        part,
        gop: rounded(work.flops / 1e9, 3),
        mb: rounded(work.bytes / 1e6, 1),
        ms: rounded(seconds * 1e3, 3),
        bound_by: if memory { "bandwidth" } else { "arithmetic" },
    }
}

fn text(out: &mut dyn Write, answer: &Answer) -> io::Result<()> {
    let clean = common::plain::clean;
    writeln!(out, "{} on {}\n", clean(&answer.model), clean(&answer.device))?;
    writeln!(out, "phase    part            Gop         MB         ms  bound by")?;
    for phase in &answer.phases {
        for p in &phase.parts {
            let Part { part, gop, mb, ms, bound_by } = p;
            writeln!(out, "{:<8} {part:<9} {gop:>9.2} {mb:>10.1} {ms:>10.3}  {bound_by}", phase.phase)?;
        }
        let tokens =
            if phase.tokens == 1 { "a token".to_owned() } else { format!("{} tokens", phase.tokens) };
        writeln!(out, "{:<8} {tokens}: at most {:.2} tok/s\n", phase.phase, phase.tok_s)?;
    }
    Ok(())
}
