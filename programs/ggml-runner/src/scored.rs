//! What `perplexity` and `kl` share: the text and its options, and scoring it chunk by chunk.

use super::model::ModelArgs;
use super::progress::ProgressLine;
use anyhow::{Context, Result, bail};
use cli::args::{Args, Flag, Usage};
use cli::values::whole;
use runner::engine::{MAX_CONTEXT, RunnerEngine};
use runner::model::Model;
use runner::quality::{self, PositionScore, TextChunks};
use runner::tokenizer::Tokenizer;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of logits computed at once: a batch as large as the products like it, in memory for any vocabulary.
const ROWS: usize = 128;

pub const FILE: Flag = Flag::value("file", "FILE", "Text in UTF-8; '-' is standard input").short('f');
pub const CTX: Flag = Flag::value("ctx", "N", "Tokens of a chunk, the second half of which is scored")
    .short('c')
    .default("512");
pub const CHUNKS: Flag = Flag::value("chunks", "N", "Score only the first N chunks [default: all]");
pub const JSON: Flag = Flag::switch("json", "Print one JSON object");

/// The text to score, and how.
pub struct TextArgs {
    path: PathBuf,
    pub context: usize,
    chunks: Option<usize>,
    pub json: bool,
}

impl TextArgs {
    /// Reads the flags above.
    ///
    /// # Errors
    /// No text, or a wrong number.
    pub fn read(args: &Args) -> Result<Self, Usage> {
        Ok(Self {
            path: args.path("file")?.ok_or_else(|| args.missing("file"))?,
            context: args.needed("ctx", whole(4, MAX_CONTEXT as u64))?,
            chunks: args.option("chunks", whole(1, u64::MAX))?,
            json: args.flag("json"),
        })
    }

    /// Name of the text, for messages and the answer.
    pub fn name(&self) -> String {
        if self.path.as_os_str() == "-" {
            "standard input".to_owned()
        } else {
            self.path.display().to_string()
        }
    }

    /// The text, without the newline at its end, as llama-perplexity reads it.
    ///
    /// # Errors
    /// It cannot be read, or is no UTF-8.
    pub fn text(&self) -> Result<String> {
        let (name, mut bytes) = (self.name(), Vec::new());
        if self.path.as_os_str() == "-" {
            io::stdin().lock().read_to_end(&mut bytes).context("read standard input")?;
        } else {
            let mut file = File::open(&self.path).with_context(|| format!("open {name}"))?;
            if file.metadata().is_ok_and(|m| m.is_dir()) {
                bail!("{name} is a directory: give a text file");
            }
            file.read_to_end(&mut bytes).with_context(|| format!("read {name}"))?;
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        String::from_utf8(bytes).map_err(|e| not_utf8(&name, e.as_bytes(), e.utf8_error().valid_up_to()))
    }

    /// Cuts the text into chunks of tokens.
    ///
    /// # Errors
    /// There are too few tokens.
    pub fn chunks(&self, text: &str, tokenizer: &Tokenizer<'_>) -> Result<TextChunks> {
        let ids = tokenizer.encode(text.as_bytes(), true, false);
        let tokens = ids.into_iter().map(i32::try_from).collect::<Result<Vec<_>, _>>()?;
        let begin = tokenizer.begin().map(i32::try_from).transpose()?;
        let chunks = TextChunks::new(tokens, self.context, begin, self.chunks.unwrap_or(usize::MAX));
        chunks.with_context(|| self.name())
    }
}

fn not_utf8(name: &str, bytes: &[u8], at: usize) -> anyhow::Error {
    let line = bytes.iter().take(at).filter(|b| **b == b'\n').count() + 1;
    anyhow::anyhow!(
        "{name}: line {line}, byte {at} of the file is no UTF-8: convert the text first, e.g. with 'iconv -f \
         ISO-8859-1 -t UTF-8'"
    )
}

/// Says how to get a model with a tokenizer, where the error is about that.
pub fn no_tokenizer(path: &Path) -> String {
    format!("{}: a text can be scored only with the tokenizer in the model's file", path.display())
}

/// An engine for chunks of `context` tokens; warns if the model was trained with shorter contexts.
///
/// # Errors
/// Not enough memory.
pub fn engine(model: Model, chosen: &ModelArgs, context: usize) -> Result<RunnerEngine> {
    let trained = model.params.context;
    if context > trained {
        let shown = chosen.path.display();
        // The figures follow all the same.
        let _ = writeln!(
            io::stderr(),
            "ggml-runner: {shown} was trained with contexts of {trained} tokens: with -c {context} its figures are worse"
        );
    }
    Ok(RunnerEngine::with_rows(Arc::new(model), chosen.settings(context), ROWS)?)
}

/// Scores all chunks, with a reference if there is one.
///
/// # Errors
/// The engine fails, or a model's weights are damaged.
pub fn score(
    engine: &mut RunnerEngine,
    mut reference: Option<&mut RunnerEngine>,
    chunks: &TextChunks,
    threads: usize,
) -> Result<Vec<PositionScore>> {
    let mut scores = Vec::new();
    let mut progress = ProgressLine::counted("scoring", ("chunks", 1), chunks.count() as u64);
    for chunk in chunks.iter() {
        for engine in std::iter::once(&mut *engine).chain(reference.as_deref_mut()) {
            engine.forget();
            engine.decode(&chunk.before)?;
        }
        for (part, next) in chunk.scored.chunks(ROWS).zip(chunk.next.chunks(ROWS)) {
            let theirs = reference.as_deref_mut().map(|r| r.decode_rows(part, part.len())).transpose()?;
            let ours = engine.decode_rows(part, part.len())?;
            quality::score(ours, theirs, next, threads, &mut scores)?;
        }
        progress.add(1);
    }
    Ok(scores)
}

/// FNV-1a, 64 bits: tells texts and vocabularies apart, no more.
#[derive(Clone, Copy)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Of a text.
    pub fn of(text: &[u8]) -> Self {
        Self(0xcbf2_9ce4_8422_2325).add(text)
    }

    fn add(self, bytes: &[u8]) -> Self {
        Self(bytes.iter().fold(self.0, |n, b| (n ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)))
    }

    /// Of a vocabulary.
    pub fn of_vocabulary(tokenizer: &Tokenizer<'_>) -> Self {
        let count = u32::try_from(tokenizer.len()).unwrap_or(u32::MAX);
        // A byte that is in no UTF-8 text separates the tokens.
        (0..count).fold(Self::of(&[]), |all, id| all.add(tokenizer.stored(id)).add(&[0xff]))
    }

    /// In hexadecimal digits.
    pub fn text(self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_the_published_ones() {
        // From the tables of the hash's authors.
        assert_eq!(Fingerprint::of(b"").text(), "cbf29ce484222325");
        assert_eq!(Fingerprint::of(b"foobar").text(), "85944171f73967e8");
    }

    #[test]
    fn what_is_no_utf_8_is_told_with_its_place() {
        let why = not_utf8("text", b"one\ntwo \xff", 8).to_string();
        assert!(why.starts_with("text: line 2, byte 8 of the file is no UTF-8"), "{why}");
    }
}
