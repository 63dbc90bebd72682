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

/// Highest number of a CPU that a list may name: no kernel has more than 8192.
pub const HIGHEST: u32 = 8191;

/// The CPUs of a list such as `0-3,8`, sorted, each once. None: it is not such a list, or names no CPU.
pub fn parse(list: &str) -> Option<Vec<u32>> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|cpu| digits && *cpu <= HIGHEST)
    };
    let mut cpus: Vec<u32> = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (number(first.trim())?, number(last.trim())?);
        if first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    crate::order::by_key(&mut cpus, |cpu| ((*cpu).into(), 0));
    cpus.dedup();
    Some(cpus)
}

/// Whether all CPUs of one sorted list are in another.
pub fn within(cpus: &[u32], all: &[u32]) -> bool {
    cpus.iter().all(|cpu| all.binary_search(cpu).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_or_refused() {
        assert_eq!(parse("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse("5, 1,1-2"), Some(vec![1, 2, 5]));
        for wrong in ["", ",", "1,", "a", "3-1", "-1", "+1", "1-", "0-8192", "99999999999", "0x1", "1 2"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert!(within(&[1, 3], &[0, 1, 2, 3]) && !within(&[1, 4], &[0, 1, 2, 3]) && within(&[], &[]));
    }

    #[test]
    fn neighbours_are_one_range() {
        assert_eq!(ranges([3, 0, 1, 2, 8].into_iter()), "0-3,8");
        assert_eq!(ranges(std::iter::empty()), "");
    }
}
