//! profinfer: shows which operator, layer, thread or expert costs the time in an unmodified GGML engine. One file or
//! folder per subcommand.

use std::process::ExitCode;

pub use self::identity::{TOOL, VERSION};
use cli::args::Command;
use cli::completions;
use cli::program::{Elsewhere, Program};

pub mod accuracy;
pub mod advise;
#[cfg(all(feature = "agent", not(feature = "board")))]
pub mod bisect;
#[cfg(feature = "agent")]
pub mod conf;
#[cfg(feature = "agent")]
pub mod config;
#[cfg(feature = "agent")]
pub mod control;
#[cfg(not(feature = "board"))]
pub mod dag;
#[cfg(all(feature = "agent", not(feature = "board")))]
pub mod diagnose;
#[cfg(not(feature = "board"))]
pub mod diff;
#[cfg(feature = "agent")]
pub mod doctor;
#[cfg(not(feature = "board"))]
pub mod experts;
#[cfg(not(feature = "board"))]
pub mod export;
#[cfg(not(feature = "board"))]
pub mod html;
mod identity;
#[cfg(feature = "agent")]
pub mod install;
#[cfg(all(feature = "agent", not(feature = "board")))]
pub mod mcp;
#[cfg(not(feature = "board"))]
pub mod predict;
pub mod reading;
#[cfg(feature = "agent")]
pub mod record;
#[cfg(all(feature = "agent", not(feature = "board")))]
mod remote;
pub mod report;
#[cfg(not(feature = "board"))]
pub mod score;
#[cfg(feature = "agent")]
mod screen;
#[cfg(feature = "agent")]
pub mod selftest;
#[cfg(feature = "agent")]
pub mod serve;
#[cfg(not(feature = "board"))]
pub mod stat;

mod storage;
#[cfg(feature = "agent")]
pub mod top;
#[cfg(feature = "agent")]
pub mod tune;
#[cfg(feature = "agent")]
pub mod watch;
#[cfg(feature = "agent")]
mod written;

/// The program `profinfer`.
pub static PROFINFER: Program = Program {
    name: "profinfer",
    version: VERSION,
    about: "Operator-level eBPF profiler for unmodified llama.cpp and GGML programs.",
    commands: COMMANDS,
    elsewhere: ELSEWHERE,
    examples: EXAMPLES,
    choices: &[
        #[cfg(not(feature = "board"))]
        stat::VIEW,
        completions::SHELL,
    ],
    environment: ENVIRONMENT,
    files: FILES,
    code: failure_code,
};

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "PROFINFER_OPTION",
        "Values of options of record and serve, by the option's name in capitals and with _ for -",
    ),
    ("PROFINFER_CONF", "Configuration file of record and serve"),
    ("XDG_CACHE_HOME", "Where the machine's measured peaks are kept, in profinfer/ [default: ~/.cache]"),
    ("NO_COLOR", "If set, no output is coloured"),
    ("TERM", "If it is dumb, no output is coloured"),
    ("SOURCE_DATE_EPOCH", "Date of manual pages, in seconds since 1970 [default: today]"),
    (
        "SUDO_UID, SUDO_GID",
        "The user who called sudo: the owner of recordings, and who a recorded command runs as",
    ),
];

const FILES: &[(&str, &str)] = &[
    ("/etc/profinfer/profinfer.toml", "Configuration of the service"),
    ("/var/lib/profinfer/", "Recordings of the service"),
    ("/run/profinfer/control.sock", "Socket of the service, for status, dump, watch and stop"),
    ("~/.cache/profinfer/peaks.json", "The machine's peaks, measured by doctor --peaks"),
    ("/var/cache/profinfer/peaks.json", "The same, for all users"),
];

