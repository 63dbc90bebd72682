//! Determines how much memory is free.

/// Reserved for everything else: caches, buffers, other programs.
const MARGIN: u64 = 256 << 20;

/// Bytes available without swapping; `None` if the system does not report it.
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// How many of `available` bytes weights may use.
pub fn usable(available: u64) -> u64 {
    available.saturating_sub(MARGIN.max(available / 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_tells_and_a_margin_is_kept() {
        if cfg!(target_os = "linux") {
            assert!(available().is_some_and(|n| n > 0));
        }
        assert_eq!(usable(1 << 20), 0);
        assert!(usable(64 << 30) <= 60 << 30);
    }
}
