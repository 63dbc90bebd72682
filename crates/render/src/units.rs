//! Formats numbers: times, bytes, shares.

/// A time with the unit that fits it: `431 ns`, `2.35 us`, `12.4 ms`, `3.21 s`.
pub fn time(ns: f64) -> String {
    match ns.abs() {
        a if a < 1e3 => format!("{ns:.0} ns"),
        a if a < 1e6 => format!("{:.2} us", ns / 1e3),
        a if a < 1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Bytes in binary units: `912 B`, `1.5 KiB`, `638.2 MiB`.
pub fn bytes(n: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = units.get(unit).unwrap_or(&"B");
    if unit == 0 { format!("{value:.0} {name}") } else { format!("{value:.1} {name}") }
}

/// A count in decimal units: `912`, `1.53 k`, `2.10 G`.
pub fn decimal(n: f64) -> String {
    match n {
        n if n < 1e3 => format!("{n:.0}"),
        n if n < 1e6 => format!("{:.2} k", n / 1e3),
        n if n < 1e9 => format!("{:.2} M", n / 1e6),
        n if n < 1e12 => format!("{:.2} G", n / 1e9),
        n => format!("{:.2} T", n / 1e12),
    }
}

/// Milliseconds for a table.
pub fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// Microseconds for a table.
pub fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

/// A share as a percentage for a table.
pub fn pct(share: f64) -> String {
    format!("{:.2}", share * 100.0)
}

/// A cell that may be empty.
pub fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_string(), show)
}

/// A count and its noun, in singular or plural.
pub fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_fit() {
        assert_eq!(time(431.0), "431 ns");
        assert_eq!(time(2350.0), "2.35 us");
        assert_eq!(time(3.21e9), "3.21 s");
        assert_eq!(bytes(912.0), "912 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(decimal(912.0), "912");
        assert_eq!(decimal(2.1e9), "2.10 G");
        assert_eq!(count(1, "call"), "1 call");
        assert_eq!(count(0, "call"), "0 calls");
    }
}
