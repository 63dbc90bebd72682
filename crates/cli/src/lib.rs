//! A program's command line: tables of flags and subcommands, and what is made of them (parsing, help, manual pages,
//! completions); output files, messages and exit codes. Knows no subcommand.

pub mod args;
pub mod completions;
pub mod failure;
pub mod help;
pub mod manual;
pub mod output;
pub mod program;
pub mod progress;
pub mod terminal;
pub mod values;
