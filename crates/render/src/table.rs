//! Plain aligned tables for a terminal or a pipe.

use std::borrow::Cow;

use common::plain;

/// How a text view may be drawn.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    /// Columns of the terminal; `None` is a pipe or file, where nothing is cut off.
    pub width: Option<usize>,
    pub color: bool,
    /// Tables, headings and names with values are Markdown.
    pub markdown: bool,
}

impl Style {
    pub fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    /// The heading of a section.
    pub fn heading(&self, text: &str) -> String {
        if self.markdown { format!("## {}\n", plain::markdown(text)) } else { self.bold(text) }
    }

    pub fn dim(&self, text: &str) -> String {
        self.paint("2", text)
    }

    pub fn good(&self, text: &str) -> String {
        self.paint("32", text)
    }

    pub fn bad(&self, text: &str) -> String {
        self.paint("31", text)
    }

    /// Breaks a text at spaces so that it fits the terminal, later lines indented like the first; longer words, such as paths, stay
    /// whole. A pipe or a file gets one line.
    pub fn fold(&self, text: &str, indent: usize) -> String {
        let Some(room) = self.width.map(|w| w.saturating_sub(indent)).filter(|room| *room >= LAST_MIN) else {
            return text.to_owned();
        };
        let mut out = String::new();
        let mut used = 0;
        for (i, word) in text.split(' ').enumerate() {
            let len = word.chars().count();
            if i > 0 && used + 1 + len > room {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent));
                used = 0;
            } else if i > 0 {
                out.push(' ');
                used += 1;
            }
            out.push_str(word);
            used += len;
        }
        out
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// Text from a target or a trace made safe to print.
pub use common::plain::clean;

/// A column: numbers are right-aligned, text is left-aligned.
#[derive(Debug, Clone)]
pub struct Column {
    pub head: Cow<'static, str>,
    pub text: bool,
    /// On a narrow terminal, columns of the highest rank are dropped first; rank 0 always stays.
    pub rank: u8,
}

/// A number column.
pub fn number(head: &'static str, rank: u8) -> Column {
    Column { head: head.into(), text: false, rank }
}

/// A number column with a heading from the data.
pub fn named(head: &str, rank: u8) -> Column {
    Column { head: clean(head).into(), text: false, rank }
}

/// A text column.
pub fn text(head: &'static str) -> Column {
    Column { head: head.into(), text: true, rank: 0 }
}

