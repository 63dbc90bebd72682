//! Completion in bash, without the package bash-completion; with it, the command after `--` is completed by its own
//! rules.

use super::parts::{Values, arguments, flags, function, has_command};
use crate::args::Command;
use crate::program::Program;

pub fn script(program: &Program) -> String {
    let mut out = format!("# bash completion for {0}, printed by: {0} completions bash\n\n", program.name);
    let function = function(program);
    let names: Vec<&str> = program.commands.iter().map(|c| c.name).collect();
    out.push_str(&HEAD.replace("FUNCTION", &function).replace("NAMES", &names.join(" ")));
    program.commands.iter().for_each(|c| of_command(&mut out, program, c));
    out.push_str(&TAIL.replace("FUNCTION", &function).replace("PROGRAM", program.name));
    out
}

/// Finds the word to complete and, if it is a value, its flag. Bash splits `--flag=value` at the equals sign.
const HEAD: &str = r#"FUNCTION() {
    local cur=${COMP_WORDS[COMP_CWORD]} before='' flags='' words='' kind='' other='' i
    ((COMP_CWORD > 1)) && before=${COMP_WORDS[COMP_CWORD - 1]}
    if [[ $cur == = ]]; then
        cur=''
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W 'NAMES help --help --version' -- "$cur")
        return
    fi
    case ${COMP_WORDS[1]} in
    help)
        flags='--man --help'
        words='NAMES'
        ;;
"#;

/// Completes the word. A flag's value has a kind, even if nothing can be offered for it.
const TAIL: &str = r#"    esac
    if [[ -z $kind && $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$cur")
        return
    fi
    [[ -n $words ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    case ${kind:-$other} in
    file)
        compopt -o filenames 2>/dev/null
        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$cur")
        ;;
    directory)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$cur")
        ;;
    process) mapfile -t COMPREPLY < <(compgen -W "$(cd /proc && echo [0-9]*)" -- "$cur") ;;
    esac
}

# The command that begins at this word.
FUNCTION_command() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$cur")
    else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
}

complete -F FUNCTION PROGRAM
"#;

fn of_command(out: &mut String, program: &Program, command: &Command) {
    let mut line = |text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    line(&format!("    {})", command.name));
    if has_command(command) {
        line("        for ((i = 2; i < COMP_CWORD; i++)); do");
        line("            if [[ ${COMP_WORDS[i]} == -- ]]; then");
        line(&format!("                {}_command $((i + 1))", function(program)));
        line("                return");
        line("            fi");
        line("        done");
    }
    let mut names = Vec::new();
    let mut cases = Vec::new();
    for flag in flags(command) {
        let short = flag.short.map(|c| format!("-{}", char::from(c)));
        let forms: Vec<String> = short.into_iter().chain([format!("--{}", flag.name)]).collect();
        if let Some(values) = Values::of_flag(&flag) {
            cases.push(format!("        {}) {} ;;", forms.join(" | "), kind(&values)));
        }
        names.extend(forms);
    }
    line(&format!("        flags='{}'", names.join(" ")));
    for (_, values) in arguments(program, command) {
        match values {
            Values::Words(_) => line(&format!("        {}", kind(&values).replace("kind='word' ", ""))),
            _ => line(&format!("        other='{}'", kind_name(&values))),
        }
    }
    if !cases.is_empty() {
        line("        case $before in");
        cases.iter().for_each(|case| line(case));
        line("        esac");
    }
    line("        ;;");
}

/// Assignments for what can be completed.
fn kind(values: &Values) -> String {
    match values {
        Values::Words(choices) => {
            format!("kind='word' words='{}'", choices.names().collect::<Vec<_>>().join(" "))
        }
        other => format!("kind='{}' words=''", kind_name(other)),
    }
}

fn kind_name(values: &Values) -> &'static str {
    match values {
        Values::Words(_) => "word",
        Values::Files => "file",
        Values::Directories => "directory",
        Values::Processes => "process",
        Values::Unknown => "none",
    }
}
