//! Values that are given elsewhere than on the command line, and lie below it: those of the environment, and of a file.
//! Uses [`super`].

use std::ffi::OsString;

use super::{Args, Command, Flag, Usage};
use crate::cli::values::one_of;

/// Name of the flag that names a file with values for the others.
pub const CONF: &str = "conf";

/// Where a value was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// On the command line.
    Flag,
    /// In the environment, by the variable of the flag of this name: that itself, or its contrary.
    Variable(&'static str),
    /// In this line of the file, from 1.
    Line(usize),
}

/// A value that was given.
#[derive(Debug, Clone)]
pub struct Given {
    pub flag: &'static Flag,
    /// None: it counts as not given, whatever lies below; for a switch: off.
    pub value: Option<OsString>,
    pub from: Origin,
}

fn variable(name: &str) -> String {
    format!("PROFINFER_{}", name.to_ascii_uppercase().replace('-', "_"))
}

impl Flag {
    /// Whether a file and the environment may have it.
    pub fn is_key(&self) -> bool {
        !self.hidden && !self.line_only
    }

    pub fn is_switch(&self) -> bool {
        self.value.is_empty()
    }

    /// Its name in the environment: `PROFINFER_BUFFER_SIZE`.
    pub fn variable(&self) -> String {
        variable(self.name)
    }

    /// Whether both say the same thing, or one the contrary of the other.
    pub fn same(&self, other: &Self) -> bool {
        self.name == other.name || self.overrides == other.name
    }

    /// What is wrong with a value, as the end of a sentence; none: nothing.
    pub fn refusal(&self, value: &str) -> Option<String> {
        if value.is_empty() {
            return Some(format!("wanted: {}", self.wanted()));
        }
        match self.valid {
            Some(check) => check(value).err(),
            None if self.choices.is_empty() => None,
            None => one_of(self.choices)(value).err(),
        }
    }
}

impl Command {
    /// The switch that says the contrary: `no-str` of `str`.
    pub fn opposite(&self, flag: &Flag) -> Option<&'static Flag> {
        self.flags().find(|f| f.overrides == flag.name)
    }

    /// The flag that `no-NAME` takes back, where something else than the command line may have said it.
    pub(super) fn taken_back(&self, name: &str) -> Option<&'static Flag> {
        self.find(CONF).filter(|_| self.find(name).is_none())?;
        self.find(name.strip_prefix("no-")?).filter(|f| f.is_key())
    }
}

impl Args {
    /// A command line on which nothing is given.
    pub fn none(command: &'static Command) -> Self {
        Self { command, given: Vec::new(), arguments: Vec::new(), behind: Vec::new(), file: String::new() }
    }

    pub fn command(&self) -> &'static Command {
        self.command
    }

    /// All that is given; the last of a flag counts.
    pub fn all(&self) -> &[Given] {
        &self.given
    }

    /// Lays values below those that there are: they count where what is above says nothing of the same flag, of its
    /// contrary, or of one that it excludes.
    pub fn below(&mut self, mut lower: Vec<Given>) {
        let excludes = |a: &Flag, b: &Flag| a.excludes.contains(&b.name) || b.excludes.contains(&a.name);
        let beats = |high: &Given, low: &Flag| {
            high.flag.same(low) || high.value.is_some() && excludes(high.flag, low)
        };
        lower.retain(|low| !self.given.iter().any(|high| beats(high, low.flag)));
        lower.append(&mut self.given);
        self.given = lower;
    }

    /// Names the file that lies below, for messages.
    pub fn set_file(&mut self, name: String) {
        self.file = name;
    }

    /// What counts of a flag: the value given last, or that it was taken back.
    pub fn given(&self, name: &str) -> Option<&Given> {
        self.given.iter().rfind(|g| g.flag.name == name)
    }

    /// All values that count of a flag that may have several; commas between them divide.
    pub fn parts(&self, name: &str) -> Vec<String> {
        self.list(name, |part| Ok(part.trim().to_owned())).unwrap_or_default()
    }

    /// Checks what flags need and exclude.
    ///
    /// # Errors
    /// Two that exclude each other; one without what it needs.
    pub fn check(&self) -> Result<(), Usage> {
        let mut mistakes: Vec<String> =
            self.given.iter().filter(|g| g.value.is_some()).filter_map(|g| self.mistake(g)).collect();
        mistakes.dedup();
        Usage::none_of(mistakes)
    }

    fn mistake(&self, given: &Given) -> Option<String> {
        let Given { flag, .. } = given;
        if let Some((other, _)) = flag.excludes.iter().find_map(|n| self.last(n)) {
            return Some(format!("{} and {} exclude each other", self.told(given), self.told(other)));
        }
        if flag.needs.is_empty() || flag.needs.iter().any(|n| self.last(n).is_some()) {
            return None;
        }
        let needed: Vec<String> =
            flag.needs.iter().filter_map(|n| Some(self.command.find(n)?.shortest())).collect();
        Some(format!("{} needs {} beside it", self.told(given), needed.join(" or ")))
    }

    /// A value's flag as it was given, for messages: `-o/--output`, `PROFINFER_OUTPUT`, `board.toml:3: output`.
    pub(super) fn told(&self, given: &Given) -> String {
        match given.from {
            Origin::Flag => given.flag.shown(),
            Origin::Variable(name) => variable(name),
            Origin::Line(_) => format!("{}: {}", self.origin(given), given.flag.name),
        }
    }

    /// Where a value was given, for comments: `--output`, `PROFINFER_OUTPUT`, `board.toml:3`.
    pub fn origin(&self, given: &Given) -> String {
        match (given.from, &given.value) {
            (Origin::Flag, Some(_)) => format!("--{}", given.flag.name),
            (Origin::Flag, None) => format!("--no-{}", given.flag.name),
            (Origin::Variable(name), _) => variable(name),
            (Origin::Line(line), _) => format!("{}:{line}", self.file),
        }
    }

    /// Where the first of these flags was given that is not on the command line, to begin a message that names them;
    /// empty where all are there.
    pub fn place(&self, names: &[&str]) -> String {
        let given = names.iter().filter_map(|n| Some(self.last(n)?.0)).find(|g| g.from != Origin::Flag);
        given.map(|g| format!("{}: ", self.origin(g))).unwrap_or_default()
    }

    /// A line of the file, to begin a message; empty for 0, which is none.
    pub fn line(&self, line: usize) -> String {
        if line == 0 { String::new() } else { format!("{}:{line}: ", self.file) }
    }

    /// What counts and is not of the command line, as it would stand there.
    pub fn elsewhere(&self) -> impl Iterator<Item = OsString> {
        self.given.iter().filter(|g| g.from != Origin::Flag).filter_map(|g| {
            let mut word = OsString::from(format!("--{}", g.flag.name));
            let value = g.value.as_ref()?;
            if !value.is_empty() {
                word.push("=");
                word.push(value);
            }
            Some(word)
        })
    }

    /// Whether a flag's value is one of the command line.
    pub fn on_line(&self, name: &str) -> bool {
        self.last(name).is_some_and(|(given, _)| given.from == Origin::Flag)
    }

    /// Notes `--no-NAME`.
    pub(super) fn take_back(&mut self, flag: &'static Flag, value: Option<&[u8]>) -> Result<(), Usage> {
        if value.is_some() {
            return Err(Usage::new(format!("--no-{} takes no value", flag.name)));
        }
        self.given.retain(|g| g.flag.name != flag.name);
        self.given.push(Given { flag, value: None, from: Origin::Flag });
        Ok(())
    }
}