/// Rows under headings. The last column takes the remaining space.
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: Vec<Column>) -> Table {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row; cells are cleaned here, so raw data can be passed.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|c| clean(c)).collect());
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The cells as shown; a row may be shorter than the columns.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// The table as lines that end in a newline, indented by two.
    pub fn render(&self, style: &Style) -> String {
        if style.markdown {
            return format!("\n{}\n", self.markdown(u8::MAX));
        }
        let widths: Vec<usize> = self.columns.iter().enumerate().map(|(i, c)| self.width(i, c)).collect();
        let shown = self.fitting(&widths, style.width);
        let mut out = style.dim(&self.line(&shown, &widths, style, |_, c| c.head.as_ref()));
        out.push('\n');
        for row in &self.rows {
            out.push_str(&self.line(&shown, &widths, style, |i, _| row.get(i).map_or("", String::as_str)));
            out.push('\n');
        }
        out
    }

    /// The table as comma-separated values under their headings (RFC 4180); a cell without a value is empty.
    pub fn csv(&self) -> String {
        let heads = self.columns.iter().map(|c| c.head.to_string()).collect();
        let mut out = String::new();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let cells: Vec<String> = row.iter().map(|cell| csv_cell(cell)).collect();
            out.push_str(&cells.join(","));
            out.push_str("\r\n");
        }
        out
    }

    /// The table in Markdown (GitHub's), with the columns up to this rank.
    pub fn markdown(&self, most_rank: u8) -> String {
        let shown = || self.columns.iter().enumerate().filter(|(_, c)| c.rank <= most_rank);
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut out = line(shown().map(|(_, c)| c.head.to_string()).collect());
        out += &line(shown().map(|(_, c)| if c.text { ":---" } else { "---:" }.to_owned()).collect());
        for row in &self.rows {
            let cell = |i: usize, c: &Column| match row.get(i) {
                Some(cell) if c.text => markdown_text(cell),
                cell => cell.cloned().unwrap_or_default(),
            };
            out += &line(shown().map(|(i, c)| cell(i, c)).collect());
        }
        out
    }

    fn width(&self, i: usize, column: &Column) -> usize {
        let cells = self.rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count());
        cells.max().unwrap_or(0).max(column.head.chars().count())
    }

    /// The columns that fit, dropping the highest ranks first. The last column may shrink to a readable minimum.
    fn fitting(&self, widths: &[usize], limit: Option<usize>) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let Some(limit) = limit else { return shown };
        let last = self.columns.len().saturating_sub(1);
        let room = |i: usize| widths.get(i).map_or(0, |w| if i == last { (*w).min(LAST_MIN) } else { *w });
        let rank = |i: usize| self.columns.get(i).map_or(0, |c| c.rank);
        while shown.iter().map(|i| room(*i) + 2).sum::<usize>() > limit {
            let Some(out) =
                shown.iter().rposition(|i| rank(*i) > 0 && shown.iter().all(|o| rank(*o) <= rank(*i)))
            else {
                break;
            };
            shown.remove(out);
        }
        shown
    }

    fn line<'t>(
        &'t self,
        shown: &[usize],
        widths: &[usize],
        style: &Style,
        cell: impl Fn(usize, &'t Column) -> &'t str,
    ) -> String {
        let mut line = String::new();
        let mut used = 0;
        for i in shown {
            let (Some(column), Some(width)) = (self.columns.get(*i), widths.get(*i)) else { continue };
            let value = cell(*i, column);
            let fill = width.saturating_sub(value.chars().count());
            line.push_str("  ");
            used += 2;
            if *i + 1 == self.columns.len() && column.text {
                let room = style.width.map_or(usize::MAX, |w| w.saturating_sub(used).max(LAST_MIN));
                line.push_str(&cut(value, room));
            } else if column.text {
                line.push_str(value);
                line.extend(std::iter::repeat_n(' ', fill));
            } else {
                line.extend(std::iter::repeat_n(' ', fill));
                line.push_str(value);
            }
            used += width;
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// A cell of [`Table::csv`]; `-` means that there is no value.
fn csv_cell(cell: &str) -> String {
    if cell == "-" { String::new() } else { csv_text(cell) }
}

/// Quotes text if necessary; a name that a spreadsheet would take for a formula gets a leading apostrophe.
pub(crate) fn csv_text(cell: &str) -> String {
    let formula = cell.starts_with(['=', '+', '-', '@']) && cell.parse::<f64>().is_err();
    match cell {
        _ if formula => format!("\"'{}\"", cell.replace('"', "\"\"")),
        _ if cell.contains([',', '"']) => format!("\"{}\"", cell.replace('"', "\"\"")),
        _ => cell.to_string(),
    }
}

/// Text from a target or a trace in Markdown: as code unless it is plain words, so that it is no markup, link or mention. What
/// would end the code or a cell of a table is escaped.
pub fn markdown_text(text: &str) -> String {
    if text.chars().all(|c| c.is_ascii_alphanumeric() || c == ' ') {
        return text.to_owned();
    }
    let escaped = clean(text).replace('`', "\\u{60}").replace('|', "\\u{7c}");
    format!("`{}`", cut(&escaped, MARKDOWN_MAX))
}

/// Most characters of a text in Markdown: a comment on GitHub has 65536.
const MARKDOWN_MAX: usize = 120;

/// Minimum width of the last column before other columns are dropped.
const LAST_MIN: usize = 16;

/// A value cut to the available width, in characters.
pub(super) fn cut(value: &str, room: usize) -> String {
    if value.chars().count() <= room {
        return value.to_string();
    }
    value.chars().take(room.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut t = Table::new(vec![number("ms", 0), number("max", 2), number("calls", 1), text("op")]);
        t.row(vec!["1.5".into(), "9".into(), "10".into(), "MUL_MAT_OF_A_RATHER_LONG_NAME".into()]);
        t.row(vec!["12.5".into(), "8".into(), "1".into(), "a\x1b[31m\u{202e}".into()]);
        t
    }

    #[test]
    fn long_text_wraps_under_itself() {
        let style = Style { width: Some(40), ..Style::default() };
        let text = style.fold("one two three four five six seven", 16);
        assert_eq!(text, "one two three four five\n                six seven");
        assert_eq!(style.fold("  a", 16), "  a");
        assert_eq!(
            style.fold("a /path/that/is/longer/than/a/line", 16),
            "a\n                /path/that/is/longer/than/a/line"
        );
        assert_eq!(Style::default().fold("a b", 16), "a b");
    }

    #[test]
    fn columns_line_up_and_data_is_escaped() {
        let want = "    ms  max  calls  op\n   1.5    9     10  MUL_MAT_OF_A_RATHER_LONG_NAME\n  \
                    12.5    8      1  a\\u{1b}[31m\\u{202e}\n";
        assert_eq!(sample().render(&Style::default()), want);
    }

    #[test]
    fn as_csv_every_cell_is_data() {
        let mut t = Table::new(vec![number("ms", 0), text("op, name")]);
        t.row(vec!["-1.5".into(), "a\"b, c".into()]);
        t.row(vec!["-".into(), "=cmd\n".into()]);
        assert_eq!(t.csv(), "ms,\"op, name\"\r\n-1.5,\"a\"\"b, c\"\r\n,\"'=cmd\\n\"\r\n");
    }

    #[test]
    fn in_markdown_no_cell_is_markup() {
        let mut t = Table::new(vec![number("ms", 0), number("q", 3), text("verdict"), text("name")]);
        t.row(vec!["-1.5".into(), "1".into(), "slower".into(), "@all <b>| `x` [a](b)\\\u{202e}\n#1".into()]);
        t.row(vec!["-".into()]);
        let want = "| ms | verdict | name |\n| ---: | :--- | :--- |\n\
                    | -1.5 | slower | `@all <b>\\u{7c} \\u{60}x\\u{60} [a](b)\\\\u{202e}\\n#1` |\n| - |  |  |\n";
        assert_eq!(t.markdown(2), want);
        assert_eq!(markdown_text(&"é".repeat(500)).chars().count(), 122);
    }

    #[test]
    fn a_narrow_terminal_loses_the_least_important_columns() {
        let out = sample().render(&Style { width: Some(31), ..Style::default() });
        assert_eq!(out.lines().next(), Some("    ms  calls  op"));
        assert!(out.lines().all(|l| l.chars().count() <= 31), "{out}");
        let out = sample().render(&Style { width: Some(5), ..Style::default() });
        assert_eq!(out.lines().next(), Some("    ms  op"));
    }

    #[test]
    fn a_table_in_markdown_has_its_columns_and_no_more() {
        let mut table = Table::new(vec![number("ms", 0), text("name")]);
        table.row(vec!["1.5".into(), "a|b".into()]);
        table.row(vec!["2".into()]);
        let style = Style { markdown: true, ..Style::default() };
        assert_eq!(
            table.render(&style),
            "\n| ms | name |\n| ---: | :--- |\n| 1.5 | `a\\u{7c}b` |\n| 2 |  |\n\n"
        );
    }
}
