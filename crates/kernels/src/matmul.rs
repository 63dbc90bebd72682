//! Products of a weight matrix with prepared rows of activations.

use std::marker::PhantomData;
use std::ops::Range;

use super::format::prepared_row_bytes;
use super::matrix::Matrix;

/// Which rows of a buffer are used, in order.
#[derive(Debug, Clone, Copy)]
pub enum RowIndex<'a> {
    /// The first n rows.
    First(usize),
    /// These rows, such as the tokens of one expert.
    List(&'a [u32]),
}

/// Prepared rows of activations, one per token.
#[derive(Debug, Clone, Copy)]
pub struct Acts<'a> {
    base: &'a [u8],
    row_bytes: usize,
    index: RowIndex<'a>,
}

/// Result rows, one per token; several threads may write disjoint columns.
#[derive(Debug, Clone, Copy)]
pub struct ResultRows<'a> {
    base: *mut f32,
    stride: usize,
    index: RowIndex<'a>,
    /// Matrix row whose result goes to the first column.
    first: usize,
    life: PhantomData<&'a mut [f32]>,
}

// SAFETY: `Out::new` makes the caller responsible for who writes what.
unsafe impl Send for ResultRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for ResultRows<'_> {}

/// A checked product: the input of [`super::recipe::Recipe::run`].
pub(crate) struct MatmulJob<'a> {
    pub matrix: &'a Matrix,
    pub rows: Range<usize>,
    acts: Acts<'a>,
    out: ResultRows<'a>,
    /// The single panel that contains all rows, if it is not one of the matrix's own.
    panel: Option<&'a [u8]>,
}

impl RowIndex<'_> {
    /// Number of rows used.
    pub fn len(&self) -> usize {
        match self {
            Self::First(n) => *n,
            Self::List(list) => list.len(),
        }
    }

    /// Whether no rows are used.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows that the buffer must have.
    fn end(&self) -> usize {
        match self {
            Self::First(n) => *n,
            Self::List(list) => list.iter().max().map_or(0, |m| *m as usize + 1),
        }
    }

    fn get(&self, i: usize) -> usize {
        match self {
            Self::First(_) => i,
            Self::List(list) => list[i] as usize,
        }
    }
}

impl<'a> Acts<'a> {
    /// Rows of `row_bytes` from the start of `base`, which is aligned to 4.
    pub fn new(base: &'a [u8], row_bytes: usize, index: RowIndex<'a>) -> Self {
        Self { base, row_bytes, index }
    }
}

impl<'a> ResultRows<'a> {
    /// Token `t` of the index writes `base[index[t] * stride + row]`.
    ///
    /// # Safety
    /// For `'a`, each indexed row at `base` must be writable and hold as many values as the matrix has rows, and
    /// nobody else may read or write the columns of those matrix rows that a call to [`matmul`] is given.
    pub unsafe fn new(base: *mut f32, stride: usize, index: RowIndex<'a>) -> Self {
        Self { base, stride, index, first: 0, life: PhantomData }
    }

    /// The same for a part of a matrix: the result of its row `first` goes to the first column. Earlier rows must
    /// not be requested.
    pub fn behind(self, first: usize) -> Self {
        Self { first, ..self }
    }
}

impl MatmulJob<'_> {
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.acts.index.len()
    }

    /// The prepared row of a token.
    pub fn act(&self, token: usize) -> &[u8] {
        let start = self.acts.index.get(token) * self.acts.row_bytes;
        &self.acts.base[start..start + prepared_row_bytes(self.matrix.format(), self.matrix.cols())]
    }

    /// Where the result for a token and row goes. The results of the job's other rows follow it.
    pub fn out(&self, token: usize, row: usize) -> *mut f32 {
        debug_assert!((self.out.first..self.matrix.rows()).contains(&row));
        // SAFETY: by the contract of `Out::new` each row of the index has that many values.
        unsafe { self.out.base.add(self.out.index.get(token) * self.out.stride + row - self.out.first) }
    }

    /// The same product for these rows of one group, whose weights are in `panel`.
    #[cfg(target_arch = "x86_64")]
    pub fn with_panel<'a>(&'a self, rows: Range<usize>, panel: &'a [u8]) -> MatmulJob<'a> {
        MatmulJob { matrix: self.matrix, rows, acts: self.acts, out: self.out, panel: Some(panel) }
    }

    /// Panel of a group of rows.
    pub fn panel(&self, group: usize) -> &[u8] {
        if let Some(panel) = self.panel {
            return panel;
        }
        let bytes = self.matrix.panel_bytes();
        &self.matrix.data()[group * bytes..(group + 1) * bytes]
    }
}

/// For each token `t` and each row `r` of `rows`: out\[t]\[r] = weights\[r] · acts\[t].
///
/// `rows.start` must be a multiple of [`Matrix::group`]; so must `rows.end`, unless it is the number of rows.
/// `scratch` must have at least [`Matrix::scratch_bytes`].
///
/// # Panics
/// If the sizes don't match: those of the activations, both indexes, the range or the scratch memory.
pub fn matmul(
    matrix: &Matrix,
    acts: &Acts<'_>,
    rows: Range<usize>,
    out: &ResultRows<'_>,
    scratch: &mut [u8],
) {
    let tokens = acts.index.len();
    assert_eq!(tokens, out.index.len(), "as many tokens out as in");
    assert!(rows.end <= matrix.rows(), "rows {rows:?} of {}", matrix.rows());
    assert!(rows.start >= out.first, "rows {rows:?} behind {}", out.first);
    let group = matrix.group();
    let whole = |edge: usize| edge.is_multiple_of(group) || edge == matrix.rows();
    assert!(whole(rows.start) && whole(rows.end), "rows {rows:?} in groups of {group}");
    let need = prepared_row_bytes(matrix.format(), matrix.cols());
    assert!(acts.row_bytes >= need && acts.row_bytes.is_multiple_of(4), "row of {} bytes", acts.row_bytes);
    assert!(acts.base.as_ptr().align_offset(4) == 0, "activations aligned to 4");
    let end = acts.index.end().checked_mul(acts.row_bytes);
    assert!(end.is_some_and(|end| end <= acts.base.len()), "activations of all tokens");
    assert!(scratch.len() >= matrix.scratch_bytes(tokens), "scratch of {} bytes", scratch.len());
    if tokens > 0 && !rows.is_empty() {
        (matrix.recipe().run)(&MatmulJob { matrix, rows, acts: *acts, out: *out, panel: None }, scratch);
    }
}
