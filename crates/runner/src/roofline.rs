//! The minimum time that a model's phases can take on this machine.

use super::abi::{GgmlTensor, GgmlType, Op};
use super::engine::{RunnerEngine, UBATCH};
use super::model::cache::CHUNK;
use super::model::graph::{Built, GraphSize};
use super::peak::{self, Effort, PeakError, Peaks};
use super::pool::pin;
use ggml::cost::{OpShape, TensorShape};
use ggml::roofline::{AttendedPositions, Ceilings, of_op};

/// Most sources of an op with a known cost.
const SOURCES: usize = 5;

/// Measures this machine with `threads` threads, in about half a second.
///
/// # Errors
/// Not enough memory to measure with.
pub fn measure(threads: usize) -> Result<Peaks, PeakError> {
    let mut cpus = pin::cpus();
    if cpus.is_empty() {
        cpus = (0..threads.max(1)).collect();
    }
    cpus.truncate(threads.max(1));
    peak::of_cpus(&cpus, Effort::QUICK)
}

/// Converts peaks to ceilings for 8-bit integer products and everything else. None without an f32 peak.
pub fn ceilings(peaks: &Peaks) -> Option<Ceilings> {
    let f32 = peaks.f32_fma? * 1e9;
    let int8 = peaks.int8().map_or(f32, |p| p * 1e9);
    (peaks.read > 0.0).then_some(Ceilings { bandwidth: peaks.read * 1e9, int8, f32 })
}

/// Minimum seconds to process a prompt of `tokens` into an empty context, in the engine's batches.
pub fn prefill_seconds(engine: &mut RunnerEngine, tokens: usize, ceilings: &Ceilings) -> f64 {
    let mut seconds = 0.0;
    for from in (0..tokens).step_by(UBATCH) {
        let count = UBATCH.min(tokens - from);
        let last = from + count == tokens;
        let shape =
            GraphSize { tokens: count, positions: positions(engine, from + count), outputs: last.into() };
        seconds += graph_seconds(engine, shape, AttendedPositions::causal(from, count), ceilings);
    }
    seconds
}

/// Minimum seconds to decode `tokens` one by one after `past` others.
pub fn decode_seconds(engine: &mut RunnerEngine, past: usize, tokens: usize, ceilings: &Ceilings) -> f64 {
    let (mut seconds, mut from, end) = (0.0, past, past + tokens);
    while from < end {
        // All with the same graph: time grows linearly with the position, so the middle represents all.
        let to = (from + 1).next_multiple_of(CHUNK).min(end);
        let shape = GraphSize { tokens: 1, positions: positions(engine, to), outputs: 1 };
        let middle = (from + to) as f64 / 2.0;
        let seen = AttendedPositions { mean: middle + 0.5, any: middle + 0.5 };
        seconds += graph_seconds(engine, shape, seen, ceilings) * (to - from) as f64;
        from = to;
    }
    seconds
}

fn positions(engine: &RunnerEngine, end: usize) -> usize {
    end.next_multiple_of(CHUNK).min(engine.context())
}

fn graph_seconds(
    engine: &mut RunnerEngine,
    shape: GraphSize,
    seen: AttendedPositions,
    ceilings: &Ceilings,
) -> f64 {
    let window = engine.model().params.window;
    let built = engine.graph_of(shape);
    // SAFETY: the engine's graph, alive until the next one is built.
    let nodes = unsafe { (*built.graph).nodes() };
    let seconds = |node: &&GgmlTensor| {
        let seen = match window {
            Some(window) if windowed(node, &built) => seen.within(window),
            _ => seen,
        };
        // An op with unknown cost counts as free.
        node_seconds(node, seen, ceilings).unwrap_or(0.0)
    };
    nodes.iter().filter(|n| !n.is_nop()).map(seconds).sum()
}

fn windowed(node: &GgmlTensor, built: &Built) -> bool {
    node.op == Op::FLASH_ATTN_EXT && built.inputs.window_mask.is_some_and(|m| node.src[3] == m)
}

fn node_seconds(node: &GgmlTensor, seen: AttendedPositions, ceilings: &Ceilings) -> Option<f64> {
    let mut src = [None; SOURCES];
    for (i, s) in src.iter_mut().enumerate() {
        // SAFETY: sources of a node of the engine's graph.
        *s = unsafe { node.source(i) }.map(shape);
    }
    // SAFETY: as above.
    if node.op == Op::GET_ROWS && unsafe { node.source(0) }.is_some_and(|t| t.op != Op::NONE) {
        // Rows of a computed result, which may still be in the cache.
        return None;
    }
    let quantised = src[0].is_some_and(|w| w.block > 1);
    let op = OpShape { op: node.op.name(), node: shape(node), src: &src };
    Some(of_op(&op, quantised, seen)?.seconds(ceilings))
}

