//! `completions`: scripts that complete a program's command lines in bash, zsh and fish, from the tables that the help
//! is made of.

mod bash;
mod fish;
mod zsh;

use std::process::ExitCode;

use super::args::{Args, Argument, Choice, Choices, Command, EXITS, Flag, FlagGroup, Usage};
use super::program::{ArgumentChoices, Program, print};
use super::values::choice;
use super::{help, runner};

/// `profinfer completions`.
pub const PROFINFER: Command = Command {
    name: "completions",
    about: "Print a script that completes command lines in a shell",
    text: "\
Completes subcommands, options, values of options, and files. The Debian package installs the scripts.",
    usage: &["SHELL"],
    arguments: &[Argument { name: "SHELL", help: "Shell to print the script for" }],
    behind: None,
    groups: &[FlagGroup { title: "Options", flags: &[] }],
    notes: "",
    exits: EXITS,
    examples: "\
profinfer completions bash > ~/.local/share/bash-completion/completions/profinfer
profinfer completions zsh > ~/.zfunc/_profinfer    (a directory in $fpath)
profinfer completions fish > ~/.config/fish/completions/profinfer.fish",
    run: |args| run(&super::PROFINFER, args),
};

/// `ggml-runner completions`.
pub const RUNNER: Command = Command {
    examples: "\
ggml-runner completions bash > ~/.local/share/bash-completion/completions/ggml-runner
ggml-runner completions zsh > ~/.zfunc/_ggml-runner    (a directory in $fpath)
ggml-runner completions fish > ~/.config/fish/completions/ggml-runner.fish",
    run: |args| run(&runner::RUNNER, args),
    ..PROFINFER
};

/// Values of SHELL.
pub const SHELL: ArgumentChoices =
    ArgumentChoices { command: "completions", argument: "SHELL", choices: Choices::of::<Shell>() };

#[derive(Clone, Copy)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Choice for Shell {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("bash", "4.4 or later", Self::Bash),
        ("zsh", "with compinit", Self::Zsh),
        ("fish", "3.0 or later", Self::Fish),
    ];
}

fn run(program: &Program, args: &Args) -> anyhow::Result<ExitCode> {
    let given = args.needed_argument("SHELL")?.to_string_lossy();
    let shell = choice(&given).map_err(|why| Usage::new(format!("'{given}': {why}")))?;
    print(&script(program, shell))
}

fn script(program: &Program, shell: Shell) -> String {
    match shell {
        Shell::Bash => bash::script(program),
        Shell::Zsh => zsh::script(program),
        Shell::Fish => fish::script(program),
    }
}

/// Placeholders of files, whether they are read or written.
const FILES: &[&str] =
    &["A", "B", "BINARY", "FILE", "MODEL", "NEW", "OTHER", "OUT", "PATH", "PEAK", "TRACE", "TRUTH"];

/// What can be completed in the place of a value.
enum Values {
    Words(Choices),
    Files,
    Directories,
    Processes,
    /// A value that only the user knows.
    Unknown,
}

impl Values {
    fn of(placeholder: &str, choices: Choices) -> Values {
        match placeholder {
            _ if !choices.is_empty() => Values::Words(choices),
            "DIR" => Values::Directories,
            "PID" => Values::Processes,
            name if FILES.contains(&name) => Values::Files,
            _ => Values::Unknown,
        }
    }

    /// Of a flag that takes a value.
    fn of_flag(flag: &Flag) -> Option<Values> {
        (!flag.value.is_empty()).then(|| Values::of(flag.value, flag.choices))
    }
}

/// The visible flags of a subcommand, including `--help`.
fn flags(command: &Command) -> impl Iterator<Item = Flag> {
    help::visible(command).flat_map(|(_, flags)| flags)
}

/// Whether a command line of another program follows `--`.
fn has_command(command: &Command) -> bool {
    command.behind.as_ref().is_some_and(|behind| behind.name == "COMMAND")
}

/// The positional arguments of a subcommand, with what can be completed there.
fn arguments(program: &Program, command: &Command) -> impl Iterator<Item = (&'static Argument, Values)> {
    let of = move |a: &'static Argument| (a, Values::of(a.name, program.choices_of(command, a.name)));
    command.arguments.iter().map(of)
}

/// The part of a help text that fits next to a name: its first clause.
fn first_clause(help: &str) -> &str {
    let ends = [". ", "; ", ": ", " (", " ["].iter().filter_map(|end| help.find(end));
    help.get(..ends.min().unwrap_or(help.len())).unwrap_or(help)
}

/// A text in single quotes, which are all that is special there, in bash and zsh.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Name of the script's function: letters, digits and `_`.
fn function(program: &Program) -> String {
    format!("_{}", program.name.replace('-', "_"))
}

#[cfg(test)]
mod tests;
