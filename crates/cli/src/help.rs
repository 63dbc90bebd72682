//! Formats `--help` from a program's tables.
//!
//! `manual.rs` and `completions.rs` are made of the same tables.

use super::args::{Argument, Choices, Command, Flag, FlagGroup};
use super::program::Program;
use super::values::any_of;

/// Maximum line width: longer lines are hard to read.
pub const MOST: usize = 110;
/// Minimum line width: with less, each word would get its own line.
pub const LEAST: usize = 40;
/// Width if unknown.
const USUAL: usize = 100;
/// Indent of texts below a name, and maximum width of a name column with the texts next to it.
const BELOW: usize = 10;
const BESIDE: usize = 26;

pub const HELP: Flag = Flag::switch("help", "Print help (-h: summary, --help: everything)").short('h');

/// Options of a program itself.
pub const OPTIONS: &[(&str, &str)] = &[
    ("-h, --help", "Print help; after a subcommand, -h prints a summary and --help everything"),
    ("-V, --version", "Print the version"),
    ("help [--man] [SUBCOMMAND]", "Print help of a subcommand; with --man its manual page, in roff"),
];

/// Exit codes of a program itself.
pub const EXITS: &[(&str, &str)] =
    &[("0", "done"), ("1", "failed; the reason is on standard error, in one line"), ("2", "wrong usage")];

/// Width of the terminal on standard output, within bounds.
pub fn width() -> usize {
    terminal_size::terminal_size().map_or(USUAL, |(w, _)| usize::from(w.0).clamp(LEAST, MOST))
}

/// The help page of a subcommand: description, usage, arguments, options, examples, exit status.
pub fn page(program: &Program, command: &Command, width: usize) -> String {
    let mut page = HelpText { text: String::new(), width };
    page.paragraphs(&format!("{}.\n\n{}", command.about, command.text));
    page.usage(program, command);
    if command.arguments.len() + usize::from(command.behind.is_some()) > 0 {
        page.title("Arguments");
        for Argument { name, help } in command.arguments.iter().chain(&command.behind) {
            page.entry(name, help);
            page.choices(program.choices_of(command, name));
        }
    }
    for (group, flags) in visible(command) {
        page.title(group.title);
        flags.iter().for_each(|flag| page.flag(flag));
    }
    if !command.notes.is_empty() {
        page.text.push('\n');
        page.paragraphs(command.notes);
    }
    page.title("Exit status");
    page.table(command.exits);
    page.title("Examples");
    for line in command.examples.lines() {
        page.line(2, line);
    }
    page.text
}

/// Summary, usage and options, in one or two lines each.
pub fn summary(program: &Program, command: &Command, width: usize) -> String {
    let mut page = HelpText { text: String::new(), width };
    page.paragraphs(&format!("{}.", command.about));
    page.usage(program, command);
    for (group, flags) in visible(command) {
        page.title(group.title);
        let rows: Vec<(String, String)> = flags.iter().map(|f| (label(f), brief(f))).collect();
        let rows: Vec<(&str, &str)> = rows.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        page.table(&rows);
    }
    page.text.push('\n');
    page.paragraphs(&format!("For details and examples, run: {} {} --help", program.name, command.name));
    page.text
}

/// The help of the program itself.
pub fn overview(program: &Program, width: usize) -> String {
    let mut page = HelpText { text: String::new(), width };
    page.paragraphs(program.about);
    page.text.push_str("\nUsage: ");
    page.text.push_str(program.name);
    page.text.push_str(" SUBCOMMAND [ARGUMENTS]\n");
    page.title("Subcommands");
    let rows: Vec<(&str, &str)> = program.commands.iter().map(|c| (c.name, c.about)).collect();
    page.table(&rows);
    page.title("Options");
    page.table(OPTIONS);
    page.title("Exit status");
    page.table(EXITS);
    page.title("Examples");
    for line in program.examples.lines() {
        page.line(2, line);
    }
    page.text
}

/// A text wrapped at this width.
pub fn filled(text: &str, width: usize) -> String {
    let mut page = HelpText { text: String::new(), width };
    page.wrapped(text, 0);
    page.text
}

/// The groups of a subcommand with their visible flags; the last group includes `--help`.
pub fn visible(command: &Command) -> impl Iterator<Item = (&'static FlagGroup, Vec<Flag>)> {
    let last = command.groups.len();
    command.groups.iter().zip(1..).map(move |(group, i)| {
        let flags = group.flags.iter().copied().filter(|f| !f.hidden);
        (group, flags.chain((i == last).then_some(HELP)).collect())
    })
}

