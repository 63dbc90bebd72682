//! Flags and arguments of a subcommand, for both programs: the tables that define them, the parser, and the parsed
//! values. [`super::help`] prints the tables, [`super::values`] has parsers for values.
//!
//! Our own parser: one of the common libraries would be half of `ggml-runner` and a fifth of `profinfer`. To add a
//! flag, add a line to a table and ask for its value by name. To add a group of flags from another file, add the
//! group's constant to `groups` of the [`Command`]:
//!
//! ```
//! use cli::args::{Args, Flag, FlagGroup, Usage};
//! use cli::values::time;
//!
//! pub const FLAGS: FlagGroup = FlagGroup { title: "Scheduler", flags: &[
//!     Flag::switch("sched", "Record when engine threads are off-CPU"),
//!     Flag::value("sched-least", "TIME", "Ignore shorter intervals").default("50us").needs(&["sched"]),
//! ]};
//! fn read(args: &Args) -> Result<Option<std::time::Duration>, Usage> {
//!     if args.flag("sched") { args.option("sched-least", time) } else { Ok(None) }
//! }
//! ```
//!
//! Forms: `--name VALUE`, `--name=VALUE`, `-n VALUE`, `-nVALUE`, `-n=VALUE`, combined switches as `-qf`. A value
//! that begins with `-` needs `=`, except `-` itself and numbers. Nothing after `--` is a flag.

use std::ffi::{OsStr, OsString};
use std::iter::Peekable;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::vec::IntoIter;

mod choices;
mod flag;
mod layers;

pub use choices::{Choice, Choices};
pub use flag::{Flag, ValueCheck};
pub use layers::{CONF, Given, ValueOrigin};

/// Exit codes of most subcommands.
pub const EXITS: &[(&str, &str)] = &[("0", "done"), ("1", "failed"), ("2", "wrong usage")];

/// Wrong usage: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Usage(Vec<String>);

impl Usage {
    /// Wrong usage with this reason: one sentence without a full stop.
    pub fn new(why: impl Into<String>) -> Self {
        Self(vec![why.into()])
    }

    /// Fails with all of these mistakes, if there are any; each is a sentence as for [`Usage::new`].
    ///
    /// # Errors
    /// There is a mistake.
    pub fn none_of(mistakes: Vec<String>) -> Result<(), Self> {
        if mistakes.is_empty() { Ok(()) } else { Err(Self(mistakes)) }
    }

    /// The mistakes, one sentence each.
    pub fn mistakes(&self) -> &[String] {
        &self.0
    }
}

/// A subcommand: its help, and the function that runs it.
pub struct Command {
    pub name: &'static str,
    /// Summary: one line without a full stop.
    pub about: &'static str,
    /// Description: paragraphs, separated by empty lines.
    pub text: &'static str,
    /// What may follow its name, one line per form.
    pub usage: &'static [&'static str],
    pub arguments: &'static [Argument],
    /// What may follow `--`: name and help.
    pub behind: Option<Argument>,
    pub groups: &'static [FlagGroup],
    /// Lines to print, without the indent.
    pub examples: &'static str,
    /// Further notes, printed before the exit status.
    pub notes: &'static str,
    /// Exit codes and their meanings.
    pub exits: &'static [(&'static str, &'static str)],
    pub run: fn(&Args) -> anyhow::Result<ExitCode>,
}

/// A positional argument. The last of a subcommand may be given more than once if its name ends in `...`.
pub struct Argument {
    pub name: &'static str,
    pub help: &'static str,
}

/// Flags that belong together.
pub struct FlagGroup {
    /// Printed above them in the help.
    pub title: &'static str,
    pub flags: &'static [Flag],
}

/// Flags of earlier versions, of any subcommand, and what replaces each.
const REMOVED: [(&str, &str); 3] = [
    ("gpu-times", "--gpu kernel has the times of Vulkan, from a layer in the started command"),
    ("cl-trace", CL_PROFILE),
    ("cl-profile", CL_PROFILE),
];
const CL_PROFILE: &str = "record --gpu kernel has the kernels of OpenCL, and their times, in the recording";

