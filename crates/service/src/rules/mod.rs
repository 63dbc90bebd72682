//! Which runs are recorded, and how.

pub mod glob;
pub mod settings;

use std::time::Duration;

use self::glob::Glob;
use self::settings::ServiceSettings;
use agent::recorder::recording::RecordOptions;

/// The kernel's mark after the name of a program whose file was replaced or removed (proc_pid_exe(5)).
const DELETED: &[u8] = b" (deleted)";

/// Which runs it matches, and how these are recorded. None means no restriction.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Letters, digits, '-', '_' and '.'; unique among the rules.
    pub name: String,
    /// Program of the process.
    pub exe: Option<Glob>,
    /// Its effective user.
    pub user: Option<RuleUser>,
    /// Its cgroup, in the version 2 hierarchy or, without one, in that of the first controller.
    pub cgroup: Option<Glob>,
    /// Its runs are not recorded.
    pub ignore: bool,
    /// One run in this many is recorded, beginning with the first; 1 = all.
    pub sample_one_in: u32,
    /// This many decoded tokens of a run; None: all.
    pub tokens: Option<u64>,
    /// Runs are kept in memory, the last part up to this time, and only written when a trigger or the user asks.
    pub ring: Option<Duration>,
    /// Maximum ring size, bytes.
    pub ring_size: u64,
    /// Trigger: decode speed below this, tok/s.
    pub below: Option<f64>,
    /// Trigger: the p99 of the time per decoded token is above this.
    pub p99_above: Option<Duration>,
    /// CPUs of the threads while the engine decodes, and while it computes prompts; None: all that it may have.
    pub decode_cpus: Option<CpuChoice>,
    pub prefill_cpus: Option<CpuChoice>,
    /// What to run when a trigger fires.
    pub on_trigger: Option<Hook>,
    /// How to record. Without duration and tokens, which are for recordings that end.
    pub record: RecordOptions,
}

/// CPUs that a rule gives to an engine's threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuChoice {
    /// These, sorted.
    List(Vec<u32>),
    /// Those of a result of `profinfer tune`.
    Auto,
}

/// A program that is run when a trigger fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// The program by its absolute path, and its arguments.
    pub argv: Vec<String>,
    pub user: RuleUser,
    /// It is killed after this time.
    pub timeout: Duration,
}

/// A text is neither the name nor the number of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no user of this machine (/etc/passwd); give a name or a number")]
pub struct NoUser;

/// A user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleUser {
    /// As written: a name or a number.
    pub name: String,
    pub uid: u32,
}

impl RuleUser {
    /// The user of a name or number.
    ///
    /// # Errors
    /// /etc/passwd has none of this name.
    pub fn of(text: &str) -> Result<Self, NoUser> {
        // Without the file only numbers work.
        Self::among(text, &std::fs::read("/etc/passwd").unwrap_or_default())
    }

    /// As [`RuleUser::of`], with the lines of passwd(5).
    fn among(text: &str, passwd: &[u8]) -> Result<Self, NoUser> {
        let number = |text: &str| text.parse().ok().filter(|uid| *uid != u32::MAX);
        let of_line = |line: &[u8]| {
            let line = std::str::from_utf8(line).ok()?;
            let mut fields = line.split(':');
            (fields.next() == Some(text)).then(|| fields.nth(1).and_then(number)).flatten()
        };
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let uid = if digits { number(text) } else { passwd.split(|b| *b == b'\n').find_map(of_line) };
        Ok(Self { name: text.to_owned(), uid: uid.ok_or(NoUser)? })
    }
}

impl Rule {
    /// Whether it matches this process.
    pub fn matches(&self, exe: &[u8], uid: u32, cgroup: Option<&str>) -> bool {
        let exe = exe.strip_suffix(DELETED).unwrap_or(exe);
        self.exe.as_ref().is_none_or(|glob| glob.matches(exe))
            && self.user.as_ref().is_none_or(|user| user.uid == uid)
            && self.cgroup.as_ref().is_none_or(|glob| cgroup.is_some_and(|of| glob.matches(of.as_bytes())))
    }

    /// Whether it may give CPUs to its engines.
    pub fn sets_cpus(&self) -> bool {
        self.decode_cpus.is_some() || self.prefill_cpus.is_some()
    }

    /// Whether it matches everything that `other` matches, as far as the rules alone show.
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

impl ServiceSettings {
    /// Position of the first rule that matches a process; none: it is not recorded.
    ///
    /// `exe` is the program from /proc, `uid` the effective user, `cgroup` the cgroup if known.
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
        let uid = |text| RuleUser::among(text, PASSWD).ok().map(|u| u.uid);
        assert_eq!(
            (uid("root"), uid("llm"), uid("1000"), uid("0")),
            (Some(0), Some(990), Some(1000), Some(0))
        );
        for none in ["nobody", "", "-1", "+1", "4294967295", "99999999999", "x", "broken"] {
            assert_eq!(uid(none), None, "{none}");
        }
        assert_eq!(RuleUser::of("0").map(|u| (u.name, u.uid)), Ok(("0".to_owned(), 0)));
    }
}
