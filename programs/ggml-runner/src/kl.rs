//! `ggml-runner kl`: how far a model's predictions are from those of a reference.

use super::model::{self, ModelArgs};
use super::scored::{self, Fingerprint, TextArgs};
use anyhow::{Context, Result, bail};
use cli::args::{Args, Command, Flag, FlagGroup};
use common::plain::clean;
use ggml::gguf::reader::Gguf;
use runner::quality::{Divergence, MeanError, divergence};
use runner::tokenizer::Tokenizer;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

pub const COMMAND: Command = Command {
    name: "kl",
    about: "Measure how far a GGUF model's predictions are from those of a reference",
    text: "\
Runs a model and its reference, usually the same model before quantization, over a text, chunk by chunk as ggml-runner
perplexity does. Prints the Kullback-Leibler divergence of the model's distribution from that of the reference at each scored
position: mean, quantiles; how often both find the same token most likely; and both perplexities.

The figures are those of 'llama-perplexity --kl-divergence', except that llama-perplexity stores the logits of the reference
in 16 bits, while here both models run side by side: there is no rounding in between, and no file, but both models must fit
into memory, or be read from their files (--placement mapped).",
    usage: &["-m FILE --reference FILE -f FILE [OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[model::FLAGS, FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
ggml-runner kl -m q4_0.gguf --reference f16.gguf -f text.txt
ggml-runner kl -m q4_0.gguf --reference f16.gguf -f text.txt --chunks 20 --json",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("reference", "MODEL", "Model to compare with; it must have the same vocabulary"),
        scored::FILE,
        scored::CTX,
        scored::CHUNKS,
        scored::JSON,
    ],
};

/// The answer.
#[derive(Serialize)]
struct KlAnswer {
    model: String,
    reference: String,
    text: String,
    text_id: String,
    tokens: usize,
    context: usize,
    chunks: usize,
    scored: usize,
    #[serde(flatten)]
    found: Divergence,
    threads: usize,
    seconds: f64,
}

fn run(args: &Args) -> Result<ExitCode> {
    let (chosen, wanted) = (ModelArgs::read(args)?, TextArgs::read(args)?);
    let reference = chosen.another(args.path("reference")?.ok_or_else(|| args.missing("reference"))?);
    let text = wanted.text()?;
    let (map, other) = (chosen.map()?, reference.map()?);
    let [name, of] = [&chosen, &reference].map(|m| m.path.display().to_string());
    let gguf = Gguf::parse(&map).with_context(|| name.clone())?;
    let other = Gguf::parse(&other).with_context(|| of.clone())?;
    let tokenizer = Tokenizer::new(&gguf).with_context(|| scored::no_tokenizer(&chosen.path))?;
    let theirs = Tokenizer::new(&other).with_context(|| scored::no_tokenizer(&reference.path))?;
    if let Some(why) = difference(&tokenizer, &theirs, &text) {
        bail!("{} has another vocabulary than {}: {why}; give a reference of the same family", of, name);
    }
    let chunks = wanted.chunks(&text, &tokenizer)?;
    let models = [chosen.load()?, reference.load()?];
    let [ours, other] = models.each_ref().map(|m| m.weights.vocab());
    if ours != other {
        bail!("{of} has logits for {other} tokens, {name} for {ours}; give a reference of the same family");
    }
    let [model, base] = models;
    let mut engine = scored::engine(model, &chosen, wanted.context)?;
    let mut base = scored::engine(base, &reference, wanted.context)?;
    let start = Instant::now();
    let scores = scored::score(&mut engine, Some(&mut base), &chunks, chosen.threads)
        .with_context(|| format!("{name} against {of}"))?;
    let answer = KlAnswer {
        model: name,
        reference: of,
        text: wanted.name(),
        text_id: Fingerprint::of(text.as_bytes()).text(),
        tokens: chunks.tokens(),
        context: chunks.context(),
        chunks: chunks.count(),
        scored: scores.len(),
        found: divergence(&scores),
        threads: chosen.threads,
        seconds: start.elapsed().as_secs_f64(),
    };
    let mut out = io::stdout().lock();
    match wanted.json {
        true => render::json::write(&mut out, &answer)?,
        false => print(&mut out, &answer)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What two vocabularies do not have in common.
fn difference(a: &Tokenizer<'_>, b: &Tokenizer<'_>, text: &str) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!("{} tokens instead of {}", b.len(), a.len()));
    }
    let shown = |t: &Tokenizer<'_>, id| clean(&String::from_utf8_lossy(t.stored(id)));
    let count = u32::try_from(a.len()).unwrap_or(u32::MAX);
    if let Some(id) = (0..count).find(|id| a.stored(*id) != b.stored(*id)) {
        return Some(format!("token {id} is '{}' instead of '{}'", shown(b, id), shown(a, id)));
    }
    let ids = |t: &Tokenizer<'_>| t.encode(text.as_bytes(), true, false);
    (ids(a) != ids(b)).then(|| "it cuts the text into other tokens".to_owned())
}

fn print(out: &mut dyn Write, a: &KlAnswer) -> io::Result<()> {
    let d = &a.found;
    let with_error = |m: MeanError| format!("{:.6} ± {:.6}", m.mean, m.error);
    writeln!(out, "KL divergence    {}", with_error(d.kl))?;
    writeln!(out, "  most           {:.6}", d.kl_most)?;
    for q in &d.kl_quantiles {
        let name = if q.percent == 50.0 { "median".to_owned() } else { format!("{:.1} %", q.percent) };
        writeln!(out, "  {name:<14} {:.6}", q.kl)?;
    }
    writeln!(out, "  least          {:.6}", d.kl_least)?;
    writeln!(out, "same top token   {:.3} ± {:.3} %", 100.0 * d.same_top.mean, 100.0 * d.same_top.error)?;
    writeln!(out, "perplexity       {}", with_error(d.perplexity))?;
    writeln!(out, "  of reference   {}", with_error(d.reference_perplexity))?;
    writeln!(out, "  ratio          {}", with_error(d.perplexity_ratio))?;
    writeln!(
        out,
        "{} chunks of {} tokens, {} scored, of the {} tokens of {}; {:.2} s",
        a.chunks,
        a.context,
        a.scored,
        a.tokens,
        clean(&a.text),
        a.seconds
    )
}
