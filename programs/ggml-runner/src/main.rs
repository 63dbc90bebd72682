//! The `ggml-runner` program; everything is in the library.

fn main() -> std::process::ExitCode {
    ggml_runner::main()
}
