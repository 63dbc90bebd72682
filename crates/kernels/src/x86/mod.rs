//! Kernels for x86-64. Each instruction set has weight panels of its own: of 32 rows in [`panel`], of 8 in `avx2`.

/// The recipes of an instruction set, from its modules `small` and `k`, for tiles of `TILE` tokens and `$rows`
/// rows.
macro_rules! recipes {
    (tile of $rows:expr, q6_K with $q6k_scratch:path, $q6k_run:path) => {
        static Q4_0: Recipe = Recipe {
            ty: TensorType::Q4_0,
            group: panel::ROWS,
            tile: Some((TILE, $rows)),
            panel_bytes: panel::bytes,
            pack: Some(panel::pack_q4_0),
            scratch_bytes: no_scratch,
            readings: READINGS,
            run: |job, _| run(job, small::tile_of::<{ small::Q4_0 }>),
        };
        static Q4_1: Recipe = Recipe {
            ty: TensorType::Q4_1,
            pack: Some(panel::pack_q4_1),
            run: |job, _| run(job, small::tile_of::<{ small::Q4_1 }>),
            ..Q4_0
        };
        static Q8_0: Recipe = Recipe {
            ty: TensorType::Q8_0,
            pack: Some(panel::pack_q8_0),
            run: |job, _| run(job, small::tile_of::<{ small::Q8_0 }>),
            ..Q4_0
        };
        static Q4K: Recipe = Recipe {
            ty: TensorType::Q4K,
            pack: Some(panel::pack_q4k),
            run: |job, _| run(job, k::tile_of::<{ k::Q4K }>),
            ..Q4_0
        };
        static Q6K: Recipe = Recipe {
            ty: TensorType::Q6K,
            pack: Some(panel::pack_q6k),
            scratch_bytes: $q6k_scratch,
            run: $q6k_run,
            ..Q4_0
        };

        /// The recipe of a type that every instruction set here has, if it is one.
        pub(super) fn common(ty: TensorType) -> Option<&'static Recipe> {
            match ty {
                TensorType::Q4_0 => Some(&Q4_0),
                TensorType::Q4_1 => Some(&Q4_1),
                TensorType::Q8_0 => Some(&Q8_0),
                TensorType::Q4K => Some(&Q4K),
                TensorType::Q6K => Some(&Q6K),
                _ => None,
            }
        }

        fn run(job: &MatmulJob<'_>, tile: unsafe fn(&MatmulJob<'_>, &ProductTile)) {
            // SAFETY: a recipe of this instruction set is used only if the processor has it.
            each_tile(job, TILE, |part| unsafe { tile(job, part) });
        }
    };
}

mod avx2;
mod avx512;
mod panel;
mod tiles;

use super::format::ActivationFormat;
use super::isa::Isa;
use super::matmul::MatmulJob;
use super::recipe::Recipe;
use crate::quant::TensorType;
use tiles::CACHE_LINE;

/// The recipe for repacked weights, if there is one.
pub(super) fn recipe(isa: Isa, ty: TensorType) -> Option<&'static Recipe> {
    match isa {
        // Types without kernels of their own there use those of AVX2, which the processor has as well.
        Isa::Avx512Vnni => avx512::common(ty).or_else(|| avx2::recipe(ty)),
        Isa::Avx2 => avx2::recipe(ty),
        _ => None,
    }
}

/// The recipe for weights in GGUF's order, if there is one: panels are packed when they are needed.
pub(super) fn mapped(isa: Isa, ty: TensorType) -> Option<&'static Recipe> {
    macro_rules! mapped {
        ($isa:ident::$recipe:ident: $($ty:ident)*) => {
            match ty {
                $(TensorType::$ty => {
                    static MAPPED: Recipe = Recipe {
                        ty: TensorType::$ty,
                        group: $isa::panel::ROWS,
                        tile: None,
                        panel_bytes: $isa::panel::bytes,
                        pack: None,
                        scratch_bytes: |cols, _| $isa::panel::bytes(TensorType::$ty, cols) + CACHE_LINE,
                        readings: &[],
                        run: |job, scratch| run_mapped(job, scratch, $isa::$recipe(TensorType::$ty)),
                    };
                    Some(&MAPPED)
                })*
                _ => None,
            }
        };
    }
    match isa {
        Isa::Avx512Vnni => mapped!(avx512::common: Q4_0 Q4_1 Q8_0 Q4K Q6K)
            .or_else(|| mapped!(avx2::recipe: Q5K Iq4Nl Iq4Xs Mxfp4)),
        Isa::Avx2 => mapped!(avx2::recipe: Q4_0 Q4_1 Q8_0 Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4),
        _ => None,
    }
}

/// Packs one panel after the other into the scratch memory and multiplies it there.
fn run_mapped(job: &MatmulJob<'_>, scratch: &mut [u8], packed: Option<&'static Recipe>) {
    let Some((packed, pack)) = packed.and_then(|p| Some((p, p.pack?))) else { return };
    let (matrix, ty) = (job.matrix, job.matrix.ty());
    let row_bytes = matrix.cols() / ty.block() * ty.block_bytes();
    // The kernels read whole cache lines.
    let skip = scratch.as_ptr().align_offset(CACHE_LINE);
    let panel = &mut scratch[skip..][..matrix.panel_bytes()];
    for start in job.rows.clone().step_by(packed.group) {
        let rows = start..(start + packed.group).min(matrix.rows());
        if rows.len() < packed.group {
            panel.fill(0);
        }
        if row_bytes > 0 {
            pack(&matrix.data()[rows.start * row_bytes..rows.end * row_bytes], row_bytes, panel);
        }
        (packed.run)(&job.with_panel(rows.start..rows.end.min(job.rows.end), panel), &mut []);
    }
}

/// Prepares all complete blocks, if this format is supported; see [`super::prepare_row`]. `row`: the value of largest magnitude,
/// if the row has one scale.
pub(super) fn prepare_row(
    isa: Isa,
    format: ActivationFormat,
    row: Option<f32>,
    src: &[f32],
    dst: &mut [u8],
) -> bool {
    match isa {
        Isa::Avx512Vnni => avx512::prepare_row(format, row, src, dst),
        Isa::Avx2 => avx2::prepare_row(format, row, src, dst),
        _ => false,
    }
}
