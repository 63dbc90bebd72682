//! Tables and their columns: names, types and meanings, from which the Parquet schema and the documentation are made.

use std::fmt::Write;

use crate::rows::Rows;
use crate::run::Run;

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// UTF-8, encoded by a dictionary.
    Text,
    /// 32 bits, signed.
    Int,
    /// 64 bits, signed.
    Long,
    /// 64 bits, floating point.
    Real,
    Bool,
    /// µs since 1970, UTC.
    Time,
    /// A list of 32-bit integers.
    Ints,
}

impl Kind {
    /// Its name in SQL, as in the documentation.
    pub const fn sql(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Int => "int",
            Kind::Long => "bigint",
            Kind::Real => "double",
            Kind::Bool => "boolean",
            Kind::Time => "timestamp",
            Kind::Ints => "list of int",
        }
    }
}

/// A column.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    /// It may be null: its value may not be known.
    pub null: bool,
    /// Neighbouring values are near each other, or have few bits: they are encoded by their differences, not by a
    /// dictionary.
    pub delta: bool,
    /// For the documentation: a phrase, with the unit.
    pub about: &'static str,
}

const fn column(name: &'static str, kind: Kind, about: &'static str) -> Column {
    Column { name, kind, null: false, delta: false, about }
}

pub const fn text(name: &'static str, about: &'static str) -> Column {
    column(name, Kind::Text, about)
}

pub const fn int(name: &'static str, about: &'static str) -> Column {
    column(name, Kind::Int, about)
}

pub const fn long(name: &'static str, about: &'static str) -> Column {
    column(name, Kind::Long, about)
}

pub const fn real(name: &'static str, about: &'static str) -> Column {
    column(name, Kind::Real, about)
}

pub const fn boolean(name: &'static str, about: &'static str) -> Column {
    column(name, Kind::Bool, about)
}

pub const fn time(name: &'static str, about: &'static str) -> Column {
    column(name, Kind::Time, about)
}

pub const fn ints(name: &'static str, about: &'static str) -> Column {
    column(name, Kind::Ints, about)
}

/// The first column of every table.
pub const RUN: Column = text("run", "id of the run: that of its trace's contents");

impl Column {
    /// Its value may not be known.
    pub const fn or_null(mut self) -> Column {
        self.null = true;
        self
    }

    /// Encoded by differences.
    pub const fn delta(mut self) -> Column {
        self.delta = true;
        self
    }

    /// Its field in Parquet's schema language.
    fn field(&self) -> String {
        let name = self.name;
        let how = if self.null { "optional" } else { "required" };
        match self.kind {
            Kind::Text => format!("{how} binary {name} (STRING);"),
            Kind::Int => format!("{how} int32 {name};"),
            Kind::Long => format!("{how} int64 {name};"),
            Kind::Real => format!("{how} double {name};"),
            Kind::Bool => format!("{how} boolean {name};"),
            Kind::Time => format!("{how} int64 {name} (TIMESTAMP(MICROS,false));"),
            Kind::Ints => {
                format!("{how} group {name} (LIST) {{ repeated group list {{ required int32 element; }} }}")
            }
        }
    }
}

/// A table: what it has, and what fills it.
pub struct Table {
    /// Name of its directory.
    pub name: &'static str,
    /// For the documentation: what a row is.
    pub about: &'static str,
    /// A run has one or a few rows: dictionaries would be longer than their values.
    pub single: bool,
    /// The first is the run.
    pub columns: &'static [Column],
    /// Appends the rows of a run, with values in the order of `columns`.
    pub fill: fn(&Run<'_, '_>, &mut Rows<'_>) -> parquet::errors::Result<()>,
}

impl Table {
    /// Parquet's schema.
    pub fn message(&self) -> String {
        let mut out = format!("message {} {{", self.name);
        for column in self.columns {
            let _ = write!(out, " {}", column.field());
        }
        out.push_str(" }");
        out
    }
}
