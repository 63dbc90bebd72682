//! Checked against the published table for Qwen-1.8B and ops worked out by hand.

use super::*;

const QWEN: Transformer = Transformer {
    hidden: 2048,
    intermediate: 5504,
    vocabulary: 151_936,
    blocks: 24,
    heads: 16,
    weight_bytes: 0.5,
};
/// Tokens of the prompt, and positions that a token sees in decode.
const PROMPT: u32 = 560;
const CONTEXT: u32 = 585;
/// The table's unit G.
const G: f64 = 1_073_741_824.0;

/// Within 1 %, or equal when rounded to the table's digits.
#[track_caller]
fn published(got: f64, table: f64, digits: i32) {
    let half = 0.5 * 10f64.powi(-digits);
    assert!((got / table - 1.0).abs() <= 0.01 || (got - table).abs() <= half, "{got} for {table}");
}

#[test]
fn linear_layers() {
    let (prefill, decode) = (QWEN.linear(PROMPT), QWEN.linear(1));
    published(prefill.flops / G, 1591.13, 2);
    published(prefill.bytes / G, 1.74, 2);
    published(decode.flops / G, 2.84, 2);
    published(decode.bytes / G, 0.71, 2);
}

#[test]
fn attention() {
    let (prefill, decode) = (QWEN.attention(PROMPT, PROMPT), QWEN.attention(1, CONTEXT));
    published(prefill.flops / G, 57.57, 2);
    published(prefill.bytes / G, 0.58, 2);
    published(decode.flops / G, 0.11, 2);
    published(decode.bytes / G, 0.21, 2);
}

#[test]
fn others() {
    published(QWEN.others(PROMPT).bytes / G, 10.25, 2);
    published(QWEN.others(1).bytes / G, 0.0183, 4);
}

#[test]
fn ceilings() {
    let machine = Ceilings { bandwidth: 99.274 * G, int8: 2784.0 * G, f32: 352.0 * G };
    let (prefill, decode) = (QWEN.prefill_ceiling(PROMPT, &machine), QWEN.decode_ceiling(CONTEXT, &machine));
    assert!((prefill / 668.31 - 1.0).abs() <= 0.01, "{prefill}");
    assert!((decode / 105.26 - 1.0).abs() <= 0.01, "{decode}");
}

fn shape(ne: [u64; 4], block: u32, block_bytes: u32) -> Option<TensorShape> {
    Some(TensorShape { ne, block, block_bytes })
}

const ANY: AttendedPositions = AttendedPositions { mean: 1.0, any: 1.0 };

#[test]
fn a_product_is_bound_by_its_weights_or_by_arithmetic() {
    let machine = Ceilings { bandwidth: 1e9, int8: 1e12, f32: 1e11 };
    let of = |tokens: u64, quantised| {
        let src = [shape([2048, 8192, 1, 1], 32, 18), shape([2048, tokens, 1, 1], 1, 4)];
        let node = shape([8192, tokens, 1, 1], 1, 4).expect("a shape");
        of_op(&OpShape { op: "MUL_MAT", node, src: &src }, quantised, ANY).expect("a cost")
    };
    // 64 blocks of 18 bytes per row; 2·2048·8192 operations per token.
    assert_eq!(of(1, true), StepWork { kind: ComputeKind::Int8, flops: 33_554_432.0, bytes: 9_437_184.0 });
    assert_eq!(of(1, true).seconds(&machine), 9_437_184.0 / 1e9);
    assert_eq!(of(1000, true).seconds(&machine), 33_554_432_000.0 / 1e12);
    assert_eq!(of(1000, false).kind, ComputeKind::F32);
}

#[test]
fn attention_counts_what_is_seen() {
    let src = [
        shape([64, 4, 32, 1], 1, 4),
        shape([64, 256, 8, 1], 1, 2),
        shape([64, 256, 8, 1], 1, 2),
        shape([256, 4, 1, 1], 1, 2),
    ];
    let op = OpShape { op: "FLASH_ATTN_EXT", node: shape([64, 32, 4, 1], 1, 4).expect("a shape"), src: &src };
    // Four tokens at positions 0 to 3: 2.5 on average, 4 in total, of 256 cells.
    let work = of_op(&op, false, AttendedPositions::causal(0, 4)).expect("a cost");
    assert_eq!(work.flops, 4.0 * 32.0 * 2.5 * 262.0);
    assert_eq!(work.bytes, 2.0 * 4.0 * 8.0 * 64.0 * 2.0);
    // Never more than the cache holds.
    let work = of_op(&op, false, AttendedPositions::causal(1000, 4)).expect("a cost");
    assert_eq!(work.bytes, 2.0 * 262_144.0);
}

#[test]
fn a_window_closes_what_lies_before_it() {
    assert_eq!(AttendedPositions::causal(0, 4).within(100), AttendedPositions::causal(0, 4));
    assert_eq!(
        AttendedPositions { mean: 900.0, any: 900.0 }.within(512),
        AttendedPositions { mean: 512.0, any: 512.0 }
    );
    assert_eq!(AttendedPositions::causal(1000, 5).within(512), AttendedPositions { mean: 512.0, any: 516.0 });
}

#[test]
fn activations_are_not_from_memory() {
    let x = shape([2048, 7, 1, 1], 1, 4);
    let op = OpShape { op: "ADD", node: x.expect("a shape"), src: &[x, x] };
    assert_eq!(
        of_op(&op, false, ANY),
        Some(StepWork { kind: ComputeKind::F32, flops: 14_336.0, bytes: 0.0 })
    );
    let unknown = OpShape { op: "SSM_SCAN", ..op };
    assert_eq!(of_op(&unknown, false, ANY), None);
}
