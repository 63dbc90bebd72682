//! Predicts the speed and memory of a model from its file's head: from the machine's peaks an upper bound, from a
//! recording on the machine a range. The field names of these structs are those of the JSON output.

mod ceiling;
mod memory;
mod products;
pub mod recorded;
mod time;

use serde::Serialize;

use crate::questions::advice::Confidence;
use crate::sums::attribution::verdict::{Ceiling, Peak};
use ggml::gguf::types::StoredType;
use ggml::model_shape::ModelShape;
pub use memory::MemoryNeed;
use recorded::Recorded;
use time::{Prediction, Predictor};

/// What to predict for.
#[derive(Debug, Clone)]
pub struct PredictOptions {
    /// None: as recorded, else 1.
    pub threads: Option<u32>,
    /// Tokens in the context, and those of the prompt.
    pub context: u64,
    pub prompt: u64,
    /// Tokens computed at once at most.
    pub ubatch: u64,
    /// Type of the KV cache.
    pub cache: StoredType,
    /// Bytes of memory of the machine; None: not known.
    pub memory: Option<u64>,
    /// Without flash attention, all scores are kept.
    pub flash: bool,
}

/// Peaks of a machine and where they are from.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownPeaks {
    /// `given`, `measured` or `recording`.
    pub source: &'static str,
    pub peaks: Vec<Peak>,
}

/// Why there is no prediction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPrediction {
    #[error(
        "no peak and no recording of the machine is known: run `profinfer doctor --peaks` once, or give --peaks or --from"
    )]
    Basis,
    #[error("a context of {0} tokens is shorter than the prompt of {1}: raise --context or lower --prompt")]
    Context(u64, u64),
    #[error(
        "the machine has {1} CPUs: {0} threads would wait for each other, and decode 40 to 50 times slower in trials; use -t {1} or fewer"
    )]
    Threads(u32, u32),
}

/// The prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelPrediction {
    pub schema: u32,
    pub model: ModelFacts,
    pub threads: u32,
    pub work: TokenWork,
    pub memory: MemoryNeed,
    /// At the start of an answer, and with a full context. Empty if the model does not fit the memory.
    pub decode: Vec<SpeedPrediction>,
    /// Time to the first token: of the prompt. Null if the model does not fit the memory.
    pub first_token: Option<PromptPrediction>,
    pub basis: Basis,
    /// What limits the prediction, in words.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelFacts {
    pub arch: String,
    pub name: String,
    /// The type of most bytes read per token.
    pub quantisation: String,
    pub layers: u64,
    /// Of each layer, and those used per token; null without experts.
    pub experts: Option<[u64; 2]>,
    /// Tokens that it was trained for; null if the file does not say.
    pub trained_context: Option<u64>,
}

/// What decoding a token takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenWork {
    /// Weights read, and keys and values read per position of the context, bytes.
    pub weight_bytes: f64,
    pub cache_bytes_a_position: f64,
    /// Operations of the products, in 8-bit integers and on floating-point numbers.
    pub int8_ops: f64,
    pub f32_ops: f64,
}

/// A figure with its range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PredictedRange {
    pub value: f64,
    pub least: f64,
    pub most: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeedPrediction {
    /// Tokens in the context.
    pub context: u64,
    /// Upper bound from the machine's peaks; null if no peak is known.
    pub ceiling_tokens_per_s: Option<f64>,
    /// Null without a recording.
    pub tokens_per_s: Option<PredictedRange>,
    pub confidence: Option<Confidence>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptPrediction {
    pub tokens: u64,
    /// Lower bound of the time, from the machine's peaks, s; null if no arithmetic peak is known.
    pub floor_s: Option<f64>,
    /// Null without a recording of a prompt.
    pub seconds: Option<PredictedRange>,
    pub confidence: Option<Confidence>,
}

/// What the prediction rests on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Basis {
    /// Machine of the recording; null without one.
    pub machine: Option<String>,
    pub peak: Option<Peak>,
    /// `given`, `measured` or `recording`; null without a peak.
    pub peak_source: Option<&'static str>,
    /// Shares of the predicted time of a token, by what they follow from; null without a recording.
    pub parts: Option<Vec<BasisPart>>,
}

/// A part of the time of a token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BasisPart {
    pub what: String,
    pub ns: f64,
    /// `measured`, `scaled` or `other type`.
    pub from: &'static str,
}

