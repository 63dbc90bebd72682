//! Values given elsewhere, which the command line overrides: from the environment and from a file.

use std::ffi::OsString;

use super::{Args, Command, Flag, Usage};
use crate::values::one_of;

/// Name of the flag that names a configuration file.
pub const CONF: &str = "conf";

/// Where a value was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueOrigin {
    /// On the command line.
    Flag,
    /// In the environment, by the variable of the flag of this name: the flag itself, or its opposite.
    Variable(&'static str),
    /// On this line of the file, from 1.
    Line(usize),
}

/// A value that was given.
#[derive(Debug, Clone)]
pub struct Given {
    pub flag: &'static Flag,
    /// None: it counts as not given, whatever lower layers say; for a switch: off.
    pub value: Option<OsString>,
    pub from: ValueOrigin,
    /// Given by the flag's name in the previous version.
    pub renamed: bool,
}

fn variable(name: &str) -> String {
    format!("PROFINFER_{}", name.to_ascii_uppercase().replace('-', "_"))
}

impl Flag {
    /// Whether it is allowed in a file and in the environment.
    pub fn is_key(&self) -> bool {
        !self.hidden && !self.cli_only
    }

    pub fn is_switch(&self) -> bool {
        self.value.is_empty()
    }

    /// Its environment variable: `PROFINFER_BUFFER_SIZE`.
    pub fn variable(&self) -> String {
        variable(self.name)
    }

    /// The same for its name in the previous version.
    pub fn former_variable(&self) -> Option<String> {
        (!self.formerly.is_empty()).then(|| variable(self.formerly))
    }

    /// Whether this is its name, or was in the previous version.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || !self.formerly.is_empty() && self.formerly == name
    }

    /// Whether both are the same setting, or one is the opposite of the other.
    pub fn same(&self, other: &Self) -> bool {
        self.name == other.name || self.overrides == other.name
    }

    /// What is wrong with a value, as the end of a sentence; None: nothing.
    pub fn diagnose(&self, value: &str) -> Option<String> {
        if value.is_empty() {
            return Some(format!("expected {}", self.wanted()));
        }
        match self.valid {
            Some(check) => check(value).err(),
            None if self.choices.is_empty() => None,
            None => one_of(&self.choices.iter().collect::<Vec<_>>())(value).err(),
        }
    }
}

impl Command {
    /// The opposite switch: `no-str` of `str`.
    pub fn opposite(&self, flag: &Flag) -> Option<&'static Flag> {
        self.flags().find(|f| f.overrides == flag.name)
    }

    /// Whether a file and the environment can supply values.
    pub fn has_layers(&self) -> bool {
        self.find(CONF).is_some()
    }

    /// The flag that `no-NAME` revokes, if a layer other than the command line may have set it.
    pub(super) fn taken_back(&self, name: &str) -> Option<&'static Flag> {
        self.find(CONF).filter(|_| self.find(name).is_none())?;
        self.find(name.strip_prefix("no-")?).filter(|f| f.is_key())
    }
}

impl Args {
    /// An empty command line.
    pub fn none(command: &'static Command) -> Self {
        Self { command, given: Vec::new(), arguments: Vec::new(), behind: Vec::new(), file: String::new() }
    }

