//! The arithmetic and memory traffic of an op, computed from its name and tensor shapes alone.
//!
//! **FLOPs.** A multiply-add is 2; any other arithmetic operation on an element is 1, as is an elementary
//! function (`exp`, `tanh`, square root, division). Comparisons, conversions and dequantisation are not counted.
//! The figure is the work that the mathematics requires, whatever a kernel actually does.
//!
//! **Bytes.** Every element that the op needs is read once and every element of the result is written once, in
//! their storage types. This is the traffic of a machine with perfect caches, hence a lower bound.
//!
//! With n = elements of the node, K = row length of the first source, |t| = bytes of tensor t:
//!
//! | ops | FLOPs | read | written |
//! |---|---|---|---|
//! | MUL_MAT | 2·K·n | all sources | \|node\| |
//! | MUL_MAT_ID | 2·K·n | min(ids, experts) of the expert matrices, activations, ids | \|node\| |
//! | FLASH_ATTN_EXT | rows·n_kv·(2·D_k + 2·D_v + 5, + 1 with a mask), rows = tokens·heads | all sources | \|node\| |
//! | SOFT_MAX | 6·n, + n with a mask: scale, (mask,) maximum, subtract, exp, sum, divide | all sources | \|node\| |
//! | ROPE | 3·n: four multiplies and two adds per pair; angles not counted, full row rotated | all sources | \|node\| |
//! | RMS_NORM, L2_NORM | 3·n: square, add, scale | source | \|node\| |
//! | NORM, GROUP_NORM | 5·n: sum, subtract, square, add, scale | source | \|node\| |
//! | ADD, SUB, MUL, DIV, ADD1, ADD_ID, ACC | n | all sources (ADD_ID: the rows used) | \|node\| |
//! | SCALE, SQR, SQRT, LOG, SIN, COS, CLAMP, UNARY, LEAKY_RELU | n | source | \|node\| |
//! | GLU | 2·n: activation, product | all sources | \|node\| |
//! | SUM, SUM_ROWS, MEAN, CUMSUM | elements of the source | source | \|node\| |
//! | GET_ROWS | 0 | rows taken, ids | \|node\| |
//! | SET_ROWS | 0 | new rows, ids | the new rows in the node's type |
//! | CPY, CONT, DUP, CONCAT, REPEAT, PAD, ROLL, DIAG_MASK_INF | 0 | sources (CPY: the first) | \|node\| |
//! | ARGSORT, ARGMAX, TOP_K | 0: comparisons | source | \|node\| |
//! | FILL, ARANGE | 0 | 0 | \|node\| |
//! | NONE, VIEW, RESHAPE, PERMUTE, TRANSPOSE | 0 | 0 | 0: only a description changes |
//!
//! FLASH_ATTN_EXT counts all cells of the cache view; a kernel may skip masked cells.

/// Dimensions of a tensor.
const DIMS: usize = 4;

/// Shape and storage of a tensor, all that its cost depends on; a recorded tensor and one in memory are converted to it.
/// Type sizes come from the engine's own table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorShape {
    /// Elements per dimension, row length first (`ggml_tensor.ne`).
    pub ne: [u64; DIMS],
    /// Elements in one block of the type.
    pub block: u32,
    /// Bytes in one block of the type.
    pub block_bytes: u32,
}

/// An op: its name as in `GGML_OP_NAME`, its result, and its sources in order.
#[derive(Debug, Clone, Copy)]
pub struct OpShape<'a> {
    pub op: &'a str,
    pub node: TensorShape,
    pub src: &'a [Option<TensorShape>],
}

/// The cost of one execution of an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpCost {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl TensorShape {
    /// Elements; `None` on overflow.
    pub fn elements(&self) -> Option<u64> {
        self.ne.iter().try_fold(1u64, |n, d| n.checked_mul(*d))
    }

    /// Rows: the product of all dimensions but the first; `None` on overflow.
    pub fn rows(&self) -> Option<u64> {
        let [_, rest @ ..] = self.ne;
        rest.iter().try_fold(1u64, |n, d| n.checked_mul(*d))
    }

    /// Bytes of the elements, excluding gaps between rows; `None` on overflow or for a type with block size 0.
    pub fn bytes(&self) -> Option<u64> {
        self.rows_bytes(self.rows()?)
    }

    /// Bytes of `rows` rows.
    fn rows_bytes(&self, rows: u64) -> Option<u64> {
        let blocks = self.ne[0].checked_add(u64::from(self.block).checked_sub(1)?)? / u64::from(self.block);
        blocks.checked_mul(u64::from(self.block_bytes))?.checked_mul(rows)
    }
}

impl OpShape<'_> {
    fn source(&self, i: usize) -> Option<&TensorShape> {
        self.src.get(i)?.as_ref()
    }

    /// Bytes of all sources.
    fn all_sources(&self) -> Option<u64> {
        self.src.iter().flatten().try_fold(0u64, |n, s| n.checked_add(s.bytes()?))
    }

    /// `per_element` operations per element of the node; all sources read.
    fn element_wise(&self, per_element: u64) -> Option<OpCost> {
        self.with_flops(self.node.elements()?.checked_mul(per_element)?)
    }

    /// All sources read, the node written. `None` if the op has no source: it is then not what its name says.
    fn with_flops(&self, flops: u64) -> Option<OpCost> {
        self.source(0)?;
        Some(OpCost { flops, read: self.all_sources()?, written: self.node.bytes()? })
    }
}

