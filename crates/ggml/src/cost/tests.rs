//! Costs compared with numbers worked out by hand.

use super::*;

fn shape(ne: [u64; 4], block: u32, block_bytes: u32) -> TensorShape {
    TensorShape { ne, block, block_bytes }
}

fn f32s(ne: [u64; 4]) -> TensorShape {
    shape(ne, 1, 4)
}

fn f16s(ne: [u64; 4]) -> TensorShape {
    shape(ne, 1, 2)
}

fn i64s(ne: [u64; 4]) -> TensorShape {
    shape(ne, 1, 8)
}

fn q4_0(ne: [u64; 4]) -> TensorShape {
    shape(ne, 32, 18)
}

fn of(op: &str, node: TensorShape, src: &[TensorShape]) -> Option<(u64, u64, u64)> {
    let src: Vec<_> = src.iter().copied().map(Some).collect();
    cost(&OpShape { op, node, src: &src }).map(|c| (c.flops, c.read, c.written))
}

#[test]
fn mul_mat_of_a_decode_step() {
    // 2048 -> 8192, Q4_0: 8192 rows of 64 blocks of 18 bytes = 9437184; activations 8192, result 32768 bytes.
    let (w, x, y) = (q4_0([2048, 8192, 1, 1]), f32s([2048, 1, 1, 1]), f32s([8192, 1, 1, 1]));
    assert_eq!(of("MUL_MAT", y, &[w, x]), Some((33_554_432, 9_445_376, 32_768)));
}

#[test]
fn mul_mat_of_attention_is_per_head() {
    // kq = k [64, 256, 8] x q [64, 7, 32]: 2*64*(256*7*32) operations.
    let (k, q) = (f16s([64, 256, 8, 1]), f32s([64, 7, 32, 1]));
    let expected = (7_340_032, 262_144 + 57_344, 229_376);
    assert_eq!(of("MUL_MAT", f32s([256, 7, 32, 1]), &[k, q]), Some(expected));
}

#[test]
fn mul_mat_id_reads_only_the_experts_in_use() {
    // 60 experts of 512 x 256 in Q4_0: one is 256*16*18 = 73728 bytes.
    let experts = q4_0([512, 256, 60, 1]);
    let decode = [experts, f32s([512, 1, 1, 1]), f32s([4, 1, 1, 1])];
    let expected = (2 * 512 * 1024, 4 * 73_728 + 2048 + 16, 4096);
    assert_eq!(of("MUL_MAT_ID", f32s([256, 4, 1, 1]), &decode), Some(expected));
    // 32 tokens use 128 expert slots; there are 60 experts.
    let prefill = [experts, f32s([512, 1, 32, 1]), f32s([4, 32, 1, 1])];
    let expected = (2 * 512 * 32_768, 60 * 73_728 + 65_536 + 512, 131_072);
    assert_eq!(of("MUL_MAT_ID", f32s([256, 4, 32, 1]), &prefill), Some(expected));
}

#[test]
fn flash_attention_counts_scores_and_values() {
    // 32 heads, 1 token, 256 cells, 64 wide: 8192 scores of 2*(64+64) + 5 + 1.
    let src = [f32s([64, 1, 32, 1]), f16s([64, 256, 8, 1]), f16s([64, 256, 8, 1]), f16s([256, 1, 1, 1])];
    let read = 8192 + 262_144 + 262_144 + 512;
    let node = f32s([64, 32, 1, 1]);
    assert_eq!(of("FLASH_ATTN_EXT", node, &src), Some((8192 * 262, read, 8192)));
    assert_eq!(of("FLASH_ATTN_EXT", node, &src[..3]), Some((8192 * 261, read - 512, 8192)));
}

#[test]
fn element_wise_ops() {
    let x = f32s([2048, 7, 1, 1]);
    let (n, bytes) = (14_336, 57_344);
    let one_row = f32s([2048, 1, 1, 1]);
    assert_eq!(of("ADD", x, &[x, x]), Some((n, 2 * bytes, bytes)));
    assert_eq!(of("MUL", x, &[x, one_row]), Some((n, bytes + 8192, bytes)));
    assert_eq!(of("RMS_NORM", x, &[x]), Some((3 * n, bytes, bytes)));
    assert_eq!(of("NORM", x, &[x]), Some((5 * n, bytes, bytes)));
    assert_eq!(of("ROPE", x, &[x, f32s([7, 1, 1, 1])]), Some((3 * n, bytes + 28, bytes)));
    assert_eq!(of("SOFT_MAX", x, &[x]), Some((6 * n, bytes, bytes)));
    assert_eq!(of("SOFT_MAX", x, &[x, x]), Some((7 * n, 2 * bytes, bytes)));
    assert_eq!(of("UNARY", x, &[x]), Some((n, bytes, bytes)));
    assert_eq!(of("GLU", x, &[x, x]), Some((2 * n, 2 * bytes, bytes)));
    assert_eq!(of("GLU", x, &[f32s([4096, 7, 1, 1])]), Some((2 * n, 2 * bytes, bytes)));
    assert_eq!(of("SUM_ROWS", f32s([1, 7, 1, 1]), &[x]), Some((n, bytes, 28)));
}

