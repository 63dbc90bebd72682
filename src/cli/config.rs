//! `profinfer config`: what `record` would be given by file and environment, and whether a file is right. Uses
//! [`super::conf`] and the table of `record`'s flags.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::args::{Args, Argument, Command, Flag, Group, Parsed, Usage};
use super::record::flags::{COMMAND as RECORD, settings};
use super::{conf, help};
use crate::views::table::clean;

pub const COMMAND: Command = Command {
    name: "config",
    about: "Prints the configuration of record in effect, or checks a file of it",
    text: "\
Every option of record may stand in a file in TOML, under its own name: level = \"op\", buffer-size = \"64MiB\",
sched = true, pmc = [\"cycles\", \"instructions\"]. The environment is stronger than the file, PROFINFER_LEVEL for level,
and the command line is stronger than both. docs/CONFIG.md has all of it.",
    usage: &["--print [--default] [FILE] [-- OPTIONS]", "--check FILE"],
    arguments: &[Argument { name: "FILE", help: "Configuration, as for record --conf" }],
    behind: Some(Argument {
        name: "OPTIONS",
        help: "Options of record: the configuration is printed as they would make it",
    }),
    groups: &[Group {
        title: "Options",
        flags: &[
            Flag::switch(
                "print",
                "Print all values in effect, and behind each where it comes from; what is printed is a file again",
            )
            .excludes(&["check"]),
            Flag::switch(
                "default",
                "With --print: what is built in, with the meaning of each value; FILE and environment are left out",
            )
            .needs(&["print"]),
            Flag::switch("check", "Say nothing of a FILE that is right, and tell all that is wrong with another"),
        ],
    }],
    notes: "",
    exits: &[("0", "printed, or nothing is wrong"), ("1", "a file that cannot be read"), ("2", "errors in FILE, or wrong usage")],
    examples: "\
profinfer config --print --default > board.toml     begin with what is built in
profinfer config --check board.toml                 all errors of a file
profinfer config --print board.toml                 what file and environment come to
profinfer config --print board.toml -- --level op   and with options of record beside them",
    run,
};

fn run(args: &Args) -> Result<ExitCode> {
    let text = match (args.flag("check"), args.flag("print")) {
        (true, _) => {
            check(Path::new(args.needed_argument("FILE")?))?;
            String::new()
        }
        (_, true) if args.flag("default") => {
            if args.argument("FILE").is_some() || !args.behind().is_empty() {
                return Err(Usage::new("--default is what is built in: leave out FILE and OPTIONS").into());
            }
            page(&Args::none(&RECORD), true)
        }
        (_, true) => page(&in_effect(args)?, false),
        _ => return Err(Usage::new("what to do? give --print, or --check FILE").into()),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Tells all that is wrong with a file: its values, and what they need of each other.
fn check(file: &Path) -> Result<()> {
    let name = file.display().to_string();
    let (given, faults) = conf::file(&RECORD, file)?;
    let mut all = Args::none(&RECORD);
    all.below(given);
    all.set_file(name.clone());
    let mut mistakes = faults.told(&name);
    for wrong in [all.check(), settings(&all).map(drop)].into_iter().filter_map(Result::err) {
        mistakes.extend_from_slice(wrong.mistakes());
    }
    Ok(Usage::none_of(mistakes)?)
}

/// What `record` would be given by these options, the environment, and the file.
fn in_effect(args: &Args) -> Result<Args> {
    let file = args.argument("FILE").map(|file| {
        let mut word = OsString::from("--conf=");
        word.push(file);
        word
    });
    let words = file.into_iter().chain(args.behind().iter().cloned()).collect();
    let Parsed::Run(line) = Args::parse(&RECORD, words)? else {
        return Err(Usage::new("--help is no option that says how to record").into());
    };
    let all = conf::settled(&line)?;
    settings(&all)?;
    Ok(all)
}

const BUILT_IN: &str = "\
# Configuration of `profinfer record --conf FILE`: every key that FILE may have, with the value that is built in.
#
# A key is an option of record without its dashes, and means the same. What FILE leaves out is as it is here. The
# environment is stronger than FILE (PROFINFER_LEVEL for level), and the command line is stronger than both. Where a key
# stands behind a '#', nothing is built in, and what its value is called stands for it.
#
# `profinfer config --check FILE` tells all that is wrong with a file, `profinfer config --print FILE` what it comes to.
";

const IN_EFFECT: &str = "\
# What `profinfer record` goes by, and where each value comes from. A key behind a '#' has none.
";

/// Columns of a line up to the comment behind it.
const BEHIND: usize = 36;

/// A configuration as a file: with the meaning of each value, or with where it comes from.
fn page(all: &Args, meaning: bool) -> String {
    let mut text = if meaning { BUILT_IN } else { IN_EFFECT }.to_owned();
    for group in RECORD.groups {
        // A contrary is the same setting.
        let contrary = |f: &Flag| f.name.starts_with("no-") && RECORD.opposite(f).is_some();
        let keys: Vec<&Flag> = group.flags.iter().filter(|f| f.is_key() && !contrary(f)).collect();
        if keys.is_empty() {
            continue;
        }
        text.push_str(&format!("\n## {}\n", group.title));
        for flag in keys {
            if meaning {
                text.push_str(&explained(flag));
            }
            let line = match value(all, flag) {
                Some(value) => format!("{} = {value}", flag.name),
                None if flag.many => format!("#{} = [\"{}\"]", flag.name, flag.value),
                None => format!("#{} = \"{}\"", flag.name, flag.value),
            };
            text.push_str(&match meaning {
                true => line,
                false => format!("{line:BEHIND$}  # {}", clean(&from(all, flag))),
            });
            text.push('\n');
        }
    }
    text
}

/// What a flag means, in lines of comment.
fn explained(flag: &Flag) -> String {
    const WIDTH: usize = 108;
    let mut text = help::filled(flag.help, WIDTH);
    let widest = flag.choices.iter().map(|c| c.0.len()).max().unwrap_or(0);
    for (name, help) in flag.choices {
        text.push_str(&format!("  {name:widest$}  {help}\n"));
    }
    let lines: Vec<String> = text.lines().map(|line| format!("# {line}\n")).collect();
    format!("\n{}", lines.concat())
}

/// A value as TOML; none where there is none, or none that TOML could hold.
fn value(all: &Args, flag: &Flag) -> Option<String> {
    if flag.is_switch() {
        let on = match RECORD.opposite(flag) {
            Some(opposite) => !all.flag(opposite.name),
            None => all.flag(flag.name),
        };
        return Some(on.to_string());
    }
    if flag.many {
        let parts: Vec<String> = all.parts(flag.name).iter().map(|part| quoted(part)).collect();
        return Some(format!("[{}]", parts.join(", "))).filter(|_| !parts.is_empty());
    }
    all.text(flag.name).ok()??.to_str().map(quoted)
}

fn quoted(text: &str) -> String {
    if text.parse::<i64>().is_ok_and(|number| number.to_string() == text) {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Where a value comes from.
fn from(all: &Args, flag: &Flag) -> String {
    let opposite = RECORD.opposite(flag).and_then(|o| all.given(o.name));
    match all.given(flag.name).or(opposite) {
        Some(given) if given.value.as_ref().is_some_and(|v| v.to_str().is_none()) => {
            format!("{}: bytes that are no UTF-8, which no file can hold", all.origin(given))
        }
        Some(given) => all.origin(given),
        None if flag.is_switch() || !flag.default.is_empty() => "built in".to_owned(),
        None => "not set".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../../conf/profinfer.toml");

    #[test]
    fn the_file_that_comes_along_is_what_is_built_in() {
        let (given, faults) = conf::read(&RECORD, FILE);
        assert_eq!(faults.told("conf/profinfer.toml"), Vec::<String>::new());
        let mut all = Args::none(&RECORD);
        all.below(given);
        let options = |args: &Args| {
            // The command line tells that there was a file.
            let options = settings(args).expect("they go together");
            format!("{:?}", crate::agent::recording::Options { command_line: String::new(), ..options })
        };
        assert_eq!(options(&all), options(&Args::none(&RECORD)));
        for flag in RECORD.flags().filter(|f| f.is_key()) {
            let there =
                FILE.lines().any(|l| l.trim_start_matches('#').starts_with(&format!("{} = ", flag.name)));
            assert_eq!(there, flag.name != "no-str", "{}", flag.name);
        }
    }

    #[test]
    fn texts_are_quoted_so_that_toml_reads_them() {
        for text in [
            "a",
            "",
            "a \"b\" c",
            "back\\slash",
            "tab\tline\n\u{7f}",
            "ü#'",
            "007",
            "7",
            "-7",
            "99999999999999999999",
        ] {
            let mut faults = conf::Faults::default();
            let tables = conf::toml::tables(&format!("a = {}", quoted(text)), &mut faults);
            let entry = tables.first().and_then(|t| t.entries.first()).expect("an entry");
            let conf::toml::Value::One(item) = &entry.value else { panic!("{text:?}") };
            assert_eq!((item.text.as_str(), faults.told("").len()), (text, 0));
        }
    }
}
