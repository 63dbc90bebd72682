//! Converts a row of activations to the format that a weight type requires, with the fastest available code.

use half::{bf16, f16};

use crate::format::{ActivationFormat, Q8Block, Q8KBlock, q8_block, q8k_block, view_mut};
use crate::isa::Isa;

/// Converts one row to `format`. `dst` must be aligned to 4 and have at least [`prepared_row_bytes`](crate::prepared_row_bytes) for
/// `src.len()`; anything beyond the shorter of the two is left out.
pub fn prepare_row(isa: Isa, format: ActivationFormat, src: &[f32], dst: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if super::x86::prepare_row(isa, format, src, dst) {
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
                *o = q8_block(x);
            }
        }
        ActivationFormat::Q8K => {
            for (o, x) in view_mut::<Q8KBlock>(dst).iter_mut().zip(src.as_chunks().0) {
                *o = q8k_block(x);
            }
        }
    }
}
