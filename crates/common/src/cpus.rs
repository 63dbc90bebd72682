//! Lists of CPUs.

/// Numbers of CPUs as ranges: `0-3,8`.
pub fn ranges(cpus: impl Iterator<Item = u32>) -> String {
    let mut sorted: Vec<u32> = cpus.collect();
    crate::order::by_key(&mut sorted, |cpu| ((*cpu).into(), 0));
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for cpu in sorted {
        match ranges.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(cpu) => *end = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let one = |(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    ranges.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    #[test]
    fn neighbours_are_one_range() {
        assert_eq!(super::ranges([3, 0, 1, 2, 8].into_iter()), "0-3,8");
        assert_eq!(super::ranges(std::iter::empty()), "");
    }
}
