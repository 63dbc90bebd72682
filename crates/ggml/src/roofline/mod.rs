//! The roofline: the minimum time that work can take on a machine.
//!
//! A [`StepWork`] is arithmetic of one [`ComputeKind`] plus bytes that must come from memory; it can't be faster than either
//! alone ([`StepWork::seconds`]). A phase of a model is a list of works executed in sequence: one per op of a real
//! graph ([`of_op`]) or, without a graph, three for a complete dense transformer ([`Transformer`]): linear
//! layers, attention, and the rest.

use super::cost::{OpShape, TensorShape, cost};

/// Which peak limits the arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeKind {
    /// Products of quantised weights, in 8-bit integers.
    Int8,
    /// Everything else.
    F32,
}

/// Resources that a step needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepWork {
    pub kind: ComputeKind,
    /// Operations; a multiply-add is two.
    pub flops: f64,
    /// Bytes from and to memory.
    pub bytes: f64,
}

/// A machine's peak rates, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Bytes from memory.
    pub bandwidth: f64,
    /// Operations of each kind.
    pub int8: f64,
    pub f32: f64,
}

impl StepWork {
    /// The minimum time for this work.
    pub fn seconds(&self, ceilings: &Ceilings) -> f64 {
        let peak = match self.kind {
            ComputeKind::Int8 => ceilings.int8,
            ComputeKind::F32 => ceilings.f32,
        };
        (self.flops / peak).max(self.bytes / ceilings.bandwidth)
    }
}

/// The minimum time for several works in sequence.
pub fn seconds<'a>(works: impl IntoIterator<Item = &'a StepWork>, ceilings: &Ceilings) -> f64 {
    works.into_iter().map(|w| w.seconds(ceilings)).sum()
}

/// Positions that the tokens of a graph attend to. Op shapes do not give this: a cache view is longer, and a
/// causal mask hides part of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttendedPositions {
    /// Per token, on average.
    pub mean: f64,
    /// Distinct positions over all tokens.
    pub any: f64,
}

impl AttendedPositions {
    /// `tokens` in sequence, the first at position `first`, each attending to itself and all before it.
    pub fn causal(first: usize, tokens: usize) -> Self {
        let (first, tokens) = (first as f64, tokens as f64);
        Self { mean: first + (tokens + 1.0) / 2.0, any: first + tokens }
    }

    /// The same if no token sees more than `window` positions.
    pub fn within(self, window: usize) -> Self {
        let window = window as f64;
        // Each token after the first brings about one more position into the window.
        let more = (self.any - self.mean).max(0.0) * 2.0;
        Self { mean: self.mean.min(window), any: self.any.min(window + more) }
    }
}

/// The work of an op of a graph. Only weights and the KV cache count as bytes from memory: an op's activations
/// are the previous op's results and can stay in a CPU cache. `None` for ops without a known cost.
///
/// `quantised` says whether a block of the type holds integers.
pub fn of_op(op: &OpShape<'_>, quantised: bool, seen: AttendedPositions) -> Option<StepWork> {
    let all = cost(op)?;
    let bytes = |t: &TensorShape| t.bytes().map(|b| b as f64);
    let source = |i: usize| op.src.get(i).copied().flatten();
    let (mut work, weights) = match op.op {
        "MUL_MAT" => {
            let kind = if quantised { ComputeKind::Int8 } else { ComputeKind::F32 };
            (StepWork { kind, flops: all.flops as f64, bytes: 0.0 }, bytes(&source(0)?)?)
        }
        "MUL_MAT_ID" => {
            let kind = if quantised { ComputeKind::Int8 } else { ComputeKind::F32 };
            let others = bytes(&source(1)?)? + bytes(&source(2)?)?;
            (StepWork { kind, flops: all.flops as f64, bytes: 0.0 }, all.read as f64 - others)
        }
        "FLASH_ATTN_EXT" => {
            let (k, v) = (source(1)?, source(2)?);
            let cells = (k.ne[1] as f64).max(1.0);
            let (mean, any) = ((seen.mean / cells).min(1.0), (seen.any / cells).min(1.0));
            let flops = all.flops as f64 * mean;
            (StepWork { kind: ComputeKind::F32, flops, bytes: 0.0 }, (bytes(&k)? + bytes(&v)?) * any)
        }
        "GET_ROWS" => {
            let ids = source(1)?;
            (StepWork { kind: ComputeKind::F32, flops: 0.0, bytes: 0.0 }, all.read as f64 - bytes(&ids)?)
        }
        _ => (StepWork { kind: ComputeKind::F32, flops: all.flops as f64, bytes: 0.0 }, 0.0),
    };
    work.bytes = weights.max(0.0);
    Some(work)
}

