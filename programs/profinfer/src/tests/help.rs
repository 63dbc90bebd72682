//! The help of every subcommand of both programs.

use cli::args::{Command, Flag};
use cli::help::{HELP, LEAST, MOST, label, page, summary, with_default};
use cli::program::Program;
use ggml_runner::RUNNER;

use crate::PROFINFER;

fn all() -> impl Iterator<Item = (&'static Program, &'static Command)> {
    [&PROFINFER, &RUNNER].into_iter().flat_map(|p| p.commands.iter().map(move |c| (p, *c)))
}

#[test]
fn every_flag_of_the_tables_is_told_once() {
    for (program, command) in all() {
        for text in [page(program, command, 100), summary(program, command, 100)] {
            let told = |flag: &Flag| text.lines().filter(|l| l.trim_end().starts_with(&of(flag))).count();
            for flag in command.flags() {
                assert_eq!(told(flag), usize::from(!flag.hidden), "--{} in:\n{text}", flag.name);
                let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(flag.hidden || words.contains(&with_default(flag)), "--{}", flag.name);
                assert!(flag.choices.names().all(|c| words.contains(c)), "--{}", flag.name);
            }
            assert_eq!(told(&HELP), 1, "{text}");
        }
    }
}

/// The start of a flag's line.
fn of(flag: &Flag) -> String {
    format!("  {}", label(flag))
}

#[test]
fn names_are_of_one_flag_each() {
    for (_, command) in all() {
        let names: Vec<_> = command.flags().chain([&HELP]).map(|f| f.name).collect();
        let letters: Vec<_> = command.flags().chain([&HELP]).filter_map(|f| f.short).collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names.get(..i).is_some_and(|n| n.contains(name)), "{}: --{name}", command.name);
        }
        for (i, letter) in letters.iter().enumerate() {
            assert!(!letters.get(..i).is_some_and(|n| n.contains(letter)), "{}: -{letter}", command.name);
        }
    }
}

#[test]
fn every_page_has_its_sections() {
    for (program, command) in all() {
        let text = page(program, command, 100);
        let example = format!("\nExamples:\n  {} ", program.name);
        let usage = format!("\nUsage: {} {} ", program.name, command.name);
        for part in [&*usage, "\nOptions:\n", "\nExit status:\n  0 ", "\n  2  "] {
            assert!(text.contains(part), "{part:?} in:\n{text}");
        }
        assert!(text.contains(&example) || text.contains(&example.replace("  ", "  sudo ")), "{text}");
    }
}

#[test]
fn lines_are_as_wide_as_the_terminal_and_no_wider() {
    for (program, command) in all() {
        for width in [LEAST, 57, 80, MOST] {
            // Names and text to copy are not broken, and nothing follows them.
            let names: Vec<String> = command.flags().chain([&HELP]).map(of).collect();
            let copied = |l: &str| l.contains(program.name) && l.contains(command.name);
            for line in summary(program, command, width).lines().filter(|l| !copied(l)) {
                // Nor is a path broken.
                let path = line.trim_start().starts_with('/') && !line.trim().contains(' ');
                let fits = line.chars().count() <= width || path || names.iter().any(|n| n == line);
                assert!(fits, "{width}: {line}");
            }
        }
    }
}
