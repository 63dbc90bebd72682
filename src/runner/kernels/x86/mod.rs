//! Kernels for x86-64. Weights of both instruction sets lie in the panels of [`panel`].

mod avx512;
mod panel;

use super::matmul::Job;
use super::recipe::Recipe;
use super::{Format, Isa};
use crate::ggml::quant::TensorType;

/// The recipe for repacked weights, if there is one.
pub(super) fn recipe(isa: Isa, ty: TensorType) -> Option<&'static Recipe> {
    match isa {
        Isa::Avx512Vnni => avx512::recipe(ty),
        _ => None,
    }
}

/// Prepares as many whole blocks as there are, if there is a way for this format; see [`super::prepare_row`].
pub(super) fn prepare_row(isa: Isa, format: Format, src: &[f32], dst: &mut [u8]) -> bool {
    match isa {
        Isa::Avx512Vnni => avx512::prepare_row(format, src, dst),
        _ => false,
    }
}

/// Weights that stay in the second-level cache while all tokens pass by: less than half of 1 MiB.
const CHUNK_BYTES: usize = 384 << 10;

/// Calls `tile` with each panel, first token and number of tokens: panels in chunks that stay in the second-level
/// cache, within them tiles of tokens that stay in the first-level cache. Tiles are as even as can be.
fn each_tile(job: &Job<'_>, most: usize, tile: impl Fn(usize, usize, usize)) {
    let end = job.rows.end.div_ceil(panel::ROWS);
    let chunk = (CHUNK_BYTES / job.matrix.panel_bytes().max(1)).max(1);
    let tiles = job.tokens().div_ceil(most);
    for start in (job.rows.start / panel::ROWS..end).step_by(chunk) {
        for t in 0..tiles {
            let first = job.tokens() * t / tiles;
            let count = job.tokens() * (t + 1) / tiles - first;
            for panel in start..end.min(start + chunk) {
                tile(panel, first, count);
            }
        }
    }
}
