//! Parsers for the values of flags: from text to a value, or to what is expected.
//!
//! Each error is the end of a sentence that begins with the flag and the given text: `--top '0': ...`.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use super::args::{Choice, nearest};

/// An integer from `least` to `most`, in digits.
pub fn whole<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, String> {
    move |text| {
        let number = text.parse().ok().filter(|n| (least..=most).contains(n));
        number.and_then(|n| T::try_from(n).ok()).ok_or_else(|| wanted(least, most))
    }
}

fn wanted(least: u64, most: u64) -> String {
    let most = if most > u32::MAX.into() { String::new() } else { format!(" to {most}") };
    match (least, most.is_empty()) {
        (0, true) => "expected an integer".to_owned(),
        (_, true) => format!("expected an integer, {least} or more"),
        _ => format!("expected an integer from {least}{most}"),
    }
}

/// A type with its own parser and error message.
///
/// # Errors
/// Those of the type.
pub fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: T::Err| e.to_string())
}

/// A value of a type with names, for a flag with [`one_of`](super::args::Flag::one_of).
///
/// # Errors
/// None of the names.
pub fn choice<T: Choice<Of>, Of>(text: &str) -> Result<T, String> {
    one_of(&T::ALL.iter().map(|(name, _, value)| (*name, *value)).collect::<Vec<_>>())(text)
}

/// One of these names.
pub fn one_of<T: Copy>(names: &[(&'static str, T)]) -> impl Fn(&str) -> Result<T, String> {
    move |text| {
        let found = names.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value).ok_or_else(|| unknown(text, &mut names.iter().map(|(name, _)| *name)))
    }
}

fn unknown(text: &str, names: &mut dyn Iterator<Item = &'static str>) -> String {
    let names: Vec<&str> = names.collect();
    let hint = nearest(text, names.iter().copied()).map(|n| format!("; the nearest is '{n}'"));
    format!("expected {}{}", any_of(names.into_iter()), hint.unwrap_or_default())
}

/// `a, b or c`.
pub fn any_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    let last = names.pop().unwrap_or_default();
    if names.is_empty() { last.to_owned() } else { format!("{} or {last}", names.join(", ")) }
}

/// `64MiB`, `8M`, `4096`: bytes, 4 KiB to 1 GiB.
///
/// # Errors
/// Another unit, not a number, or out of bounds.
pub fn size(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)?.filter(|n| (4096..=1 << 30).contains(n));
    bytes.ok_or_else(|| "must be between 4KiB and 1GiB".to_owned())
}

/// Like [`size`], for files and processes: from `least` (in complete MiB) to 1 PiB.
pub fn amount(least: u64) -> impl Fn(&str) -> Result<u64, String> {
    move |text| {
        let bytes = bytes(text)?.filter(|n| (least..=1 << 50).contains(n));
        bytes.ok_or_else(|| format!("must be {}MiB or more", least >> 20))
    }
}

/// None: overflow.
fn bytes(text: &str) -> Result<Option<u64>, String> {
    let (number, unit) = split_unit(text);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1000,
        "mb" => 1_000_000,
        _ => return Err(format!("unknown unit '{unit}': use KiB, MiB or GiB")),
    };
    let number: u64 = number.parse().map_err(|_| "not a size; write it like 4MiB".to_owned())?;
    Ok(number.checked_mul(factor))
}

/// `3%`, `0.5 %`: a share, more than 0 and at most 1.
///
/// # Errors
/// No percent sign, not a number, or out of bounds.
pub fn percent(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|p| p.trim().parse::<f64>().ok());
    match percent {
        Some(p) if p > 0.0 && p <= 100.0 => Ok(p / 100.0),
        _ => Err("expected a percentage, e.g. 1% or 0.2%".into()),
    }
}

/// `500ms`, `30s`, `10min`, `2h`, `7d`, `50us`, or seconds; more than 0.
///
/// # Errors
/// Another unit, not a number, or 0.
pub fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(format!("unknown unit '{unit}': use us, ms, s, min, h or d")),
    };
    let number: f64 = number.parse().map_err(|_| "not a time; write it like 30s".to_owned())?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|d| !d.is_zero())
        .ok_or("must be more than 0".to_owned())
}

/// Like [`time`], at most ten years: it may be added to any clock.
///
/// # Errors
/// As there, or it is longer.
pub fn span(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(3650 * 86400);
    let time = time(text)?;
    if time <= LONGEST { Ok(time) } else { Err("must be at most 3650d".to_owned()) }
}

fn split_unit(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..at], text[at..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_as_people_write_them() {
        assert_eq!(size("8MiB"), Ok(8 << 20));
        assert_eq!(size("4096"), Ok(4096));
        for wrong in ["12", "8 parsec", "99999999999G", ""] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(time("1.5min"), Ok(Duration::from_secs(90)));
        for wrong in ["0s", "-1s", "1e99h", "x", ""] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert_eq!(span("7d"), Ok(Duration::from_secs(7 * 86400)));
        assert_eq!(span("3651d"), Err("must be at most 3650d".to_owned()));
        assert_eq!((amount(1 << 20)("2GiB"), amount(1 << 20)("1024GiB")), (Ok(2 << 30), Ok(1 << 40)));
        for wrong in ["15MiB", "99999999999GiB", "1125899906842625"] {
            assert_eq!(amount(16 << 20)(wrong), Err("must be 16MiB or more".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn shares_are_read_as_people_write_them() {
        assert_eq!((percent("1%"), percent("0.2 %"), percent("100%")), (Ok(0.01), Ok(0.002), Ok(1.0)));
        for wrong in ["1", "0%", "-1%", "101%", "x%", "nan%", ""] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_stay_within_their_bounds() {
        let top = whole::<u32>(1, u32::MAX.into());
        assert_eq!((top("1"), top("4294967295")), (Ok(1), Ok(u32::MAX)));
        for wrong in ["0", "4294967296", "-1", "1.5", "", "99999999999999999999"] {
            assert_eq!(top(wrong), Err("expected an integer from 1 to 4294967295".to_owned()));
        }
        assert_eq!(whole::<u64>(0, u64::MAX)("x"), Err("expected an integer".to_owned()));
        assert_eq!(whole::<u64>(1, u64::MAX)("0"), Err("expected an integer, 1 or more".to_owned()));
    }

    #[test]
    fn a_choice_is_refused_with_those_there_are() {
        let read = one_of(&[("token", 1), ("graph", 2), ("op", 3)]);
        assert_eq!(read("graph"), Ok(2));
        assert_eq!(read("grph"), Err("expected token, graph or op; the nearest is 'graph'".to_owned()));
        assert_eq!(read(""), Err("expected token, graph or op".to_owned()));
    }
}
