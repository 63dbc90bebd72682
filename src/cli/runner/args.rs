//! The arguments of one subcommand of `ggml-runner`. Uses nothing.
//!
//! A parser of its own, since the one of `profinfer` would be half of this small program. Options are asked for by
//! name in any order, `--name value`, `--name=value`, `-n value` or `-nvalue`; what is left are positionals. All that
//! follows `--` is positional, and so is a lone `-`.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::str::FromStr;

/// Wrong usage: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(String);

impl Usage {
    /// Wrong usage for this reason, which is one sentence without a full stop.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// What the user gave and nobody has asked for yet.
#[derive(Debug)]
pub struct Args {
    help: &'static str,
    given: Vec<OsString>,
    /// What followed `--`.
    rest: Vec<OsString>,
}

impl Args {
    /// Arguments after the subcommand's name. Each option that is asked for must stand in `help`.
    pub fn new(help: &'static str, given: impl IntoIterator<Item = OsString>) -> Self {
        let mut given: Vec<_> = given.into_iter().collect();
        let mut rest = Vec::new();
        if let Some(at) = given.iter().position(|a| a == "--") {
            rest = given.split_off(at);
            rest.remove(0);
        }
        Self { help, given, rest }
    }

    /// Whether the flag of one of these names (with their dashes) is given.
    pub fn flag(&mut self, names: &[&str]) -> bool {
        self.documented(names);
        let before = self.given.len();
        self.given.retain(|a| !names.iter().any(|n| a == n));
        self.given.len() != before
    }

    /// The value of the option of one of these names (with their dashes), read as a `T`.
    ///
    /// # Errors
    /// No value, two of them, or one that is no `T`.
    pub fn option<T: FromStr<Err: Display>>(&mut self, names: &[&str]) -> Result<Option<T>, Usage> {
        let Some(text) = self.text(names)? else { return Ok(None) };
        let shown = text.to_string_lossy();
        let parsed = text.to_str().ok_or_else(|| "it is no UTF-8".to_owned());
        match parsed.and_then(|t| t.parse().map_err(|e: T::Err| e.to_string())) {
            Ok(value) => Ok(Some(value)),
            Err(why) => Err(Usage(format!("{} '{shown}': {why}", names.join("/")))),
        }
    }

    /// The value of an option as it is, for file names.
    ///
    /// # Errors
    /// No value, or two of them.
    pub fn text(&mut self, names: &[&str]) -> Result<Option<OsString>, Usage> {
        self.documented(names);
        let mut found = None;
        while let Some((at, joined)) = self.find(names) {
            let value = match joined {
                Some(value) => value,
                None if at + 1 < self.given.len() && !starts(&self.given[at + 1], "--") => {
                    self.given.remove(at + 1)
                }
                None => return Err(Usage(format!("{} needs a value", names.join("/")))),
            };
            self.given.remove(at);
            if found.replace(value).is_some() {
                return Err(Usage(format!("{} is given twice", names.join("/"))));
            }
        }
        Ok(found)
    }

    /// The positionals, at most `most` of them. Ask for all options first.
    ///
    /// # Errors
    /// An option that nobody asked for, or too many positionals.
    pub fn positionals(self, most: usize) -> Result<Vec<OsString>, Usage> {
        if let Some(option) = self.given.iter().find(|a| starts(a, "-") && *a != "-") {
            return Err(Usage(format!("unknown option '{}'", option.to_string_lossy())));
        }
        let mut all = self.given;
        all.extend(self.rest);
        match all.get(most) {
            Some(extra) => Err(Usage(format!("unexpected argument '{}'", extra.to_string_lossy()))),
            None => Ok(all),
        }
    }

    /// Where an option of these names stands, with the value that is joined to it.
    fn find(&self, names: &[&str]) -> Option<(usize, Option<OsString>)> {
        self.given.iter().enumerate().find_map(|(at, a)| {
            let joined = names.iter().find_map(|name| joined_value(a, name))?;
            Some((at, joined))
        })
    }

    /// An option that the help does not tell is a mistake of ours.
    fn documented(&self, names: &[&str]) {
        debug_assert!(names.iter().all(|n| self.help.contains(n)), "{names:?} are not in the help");
    }
}

/// Whether `argument` is this option, and the value behind `=` or, for a short one, behind its letter.
fn joined_value(argument: &OsStr, name: &str) -> Option<Option<OsString>> {
    if argument == name {
        return Some(None);
    }
    let after = argument.to_str()?.strip_prefix(name)?;
    match after.strip_prefix('=') {
        Some(value) => Some(Some(value.into())),
        None if name.starts_with("--") => None,
        None => Some(Some(after.into())),
    }
}

fn starts(argument: &OsStr, with: &str) -> bool {
    argument.as_encoded_bytes().starts_with(with.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        Args::new("-n --number --json -m", line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options_stand_anywhere_and_in_any_form() {
        for line in ["a -n 5 --json b", "--number=5 a --json b", "a b --json -n5", "--json -n=5 a -- b"] {
            let mut a = args(line);
            assert_eq!(a.option::<u32>(&["-n", "--number"]).ok(), Some(Some(5)), "{line}");
            assert!(a.flag(&["--json"]) && !a.flag(&["--json"]));
            assert_eq!(a.positionals(2).expect("two"), ["a", "b"]);
        }
    }

    #[test]
    fn what_follows_two_dashes_is_no_option() {
        let mut a = args("- -- --json -n");
        assert!(!a.flag(&["--json"]));
        assert_eq!(a.option::<u32>(&["-n"]).ok(), Some(None));
        assert_eq!(a.positionals(3).expect("three"), ["-", "--json", "-n"]);
    }

    #[test]
    fn wrong_usage_is_told_by_name() {
        let say = |line: &str| {
            let mut a = args(line);
            let n = a.option::<u32>(&["-n", "--number"]);
            n.map(|_| ()).and_then(|()| a.positionals(1).map(|_| ())).expect_err(line).to_string()
        };
        assert_eq!(say("-n five"), "-n/--number 'five': invalid digit found in string");
        assert_eq!(say("-n"), "-n/--number needs a value");
        assert_eq!(say("-n --json"), "-n/--number needs a value");
        assert_eq!(say("-n 1 --number 2"), "-n/--number is given twice");
        assert_eq!(say("--nummer 1"), "unknown option '--nummer'");
        assert_eq!(say("a b"), "unexpected argument 'b'");
    }
}
