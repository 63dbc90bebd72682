//! Building blocks of text sections: titles, `name: value` lines, tables.

use std::io::{self, Write};

use super::table::{Style, Table, clean};
use common::plain;

pub fn title(out: &mut dyn Write, style: &Style, text: &str) -> io::Result<()> {
    writeln!(out, "\n{}", style.heading(&style.fold(&clean(text), 0)))
}

/// One `name: value` line; omitted if the value is empty.
pub fn fact(out: &mut dyn Write, style: &Style, name: &str, value: &str) -> io::Result<()> {
    match (value.is_empty(), style.markdown) {
        (true, _) => Ok(()),
        (false, true) => {
            let end = if name.is_empty() { "" } else { ": " };
            writeln!(out, "- {name}{end}{}", plain::markdown(value))
        }
        (false, false) => writeln!(out, "  {name:<12} {}", style.fold(&clean(value), 15)),
    }
}

/// One result: a title, an optional table, and notes below it.
pub(crate) struct Section {
    pub title: String,
    pub table: Option<Table>,
    pub notes: Vec<String>,
}

impl Section {
    pub fn nothing(title: String) -> Section {
        Section { title, table: None, notes: Vec::new() }
    }

    /// Writes it as text.
    pub fn write(&self, out: &mut dyn Write, style: &Style) -> io::Result<()> {
        title(out, style, &self.title)?;
        if let Some(table) = &self.table {
            write!(out, "{}", table.render(style))?;
        }
        self.notes.iter().try_for_each(|note| {
            writeln!(out, "{}", style.dim(&format!("  {}", style.fold(&clean(note), 2))))
        })
    }
}

/// An item of a section: a name with its value, or a table.
pub(crate) enum SectionItem {
    Fact(&'static str, String),
    Table(Table),
}

/// A [`SectionItem::Fact`].
pub(crate) fn said(name: &'static str, value: impl Into<String>) -> SectionItem {
    SectionItem::Fact(name, value.into())
}

/// Writes the items of a section.
pub(crate) fn lines(out: &mut dyn Write, all: &[SectionItem], style: &Style) -> io::Result<()> {
    all.iter().try_for_each(|line| match line {
        SectionItem::Fact(name, value) => fact(out, style, name, value),
        SectionItem::Table(table) => write!(out, "{}", table.render(style)),
    })
}
