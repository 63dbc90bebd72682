//! One quantity has one value: what all views say of recordings of each kind, compared with each other.
//!
//! `table.txt` has a row for each quantity and a line for each view that shows it. Texts for people are parsed. A number
//! that a view shows and no line names fails the test, and so does a line that no recording has.

#[cfg(feature = "agent")]
mod metrics;
mod path;
mod recordings;
mod text;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use path::{Found, bare, find, leaves};
use views::{NAMES, Views, of_all};

/// A view's line: its name, where the value is, and how exactly it is shown.
struct Shown {
    view: &'static str,
    path: String,
    /// In the unit of the row.
    factor: f64,
    /// Largest difference: relative, and absolute.
    near: (f64, f64),
    /// Recordings of which the view says something else, as its documentation tells.
    except: Vec<String>,
}

struct Quantity {
    name: String,
    shown: Vec<Shown>,
}

/// Sums of floating-point numbers in another order.
const EXACT: (f64, f64) = (1e-9, 1e-9);

fn line(text: &str) -> Shown {
    let mut words = text.split_whitespace();
    let (view, path) = (words.next().expect("a view"), words.next().expect("a path"));
    let view = NAMES.iter().find(|name| **name == view).unwrap_or_else(|| panic!("no view {view}"));
    let mut shown = Shown { view, path: path.to_owned(), factor: 1.0, near: EXACT, except: Vec::new() };
    for word in words {
        let number = |text: &str| text.parse::<f64>().expect("a number");
        match word.split_at(1) {
            ("*", factor) => shown.factor = number(factor),
            ("%", percent) => shown.near.0 = number(percent) / 100.0,
            ("+", difference) => shown.near.1 = number(difference),
            ("!", names) => shown.except = names.split(',').map(str::to_owned).collect(),
            _ => panic!("{text}"),
        }
    }
    shown
}

fn read(name: &str) -> String {
    let file =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/plain/one_value").join(name);
    std::fs::read_to_string(file).expect("a table")
}

/// The rows of a table beside this file.
fn table(name: &str) -> Vec<Quantity> {
    let text = read(name);
    let mut rows: Vec<Vec<&str>> = Vec::new();
    for text in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        match text.strip_prefix("    ") {
            Some(rest) => rows.last_mut().expect("a quantity").push(rest),
            None => rows.push(vec![text]),
        }
    }
    let quantity = |row: &Vec<&str>, n| Quantity {
        name: one_of(row[0], n),
        shown: row[1..].iter().map(|text| line(&one_of(text, n))).collect(),
    };
    rows.iter().flat_map(|row| (0..choices(row)).map(move |n| quantity(row, n))).collect()
}

/// The lines of a list beside this file.
fn listed(name: &str) -> Vec<Shown> {
    let text = read(name);
    let lines = text.lines().filter_map(|l| l.strip_prefix("    "));
    lines.flat_map(|text| (0..choices(&[text])).map(move |n| line(&one_of(text, n)))).collect()
}

/// How many alternatives a row has: `{a,b}` has two.
fn choices(row: &[&str]) -> usize {
    let of = |text: &str| Some(text.split_once('{')?.1.split_once('}')?.0.split(',').count());
    row.iter().filter_map(|text| of(text)).max().unwrap_or(1)
}

/// The text with the n-th of each of its alternatives.
fn one_of(text: &str, n: usize) -> String {
    let Some((before, rest)) = text.split_once('{') else { return text.to_owned() };
    let (all, after) = rest.split_once('}').expect("an end");
    format!("{before}{}{}", all.split(',').nth(n).expect("as many alternatives"), one_of(after, n))
}

/// What a line says of a recording, in the unit of its row.
fn found(v: &Views, shown: &Shown) -> Found {
    let view = v.of.get(shown.view);
    let mut found = view.map_or_else(Found::new, |view| find(view, &shown.path));
    found.values_mut().flatten().for_each(|value| *value *= shown.factor);
    found
}

/// Where two views differ; what one does not show, or does not know, is not compared.
fn apart(a: &Found, b: &Found, near: (f64, f64)) -> (usize, Option<String>) {
    let both = a.iter().filter_map(|(key, a)| Some((key, (*a)?, (*b.get(key)?)?)));
    let mut n = 0;
    for (key, a, b) in both {
        n += 1;
        if (a - b).abs() > near.1 + near.0 * a.abs().max(b.abs()) {
            return (n, Some(format!("'{key}' is {a}, but {b}")));
        }
    }
    (n, None)
}

