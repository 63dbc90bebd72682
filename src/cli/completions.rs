//! `completions`: scripts that complete a program's command lines in bash, zsh and fish, from the tables that the help
//! is made of.

mod bash;
mod fish;
mod parts;
mod zsh;

use std::process::ExitCode;

use super::args::{Args, Argument, Choice, Choices, Command, EXITS, FlagGroup, Usage};
use super::program::{ArgumentChoices, Program, print};
use super::runner;
use super::values::choice;

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

#[cfg(test)]
mod tests;
