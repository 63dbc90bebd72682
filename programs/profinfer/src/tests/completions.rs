//! Tests of the scripts' contents; tests/plain/completions.rs runs them in their shells.

use cli::args::{Choices, Command};
use cli::completions::parts::{Values, arguments, first_clause, flags};
use cli::completions::{Shell, script};
use cli::help;
use cli::program::Program;
use ggml_runner::RUNNER;

use crate::PROFINFER;

fn all() -> impl Iterator<Item = (&'static Program, &'static Command)> {
    [&PROFINFER, &RUNNER].into_iter().flat_map(|p| p.commands.iter().map(move |c| (p, *c)))
}

/// Placeholders for which nothing can be offered.
const OTHERS: &[&str] = &[
    "1,2,3",
    "A..B",
    "ADDRESS",
    "COMMAND",
    "CPU",
    "FD",
    "GB/S",
    "INIT",
    "ISA",
    "L",
    "LIST",
    "MACHINE",
    "MODE",
    "N",
    "NAME:SHARE",
    "NAME=VALUE",
    "PID,...",
    "PID[:N]",
    "PLACE",
    "POLICY",
    "RULE",
    "RxC",
    "SHARE",
    "SIZE",
    "SPEED",
    "SYMBOL:ARG",
    "TEXT",
    "TIME",
    "TYPE",
    "URL",
    "USER",
    "X",
];

#[test]
fn every_placeholder_is_known() {
    for (program, command) in all() {
        let values = flags(command).filter_map(|f| Some((f.value, Values::of_flag(&f)?)));
        let places = arguments(program, command).map(|(a, values)| (a.name, values));
        for (name, values) in values.chain(places) {
            let known = !matches!(values, Values::Unknown) || OTHERS.contains(&name);
            assert!(known, "{}: is {name} a file? See FILES", command.name);
        }
    }
}

#[test]
fn names_need_no_quotes() {
    for (program, command) in all() {
        let choices = flags(command)
            .map(|f| f.choices)
            .chain(command.arguments.iter().map(|a| program.choices_of(command, a.name)));
        let values: Vec<&str> = choices.flat_map(Choices::names).collect();
        let names = flags(command).map(|f| f.name).chain([command.name]).chain(values);
        for name in names {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            assert!(!name.is_empty() && name.chars().all(plain), "{}: {name:?}", command.name);
        }
    }
}

/// The part of a script that is about a subcommand.
fn part<'s>(script: &'s str, begin: &str, end: &str) -> &'s str {
    let at = script.find(begin).unwrap_or_else(|| panic!("{begin:?} in:\n{script}"));
    let rest = &script[at..];
    &rest[..rest.find(end).unwrap_or(rest.len())]
}

#[test]
fn every_flag_and_value_is_in_each_script() {
    for (program, command) in all() {
        let bash = script(program, Shell::Bash);
        let bash = part(&bash, &format!("\n    {})\n", command.name), "\n        ;;\n");
        let names: Vec<&str> =
            part(bash, "flags='", "'\n").trim_start_matches("flags='").split(' ').collect();
        let zsh = script(program, Shell::Zsh);
        let zsh = part(&zsh, &format!("\n    {})\n", command.name), "\n        ;;\n");
        let fish = script(program, Shell::Fish);
        for flag in command.flags().copied().chain([help::HELP]) {
            let (long, shown) = (format!("--{}", flag.name), usize::from(!flag.hidden));
            assert_eq!(names.iter().filter(|n| **n == long).count(), shown, "{long} in {bash}");
            let ends = ["'[", "=", ","].map(|end| zsh.contains(&format!("{long}{end}")));
            assert_eq!(
                ends.contains(&true) || zsh.contains(&format!("{long}}}'[")),
                !flag.hidden,
                "{long} in {zsh}"
            );
            let line = |l: &&str| {
                l.contains(&format!(" {}'", command.name)) && l.contains(&format!(" -l {} ", flag.name))
            };
            let lines: Vec<&str> = fish.lines().filter(line).collect();
            assert_eq!(lines.len(), shown, "{long} in {fish}");
            if flag.hidden {
                continue;
            }
            if let Some(c) = flag.short.map(char::from) {
                assert!(names.contains(&&*format!("-{c}")), "-{c} in {bash}");
                assert!(zsh.contains(&format!("{{-{c}")), "-{c} in {zsh}");
                assert!(lines[0].contains(&format!(" -s {c} ")), "-{c} in {}", lines[0]);
            }
            for value in flag.choices.names() {
                assert!(zsh.contains(&format!("{value}\\:\"")), "{value} in {zsh}");
                assert!(lines[0].contains(&format!("{value}\\\\t\"")), "{value} in {}", lines[0]);
                let case = part(bash, &format!("{long}) "), " ;;");
                let words = case.rsplit("words='").next().unwrap_or_default();
                assert!(words.trim_end_matches('\'').split(' ').any(|w| w == value), "{value} in {case}");
            }
        }
    }
}

#[test]
fn the_first_clause_is_a_whole_one() {
    for (help, clause) in [
        ("Refresh interval, 50ms or more", "Refresh interval, 50ms or more"),
        ("Write FILE; '-' is standard output", "Write FILE"),
        ("Print help (-h: summary)", "Print help"),
        ("Use 0.5 of it. Then stop", "Use 0.5 of it"),
    ] {
        assert_eq!(first_clause(help), clause);
    }
}
