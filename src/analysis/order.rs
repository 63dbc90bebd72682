//! Sorting rows of any type by one and the same piece of code, so that a program for boards stays small. Uses nothing here.

/// Sorts rows by a key of two numbers; rows of equal keys stay in the order they had. Descending is the number's bits
/// turned over (`!n`), and times before and after zero are [`time`]s.
pub fn by_key<T>(rows: &mut [T], key: impl Fn(&T) -> (u64, u64)) {
    let mut order: Vec<(u64, u64, usize)> =
        rows.iter().map(&key).enumerate().map(|(i, (first, second))| (first, second, i)).collect();
    order.sort_unstable();
    for at in 0..rows.len() {
        // A row that was swapped away from its place is where that place's own row came from.
        let mut from = order[at].2;
        while from < at {
            from = order[from].2;
        }
        order[at].2 = from;
        rows.swap(at, from);
    }
}

/// A signed time as a number of the same order.
pub fn time(t: i64) -> u64 {
    t.cast_unsigned() ^ (1 << 63)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_the_standard_librarys_stable_sort(times in prop::collection::vec((-3i64..3, 0u64..3), 0..40)) {
            let mut rows: Vec<_> = times.into_iter().enumerate().collect();
            let mut expected = rows.clone();
            expected.sort_by_key(|(_, (t, n))| (*t, std::cmp::Reverse(*n)));
            by_key(&mut rows, |(_, (t, n))| (time(*t), !n));
            prop_assert_eq!(rows, expected);
        }
    }
}
