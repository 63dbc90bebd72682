//! Sizes of blocks, and the extremes of their values.

/// Elements in one block of Q4_0, Q4_1, Q8_0, IQ4_NL and MXFP4.
pub(super) const SMALL_BLOCK: usize = 32;
/// Elements in one super-block of the K types and of IQ4_XS.
pub(super) const K_BLOCK: usize = 256;

/// Largest absolute value of a block, in eight lanes (order does not matter for a maximum).
pub(super) fn abs_max(x: &[f32; SMALL_BLOCK]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for part in x.as_chunks::<8>().0 {
        for (lane, v) in lanes.iter_mut().zip(part) {
            let a = v.abs();
            *lane = if *lane < a { a } else { *lane };
        }
    }
    lanes.into_iter().fold(0.0, |m, v| if m < v { v } else { m })
}

/// The value of largest magnitude: of several, the first.
pub(super) fn largest(x: &[f32]) -> f32 {
    let most = x.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    if most == 0.0 { 0.0 } else { x.iter().copied().find(|v| v.abs() == most).unwrap_or(0.0) }
}

/// The smallest and the largest of the values.
pub(super) fn bounds(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::MAX, f32::MIN), |(min, max), v| {
        (if *v < min { *v } else { min }, if *v > max { *v } else { max })
    })
}