fn shape(t: &GgmlTensor) -> TensorShape {
    let traits = GgmlType::traits(t.ty);
    TensorShape {
        ne: t.ne.map(|n| u64::try_from(n).unwrap_or(0)),
        block: u32::try_from(traits.blck_size).unwrap_or(0),
        block_bytes: u32::try_from(traits.type_size).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::EngineSettings;
    use super::super::kernels::Isa;
    use super::super::model::Model;
    use super::super::model::weights::Placement;
    use super::super::optimise::Steps;
    use super::super::synth::{self, DEFAULT_SEED, GraphForm, ModelSpec, presets, tensors};
    use super::*;
    use ggml::quant::TensorType;
    use std::sync::Arc;

    const CONTEXT: usize = 600;
    /// Rows of the embedding are read more than once, but are negligible compared with the matrices.
    const TOLERANCE: f64 = 1e-4;

    fn engine(order: &ModelSpec) -> RunnerEngine {
        let file = tempfile::NamedTempFile::new().expect("a file");
        synth::write(order, file.as_file(), |_| ()).expect("room");
        let model = Model::load(file.path(), Isa::best(), Placement::Packed, |_, _| ()).expect("a model");
        let settings = EngineSettings {
            context: CONTEXT,
            threads: 1,
            decode_threads: 1,
            pin: false,
            two_backends: false,
            steps: Steps::ALL,
            truth: None,
        };
        RunnerEngine::new(Arc::new(model), settings).expect("memory")
    }

    fn order() -> ModelSpec {
        let preset = presets::find("tiny").expect("a preset");
        ModelSpec { preset, ty: TensorType::Q8_0, graph: GraphForm::Llama, seed: DEFAULT_SEED, threads: 1 }
    }

    /// Bytes of all matrices except the embedding, of which one row is read.
    fn matrices(order: &ModelSpec) -> u64 {
        let of = |t: tensors::SynthTensor| {
            let ty = tensors::stored_type(&t, order.ty);
            let row = ty.row_bytes(t.dims[0]).expect("whole blocks");
            let rows = if t.name == "token_embd.weight" { 1 } else { t.dims[1..].iter().product() };
            if t.dims.len() == 1 { 0 } else { row * rows }
        };
        tensors::of(order.preset).into_iter().map(of).sum()
    }

    #[test]
    fn decoding_reads_all_weights_and_the_cache_so_far() {
        let order = order();
        let mut engine = engine(&order);
        let slow_memory = Ceilings { bandwidth: 1e6, int8: 1e30, f32: 1e30 };
        let p = order.preset;
        let position = 2 * u64::from(p.layers) * u64::from(p.kv_heads) * u64::from(p.head_dim) * 2;
        // After 99 others, a token attends to 100 positions.
        let bytes = matrices(&order) + 100 * position;
        let got = decode_seconds(&mut engine, 99, 1, &slow_memory) * 1e6;
        assert!((got / bytes as f64 - 1.0).abs() < TOLERANCE, "{got} for {bytes}");
        // 200 tokens across the boundary of two graphs attend to 100, 101, .. 299.
        let bytes = 200 * matrices(&order) + (100..300).sum::<u64>() * position;
        let got = decode_seconds(&mut engine, 99, 200, &slow_memory) * 1e6;
        assert!((got / bytes as f64 - 1.0).abs() < TOLERANCE, "{got} for {bytes}");
    }

    #[test]
    fn a_prompt_is_arithmetic() {
        let order = order();
        let mut engine = engine(&order);
        let machine = Ceilings { bandwidth: 1e30, int8: 1e6, f32: 1e30 };
        // All matrices for each token, but the head and the last feed-forward part only for the last one; Q8_0
        // has 34 bytes per 32 weights.
        let p = order.preset;
        let head = u64::from(p.vocab) * u64::from(p.embd);
        let row = u64::from(p.embd) / 32 * 34;
        let last = head + 3 * u64::from(p.embd) * u64::from(p.ff);
        let each = (matrices(&order) - row) / 34 * 32 - last;
        for tokens in [1, 100, 513] {
            let flops = 2 * (each * tokens as u64 + last);
            let got = prefill_seconds(&mut engine, tokens, &machine) * 1e6;
            assert!((got / flops as f64 - 1.0).abs() < TOLERANCE, "{tokens}: {got} for {flops}");
        }
    }
}
