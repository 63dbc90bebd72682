//! The choices of a flag: one table for each type, from which help, parser, configuration files and messages are made.

/// A type whose values a flag names. `Of` is any type of the program that names them: Rust lets a program implement the
/// trait for a type of another crate only with one of its own.
pub trait Choice<Of>: Copy + 'static {
    /// Name, meaning (as the help has it) and value, in the order of the help.
    const ALL: &'static [(&'static str, &'static str, Self)];
}

/// Names and meanings of a flag's choices, without their type.
#[derive(Debug, Clone, Copy)]
pub struct Choices(fn(usize) -> Option<(&'static str, &'static str)>);

impl Choices {
    /// Any value is allowed.
    pub const NONE: Self = Self(|_| None);

    /// The values of a type.
    pub const fn of<T: Choice<Of>, Of>() -> Self {
        Self(|i| T::ALL.get(i).map(|(name, help, _)| (*name, *help)))
    }

    /// Those that this returns for 0, 1, 2 and so on: for choices that another table has.
    pub const fn from_fn(nth: fn(usize) -> Option<(&'static str, &'static str)>) -> Self {
        Self(nth)
    }

    /// Names with their meanings.
    pub fn iter(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        (0..).map_while(self.0)
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        self.iter().map(|(name, _)| name)
    }

    pub fn is_empty(self) -> bool {
        (self.0)(0).is_none()
    }
}
