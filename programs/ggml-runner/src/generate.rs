//! `ggml-runner generate`: continues a text.

use super::model::{self, ModelArgs};
use super::sampling::{self, Sampling};
use anyhow::{Context, Result, bail};
use cli::args::{Args, Argument, Command, Flag, FlagGroup, Usage};
use cli::values::whole;
use common::plain::{Json, hides};
use ggml::gguf::reader::Gguf;
use runner::engine::RunnerEngine;
use runner::tokenizer::{Tokenizer, Utf8Stream};
use serde_json::json;
use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const COMMAND: Command = Command {
    name: "generate",
    about: "Continue a text with a GGUF model",
    text: "\
Uses the tokenizer in the model file (SentencePiece or byte-level BPE). Prints the text and its continuation to standard
output as it is generated, and the speed to standard error. Generated models (ggml-runner synth) have random weights: their
text is noise.",
    usage: &["-m FILE [OPTIONS] [--] TEXT"],
    arguments: &[Argument {
        name: "TEXT",
        help: "Text to continue; '-' reads it from standard input",
    }],
    behind: None,
    groups: &[model::FLAGS, FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
ggml-runner generate -m model.gguf 'The three laws of thermodynamics are'
ggml-runner generate -m model.gguf -n 200 --temp 0.8 - < question.txt
ggml-runner generate -m model.gguf --special $'<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\n'",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("tokens", "N", "Generate at most this many tokens; stop earlier at an end-of-text token")
            .short('n')
            .default("64"),
        Flag::switch("ignore-end", "Do not stop at an end-of-text token"),
        Flag::switch("special", "Interpret control tokens in TEXT, such as <|im_start|>"),
        sampling::TEMPERATURE,
        Flag::value("seed", "N", "Seed of the random number generator").default("42"),
        Flag::value("ctx", "N", "Context length in tokens [default: as needed]"),
        Flag::switch("json", "Print one JSON object at the end: text, token IDs, times"),
    ],
};

/// What the user asked for.
struct GenerateArgs {
    chosen: ModelArgs,
    text: Vec<u8>,
    tokens: usize,
    ignore_end: bool,
    special: bool,
    sampling: Sampling,
    context: Option<usize>,
    json: bool,
}

/// The result.
#[derive(Default)]
struct Generation {
    prompt: Vec<i32>,
    generated: Vec<i32>,
    /// Only the continuation.
    text: String,
    /// Whether the model itself ended the text.
    ended: bool,
    prefill: Duration,
    decode: Duration,
}

fn run(args: &Args) -> Result<ExitCode> {
    let mut request = parse(args)?;
    let shown = request.chosen.path.display().to_string();
    let map = request.chosen.map()?;
    let gguf = Gguf::parse(&map).with_context(|| shown.clone())?;
    let tokenizer = Tokenizer::new(&gguf).with_context(|| shown.clone())?;
    let ids = tokenizer.encode(&request.text, true, request.special);
    let prompt = ids.into_iter().map(i32::try_from).collect::<Result<Vec<_>, _>>()?;
    if prompt.is_empty() {
        bail!("nothing to continue: the text is empty, and this model adds no start-of-text token");
    }
    // The last generated token needs no room in the context.
    let needed = prompt.len().saturating_add(request.tokens.saturating_sub(1));
    let context = request.context.unwrap_or(needed);
    if needed > context {
        bail!(
            "a prompt of {} tokens plus {} to generate do not fit into a context of {context}: use a \
             larger --ctx",
            prompt.len(),
            request.tokens
        );
    }
    let model = Arc::new(request.chosen.load()?);
    request.chosen.choose_readings(&model, request.chosen.threads)?;
    let mut engine = RunnerEngine::new(model, request.chosen.settings(context))?;
    let outcome = generate(&mut engine, &tokenizer, &mut request, prompt)?;
    print(&request, &outcome)?;
    Ok(ExitCode::SUCCESS)
}

