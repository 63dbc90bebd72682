//! Runs a model: batches of tokens in, logits out.
//!
//! A batch is processed in parts (ubatches). For each the graph is built, or reused if the sizes are those of the
//! previous one. Nothing is allocated between tokens, except when the context grows by a chunk of the cache.

use super::abi::{self, GgmlTensor, LlamaBatch};
use super::compute::{self, Slow};
use super::model::cache::{CHUNK, Cache, CacheError};
use super::model::graph::{BufferError, Built, GraphSize, ModelGraph};
use super::model::{Model, ModelError};
use super::optimise::dump::Stage;
use super::optimise::{Report, Steps};
use super::pool::sched::ComputeError;
use super::pool::{BackendSched, Context, Functions, PoolError, Threads};
use super::slots::{ExpertReadError, ExpertStore};
use super::truth::Truth;
use std::ffi::c_void;
use std::sync::Arc;

/// Tokens per graph run (`n_ubatch` of llama.cpp).
pub const UBATCH: usize = 512;
/// Longest context in tokens: positions are i32, in complete chunks of the cache.
pub const MAX_CONTEXT: usize = i32::MAX as usize / CHUNK * CHUNK;
/// A masked position in an f16 mask: minus infinity.
const CLOSED: u16 = 0xfc00;

/// Why tokens can't be decoded.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    Buffer(#[from] BufferError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Compute(#[from] ComputeError),
    #[error("{past} tokens plus {more} more do not fit into a context of {context}: use a larger --ctx")]
    Context { past: usize, more: usize, context: usize },
    #[error("a context of {0} tokens exceeds the maximum of {MAX_CONTEXT}")]
    Long(usize),
    #[error("token {token} is not in the vocabulary of {vocab}")]
    Token { token: i32, vocab: usize },
    #[error("no tokens to decode")]
    Empty,
    #[error("{rows} rows of logits, but there can be 1 to {most}")]
    Rows { rows: usize, most: usize },
    #[error("no op or computed tensor of this model is named '{0}'")]
    Slow(String),
    #[error("the logits are not finite: the weights are damaged")]
    NotFinite,
    #[error(transparent)]
    Experts(#[from] ExpertReadError),
}

/// Settings of an engine.
#[derive(Clone)]
pub struct EngineSettings {
    /// Context length in tokens, rounded up to complete chunks of the cache.
    pub context: usize,
    /// Threads for batches of several tokens; also the maximum.
    pub threads: usize,
    /// Threads for single tokens.
    pub decode_threads: usize,
    /// Pins each thread to its own CPU.
    pub pin: bool,
    pub two_backends: bool,
    /// What the graph goes through before it runs.
    pub steps: Steps,
    /// The engine's own timing record.
    pub truth: Option<Arc<Truth>>,
}

/// A model with its context.
pub struct RunnerEngine {
    sched: Box<BackendSched>,
    way: Option<Context>,
    graph: ModelGraph,
    cache: Cache,
    model: Arc<Model>,
    settings: EngineSettings,
    /// Tokens in the cache.
    past: usize,
    /// Most rows of logits that a batch can have.
    most_rows: usize,
    /// Rows of logits of the batch being decoded: those of its last tokens.
    rows: usize,
    /// The result of the last graph; null before the first.
    logits: *mut GgmlTensor,
    /// Why the last batch failed.
    failure: Option<EngineError>,
}

/// The functions that the pool's threads call for each node.
fn functions() -> Functions {
    Functions {
        // SAFETY: the pool calls these from its compute loop, with nodes of graphs that the engine built and
        // keeps.
        forward: |params, node| unsafe { compute::forward(params, node) },
        // SAFETY: as above.
        rms_norm_mul: |params, norm, mul| unsafe { compute::forward_norm_mul(params, norm, mul) },
        // SAFETY: as above.
        work_size: |node, threads| unsafe { compute::NodeState::of(node) }.work.bytes(threads),
    }
}

impl RunnerEngine {
    /// An engine with an empty context.
    ///
    /// # Errors
    /// Memory or threads are not available.
    pub fn new(model: Arc<Model>, settings: EngineSettings) -> Result<Self, EngineError> {
        Self::with_rows(model, settings, 1)
    }

