//! What differs between weight types: the block layout in the file and in a panel, and how quants are widened in
//! registers. File layouts are the `block_q*` structs in ggml/src/ggml-common.h.

use std::arch::aarch64::*;

use super::panel::{ROWS, STRETCH, place};
use super::tile::{RowVector, halves};
use crate::format::{PlainNumber, Q8Block, Q8KBlock};
use crate::quant::TensorType;
use crate::quant::k_blocks::q5_k_element;
use crate::quant::tables::{self, IQ4, e8m0_half, iq4_xs_scale};
use crate::scalar::{q4k_scale_min, q6k_element};

/// A weight type. A block of a panel is a head, then the quants: see [`super::panel`].
pub(super) trait PackedType {
    /// Its name in GGML.
    const TENSOR: TensorType;
    /// Columns in a block.
    const BLOCK: usize;
    /// Columns in a part, which is summed in integers before a scale is applied.
    const PART: usize;
    /// Bytes of the head: two bytes per row as scale, an f16 unless [`PackedType::scales`] says otherwise; if there is a minimum, one f16 per row for it; if blocks have
    /// parts, then for each part one byte per row as scale, and the negated minima of 8 parts in the order of half a
    /// stretch.
    const HEAD_BYTES: usize;
    /// Bytes of the quants of one stretch.
    const STRETCH_BYTES: usize;
    /// Whether the integer sums of a part start from [`PackedType::extra`].
    const BIAS: bool = false;
    /// Whether rows have a minimum, which is multiplied by [`PackedType::extra`].
    const MINIMUM: bool = false;
    /// Whether panels can be widened for tiles of 8 tokens (see [`super::wide`]), and by how much the quants of such a
    /// panel are then smaller: they need no bias.
    const WIDE: Option<u8> = None;
    /// A block of prepared activations.
    type Acts: Activations;

    /// Whether blocks have minima of parts, which are multiplied by [`PackedType::extra`] like quants.
    const MINIMA: bool = Self::MINIMUM && Self::PART < Self::BLOCK;
    /// Whether activations have a list of [`PackedType::extra`] for each part.
    const LISTS: bool = Self::BIAS || Self::MINIMUM && !Self::MINIMA;

    /// A quant of a file block, in the form the kernels multiply.
    fn quant(source: &[u8], column: usize) -> u8;

    /// Writes a row's header data for a block to the head of the panel's block, for registers with `run` columns of
    /// each row.
    fn head(source: &[u8], row: usize, head: &mut [u8], run: usize);

    /// Writes the quants of a stretch, `units` units of rows per step. By default as nibbles.
    fn store(registers: &[[u8; 16]; 8], units: usize, out: &mut [u8]) {
        store_nibbles(registers, units, out);
    }

    /// Reads them back.
    ///
    /// # Safety
    /// [`PackedType::STRETCH_BYTES`] bytes at `w` must be readable.
    #[inline(always)]
    unsafe fn load<const UNITS: usize>(w: *const u8) -> [uint8x16_t; 8] {
        // SAFETY: guaranteed by the caller.
        unsafe { load_nibbles::<UNITS>(w) }
    }

    /// The scale of each row from a block's head.
    ///
    /// # Safety
    /// The head must be readable.
    #[inline(always)]
    unsafe fn scales(head: *const u8) -> RowVector {
        // SAFETY: guaranteed by the caller.
        unsafe { halves(head) }
    }

    /// The bits of a per-part number of the activations: see [`PackedType::BIAS`] and [`PackedType::MINIMUM`].
    fn extra(_acts: &Self::Acts, _part: usize) -> u32 {
        0
    }
}

/// Bytes of a block of a panel.
pub(super) const fn block_bytes<T: PackedType>() -> usize {
    T::HEAD_BYTES + T::BLOCK / STRETCH * T::STRETCH_BYTES
}

/// Blocks of prepared activations.
pub(super) trait Activations: PlainNumber {
    /// Columns of a block.
    const COLUMNS: usize;
    fn scale(&self) -> f32;
    fn quants(&self) -> &[i8];
}

impl Activations for Q8Block {
    const COLUMNS: usize = 32;
    fn scale(&self) -> f32 {
        self.d
    }
    fn quants(&self) -> &[i8] {
        &self.q
    }
}

impl Activations for Q8KBlock {
    const COLUMNS: usize = 256;
    fn scale(&self) -> f32 {
        self.d
    }
    fn quants(&self) -> &[i8] {
        &self.q
    }
}

/// Copies the f16 at offset `from` of a block to the row's place in a list.
fn half(source: &[u8], from: usize, row: usize, list: &mut [u8]) {
    list[2 * row..][..2].copy_from_slice(&source[from..from + 2]);
}

/// Byte j has element j in its low nibble and element j + 16 in its high nibble.
fn nibble(bytes: &[u8], column: usize) -> u8 {
    bytes[column % 16] >> (column / 16 * 4) & 15
}

