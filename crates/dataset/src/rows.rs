//! Rows on their way into a Parquet file: one buffer per column, written as a row group when it is full.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use crate::column::{Kind, RUN, Table};

/// Rows of a row group, as DuckDB's own files have: it reads groups in parallel.
pub const GROUP: usize = 122_880;

/// Bytes of a page before compression; a group of most columns is one page.
const PAGE: usize = 1 << 20;

/// Text values converted at a time.
const BATCH: usize = 4096;

/// Higher levels take twice the time for a few per cent.
const LEVEL: i32 = 1;

/// A text that was interned before, for columns with few texts and many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word(u32);

/// Values of a column that are not written yet.
enum Values {
    Text(Vec<u32>),
    Int(Vec<i32>),
    Long(Vec<i64>),
    Real(Vec<f64>),
    Bool(Vec<bool>),
    /// Values, and the repetition levels: 0 begins a row.
    Ints(Vec<i32>, Vec<i16>),
}

struct Buffer {
    values: Values,
    /// Definition levels; not used without `null`, except by lists.
    levels: Vec<i16>,
    null: bool,
}

impl Buffer {
    fn new(kind: Kind, null: bool) -> Buffer {
        let values = match kind {
            Kind::Text => Values::Text(Vec::new()),
            Kind::Int => Values::Int(Vec::new()),
            Kind::Long | Kind::Time => Values::Long(Vec::new()),
            Kind::Real => Values::Real(Vec::new()),
            Kind::Bool => Values::Bool(Vec::new()),
            Kind::Ints => Values::Ints(Vec::new(), Vec::new()),
        };
        Buffer { values, levels: Vec::new(), null }
    }

    #[inline]
    fn known(&mut self) {
        if self.null {
            self.levels.push(1);
        }
    }

    /// Null; the least value of its kind in a column that cannot be null, which is a mistake in a table.
    fn unknown(&mut self) {
        if let Values::Ints(_, repeated) = &mut self.values {
            repeated.push(0);
            self.levels.push(0);
            return;
        }
        if self.null {
            self.levels.push(0);
            return;
        }
        debug_assert!(false, "null in a column that has none");
        match &mut self.values {
            Values::Text(v) => v.push(0),
            Values::Int(v) => v.push(0),
            Values::Long(v) => v.push(0),
            Values::Real(v) => v.push(0.0),
            Values::Bool(v) => v.push(false),
            Values::Ints(..) => {}
        }
    }

    fn list(&mut self, values: impl Iterator<Item = i32>) {
        let Values::Ints(all, repeated) = &mut self.values else { return self.unknown() };
        let null = i16::from(self.null);
        let before = repeated.len();
        for value in values {
            repeated.push(i16::from(repeated.len() > before));
            self.levels.push(null + 1);
            all.push(value);
        }
        if repeated.len() == before {
            repeated.push(0);
            self.levels.push(null);
        }
    }

    fn clear(&mut self) {
        self.levels.clear();
        match &mut self.values {
            Values::Text(v) => v.clear(),
            Values::Int(v) => v.clear(),
            Values::Long(v) => v.clear(),
            Values::Real(v) => v.clear(),
            Values::Bool(v) => v.clear(),
            Values::Ints(v, repeated) => {
                v.clear();
                repeated.clear();
            }
        }
    }
}

/// What is in a finished file.
pub struct Finished {
    pub rows: u64,
    pub bytes: u64,
}

/// The rows of a table.
pub struct Rows<'w> {
    writer: SerializedFileWriter<&'w mut (dyn Write + Send)>,
    buffers: Vec<Buffer>,
    texts: Vec<ByteArray>,
    known: HashMap<Box<str>, u32>,
    /// The run's id.
    run: Word,
    buffered: usize,
    rows: u64,
}

