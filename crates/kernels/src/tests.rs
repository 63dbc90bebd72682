//! Compares every instruction set of this processor with the plain kernels over random shapes with ragged edges.

use std::ops::Range;
use std::sync::Arc;

use half::f16;

use super::*;
use crate::quant::TensorType;

/// Small reproducible generator (splitmix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// In `0..end`.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Where the f16 values of a block are.
fn halves(ty: TensorType) -> &'static [usize] {
    match ty {
        TensorType::Q4_0 | TensorType::Q8_0 | TensorType::Iq4Nl | TensorType::Iq4Xs => &[0],
        TensorType::Q4_1 | TensorType::Q4K | TensorType::Q5K => &[0, 2],
        TensorType::Q6K => &[208],
        TensorType::F16 => &[0],
        TensorType::F32 | TensorType::BF16 | TensorType::Mxfp4 => &[],
    }
}

/// Arbitrary quantised values, with scales from `scale`.
fn weights(ty: TensorType, rows: usize, cols: usize, rng: &mut Rng, scale: fn(&mut Rng) -> f32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rows * (cols / ty.block()) {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| rng.next() as u8).collect();
        match ty {
            TensorType::F32 => block.copy_from_slice(&scale(rng).to_le_bytes()),
            TensorType::BF16 => block.copy_from_slice(&half::bf16::from_f32(scale(rng)).to_le_bytes()),
            // An exponent of about the same size.
            TensorType::Mxfp4 => block[0] = (scale(rng).to_bits() >> 23) as u8,
            _ => {}
        }
        for at in halves(ty) {
            block[*at..at + 2].copy_from_slice(&f16::from_f32(scale(rng)).to_le_bytes());
        }
        bytes.extend(block);
    }
    bytes
}

/// A buffer of prepared rows, aligned for every format.
struct Prepared {
    words: Vec<u64>,
    row_bytes: usize,
}

impl Prepared {
    fn new(isa: Isa, format: ActivationFormat, rows: &[Vec<f32>]) -> Self {
        let row_bytes = prepared_row_bytes(format, rows[0].len()).next_multiple_of(8);
        let mut new = Self { words: vec![0; row_bytes / 8 * rows.len()], row_bytes };
        for (row, to) in rows.iter().zip(new.words.chunks_mut(row_bytes / 8)) {
            // SAFETY: any bytes are a valid u64.
            let (_, to, _) = unsafe { to.align_to_mut::<u8>() };
            prepare_row(isa, format, row, to);
        }
        new
    }

    fn acts<'a>(&'a self, index: RowIndex<'a>) -> Acts<'a> {
        // SAFETY: the bytes of u64 values.
        let (_, bytes, _) = unsafe { self.words.align_to::<u8>() };
        Acts::new(bytes, self.row_bytes, index)
    }
}

/// The products, in a buffer that keeps the marker 77 everywhere else.
fn product(
    m: &Matrix,
    acts: &Acts<'_>,
    rows: Range<usize>,
    out_rows: usize,
    index: RowIndex<'_>,
) -> Vec<f32> {
    let stride = m.rows() + 3;
    let mut out = vec![77.0; stride * out_rows];
    let mut scratch = vec![0; m.scratch_bytes(index.len())];
    // SAFETY: room for all rows, used only here.
    let to = unsafe { ResultRows::new(out.as_mut_ptr(), stride, index) };
    matmul(m, acts, rows, &to, &mut scratch);
    out
}

/// Mean squared difference divided by the mean square.
fn nmse(got: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = got.iter().zip(expected).map(|(g, e)| square(g - e)).sum();
    difference / expected.iter().map(|e| square(*e)).sum::<f64>().max(1e-30)
}

fn others() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available())
}

#[test]
fn all_kernels_agree_with_the_plain_ones() {
    let mut rng = Rng(1);
    for ty in TensorType::ALL {
        let quantised = ty.block() > 1;
        for round in 0..30 {
            let (rows, tokens) = (1 + rng.below(100), 1 + rng.below(if round % 3 == 0 { 40 } else { 9 }));
            let cols = if quantised { ty.block() * (1 + rng.below(6)) } else { 1 + rng.below(300) };
            let bytes = weights(ty, rows, cols, &mut rng, |rng| rng.unit());
            let x: Vec<Vec<f32>> = (0..tokens).map(|_| (0..cols).map(|_| rng.unit()).collect()).collect();
            let oracle =
                Matrix::new(ty, rows, cols, MatrixPlacement::Packed(&bytes), Isa::Scalar).expect("a matrix");
            let plain = Prepared::new(Isa::Scalar, oracle.format(), &x);
            let all = RowIndex::First(tokens);
            let expected = product(&oracle, &plain.acts(all), 0..rows, tokens, all);
            for isa in others() {
                let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(bytes.clone());
                let mapped = SharedBytes::new(owner, 0..bytes.len()).expect("all of it");
                for place in [MatrixPlacement::Packed(&bytes), MatrixPlacement::Mapped(mapped)] {
                    let m = Matrix::new(ty, rows, cols, place, isa).expect("a matrix");
                    let prepared = Prepared::new(isa, m.format(), &x);
                    for reading in m.readings().iter().copied().chain([m.reading()]) {
                        m.set_reading(reading);
                        let got = product(&m, &prepared.acts(all), 0..rows, tokens, all);
                        let error = nmse(&got, &expected);
                        let of = format!("{ty:?} {isa} {rows}x{cols}, {tokens} tokens, {reading}");
                        assert!(error < 1e-11, "{of}: {error:e}");
                        assert!(isa != Isa::Avx2 || !quantised || got == expected, "{of}: other bits");
                    }
                }
            }
        }
    }
}

