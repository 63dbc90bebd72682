//! Access to rows of tensors as slices.

use super::super::abi::GgmlTensor;
use std::ops::Range;

/// An extent of a tensor as a size; negative ones do not occur in graphs that we build.
pub(super) fn extent(t: &GgmlTensor, dim: usize) -> usize {
    t.ne.get(dim).map_or(0, |n| usize::try_from(*n).unwrap_or(0))
}

/// Number of rows of a tensor.
pub(super) fn row_count(t: &GgmlTensor) -> usize {
    extent(t, 1) * extent(t, 2) * extent(t, 3)
}

/// Position of row `i` in dimensions 1 to 3.
pub(super) fn position(t: &GgmlTensor, i: usize) -> [usize; 3] {
    let (n1, n2) = (extent(t, 1).max(1), extent(t, 2).max(1));
    [i % n1, i / n1 % n2, i / (n1 * n2)]
}

/// Address of the first element of a row.
///
/// # Safety
/// The row must exist.
pub(super) unsafe fn at(t: &GgmlTensor, [i1, i2, i3]: [usize; 3]) -> *mut u8 {
    // SAFETY: the caller's row is within the tensor's data.
    unsafe { t.data.cast::<u8>().add(i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3]) }
}

/// The elements of a row.
///
/// # Safety
/// The row must exist, its elements must be adjacent `T`s, and nobody may write them meanwhile.
pub(super) unsafe fn row<'a, T>(t: &GgmlTensor, position: [usize; 3]) -> &'a [T] {
    // SAFETY: the caller's row has ne[0] elements.
    unsafe { std::slice::from_raw_parts(at(t, position).cast(), extent(t, 0)) }
}

/// The elements of a row, mutable.
///
/// # Safety
/// As for [`row`], and nobody else may read or write them meanwhile.
pub(super) unsafe fn row_mut<'a, T>(t: &GgmlTensor, position: [usize; 3]) -> &'a mut [T] {
    // SAFETY: the caller's row has ne[0] elements.
    unsafe { std::slice::from_raw_parts_mut(at(t, position).cast(), extent(t, 0)) }
}

/// Some elements of a row, mutable.
///
/// # Safety
/// As for [`row_mut`], but only for these elements, which must be within the row.
pub(super) unsafe fn part_mut<'a, T>(
    t: &GgmlTensor,
    position: [usize; 3],
    part: &Range<usize>,
) -> &'a mut [T] {
    debug_assert!(part.end <= extent(t, 0));
    // SAFETY: the caller's part is within the row.
    unsafe { std::slice::from_raw_parts_mut(at(t, position).cast::<T>().add(part.start), part.len()) }
}

/// All elements of a contiguous tensor.
///
/// # Safety
/// The tensor must be contiguous, its elements must be `T`, and nobody may write them meanwhile.
pub(super) unsafe fn all<'a, T>(t: &GgmlTensor) -> &'a [T] {
    // SAFETY: the caller's tensor has that many elements.
    unsafe { std::slice::from_raw_parts(t.data.cast(), extent(t, 0) * row_count(t)) }
}
