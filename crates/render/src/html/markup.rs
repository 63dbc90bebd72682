//! Elements of a page: text, facts, tables, sections. All text from a trace passes through [`text`].

use std::io::{self, Write};

use crate::section::SectionItem;
use crate::table::{Table, cut};
use analysis::sums::tables::{GAPS_ROW, OTHER_ROW, WAIT_ROW};
use common::plain::escape;
use serde::Serialize;

/// Text from a trace, safe within an element and within an attribute's double quotes.
pub use crate::dag::xml as text;

/// Rows that make a table add up; they stay at its end.
const CLOSING: [&str; 3] = [WAIT_ROW, GAPS_ROW, OTHER_ROW];
/// A table with more rows than this is initially closed.
const LONG: usize = 40;

/// From this many rows of zeros on they are left out.
const ZEROS: usize = 3;
/// Headings of columns that name ops.
const OPS: [&str; 5] = ["op", "name", "layer", "kernel", "tensor"];

/// Maximum length of a fact, in letters.
const LONGEST: usize = 1000;

/// Begins a section with its heading; [`end`] closes it.
pub fn section(out: &mut dyn Write, id: &str, heading: &str) -> io::Result<()> {
    writeln!(out, "<section id=\"{id}\" aria-labelledby=\"{id}-h\"><h2 id=\"{id}-h\">{}</h2>", text(heading))
}

pub fn end(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "</section>")
}

/// A heading within a section.
pub fn heading(out: &mut dyn Write, title: &str) -> io::Result<()> {
    writeln!(out, "<h3>{}</h3>", text(title))
}

/// A paragraph.
pub fn say(out: &mut dyn Write, what: &str) -> io::Result<()> {
    writeln!(out, "<p>{}</p>", text(what))
}

/// Replaces a drawing with the reason for its absence.
pub fn gap(out: &mut dyn Write, why: &str) -> io::Result<()> {
    writeln!(out, "<p class=\"gap\">{}</p>", text(why))
}

/// Facts and tables in the form used by the report. A fact without a name continues the one before; one without a
/// value is omitted.
pub fn lines(out: &mut dyn Write, all: &[SectionItem]) -> io::Result<()> {
    let mut open = false;
    for line in all {
        match line {
            SectionItem::Fact(_, value) if value.is_empty() => {}
            SectionItem::Fact(name, value) => {
                if !open {
                    writeln!(out, "<dl>")?;
                    open = true;
                }
                if !name.is_empty() {
                    write!(out, "<dt>{}</dt>", text(name))?;
                }
                writeln!(out, "<dd>{}</dd>", text(&cut(value, LONGEST)))?;
            }
            SectionItem::Table(t) => {
                if std::mem::take(&mut open) {
                    writeln!(out, "</dl>")?;
                }
                table(out, t, t.columns().first().map_or("", |c| &*c.head), "", true)?;
            }
        }
    }
    if open { writeln!(out, "</dl>") } else { Ok(()) }
}

