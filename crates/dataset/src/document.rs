//! The part of docs/DATASET.md that describes the columns.

use std::fmt::Write;

use crate::TABLES;

/// All tables and their columns, in Markdown.
pub fn markdown() -> String {
    let mut out = String::new();
    for table in TABLES {
        let _ = write!(
            out,
            "### `{}`\n\nA row is {}.\n\n| column | type | |\n|---|---|---|\n",
            table.name, table.about
        );
        for c in table.columns {
            let null = if c.null { "" } else { " not null" };
            let _ = writeln!(out, "| `{}` | {}{null} | {} |", c.name, c.kind.sql(), c.about);
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the page; UPDATE_SNAPSHOTS=1 writes it there instead.
    #[test]
    fn the_page_describes_the_tables_as_they_are() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/DATASET.md");
        let text = std::fs::read_to_string(&page).unwrap();
        let (before, rest) = text.split_once("<!-- tables -->\n").unwrap();
        let (_, after) = rest.split_once("<!-- end of tables -->\n").unwrap();
        let now = format!("{before}<!-- tables -->\n{}<!-- end of tables -->\n{after}", markdown());
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&page, &now).unwrap();
        } else {
            assert!(text == now, "docs/DATASET.md differs from the tables: run with UPDATE_SNAPSHOTS=1");
        }
    }
}