    /// The same for [`Self::decode_rows`] with up to `most_rows` rows of logits.
    ///
    /// # Errors
    /// Memory or threads are not available.
    pub fn with_rows(
        model: Arc<Model>,
        settings: EngineSettings,
        most_rows: usize,
    ) -> Result<Self, EngineError> {
        if settings.context > MAX_CONTEXT {
            return Err(EngineError::Long(settings.context));
        }
        let context = settings.context.max(1).next_multiple_of(CHUNK);
        let cache = Cache::new(&model.params, context)?;
        let tokens = UBATCH.min(context);
        let most_rows = most_rows.clamp(1, tokens);
        let most = GraphSize { tokens, positions: context, outputs: most_rows };
        let graph = ModelGraph::new(&model, &cache, most, settings.threads, settings.steps)?;
        let threads = Threads::new(settings.threads, settings.pin, functions())?;
        threads.fuse(graph.fuses());
        if let Some(truth) = &settings.truth {
            threads.record(Arc::clone(truth));
        }
        let sched = BackendSched::new(threads, settings.two_backends);
        let way = Some(Context::new(decode_batch, settings.truth.clone()));
        Ok(Self {
            sched,
            way,
            graph,
            cache,
            model,
            settings,
            past: 0,
            most_rows,
            rows: 1,
            logits: std::ptr::null_mut(),
            failure: None,
        })
    }

    /// Makes some ops slower from now on.
    ///
    /// # Errors
    /// No op or tensor has that name.
    pub fn slow_down(&mut self, slow: Slow) -> Result<(), EngineError> {
        let name = slow.name.clone();
        if self.graph.slow_down(slow) == 0 { Err(EngineError::Slow(name)) } else { Ok(()) }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The scheduler.
    pub fn sched(&self) -> &BackendSched {
        &self.sched
    }

    /// Tokens in the context.
    pub fn past(&self) -> usize {
        self.past
    }

    /// The graph of a shape that fits the context, without running it.
    pub(super) fn graph_of(&mut self, shape: GraphSize) -> Built {
        self.graph.get(&self.model, &self.cache, shape)
    }

    /// What the steps did to the graph.
    pub fn report(&self) -> &Report {
        self.graph.report()
    }

    /// The graph that decodes one token, as DOT.
    pub fn dump(&mut self, stage: Stage) -> String {
        let shape = GraphSize { tokens: 1, positions: CHUNK.min(self.context()), outputs: 1 };
        self.graph.dump(&self.model, &self.cache, shape, stage)
    }

    /// Capacity of the context in tokens.
    pub fn context(&self) -> usize {
        self.cache.context()
    }

    /// Bytes of the buffers that batches need.
    pub fn buffer_bytes(&self) -> usize {
        self.graph.bytes(self.settings.threads)
    }

    /// The graph that ran last.
    pub fn graph(&self) -> Option<&abi::GgmlGraph> {
        // SAFETY: the space's own graph, alive and unchanged while `self` is borrowed.
        self.graph.built().map(|b| unsafe { &*b.graph })
    }

    /// Empties the context.
    pub fn forget(&mut self) {
        self.past = 0;
    }

    /// Decodes tokens that follow those in the context; returns the logits of the last.
    ///
    /// # Errors
    /// Tokens that are not in the vocabulary or do not fit the context, or not enough memory. The context is then
    /// unchanged.
    pub fn decode(&mut self, tokens: &[i32]) -> Result<&[f32], EngineError> {
        let count = i32::try_from(tokens.len()).unwrap_or(i32::MAX);
        let null = std::ptr::null_mut;
        let batch = LlamaBatch {
            n_tokens: count,
            token: tokens.as_ptr().cast_mut(),
            embd: std::ptr::null_mut(),
            pos: std::ptr::null_mut(),
            n_seq_id: null(),
            seq_id: std::ptr::null_mut(),
            logits: std::ptr::null_mut(),
        };
        // Taken out because `decode` needs the engine as well.
        let Some(way) = self.way.take() else { return Err(EngineError::Empty) };
        // SAFETY: the context's function takes an engine, and the batch's tokens outlive the call.
        unsafe { way.decode((&raw mut *self).cast(), batch) };
        self.way = Some(way);
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(self.logits()),
        }
    }

    /// The same with the logits of the last `rows` tokens, one row after the other.
    ///
    /// # Errors
    /// Those of [`Self::decode`]; more rows than tokens, or than the engine was made for.
    pub fn decode_rows(&mut self, tokens: &[i32], rows: usize) -> Result<&[f32], EngineError> {
        let most = self.most_rows.min(tokens.len());
        if rows == 0 || rows > most {
            return Err(EngineError::Rows { rows, most });
        }
        self.rows = rows;
        let failed = self.decode(tokens).err();
        self.rows = 1;
        failed.map_or_else(|| Ok(self.logits()), Err)
    }

