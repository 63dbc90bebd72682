//! How long ago recordings ended, by a clock that nobody can set: the time that this machine has been up while a
//! service looked after the recordings. A file's time is when it was first seen complete. Times and clock are kept
//! in the directory next to the recordings. After a boot the clock continues from its last kept value.
//!
//! The file is ours but may still be damaged: parts that cannot be read are unknown, and a recording without a
//! known time has ended just now. So it is kept longer, never shorter.

use std::fmt::Write;
use std::time::Duration;

/// The file, in the directory of recordings.
pub const NAME: &str = ".ages";
/// Maximum bytes read of it.
pub const LARGEST: u64 = 8 << 20;
/// The clock is saved at least this often, even if no recording comes or goes: a boot loses no more than this.
pub const KEPT: Duration = Duration::from_secs(600);
/// Minimum time between saves, whatever comes or goes.
pub const REST: Duration = Duration::from_secs(1);

/// The file begins with this: the version of its format.
const VERSION: &str = "1";
/// Longer than any machine has been up, ns: a hundred years.
const MOST: u64 = 100 * 365 * 86_400 * 1_000_000_000;

/// This boot, and the time since it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Up {
    /// From /proc/sys/kernel/random/boot_id; empty: unknown, and equal to no other.
    pub boot: String,
    pub ns: u64,
}

/// The clock and the recordings.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ages {
    now: u64,
    /// Ends of recordings, sorted by name.
    ended: Vec<(String, u64)>,
    /// The last saved clock.
    kept: Option<u64>,
    changed: bool,
    /// It was saved in this boot.
    ours: bool,
}

impl Ages {
    /// Reads the file.
    pub fn read(text: &str, up: &Up) -> Ages {
        let mut lines = text.lines();
        let Some((boot, then, counted)) = lines.next().and_then(first) else { return Ages::default() };
        let passed = if boot == up.boot && !boot.is_empty() { up.ns.saturating_sub(then) } else { 0 };
        let now = counted.saturating_add(passed);
        let entry = |line: &str| {
            let (end, name) = line.split_once(' ')?;
            Some((name.to_owned(), end.parse::<u64>().ok()?.min(now)))
        };
        let mut ended: Vec<(String, u64)> = lines.filter_map(entry).collect();
        common::order::by(&mut ended, |a, b| a.0.cmp(&b.0));
        ended.dedup_by(|a, b| a.0 == b.0);
        // If the boot is unknown it counts as the same one.
        let ours = boot == up.boot || up.boot.is_empty();
        Ages { now, ended, kept: Some(counted), changed: false, ours }
    }

    /// The clock, ns.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// When a complete recording ended; a new one has ended now.
    pub fn ended(&mut self, name: &str) -> u64 {
        match self.ended.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
            Ok(at) => self.ended.get(at).map_or(self.now, |e| e.1),
            Err(at) => {
                self.changed = true;
                self.ended.insert(at, (name.to_owned(), self.now));
                self.now
            }
        }
    }

    /// Forgets recordings for which this is false.
    pub fn retain(&mut self, mut there: impl FnMut(&str) -> bool) {
        let before = self.ended.len();
        self.ended.retain(|(name, _)| there(name));
        self.changed |= self.ended.len() != before;
    }

    /// Whether something is not in the file yet.
    pub fn changed(&self) -> bool {
        self.changed
    }

    /// The new contents of the file, if it must be written.
    pub fn news(&self, up: &Up) -> Option<String> {
        let rest = if self.changed { REST } else { KEPT }.as_nanos() as u64;
        // Time counts from the first save in a boot.
        if self.ours && self.kept.is_some_and(|kept| self.now.saturating_sub(kept) < rest) {
            return None;
        }
        let mut text =
            format!("{VERSION} {} {} {}\n", if up.boot.is_empty() { "-" } else { &up.boot }, up.ns, self.now);
        for (name, end) in &self.ended {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{end} {name}");
        }
        Some(text)
    }
}

/// Boot, time since boot, and the clock.
fn first(line: &str) -> Option<(&str, u64, u64)> {
    let mut words = line.split(' ');
    if words.next() != Some(VERSION) {
        return None;
    }
    let (boot, then, counted) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (words.next().is_none() && counted <= MOST).then_some((boot, then, counted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(boot: &str, ns: u64) -> Up {
        Up { boot: boot.into(), ns }
    }

    const S: u64 = 1_000_000_000;

    #[test]
    fn only_time_that_is_counted_counts() {
        let mut ages = Ages::read("", &up("a", 500 * S));
        assert_eq!((ages.now(), ages.ended("x")), (0, 0));
        let text = ages.news(&up("a", 500 * S)).expect("it is new");
        // The same boot.
        let mut ages = Ages::read(&text, &up("a", 700 * S));
        assert_eq!((ages.now(), ages.ended("x"), ages.ended("b")), (200 * S, 0, 200 * S));
        let text = ages.news(&up("a", 700 * S)).expect("b is new");
        // A different boot: the uptime of the old one is not counted again.
        let mut ages = Ages::read(&text, &up("b", 9_000 * S));
        assert_eq!((ages.now(), ages.ended("x"), ages.ended("b")), (200 * S, 0, 200 * S));
        let text = ages.news(&up("b", 9_000 * S)).expect("its boot is new");
        let mut ages = Ages::read(&text, &up("b", 9_001 * S - 1));
        assert_eq!(ages.news(&up("b", 9_001 * S - 1)), None);
        ages.retain(|name| name == "b");
        assert_eq!(
            (ages.news(&up("b", 9_001 * S - 1)), ages.changed()),
            (None, true),
            "it was kept just now"
        );
        let mut ages = Ages::read(&text, &up("b", 9_001 * S));
        ages.retain(|name| name == "b");
        let text = ages.news(&up("b", 9_001 * S)).expect("x is gone");
        assert_eq!(Ages::read(&text, &up("b", 9_002 * S)).now(), 202 * S);
        let late = Ages::read(&text, &up("b", 9_001 * S + KEPT.as_nanos() as u64));
        assert!(late.news(&up("b", 10_000 * S)).is_some(), "the clock is kept");
        // The boot is unknown: never the same and never new.
        let text = Ages::read("", &up("", 5)).news(&up("", 5)).expect("it is new");
        let nowhere = Ages::read(&text, &up("", 100 * S));
        assert_eq!((nowhere.now(), nowhere.news(&up("", 100 * S))), (0, None));
    }

    #[test]
    fn what_is_damaged_makes_nothing_older() {
        for text in [
            "",
            "\n",
            "2 a 1 5\n3 x\n",
            "1 a 1\n",
            "1 a b c\n0 x",
            "1 a 1 5 7",
            "1 a 0 18446744073709551615\n0 x",
            "\0\0\0",
        ] {
            let mut ages = Ages::read(text, &up("a", 1_000));
            assert_eq!((ages.now(), ages.ended("x")), (0, 0), "{text:?}");
        }
        // Future times, invalid times, duplicate names, a clock that goes back.
        let mut ages = Ages::read("1 a 900 5\n99 x\ny z\n\n3 w\n4 w\n", &up("a", 100));
        assert_eq!((ages.now(), ages.ended("x"), ages.ended("z"), ages.ended.len()), (5, 5, 5, 3));
    }
}
