//! Parts of the kernels that can be left out one by one, to show what each gains.

use super::kernels::ActivationScale;

/// Which parts are used; all by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelParts {
    /// Weights are repacked for the processor; without, they stay in the file's order.
    pub layout: bool,
    /// Repacked weights are in huge pages.
    pub hugepages: bool,
    /// Weights of 4 bits are kept as such; without, those of Q4_0 are kept as bytes.
    pub uint4: bool,
    /// Weights are prefetched by instructions, as measured on this machine.
    pub prefetch: bool,
    /// Attention uses vector instructions.
    pub attention: bool,
    /// Attention multiplies f16 values as they are where the processor can.
    pub halves: bool,
    /// What activations of 8 bits share a scale.
    pub activation: ActivationScale,
}

impl Default for KernelParts {
    fn default() -> Self {
        Self {
            layout: true,
            hugepages: true,
            uint4: true,
            prefetch: true,
            attention: true,
            halves: true,
            activation: ActivationScale::Block,
        }
    }
}

/// Rows of Q4_0 as rows of Q8_0 with the same values: the scale stays, and an integer becomes a byte.
pub fn q4_0_as_bytes(rows: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() / 18 * 34);
    for block in rows.as_chunks::<18>().0 {
        out.extend_from_slice(&block[..2]);
        for shift in [0, 4] {
            out.extend(block[2..].iter().map(|both| (both >> shift & 15).wrapping_sub(8)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ggml::quant::{TensorType, decode};

    #[test]
    fn bytes_have_the_same_values() {
        let rows: Vec<u8> = (0..36u8).map(|i| if i % 18 == 1 { 0x2c } else { i.wrapping_mul(37) }).collect();
        let (mut four, mut eight) = ([0.0; 64], [0.0; 64]);
        decode(TensorType::Q4_0, &rows, &mut four).expect("two blocks");
        decode(TensorType::Q8_0, &q4_0_as_bytes(&rows), &mut eight).expect("two blocks");
        assert_eq!(four, eight);
    }
}
