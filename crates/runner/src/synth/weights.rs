//! Draws and encodes a tensor's values, one batch of rows at a time on several threads.

use super::presets::TOPICS;
use super::prng::Stream;
use super::tensors::{Draw, LAST_ROW, SynthTensor};
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
    /// What the deviation becomes until the last row, as a share.
    last: f32,
    rows: u64,
    /// What rows of a topic have in common: the same for all tensors of a model.
    topics: Option<Stream>,
}

impl Maker {
    fn new(t: &SynthTensor, ty: TensorType, seed: u64) -> Self {
        let (mean, deviation) = match t.draw {
            Draw::Vector(mean) => (mean, 0.01),
            Draw::Matrix | Draw::FallingRows | Draw::Topics => (0.0, 1.0 / (t.row() as f32).sqrt()),
        };
        let last = if t.draw == Draw::FallingRows { LAST_ROW } else { 1.0 };
        let topics = (t.draw == Draw::Topics).then(|| Stream::new(seed, "topics"));
        let (row, rows) = (t.row(), t.rows());
        Self { stream: Stream::new(seed, &t.name), ty, row, mean, deviation, last, rows, topics }
    }

    fn fill_row(self, values: &mut [f32], row: u64) {
        let start = row * self.row;
        let share = row as f32 / (self.rows.max(2) - 1) as f32;
        let deviation = self.deviation * (1.0 + (self.last - 1.0) * share);
        for (v, position) in values.iter_mut().zip(start..) {
            *v = self.mean + deviation * self.stream.normal(position);
        }
        let Some(topics) = self.topics else { return };
        let topic = row * TOPICS / self.rows.max(1);
        for (v, position) in values.iter_mut().zip(topic * self.row..) {
            *v = (*v + deviation * topics.normal(position)) * std::f32::consts::FRAC_1_SQRT_2;
        }
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
            self.fill_row(&mut values, row);
            encode(self.ty, &values, bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::presets::PRESETS;
    use super::super::{DEFAULT_SEED, GraphForm};
    use super::*;

    const ROW: usize = 512;
    const ROWS: usize = 64;

    /// Rows of unit deviation, as `draw` makes them.
    fn rows(name: &str, draw: Draw) -> Vec<Vec<f32>> {
        let t = SynthTensor { name: name.into(), dims: vec![ROW as u64, ROWS as u64], draw };
        let order = ModelSpec {
            preset: &PRESETS[0],
            ty: TensorType::F32,
            graph: GraphForm::Llama,
            seed: DEFAULT_SEED,
            threads: 2,
        };
        let mut bytes = Vec::new();
        write(&t, TensorType::F32, &order, |part| {
            bytes.extend_from_slice(part);
            Ok(())
        })
        .expect("memory takes all");
        let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let all: Vec<f32> = values.map(|v| v * (ROW as f32).sqrt()).collect();
        all.chunks(ROW).map(<[f32]>::to_vec).collect()
    }

    /// The mean of the products of two rows: of one row, its variance.
    fn product(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>() / ROW as f32
    }

    #[test]
    fn a_skewed_router_has_smaller_rows_at_its_end() {
        let rows = rows("blk.0.ffn_gate_inp.weight", Draw::FallingRows);
        let deviation = |row: usize| product(&rows[row], &rows[row]).sqrt();
        assert!((deviation(0) - 1.0).abs() < 0.1, "{}", deviation(0));
        assert!((deviation(ROWS / 2) - 0.6).abs() < 0.1, "{}", deviation(ROWS / 2));
        assert!((deviation(ROWS - 1) - LAST_ROW).abs() < 0.05, "{}", deviation(ROWS - 1));
    }

    #[test]
    fn rows_of_a_topic_have_half_in_common_in_all_tensors_of_a_model() {
        let (tokens, output) = (rows("token_embd.weight", Draw::Topics), rows("output.weight", Draw::Topics));
        let same = [product(&tokens[0], &tokens[15]), product(&tokens[16], &output[31])];
        let other = [product(&tokens[15], &tokens[16]), product(&tokens[0], &output[63])];
        assert!(same.iter().all(|p| (p - 0.5).abs() < 0.2), "{same:?}");
        assert!(other.iter().all(|p| p.abs() < 0.2), "{other:?}");
        assert!((product(&tokens[3], &tokens[3]) - 1.0).abs() < 0.2);
    }
}