impl<'w> Rows<'w> {
    pub fn new(table: &Table, out: &'w mut (dyn Write + Send)) -> Result<Rows<'w>> {
        let schema = Arc::new(parse_message_type(&table.message())?);
        let zstd = Compression::ZSTD(ZstdLevel::try_new(LEVEL)?);
        let mut properties = WriterProperties::builder()
            .set_compression(zstd)
            .set_created_by(concat!("profinfer ", env!("CARGO_PKG_VERSION")).into())
            .set_statistics_enabled(EnabledStatistics::None)
            .set_offset_index_disabled(true)
            .set_data_page_size_limit(PAGE)
            .set_data_page_row_count_limit(GROUP)
            .set_dictionary_page_size_limit(PAGE);
        for column in table.columns {
            let path = ColumnPath::from(column.name);
            let repeats = matches!(column.kind, Kind::Text | Kind::Int) && !column.delta && !table.single;
            properties = properties.set_column_dictionary_enabled(path.clone(), repeats);
            if column.delta {
                properties = properties.set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED);
            }
            // Elsewhere a group has nearly all values that there are, and its least and greatest tell nothing.
            if column.delta || column.name == RUN.name {
                properties = properties.set_column_statistics_enabled(path, EnabledStatistics::Chunk);
            }
        }
        let writer = SerializedFileWriter::new(out, schema, Arc::new(properties.build()))?;
        let buffers = table.columns.iter().map(|c| Buffer::new(c.kind, c.null)).collect();
        let (texts, known) = (Vec::new(), HashMap::new());
        Ok(Rows { writer, buffers, texts, known, run: Word(0), buffered: 0, rows: 0 })
    }

    /// Sets the run of the rows that follow.
    pub fn run(&mut self, id: &str) {
        self.run = self.word(id);
    }

    /// Interns a text.
    pub fn word(&mut self, text: &str) -> Word {
        if let Some(at) = self.known.get(text) {
            return Word(*at);
        }
        let at = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.texts.push(ByteArray::from(text.as_bytes().to_vec()));
        self.known.insert(text.into(), at);
        Word(at)
    }

    /// Begins a row, whose first value is the run.
    #[inline]
    pub fn row(&mut self) -> Row<'_, 'w> {
        let run = self.run;
        Row { rows: self, at: 0 }.word(Some(run))
    }

    fn flush(&mut self) -> Result<()> {
        let texts = &self.texts;
        let mut group = self.writer.next_row_group()?;
        for buffer in &mut self.buffers {
            let gone = || ParquetError::General("more columns than the schema has".into());
            let mut column = group.next_column()?.ok_or_else(gone)?;
            let levels = Some(buffer.levels.as_slice()).filter(|l| !l.is_empty());
            write(column.untyped(), &buffer.values, levels, texts)?;
            column.close()?;
            buffer.clear();
        }
        group.close()?;
        self.buffered = 0;
        Ok(())
    }

    /// Writes what is left.
    pub fn finish(mut self) -> Result<Finished> {
        if self.buffered > 0 {
            self.flush()?;
        }
        self.writer.finish()?;
        Ok(Finished { rows: self.rows, bytes: self.writer.bytes_written() as u64 })
    }
}

fn write(
    to: &mut ColumnWriter<'_>,
    values: &Values,
    levels: Option<&[i16]>,
    texts: &[ByteArray],
) -> Result<()> {
    match (to, values) {
        (ColumnWriter::ByteArrayColumnWriter(to), Values::Text(v)) => {
            text(v, levels, texts, |values, levels| to.write_batch(values, levels, None))
        }
        (ColumnWriter::Int32ColumnWriter(to), Values::Int(v)) => to.write_batch(v, levels, None).map(drop),
        (ColumnWriter::Int32ColumnWriter(to), Values::Ints(v, repeated)) => {
            to.write_batch(v, levels, Some(repeated)).map(drop)
        }
        (ColumnWriter::Int64ColumnWriter(to), Values::Long(v)) => to.write_batch(v, levels, None).map(drop),
        (ColumnWriter::DoubleColumnWriter(to), Values::Real(v)) => to.write_batch(v, levels, None).map(drop),
        (ColumnWriter::BoolColumnWriter(to), Values::Bool(v)) => to.write_batch(v, levels, None).map(drop),
        _ => Err(ParquetError::General("a column of another type than the schema's".into())),
    }
}

