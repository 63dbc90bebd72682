//! One flag of a subcommand, as its table defines it.

use super::{Choice, Choices};

/// Checks whether a value is valid; the error says what is expected.
pub type ValueCheck = fn(&str) -> Result<(), String>;

/// One flag.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    pub name: &'static str,
    pub short: Option<u8>,
    /// Placeholder for its value; empty: it is a switch without a value.
    pub value: &'static str,
    /// Without a full stop at the end.
    pub help: &'static str,
    /// Parsed like a given value; empty: none.
    pub default: &'static str,
    /// Allowed values with their meanings; shown in the help, read by [`crate::values::choice`].
    pub choices: Choices,
    pub hidden: bool,
    /// It may be given more than once.
    pub many: bool,
    /// A comma is part of a value, and does not separate two.
    pub whole: bool,
    pub(super) cli_only: bool,
    pub(super) valid: Option<ValueCheck>,
    pub(super) excludes: &'static [&'static str],
    pub(super) needs: &'static [&'static str],
    pub(super) overrides: &'static str,
    /// Its name in the previous version, which is still accepted; empty: the same.
    pub(super) formerly: &'static str,
}

impl Flag {
    /// A flag without a value; ask with [`super::Args::flag`].
    pub const fn switch(name: &'static str, help: &'static str) -> Self {
        Self::value(name, "", help)
    }

    /// A flag with a value; ask with [`super::Args::option`], [`super::Args::needed`], [`super::Args::list`] or
    /// [`super::Args::path`].
    pub const fn value(name: &'static str, value: &'static str, help: &'static str) -> Self {
        Self {
            name,
            short: None,
            value,
            help,
            default: "",
            choices: Choices::NONE,
            hidden: false,
            many: false,
            whole: false,
            cli_only: false,
            valid: None,
            excludes: &[],
            needs: &[],
            overrides: "",
            formerly: "",
        }
    }

    /// Sets its letter.
    pub const fn short(mut self, letter: char) -> Self {
        self.short = Some(letter as u8);
        self
    }

    pub const fn default(mut self, value: &'static str) -> Self {
        self.default = value;
        self
    }

    /// Its value is one of a type's; ask with [`crate::values::choice`].
    pub const fn one_of<T: Choice<Of>, Of>(self) -> Self {
        self.choices(Choices::of::<T, Of>())
    }

    /// Its value is one of these.
    pub const fn choices(mut self, choices: Choices) -> Self {
        self.choices = choices;
        self
    }

    /// It may be given more than once; [`super::Args::list`] has all values.
    pub const fn many(mut self) -> Self {
        self.many = true;
        self
    }

    /// It may be given more than once, and values may contain commas; [`super::Args::words`] has all values.
    pub const fn words(mut self) -> Self {
        (self.many, self.whole) = (true, true);
        self
    }

    /// Check for values from a file or the environment, with the parser that is used in the end; not needed where
    /// there are choices.
    pub const fn valid(mut self, check: ValueCheck) -> Self {
        self.valid = Some(check);
        self
    }

    /// Allowed on the command line only, not in a file or the environment.
    pub const fn cli_only(mut self) -> Self {
        self.cli_only = true;
        self
    }

    /// Not shown in the help.
    pub const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    /// None of these may be given together with it.
    pub const fn excludes(mut self, names: &'static [&'static str]) -> Self {
        self.excludes = names;
        self
    }

    /// At least one of these must be given together with it.
    pub const fn needs(mut self, names: &'static [&'static str]) -> Self {
        self.needs = names;
        self
    }

    /// Of this one and the other, the last one given applies.
    pub const fn overrides(mut self, name: &'static str) -> Self {
        self.overrides = name;
        self
    }

    /// Its name in the previous version, which is still accepted, with a notice.
    pub const fn formerly(mut self, name: &'static str) -> Self {
        self.formerly = name;
        self
    }

    /// `-o/--output`, for messages.
    pub fn shown(&self) -> String {
        let long = format!("--{}", self.name);
        self.short.map_or(long.clone(), |c| format!("-{}/{long}", char::from(c)))
    }

    /// Expected value, for messages: its choices, or its placeholder.
    pub fn wanted(&self) -> String {
        match self.choices.is_empty() {
            true => self.value.to_owned(),
            false => crate::values::any_of(self.choices.names()),
        }
    }

    /// `-o FILE`, or `--btf FILE`: the shortest way to give it.
    pub(super) fn shortest(&self) -> String {
        let name = self.short.map_or_else(|| format!("--{}", self.name), |c| format!("-{}", char::from(c)));
        if self.value.is_empty() { name } else { format!("{name} {}", self.value) }
    }
}
