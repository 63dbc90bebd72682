//! `profinfer config`: shows what file and environment give to `record` and the service, and checks a file.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::conf;
use super::conf::service::network::{METRICS, OTLP, OTLP_PREFIX};
use super::conf::service::{RULE, RuleArgs, SERVE, SERVICE, ServiceArgs};
use super::record::flags::{COMMAND as RECORD, settings};
use cli::args::{Args, Argument, Command, Flag, FlagGroup, Given, Parsed, Usage, ValueOrigin};
use cli::help;
use common::plain::{clean, hides};

pub const COMMAND: Command = Command {
    name: "config",
    about: "Print the effective configuration of record and serve, or check a configuration file",
    text: "\
Every option of record can be set in a TOML file under its own name: level = \"op\", buffer-size = \"64MiB\", sched = true,
pmc = [\"cycles\", \"instructions\"]. Environment variables (PROFINFER_LEVEL for level) override the file, and the command
line overrides both. [service] and [[rule]] in the same file are for serve. docs/CONFIG.md has the details.",
    usage: &["--print [--default] [FILE] [-- OPTIONS]", "--check FILE"],
    arguments: &[Argument { name: "FILE", help: "Configuration file, as for record --conf and serve --conf" }],
    behind: Some(Argument {
        name: "OPTIONS",
        help: "Options of record to include in the printed configuration",
    }),
    groups: &[FlagGroup {
        title: "Options",
        flags: &[
            Flag::switch(
                "print",
                "Print all values in effect, each with its origin; the output is a valid configuration \
                 file",
            )
            .excludes(&["check"]),
            Flag::switch(
                "default",
                "With --print: print the built-in defaults with the meaning of each; ignore FILE and the \
                 environment",
            )
            .needs(&["print"]),
            Flag::switch("check", "Check FILE and report all errors; print nothing if there are none"),
        ],
    }],
    notes: "",
    exits: &[("0", "printed, or no errors in FILE"), ("1", "FILE cannot be read"), ("2", "errors in FILE, or wrong usage")],
    examples: "\
profinfer config --print --default > board.toml     start from the defaults
profinfer config --check board.toml                 report all errors in a file
profinfer config --print board.toml                 show the effect of file and environment
profinfer config --print board.toml -- --level op   the same, with options of record added",
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
                return Err(
                    Usage::new("--default prints the built-in defaults: omit FILE and OPTIONS").into()
                );
            }
            built_in()
        }
        (_, true) => {
            let (record, layers) = in_effect(args)?;
            page(&record, &layers, false)
        }
        _ => return Err(Usage::new("give --print, or --check FILE").into()),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The built-in configuration as a file: conf/profinfer.toml.
pub fn built_in() -> String {
    page(&Args::none(&RECORD), &ServiceArgs::new(&Args::none(&SERVE), conf::File::default()), true)
}

/// Reports all mistakes in a file: its values, and what they need of each other.
fn check(path: &Path) -> Result<()> {
    let (file, faults) = conf::file(path)?;
    let mut all = Args::none(&RECORD);
    all.below(file.record.clone());
    all.set_file(file.name.clone());
    let mut mistakes = faults.told(&file.name);
    for wrong in [all.check(), settings(&all).map(drop)].into_iter().filter_map(Result::err) {
        mistakes.extend_from_slice(wrong.mistakes());
    }
    let service = ServiceArgs::new(&Args::none(&SERVE), file).values(&mut mistakes);
    warn(&service);
    Ok(Usage::none_of(mistakes)?)
}

fn warn(service: &service::rules::settings::ServiceSettings) {
    for warning in &service.warnings {
        eprintln!("profinfer: warning: {}", clean(warning));
    }
}

/// What `record` gets from these options, the environment and the file; and what the service gets from the latter
/// two.
fn in_effect(args: &Args) -> Result<(Args, ServiceArgs)> {
    let file = args.argument("FILE").map(|file| {
        let mut word = OsString::from("--conf=");
        word.push(file);
        word
    });
    let words = file.into_iter().chain(args.behind().iter().cloned()).collect();
    let Parsed::Run(line) = Args::parse(&RECORD, words)? else {
        return Err(Usage::new("--help is not a recording option").into());
    };
    let environ = |name: &str| std::env::var_os(name);
    let conf::Upper { args: mut all, file, mut mistakes } = conf::upper(&line, &environ)?;
    let none = Args::none(&SERVE);
    let (service, wrong) = conf::with_environment(&none, &environ);
    mistakes.extend(wrong.into_iter().filter(|w| !mistakes.contains(w)).collect::<Vec<_>>());
    all.below(file.record.clone());
    all.set_file(file.name.clone());
    Usage::none_of(mistakes)?;
    all.check()?;
    settings(&all)?;
    let layers = ServiceArgs::new(&service, file);
    let mut wrong = Vec::new();
    warn(&layers.values(&mut wrong));
    Usage::none_of(wrong)?;
    Ok((all, layers))
}