/// Predicts.
///
/// # Errors
/// There is nothing to predict from, or the options contradict each other.
pub fn predict(
    shape: &ModelShape,
    recorded: Option<&Recorded>,
    known: Option<&KnownPeaks>,
    options: &PredictOptions,
) -> Result<ModelPrediction, NoPrediction> {
    if options.context < options.prompt {
        return Err(NoPrediction::Context(options.context, options.prompt));
    }
    let threads = options.threads.or(recorded.map(|r| r.threads)).unwrap_or(1);
    if let Some(cpus) = recorded.map(|r| r.cpus).filter(|cpus| *cpus > 0 && threads > *cpus) {
        return Err(NoPrediction::Threads(threads, cpus));
    }
    let own = recorded.filter(|r| !r.peaks.is_empty());
    let own = own.map(|r| KnownPeaks { source: "recording", peaks: r.peaks.clone() });
    let known = known.cloned().or(own);
    let peak = known.as_ref().and_then(|k| Some(Ceiling::given(&k.peaks, threads)?.peak));
    if recorded.is_none() && peak.is_none() {
        return Err(NoPrediction::Basis);
    }
    let memory = memory::need(shape, options);
    let mut notes = notes(shape, options, peak.as_ref(), threads);
    let predictor = recorded.map(|r| Predictor::new(shape, r, peak.as_ref(), threads));
    let (mut decode, mut first_token, mut parts) = (Vec::new(), None, None);
    if memory.fits != Some(false) {
        let mut at = vec![options.prompt, options.context];
        at.dedup();
        for context in at {
            let found = predictor.as_ref().map(|p| p.decode(context));
            decode.push(speed(shape, options, peak.as_ref(), context, found.as_ref()));
            parts = parts.or(found.map(|f| f.parts));
        }
        let found = predictor.as_ref().and_then(|p| p.prompt(options.prompt, options.ubatch));
        first_token = Some(prompt(shape, options, peak.as_ref(), found.as_ref()));
    }
    notes.extend(predictor.iter().flat_map(|p| p.notes()));
    Ok(ModelPrediction {
        schema: 1,
        model: facts(shape),
        threads,
        work: work(shape, options),
        memory,
        decode,
        first_token,
        basis: Basis {
            machine: recorded.map(|r| r.machine.clone()),
            peak,
            peak_source: peak.and(known.map(|k| k.source)),
            parts,
        },
        notes,
    })
}

fn facts(shape: &ModelShape) -> ModelFacts {
    ModelFacts {
        arch: shape.arch.clone(),
        name: shape.name.clone(),
        quantisation: shape.main_type().to_owned(),
        layers: shape.layers,
        experts: shape.experts.map(|e| [e.all, e.used]),
        trained_context: shape.context,
    }
}

fn work(shape: &ModelShape, options: &PredictOptions) -> TokenWork {
    let (int8_ops, f32_ops) = shape.flops_a_token();
    TokenWork {
        weight_bytes: shape.bytes_a_token(),
        cache_bytes_a_position: shape.cache_elements() as f64 * options.cache.bytes_each(),
        int8_ops,
        f32_ops,
    }
}

/// Of the time of a token, and its bounds.
fn rate(p: &Prediction) -> PredictedRange {
    let of = |ns: f64| 1e9 / ns.max(1.0);
    PredictedRange { value: of(p.time.ns), least: of(p.time.most), most: of(p.time.least) }
}

fn speed(
    shape: &ModelShape,
    options: &PredictOptions,
    peak: Option<&Peak>,
    context: u64,
    found: Option<&Prediction>,
) -> SpeedPrediction {
    let least_ns = peak.map(|p| ceiling::decode_ns(shape, p, context as f64, options.cache.bytes_each()));
    SpeedPrediction {
        context,
        ceiling_tokens_per_s: least_ns.filter(|ns| *ns > 0.0).map(|ns| 1e9 / ns),
        tokens_per_s: found.map(rate),
        confidence: found.map(|f| f.confidence),
    }
}

fn prompt(
    shape: &ModelShape,
    options: &PredictOptions,
    peak: Option<&Peak>,
    found: Option<&Prediction>,
) -> PromptPrediction {
    let range = |p: &Prediction| {
        let of = |ns: f64| ns / 1e9;
        PredictedRange { value: of(p.time.ns), least: of(p.time.least), most: of(p.time.most) }
    };
    PromptPrediction {
        tokens: options.prompt,
        floor_s: peak.and_then(|p| ceiling::prompt_ns(shape, p, options.prompt)).map(|ns| ns / 1e9),
        seconds: found.map(range),
        confidence: found.map(|f| f.confidence),
    }
}

/// Weights of at most this many bytes per token may come from a cache.
const CACHED: f64 = (64 << 20) as f64;

fn notes(shape: &ModelShape, options: &PredictOptions, peak: Option<&Peak>, threads: u32) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(trained) = shape.context.filter(|n| *n < options.context) {
        out.push(format!("the model was trained for {trained} tokens, fewer than the context asked for"));
    }
    if shape.context.is_none() {
        out.push("the file does not say for how many tokens the model was trained".into());
    }
    if !shape.aside.is_empty() {
        let each =
            shape.aside.iter().map(|(word, bytes)| format!("{word}.* ({:.1} MB)", *bytes as f64 / 1e6));
        out.push(format!("not read for a token of text: {}", each.collect::<Vec<_>>().join(", ")));
    }
    if peak.is_some_and(|p| p.threads.is_some_and(|n| n != threads)) {
        let of = peak.and_then(|p| p.threads).unwrap_or(0);
        out.push(format!("no peak was measured with this number of threads: the ceiling is that of {of}"));
    }
    if peak.is_some() && shape.bytes_a_token() < CACHED {
        out.push("weights this small may stay in a cache: the ceiling of memory can then be exceeded".into());
    }
    out
}

#[cfg(test)]
mod tests;