/// Converts interned texts a batch at a time.
fn text(
    ids: &[u32],
    levels: Option<&[i16]>,
    texts: &[ByteArray],
    mut to: impl FnMut(&[ByteArray], Option<&[i16]>) -> Result<usize>,
) -> Result<()> {
    let of = |id: &u32| texts.get(*id as usize).cloned().unwrap_or_else(|| ByteArray::from(""));
    let mut values = Vec::with_capacity(BATCH.min(ids.len()));
    let Some(levels) = levels else {
        for ids in ids.chunks(BATCH) {
            values.clear();
            values.extend(ids.iter().map(of));
            to(&values, None)?;
        }
        return Ok(());
    };
    let mut rest = ids;
    for levels in levels.chunks(BATCH) {
        let n = levels.iter().filter(|l| **l > 0).count();
        let (now, later) = rest.split_at_checked(n).unwrap_or((rest, &[]));
        rest = later;
        values.clear();
        values.extend(now.iter().map(of));
        to(&values, Some(levels))?;
    }
    Ok(())
}

/// An error in words for a user.
pub fn plain(e: &ParquetError) -> String {
    match e {
        ParquetError::External(e) => e.to_string(),
        ParquetError::General(why) => why.clone(),
        e => e.to_string(),
    }
}

/// A row being filled from the left.
pub struct Row<'r, 'w> {
    rows: &'r mut Rows<'w>,
    at: usize,
}

impl Row<'_, '_> {
    #[inline]
    fn next(&mut self) -> Option<&mut Buffer> {
        let buffer = self.rows.buffers.get_mut(self.at);
        self.at += 1;
        debug_assert!(buffer.is_some(), "more values than columns");
        buffer
    }

    /// An interned text.
    #[inline]
    pub fn word(mut self, value: Option<Word>) -> Self {
        if let Some(buffer) = self.next() {
            match (value, &mut buffer.values) {
                (Some(Word(at)), Values::Text(v)) => {
                    v.push(at);
                    buffer.known();
                }
                _ => buffer.unknown(),
            }
        }
        self
    }

    pub fn text(self, value: Option<&str>) -> Self {
        let word = value.map(|text| self.rows.word(text));
        self.word(word)
    }

    /// A number beyond what the column holds is the largest that it does.
    #[inline]
    pub fn int(mut self, value: Option<impl TryInto<i32>>) -> Self {
        if let Some(buffer) = self.next() {
            match (value, &mut buffer.values) {
                (Some(value), Values::Int(v)) => {
                    v.push(value.try_into().unwrap_or(i32::MAX));
                    buffer.known();
                }
                _ => buffer.unknown(),
            }
        }
        self
    }

    /// A number beyond what the column holds is the largest that it does.
    #[inline]
    pub fn long(mut self, value: Option<impl TryInto<i64>>) -> Self {
        if let Some(buffer) = self.next() {
            match (value, &mut buffer.values) {
                (Some(value), Values::Long(v)) => {
                    v.push(value.try_into().unwrap_or(i64::MAX));
                    buffer.known();
                }
                _ => buffer.unknown(),
            }
        }
        self
    }

    pub fn real(mut self, value: Option<f64>) -> Self {
        if let Some(buffer) = self.next() {
            match (value, &mut buffer.values) {
                (Some(value), Values::Real(v)) => {
                    v.push(value);
                    buffer.known();
                }
                _ => buffer.unknown(),
            }
        }
        self
    }

    pub fn bool(mut self, value: Option<bool>) -> Self {
        if let Some(buffer) = self.next() {
            match (value, &mut buffer.values) {
                (Some(value), Values::Bool(v)) => {
                    v.push(value);
                    buffer.known();
                }
                _ => buffer.unknown(),
            }
        }
        self
    }

    pub fn ints(mut self, values: Option<impl Iterator<Item = i32>>) -> Self {
        if let Some(buffer) = self.next() {
            match values {
                Some(values) => buffer.list(values),
                None => buffer.unknown(),
            }
        }
        self
    }

    /// Ends the row.
    ///
    /// # Errors
    /// Write errors of a full group.
    #[inline]
    pub fn end(mut self) -> Result<()> {
        // A table that gives too few values has a mistake; the file stays readable.
        while self.at < self.rows.buffers.len() {
            debug_assert!(false, "fewer values than columns");
            self = self.null();
        }
        self.rows.rows += 1;
        self.rows.buffered += 1;
        if self.rows.buffered < GROUP { Ok(()) } else { self.rows.flush() }
    }

