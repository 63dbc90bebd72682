//! What the scripts for all shells are made of: which values can be completed, and texts.

use crate::args::{Argument, Choices, Command, Flag};
use crate::help;
use crate::program::Program;

/// Placeholders of files, whether they are read or written.
const FILES: &[&str] = &[
    "A",
    "B",
    "BINARY",
    "CSV",
    "FILE",
    "FILE[:UNIT]",
    "JSON",
    "MODEL",
    "MODEL.gguf",
    "NEW",
    "OTHER",
    "OUT",
    "PATH",
    "PEAK",
    "PEAKS",
    "TRACE",
    "TRUTH",
];

/// What can be completed in the place of a value.
pub enum Values {
    Words(Choices),
    Files,
    Directories,
    Processes,
    /// A value that only the user knows.
    Unknown,
}

impl Values {
    pub fn of(placeholder: &str, choices: Choices) -> Values {
        match placeholder.trim_end_matches("...") {
            _ if !choices.is_empty() => Values::Words(choices),
            "DIR" => Values::Directories,
            "PID" => Values::Processes,
            name if FILES.contains(&name) => Values::Files,
            _ => Values::Unknown,
        }
    }

    /// Of a flag that takes a value.
    pub fn of_flag(flag: &Flag) -> Option<Values> {
        (!flag.value.is_empty()).then(|| Values::of(flag.value, flag.choices))
    }
}

/// The visible flags of a subcommand, including `--help`.
pub fn flags(command: &Command) -> impl Iterator<Item = Flag> {
    help::visible(command).flat_map(|(_, flags)| flags)
}

/// Whether a command line of another program follows `--`.
pub fn has_command(command: &Command) -> bool {
    command.behind.as_ref().is_some_and(|behind| behind.name == "COMMAND")
}

/// The positional arguments of a subcommand, with what can be completed there.
pub fn arguments(program: &Program, command: &Command) -> impl Iterator<Item = (&'static Argument, Values)> {
    let of = move |a: &'static Argument| (a, Values::of(a.name, program.choices_of(command, a.name)));
    command.arguments.iter().map(of)
}

/// The part of a help text that fits next to a name: its first clause.
pub fn first_clause(help: &str) -> &str {
    let ends = [". ", "; ", ": ", " (", " ["].iter().filter_map(|end| help.find(end));
    help.get(..ends.min().unwrap_or(help.len())).unwrap_or(help)
}

/// A text in single quotes, which are all that is special there, in bash and zsh.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Name of the script's function: letters, digits and `_`.
pub fn function(program: &Program) -> String {
    format!("_{}", program.name.replace('-', "_"))
}
