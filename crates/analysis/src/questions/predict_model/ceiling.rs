//! The least time that a model's work can take at the machine's peaks: each product takes no less than its bytes at
//! the read bandwidth, and no less than its operations at the arithmetic peak.

use crate::sums::attribution::verdict::Peak;
use ggml::model_shape::{ModelShape, WeightProduct};

/// Time for bytes and operations, ns; `None` if the peak for these operations is not known.
fn compute_ns(ops: f64, int8: bool, peak: &Peak) -> Option<f64> {
    let rate = if int8 { peak.int8_gop_per_s.or(peak.gflop_per_s) } else { peak.gflop_per_s };
    rate.filter(|r| *r > 0.0).map(|r| ops / r)
}

/// Least time of all products of this kind, of which `tokens` are multiplied at once, ns.
fn product_ns(p: &WeightProduct, tokens: u64, peak: &Peak) -> f64 {
    let compute = compute_ns(p.flops() * tokens as f64, p.ty.block > 1, peak).unwrap_or(0.0);
    (p.bytes(tokens) / peak.gb_per_s).max(compute)
}

/// Least time to decode a token with this context, ns.
pub fn decode_ns(shape: &ModelShape, peak: &Peak, context: f64, cache_bytes: f64) -> f64 {
    let products: f64 = shape.products.iter().map(|p| product_ns(p, 1, peak) * p.count as f64).sum();
    let cache = shape.cache_elements() as f64 * shape.attended(context) * cache_bytes;
    products + (cache + shape.row as f64) / peak.gb_per_s
}

/// Least time to process a prompt, ns; `None` if no arithmetic peak is known, because arithmetic decides.
pub fn prompt_ns(shape: &ModelShape, peak: &Peak, tokens: u64) -> Option<f64> {
    peak.gflop_per_s?;
    let columns = |p: &WeightProduct| if p.head { 1 } else { tokens };
    let products: f64 = shape.products.iter().map(|p| product_ns(p, columns(p), peak) * p.count as f64).sum();
    let a = &shape.attention;
    let positions = shape.attended(tokens as f64 / 2.0) * tokens as f64 * shape.layers as f64;
    let scores = positions * a.heads as f64 * 2.0 * (a.key.saturating_add(a.value)) as f64;
    Some(products + compute_ns(scores, false, peak)?)
}