const BUILT_IN: &str = "\
# Configuration of `profinfer record --conf FILE` and `profinfer serve --conf FILE`: every key that FILE can have, with its
# built-in default.
#
# A key above all headings is an option of record without its dashes, and means the same. A key that is missing in FILE has
# the default shown here. Environment variables (PROFINFER_LEVEL for level) override FILE, and the command line overrides
# both. A commented-out key has no default; a placeholder shows what kind of value it takes.
#
# `profinfer config --check FILE` reports all errors in a file, `profinfer config --print FILE` the values in effect.
";

const IN_EFFECT: &str = "\
# Values in effect for `profinfer record` and `profinfer serve`, and where each comes from. A commented-out key is not set.
";

/// Columns of a line before its trailing comment.
const BEHIND: usize = 36;

/// Printed above the keys of a rule.
const RULES: &str = "
## Rules of the service
#
# The first [[rule]] that matches a process determines how its runs are recorded; a process that no rule matches is not
# recorded. Without any rule, everything is recorded, by a rule named default. Recording options above [service]
# apply to every rule that does not set them itself; a rule can set all of them except exe, output, quiet, duration
# and tokens. The environment and the command line of serve override a rule. The default budget of a rule is 1%.
#
# Keys of a rule, in addition to the recording options:
";

const EXAMPLE: &str = r#"
# An example: keep the last ten minutes of the server and write them when it becomes slow; ignore tests; of everything
# else, record one run in ten with graphs only.
#[[rule]]
#name = "tests"
#exe = "/opt/llm/tests/**"
#ignore = true
#
#[[rule]]
#name = "server"
#exe = "llama-server"
#ring = "10min"
#trigger-below = "5tok/s"
#trigger-p99-above = "500ms"
#
#[[rule]]
#name = "others"
#sample-one-in = 10
#level = "graph"
"#;

/// A configuration as a file: with the meaning of each value, or with its origin.
fn page(all: &Args, layers: &ServiceArgs, meaning: bool) -> String {
    let mut text = if meaning { BUILT_IN } else { IN_EFFECT }.to_owned();
    for group in RECORD.groups {
        let keys: Vec<&Flag> = group.flags.iter().filter(|f| is_setting(&RECORD, f)).collect();
        if !keys.is_empty() {
            text.push_str(&format!("\n## {}\n", group.title));
            keys.iter().for_each(|flag| text.push_str(&entry(all, flag, meaning)));
        }
    }
    text.push_str("\n## The service\n\n[service]\n");
    SERVICE.flags.iter().for_each(|flag| text.push_str(&entry(&layers.service, flag, meaning)));
    text.push_str("\n## Metrics over the network\n\n[metrics]\n");
    METRICS.flags.iter().for_each(|flag| text.push_str(&entry(&layers.service, flag, meaning)));
    text.push_str("\n[otlp]\n");
    OTLP.flags.iter().for_each(|flag| text.push_str(&entry(&layers.service, flag, meaning)));
    if meaning {
        text.push_str(RULES);
        let none = Args::none(&RULE);
        for flag in RULE.groups.iter().take(1).flat_map(|g| g.flags) {
            for line in entry(&none, flag, true).lines() {
                // Without a rule's heading it would be a key of the service.
                let mark = if line.is_empty() || line.starts_with('#') { "" } else { "#" };
                text.push_str(&format!("{mark}{line}\n"));
            }
        }
        text.push_str(EXAMPLE);
    } else {
        text.push_str("\n## Rules of the service\n");
        layers.rules.iter().for_each(|layer| text.push_str(&rule(layer)));
    }
    text
}

/// An opposite is the same setting.
fn is_setting(command: &Command, flag: &Flag) -> bool {
    flag.is_key() && !(flag.name.starts_with("no-") && command.opposite(flag).is_some())
}

/// A rule in effect: its own values, and defaults specific to rules.
fn rule(layer: &RuleArgs) -> String {
    let args = &layer.args;
    if layer.line == 0 {
        let budget = if args.given("budget").is_some() { "" } else { ", with a budget of 1%" };
        return format!("# No rules: everything is recorded, by a rule named default{budget}.\n");
    }
    let mut text = "\n[[rule]]\n".to_owned();
    for flag in RULE.flags().filter(|f| is_setting(&RULE, f)) {
        let shown = match given(args, flag) {
            Some(Given { from: ValueOrigin::Line(line), .. }) => *line >= layer.line,
            Some(_) => false,
            None => flag.name == "budget",
        };
        if shown {
            text.push_str(&entry(args, flag, false));
        }
    }
    text
}

