//! `completions`: scripts that complete a program's command lines in bash, zsh and fish, from the tables that the help
//! is made of.

mod bash;
mod fish;
pub mod parts;
mod zsh;

use std::process::ExitCode;

use super::args::{Args, Argument, Choice, Choices, Command, EXITS, FlagGroup, Usage};
use super::program::{ArgumentChoices, Program, print};
use super::values::choice;

/// The subcommand, without its examples and with no program to run for: each program adds its own.
pub const COMMAND: Command = Command {
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
    examples: "",
    run: |_| Ok(ExitCode::SUCCESS),
};

/// Values of SHELL.
pub const SHELL: ArgumentChoices =
    ArgumentChoices { command: "completions", argument: "SHELL", choices: Choices::of::<Shell, _>() };

#[derive(Clone, Copy)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Choice<Self> for Shell {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("bash", "4.4 or later", Self::Bash),
        ("zsh", "with compinit", Self::Zsh),
        ("fish", "3.0 or later", Self::Fish),
    ];
}

/// Prints the script of a program for the shell that the command line names.
///
/// # Errors
/// No such shell; standard output cannot be written.
pub fn run(program: &Program, args: &Args) -> anyhow::Result<ExitCode> {
    let given = args.needed_argument("SHELL")?.to_string_lossy();
    let shell = choice(&given).map_err(|why| Usage::new(format!("'{given}': {why}")))?;
    print(&script(program, shell))
}

/// The script of a program for a shell.
pub fn script(program: &Program, shell: Shell) -> String {
    match shell {
        Shell::Bash => bash::script(program),
        Shell::Zsh => zsh::script(program),
        Shell::Fish => fish::script(program),
    }
}
