//! The `profinfer` program; everything is in the library.

fn main() -> std::process::ExitCode {
    profinfer::main()
}