/// A dense transformer with one fused matrix for query, key and value, separate gate and up matrices, full
/// attention heads and an output head, with f16 activations. The formulas are from a published analysis of
/// Qwen-1.8B on Arm; the tests use its numbers.
#[derive(Debug, Clone, Copy)]
pub struct Transformer {
    pub hidden: u32,
    pub intermediate: u32,
    pub vocabulary: u32,
    pub blocks: u32,
    pub heads: u32,
    /// Bytes of one weight: 0.5 for 4 bits.
    pub weight_bytes: f64,
}

/// Bytes of an activation.
const ACTIVATION: f64 = 2.0;
/// Bytes of the output head's scale and zero point per vocabulary entry.
const HEAD_SCALES: f64 = 2.0;
/// Activations of norms, embedding, residuals, quantisation and copies that a block moves, per token and element
/// of the hidden state.
const OTHERS: f64 = 200.0;

impl Transformer {
    /// All linear layers for a batch of `l` tokens.
    pub fn linear(&self, l: u32) -> StepWork {
        let (h, i, v) = (f64::from(self.hidden), f64::from(self.intermediate), f64::from(self.vocabulary));
        let (blocks, l) = (f64::from(self.blocks), f64::from(l));
        let weights = 4.0 * h * h + 3.0 * h * i;
        let flops = 2.0 * l * (blocks * weights + h * v);
        let weight_bytes = self.weight_bytes * (blocks * weights + h * v) + HEAD_SCALES * v;
        // Input and output of query-key-value, output, gate, up and down; then the head.
        let moved = (h + 3.0 * h) + (h + h) + (h + i) + (h + i) + (i + h);
        let activations = ACTIVATION * l * (blocks * moved + h + v);
        StepWork { kind: ComputeKind::Int8, flops, bytes: weight_bytes + activations }
    }

    /// Attention of `l` tokens to `context` positions: scores, values, and the rotation of queries and keys.
    pub fn attention(&self, l: u32, context: u32) -> StepWork {
        let (h, heads, l, c) =
            (f64::from(self.hidden), f64::from(self.heads), f64::from(l), f64::from(context));
        let flops = 4.0 * l * c * h + 6.0 * l * h;
        // Keys and values are written and read; queries, the result and one copy of it; the scores.
        let moved = 4.0 * c * h + 3.0 * l * h + heads * l * c;
        let blocks = f64::from(self.blocks);
        StepWork { kind: ComputeKind::F32, flops: blocks * flops, bytes: blocks * ACTIVATION * moved }
    }

    /// Everything else for `l` tokens: memory traffic only.
    pub fn others(&self, l: u32) -> StepWork {
        let moved = OTHERS * f64::from(l) * f64::from(self.hidden);
        StepWork { kind: ComputeKind::F32, flops: 0.0, bytes: f64::from(self.blocks) * ACTIVATION * moved }
    }

    /// Upper bound on tokens per second for a prompt of `l` tokens.
    pub fn prefill_ceiling(&self, l: u32, ceilings: &Ceilings) -> f64 {
        f64::from(l) / seconds(&[self.linear(l), self.attention(l, l), self.others(l)], ceilings)
    }

    /// Upper bound on tokens per second when one token follows `context` others.
    pub fn decode_ceiling(&self, context: u32, ceilings: &Ceilings) -> f64 {
        1.0 / seconds(&[self.linear(1), self.attention(1, context), self.others(1)], ceilings)
    }
}

#[cfg(test)]
mod tests;