/// `-o, --output FILE`
pub fn label(flag: &Flag) -> String {
    let mut text = flag.short.map_or("    ".to_owned(), |c| format!("-{}, ", char::from(c)));
    text.push_str("--");
    text.push_str(flag.name);
    if !flag.value.is_empty() {
        text.push(' ');
        text.push_str(flag.value);
    }
    text
}

pub fn with_default(flag: &Flag) -> String {
    match flag.default {
        "" => flag.help.to_owned(),
        value => format!("{} [default: {value}]", flag.help),
    }
}

fn brief(flag: &Flag) -> String {
    match flag.choices.is_empty() {
        true => with_default(flag),
        false => format!("{}: {}", with_default(flag), any_of(flag.choices.names())),
    }
}

/// A text built line by line.
struct HelpText {
    text: String,
    width: usize,
}

impl HelpText {
    fn title(&mut self, title: &str) {
        self.text.push('\n');
        self.text.push_str(title);
        self.text.push_str(":\n");
    }

    fn line(&mut self, indent: usize, text: &str) {
        self.indent(indent);
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn indent(&mut self, columns: usize) {
        self.text.extend(std::iter::repeat_n(' ', columns));
    }

    fn usage(&mut self, program: &Program, command: &Command) {
        for (i, form) in command.usage.iter().enumerate() {
            let before = if i == 0 { "\nUsage:" } else { "      " };
            let line = format!("{before} {} {} {form}\n", program.name, command.name);
            self.text.push_str(&line);
        }
    }

    fn flag(&mut self, flag: &Flag) {
        self.entry(&label(flag), &with_default(flag));
        self.choices(flag.choices);
    }

    fn choices(&mut self, choices: Choices) {
        let widest = choices.names().map(str::len).max().unwrap_or(0);
        for (name, help) in choices.iter() {
            let before = format!("{name:widest$}  ");
            self.indent(BELOW + 2);
            self.text.push_str(&before);
            self.wrapped(help, BELOW + 2 + before.len());
        }
    }

    /// A name, with its text on the lines below.
    fn entry(&mut self, name: &str, help: &str) {
        self.line(2, name);
        self.indent(BELOW);
        self.wrapped(help, BELOW);
    }

    /// Names with their texts next to them, or below if there is no room.
    fn table(&mut self, rows: &[(&str, &str)]) {
        let room = BESIDE.min(self.width / 3);
        let column = rows.iter().map(|r| r.0.len()).filter(|n| *n <= room).max().unwrap_or(0) + 4;
        for (name, text) in rows {
            self.indent(2);
            self.text.push_str(name);
            if name.len() <= room {
                self.indent(column - 2 - name.len());
            } else {
                self.text.push('\n');
                self.indent(column);
            }
            self.wrapped(text, column);
        }
    }

    /// Paragraphs; a line that begins with a space is kept as it is.
    fn paragraphs(&mut self, text: &str) {
        let mut paragraph = String::new();
        for line in text.lines().chain([""]) {
            let as_it_is = line.is_empty() || line.starts_with(' ');
            if as_it_is && !paragraph.is_empty() {
                self.wrapped(&std::mem::take(&mut paragraph), 0);
            }
            match as_it_is {
                true => self.line(0, line),
                false => {
                    paragraph.push_str(line);
                    paragraph.push(' ');
                }
            }
        }
        // The next one adds its own separator.
        let end = self.text.trim_end().len();
        self.text.truncate(end);
        self.text.push('\n');
    }

    /// Wraps words from column `indent` on, where the line already is, to the end of a line.
    fn wrapped(&mut self, text: &str, indent: usize) {
        let mut column = indent;
        for word in text.split_whitespace() {
            let letters = word.chars().count();
            if column > indent && column + 1 + letters > self.width {
                self.text.push('\n');
                self.indent(indent);
                column = indent;
            }
            if column > indent {
                self.text.push(' ');
                column += 1;
            }
            self.text.push_str(word);
            column += letters;
        }
        self.text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_filled_and_indented_lines_stay() {
        let mut page = HelpText { text: String::new(), width: 20 };
        page.paragraphs(
            "one two three\nfour five six seven\n\nStates:\n  ok        there it is as it was\nend\n",
        );
        let expected =
            "one two three four\nfive six seven\n\nStates:\n  ok        there it is as it was\nend\n";
        assert_eq!(page.text, expected);
    }

    #[test]
    fn texts_stand_beside_short_names_and_below_long_ones() {
        let mut page = HelpText { text: String::new(), width: 40 };
        page.table(&[("-a", "text that is long enough to wrap"), ("--a-long-name FILE", "below")]);
        let expected = "  -a  text that is long enough to wrap\n  --a-long-name FILE\n      below\n";
        assert_eq!(page.text, expected);
    }
}
