//! Command lines: one file a subcommand. May use every floor.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod accuracy;
#[cfg(feature = "agent")]
pub mod doctor;
#[cfg(feature = "agent")]
pub mod record;
pub mod report;
pub mod runner;
#[cfg(feature = "agent")]
pub mod selftest;

/// Operator-level profiler for unmodified llama.cpp and GGML programs.
#[derive(Debug, Parser)]
#[command(name = "profinfer", version = crate::VERSION, about, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    #[cfg(feature = "agent")]
    Record(record::Args),
    #[cfg(feature = "agent")]
    Doctor(doctor::Args),
    Report(report::Args),
    Accuracy(accuracy::Args),
    #[cfg(feature = "agent")]
    Selftest(selftest::Args),
}

/// Runs the command line of the process. Exit codes: 0 done, 1 failed, 2 wrong usage.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        #[cfg(feature = "agent")]
        Command::Record(args) => record::run(&args),
        #[cfg(feature = "agent")]
        Command::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "agent")]
        Command::Selftest(args) => selftest::run(&args),
        Command::Accuracy(args) => accuracy::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(&args).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("profinfer: {}", one_line(&e));
            ExitCode::FAILURE
        }
    }
}

/// The reader of our output went away: that is its right, and no error of ours.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = cause
            .downcast_ref::<std::io::Error>()
            .map(std::io::Error::kind)
            .or_else(|| cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind));
        kind == Some(std::io::ErrorKind::BrokenPipe)
    })
}

/// The chain of causes, without the repetition that comes of errors that print their own source.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if line.ends_with(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    crate::views::table::clean(&line)
}