    /// Logits of the last decoded token, or rows of the last batch; empty before the first.
    pub fn logits(&self) -> &[f32] {
        if self.logits.is_null() {
            return &[];
        }
        // SAFETY: the result of the graph that ran last, which nothing writes before the next call.
        unsafe { elements::<f32>(self.logits) }
    }

    fn run(&mut self, tokens: &[i32]) -> Result<(), EngineError> {
        self.check(tokens)?;
        let before = self.past;
        let result = self.ubatches(tokens);
        if result.is_err() {
            self.past = before;
        }
        result
    }

    fn check(&self, tokens: &[i32]) -> Result<(), EngineError> {
        let (past, more, context) = (self.past, tokens.len(), self.context());
        if past.checked_add(more).is_none_or(|n| n > context) {
            return Err(EngineError::Context { past, more, context });
        }
        let vocab = self.model.weights.vocab();
        let known = |t: &i32| usize::try_from(*t).is_ok_and(|t| t < vocab);
        match tokens.iter().find(|t| !known(t)) {
            Some(token) => Err(EngineError::Token { token: *token, vocab }),
            None if tokens.is_empty() => Err(EngineError::Empty),
            None => Ok(()),
        }
    }

    fn ubatches(&mut self, tokens: &[i32]) -> Result<(), EngineError> {
        let threads = if tokens.len() > 1 { self.settings.threads } else { self.settings.decode_threads };
        self.sched.set_threads(threads);
        let rows = self.rows;
        // Only the last part has logits, so all rows must be in it.
        let (before, last) = tokens.split_at(last_part(tokens.len(), rows));
        for (part, outputs) in before.chunks(UBATCH).map(|part| (part, 0)).chain([(last, rows)]) {
            let end = self.past + part.len();
            self.cache.grow(end)?;
            let positions = end.next_multiple_of(CHUNK).min(self.context());
            let shape = GraphSize { tokens: part.len(), positions, outputs };
            let built = self.graph.get(&self.model, &self.cache, shape);
            self.fill(&built, part);
            let slots = self.model.weights.slots.as_deref();
            if let Some(slots) = slots {
                slots.begin_graph(part.len(), tokens.len());
            }
            // SAFETY: the graph is the space's, alive and built for these inputs; nothing else uses it now.
            unsafe { self.sched.compute(&mut *built.graph)? };
            slots.map_or(Ok(()), ExpertStore::check)?;
            self.past = end;
            self.logits = built.logits;
        }
        Ok(())
    }

    /// Writes a graph's inputs.
    fn fill(&mut self, built: &Built, tokens: &[i32]) {
        let (inputs, past) = (&built.inputs, self.past);
        // SAFETY: the graph's inputs are contiguous, of these types, and nothing else uses them while no graph
        // runs.
        unsafe {
            elements::<i32>(inputs.tokens).copy_from_slice(tokens);
            for (i, p) in elements::<i32>(inputs.positions).iter_mut().enumerate() {
                *p = i32::try_from(past + i).unwrap_or(i32::MAX);
            }
            for rows in [inputs.key_rows, inputs.value_rows] {
                for (i, r) in elements::<i64>(rows).iter_mut().enumerate() {
                    *r = i64::try_from(past + i).unwrap_or(i64::MAX);
                }
            }
            let first = tokens.len().saturating_sub(built.shape.outputs);
            for (i, id) in elements::<i32>(inputs.outputs).iter_mut().enumerate() {
                *id = i32::try_from(first + i).unwrap_or(0);
            }
            causal(elements(inputs.mask), built.shape.positions, past, usize::MAX);
            if let (Some(mask), Some(window)) = (inputs.window_mask, self.model.params.window) {
                causal(elements(mask), built.shape.positions, past, window);
            }
        }
    }
}

/// Where the last part of a batch begins: a remainder of complete parts, unless it is too short for the rows.
fn last_part(tokens: usize, rows: usize) -> usize {
    let begin = tokens.saturating_sub(1) / UBATCH * UBATCH;
    begin.min(tokens.saturating_sub(rows))
}

