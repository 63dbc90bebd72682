//! Command line of `ggml-runner`: one file per subcommand.
//!
//! The program must stay small enough for any board, so it uses no progress library.

mod bench_kernels;
mod generate;
mod kl;
mod model;
pub(super) mod peak;
mod perplexity;
mod progress;
mod random;
mod roofline;
mod run;
mod scored;
mod synth;

use std::process::ExitCode;

use super::completions;
use super::program::Program;

/// The program `ggml-runner`.
pub static RUNNER: Program = Program {
    name: "ggml-runner",
    about: "Reference programs for profinfer: models to profile, and kernels to compare with.",
    commands: &[
        &run::COMMAND,
        &generate::COMMAND,
        &perplexity::COMMAND,
        &kl::COMMAND,
        &synth::COMMAND,
        &peak::COMMAND,
        &bench_kernels::COMMAND,
        &completions::RUNNER,
    ],
    elsewhere: &[],
    examples: "\
ggml-runner synth tiny tiny.gguf              create a model to experiment with
ggml-runner run -m tiny.gguf -p 64 -n 32      measure its speed",
    choices: &[synth::PRESET, completions::SHELL],
    environment: &[("SOURCE_DATE_EPOCH", "Date of manual pages, in seconds since 1970 [default: today]")],
    files: &[],
};

/// Runs the command line of this process. Exit codes: 0 done, 1 failed, 2 wrong usage.
pub fn main() -> ExitCode {
    RUNNER.main()
}
