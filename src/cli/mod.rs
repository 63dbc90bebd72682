//! Command lines: one file a subcommand. May use every floor.

use std::process::ExitCode;

use self::args::Command;
use self::program::{Elsewhere, Program};

pub mod accuracy;
pub mod args;
#[cfg(feature = "agent")]
pub mod conf;
#[cfg(feature = "agent")]
pub mod config;
#[cfg(feature = "agent")]
pub mod control;
#[cfg(not(feature = "board"))]
pub mod dag;
#[cfg(not(feature = "board"))]
pub mod diff;
#[cfg(feature = "agent")]
pub mod doctor;
#[cfg(not(feature = "board"))]
pub mod export;
pub mod help;
#[cfg(not(feature = "board"))]
pub mod html;
#[cfg(feature = "agent")]
pub mod install;
pub mod output;
pub mod program;
pub mod reading;
#[cfg(feature = "agent")]
pub mod record;
pub mod report;
pub mod runner;
#[cfg(feature = "agent")]
mod screen;
#[cfg(feature = "agent")]
pub mod selftest;
#[cfg(feature = "agent")]
pub mod serve;
#[cfg(not(feature = "board"))]
pub mod stat;
#[cfg(feature = "agent")]
pub mod top;
pub mod values;

/// The program `profinfer`.
pub static PROFINFER: Program = Program {
    name: "profinfer",
    about: "Operator-level profiler for unmodified llama.cpp and GGML programs, from outside, with eBPF.",
    commands: COMMANDS,
    elsewhere: ELSEWHERE,
    examples: EXAMPLES,
};

#[cfg(feature = "board")]
const EXAMPLES: &str = "\
profinfer doctor                                 can this machine be recorded?
profinfer record -o run.pfi -- llama-cli -m model.gguf -p 'Hello' -n 64
profinfer top -p $(pidof llama-server)           where the time goes just now
profinfer report run.pfi                         where the time went";
#[cfg(not(feature = "board"))]
const EXAMPLES: &str = "\
profinfer doctor                                 can this machine be recorded?
profinfer record -o run.pfi -- llama-cli -m model.gguf -p 'Hello' -n 64
profinfer top -p $(pidof llama-server)           where the time goes just now
profinfer report run.pfi                         where the time went
profinfer html run.pfi -o run.html               the same and more as one page for a browser
profinfer export --perfetto run.pftrace run.pfi  what ran when, for ui.perfetto.dev
profinfer dag run.pfi --fold -o model.svg        what the model computes, and what takes long
profinfer stat run.pfi tokens                    what makes decoding slower as the context grows
profinfer diff old.pfi new.pfi                   what became slower";

const COMMANDS: &[&Command] = &[
    #[cfg(feature = "agent")]
    &record::COMMAND,
    #[cfg(feature = "agent")]
    &top::COMMAND,
    #[cfg(feature = "agent")]
    &config::COMMAND,
    #[cfg(feature = "agent")]
    &serve::COMMAND,
    #[cfg(feature = "agent")]
    &doctor::COMMAND,
    #[cfg(feature = "agent")]
    &control::STATUS,
    #[cfg(feature = "agent")]
    &control::DUMP,
    #[cfg(feature = "agent")]
    &control::STOP,
    &report::COMMAND,
    #[cfg(not(feature = "board"))]
    &html::COMMAND,
    #[cfg(not(feature = "board"))]
    &export::COMMAND,
    #[cfg(not(feature = "board"))]
    &dag::COMMAND,
    #[cfg(not(feature = "board"))]
    &stat::COMMAND,
    #[cfg(not(feature = "board"))]
    &diff::COMMAND,
    &accuracy::COMMAND,
    #[cfg(feature = "agent")]
    &selftest::COMMAND,
    #[cfg(feature = "agent")]
    &install::COMMAND,
];

/// What this build leaves to others.
const ELSEWHERE: &[Elsewhere] = &[
    #[cfg(feature = "board")]
    Elsewhere {
        names: &["html", "export", "dag", "stat", "diff"],
        build: "for boards",
        hint: "copy the trace to another machine, whose profinfer has it",
    },
    #[cfg(not(feature = "agent"))]
    Elsewhere {
        names: &[
            "record", "top", "config", "serve", "doctor", "status", "dump", "stop", "selftest", "install",
        ],
        build: "without the recorder",
        hint: "cargo build --release, on Linux and without --no-default-features, makes one that has it",
    },
];

/// Exit codes of most subcommands.
const EXITS: &[(&str, &str)] = &[("0", "done"), ("1", "failed"), ("2", "wrong usage")];

/// Runs the command line of the process. Exit codes: 0 done, 1 failed, 2 wrong usage.
pub fn main() -> ExitCode {
    PROFINFER.main()
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
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    crate::views::table::clean(&line)
}
