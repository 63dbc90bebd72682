//! Kernels for AArch64: quantised weights on plain NEON, with the dot product, and with the 8-bit matrix
//! instructions.
//!
//! Results match the plain kernels bit for bit: integer sums are exact, and blocks are added in the same order
//! with the same rounding. All variants share one code base: [`machine`] has what differs between instruction
//! sets, [`types`] what differs between weight types; [`panel`] arranges weights and activations in the order
//! that the innermost loops in [`tile`] and [`wide`] read.

mod machine;
mod panel;
mod tile;
mod types;
mod wide;

use super::isa::Isa;
use super::matmul::MatmulJob;
use super::reading::{Cache, Reading};
use super::recipe::Recipe;
use crate::quant::TensorType;
use machine::{ArmIsa, Baseline, Dot, I8mm};
use panel::{Kernel, Wide};
use types::{Iq4Nl, Iq4Xs, Mxfp4, PackedType, Q4_0, Q4_1, Q4K, Q5K, Q6K, Q8_0};

/// Ways to read weights for one token: processors differ in what they prefetch by themselves.
const READINGS: &[Reading] = &[
    Reading::PLAIN,
    Reading { streams: 1, distance: 1024, into: Cache::L1 },
    Reading { streams: 1, distance: 2048, into: Cache::L1 },
    Reading { streams: 1, distance: 4096, into: Cache::L1 },
    Reading { streams: 1, distance: 8192, into: Cache::L1 },
];

/// The recipe of each type.
struct Recipes {
    q4_0: Recipe,
    q4_1: Recipe,
    q8_0: Recipe,
    q4k: Recipe,
    q5k: Recipe,
    q6k: Recipe,
    iq4_nl: Recipe,
    iq4_xs: Recipe,
    mxfp4: Recipe,
}

const fn kernel<M: ArmIsa, T: PackedType>() -> Kernel {
    let of = panel::tile_block_bytes::<T>;
    Kernel {
        run: 16 / M::ROWS,
        block: T::BLOCK,
        tile_block_bytes: [of(1), of(2), of(4), of(8)],
        pack_tile: panel::pack_tile::<T>,
        multiply: [
            if M::LEAST == 2 { tile::multiply::<M, T, 2> } else { tile::multiply::<M, T, 4> },
            tile::multiply::<M, T, 4>,
            tile::multiply::<M, T, 8>,
            if wide::widens::<M, T>() { wide::multiply::<M, T> } else { tile::multiply::<M, T, 16> },
        ],
        wide: if wide::widens::<M, T>() {
            Some(Wide { block_bytes: wide::wide_block_bytes::<M, T>(), widen: wide::widen::<M, T> })
        } else {
            None
        },
    }
}

fn run<M: ArmIsa, T: PackedType>(job: &MatmulJob<'_>, scratch: &mut [u8]) {
    panel::run(job, scratch, const { &kernel::<M, T>() });
}

const fn recipe<M: ArmIsa, T: PackedType>() -> Recipe {
    Recipe {
        ty: T::TENSOR,
        group: panel::ROWS,
        tile: Some((panel::TOKENS, panel::ROWS)),
        panel_bytes: panel::panel_bytes::<T>,
        pack: Some(panel::pack::<M, T>),
        scratch_bytes: panel::scratch_bytes::<M, T>,
        readings: READINGS,
        run: run::<M, T>,
    }
}

const fn recipes<M: ArmIsa>() -> Recipes {
    Recipes {
        q4_0: recipe::<M, Q4_0>(),
        q4_1: recipe::<M, Q4_1>(),
        q8_0: recipe::<M, Q8_0>(),
        q4k: recipe::<M, Q4K>(),
        q5k: recipe::<M, Q5K>(),
        q6k: recipe::<M, Q6K>(),
        iq4_nl: recipe::<M, Iq4Nl>(),
        iq4_xs: recipe::<M, Iq4Xs>(),
        mxfp4: recipe::<M, Mxfp4>(),
    }
}

static NEON: Recipes = recipes::<Baseline>();
static DOT: Recipes = recipes::<Dot>();
static I8MM: Recipes = recipes::<I8mm>();

/// Recipe for repacked weights, if there is one here.
pub(super) fn packed(isa: Isa, ty: TensorType) -> Option<&'static Recipe> {
    let all = match isa {
        Isa::Neon => &NEON,
        Isa::NeonDot => &DOT,
        Isa::NeonI8mm => &I8MM,
        Isa::Scalar | Isa::Avx2 | Isa::Avx512Vnni => return None,
    };
    match ty {
        TensorType::Q4_0 => Some(&all.q4_0),
        TensorType::Q4_1 => Some(&all.q4_1),
        TensorType::Q8_0 => Some(&all.q8_0),
        TensorType::Q4K => Some(&all.q4k),
        TensorType::Q5K => Some(&all.q5k),
        TensorType::Q6K => Some(&all.q6k),
        TensorType::Iq4Nl => Some(&all.iq4_nl),
        TensorType::Iq4Xs => Some(&all.iq4_xs),
        TensorType::Mxfp4 => Some(&all.mxfp4),
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => None,
    }
}

#[cfg(test)]
mod tests;