    fn null(mut self) -> Self {
        if let Some(buffer) = self.next() {
            buffer.unknown();
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{boolean, int, ints, long, real, text};
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    const TABLE: Table = Table {
        name: "odd",
        about: "",
        single: false,
        columns: &[
            RUN,
            text("text", "").or_null(),
            int("int", "").or_null(),
            long("long", "").or_null().delta(),
            long("number", "").delta(),
            real("real", "").or_null(),
            boolean("bool", "").or_null(),
            ints("ints", "").or_null(),
            ints("always", ""),
        ],
        fill: |_, _| Ok(()),
    };

    fn written(fill: impl Fn(&mut Rows<'_>)) -> Vec<Vec<(String, Field)>> {
        let mut file = tempfile::tempfile().unwrap();
        let mut rows = Rows::new(&TABLE, &mut file).unwrap();
        rows.run("r");
        fill(&mut rows);
        let wanted = rows.rows;
        assert_eq!(rows.finish().unwrap().rows, wanted);
        let reader = SerializedFileReader::new(file).unwrap();
        let groups = reader.metadata().row_groups();
        assert!(groups.iter().all(|g| g.num_rows() <= GROUP as i64), "groups of another size");
        let rows = reader.get_row_iter(None).unwrap();
        rows.map(|row| row.unwrap().get_column_iter().map(|(n, f)| (n.clone(), f.clone())).collect())
            .collect()
    }

    #[test]
    fn values_come_back_as_they_were() {
        let rows = written(|rows| {
            let word = rows.word("word");
            let some = |list: &'static [i32]| Some(list.iter().copied());
            rows.row()
                .text(Some("a\0\u{2028}"))
                .int(Some(u32::MAX))
                .long(Some(u64::MAX))
                .long(Some(i64::MIN))
                .real(Some(-0.5))
                .bool(Some(true))
                .ints(some(&[1, -2, 3]))
                .ints(some(&[]))
                .end()
                .unwrap();
            rows.row()
                .word(Some(word))
                .int(None::<i32>)
                .long(None::<i64>)
                .long(Some(i64::MAX))
                .real(None)
                .bool(None)
                .ints(None::<std::iter::Empty<i32>>)
                .ints(some(&[7]))
                .end()
                .unwrap();
        });
        let shown =
            |at: usize| -> Vec<String> { rows[at].iter().map(|(_, field)| field.to_string()).collect() };
        let largest = (i32::MAX.to_string(), i64::MAX.to_string(), i64::MIN.to_string());
        assert_eq!(
            shown(0),
            [
                "\"r\"",
                "\"a\0\u{2028}\"",
                &largest.0,
                &largest.1,
                &largest.2,
                "-5E-1",
                "true",
                "[1, -2, 3]",
                "[]"
            ]
        );
        let null = "null";
        assert_eq!(shown(1), ["\"r\"", "\"word\"", null, null, &largest.1, null, null, null, "[7]"]);
    }

    #[test]
    fn rows_go_on_in_the_next_group() {
        let n = GROUP + 3;
        let rows = written(|rows| {
            for i in 0..n {
                let odd = (i % 2 > 0).then_some(i);
                let text = if i % 3 > 0 { Some("x") } else { None };
                let list = (i % 2 > 0).then(|| std::iter::once(i as i32));
                let row = rows.row().text(text).int(odd).long(odd).long(Some(i)).real(None).bool(None);
                row.ints(list).ints(Some(std::iter::empty())).end().unwrap();
            }
        });
        assert_eq!(rows.len(), n);
        for (i, row) in rows.iter().enumerate() {
            let long = if i % 2 > 0 { Field::Long(i as i64) } else { Field::Null };
            assert_eq!((&row[3].1, &row[4].1), (&long, &Field::Long(i as i64)));
            assert_eq!((row[1].1 == Field::Null, row[7].1 == Field::Null), (i % 3 == 0, i % 2 == 0));
        }
    }
}