/// The value that applies to a setting.
fn given<'a>(all: &'a Args, flag: &Flag) -> Option<&'a Given> {
    all.given(flag.name).or_else(|| all.given(all.command().opposite(flag)?.name))
}

/// A key with its value, and its meaning or origin.
fn entry(all: &Args, flag: &Flag, meaning: bool) -> String {
    let key = flag.name.strip_prefix(OTLP_PREFIX).unwrap_or(flag.name);
    let line = match value(all, flag) {
        Some(value) => format!("{key} = {value}"),
        None if flag.many => format!("#{key} = [\"{}\"]", flag.value),
        None => format!("#{key} = \"{}\"", flag.value),
    };
    match meaning {
        true => format!("{}{line}\n", explained(flag)),
        false => format!("{line:BEHIND$}  # {}\n", clean(&from(all, flag))),
    }
}

/// A flag's meaning, as comment lines.
fn explained(flag: &Flag) -> String {
    const WIDTH: usize = 108;
    let mut text = help::filled(flag.help, WIDTH);
    let widest = flag.choices.names().map(str::len).max().unwrap_or(0);
    for (name, help) in flag.choices.iter() {
        text.push_str(&format!("  {name:widest$}  {help}\n"));
    }
    let lines: Vec<String> = text.lines().map(|line| format!("# {line}\n")).collect();
    format!("\n{}", lines.concat())
}

/// A value as TOML; None if there is none, or TOML cannot represent it.
fn value(all: &Args, flag: &Flag) -> Option<String> {
    if flag.is_switch() {
        let on = match all.command().opposite(flag) {
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
            c if hides(c) => quoted.push_str(&format!("\\U{:08X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A value's origin.
fn from(all: &Args, flag: &Flag) -> String {
    match given(all, flag) {
        Some(given) if given.value.as_ref().is_some_and(|v| v.to_str().is_none()) => {
            format!("{}: not valid UTF-8, cannot be written to a file", all.origin(given))
        }
        Some(given) => all.origin(given),
        None if flag.is_switch() || !flag.default.is_empty() => "built in".to_owned(),
        None => "not set".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../../../conf/profinfer.toml");

    #[test]
    fn the_file_that_comes_along_is_what_is_built_in() {
        let (file, faults) = conf::read(FILE);
        assert_eq!(faults.told("conf/profinfer.toml"), Vec::<String>::new());
        let mut all = Args::none(&RECORD);
        all.below(file.record.clone());
        let options = |args: &Args| {
            // The command line shows that there was a file.
            let options = settings(args).expect("they go together");
            format!(
                "{:?}",
                agent::recorder::recording::RecordOptions {
                    command_line: String::new(),
                    sched_requested: false,
                    ..options
                }
            )
        };
        assert_eq!(options(&all), options(&Args::none(&RECORD)));
        for flag in RECORD.flags().filter(|f| f.is_key()) {
            let there =
                FILE.lines().any(|l| l.trim_start_matches('#').starts_with(&format!("{} = ", flag.name)));
            assert_eq!(there, !["no-str", "no-cmdline", "no-sched"].contains(&flag.name), "{}", flag.name);
        }
        let values = |file| {
            let mut wrong = Vec::new();
            let settings = ServiceArgs::new(&Args::none(&SERVE), file).values(&mut wrong);
            assert_eq!(wrong, Vec::<String>::new());
            service::rules::settings::ServiceSettings { rules: Vec::new(), ..settings }
        };
        assert_eq!(values(file), values(conf::File::default()));
        assert_eq!(values(conf::File::default()), service::rules::settings::ServiceSettings::default());
    }

    #[test]
    fn the_example_of_rules_is_one() {
        let text: Vec<&str> = EXAMPLE
            .lines()
            .map(|l| l.strip_prefix('#').unwrap_or(l))
            .filter(|l| !l.starts_with(' '))
            .collect();
        let (file, faults) = conf::read(&text.join("\n"));
        let mut wrong = faults.told("example");
        let settings = ServiceArgs::new(&Args::none(&SERVE), file).values(&mut wrong);
        assert_eq!((wrong, settings.warnings), (Vec::new(), Vec::new()));
        assert_eq!(
            settings.rules.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(),
            ["tests", "server", "others"]
        );
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
            let conf::toml::TomlValue::One(item) = &entry.value else { panic!("{text:?}") };
            assert_eq!((item.text.as_str(), faults.told("").len()), (text, 0));
        }
    }
}
