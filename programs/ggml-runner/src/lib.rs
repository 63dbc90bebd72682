//! Command line of `ggml-runner`: one file per subcommand.
//!
//! The program must stay small enough for any board, so it uses no progress library.

mod bench_kernels;
mod experts;
mod generate;
mod identity;
mod kl;
mod model;
mod peak;
mod perplexity;
mod progress;
mod published;
mod random;
mod roofline;
mod run;
mod sampling;
mod scored;
mod synth;

use std::process::ExitCode;

use cli::args::Command;
use cli::completions;
use cli::program::Program;

/// The program `ggml-runner`.
pub static RUNNER: Program = Program {
    name: "ggml-runner",
    version: env!("PROFINFER_VERSION"),
    about: "Reference programs for profinfer: models to profile, and kernels to compare with.",
    commands: &[
        &run::COMMAND,
        &generate::COMMAND,
        &perplexity::COMMAND,
        &kl::COMMAND,
        &synth::COMMAND,
        &peak::COMMAND,
        &published::COMMAND,
        &bench_kernels::COMMAND,
        &COMPLETIONS,
    ],
    elsewhere: &[],
    examples: "\
ggml-runner synth tiny tiny.gguf              create a model to experiment with
ggml-runner run -m tiny.gguf -p 64 -n 32      measure its speed",
    choices: &[synth::PRESET, completions::SHELL],
    environment: &[("SOURCE_DATE_EPOCH", "Date of manual pages, in seconds since 1970 [default: today]")],
    files: &[],
    code: |_| 1,
};

const COMPLETIONS: Command = Command {
    examples: "\
ggml-runner completions bash > ~/.local/share/bash-completion/completions/ggml-runner
ggml-runner completions zsh > ~/.zfunc/_ggml-runner    (a directory in $fpath)
ggml-runner completions fish > ~/.config/fish/completions/ggml-runner.fish",
    run: |args| completions::run(&RUNNER, args),
    ..completions::COMMAND
};

/// Runs the command line of this process. Exit codes: 0 done, 1 failed, 2 wrong usage.
pub fn main() -> ExitCode {
    RUNNER.main()
}
