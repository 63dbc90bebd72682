//! Compares every kernel with the plain one bit for bit over ragged shapes, and tests the choice of instruction
//! set.

use super::super::*;
use crate::quant::TensorType;

const TYPES: [TensorType; 9] = [
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q8_0,
    TensorType::Q4K,
    TensorType::Q5K,
    TensorType::Q6K,
    TensorType::Iq4Nl,
    TensorType::Iq4Xs,
    TensorType::Mxfp4,
];

/// A small generator that returns the high half of a well-mixed product.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as u32
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    fn float(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }

    /// A block of arbitrary quants and scales, with f16 values of moderate size.
    fn block(&mut self, ty: TensorType) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..ty.block_bytes()).map(|_| self.next() as u8).collect();
        let halves: &[usize] = match ty {
            TensorType::Q4_1 | TensorType::Q4K | TensorType::Q5K => &[0, 2],
            TensorType::Q6K => &[208],
            TensorType::Mxfp4 => &[],
            _ => &[0],
        };
        for at in halves {
            let half = half::f16::from_f32(self.float() * 0.01);
            bytes[*at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
        if ty == TensorType::Mxfp4 {
            bytes[0] = 110 + bytes[0] % 16;
        }
        // The smallest possible quant.
        if ty == TensorType::Q8_0 {
            bytes[2..6].fill(0x80);
        }
        bytes
    }
}

/// A product to be computed with several instruction sets.
struct Case {
    ty: TensorType,
    rows: usize,
    cols: usize,
    weights: Vec<u8>,
    /// Aligned to 4 by its element type.
    acts: Vec<f32>,
    tokens: Vec<u32>,
}

impl Case {
    fn new(ty: TensorType, rows: usize, blocks: usize, tokens: usize, random: &mut Random) -> Self {
        let cols = blocks * ty.block();
        let weights = (0..rows * blocks).flat_map(|_| random.block(ty)).collect();
        let acts = (0..tokens * cols).map(|_| random.float() * 4.0).collect();
        // A subset of the tokens, reversed.
        let mut list: Vec<u32> = (0..tokens as u32).filter(|_| random.below(8) > 0).collect();
        list.reverse();
        Self { ty, rows, cols, weights, acts, tokens: list }
    }

    /// The results of all rows of all tokens, -7 where nothing was written, computed in ranges of
    /// `groups_at_a_time` groups.
    fn run(&self, isa: Isa, groups_at_a_time: usize) -> Vec<u32> {
        self.multiply(&self.matrix(isa), groups_at_a_time)
    }

    fn matrix(&self, isa: Isa) -> Matrix {
        Matrix::new(self.ty, self.rows, self.cols, MatrixPlacement::Packed(&self.weights), isa)
            .expect("sizes fit and the instructions are there")
    }

    fn multiply(&self, matrix: &Matrix, groups_at_a_time: usize) -> Vec<u32> {
        let isa = matrix.isa();
        let count = self.acts.len() / self.cols;
        let row_bytes = prepared_row_bytes(matrix.format(), self.cols);
        let mut prepared = vec![0u32; count * row_bytes / 4];
        // SAFETY: integers viewed as bytes.
        let (_, prepared, _) = unsafe { prepared.align_to_mut::<u8>() };
        for (row, out) in self.acts.chunks(self.cols).zip(prepared.chunks_mut(row_bytes)) {
            prepare_row(isa, matrix.format(), row, out);
        }
        let mut out = vec![-7.0f32; count * self.rows];
        let index = RowIndex::List(&self.tokens);
        // SAFETY: one row of `rows` per token, used by this thread only.
        let to = unsafe { ResultRows::new(out.as_mut_ptr(), self.rows, index) };
        let mut scratch = vec![0xaa; matrix.scratch_bytes(self.tokens.len())];
        let step = groups_at_a_time * matrix.group();
        for start in (0..self.rows).step_by(step) {
            let rows = start..self.rows.min(start + step);
            matmul(matrix, &Acts::new(prepared, row_bytes, index), rows, &to, &mut scratch);
        }
        out.iter().map(|v| v.to_bits()).collect()
    }
}

fn ours() -> impl Iterator<Item = Isa> {
    [Isa::Neon, Isa::NeonDot, Isa::NeonI8mm].into_iter().filter(|isa| isa.available())
}

#[test]
fn the_same_bits_as_the_plain_kernels() {
    let mut random = Random(1);
    let mut cases = Vec::new();
    for ty in TYPES {
        for (rows, tokens) in [(8, 8), (1, 1), (9, 2), (7, 3), (16, 5), (23, 13), (8, 70)] {
            cases.push(Case::new(ty, rows, 1 + random.below(3), tokens, &mut random));
        }
        cases.push(Case::new(ty, 9, 24, 10, &mut random));
        for _ in 0..12 {
            let (rows, blocks, tokens) = (1 + random.below(40), 1 + random.below(5), 1 + random.below(20));
            cases.push(Case::new(ty, rows, blocks, tokens, &mut random));
        }
    }
    for case in cases {
        let expected = case.run(Isa::Scalar, 1);
        for isa in ours() {
            let groups = 1 + random.below(3);
            let got = case.run(isa, groups);
            let wrong = got.iter().zip(&expected).filter(|(g, e)| g != e).count();
            let Case { ty, rows, cols, tokens, .. } = &case;
            assert_eq!(wrong, 0, "{isa}, {ty:?} {rows}x{cols}, {} tokens: of {}", tokens.len(), got.len());
        }
    }
}

#[test]
fn every_way_to_read_gives_the_same_bits() {
    let mut random = Random(3);
    for ty in TYPES {
        let mut case = Case::new(ty, 19, 2, 2, &mut random);
        case.tokens = vec![1];
        for isa in ours() {
            let matrix = case.matrix(isa);
            let expected = case.multiply(&matrix, 1);
            assert!(matrix.readings().len() > 1 && matrix.reading().distance == 0, "{isa}, {ty:?}");
            for reading in matrix.readings() {
                matrix.set_reading(*reading);
                assert_eq!(matrix.reading(), *reading);
                assert_eq!(case.multiply(&matrix, 1), expected, "{isa}, {ty:?}, {reading}");
            }
        }
    }
}

#[test]
fn empty_products_are_left_alone() {
    let mut random = Random(2);
    for isa in ours() {
        for ty in TYPES {
            let mut case = Case::new(ty, 8, 1, 2, &mut random);
            case.tokens.clear();
            assert!(case.run(isa, 1).iter().all(|bits| *bits == (-7.0f32).to_bits()));
        }
    }
}

/// `PROFINFER_EXPECT_ISA` names the instruction set that must be detected, for test runs on several processors.
#[test]
fn the_processor_s_instructions_are_found() {
    if let Ok(name) = std::env::var("PROFINFER_EXPECT_ISA") {
        assert_eq!(Isa::best(), name.parse().expect("an instruction set"));
    }
    assert!(Isa::Neon.available());
}
