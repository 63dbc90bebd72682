//! A program with subcommands: selects one, runs it, and turns its result into exit codes and messages.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use super::args::{Args, Command, Parsed, Usage, nearest};
use super::help;
use super::values::any_of;
use render::table::clean;

/// A program, defined by its subcommands.
pub struct Program {
    pub name: &'static str,
    /// What it is, in one sentence.
    pub about: &'static str,
    pub commands: &'static [&'static Command],
    /// Subcommands that other builds of it have.
    pub elsewhere: &'static [Elsewhere],
    /// One per line.
    pub examples: &'static str,
}

/// Subcommands that a build leaves out.
pub struct Elsewhere {
    pub names: &'static [&'static str],
    /// Which build this is: "for boards".
    pub build: &'static str,
    /// Where to get the subcommands.
    pub hint: &'static str,
}

impl Program {
    /// Runs the command line of this process. Exit codes: 0 done, 1 failed, 2 wrong usage, or that of the
    /// subcommand.
    pub fn main(&self) -> ExitCode {
        common::filesize::ignore_signal();
        let mut given: Vec<OsString> = std::env::args_os().skip(1).collect();
        let first = if given.is_empty() { OsString::new() } else { given.remove(0) };
        let name = first.to_string_lossy();
        match self.run(&name, given) {
            Ok(code) => code,
            Err(e) if super::failure::is_broken_pipe(&e) => ExitCode::SUCCESS,
            Err(e) => {
                let mistakes = e.downcast_ref::<Usage>().map(Usage::mistakes);
                let usage = mistakes.is_some();
                let of = self.commands.iter().find(|c| c.name == name).map(|c| format!(" {}", c.name));
                let hint = format!("; for usage, run {}{} --help", self.name, of.unwrap_or_default());
                let hint = if usage { &*hint } else { "" };
                // Nothing can be done if even this fails.
                let tell = |what: &str| {
                    let _ = writeln!(io::stderr(), "{}: {what}", self.name);
                };
                match mistakes {
                    Some(all @ [_, _, ..]) => {
                        all.iter().for_each(|one| tell(&clean(one)));
                        tell(&format!("{} errors{hint}", all.len()));
                    }
                    _ => tell(&format!("{}{hint}", super::failure::one_line(&e))),
                }
                ExitCode::from(if usage { 2 } else { 1 })
            }
        }
    }

    fn run(&self, name: &str, given: Vec<OsString>) -> anyhow::Result<ExitCode> {
        let width = help::width();
        match name {
            "-V" | "--version" => return print(&format!("{} {}\n", self.name, common::VERSION)),
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
            Parsed::Run(args) => {
                // With a file and the environment, all notices are given together later.
                if args.command().has_layers() {
                    return (command.run)(&args);
                }
                args.renamed().iter().for_each(|notice| eprintln!("{}: {}", self.name, clean(notice)));
                (command.run)(&args)
            }
        }
    }

    fn find(&self, name: &str) -> Result<&'static Command, Usage> {
        let names = || self.commands.iter().map(|c| c.name);
        if let Some(command) = self.commands.iter().find(|c| c.name == name) {
            return Ok(command);
        }
        if name.is_empty() || name == "--" {
            return Err(Usage::new(format!("a subcommand is required: {}", any_of(names()))));
        }
        if let Some(Elsewhere { build, hint, .. }) = self.elsewhere.iter().find(|e| e.names.contains(&name)) {
            return Err(Usage::new(format!("this build {build} does not include '{name}': {hint}")));
        }
        let what = if name.starts_with('-') { "option" } else { "subcommand" };
        let hint = match nearest(name, names().chain(["--help", "--version"])) {
            Some(near) => format!("the nearest is '{near}'"),
            None => format!("available: {}", any_of(names()).replace(" or ", " and ")),
        };
        Err(Usage::new(format!("unknown {what} '{name}'; {hint}")))
    }
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush().map(|()| ExitCode::SUCCESS)?)
}
