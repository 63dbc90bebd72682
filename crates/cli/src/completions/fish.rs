//! Completion in fish: one rule for each subcommand, flag and value.

use super::parts::{Values, arguments, first_clause, flags, function, has_command};
use crate::args::{Choices, Flag};
use crate::program::Program;

pub fn script(program: &Program) -> String {
    let name = program.name;
    let mut out = format!("# fish completion for {name}, printed by: {name} completions fish\n\n");
    out.push_str(&HEAD.replace("FUNCTION", &function(program)).replace("PROGRAM", name));
    let at = |command: &str| format!("complete -c {name} -n '_{} {command}'", function(program));
    for command in program.commands {
        let about = quoted(command.about);
        out.push_str(&format!("{} -a {} -d {about}\n", at(""), command.name));
        out.push_str(&format!("{} -a {} -d {about}\n", at("help"), command.name));
    }
    for command in program.commands {
        let at = at(command.name);
        out.push('\n');
        flags(command).for_each(|flag| out.push_str(&format!("{at}{}\n", option(&flag))));
        for (_, values) in arguments(program, command) {
            out.push_str(&format!("{at}{}\n", value(&values)));
        }
        if has_command(command) {
            let rule = quoted(&format!("(_{}_command)", function(program)));
            out.push_str(&format!(
                "complete -c {name} -n '_{}_follows {}' -a {rule}\n",
                function(program),
                command.name
            ));
        }
    }
    out
}

/// The subcommand is the first word. After `--`, nothing is an option of the program.
const HEAD: &str = r#"function _FUNCTION
    set -l words (commandline -opc)
    contains -- -- $words; and return 1
    test "$words[2]" = "$argv[1]"
end

function _FUNCTION_follows
    set -l words (commandline -opc)
    test "$words[2]" = $argv[1]; and contains -- -- $words
end

# Completions of the command after --.
function _FUNCTION_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    set -e words[1..$at]
    complete -C (string join -- ' ' (string escape -- $words) (commandline -ct))
end

complete -c PROGRAM -f
complete -c PROGRAM -n '_FUNCTION ""' -s h -l help -d 'Print help'
complete -c PROGRAM -n '_FUNCTION ""' -s V -l version -d 'Print the version'
complete -c PROGRAM -n '_FUNCTION ""' -a help -d 'Print help of a subcommand'
complete -c PROGRAM -n '_FUNCTION help' -l man -d 'Print the manual page, in roff'
"#;

/// The rule of a flag, after its condition.
fn option(flag: &Flag) -> String {
    let short = flag.short.map_or(String::new(), |c| format!(" -s {}", char::from(c)));
    let values = Values::of_flag(flag).map_or(String::new(), |values| format!(" -r{}", value(&values)));
    format!("{short} -l {}{values} -d {}", flag.name, quoted(first_clause(flag.help)))
}

/// What can be completed in the place of a value.
fn value(values: &Values) -> String {
    match values {
        Values::Words(choices) => format!(" -f -a {}", quoted(&words(*choices))),
        Values::Files => " -F".into(),
        Values::Directories => " -f -a '(__fish_complete_directories)'".into(),
        Values::Processes => " -f -a '(__fish_complete_pids)'".into(),
        Values::Unknown => " -f".into(),
    }
}

/// Values with their meanings, which fish evaluates once more: `token\t"one row a token"`.
fn words(choices: Choices) -> String {
    let item = |(name, help): (&str, &str)| {
        let mut text = String::new();
        for c in first_clause(help).chars() {
            if matches!(c, '\\' | '"' | '$') {
                text.push('\\');
            }
            text.push(c);
        }
        format!("{name}\\t\"{text}\"")
    };
    choices.iter().map(item).collect::<Vec<_>>().join(" ")
}

/// A text in single quotes, in which a backslash escapes them and itself.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
