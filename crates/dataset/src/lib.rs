//! A data set of recorded runs: Parquet tables in Hive's layout, a file per table and run, for databases that read
//! such directories (DuckDB, Spark, pandas and others).
//!
//! A table is a file in `tables/`: its columns, and the function that fills it. [`TABLES`] lists them. docs/DATASET.md
//! documents them; the part with the columns is made of the tables themselves.
#![warn(clippy::indexing_slicing)]

mod column;
mod document;
mod place;
mod rows;
mod run;
mod tables;

use std::io::Write;

pub use column::{Column, Kind, Table};
pub use document::markdown;
pub use place::{FILE_END, SCHEMA_FILE, WrongSchema, check_schema, partition, schema_file};
pub use run::{PASSES, Run};
pub use tables::TABLES;

use rows::{Finished, Rows};

/// Version of the tables. It grows when a column changes its meaning or is removed; a reader that knows an older one
/// must not read on. New columns that may be null and new tables do not change it.
pub const VERSION: u64 = 1;

/// A written table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    pub rows: u64,
    pub bytes: u64,
}

/// Why a table could not be written.
#[derive(Debug, thiserror::Error)]
#[error("table {table}: {why}")]
pub struct TableError {
    pub table: &'static str,
    pub why: String,
}

impl Table {
    /// Writes the rows of a run as a Parquet file; without a run, a file without rows that has the schema only.
    ///
    /// # Errors
    /// Write errors of `out`.
    pub fn write(&self, run: Option<&Run<'_, '_>>, out: impl Write + Send) -> Result<Written, TableError> {
        let failed = |e: parquet::errors::ParquetError| TableError { table: self.name, why: rows::plain(&e) };
        let mut out = out;
        let mut rows = Rows::new(self, &mut out).map_err(failed)?;
        if let Some(run) = run {
            rows.run(run.id());
            (self.fill)(run, &mut rows).map_err(failed)?;
        }
        let Finished { rows, bytes } = rows.finish().map_err(failed)?;
        out.flush().map_err(|e| TableError { table: self.name, why: e.to_string() })?;
        Ok(Written { rows, bytes })
    }
}
