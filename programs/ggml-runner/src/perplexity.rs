//! `ggml-runner perplexity`: how well a model predicts a text.

use super::model::{self, ModelArgs};
use super::scored::{self, Fingerprint, TextArgs};
use anyhow::{Context, Result};
use cli::args::{Args, Command, FlagGroup};
use common::plain::clean;
use ggml::gguf::reader::Gguf;
use runner::quality::perplexity;
use runner::tokenizer::Tokenizer;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

pub const COMMAND: Command = Command {
    name: "perplexity",
    about: "Measure how well a GGUF model predicts a text, like llama-perplexity",
    text: "\
Perplexity is the exponential of the mean negative log-likelihood of the tokens: the lower, the better the model predicts
the text. The text is cut into chunks of -c tokens, each with an empty context, and the second half of each chunk is scored,
as llama-perplexity does. Only figures of the same text, the same -c and the same vocabulary can be compared.

The text needs two chunks of tokens or more. An incomplete chunk at its end is left out.",
    usage: &["-m FILE -f FILE [OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[model::FLAGS, FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
ggml-runner perplexity -m model.gguf -f text.txt
ggml-runner perplexity -m model.gguf -f text.txt -c 2048 --chunks 20
ggml-runner perplexity -m q4_0.gguf -f text.txt --json > q4_0.json    for 'profinfer score --perplexity'",
    run,
};

const FLAGS: FlagGroup =
    FlagGroup { title: "Options", flags: &[scored::FILE, scored::CTX, scored::CHUNKS, scored::JSON] };

/// The answer. `profinfer score` reads it.
#[derive(Serialize)]
struct PerplexityAnswer {
    model: String,
    text: String,
    /// Tell whether two figures are of the same text and vocabulary.
    text_id: String,
    vocabulary_id: String,
    /// Tokens of the text, of a chunk, and chunks; and tokens whose probability was taken.
    tokens: usize,
    context: usize,
    chunks: usize,
    scored: usize,
    perplexity: f64,
    /// Standard error.
    error: f64,
    threads: usize,
    seconds: f64,
    /// Tokens of all chunks over the time to score them.
    tokens_per_s: f64,
}

fn run(args: &Args) -> Result<ExitCode> {
    let (chosen, wanted) = (ModelArgs::read(args)?, TextArgs::read(args)?);
    let text = wanted.text()?;
    let map = chosen.map()?;
    let shown = || chosen.path.display().to_string();
    let gguf = Gguf::parse(&map).with_context(shown)?;
    let tokenizer = Tokenizer::new(&gguf).with_context(|| scored::no_tokenizer(&chosen.path))?;
    let chunks = wanted.chunks(&text, &tokenizer)?;
    let mut engine = scored::engine(chosen.load()?, &chosen, wanted.context)?;
    let start = Instant::now();
    let scores = scored::score(&mut engine, None, &chunks, chosen.threads).with_context(shown)?;
    let seconds = start.elapsed().as_secs_f64();
    let found = perplexity(&scores);
    let answer = PerplexityAnswer {
        model: shown(),
        text: wanted.name(),
        text_id: Fingerprint::of(text.as_bytes()).text(),
        vocabulary_id: Fingerprint::of_vocabulary(&tokenizer).text(),
        tokens: chunks.tokens(),
        context: chunks.context(),
        chunks: chunks.count(),
        scored: scores.len(),
        perplexity: found.mean,
        error: found.error,
        threads: chosen.threads,
        seconds,
        tokens_per_s: (chunks.count() * chunks.context()) as f64 / seconds.max(1e-9),
    };
    let mut out = io::stdout().lock();
    match wanted.json {
        true => render::json::write(&mut out, &answer)?,
        false => print(&mut out, &answer)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(out: &mut dyn Write, a: &PerplexityAnswer) -> io::Result<()> {
    writeln!(out, "perplexity {:.4} ± {:.4}", a.perplexity, a.error)?;
    writeln!(
        out,
        "{} chunks of {} tokens, {} scored, of the {} tokens of {}; {:.2} s, {:.1} tok/s",
        a.chunks,
        a.context,
        a.scored,
        a.tokens,
        clean(&a.text),
        a.seconds,
        a.tokens_per_s
    )
}
