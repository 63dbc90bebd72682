//! Manual pages in roff, with the macros of man(7), from the tables that the help is made of: one of the program, and
//! one of each subcommand (`profinfer help --man [SUBCOMMAND]`).

use super::args::{Argument, Choices, Command, Flag};
use super::help;
use super::program::Program;

/// Maximum length of a line of text in the source.
const LINE: usize = 78;

/// The page of the program: its subcommands, and what applies to all of them.
pub fn of_program(program: &Program, date: &str) -> String {
    let mut page = Page::new(program, program.name, date);
    page.name(program.name, program.about.trim_end_matches('.'));
    page.section("SYNOPSIS");
    page.request(&format!("{} \\fISUBCOMMAND\\fR [\\fIARGUMENTS\\fR]", bold(program.name)));
    page.section("DESCRIPTION");
    page.text(&format!("{} Each subcommand has a page of its own.", program.about));
    page.section("SUBCOMMANDS");
    for command in program.commands {
        page.entry(&reference(program, command), command.about);
    }
    page.section("OPTIONS");
    for (name, text) in help::OPTIONS {
        page.entry(&bold(name), text);
    }
    page.section("EXIT STATUS");
    page.table(help::EXITS);
    page.named("ENVIRONMENT", program.environment);
    page.named("FILES", program.files);
    page.section("EXAMPLES");
    page.verbatim(program.examples);
    page.see_also(program.commands.iter().map(|c| reference(program, c)));
    page.out
}

/// The page of a subcommand.
pub fn of_command(program: &Program, command: &Command, date: &str) -> String {
    let name = page_name(program, command);
    let mut page = Page::new(program, &name, date);
    page.name(&name, command.about);
    page.section("SYNOPSIS");
    for (i, form) in command.usage.iter().enumerate() {
        if i > 0 {
            page.request(".br");
        }
        page.request(&format!("{} {}", bold(&format!("{} {}", program.name, command.name)), escaped(form)));
    }
    page.section("DESCRIPTION");
    page.text(&format!("{}.\n\n{}", command.about, command.text));
    if command.arguments.len() + usize::from(command.behind.is_some()) > 0 {
        page.section("ARGUMENTS");
        for Argument { name, help } in command.arguments.iter().chain(&command.behind) {
            page.entry(&italic(name), help);
            page.choices(program.choices_of(command, name));
        }
    }
    page.section("OPTIONS");
    for (group, flags) in help::visible(command) {
        if group.title != "Options" {
            page.request(&format!(".SS {}", escaped(group.title)));
        }
        flags.iter().for_each(|flag| page.flag(flag));
    }
    if !command.notes.is_empty() {
        page.section("NOTES");
        page.text(command.notes);
    }
    page.section("EXIT STATUS");
    page.table(command.exits);
    if command.has_layers() {
        page.section("ENVIRONMENT");
        page.entry(
            &format!("{}\\fIOPTION\\fR", bold("PROFINFER_")),
            "Value of the option of this name, in capitals and with _ for -; the command line overrides it",
        );
    }
    page.section("EXAMPLES");
    page.verbatim(command.examples);
    let others = program.commands.iter().filter(|c| c.name != command.name);
    let program_page = format!("{}(1)", bold(program.name));
    page.see_also(std::iter::once(program_page).chain(others.map(|c| reference(program, c))));
    page.out
}

/// `profinfer-record`: what `man` knows the page by.
fn page_name(program: &Program, command: &Command) -> String {
    format!("{}-{}", program.name, command.name)
}

pub fn reference(program: &Program, command: &Command) -> String {
    format!("{}(1)", bold(&page_name(program, command)))
}

/// The date of a page, `2026-11-25`: that of SOURCE_DATE_EPOCH, so that the same sources give the same bytes, or
/// today's.
pub fn date(source_date_epoch: Option<&str>, now: u64) -> String {
    let seconds = source_date_epoch.and_then(|text| text.parse().ok()).unwrap_or(now);
    common::calendar::day(seconds)
}

/// Text that roff prints as it is: what would be a request, an escape sequence or a typographic character is escaped.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let mut starts = true;
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\(rs"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '"' => out.push_str("\\(dq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            // At the start of a line, a dot makes it a request.
            '.' if starts => out.push_str("\\&."),
            ' '..='\x7e' | '\n' => out.push(c),
            other => out.push_str(&format!("\\[u{:04X}]", u32::from(other))),
        }
        starts = c == '\n';
    }
    out
}

pub fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", escaped(text))
}

pub fn italic(text: &str) -> String {
    format!("\\fI{}\\fR", escaped(text))
}

/// A page being written.
struct Page {
    out: String,
}

impl Page {
    fn new(program: &Program, name: &str, date: &str) -> Page {
        let title = escaped(&name.to_uppercase());
        let version = escaped(&format!("{} {}", program.name, program.version));
        Page { out: format!(".TH {title} 1 {date} \"{version}\" \"User Commands\"\n") }
    }