impl Command {
    /// All flags, including hidden ones.
    pub fn flags(&self) -> impl Iterator<Item = &'static Flag> + use<> {
        self.groups.iter().flat_map(|g| g.flags)
    }

    fn find(&self, name: &str) -> Option<&'static Flag> {
        self.flags().find(|f| f.is_called(name))
    }

    fn long(&self, name: &str) -> Result<&'static Flag, Usage> {
        self.find(name).ok_or_else(|| {
            if let Some((_, instead)) = REMOVED.iter().find(|(former, _)| *former == name) {
                return Usage::new(format!("--{name} was removed: {instead}"));
            }
            let names = self.flags().filter(|f| !f.hidden).map(|f| f.name).chain(["help"]);
            let hint = nearest(name, names).map(|n| format!("; the nearest is '--{n}'"));
            Usage::new(format!("unknown option '--{name}'{}", hint.unwrap_or_default()))
        })
    }

    fn letter(&self, letter: u8, word: &OsStr) -> Result<&'static Flag, Usage> {
        self.flags().find(|f| f.short == Some(letter)).ok_or_else(|| {
            let (c, word) = (String::from_utf8_lossy(&[letter]).into_owned(), word.to_string_lossy());
            let of = if word.chars().count() > 2 { format!(" in '{word}'") } else { String::new() };
            Usage::new(format!("unknown option '-{c}'{of}"))
        })
    }
}

/// Result of parsing a command line.
pub enum Parsed {
    Help { long: bool },
    Run(Args),
}

/// The given values, checked against the table.
#[derive(Clone)]
pub struct Args {
    command: &'static Command,
    given: Vec<Given>,
    arguments: Vec<OsString>,
    behind: Vec<OsString>,
    /// The underlying file, for messages.
    file: String,
}

impl Args {
    /// Parses what follows the subcommand's name. If the command has a flag [`CONF`], what flags need and exclude
    /// is not checked yet: values of a file and of the environment are to be added first ([`Args::below`]).
    ///
    /// # Errors
    /// Flags that are unknown, without their value, repeated, or combined with one that they exclude; too many
    /// arguments.
    pub fn parse(command: &'static Command, given: Vec<OsString>) -> Result<Parsed, Usage> {
        let mut args = Self::none(command);
        let mut words = given.into_iter().peekable();
        while let Some(word) = words.next() {
            let bytes = word.as_bytes();
            if bytes == b"--" {
                args.behind = words.collect();
                break;
            }
            if let Some(text) = bytes.strip_prefix(b"--") {
                let mut parts = text.splitn(2, |b| *b == b'=');
                let name = String::from_utf8_lossy(parts.next().unwrap_or_default());
                match (&*name, parts.next()) {
                    ("help", _) => return Ok(Parsed::Help { long: true }),
                    (name, value) => match command.taken_back(name) {
                        Some(flag) => args.take_back(flag, value)?,
                        None => {
                            let flag = command.long(name).map_err(|e| args.behind_hint(e))?;
                            args.take(flag, value, &mut words)?;
                            args.note_name(flag, name);
                        }
                    },
                }
            } else if bytes.len() > 1 && bytes.starts_with(b"-") {
                if args.letters(&word, &mut words)? {
                    return Ok(Parsed::Help { long: false });
                }
            } else {
                args.arguments.push(word);
            }
        }
        if command.behind.is_none() {
            args.arguments.append(&mut args.behind);
        }
        if command.find(CONF).is_none() {
            args.check()?;
        }
        args.surplus()?;
        Ok(Parsed::Run(args))
    }

    /// Adds to the error of an unknown option where an option of the command behind `--` belongs.
    fn behind_hint(&self, error: Usage) -> Usage {
        // An option that is nearly right, or was right once, is meant for the subcommand.
        let text = error.to_string();
        let own = text.contains("the nearest is") || text.contains(" was removed: ");
        let Some(behind) = self.command.behind.as_ref().filter(|_| !own) else { return error };
        let first = self.arguments.first().map(|a| a.to_string_lossy());
        let name = behind.name;
        Usage::new(match first {
            Some(first) => {
                format!("{error}; put {name} after '--': profinfer {} -- {first} ...", self.command.name)
            }
            None => format!("{error}; an option of {name} follows it, after '--'"),
        })
    }

