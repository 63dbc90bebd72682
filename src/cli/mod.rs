//! Command lines: one file a subcommand. May use every floor.

pub mod runner;