/// Puts the registers of an even step in the low nibbles and those of the next step in the high nibbles.
fn store_nibbles(registers: &[[u8; 16]; 8], units: usize, out: &mut [u8]) {
    for (i, out) in out.chunks_exact_mut(16).take(4).enumerate() {
        let (pair, unit) = (i / units, i % units);
        let (low, high) = (registers[2 * pair * units + unit], registers[(2 * pair + 1) * units + unit]);
        for (o, (low, high)) in out.iter_mut().zip(low.iter().zip(high)) {
            *o = low & 15 | high << 4;
        }
    }
}

#[inline(always)]
unsafe fn load_nibbles<const UNITS: usize>(w: *const u8) -> [uint8x16_t; 8] {
    // SAFETY: four registers at `w`; the rest uses only registers.
    unsafe {
        let low = vdupq_n_u8(15);
        let mut out = [low; 8];
        for i in 0..4 {
            let both = vld1q_u8(w.add(16 * i));
            let (pair, unit) = (i / UNITS, i % UNITS);
            out[2 * pair * UNITS + unit] = vandq_u8(both, low);
            out[(2 * pair + 1) * UNITS + unit] = vshrq_n_u8::<4>(both);
        }
        out
    }
}

/// Values of a table whose indices are nibbles.
#[inline(always)]
unsafe fn load_indexed<const UNITS: usize>(w: *const u8, table: &[i8; 16]) -> [uint8x16_t; 8] {
    // SAFETY: four registers at `w`, 16 bytes of the table; the rest uses only registers.
    unsafe {
        let table = vld1q_u8(table.as_ptr().cast());
        load_nibbles::<UNITS>(w).map(|indices| vqtbl1q_u8(table, indices))
    }
}

pub(super) struct Q4_0;

impl PackedType for Q4_0 {
    const TENSOR: TensorType = TensorType::Q4_0;
    const BLOCK: usize = 32;
    const PART: usize = 32;
    const HEAD_BYTES: usize = 2 * ROWS;
    const STRETCH_BYTES: usize = 64;
    const BIAS: bool = true;
    type Acts = Q8Block;

    fn quant(source: &[u8], column: usize) -> u8 {
        nibble(&source[2..], column)
    }
    fn head(source: &[u8], row: usize, head: &mut [u8], _run: usize) {
        half(source, 0, row, head);
    }
    /// Corrects for the nibbles' offset of 8.
    fn extra(acts: &Q8Block, _part: usize) -> u32 {
        acts.minus_8.cast_unsigned()
    }
}

pub(super) struct Q4_1;

impl PackedType for Q4_1 {
    const TENSOR: TensorType = TensorType::Q4_1;
    const BLOCK: usize = 32;
    const PART: usize = 32;
    const HEAD_BYTES: usize = 4 * ROWS;
    const STRETCH_BYTES: usize = 64;
    const MINIMUM: bool = true;
    type Acts = Q8Block;

    fn quant(source: &[u8], column: usize) -> u8 {
        nibble(&source[4..], column)
    }
    fn head(source: &[u8], row: usize, head: &mut [u8], _run: usize) {
        half(source, 0, row, head);
        half(source, 2, row, &mut head[2 * ROWS..]);
    }
    fn extra(acts: &Q8Block, _part: usize) -> u32 {
        acts.s.to_bits()
    }
}

pub(super) struct Q8_0;

impl PackedType for Q8_0 {
    const TENSOR: TensorType = TensorType::Q8_0;
    const BLOCK: usize = 32;
    const PART: usize = 32;
    const HEAD_BYTES: usize = 2 * ROWS;
    const STRETCH_BYTES: usize = 128;
    type Acts = Q8Block;

    fn quant(source: &[u8], column: usize) -> u8 {
        source[2 + column]
    }
    fn head(source: &[u8], row: usize, head: &mut [u8], _run: usize) {
        half(source, 0, row, head);
    }
    fn store(registers: &[[u8; 16]; 8], _units: usize, out: &mut [u8]) {
        out[..128].copy_from_slice(registers.as_flattened());
    }
    #[inline(always)]
    unsafe fn load<const UNITS: usize>(w: *const u8) -> [uint8x16_t; 8] {
        // SAFETY: eight registers at `w`.
        unsafe {
            let mut out = [vdupq_n_u8(0); 8];
            for (i, register) in out.iter_mut().enumerate() {
                *register = vld1q_u8(w.add(16 * i));
            }
            out
        }
    }
}

pub(super) struct Iq4Nl;

impl PackedType for Iq4Nl {
    const TENSOR: TensorType = TensorType::Iq4Nl;
    const BLOCK: usize = 32;
    const PART: usize = 32;
    const HEAD_BYTES: usize = 2 * ROWS;
    const STRETCH_BYTES: usize = 64;
    type Acts = Q8Block;