    pub fn command(&self) -> &'static Command {
        self.command
    }

    /// All given values; the last one of a flag applies.
    pub fn all(&self) -> &[Given] {
        &self.given
    }

    /// Adds a lower layer of values: they apply where the layers above say nothing of the same flag, of its
    /// opposite, or of one that it excludes.
    pub fn below(&mut self, mut lower: Vec<Given>) {
        let excludes = |a: &Flag, b: &Flag| a.excludes.contains(&b.name) || b.excludes.contains(&a.name);
        let beats = |high: &Given, low: &Flag| {
            high.flag.same(low) || high.value.is_some() && excludes(high.flag, low)
        };
        lower.retain(|low| !self.given.iter().any(|high| beats(high, low.flag)));
        lower.append(&mut self.given);
        self.given = lower;
    }

    /// Records that the flag given last was called by this name.
    pub(super) fn note_name(&mut self, flag: &Flag, name: &str) {
        if let Some(given) = self.given.last_mut() {
            given.renamed = flag.name != name;
        }
    }

    /// One line for each value given by a flag's former name.
    pub fn renamed(&self) -> Vec<String> {
        let renamed = |g: &&Given| g.renamed && !g.flag.formerly.is_empty();
        let line = |g: &Given| match g.from {
            ValueOrigin::Flag => format!("--{} is now called --{}", g.flag.formerly, g.flag.name),
            ValueOrigin::Variable(_) => {
                format!("{} is now called {}", variable(g.flag.formerly), variable(g.flag.name))
            }
            ValueOrigin::Line(_) => {
                format!("{}: {} is now called {}", self.origin(g), g.flag.formerly, g.flag.name)
            }
        };
        self.given.iter().filter(renamed).map(line).collect()
    }

    /// Sets the name of the underlying file, for messages.
    pub fn set_file(&mut self, name: String) {
        self.file = name;
    }

    /// What applies to a flag: the value given last, or that it was revoked.
    pub fn given(&self, name: &str) -> Option<&Given> {
        self.given.iter().rfind(|g| g.flag.name == name)
    }

    /// All values that apply to a flag that may have several, also separated by commas.
    pub fn parts(&self, name: &str) -> Vec<String> {
        if self.known(name).is_some_and(|flag| flag.whole) {
            return self.words(name);
        }
        self.list(name, |part| Ok(part.trim().to_owned())).unwrap_or_default()
    }

    /// Checks what flags need and exclude.
    ///
    /// # Errors
    /// Two that exclude each other; one that lacks what it needs.
    pub fn check(&self) -> Result<(), Usage> {
        let mut mistakes: Vec<String> =
            self.given.iter().filter(|g| g.value.is_some()).filter_map(|g| self.mistake(g)).collect();
        mistakes.dedup();
        Usage::none_of(mistakes)
    }

    fn mistake(&self, given: &Given) -> Option<String> {
        let Given { flag, .. } = given;
        if let Some((other, _)) = flag.excludes.iter().find_map(|n| self.last(n)) {
            return Some(format!("{} and {} cannot be combined", self.told(given), self.told(other)));
        }
        if flag.needs.is_empty() || flag.needs.iter().any(|n| self.last(n).is_some()) {
            return None;
        }
        let needed: Vec<String> =
            flag.needs.iter().filter_map(|n| Some(self.command.find(n)?.shortest())).collect();
        Some(format!("{} requires {}", self.told(given), needed.join(" or ")))
    }

    /// A value's flag in the form in which it was given, for messages: `-o/--output`, `PROFINFER_OUTPUT`,
    /// `board.toml:3: output`.
    pub(super) fn told(&self, given: &Given) -> String {
        match given.from {
            ValueOrigin::Flag => given.flag.shown(),
            ValueOrigin::Variable(name) => variable(name),
            ValueOrigin::Line(_) => format!("{}: {}", self.origin(given), given.flag.name),
        }
    }

    /// Where a value was given, for comments: `--output`, `PROFINFER_OUTPUT`, `board.toml:3`.
    pub fn origin(&self, given: &Given) -> String {
        match (given.from, &given.value) {
            (ValueOrigin::Flag, Some(_)) => format!("--{}", given.flag.name),
            (ValueOrigin::Flag, None) => format!("--no-{}", given.flag.name),
            (ValueOrigin::Variable(name), _) => variable(name),
            (ValueOrigin::Line(line), _) => format!("{}:{line}", self.file),
        }
    }

    /// Where the first of these flags was given that is not on the command line, as a prefix for a message that
    /// names them; empty if all are on the command line.
    pub fn place(&self, names: &[&str]) -> String {
        let given = names.iter().filter_map(|n| Some(self.last(n)?.0)).find(|g| g.from != ValueOrigin::Flag);
        given.map(|g| format!("{}: ", self.origin(g))).unwrap_or_default()
    }

    /// A line of the file, as a prefix for a message; empty for 0, which means none.
    pub fn line(&self, line: usize) -> String {
        if line == 0 { String::new() } else { format!("{}:{line}: ", self.file) }
    }

    /// Applicable values from elsewhere, as they would appear on the command line.
    pub fn elsewhere(&self) -> impl Iterator<Item = OsString> {
        self.given.iter().filter(|g| g.from != ValueOrigin::Flag).filter_map(|g| {
            let mut word = OsString::from(format!("--{}", g.flag.name));
            let value = g.value.as_ref()?;
            if !value.is_empty() {
                word.push("=");
                word.push(value);
            }
            Some(word)
        })
    }

    /// Whether a flag's value is from the command line.
    pub fn on_line(&self, name: &str) -> bool {
        self.last(name).is_some_and(|(given, _)| given.from == ValueOrigin::Flag)
    }

    /// Records `--no-NAME`.
    pub(super) fn take_back(&mut self, flag: &'static Flag, value: Option<&[u8]>) -> Result<(), Usage> {
        if value.is_some() {
            return Err(Usage::new(format!("--no-{} takes no value", flag.name)));
        }
        self.given.retain(|g| g.flag.name != flag.name);
        self.given.push(Given { flag, value: None, from: ValueOrigin::Flag, renamed: false });
        Ok(())
    }
}