#[cfg(feature = "board")]
const EXAMPLES: &str = "\
profinfer doctor                                 can this machine be recorded?
profinfer record -o run.pfi -- llama-cli -m model.gguf -p 'Hello' -n 64
profinfer top -p $(pidof llama-server)           where the time goes, live
profinfer report run.pfi                         where the time went";
#[cfg(not(feature = "board"))]
const EXAMPLES: &str = "\
profinfer doctor                                 can this machine be recorded?
profinfer record -o run.pfi -- llama-cli -m model.gguf -p 'Hello' -n 64
profinfer record --on ssh:root@board -- ./llama-cli -m model.gguf -n 64
profinfer top -p $(pidof llama-server)           where the time goes, live
profinfer diagnose --json                        what limits what runs, for a program
profinfer tune -- llama-bench -m model.gguf      which cores, threads and flags are best
profinfer report run.pfi                         where the time went
profinfer html run.pfi -o run.html               the same and more, as one page for a browser
profinfer export --perfetto run.pftrace run.pfi  what ran when, for ui.perfetto.dev
profinfer dag run.pfi --fold -o model.svg        what the model computes, and which operators are slow
profinfer stat run.pfi tokens                    what slows decoding down as the context grows
profinfer diff old.pfi new.pfi                   what became slower";

const COMMANDS: &[&Command] = &[
    #[cfg(feature = "agent")]
    &record::COMMAND,
    #[cfg(feature = "agent")]
    &top::COMMAND,
    #[cfg(all(feature = "agent", not(feature = "board")))]
    &diagnose::COMMAND,
    #[cfg(feature = "agent")]
    &tune::COMMAND,
    #[cfg(all(feature = "agent", not(feature = "board")))]
    &bisect::COMMAND,
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
    &watch::COMMAND,
    #[cfg(feature = "agent")]
    &control::STOP,
    &report::COMMAND,
    &advise::COMMAND,
    #[cfg(not(feature = "board"))]
    &predict::COMMAND,
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
    #[cfg(not(feature = "board"))]
    &score::COMMAND,
    #[cfg(not(feature = "board"))]
    &experts::COMMAND,
    &accuracy::COMMAND,
    #[cfg(all(feature = "agent", not(feature = "board")))]
    &mcp::COMMAND,
    #[cfg(feature = "agent")]
    &selftest::COMMAND,
    #[cfg(feature = "agent")]
    &install::COMMAND,
    &COMPLETIONS,
];

const COMPLETIONS: Command = Command {
    examples: "\
profinfer completions bash > ~/.local/share/bash-completion/completions/profinfer
profinfer completions zsh > ~/.zfunc/_profinfer    (a directory in $fpath)
profinfer completions fish > ~/.config/fish/completions/profinfer.fish",
    run: |args| completions::run(&PROFINFER, args),
    ..completions::COMMAND
};

/// Subcommands that this build leaves to others.
const ELSEWHERE: &[Elsewhere] = &[
    #[cfg(feature = "board")]
    Elsewhere {
        names: &[
            "html", "export", "dag", "stat", "diff", "bisect", "score", "experts", "predict", "diagnose",
            "mcp",
        ],
        build: "for boards",
        hint: "copy the trace to another machine with a full build of profinfer",
    },
    #[cfg(not(feature = "agent"))]
    Elsewhere {
        names: &[
            "record", "top", "diagnose", "tune", "bisect", "config", "serve", "doctor", "status", "dump",
            "watch", "stop", "mcp", "selftest", "install",
        ],
        build: "without the recorder",
        hint: "to include it, run cargo build --release on Linux without --no-default-features",
    },
];

/// The exit code after an error: 4 if the kernel's tracing does not answer, so that nobody tries again.
fn failure_code(error: &anyhow::Error) -> u8 {
    #[cfg(feature = "agent")]
    if error.chain().any(|cause| cause.is::<machine::tracing::NoAnswer>()) {
        return 4;
    }
    let _ = error;
    1
}

/// Runs the command line of the process. Exit codes: 0 done, 1 failed, 2 wrong usage.
pub fn main() -> ExitCode {
    PROFINFER.main()
}

#[cfg(all(test, feature = "agent"))]
#[path = "../../../tests/common/skips.rs"]
#[allow(clippy::expect_used, reason = "shared with the other tests")]
mod skips;
#[cfg(test)]
mod tests;
