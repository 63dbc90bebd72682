//! Sorts rows of any type with one shared piece of code: each type sorted by the standard library adds three to
//! five kilobytes to a program for small boards.

use std::cmp::Ordering;

/// Sorts rows by a key of two numbers; rows with equal keys keep their order. For descending order use the
/// inverted bits (`!n`); for signed times use [`time`].
pub fn by_key<T>(rows: &mut [T], key: impl Fn(&T) -> (u64, u64)) {
    let mut order: Vec<(u64, u64, usize)> =
        rows.iter().map(&key).enumerate().map(|(i, (first, second))| (first, second, i)).collect();
    order.sort_unstable();
    let order: Vec<usize> = order.into_iter().map(|(_, _, i)| i).collect();
    arrange(rows, order);
}

/// Sorts rows with a comparison; equal rows keep their order. For keys that are not numbers.
pub fn by<T>(rows: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let order = sorted(rows.len(), &|a, b| compare(&rows[a], &rows[b]));
    arrange(rows, order);
}

fn sorted(len: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    order.sort_unstable_by(|a, b| compare(*a, *b).then(a.cmp(b)));
    order
}

/// Permutes rows into this order.
fn arrange<T>(rows: &mut [T], mut order: Vec<usize>) {
    for at in 0..rows.len() {
        // A row that was swapped out of its place is now where that place's own row came from.
        let mut from = order[at];
        while from < at {
            from = order[from];
        }
        order[at] = from;
        rows.swap(at, from);
    }
}

/// The median; of an even number of values the mean of the middle two.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    by(&mut values, f64::total_cmp);
    let n = values.len();
    Some((values.get(n.checked_sub(1)? / 2)? + values.get(n / 2)?) / 2.0)
}

/// A signed time as an unsigned number with the same ordering.
pub fn time(t: i64) -> u64 {
    t.cast_unsigned() ^ (1 << 63)
}

/// A float as an unsigned number with the same ordering as [`f64::total_cmp`].
pub fn fraction(x: f64) -> u64 {
    let bits = x.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// The inverse of [`fraction`].
pub fn unfraction(n: u64) -> f64 {
    f64::from_bits(if n >> 63 == 1 { n ^ 1 << 63 } else { !n })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "compared with it")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |values: &[f64]| median(values.to_vec());
        assert_eq!([of(&[]), of(&[2.0]), of(&[9.0, 1.0])], [None, Some(2.0), Some(5.0)]);
        assert_eq!([of(&[7.0, 1.0, 4.0]), of(&[4.0, 1.0, 8.0, 2.0])], [Some(4.0), Some(3.0)]);
    }

    proptest! {
        #[test]
        fn is_the_standard_librarys_stable_sort(times in prop::collection::vec((-3i64..3, 0u64..3), 0..40)) {
            let mut rows: Vec<_> = times.into_iter().enumerate().collect();
            let mut expected = rows.clone();
            expected.sort_by_key(|(_, (t, n))| (*t, std::cmp::Reverse(*n)));
            by_key(&mut rows, |(_, (t, n))| (time(*t), !n));
            prop_assert_eq!(&rows, &expected);
            rows.reverse();
            by(&mut rows, |(i, (t, n)), (j, (u, m))| t.cmp(u).then(m.cmp(n)).then(i.cmp(j)));
            prop_assert_eq!(rows, expected);
        }

        #[test]
        fn fractions_keep_their_order(a in any::<f64>(), b in any::<f64>()) {
            prop_assert_eq!(fraction(a).cmp(&fraction(b)), a.total_cmp(&b));
            prop_assert_eq!(unfraction(fraction(a)).to_bits(), a.to_bits());
        }
    }
}
