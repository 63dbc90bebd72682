//! Command line of `ggml-runner`: one file a subcommand. May use `runner` and `ggml`.
//!
//! The program is to stay small enough for any board, so no parser or progress library is used here: see [`args`]. A
//! subcommand is a `Command` in `COMMANDS`; its help is one text, and each of its options must stand there.

pub mod args;
mod bench_kernels;
mod generate;
mod model;
mod peak;
mod progress;
mod random;
mod roofline;
mod run;
mod synth;

use anyhow::Result;
use args::{Args, Usage};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

/// One subcommand.
struct Command {
    name: &'static str,
    /// One line for the list of subcommands.
    about: &'static str,
    /// All that `--help` prints: what it does, usage, options, examples.
    help: &'static str,
    run: fn(Args) -> Result<ExitCode>,
}

static COMMANDS: &[Command] =
    &[run::COMMAND, generate::COMMAND, synth::COMMAND, peak::COMMAND, bench_kernels::COMMAND];

const ABOUT: &str = "Reference side of profinfer: models to profile, and kernels to compare with.";

/// Runs the command line of this process. Exit codes: 0 done, 1 failed, 2 wrong usage.
pub fn main() -> ExitCode {
    let mut given = std::env::args_os().skip(1);
    let name = given.next().unwrap_or_default();
    match run(&name.to_string_lossy(), given) {
        Ok(code) => code,
        Err(e) if super::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            let usage = e.is::<Usage>();
            let hint = if usage { "; --help tells how it is used" } else { "" };
            // Nothing is left to do when even this can't be written.
            let _ = writeln!(io::stderr(), "ggml-runner: {}{hint}", super::one_line(&e));
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

fn run(name: &str, mut given: impl Iterator<Item = OsString>) -> Result<ExitCode> {
    match name {
        "" => Err(Usage::new("a subcommand is needed").into()),
        "-V" | "--version" => print(&format!("ggml-runner {}\n", crate::VERSION)),
        "-h" | "--help" | "help" => match given.next() {
            Some(of) => print(find(&of.to_string_lossy())?.help),
            None => print(&overview()?),
        },
        name => {
            let command = find(name)?;
            let mut args = Args::new(command.help, given);
            if args.flag(&["-h", "--help"]) {
                return print(command.help);
            }
            (command.run)(args)
        }
    }
}

fn find(name: &str) -> Result<&'static Command, Usage> {
    COMMANDS
        .iter()
        .find(|c| c.name == name)
        .ok_or_else(|| Usage::new(format!("there is no subcommand '{name}'")))
}

fn overview() -> Result<String> {
    let mut text = format!("{ABOUT}\n\nUsage: ggml-runner SUBCOMMAND [ARGUMENTS]\n\nSubcommands:\n");
    for c in COMMANDS {
        writeln!(text, "  {:<14} {}", c.name, c.about)?;
    }
    text.push_str(
        "\nOptions:\n  -h, --help     this, or the help of a subcommand\n  -V, --version  the version\n",
    );
    Ok(text)
}

fn print(text: &str) -> Result<ExitCode> {
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