/// A sortable table; the column `head` names the rows and comes first. A caption that is not `shown` is for
/// screen readers.
pub fn table(out: &mut dyn Write, t: &Table, head: &str, caption: &str, shown: bool) -> io::Result<()> {
    let named = t.columns().iter().position(|c| c.head == head).unwrap_or(0);
    let order: Vec<usize> =
        std::iter::once(named).chain((0..t.columns().len()).filter(|i| *i != named)).collect();
    let label = if caption.is_empty() { head } else { caption };
    let zeros = t.rows().iter().filter(|row| only_zeros(t, row, named)).count();
    // A few zeros are no clutter.
    let left_out = if zeros >= ZEROS { zeros } else { 0 };
    if left_out > 0 && left_out == t.rows().len() {
        return writeln!(out, "<p class=\"more\">Left out: all {left_out} rows of this table are 0.</p>");
    }
    // The script filters rows of ops by name.
    let ops = if t.columns().iter().any(|c| OPS.contains(&&*c.head)) { " data-ops" } else { "" };
    writeln!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table class=\"sortable\"{ops}>",
        text(label)
    )?;
    if !caption.is_empty() {
        let class = if shown { "" } else { " class=\"quiet\"" };
        writeln!(out, "<caption{class}>{}</caption>", text(caption))?;
    }
    write!(out, "<thead><tr>")?;
    for column in order.iter().filter_map(|i| t.columns().get(*i)) {
        let class = if column.text { "" } else { " class=\"r\"" };
        write!(out, "<th scope=\"col\"{class}>{}</th>", text(&column.head))?;
    }
    writeln!(out, "</tr></thead><tbody>")?;
    for row in t.rows().iter().filter(|row| left_out == 0 || !only_zeros(t, row, named)) {
        let cell = |i: usize| row.get(i).map_or("", String::as_str);
        let last = CLOSING.contains(&cell(named));
        write!(out, "{}", if last { "<tr class=\"end\">" } else { "<tr>" })?;
        for i in &order {
            let class = if t.columns().get(*i).is_some_and(|c| c.text) { "" } else { " class=\"r\"" };
            let (tag, scope) = if *i == named { ("th", " scope=\"row\"") } else { ("td", "") };
            write!(out, "<{tag}{scope}{class}>{}</{tag}>", text(cell(*i)))?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</tbody></table></div>")?;
    if left_out > 0 {
        writeln!(out, "<p class=\"more\">{left_out} rows in which every figure is 0 are left out.</p>")?;
    }
    Ok(())
}

/// Whether every figure of a row is 0, and it says nothing else; the name does not count. A figure that is not known
/// is not 0.
fn only_zeros(t: &Table, row: &[String], named: usize) -> bool {
    let zero = |cell: &str| cell.contains('0') && cell.chars().all(|c| matches!(c, '0' | '.'));
    let mut cells =
        t.columns().iter().zip(row).enumerate().filter(|(i, _)| *i != named).map(|(_, pair)| pair);
    let closes = row.get(named).is_some_and(|name| CLOSING.contains(&name.as_str()));
    let mut figures = 0;
    let plain = cells.all(|(column, cell)| match column.text {
        true => cell.is_empty() || cell == "-",
        false => {
            figures += 1;
            zero(cell)
        }
    });
    plain && figures > 0 && !closes
}

/// A table that opens with a click on its title; a short one may be open initially.
pub fn folded(out: &mut dyn Write, t: &Table, head: &str, title: &str, open: bool) -> io::Result<()> {
    let open = if open && t.rows().len() <= LONG { " open" } else { "" };
    writeln!(out, "<details{open}><summary>{}</summary>", text(title))?;
    table(out, t, head, title, false)?;
    writeln!(out, "</details>")
}

/// Begins a drawing of this size, with a name and a description for screen readers; `id` must be unique.
pub fn svg(out: &mut dyn Write, id: &str, size: (f64, f64), name: &str, what: &str) -> io::Result<()> {
    let (width, height) = size;
    writeln!(
        out,
        "<figure><svg class=\"chart\" id=\"{id}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
        text(name),
        text(what)
    )
}

/// Ends a drawing, with the caption below it.
pub fn svg_end(out: &mut dyn Write, caption: &str) -> io::Result<()> {
    writeln!(out, "</svg><figcaption>{}</figcaption></figure>", text(caption))
}

/// A value as JSON on one line that cannot close an element.
///
/// # Errors
/// The value cannot be serialized.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let plain = common::plain::json(value)?;
    let mut out = String::with_capacity(plain.len());
    for c in plain.chars() {
        // They are inside strings only.
        match c {
            '<' | '>' | '&' | '\'' => escape(&mut out, c),
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{number, text as words};
    use proptest::prelude::*;

    #[test]
    fn rows_have_their_name_first_and_closing_rows_are_marked() {
        let mut t = Table::new(vec![number("ms", 0), words("name")]);
        t.row(vec!["1.5".into(), "a<b".into()]);
        t.row(vec!["2".into(), "(gaps)".into()]);
        let mut out = Vec::new();
        table(&mut out, &t, "name", "Ops & \"more\"", true).unwrap();
        let html = String::from_utf8(out).unwrap();
        assert!(html.contains("aria-label=\"Ops &amp; &quot;more&quot;\""), "{html}");
        let head = "<th scope=\"col\">name</th><th scope=\"col\" class=\"r\">ms</th>";
        assert!(html.contains(head), "{html}");
        assert!(html.contains("<tr><th scope=\"row\">a&lt;b</th><td class=\"r\">1.5</td></tr>"), "{html}");
        assert!(html.contains("<tr class=\"end\"><th scope=\"row\">(gaps)"), "{html}");
    }

    #[test]
    fn rows_of_zeros_are_left_out_and_counted() {
        let page = |rows: &[[&str; 3]]| {
            let mut t = Table::new(vec![number("faults", 0), number("ms", 0), words("phase")]);
            rows.iter().for_each(|row| t.row(row.map(String::from).to_vec()));
            let mut out = Vec::new();
            table(&mut out, &t, "phase", "", false).unwrap();
            String::from_utf8(out).unwrap()
        };
        let zeros = [["0", "0.000", "a"], ["0", "0.0", "b"], ["0", "0", "c"]];
        let some = page(&[zeros[0], ["1", "0", "d"], zeros[1], ["0", "-", "e"], zeros[2]]);
        assert_eq!(some.matches("<tr>").count(), 3, "{some}");
        assert!(some.contains("3 rows in which every figure is 0 are left out."), "{some}");
        assert!(page(&zeros).contains("all 3 rows of this table are 0"));
        assert_eq!(page(&zeros[..2]).matches("<tr>").count(), 3);
    }

    proptest! {
        #[test]
        fn no_text_ends_a_block_of_data(value in any::<String>()) {
            let out = json(&value).unwrap();
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), value);
            let ends = ['<', '>', '&', '\'', '\n', '\r', '\u{2028}', '\u{2029}'];
            prop_assert!(!out.contains(ends));
        }
    }
}
