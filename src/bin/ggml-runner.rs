//! The binary `ggml-runner`; see `profinfer::cli::runner`.

use std::process::ExitCode;

fn main() -> ExitCode {
    profinfer::cli::runner::main()
}
