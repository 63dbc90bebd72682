//! A program of subcommands: chooses one, runs it, and makes exit codes and messages of what comes back. Uses
//! [`super::args`], [`super::help`] and [`crate::filesize`].

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use super::args::{Args, Command, Parsed, Usage, nearest};
use super::help;
use super::values::any_of;
use crate::views::table::clean;

/// A program, by its subcommands.
pub struct Program {
    pub name: &'static str,
    /// What it is, in one sentence.
    pub about: &'static str,
    pub commands: &'static [&'static Command],
    /// Subcommands that other builds of it have.
    pub elsewhere: &'static [Elsewhere],
    /// A line each.
    pub examples: &'static str,
}

/// Subcommands that a build leaves out.
pub struct Elsewhere {
    pub names: &'static [&'static str],
    /// Which build this is: "for boards".
    pub build: &'static str,
    /// Where the subcommands are to be had.
    pub hint: &'static str,
}

impl Program {
    /// Runs the command line of this process. Exit codes: 0 done, 1 failed, 2 wrong usage, or that of the subcommand.
    pub fn main(&self) -> ExitCode {
        crate::filesize::ignore_signal();
        let mut given: Vec<OsString> = std::env::args_os().skip(1).collect();
        let first = if given.is_empty() { OsString::new() } else { given.remove(0) };
        let name = first.to_string_lossy();
        match self.run(&name, given) {
            Ok(code) => code,
            Err(e) if super::is_broken_pipe(&e) => ExitCode::SUCCESS,
            Err(e) => {
                let mistakes = e.downcast_ref::<Usage>().map(Usage::mistakes);
                let usage = mistakes.is_some();
                let of = self.commands.iter().find(|c| c.name == name).map(|c| format!(" {}", c.name));
                let hint = format!("; {}{} --help tells how it is used", self.name, of.unwrap_or_default());
                let hint = if usage { &*hint } else { "" };
                // Nothing is left to do when even this can't be written.
                let tell = |what: &str| {
                    let _ = writeln!(io::stderr(), "{}: {what}", self.name);
                };
                match mistakes {
                    Some(all @ [_, _, ..]) => {
                        all.iter().for_each(|one| tell(&clean(one)));
                        tell(&format!("{} errors{hint}", all.len()));
                    }
                    _ => tell(&format!("{}{hint}", super::one_line(&e))),
                }
                ExitCode::from(if usage { 2 } else { 1 })
            }
        }
    }

    fn run(&self, name: &str, given: Vec<OsString>) -> anyhow::Result<ExitCode> {
        let width = help::width();
        match name {
            "-V" | "--version" => return print(&format!("{} {}\n", self.name, crate::VERSION)),
            "-h" | "--help" | "help" => {
                return match given.first() {
                    Some(of) if of != "help" => {
                        print(&help::page(self, self.find(&of.to_string_lossy())?, width))
                    }
                    _ => print(&help::overview(self, width)),
                };
            }
            _ => {}
        }
        let command = self.find(name)?;
        match Args::parse(command, given)? {
            Parsed::Help { long: true } => print(&help::page(self, command, width)),
            Parsed::Help { long: false } => print(&help::summary(self, command, width)),
            Parsed::Run(args) => (command.run)(&args),
        }
    }

    fn find(&self, name: &str) -> Result<&'static Command, Usage> {
        let names = || self.commands.iter().map(|c| c.name);
        if let Some(command) = self.commands.iter().find(|c| c.name == name) {
            return Ok(command);
        }
        if name.is_empty() || name == "--" {
            return Err(Usage::new(format!("a subcommand is needed: {}", any_of(names()))));
        }
        if let Some(Elsewhere { build, hint, .. }) = self.elsewhere.iter().find(|e| e.names.contains(&name)) {
            return Err(Usage::new(format!("this build {build} leaves out '{name}': {hint}")));
        }
        let what = if name.starts_with('-') { "option" } else { "subcommand" };
        let hint = match nearest(name, names().chain(["--help", "--version"])) {
            Some(near) => format!("the nearest is '{near}'"),
            None => format!("there are {}", any_of(names()).replace(" or ", " and ")),
        };
        Err(Usage::new(format!("there is no {what} '{name}'; {hint}")))
    }
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush().map(|()| ExitCode::SUCCESS)?)
}