    /// A line that is roff already.
    fn request(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn section(&mut self, title: &str) {
        self.request(&format!(".SH {title}"));
    }

    fn name(&mut self, name: &str, about: &str) {
        self.section("NAME");
        self.request(&format!("{} \\- {}", escaped(name), escaped(about)));
    }

    /// A tag that is roff already, and a text.
    fn entry(&mut self, tag: &str, text: &str) {
        self.request(".TP");
        self.request(tag);
        self.filled(text);
    }

    fn table(&mut self, rows: &[(&str, &str)]) {
        rows.iter().for_each(|(name, text)| self.entry(&bold(name), text));
    }

    /// A section of names with texts, if there are any.
    fn named(&mut self, title: &str, rows: &[(&str, &str)]) {
        if !rows.is_empty() {
            self.section(title);
            self.table(rows);
        }
    }

    fn flag(&mut self, flag: &Flag) {
        let mut tag =
            flag.short.map_or(String::new(), |c| format!("{}, ", bold(&format!("-{}", char::from(c)))));
        tag.push_str(&bold(&format!("--{}", flag.name)));
        if !flag.value.is_empty() {
            tag.push(' ');
            tag.push_str(&italic(flag.value));
        }
        self.entry(&tag, &help::with_default(flag));
        self.choices(flag.choices);
    }

    /// Values below the entry that they belong to.
    fn choices(&mut self, choices: Choices) {
        if !choices.is_empty() {
            self.request(".RS");
            choices.iter().for_each(|(name, text)| self.entry(&bold(name), text));
            self.request(".RE");
        }
    }

    /// One paragraph, in lines that are not too long.
    fn filled(&mut self, text: &str) {
        let mut line = String::new();
        for word in text.split_whitespace() {
            let starts = line.is_empty();
            if !starts && line.len() + 1 + escaped(word).len() > LINE {
                self.request(&escaped(&line));
                line.clear();
            } else if !starts {
                line.push(' ');
            }
            line.push_str(word);
        }
        if !line.is_empty() {
            self.request(&escaped(&line));
        }
    }

    /// Paragraphs, as in the help: separated by empty lines; a line that begins with a space is kept as it is.
    fn text(&mut self, text: &str) {
        let (mut paragraph, mut kept) = (String::new(), String::new());
        let mut first = true;
        for line in text.lines().chain([""]) {
            if line.starts_with(' ') {
                self.paragraph(&mut paragraph, &mut first);
                kept.push_str(line);
                kept.push('\n');
                continue;
            }
            if !kept.is_empty() {
                self.verbatim(&std::mem::take(&mut kept));
            }
            match line.is_empty() {
                true => self.paragraph(&mut paragraph, &mut first),
                false => {
                    paragraph.push_str(line);
                    paragraph.push(' ');
                }
            }
        }
    }

    fn paragraph(&mut self, text: &mut String, first: &mut bool) {
        if text.is_empty() {
            return;
        }
        if !std::mem::take(first) {
            self.request(".PP");
        }
        self.filled(text);
        text.clear();
    }

    /// Lines as they are.
    fn verbatim(&mut self, text: &str) {
        self.request(".nf");
        text.lines().for_each(|line| self.request(&escaped(line)));
        self.request(".fi");
    }

    fn see_also(&mut self, pages: impl Iterator<Item = String>) {
        self.section("SEE ALSO");
        let mut pages = pages.peekable();
        while let Some(page) = pages.next() {
            let comma = if pages.peek().is_some() { "," } else { "" };
            self.request(&format!("{page}{comma}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_printed_as_it_is() {
        for (text, roff) in [
            ("plain text", "plain text"),
            (".TH is no title here", "\\&.TH is no title here"),
            ("'br is no break", "\\(aqbr is no break"),
            ("one\n.two\n'three", "one\n\\&.two\n\\(aqthree"),
            ("3.5 ms... done.", "3.5 ms... done."),
            ("--off-cpu", "\\-\\-off\\-cpu"),
            ("C:\\n", "C:\\(rsn"),
            ("\\fBbold", "\\(rsfBbold"),
            ("`a` ^b ~c \"d\"", "\\(gaa\\(ga \\(hab \\(tic \\(dqd\\(dq"),
            ("5 µs\t\x1b", "5 \\[u00B5]s\\[u0009]\\[u001B]"),
        ] {
            assert_eq!(escaped(text), roff, "{text}");
        }
    }

    #[test]
    fn a_page_has_the_date_of_its_sources() {
        assert_eq!(date(Some("1763942400"), 0), "2025-11-24");
        assert_eq!(date(None, 86_400), "1970-01-02");
        assert_eq!(date(Some("today"), 0), "1970-01-01");
    }
}
