//! Which runs are recorded, and how. Uses `recording` and [`super::glob`].

use std::time::Duration;

use super::glob::Glob;
use super::settings::Settings;
use crate::agent::recording::Options;

/// What stands behind the name of a program whose file was replaced or removed (proc_pid_exe(5)).
const DELETED: &[u8] = b" (deleted)";

/// Which runs it is for, and how these are recorded. What is None asks nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Letters, digits, '-', '_' and '.'; unlike that of every other rule.
    pub name: String,
    /// Program of the process.
    pub exe: Option<Glob>,
    /// Its effective user.
    pub user: Option<User>,
    /// Its control group, in version 2's hierarchy or, without one, in that of the first controller.
    pub cgroup: Option<Glob>,
    /// Its runs are not recorded.
    pub ignore: bool,
    /// Every so manieth run is recorded, beginning with the first; 1 = all.
    pub one_in: u32,
    /// Of a run, this many decoded tokens; None: all.
    pub tokens: Option<u64>,
    /// Runs are not written but kept in memory, the last so long of them, until a trigger or the user asks.
    pub ring: Option<Duration>,
    /// Bytes that the ring may have.
    pub ring_size: u64,
    /// Trigger: decoding slower than this, tokens/s.
    pub below: Option<f64>,
    /// Trigger: the 99th percentile of the time for a decoded token is longer than this.
    pub p99_above: Option<Duration>,
    /// How it is recorded. Without duration and tokens: those are of a recording that ends.
    pub record: Options,
}

/// A user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// As it was written: a name or a number.
    pub name: String,
    pub uid: u32,
}

impl User {
    /// The user of a name or number.
    ///
    /// # Errors
    /// /etc/passwd has none of this name.
    pub fn of(text: &str) -> Result<Self, String> {
        // Without the file there are numbers.
        Self::among(text, &std::fs::read("/etc/passwd").unwrap_or_default())
    }

    /// As [`User::of`], by the lines of passwd(5).
    fn among(text: &str, passwd: &[u8]) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|uid| *uid != u32::MAX);
        let of_line = |line: &[u8]| {
            let line = std::str::from_utf8(line).ok()?;
            let mut fields = line.split(':');
            (fields.next() == Some(text)).then(|| fields.nth(1).and_then(number)).flatten()
        };
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let uid = if digits { number(text) } else { passwd.split(|b| *b == b'\n').find_map(of_line) };
        let uid =
            uid.ok_or_else(|| "no user of this machine (/etc/passwd); give a name or a number".to_owned())?;
        Ok(Self { name: text.to_owned(), uid })
    }
}

impl Rule {
    /// Whether it is for this process.
    pub fn matches(&self, exe: &[u8], uid: u32, cgroup: Option<&str>) -> bool {
        let exe = exe.strip_suffix(DELETED).unwrap_or(exe);
        self.exe.as_ref().is_none_or(|glob| glob.matches(exe))
            && self.user.as_ref().is_none_or(|user| user.uid == uid)
            && self.cgroup.as_ref().is_none_or(|glob| cgroup.is_some_and(|of| glob.matches(of.as_bytes())))
    }

    /// Whether it is for all that `other` is for, as far as can be told without their processes.
    pub fn covers(&self, other: &Self) -> bool {
        let wider = |mine: &Option<Glob>, other: &Option<Glob>| {
            mine.as_ref().is_none_or(|m| other.as_ref().is_some_and(|o| m == o || m.is_all()))
        };
        let any = self.exe.as_ref().is_some_and(Glob::is_all);
        (any || wider(&self.exe, &other.exe))
            && self.user.as_ref().is_none_or(|m| other.user.as_ref().is_some_and(|o| m.uid == o.uid))
            && wider(&self.cgroup, &other.cgroup)
    }
}

impl Settings {
    /// The place of the first rule that is for a process; none: it is not recorded.
    ///
    /// `exe` is the program as /proc has it, `uid` the effective user; `cgroup` the control group, where it is known.
    pub fn rule_for(&self, exe: &[u8], uid: u32, cgroup: Option<&str>) -> Option<usize> {
        self.rules.iter().position(|rule| rule.matches(exe, uid, cgroup))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\n\xff:x:7\nbroken\nllm:x:990:990::/:/bin/false\nx:x:4294967295:\n";

    #[test]
    fn users_are_known_by_name_and_number() {
        let uid = |text| User::among(text, PASSWD).ok().map(|u| u.uid);
        assert_eq!(
            (uid("root"), uid("llm"), uid("1000"), uid("0")),
            (Some(0), Some(990), Some(1000), Some(0))
        );
        for none in ["nobody", "", "-1", "+1", "4294967295", "99999999999", "x", "broken"] {
            assert_eq!(uid(none), None, "{none}");
        }
        assert_eq!(User::of("0").map(|u| (u.name, u.uid)), Ok(("0".to_owned(), 0)));
    }
}