    /// Letters after a single dash. True: help is wanted.
    fn letters(&mut self, word: &OsStr, words: &mut Peekable<IntoIter<OsString>>) -> Result<bool, Usage> {
        let mut left = word.as_bytes().get(1..).unwrap_or_default();
        while let Some((&letter, after)) = left.split_first() {
            if letter == b'h' {
                return Ok(true);
            }
            let flag = self.command.letter(letter, word).map_err(|e| self.behind_hint(e))?;
            let value = after.strip_prefix(b"=");
            if flag.value.is_empty() {
                self.take(flag, value, words)?;
                left = after;
            } else {
                self.take(flag, value.or(Some(after).filter(|a| !a.is_empty())), words)?;
                break;
            }
        }
        Ok(false)
    }

    /// Records a flag, with the value that is joined to it or follows.
    fn take(
        &mut self,
        flag: &'static Flag,
        joined: Option<&[u8]>,
        words: &mut Peekable<IntoIter<OsString>>,
    ) -> Result<(), Usage> {
        let joined = joined.map(|b| OsStr::from_bytes(b).to_owned());
        let value = match (flag.value.is_empty(), joined) {
            (true, None) => OsString::new(),
            (true, Some(_)) => return Err(Usage::new(format!("{} takes no value", flag.shown()))),
            (false, Some(value)) => value,
            (false, None) => match words.next_if(|w| is_value(w)) {
                Some(value) => value,
                None => return Err(no_value(flag, words.peek())),
            },
        };
        if !flag.many && self.last(flag.name).is_some() {
            return Err(Usage::new(format!("{} is given twice", flag.shown())));
        }
        self.given.retain(|g| g.flag.name != flag.overrides);
        self.given.push(Given { flag, value: Some(value), from: ValueOrigin::Flag, renamed: false });
        Ok(())
    }

    fn surplus(&self) -> Result<(), Usage> {
        if self.command.arguments.last().is_some_and(|a| a.name.ends_with("...")) {
            return Ok(());
        }
        let Some(extra) = self.arguments.get(self.command.arguments.len()) else { return Ok(()) };
        let extra = extra.to_string_lossy();
        Err(Usage::new(match &self.command.behind {
            Some(behind) => format!("unexpected argument '{extra}'; put {} after '--'", behind.name),
            None if extra.ends_with(".pfi") => format!(
                "unexpected argument '{extra}': {} reads one trace; to compare two, run profinfer diff A B",
                self.command.name
            ),
            None => format!("unexpected argument '{extra}'"),
        }))
    }

    /// The value that applies.
    fn last(&self, name: &str) -> Option<(&Given, &OsStr)> {
        self.values(name).last()
    }

    fn values(&self, name: &str) -> impl Iterator<Item = (&Given, &OsStr)> {
        self.given.iter().filter(move |g| g.flag.name == name).filter_map(|g| Some((g, g.value.as_deref()?)))
    }

