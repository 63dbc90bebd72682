//! What the views say of a recording, each as JSON: those for programs as they are, those for people parsed.

use std::collections::BTreeMap;
use std::path::Path;
#[cfg(feature = "dataset")]
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value, json};

use analysis::streams::live::Live;
use pfi::Trace;

use super::text;
#[cfg(feature = "dataset")]
use crate::common::python;

/// Peaks of the machine that all views compare with: GFLOP/s and GB/s.
const PEAK: [&str; 2] = ["--peak", "500,10"];

/// The views of a recording, by name.
pub struct Views {
    pub name: &'static str,
    pub of: BTreeMap<&'static str, Value>,
    /// The verdict, the calls' part of the tables, and the head of the page, as people read them.
    pub texts: Vec<(&'static str, String)>,
}

/// Names of all views.
pub const NAMES: &[&str] = &[
    "report",
    "advise",
    "verdict",
    "tables",
    "page",
    "page-data",
    "stat",
    "stat-csv",
    "top",
    "csv",
    "python",
    "diff",
    "parquet",
    "sql",
    "metrics",
    "otlp",
    "watch",
    "experts",
    "constant",
];

fn run(args: &[&str]) -> Option<String> {
    let out = Command::new(env!("CARGO_BIN_EXE_profinfer")).args(args).output().expect("it runs");
    // A view may say that there is nothing to show.
    out.status.success().then(|| String::from_utf8(out.stdout).expect("UTF-8"))
}

fn parsed(text: Option<String>) -> Value {
    text.map_or(Value::Null, |text| serde_json::from_str(&text).expect("JSON"))
}

/// All views of each recording.
pub fn of_all(recordings: Vec<(&'static str, Vec<u8>)>) -> Vec<Views> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut all = Vec::new();
    for (name, bytes) in recordings {
        let file = dir.path().join(format!("{name}.pfi"));
        std::fs::write(&file, bytes).expect("written");
        all.push((name, file));
    }
    let python = tables_of(&all.iter().map(|(_, file)| file.as_path()).collect::<Vec<_>>());
    #[cfg(feature = "dataset")]
    let answers = {
        all.iter().for_each(|(_, file)| export(file));
        questions(&all.iter().map(|(_, file)| set_of(file)).collect::<Vec<_>>())
    };
    #[cfg(not(feature = "dataset"))]
    let answers = Value::Null;
    all.iter().map(|(name, file)| of_one(name, file, &python, &answers)).collect()
}

fn of_one(name: &'static str, file: &Path, python: &Value, answers: &Value) -> Views {
    let path = file.to_str().expect("UTF-8");
    let with = |args: &[&str]| run(&[args, &PEAK, &[path]].concat());
    let report = parsed(with(&["report", "--json"]));
    let shown = Shown::of(&report);
    let mut of = BTreeMap::new();
    of.insert("advise", parsed(with(&["advise", "--json"])));
    let (verdict, all) =
        (with(&["report"]).expect("a verdict"), with(&["report", "--all", "--verbose"]).expect("tables"));
    of.insert("verdict", text::verdict(&verdict));
    of.insert("tables", text::tables(&all));
    let html = with(&["html", "-o", "-"]).expect("a page");
    of.insert("page", text::page(&html));
    of.insert("page-data", text::page_data(&html));
    of.insert("stat", by_phase(|phase| parsed(with(&["stat", "--json", "--phase", phase]))));
    let views = ["tokens", "ops", "roofline", "threads", "experts", "reuse", "backends", "shapes"];
    let tables = views.map(|view| {
        let text = run(&[&["stat", path, view, "--csv"][..], &PEAK].concat());
        (view.to_owned(), text.map_or(Value::Null, |text| csv(&text)))
    });
    of.insert("stat-csv", Value::Object(tables.into_iter().collect()));
    // Of a process with several contexts, these views show all together.
    let whole = shown.context.is_none();
    of.insert("top", if whole { top(file) } else { Value::Null });
    let ops = run(&["export", "--csv", "ops", path]).map_or(Value::Null, |text| csv(&text));
    of.insert("csv", json!({ "ops": with_times(shown.rows(ops)) }));
    let mut tables = if whole { shown.tables(python[path].clone()) } else { Value::Null };
    if whole {
        tables["ops"] = with_times(tables["ops"].take());
    }
    of.insert("python", tables);
    of.insert("diff", by_phase(|phase| parsed(run(&["diff", "--json", "--phase", phase, path, path]))));
    of.insert("experts", parsed(run(&["experts", "--json", "--read-time", "1ms", path])));
    #[cfg(feature = "agent")]
    {
        let exposed = super::metrics::metrics(file);
        of.insert("metrics", exposed.scraped);
        of.insert("otlp", exposed.pushed);
        // Of a process with several contexts, all together.
        let pid = shown.pid.filter(|_| whole).and_then(|pid| u32::try_from(pid).ok());
        of.insert("watch", pid.map_or(Value::Null, |pid| super::metrics::watch(file, pid)));
    }
    #[cfg(feature = "dataset")]
    {
        of.insert("parquet", shown.tables(parquet(&set_of(file))));
        of.insert("sql", answers[set_of(file).to_str().expect("UTF-8")].clone());
    }
    let _ = answers;
    let with_bar =
        report["verdict"]["phases"].as_array().into_iter().flatten().filter(|p| !p["bar"].is_null());
    let ones: Vec<Value> = with_bar.map(|p| json!({ "phase": p["phase"], "one": 1 })).collect();
    of.insert("constant", json!({ "phases": ones }));
    of.insert("report", report);
    let texts = vec![("verdict", verdict), ("tables", text::calls(&all)), ("page", text::head(&html))];
    Views { name, of, texts }
}

/// What a view says of each phase, once: where calls are of one kind, each phase means them.
fn by_phase(of: impl Fn(&str) -> Value) -> Value {
    let mut all: Vec<Value> = Vec::new();
    for found in ["decode", "prefill"].map(of) {
        if !found.is_null() && all.iter().all(|other| other["phase"] != found["phase"]) {
            all.push(found);
        }
    }
    json!({ "phases": all })
}

/// Rows with the time from start to end.
fn with_times(mut rows: Value) -> Value {
    for row in rows.as_array_mut().into_iter().flatten() {
        if let (Some(start), Some(end)) = (row["start_ns"].as_i64(), row["end_ns"].as_i64()) {
            row["time_ns"] = json!(end - start);
        }
    }
    rows
}

/// The run that the report shows: tables of all processes are reduced to it.
struct Shown {
    pid: Option<u64>,
    context: Option<u64>,
}

impl Shown {
    fn of(report: &Value) -> Shown {
        let row =
            report["runs"].as_array().and_then(|rows| rows.iter().find(|r| r["shown"] == true)).cloned();
        let of = |name: &str| row.as_ref()?[name].as_u64();
        Shown { pid: of("pid"), context: of("context") }
    }

    fn rows(&self, rows: Value) -> Value {
        let Value::Array(rows) = rows else { return rows };
        let is_of = |row: &Value, name: &str, wanted: Option<u64>| match (
            row.get(name).and_then(Value::as_u64),
            wanted,
        ) {
            (Some(of), Some(wanted)) => of == wanted,
            _ => true,
        };
        let mine = |row: &Value| is_of(row, "pid", self.pid) && is_of(row, "context", self.context);
        rows.into_iter().filter(mine).collect()
    }

    fn tables(&self, tables: Value) -> Value {
        let Value::Object(tables) = tables else { return tables };
        tables.into_iter().map(|(name, rows)| (name, self.rows(rows))).collect::<Map<_, _>>().into()
    }
}

/// Rows of comma-separated values (RFC 4180); numbers are numbers, empty cells are unknown.
fn csv(text: &str) -> Value {
    let mut records: Vec<Vec<String>> = Vec::new();
    let (mut record, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => cell.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => record.push(std::mem::take(&mut cell)),
            '\n' if !quoted => {
                record.push(std::mem::take(&mut cell));
                records.push(std::mem::take(&mut record));
            }
            '\r' if !quoted => {}
            c => cell.push(c),
        }
    }
    let mut records = records.into_iter();
    let names: Vec<String> =
        records.next().unwrap_or_default().iter().map(|name| name.replace(' ', "_")).collect();
    let value = |cell: String| match (cell.is_empty(), cell.parse::<f64>()) {
        (true, _) => Value::Null,
        (false, Ok(n)) if cell.contains(['.', 'e']) => json!(n),
        (false, Ok(_)) => cell.parse::<i64>().map_or(Value::String(cell), |n| json!(n)),
        (false, Err(_)) => Value::String(cell),
    };
    records
        .map(|cells| Value::Object(names.iter().cloned().zip(cells.into_iter().map(value)).collect()))
        .collect()
}

/// What `top --json` says at the end of the recording.
fn top(file: &Path) -> Value {
    let trace = Trace::open(file).expect("a trace");
    let mut live = Live::default();
    live.tick(0);
    for i in 0..trace.blocks().len() {
        if let Ok(block) = trace.block(i) {
            live.feed(&block);
        }
    }
    live.finish();
    let end = 2_000_000_000_000;
    live.tick(end);
    let mut text = Vec::new();
    render::json::write(&mut text, &live.whole(end)).expect("written");
    serde_json::from_slice(&text).expect("JSON")
}

/// The tables of the reader for Python, by file.
fn tables_of(files: &[&Path]) -> Value {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let out = Command::new("python3")
        .arg(root.join("tests/plain/one_value/tables.py"))
        .args(files)
        .env("PYTHONPATH", root.join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3 runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

/// Where the data set is that has this recording alone.
#[cfg(feature = "dataset")]
fn set_of(file: &Path) -> PathBuf {
    file.with_extension("set")
}

#[cfg(feature = "dataset")]
fn export(file: &Path) {
    let out = Command::new(env!("CARGO_BIN_EXE_profinfer"))
        .args(["export", "--parquet"])
        .args([&set_of(file), file])
        .output()
        .expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// What the questions of docs/SQL.md say of each data set; none without DuckDB.
#[cfg(feature = "dataset")]
fn questions(sets: &[PathBuf]) -> Value {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut ask = Command::new("python3");
    ask.arg(root.join("tests/plain/one_value/questions.py")).arg(root.join("docs/SQL.md")).args(sets);
    python::json(&mut ask).unwrap_or_default()
}

/// The tables of a data set.
#[cfg(feature = "dataset")]
fn parquet(set: &Path) -> Value {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let mut tables = Map::new();
    for table in std::fs::read_dir(set).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
        let mut rows = Vec::new();
        for file in files_below(&table.path()) {
            let reader =
                SerializedFileReader::new(std::fs::File::open(file).expect("a file")).expect("Parquet");
            let row = |row: parquet::record::Row| {
                row.get_column_iter().map(|(n, f)| (n.clone(), field(f))).collect()
            };
            rows.extend(
                reader.get_row_iter(None).expect("rows").map(|r| Value::Object(row(r.expect("a row")))),
            );
        }
        tables.insert(table.file_name().to_string_lossy().into_owned(), Value::Array(rows));
    }
    Value::Object(tables)
}

#[cfg(feature = "dataset")]
fn field(field: &parquet::record::Field) -> Value {
    use parquet::record::Field;
    match field {
        Field::Bool(v) => json!(v),
        Field::Int(v) => json!(v),
        Field::Long(v) => json!(v),
        Field::Double(v) => json!(v),
        Field::Str(v) => json!(v),
        Field::TimestampMicros(v) => json!(v),
        _ => Value::Null,
    }
}

#[cfg(feature = "dataset")]
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|e| e.expect("an entry").path());
    entries
        .flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|x| x == "parquet"))
        .collect()
}