/// The cost of an op. `None` if the op is unknown, lacks a required source, or its sizes overflow: the cost is
/// then unknown, not zero.
pub fn cost(op: &OpShape<'_>) -> Option<OpCost> {
    match op.op {
        "MUL_MAT" => mul_mat(op),
        "MUL_MAT_ID" => mul_mat_id(op),
        "FLASH_ATTN_EXT" => flash_attention(op),
        "SOFT_MAX" => op.element_wise(6 + u64::from(op.source(1).is_some())),
        "ROPE" => op.element_wise(3),
        "RMS_NORM" | "L2_NORM" => op.element_wise(3),
        "NORM" | "GROUP_NORM" => op.element_wise(5),
        "ADD" | "SUB" | "MUL" | "DIV" | "ADD1" | "ACC" => op.element_wise(1),
        "SCALE" | "SQR" | "SQRT" | "LOG" | "SIN" | "COS" | "CLAMP" | "UNARY" | "LEAKY_RELU" => {
            op.element_wise(1)
        }
        "ADD_ID" => add_id(op),
        "GLU" => op.element_wise(2),
        "SUM" | "SUM_ROWS" | "MEAN" | "CUMSUM" => op.with_flops(op.source(0)?.elements()?),
        "GET_ROWS" => get_rows(op),
        "SET_ROWS" => set_rows(op),
        "CPY" => Some(OpCost { flops: 0, read: op.source(0)?.bytes()?, written: op.node.bytes()? }),
        "CONT" | "DUP" | "CONCAT" | "REPEAT" | "PAD" | "ROLL" | "DIAG_MASK_INF" => op.with_flops(0),
        "ARGSORT" | "ARGMAX" | "TOP_K" => op.with_flops(0),
        "FILL" | "ARANGE" => Some(OpCost { flops: 0, read: 0, written: op.node.bytes()? }),
        "NONE" | "VIEW" | "RESHAPE" | "PERMUTE" | "TRANSPOSE" => Some(OpCost::default()),
        _ => None,
    }
}

/// The cost of two ops that one kernel runs together (such as RMS_NORM and the following MUL), where `first`'s
/// node is a source of `second`: the intermediate result is neither written nor read. `None` as for [`cost`].
pub fn fused_cost(first: &OpShape<'_>, second: &OpShape<'_>) -> Option<OpCost> {
    let (a, b) = (cost(first)?, cost(second)?);
    let between = first.node.bytes()?;
    Some(OpCost {
        flops: a.flops.checked_add(b.flops)?,
        read: a.read.checked_add(b.read)?.checked_sub(between)?,
        written: b.written,
    })
}

/// Sources: weights [K, M, ..], activations [K, N, ..]; node [M, N, ..].
fn mul_mat(op: &OpShape<'_>) -> Option<OpCost> {
    let (weights, _) = (op.source(0)?, op.source(1)?);
    op.with_flops(weights.ne[0].checked_mul(op.node.elements()?)?.checked_mul(2)?)
}

/// Sources: experts [K, M, experts], activations [K, used or 1, tokens], ids [used, tokens]; node [M, used,
/// tokens]. The ids are not known here: they are assumed distinct until all experts are in use.
fn mul_mat_id(op: &OpShape<'_>) -> Option<OpCost> {
    let (experts, activations, ids) = (op.source(0)?, op.source(1)?, op.source(2)?);
    let flops = experts.ne[0].checked_mul(op.node.elements()?)?.checked_mul(2)?;
    let used = ids.elements()?.min(experts.ne[2]);
    let weights = experts.rows_bytes(experts.ne[1].checked_mul(used)?)?;
    let read = weights.checked_add(activations.bytes()?)?.checked_add(ids.bytes()?)?;
    Some(OpCost { flops, read, written: op.node.bytes()? })
}

/// Sources: q [D_k, tokens, heads, batch], k [D_k, n_kv, ..], v [D_v, n_kv, ..], mask, sinks; node [D_v, heads,
/// tokens, batch]. A score costs 2·D_k, its share of the result 2·D_v; scale, maximum, subtract, exp and sum make
/// the 5.
fn flash_attention(op: &OpShape<'_>) -> Option<OpCost> {
    let (q, k, v) = (op.source(0)?, op.source(1)?, op.source(2)?);
    let scores = q.rows()?.checked_mul(k.ne[1])?;
    let dots = k.ne[0].checked_add(v.ne[0])?.checked_mul(2)?;
    let per_score = dots.checked_add(5 + u64::from(op.source(3).is_some()))?;
    op.with_flops(scores.checked_mul(per_score)?)
}

/// Sources: table, ids. One row of the table is read per row of the node.
fn get_rows(op: &OpShape<'_>) -> Option<OpCost> {
    let (table, ids) = (op.source(0)?, op.source(1)?);
    let read = table.rows_bytes(op.node.rows()?)?.checked_add(ids.bytes()?)?;
    Some(OpCost { flops: 0, read, written: op.node.bytes()? })
}

/// Sources: new rows, ids (and, in newer versions, the destination). The node is a view of the complete
/// destination, of which only the new rows are written.
fn set_rows(op: &OpShape<'_>) -> Option<OpCost> {
    let (rows, ids) = (op.source(0)?, op.source(1)?);
    let read = rows.bytes()?.checked_add(ids.bytes()?)?;
    Some(OpCost { flops: 0, read, written: op.node.rows_bytes(rows.rows()?)? })
}

/// Sources: a [n, used, tokens], one row of bias per expert, ids [used, tokens].
fn add_id(op: &OpShape<'_>) -> Option<OpCost> {
    let (a, bias, ids) = (op.source(0)?, op.source(1)?, op.source(2)?);
    let bias = bias.rows_bytes(ids.elements()?.min(bias.rows()?))?;
    let read = a.bytes()?.checked_add(bias)?.checked_add(ids.bytes()?)?;
    Some(OpCost { flops: op.node.elements()?, read, written: op.node.bytes()? })
}

#[cfg(test)]
mod tests;