    /// The flag of this name. Asking for a name that is in no table is a bug.
    fn known(&self, name: &str) -> Option<&'static Flag> {
        let flag = self.command.find(name);
        debug_assert!(flag.is_some(), "--{name} is in no table of {}", self.command.name);
        flag
    }

    /// Whether a switch is given.
    pub fn flag(&self, name: &str) -> bool {
        self.known(name).is_some_and(|f| self.last(f.name).is_some())
    }

    /// The raw value: the given one, or the default. Empty means none.
    ///
    /// # Errors
    /// The given value is empty.
    pub fn text(&self, name: &str) -> Result<Option<OsString>, Usage> {
        let Some(flag) = self.known(name) else { return Ok(None) };
        match self.last(name) {
            Some((_, value)) if value.is_empty() => Err(no_value(flag, None)),
            Some((_, value)) => Ok(Some(value.to_owned())),
            None => Ok(Some(flag.default.into()).filter(|d: &OsString| !d.is_empty())),
        }
    }

    /// The raw value as a file name.
    ///
    /// # Errors
    /// It is empty.
    pub fn path(&self, name: &str) -> Result<Option<PathBuf>, Usage> {
        Ok(self.text(name)?.map(PathBuf::from))
    }

    /// The given value or the default, parsed by `read`, whose error says what is expected.
    ///
    /// # Errors
    /// `read` rejects it.
    pub fn option<T>(
        &self,
        name: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Usage> {
        let Some(flag) = self.known(name) else { return Ok(None) };
        let (told, value) = match self.last(name) {
            Some((given, value)) => (self.told(given), value.to_string_lossy()),
            None if flag.default.is_empty() => return Ok(None),
            None => (flag.shown(), flag.default.into()),
        };
        read(&value).map(Some).map_err(|why| refused(&told, &value, &why))
    }

    /// Like [`Args::option`], for flags that have a default or must be given.
    ///
    /// # Errors
    /// As there, and if it is missing.
    pub fn needed<T>(&self, name: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<T, Usage> {
        self.option(name, read)?.ok_or_else(|| self.missing(name))
    }

    /// The error of a flag that must be given.
    pub fn missing(&self, name: &str) -> Usage {
        Usage::new(format!("{} is required", self.known(name).map(Flag::shortest).unwrap_or_default()))
    }

    /// The values of a flag that is repeated or has several values separated by commas.
    ///
    /// # Errors
    /// `read` rejects one.
    pub fn list<T>(&self, name: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, Usage> {
        let Some(flag) = self.known(name) else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for (given, value) in self.values(flag.name) {
            for part in value.to_string_lossy().split(',') {
                all.push(read(part).map_err(|why| refused(&self.told(given), part, &why))?);
            }
        }
        Ok(all)
    }

    /// The values of a flag that may be given more than once, each as it is, commas included.
    pub fn words(&self, name: &str) -> Vec<String> {
        let flag = self.known(name);
        flag.into_iter()
            .flat_map(|flag| self.values(flag.name))
            .map(|(_, v)| v.to_string_lossy().into_owned())
            .collect()
    }

    /// A positional argument, by its name.
    pub fn argument(&self, name: &str) -> Option<&OsStr> {
        let at = self.command.arguments.iter().position(|a| a.name == name);
        debug_assert!(at.is_some(), "{name} is no argument of {}", self.command.name);
        self.arguments.get(at?).map(OsString::as_os_str)
    }

    /// All that is given for the last positional argument, whose name ends in `...`.
    ///
    /// # Errors
    /// Nothing is given, or one is empty.
    pub fn needed_arguments(&self, name: &str) -> Result<&[OsString], Usage> {
        self.needed_argument(name)?;
        let before = self.command.arguments.len().saturating_sub(1);
        let given = self.arguments.get(before..).unwrap_or_default();
        if given.iter().any(|a| a.is_empty()) {
            return Err(Usage::new(format!("an empty name for {name}")));
        }
        Ok(given)
    }

    /// A required positional argument.
    ///
    /// # Errors
    /// It is missing or empty.
    pub fn needed_argument(&self, name: &str) -> Result<&OsStr, Usage> {
        let given = self.argument(name).filter(|a| !a.is_empty());
        given.ok_or_else(|| Usage::new(format!("{name} is required")))
    }

    /// What follows `--`, if the subcommand has a name for it.
    pub fn behind(&self) -> &[OsString] {
        &self.behind
    }
}

/// Whether a word can be a value: not a flag; `-` and negative numbers are values.
fn is_value(word: &OsStr) -> bool {
    match word.as_bytes() {
        [b'-'] => true,
        [b'-', next, ..] => next.is_ascii_digit() || *next == b'.',
        _ => true,
    }
}

fn refused(told: &str, value: &str, why: &str) -> Usage {
    Usage::new(format!("{told} '{value}': {why}"))
}

fn no_value(flag: &Flag, next: Option<&OsString>) -> Usage {
    let (shown, what) = (flag.shown(), flag.wanted());
    let how = next.filter(|n| *n != "--").map(|n| n.to_string_lossy());
    let how = how.map_or(String::new(), |n| format!(" (if '{n}' is the value, write --{}={n})", flag.name));
    Usage::new(format!("{shown} needs a value: {what}{how}"))
}

/// The name that was probably meant: one with this prefix, or one with few different letters.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = word.chars().count();
    let cost = |name: &&str| match word.len() > 1 && name.starts_with(word) {
        true => 0,
        false => distance(word, name),
    };
    names
        .map(|n| (cost(&n), n))
        .min_by_key(|(cost, _)| *cost)
        .filter(|(cost, _)| *cost * 3 <= far)
        .map(|(_, n)| n)
}

/// Edit distance: letters to add, drop, change or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    // Nobody mistypes a longer word; the rest counts as different.
    const MOST: usize = 32;
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(MOST).collect(), b.chars().take(MOST).collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let best = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                if swapped { best.min(rows[i - 2][j - 2] + 1) } else { best }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests;