    fn quant(source: &[u8], column: usize) -> u8 {
        nibble(&source[2..], column)
    }
    fn head(source: &[u8], row: usize, head: &mut [u8], _run: usize) {
        half(source, 0, row, head);
    }
    #[inline(always)]
    unsafe fn load<const UNITS: usize>(w: *const u8) -> [uint8x16_t; 8] {
        // SAFETY: guaranteed by the caller.
        unsafe { load_indexed::<UNITS>(w, &IQ4) }
    }
}

pub(super) struct Mxfp4;

impl PackedType for Mxfp4 {
    const TENSOR: TensorType = TensorType::Mxfp4;
    const BLOCK: usize = 32;
    const PART: usize = 32;
    const HEAD_BYTES: usize = 2 * ROWS;
    const STRETCH_BYTES: usize = 64;
    type Acts = Q8Block;

    fn quant(source: &[u8], column: usize) -> u8 {
        nibble(&source[1..], column)
    }
    /// The upper half of the scale as a float: it has no other bits.
    fn head(source: &[u8], row: usize, head: &mut [u8], _run: usize) {
        half(&e8m0_half(source[0]).to_le_bytes(), 2, row, head);
    }
    #[inline(always)]
    unsafe fn load<const UNITS: usize>(w: *const u8) -> [uint8x16_t; 8] {
        // SAFETY: guaranteed by the caller.
        unsafe { load_indexed::<UNITS>(w, &tables::MXFP4) }
    }
    #[inline(always)]
    unsafe fn scales(head: *const u8) -> RowVector {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let all = vld1q_u16(head.cast());
            [vshll_n_u16::<16>(vget_low_u16(all)), vshll_high_n_u16::<16>(all)]
        }
    }
}

pub(super) struct Iq4Xs;

impl PackedType for Iq4Xs {
    const TENSOR: TensorType = TensorType::Iq4Xs;
    const BLOCK: usize = 256;
    const PART: usize = 32;
    const HEAD_BYTES: usize = 2 * ROWS + 8 * ROWS;
    const STRETCH_BYTES: usize = 64;
    const WIDE: Option<u8> = Some(0);
    type Acts = Q8KBlock;

    fn quant(source: &[u8], column: usize) -> u8 {
        nibble(&source[8 + column / 32 * 16..], column % 32)
    }
    fn head(source: &[u8], row: usize, head: &mut [u8], _run: usize) {
        half(source, 0, row, head);
        let scale = |part| source.try_into().map_or(0, |block| iq4_xs_scale(block, part).wrapping_sub(32));
        for part in 0..8 {
            head[2 * ROWS + part * ROWS + row] = scale(part);
        }
    }
    #[inline(always)]
    unsafe fn load<const UNITS: usize>(w: *const u8) -> [uint8x16_t; 8] {
        // SAFETY: guaranteed by the caller.
        unsafe { load_indexed::<UNITS>(w, &IQ4) }
    }
}

pub(super) struct Q4K;

impl PackedType for Q4K {
    const TENSOR: TensorType = TensorType::Q4K;
    const BLOCK: usize = 256;
    const PART: usize = 32;
    const HEAD_BYTES: usize = 4 * ROWS + 2 * 8 * ROWS;
    const STRETCH_BYTES: usize = 64;
    const WIDE: Option<u8> = Some(0);
    const MINIMUM: bool = true;
    type Acts = Q8KBlock;

    fn quant(source: &[u8], column: usize) -> u8 {
        let bytes = &source[16 + column / 64 * 32..];
        bytes[column % 32] >> (column / 32 % 2 * 4) & 15
    }
    fn head(source: &[u8], row: usize, head: &mut [u8], run: usize) {
        half(source, 0, row, head);
        half(source, 2, row, &mut head[2 * ROWS..]);
        let mut packed = [0; 12];
        packed.copy_from_slice(&source[4..16]);
        let (scales, minima) = head[4 * ROWS..].split_at_mut(8 * ROWS);
        for part in 0..8 {
            let (scale, minimum) = q4k_scale_min(&packed, part);
            scales[part * ROWS + row] = scale;
            minima[place(run, row, part)] = minimum.wrapping_neg();
        }
    }
    fn extra(acts: &Q8KBlock, part: usize) -> u32 {
        (i32::from(acts.sums[2 * part]) + i32::from(acts.sums[2 * part + 1])).cast_unsigned()
    }
}

pub(super) struct Q5K;

impl PackedType for Q5K {
    const TENSOR: TensorType = TensorType::Q5K;
    const BLOCK: usize = 256;
    const PART: usize = 32;
    const HEAD_BYTES: usize = Q4K::HEAD_BYTES;
    const STRETCH_BYTES: usize = 80;
    const WIDE: Option<u8> = Some(0);
    const MINIMUM: bool = true;
    type Acts = Q8KBlock;

