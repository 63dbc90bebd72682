//! Attention in plain Rust, one query row at a time: the reference for the other versions.

use super::plan::{Attention, AttentionItem, AttentionPlan, PARTIAL_HEAD};
use half::f16;

/// # Safety
/// As for [`super::run_item`].
pub(super) unsafe fn run_item(a: &Attention, plan: &AttentionPlan, item: usize, partials: *mut f32) {
    let item = AttentionItem::of(a, plan, item);
    let group = a.group();
    for token in item.tokens.0..item.tokens.1 {
        for head in item.kv_head * group..(item.kv_head + 1) * group {
            // SAFETY: token, head and positions are within the attention's; a partial result has `stride`
            // elements.
            unsafe {
                if item.chunks == 1 {
                    let out = std::slice::from_raw_parts_mut(a.out.at_mut(token, head), a.dv);
                    let (_, sum) = row(a, &item, token, head, out);
                    let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
                    out.iter_mut().for_each(|o| *o *= factor);
                } else {
                    let stride = PARTIAL_HEAD + a.dv;
                    let at = ((token * a.heads + head) * item.chunks + item.chunk) * stride;
                    let part = std::slice::from_raw_parts_mut(partials.add(at), stride);
                    let (max, sum) = row(a, &item, token, head, &mut part[PARTIAL_HEAD..]);
                    (part[0], part[1]) = (max, sum);
                }
            }
        }
    }
}

/// Weighted sum of the values in `out`, not yet divided; returns the maximum score and the sum of the weights.
///
/// # Safety
/// The rows that `item` refers to must exist.
unsafe fn row(a: &Attention, item: &AttentionItem, token: usize, head: usize, out: &mut [f32]) -> (f32, f32) {
    out.fill(0.0);
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
    for p in item.positions.0..item.positions.1 {
        // SAFETY: guaranteed by the caller.
        let (s, v) = unsafe {
            let v = std::slice::from_raw_parts(a.v.at(p, item.kv_head), a.dv);
            (score(a, item.kv_head, token, head, p), v)
        };
        if s == f32::NEG_INFINITY {
            continue;
        }
        if s > max {
            let factor = (max - s).exp();
            sum *= factor;
            out.iter_mut().for_each(|o| *o *= factor);
            max = s;
        }
        let weight = (s - max).exp();
        sum += weight;
        for (o, v) in out.iter_mut().zip(v) {
            *o += weight * f16::from_bits(*v).to_f32();
        }
    }
    (max, sum)
}

/// # Safety
/// Token, heads and position must be within the attention's.
unsafe fn score(a: &Attention, kv_head: usize, token: usize, head: usize, p: usize) -> f32 {
    // SAFETY: guaranteed by the caller.
    let (q, k, mask) = unsafe {
        let q = std::slice::from_raw_parts(a.q.at(token, head), a.dk);
        let k = std::slice::from_raw_parts(a.k.at(p, kv_head), a.dk);
        (q, k, a.mask.map_or(0.0, |m| f16::from_bits(*m.at(token, 0).add(p)).to_f32()))
    };
    let q_of = |q: f32| if a.round_q { f16::from_f32(q).to_f32() } else { q };
    let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(q_of(*q) * f16::from_bits(*k).to_f32())).sum();
    let s = dot as f32 * a.scale;
    let s = if a.softcap == 0.0 { s } else { a.softcap * (s / a.softcap).tanh() };
    s + mask
}
