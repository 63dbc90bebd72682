//! Converts a row of activations to the format that a weight type requires, with the fastest available code.

use half::{bf16, f16};

use crate::format::{
    ActivationFormat, ActivationScale, Q8Block, Q8KBlock, largest, q8_block, q8k_block, view_mut,
};
use crate::isa::Isa;

/// Converts one row to `format`, with a scale for each block; see [`prepare_row_scaled`].
pub fn prepare_row(isa: Isa, format: ActivationFormat, src: &[f32], dst: &mut [u8]) {
    prepare_row_scaled(isa, format, ActivationScale::Block, src, dst);
}

/// Converts one row to `format`. `dst` must be aligned to 4 and have at least [`prepared_row_bytes`](crate::prepared_row_bytes) for
/// `src.len()`; anything beyond the shorter of the two is left out.
pub fn prepare_row_scaled(
    isa: Isa,
    format: ActivationFormat,
    scale: ActivationScale,
    src: &[f32],
    dst: &mut [u8],
) {
    let row = (scale == ActivationScale::Token).then(|| largest(src));
    #[cfg(target_arch = "x86_64")]
    if super::x86::prepare_row(isa, format, row, src, dst) {
        return;
    }
    if super::dense::prepare_row(isa, format, src, dst) {
        return;
    }
    match format {
        ActivationFormat::F32 => {
            for (o, v) in view_mut::<f32>(dst).iter_mut().zip(src) {
                *o = *v;
            }
        }
        ActivationFormat::F16 => {
            for (o, v) in view_mut::<f32>(dst).iter_mut().zip(src) {
                *o = f16::from_f32(*v).to_f32();
            }
        }
        ActivationFormat::Bf16 => {
            for (o, v) in view_mut::<f32>(dst).iter_mut().zip(src) {
                *o = bf16::from_f32(*v).to_f32();
            }
        }
        ActivationFormat::Q8 => {
            for (o, x) in view_mut::<Q8Block>(dst).iter_mut().zip(src.as_chunks().0) {
                *o = q8_block(x, row.unwrap_or_else(|| largest(x)));
            }
        }
        ActivationFormat::Q8K => {
            for (o, x) in view_mut::<Q8KBlock>(dst).iter_mut().zip(src.as_chunks().0) {
                *o = q8k_block(x, row.unwrap_or_else(|| largest(x)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::view;

    #[test]
    fn a_scale_for_all_of_a_token_is_that_of_its_largest_value() {
        let mut src: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin()).collect();
        src[300] = -63.5;
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            let mut dst = vec![0u32; 512];
            // SAFETY: integers as bytes.
            let (_, bytes, _) = unsafe { dst.align_to_mut::<u8>() };
            prepare_row_scaled(isa, ActivationFormat::Q8, ActivationScale::Token, &src, bytes);
            let blocks = &view::<Q8Block>(bytes)[..16];
            assert!(blocks.iter().all(|b| b.d == 0.5), "{isa}");
            assert_eq!(blocks[9].q[12], -127, "{isa}");
            assert!(blocks[0].q.iter().all(|q| q.abs() <= 2), "{isa}: what the largest leaves of the others");
            prepare_row_scaled(isa, ActivationFormat::Q8K, ActivationScale::Token, &src, bytes);
            let blocks = &view::<Q8KBlock>(bytes)[..2];
            assert!(blocks.iter().all(|b| b.d == 0.5 && b.q.iter().all(|q| *q >= -127)), "{isa}");
            assert_eq!(blocks[1].q[44], -127, "{isa}");
        }
    }
}
