//! Completion in zsh, by its function `_arguments`.

use super::parts::{Values, arguments, first_clause, flags, function, has_command, quoted};
use crate::args::{Choices, Command, Flag};
use crate::program::Program;

pub fn script(program: &Program) -> String {
    let (name, function) = (program.name, function(program));
    let mut out =
        format!("#compdef {name}\n# zsh completion for {name}, printed by: {name} completions zsh\n\n");
    out.push_str(&HEAD.replace("FUNCTION", &function));
    for command in program.commands {
        let item = format!("{}:{}", command.name, command.about);
        out.push_str(&format!("        {}\n", quoted(&item)));
    }
    out.push_str(SUBCOMMANDS);
    program.commands.iter().for_each(|c| of_command(&mut out, program, c));
    out.push_str(&TAIL.replace("FUNCTION", &function).replace("PROGRAM", name));
    out
}

const HEAD: &str = r#"FUNCTION() {
    local -a subcommands=(
        'help:Print help of a subcommand'
"#;

/// Below a subcommand, `_arguments` sees a command line that begins with it.
const SUBCOMMANDS: &str = r#"    )
    if (( CURRENT == 2 )); then
        _arguments '(- :)'{-h,--help}'[Print help]' '(- :)'{-V,--version}'[Print the version]' \
            '1: :{_describe -t subcommands subcommand subcommands}'
        return
    fi
    shift words
    (( CURRENT-- ))
    local at=${words[(i)--]}
    case $words[1] in
    help)
        _arguments '--man[Print the manual page, in roff]' ':subcommand:{_describe -t subcommands subcommand subcommands}'
        ;;
"#;

/// Works as a file in `$fpath`, and when it is sourced.
const TAIL: &str = r#"    esac
}

if [[ $funcstack[1] == FUNCTION ]]; then
    FUNCTION "$@"
else
    compdef FUNCTION PROGRAM
fi
"#;

fn of_command(out: &mut String, program: &Program, command: &Command) {
    out.push_str(&format!("    {})\n", command.name));
    if has_command(command) {
        out.push_str("        if (( at < CURRENT )); then\n");
        out.push_str("            shift $at words\n            (( CURRENT -= at ))\n");
        out.push_str("            _normal\n            return\n        fi\n");
    }
    out.push_str("        _arguments -s -S");
    let specs = flags(command).map(|flag| option(&flag));
    let places = arguments(program, command).map(|(argument, values)| {
        let repeated = if argument.name.ends_with("...") { "*" } else { "" };
        quoted(&format!("{repeated}:{}:{}", escaped(argument.name), action(&values)))
    });
    for spec in specs.chain(places) {
        out.push_str(" \\\n            ");
        out.push_str(&spec);
    }
    out.push_str("\n        ;;\n");
}

/// One option, in both forms: `'(-o --output)'{-o+,--output=}'[help]:FILE:_files'`.
fn option(flag: &Flag) -> String {
    let help = format!("[{}]", escaped(first_clause(flag.help)));
    let (long, values) = (format!("--{}", flag.name), Values::of_flag(flag));
    let (joined, value) = match &values {
        None => (["", ""], String::new()),
        Some(values) => (["+", "="], format!(":{}:{}", escaped(flag.value), action(values))),
    };
    let text = quoted(&format!("{help}{value}"));
    let repeated = if flag.many { "'*'" } else { "" };
    match flag.short.map(char::from) {
        None => format!("{repeated}{long}{}{text}", joined[1]),
        Some(c) => {
            let names = format!("{{-{c}{},{long}{}}}", joined[0], joined[1]);
            let before = if flag.many { repeated.to_owned() } else { format!("'(-{c} {long})'") };
            format!("{before}{names}{text}")
        }
    }
}

/// Text of a specification, in which brackets and colons have a meaning.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '\\' | '[' | ']' | ':') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn action(values: &Values) -> String {
    match values {
        Values::Words(choices) => words(*choices),
        Values::Files => "_files".into(),
        Values::Directories => "_files -/".into(),
        Values::Processes => "_pids".into(),
        Values::Unknown => " ".into(),
    }
}

/// Values with their meanings, which zsh evaluates once more: `((token\:"one row a token"))`.
fn words(choices: Choices) -> String {
    let item = |(name, help): (&str, &str)| {
        let mut text = String::new();
        for c in first_clause(help).chars() {
            if matches!(c, '\\' | '"' | '$' | '`' | ':') {
                text.push('\\');
            }
            text.push(c);
        }
        format!("{name}\\:\"{text}\"")
    };
    format!("(({}))", choices.iter().map(item).collect::<Vec<_>>().join(" "))
}