#[test]
fn fused_ops_skip_what_is_between() {
    let (x, gain) = (f32s([2048, 7, 1, 1]), f32s([2048, 1, 1, 1]));
    let (norm_src, mul_src) = ([Some(x)], [Some(x), Some(gain)]);
    let norm = OpShape { op: "RMS_NORM", node: x, src: &norm_src };
    let mul = OpShape { op: "MUL", node: x, src: &mul_src };
    let expected = OpCost { flops: 4 * 14_336, read: 57_344 + 8192, written: 57_344 };
    assert_eq!(fused_cost(&norm, &mul), Some(expected));
}

#[test]
fn rows_in_and_out() {
    // Three rows of a Q4_0 table 256 wide: 8 blocks of 18 bytes each.
    let table = q4_0([256, 4096, 1, 1]);
    let rows = f32s([256, 3, 1, 1]);
    let ids = f32s([3, 1, 1, 1]);
    assert_eq!(of("GET_ROWS", rows, &[table, ids]), Some((0, 432 + 12, 3072)));
    // Three rows into a cache of 2048: the cache is the node and, in newer engines, also the last source.
    let cache = f16s([256, 2048, 1, 1]);
    let ids = i64s([3, 1, 1, 1]);
    assert_eq!(of("SET_ROWS", cache, &[rows, ids]), Some((0, 3072 + 24, 1536)));
    assert_eq!(of("SET_ROWS", cache, &[rows, ids, cache]), Some((0, 3072 + 24, 1536)));
    // CPY's second source is its destination.
    assert_eq!(of("CPY", f16s([256, 3, 1, 1]), &[rows, f16s([256, 3, 1, 1])]), Some((0, 3072, 1536)));
    assert_eq!(of("CONT", rows, &[rows]), Some((0, 3072, 3072)));
    // Four of the 8 bias rows are used.
    let (x, bias, ids) = (f32s([16, 4, 1, 1]), f32s([16, 8, 1, 1]), f32s([4, 1, 1, 1]));
    assert_eq!(of("ADD_ID", x, &[x, bias, ids]), Some((64, 256 + 256 + 16, 256)));
}

#[test]
fn views_cost_nothing_and_unknown_ops_are_unknown() {
    let x = f32s([8, 1, 1, 1]);
    assert_eq!(of("VIEW", x, &[x]), Some((0, 0, 0)));
    assert_eq!(of("SSM_SCAN", x, &[x, x]), None);
    assert_eq!(of("", x, &[x]), None);
}

#[test]
fn missing_sources_and_absurd_sizes_are_unknown() {
    let x = f32s([8, 1, 1, 1]);
    let huge = f32s([u64::MAX, u64::MAX, 1, 1]);
    let no_block = shape([8, 1, 1, 1], 0, 0);
    let ops = [
        "MUL_MAT",
        "MUL_MAT_ID",
        "FLASH_ATTN_EXT",
        "SOFT_MAX",
        "ROPE",
        "RMS_NORM",
        "NORM",
        "ADD",
        "SCALE",
        "ADD_ID",
        "GLU",
        "SUM",
        "GET_ROWS",
        "SET_ROWS",
        "CPY",
        "CONT",
        "ARGSORT",
    ];
    for op in ops {
        assert_eq!(of(op, x, &[]), None, "{op}");
        assert_eq!(of(op, huge, &[huge; 4]), None, "{op}");
        assert_eq!(of(op, no_block, &[no_block; 4]), None, "{op}");
    }
    assert_eq!(of("MUL_MAT", x, &[x]), None);
    let src = [Some(x), None, Some(x)];
    assert_eq!(cost(&OpShape { op: "MUL_MAT_ID", node: x, src: &src }), None);
}
