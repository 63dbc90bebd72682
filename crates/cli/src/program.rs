//! A program with subcommands: selects one, runs it, and turns its result into exit codes and messages.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use super::args::{Args, Choices, Command, Parsed, Usage, nearest};
use super::values::any_of;
use super::{help, manual};
use render::table::clean;

/// A program, defined by its subcommands.
pub struct Program {
    pub name: &'static str,
    pub version: &'static str,
    /// What it is, in one sentence.
    pub about: &'static str,
    pub commands: &'static [&'static Command],
    /// Subcommands that other builds of it have.
    pub elsewhere: &'static [Elsewhere],
    /// One per line.
    pub examples: &'static str,
    /// Values that positional arguments may have.
    pub choices: &'static [ArgumentChoices],
    /// Environment variables and files, with their meanings, for the manual page.
    pub environment: &'static [(&'static str, &'static str)],
    pub files: &'static [(&'static str, &'static str)],
    /// The exit code after an error other than wrong usage.
    pub code: fn(&anyhow::Error) -> u8,
}

/// Values that a positional argument of a subcommand may have.
pub struct ArgumentChoices {
    pub command: &'static str,
    pub argument: &'static str,
    pub choices: Choices,
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
                ExitCode::from(if usage { 2 } else { (self.code)(&e) })
            }
        }
    }

    fn run(&self, name: &str, given: Vec<OsString>) -> anyhow::Result<ExitCode> {
        let width = help::width();
        match name {
            "-V" | "--version" | "version" => return print(&format!("{} {}\n", self.name, self.version)),
            "-h" | "--help" | "help" => {
                return print(&self.help(&given, width)?);
            }
            _ => {}
        }
        if name.is_empty() {
            eprint!("{}", help::overview(self, width));
            return Ok(ExitCode::from(2));
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

    /// What `help` prints for these words.
    fn help(&self, words: &[OsString], width: usize) -> Result<String, Usage> {
        let mut names = words.iter().filter(|w| *w != "--man");
        let manual = names.clone().count() < words.len();
        let command = match names.next() {
            Some(name) if name != "help" => Some(self.find(&name.to_string_lossy())?),
            _ => None,
        };
        if let Some(extra) = names.next() {
            return Err(Usage::new(format!("unexpected argument '{}'", extra.to_string_lossy())));
        }
        if !manual {
            return Ok(command.map_or_else(|| help::overview(self, width), |c| help::page(self, c, width)));
        }
        let epoch = std::env::var("SOURCE_DATE_EPOCH").ok();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        let date = manual::date(epoch.as_deref(), now);
        Ok(match command {
            Some(command) => manual::of_command(self, command, &date),
            None => manual::of_program(self, &date),
        })
    }

    /// The values that a positional argument may have.
    pub fn choices_of(&self, command: &Command, argument: &str) -> Choices {
        let found = self.choices.iter().find(|c| (c.command, c.argument) == (command.name, argument));
        found.map_or(Choices::NONE, |c| c.choices)
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
        let option = name.starts_with('-');
        let what = if option { "option" } else { "subcommand" };
        let hint = match nearest(name, names().chain(["--help", "--version"])) {
            Some(near) => format!("the nearest is '{near}'"),
            None if option => "there are -h, --help and --version; others follow a subcommand".to_owned(),
            None => format!("available: {}", any_of(names()).replace(" or ", " and ")),
        };
        Err(Usage::new(format!("unknown {what} '{name}'; {hint}")))
    }
}

pub(super) fn print(text: &str) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush().map(|()| ExitCode::SUCCESS)?)
}
