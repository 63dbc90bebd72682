//! Lists of CPUs.

use std::collections::BTreeSet;

/// Largest number of a CPU that is taken for one; the kernel's limit is 8192 (NR_CPUS on x86-64).
const CPUS: u32 = 8192;

/// The CPUs in a list like `0-3,8`; None if it is none.
pub fn parse(text: &str) -> Option<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<u32>().ok()?, to.parse::<u32>().ok()?);
        all.extend((from..=to).take_while(|cpu| *cpu < CPUS));
    }
    (!all.is_empty()).then_some(all)
}

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

    #[test]
    fn a_list_is_read_whole_or_not_at_all() {
        let all: Vec<u32> = super::parse("0-2,8,1").into_iter().flatten().collect();
        assert_eq!(all, [0, 1, 2, 8]);
        for wrong in ["", "a", "1,", "-1", "3-1", "1-2-3", "0x3", " 1"] {
            assert_eq!(super::parse(wrong), None, "{wrong}");
        }
        assert_eq!(super::parse("8190-4294967295").map(|all| all.len()), Some(2));
    }
}