#[test]
fn long_rows_of_numbers_are_multiplied_in_blocks() {
    let mut rng = Rng(5);
    for ty in [TensorType::F32, TensorType::F16, TensorType::BF16] {
        let (rows, cols, tokens) = (75, 1300, 41);
        let bytes = weights(ty, rows, cols, &mut rng, |rng| rng.unit());
        let x: Vec<Vec<f32>> = (0..tokens).map(|_| (0..cols).map(|_| rng.unit()).collect()).collect();
        let all = RowIndex::First(tokens);
        let of = |isa| {
            let m = Matrix::new(ty, rows, cols, MatrixPlacement::Packed(&bytes), isa).expect("a matrix");
            product(&m, &Prepared::new(isa, m.format(), &x).acts(all), 0..rows, tokens, all)
        };
        let expected = of(Isa::Scalar);
        for isa in others() {
            let error = nmse(&of(isa), &expected);
            assert!(error < 1e-11, "{ty:?} {isa}: {error:e}");
        }
    }
}

#[test]
fn only_the_rows_and_tokens_asked_for_are_written() {
    let mut rng = Rng(2);
    for ty in TensorType::ALL {
        for isa in others() {
            let (rows, cols) = (77, 256);
            let bytes = weights(ty, rows, cols, &mut rng, |rng| rng.unit());
            let m = Matrix::new(ty, rows, cols, MatrixPlacement::Packed(&bytes), isa).expect("a matrix");
            let x: Vec<Vec<f32>> = (0..9).map(|_| (0..cols).map(|_| rng.unit()).collect()).collect();
            let prepared = Prepared::new(isa, m.format(), &x);
            let whole = product(&m, &prepared.acts(RowIndex::First(9)), 0..rows, 9, RowIndex::First(9));
            let from = [8u32, 0, 3, 3, 5, 1, 7, 2];
            let to = [0u32, 9, 2, 3, 8, 5, 1, 4];
            let range = m.group()..rows.min(m.group() * 2);
            let got =
                product(&m, &prepared.acts(RowIndex::List(&from)), range.clone(), 10, RowIndex::List(&to));
            for (at, value) in got.iter().enumerate() {
                let (token, row) = (at / 80, at % 80);
                let slot = to.iter().position(|t| *t as usize == token).filter(|_| range.contains(&row));
                let expected = slot.map_or(77.0, |slot| whole[from[slot] as usize * 80 + row]);
                let close = (value - expected).abs() <= 1e-5 * expected.abs().max(1.0);
                assert!(close, "{ty:?} {isa} row {row} token {token}: {value} for {expected}");
            }
        }
    }
}

#[test]
fn prepared_rows_are_the_same_on_every_instruction_set() {
    let mut rng = Rng(3);
    for format in [
        ActivationFormat::F32,
        ActivationFormat::F16,
        ActivationFormat::Bf16,
        ActivationFormat::Q8,
        ActivationFormat::Q8K,
    ] {
        for round in 0..50 {
            let scale = [1.0, 1e-6, 1e4, 0.0][round % 4];
            let cols =
                if format == ActivationFormat::F32 { 1 + rng.below(100) } else { 256 * (1 + rng.below(3)) };
            let x = [(0..cols).map(|_| rng.unit() * scale).collect::<Vec<f32>>()];
            let expected = Prepared::new(Isa::Scalar, format, &x).words;
            for isa in others() {
                let got = Prepared::new(isa, format, &x).words;
                assert!(got == expected, "{format:?} on {isa}, {cols} columns, scale {scale}");
            }
        }
    }
}

#[test]
fn hostile_values_do_not_panic() {
    let mut rng = Rng(4);
    let hostile = |rng: &mut Rng| [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65504.0, 0.0][rng.below(5)];
    for ty in TensorType::ALL {
        for isa in others() {
            let bytes = weights(ty, 40, 512, &mut rng, hostile);
            let m = Matrix::new(ty, 40, 512, MatrixPlacement::Packed(&bytes), isa).expect("a matrix");
            let x: Vec<Vec<f32>> = (0..7).map(|_| (0..512).map(|_| hostile(&mut rng)).collect()).collect();
            let prepared = Prepared::new(isa, m.format(), &x);
            product(&m, &prepared.acts(RowIndex::First(7)), 0..40, 7, RowIndex::First(7));
        }
    }
}