    fn quant(source: &[u8], column: usize) -> u8 {
        source.try_into().map_or(0, |block| q5_k_element(block, column))
    }
    /// A block begins as one of Q4_K.
    fn head(source: &[u8], row: usize, head: &mut [u8], run: usize) {
        Q4K::head(source, row, head, run);
    }
    /// Nibbles, then a register with the fifth bits of register `i` as bits `i`.
    fn store(registers: &[[u8; 16]; 8], units: usize, out: &mut [u8]) {
        store_nibbles(registers, units, out);
        for (j, out) in out[64..80].iter_mut().enumerate() {
            *out = registers.iter().enumerate().fold(0, |bits, (i, register)| bits | register[j] >> 4 << i);
        }
    }
    #[inline(always)]
    unsafe fn load<const UNITS: usize>(w: *const u8) -> [uint8x16_t; 8] {
        // SAFETY: five registers at `w`; the rest uses only registers.
        unsafe {
            let (bits, fifth) = (vld1q_u8(w.add(64)), vdupq_n_u8(16));
            let mut out = load_nibbles::<UNITS>(w);
            for (i, register) in out.iter_mut().enumerate() {
                let moved = vshlq_u8(bits, vdupq_n_s8(4 - i as i8));
                *register = vorrq_u8(*register, vandq_u8(moved, fifth));
            }
            out
        }
    }
    fn extra(acts: &Q8KBlock, part: usize) -> u32 {
        Q4K::extra(acts, part)
    }
}

pub(super) struct Q6K;

impl PackedType for Q6K {
    const TENSOR: TensorType = TensorType::Q6K;
    const BLOCK: usize = 256;
    const PART: usize = 16;
    const HEAD_BYTES: usize = 2 * ROWS + 16 * ROWS;
    const STRETCH_BYTES: usize = 96;
    const BIAS: bool = true;
    const WIDE: Option<u8> = Some(32);
    type Acts = Q8KBlock;

    fn quant(source: &[u8], column: usize) -> u8 {
        source.try_into().map_or(0, |block| q6k_element(block, column))
    }
    fn head(source: &[u8], row: usize, head: &mut [u8], _run: usize) {
        half(source, 208, row, head);
        for part in 0..16 {
            head[2 * ROWS + part * ROWS + row] = source[192 + part];
        }
    }
    /// Nibbles, then their upper two bits. A register of upper bits serves two registers of nibbles: bits 0-1 go
    /// to the low and 4-5 to the high nibbles of the first, 6-7 to the low and 2-3 to the high nibbles of the
    /// second. This layout takes the fewest instructions to combine them.
    fn store(registers: &[[u8; 16]; 8], units: usize, out: &mut [u8]) {
        store_nibbles(registers, units, out);
        for (i, out) in out[64..].chunks_exact_mut(16).take(2).enumerate() {
            let of = |nibbles: usize, high: usize| {
                let (pair, unit) = (nibbles / units, nibbles % units);
                registers[(2 * pair + high) * units + unit].map(|q| q >> 4)
            };
            let (a, b, c, d) = (of(2 * i, 0), of(2 * i, 1), of(2 * i + 1, 1), of(2 * i + 1, 0));
            for (j, o) in out.iter_mut().enumerate() {
                *o = a[j] | c[j] << 2 | b[j] << 4 | d[j] << 6;
            }
        }
    }
    #[inline(always)]
    unsafe fn load<const UNITS: usize>(w: *const u8) -> [uint8x16_t; 8] {
        // SAFETY: six registers at `w`; the rest uses only registers.
        unsafe {
            let (two, upper) = (vdupq_n_u8(3), vdupq_n_u8(0x30));
            let mut out = [two; 8];
            for i in 0..4 {
                let both = vld1q_u8(w.add(16 * i));
                let bits = vld1q_u8(w.add(64 + i / 2 * 16));
                let (low, high) = if i % 2 == 0 {
                    (vandq_u8(bits, two), vandq_u8(bits, upper))
                } else {
                    (vshrq_n_u8::<6>(bits), vandq_u8(vshlq_n_u8::<2>(bits), upper))
                };
                let (pair, unit) = (i / UNITS, i % UNITS);
                // The low nibble goes below two bits; the high nibble goes below two bits that are already in
                // place.
                out[2 * pair * UNITS + unit] = vsliq_n_u8::<4>(both, low);
                out[(2 * pair + 1) * UNITS + unit] = vsriq_n_u8::<4>(high, both);
            }
            out
        }
    }
    /// Corrects for the quants' offset of 32.
    fn extra(acts: &Q8KBlock, part: usize) -> u32 {
        (-32 * i32::from(acts.sums[part])).cast_unsigned()
    }
}