/// A view that this build lacks.
fn is_left_out(view: &str) -> bool {
    match view {
        "parquet" => !cfg!(feature = "dataset"),
        // Without the feature, or without DuckDB.
        "sql" => ALL.iter().all(|v| v.of.get(view).is_none_or(serde_json::Value::is_null)),
        "metrics" | "otlp" | "watch" => !cfg!(feature = "agent"),
        _ => false,
    }
}

/// Read once for all tests.
static ALL: LazyLock<Vec<Views>> = LazyLock::new(|| of_all(recordings::recordings()));

#[test]
fn every_view_says_the_same() {
    let all = &*ALL;
    assert!(all.len() >= 12);
    let quantities = table("table.txt");
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for quantity in &quantities {
        let Some((first, others)) = quantity.shown.split_first() else { continue };
        let mut seen = vec![0; others.len()];
        for v in all {
            let value = found(v, first);
            for (shown, n) in others.iter().zip(&mut seen) {
                if shown.except.iter().any(|name| name == v.name) {
                    continue;
                }
                let (in_both, difference) = apart(&value, &found(v, shown), shown.near);
                *n += in_both;
                wrong.extend(difference.map(|why| {
                    format!(
                        "{}: {}: {} {} {why} in {} {}",
                        v.name, quantity.name, first.view, first.path, shown.view, shown.path
                    )
                }));
            }
        }
        compared += seen.iter().sum::<usize>();
        let unseen = others.iter().zip(seen).filter(|(shown, n)| *n == 0 && !is_left_out(shown.view));
        wrong.extend(
            unseen.map(|(shown, _)| {
                format!("{}: no recording has {} {}", quantity.name, shown.view, shown.path)
            }),
        );
    }
    println!("{} quantities, {} recordings, {compared} values compared", quantities.len(), all.len());
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

/// The numbers of each view.
fn shown_by(all: &[Views]) -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut of: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for v in all {
        for (view, value) in &v.of {
            leaves(value, "", of.entry(view).or_default());
        }
    }
    of
}

#[test]
fn every_number_of_a_view_is_in_a_row() {
    let all = &*ALL;
    let shown = shown_by(all);
    assert!(shown.keys().all(|view| NAMES.contains(view)));
    let compared = table("table.txt").into_iter().flat_map(|q| q.shown);
    let in_rows: BTreeSet<(&str, String)> = compared
        .chain(listed("alone.txt"))
        .chain(listed("names.txt"))
        .map(|line| (line.view, bare(&line.path)))
        .collect();
    let (mut missing, mut stale) = (Vec::new(), Vec::new());
    for (view, paths) in &shown {
        // Other runs have the fields of the report.
        let named = |path: &&String| {
            let own = path.strip_prefix("others.").unwrap_or(path);
            [path.as_str(), own].iter().any(|path| in_rows.contains(&(*view, (*path).to_owned())))
        };
        missing.extend(paths.iter().filter(|path| !named(path)).map(|path| format!("    {view} {path}")));
    }
    for (view, path) in
        in_rows.iter().filter(|(view, path)| !is_left_out(view) && !path.ends_with(['#', '*']))
    {
        if !shown.get(view).is_some_and(|paths| paths.contains(path)) {
            stale.push(format!("    {view} {path}"));
        }
    }
    assert!(missing.is_empty(), "{} numbers are in no row:\n{}", missing.len(), missing.join("\n"));
    assert!(stale.is_empty(), "{} lines have no number:\n{}", stale.len(), stale.join("\n"));
}

/// Names of the JSON are in the glossary.
#[test]
fn the_glossary_has_every_name() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/GLOSSARY.md"))
        .expect("the page");
    let shown = shown_by(&ALL);
    let views = ["report", "advise", "stat", "diff", "top", "watch", "experts"];
    let paths = views.iter().filter_map(|view| shown.get(view)).flatten();
    let names: BTreeSet<&str> = paths.filter_map(|path| path.rsplit('.').next()).collect();
    let missing: Vec<&&str> = names.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Of programs that are not llama.cpp, and of embeddings.
#[test]
fn nothing_speaks_of_tokens_where_there_are_none() {
    let told = |name: &str| ALL.iter().find(|v| v.name == name).map(|v| &v.texts).expect("a recording");
    for (what, text) in told("whisper") {
        for word in ["tok/s", "token", "TTFT", "TPOT", "refill", "ecode"] {
            assert!(!text.contains(word), "{what}: {word}: {text}");
        }
        assert!(text.contains("runs/s"), "{what}: {text}");
    }
    for (what, text) in told("embeddings") {
        assert!(!text.contains("TTFT") && !text.contains("first token"), "{what}: {text}");
        assert!(text.contains("runs/s"), "{what}: {text}");
    }
}