/// Unmasks, for each token from position `past` on, its own position and those before it within the window.
fn causal(mask: &mut [u16], positions: usize, past: usize, window: usize) {
    for (row, at) in mask.chunks_exact_mut(positions.max(1)).zip(past..) {
        row.fill(CLOSED);
        let first = (at + 1).saturating_sub(window);
        if let Some(open) = row.get_mut(first..=at) {
            open.fill(0);
        }
    }
}

/// All elements of a tensor.
///
/// # Safety
/// It must be contiguous with elements of `T`, its data must be alive, and nothing else may use it for `'a`.
unsafe fn elements<'a, T>(tensor: *mut GgmlTensor) -> &'a mut [T] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let len = usize::try_from((*tensor).nelements()).unwrap_or(0);
        std::slice::from_raw_parts_mut((*tensor).data.cast(), len)
    }
}

/// The function behind `llama_decode`.
///
/// # Safety
/// `engine` must point to an engine that nothing else uses, and the batch to `n_tokens` tokens.
unsafe fn decode_batch(engine: *mut c_void, batch: &abi::LlamaBatch) -> i32 {
    // SAFETY: guaranteed by the caller.
    let (engine, tokens) = unsafe {
        let len = usize::try_from(batch.n_tokens).unwrap_or(0);
        let tokens = if len == 0 { &[] } else { std::slice::from_raw_parts(batch.token.cast_const(), len) };
        (&mut *engine.cast::<RunnerEngine>(), tokens)
    };
    engine.failure = engine.run(tokens).err();
    if engine.failure.is_some() { -1 } else { 0 }
}

/// Index of the largest logit; the first one if several are equal.
///
/// # Errors
/// [`EngineError::NotFinite`] if a logit is not finite.
pub fn greedy(logits: &[f32]) -> Result<i32, EngineError> {
    // Sixteen running maxima, which the compiler keeps in a vector; a product with 0 is 0 only for finite
    // numbers.
    let (mut most, mut zeros) = ([f32::NEG_INFINITY; 16], [0.0f32; 16]);
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for ((m, z), v) in most.iter_mut().zip(&mut zeros).zip(chunk) {
            *m = if *v > *m { *v } else { *m };
            *z += v * 0.0;
        }
    }
    let finite = zeros.iter().all(|z| *z == 0.0) && rest.iter().all(|v| v.is_finite());
    let max = most.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| a.max(*b));
    let best = logits.iter().position(|v| *v == max).filter(|_| finite);
    best.and_then(|i| i32::try_from(i).ok()).ok_or(EngineError::NotFinite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_first_of_the_largest_and_finite_ones_only() {
        let mut logits: Vec<f32> = (0..50).map(|i| -((i as f32) - 37.0).abs()).collect();
        assert_eq!(greedy(&logits).ok(), Some(37));
        logits[49] = 0.0;
        assert_eq!(greedy(&logits).ok(), Some(37));
        (logits[37], logits[20]) = (-1.0, 5.0);
        assert_eq!(greedy(&logits).ok(), Some(20));
        for (at, wrong) in [(3, f32::NAN), (49, f32::INFINITY), (40, f32::NEG_INFINITY)] {
            let mut damaged = logits.clone();
            damaged[at] = wrong;
            assert!(matches!(greedy(&damaged), Err(EngineError::NotFinite)), "{wrong} at {at}");
        }
        assert!(greedy(&[]).is_err());
    }

    #[test]
    fn all_rows_are_in_the_last_part() {
        for ((tokens, rows), begin) in [
            ((1, 1), 0),
            ((512, 1), 0),
            ((513, 1), 512),
            ((600, 1), 512),
            ((513, 4), 509),
            ((1024, 512), 512),
        ] {
            assert_eq!(last_part(tokens, rows), begin, "{tokens} tokens, {rows} rows");
        }
    }

    #[test]
    fn masks_open_the_past_and_the_window() {
        let open = |past, window| {
            let mut mask = vec![1u16; 2 * 8];
            causal(&mut mask, 8, past, window);
            mask.iter().map(|m| if *m == 0 { 'o' } else { '-' }).collect::<String>()
        };
        assert_eq!(open(0, usize::MAX), "o-------oo------");
        assert_eq!(open(3, usize::MAX), "oooo----ooooo---");
        assert_eq!(open(3, 2), "--oo-------oo---");
        assert_eq!(open(0, 1), "o--------o------");
    }
}
