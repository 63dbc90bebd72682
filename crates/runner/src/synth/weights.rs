//! Draws and encodes a tensor's values, one batch of rows at a time on several threads.

use super::prng::Stream;
use super::tensors::{Draw, SynthTensor};
use super::{ModelSpec, SynthError};
use common::aside;
use ggml::gguf::writer::GgufWriteError;
use ggml::quant::{QuantError, TensorType, encode};

/// Elements that one thread generates between two writes: bounds memory, and takes long compared with starting a
/// thread.
const BATCH: u64 = 2 << 20;

/// Generates the values of `t` as `ty` and passes them to `sink` in order, in chunks of complete rows.
///
/// # Errors
/// Those of `sink`, and a type that can't be encoded.
pub fn write(
    t: &SynthTensor,
    ty: TensorType,
    order: &ModelSpec,
    mut sink: impl FnMut(&[u8]) -> Result<(), GgufWriteError>,
) -> Result<(), SynthError> {
    let rows = t.rows();
    let row_bytes = ty.row_bytes(t.row()).unwrap_or(0);
    let rows_a_thread = (BATCH / t.row().max(1)).max(1);
    let threads = order.threads.max(1) as u64;
    let batch_rows = rows_a_thread.saturating_mul(threads).min(rows);
    let mut buffer = vec![0u8; usize::try_from(batch_rows * row_bytes).unwrap_or(0)];
    let maker = Maker::new(t, ty, order.seed);
    let mut row = 0;
    while row < rows {
        let n = batch_rows.min(rows - row);
        // Within the buffer, since n <= batch_rows.
        let part = &mut buffer[..(n * row_bytes) as usize];
        maker
            .fill(part, row, row_bytes as usize, n.div_ceil(threads))
            .map_err(|source| SynthError::Quant { name: t.name.clone(), source })?;
        sink(part)?;
        row += n;
    }
    Ok(())
}

/// Generates any row of one tensor.
#[derive(Clone, Copy)]
struct Maker {
    stream: Stream,
    ty: TensorType,
    row: u64,
    mean: f32,
    deviation: f32,
}

impl Maker {
    fn new(t: &SynthTensor, ty: TensorType, seed: u64) -> Self {
        let (mean, deviation) = match t.draw {
            Draw::Matrix => (0.0, 1.0 / (t.row() as f32).sqrt()),
            Draw::Vector(mean) => (mean, 0.01),
        };
        Self { stream: Stream::new(seed, &t.name), ty, row: t.row(), mean, deviation }
    }

    /// Fills `out` with the rows from `first` on, one thread per `rows_a_thread` rows.
    fn fill(
        self,
        out: &mut [u8],
        first: u64,
        row_bytes: usize,
        rows_a_thread: u64,
    ) -> Result<(), QuantError> {
        let share = (rows_a_thread as usize).saturating_mul(row_bytes).max(1);
        let parts = out.chunks_mut(share).zip((first..).step_by(rows_a_thread.max(1) as usize));
        // Starting a thread costs more than a small part.
        if share < 64 << 10 {
            return parts.into_iter().try_for_each(|(part, row)| self.rows(part, row, row_bytes));
        }
        aside::each(parts, |(part, row)| self.rows(part, row, row_bytes)).into_iter().collect()
    }

    fn rows(self, out: &mut [u8], first: u64, row_bytes: usize) -> Result<(), QuantError> {
        let mut values = vec![0.0f32; self.row as usize];
        for (bytes, row) in out.chunks_mut(row_bytes.max(1)).zip(first..) {
            let start = row * self.row;
            for (v, position) in values.iter_mut().zip(start..) {
                *v = self.mean + self.deviation * self.stream.normal(position);
            }
            encode(self.ty, &values, bytes)?;
        }
        Ok(())
    }
}