fn parse(args: &Args) -> Result<GenerateArgs> {
    let request = GenerateArgs {
        chosen: ModelArgs::read(args)?,
        tokens: args.needed("tokens", whole(1, u64::MAX))?,
        ignore_end: args.flag("ignore-end"),
        special: args.flag("special"),
        sampling: Sampling::read(args)?,
        context: args.option("ctx", whole(0, u64::MAX))?,
        json: args.flag("json"),
        text: Vec::new(),
    };
    let text = args.argument("TEXT").ok_or_else(|| Usage::new("TEXT is required"))?;
    if text != "-" {
        return Ok(GenerateArgs { text: text.as_encoded_bytes().to_vec(), ..request });
    }
    let mut text = Vec::new();
    io::stdin().lock().read_to_end(&mut text).context("read standard input")?;
    Ok(GenerateArgs { text, ..request })
}

/// Text without anything that a terminal would interpret, with its lines unchanged. Zero-width joiners stay.
fn shown(text: &str) -> String {
    let acts = |c: char| hides(c) && !matches!(c, '\n' | '\t' | '\u{200c}' | '\u{200d}');
    text.chars().map(|c| if acts(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Runs the prompt and decodes token by token, writing text as soon as its characters are complete.
fn generate(
    engine: &mut RunnerEngine,
    tokenizer: &Tokenizer<'_>,
    request: &mut GenerateArgs,
    prompt: Vec<i32>,
) -> Result<Generation> {
    let mut out = io::stdout().lock();
    let terminal = out.is_terminal();
    let show = |out: &mut io::StdoutLock<'_>, text: &str| match request.json {
        true => Ok(()),
        // A terminal gets a model's text cleaned, a program gets it unchanged.
        false if terminal => out.write_all(shown(text).as_bytes()).and_then(|()| out.flush()),
        false => out.write_all(text.as_bytes()).and_then(|()| out.flush()),
    };
    show(&mut out, &String::from_utf8_lossy(&request.text))?;
    let mut outcome = Generation::default();
    let mut stream = Utf8Stream::default();
    let mut bytes = Vec::new();
    let start = Instant::now();
    let mut token = request.sampling.choose(engine.decode(&prompt)?)?;
    outcome.prefill = start.elapsed();
    outcome.prompt = prompt;
    let start = Instant::now();
    loop {
        outcome.generated.push(token);
        let id = u32::try_from(token)?;
        if tokenizer.is_end(id) && !request.ignore_end {
            outcome.ended = true;
            break;
        }
        bytes.clear();
        tokenizer.append(id, &mut bytes);
        let text = stream.push(&bytes);
        show(&mut out, &text)?;
        outcome.text.push_str(&text);
        if outcome.generated.len() >= request.tokens {
            break;
        }
        token = request.sampling.choose(engine.decode(&[token])?)?;
    }
    outcome.decode = start.elapsed();
    let rest = stream.finish();
    outcome.text.push_str(rest);
    show(&mut out, &format!("{rest}\n"))?;
    Ok(outcome)
}

fn rate(tokens: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

fn print(request: &GenerateArgs, o: &Generation) -> Result<()> {
    // The first generated token comes from the prompt.
    let decoded = o.generated.len().saturating_sub(1);
    let (prefill, decode) = (rate(o.prompt.len(), o.prefill), rate(decoded, o.decode));
    let (prefill_ms, decode_ms) = (o.prefill.as_secs_f64() * 1e3, o.decode.as_secs_f64() * 1e3);
    if !request.json {
        let _ = writeln!(
            io::stderr(),
            "prompt {} tokens, {prefill:.2} tok/s; {} generated, {decode:.2} tok/s; ended by {}",
            o.prompt.len(),
            o.generated.len(),
            if o.ended { "the model" } else { "-n" },
        );
        return Ok(());
    }
    let all = json!({
        "text": o.text,
        "ended_by_model": o.ended,
        "prompt_tokens": o.prompt,
        "tokens": o.generated,
        "threads": request.chosen.threads,
        "prefill": {"n": o.prompt.len(), "ms": prefill_ms, "tok_s": prefill},
        "decode": {"n": decoded, "ms": decode_ms, "tok_s": decode},
    });
    let mut out = io::stdout().lock();
    serde_json::to_writer(Json(&mut out), &all)?;
    writeln!(out)?;
    Ok(out.flush()?)
}
