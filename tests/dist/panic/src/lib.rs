//! Panics, where no compiler sees it coming.

use std::hint::black_box;

/// Reads behind the end of an array.
pub fn out_of_bounds() -> i32 {
    [1, 2, 3][black_box(0) + 3]
}
