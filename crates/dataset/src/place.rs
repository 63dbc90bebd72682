//! Where the tables of a run are: Hive's layout, `TABLE/date=YYYY-MM-DD/host=NAME/RUN.parquet`, and the file that says
//! which version the tables have.

use std::path::PathBuf;

use common::calendar::day;
use serde_json::{Value, json};

use crate::{Run, TABLES, VERSION};

/// End of the name of a run's files.
pub const FILE_END: &str = ".parquet";

/// Describes the data set. Readers of Hive's layout ignore names that begin with `_`.
pub const SCHEMA_FILE: &str = "_schema.json";

/// What Hive writes where a part of the path is not known.
const UNKNOWN: &str = "__HIVE_DEFAULT_PARTITION__";

/// Longest name of a host on Linux.
const HOST: usize = 64;

/// The directory of a run below that of a table; without a run, that of the file without rows.
pub fn partition(run: Option<&Run<'_, '_>>) -> PathBuf {
    let header = run.and_then(|run| run.loaded.header.as_ref());
    let date = header.map_or(UNKNOWN.into(), |h| day(h.real_ns / 1_000_000_000));
    let host = header.map(|h| escaped(h.host)).filter(|h| !h.is_empty()).unwrap_or(UNKNOWN.into());
    PathBuf::from(format!("date={date}")).join(format!("host={host}"))
}

/// As in a path of Hive's: what may have a meaning there is `%` and its number.
fn escaped(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars().take(HOST) {
        match c {
            '-' | '_' | '.' => out.push(c),
            c if c.is_alphanumeric() => out.push(c),
            // Readers differ in what such a number beyond ASCII means.
            c if c.is_ascii() => out.push_str(&format!("%{:02X}", u32::from(c))),
            _ => out.push('_'),
        }
    }
    out
}

/// Contents of [`SCHEMA_FILE`].
pub fn schema_file() -> String {
    let columns = |table: &crate::Table| -> Value {
        let of = |c: &crate::Column| json!({ "name": c.name, "type": c.kind.sql(), "null": c.null });
        table.columns.iter().map(of).collect()
    };
    let tables: serde_json::Map<String, Value> =
        TABLES.iter().map(|table| (table.name.to_owned(), columns(table))).collect();
    let text = json!({ "format": FORMAT, "version": VERSION, "tables": tables });
    format!("{text:#}\n")
}

const FORMAT: &str = "profinfer dataset";

/// A directory that has other tables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongSchema {
    #[error("its {SCHEMA_FILE} is not that of a data set of profinfer")]
    Foreign,
    #[error("its tables have version {0}, this program writes version {VERSION}")]
    Version(u64),
}

/// Checks the contents of an existing [`SCHEMA_FILE`].
///
/// # Errors
/// Its tables are not those that this program writes.
pub fn check_schema(text: &str) -> Result<(), WrongSchema> {
    let told: Value = serde_json::from_str(text).map_err(|_| WrongSchema::Foreign)?;
    if told.get("format").and_then(Value::as_str) != Some(FORMAT) {
        return Err(WrongSchema::Foreign);
    }
    match told.get("version").and_then(Value::as_u64) {
        Some(VERSION) => Ok(()),
        Some(other) => Err(WrongSchema::Version(other)),
        None => Err(WrongSchema::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_host_is_one_part_of_a_path() {
        assert_eq!(escaped("rk3588-07.lab"), "rk3588-07.lab");
        assert_eq!(escaped("a/b=c%d e"), "a%2Fb%3Dc%25d%20e");
        assert_eq!(escaped("gerät\u{2028}"), "gerät_");
        assert_eq!(escaped(""), "");
    }

    #[test]
    fn only_the_own_version_is_written_to() {
        assert_eq!(check_schema(&schema_file()), Ok(()));
        assert_eq!(
            check_schema(r#"{"format": "profinfer dataset", "version": 2}"#),
            Err(WrongSchema::Version(2))
        );
        for foreign in ["", "[]", "{}", r#"{"version": 1}"#, r#"{"format": "profinfer dataset"}"#] {
            assert_eq!(check_schema(foreign), Err(WrongSchema::Foreign), "{foreign}");
        }
    }

    proptest! {
        #[test]
        fn no_host_leaves_its_directory(name in ".{0,300}") {
            let escaped = escaped(&name);
            prop_assert!(!escaped.contains(['/', '=', '\0']));
            prop_assert!(escaped.len() <= 4 * HOST);
        }
    }
}
