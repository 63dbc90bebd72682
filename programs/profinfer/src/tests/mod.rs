//! What the command-line tables of both programs are made into.

mod args;
mod completions;
mod help;
mod manual;
