//! The manual pages of both programs.

use cli::args::Flag;
use cli::manual::{bold, italic, of_command, of_program, reference};
use ggml_runner::RUNNER;

use crate::PROFINFER;

/// A page without its markup, in one line.
fn bare(page: &str) -> String {
    let mut text = page.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "").replace("\\&", "");
    for (roff, c) in [("\\-", "-"), ("\\(aq", "'"), ("\\(dq", "\""), ("\\(ga", "`"), ("\\(ti", "~")] {
        text = text.replace(roff, c);
    }
    text.replace("\\(ha", "^").replace("\\(rs", "\\").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_flag_is_on_its_page_once() {
    for program in [&PROFINFER, &RUNNER] {
        for command in program.commands {
            let page = of_command(program, command, "2026-11-25");
            let tags = |flag: &Flag| {
                let tag = bold(&format!("--{}", flag.name));
                let value =
                    if flag.value.is_empty() { String::new() } else { format!(" {}", italic(flag.value)) };
                let short = flag.short.map(|c| format!("{}, ", bold(&format!("-{}", char::from(c)))));
                let line = format!("{}{tag}{value}", short.unwrap_or_default());
                page.lines().filter(|l| *l == line).count()
            };
            let text = bare(&page);
            for flag in command.flags() {
                assert_eq!(tags(flag), usize::from(!flag.hidden), "--{} in:\n{page}", flag.name);
                assert!(flag.hidden || text.contains(&bare(flag.help)), "--{} in:\n{text}", flag.name);
                for (name, help) in flag.choices.iter().filter(|_| !flag.hidden) {
                    assert!(text.contains(&bare(&format!(".TP {name} {help}"))), "{name} in:\n{text}");
                }
            }
            for (code, meaning) in command.exits {
                assert!(text.contains(&bare(&format!(".TP {code} {meaning}"))), "{code} in:\n{text}");
            }
        }
    }
}

#[test]
fn pages_have_their_sections_in_order() {
    for program in [&PROFINFER, &RUNNER] {
        let page = of_program(program, "2026-11-25");
        for command in program.commands {
            assert!(page.contains(&format!("\n{}\n", reference(program, command))), "{page}");
        }
        let pages = program.commands.iter().map(|c| of_command(program, c, "2026-11-25"));
        for page in pages.chain([page]) {
            let mut at = 0;
            for title in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]
            {
                let section = format!("\n.SH {title}\n");
                let next = page.find(&section).unwrap_or_else(|| panic!("{title} in:\n{page}"));
                assert!(next > at, "{title} in:\n{page}");
                at = next;
            }
            assert!(page.is_ascii() && page.lines().all(|l| !l.is_empty() && l != "."), "{page}");
        }
    }
}
