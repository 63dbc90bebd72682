//! The questions of docs/SQL.md about a simulated fleet, asked in DuckDB, and in both DuckDB and Apache Spark, which answer
//! alike: they find what was planted.
//!
//! PROFINFER_FLEET=BOARDSxRUNS sets its size, PROFINFER a program that was built elsewhere. With 200x50 the answers must be
//! those of the page; UPDATE_SNAPSHOTS=1 writes them there.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{self, python};
use crate::fleet::{self, SLOWER};

/// The fleet of the page.
const PAGE: (u64, u64) = (200, 50);
/// Enough for a few boards of each kind, and for two runs of each model with each build.
const SMALL: (u64, u64) = (20, 16);

fn size() -> (u64, u64) {
    let Ok(given) = std::env::var("PROFINFER_FLEET") else { return SMALL };
    let number = |text: &str| text.parse().expect("PROFINFER_FLEET=BOARDSxRUNS");
    let (boards, runs) = given.split_once('x').expect("PROFINFER_FLEET=BOARDSxRUNS");
    (number(boards), number(runs))
}

/// The rows of an answer, by its number from 1.
fn rows(answers: &Value, question: usize) -> &Vec<Value> {
    answers["questions"][question - 1]["rows"].as_array().expect("an answer")
}

fn text(row: &Value, at: usize) -> &str {
    row[at].as_str().expect("a text")
}

fn number(row: &Value, at: usize) -> f64 {
    row[at].as_f64().expect("a number")
}

#[test]
fn duckdb_finds_what_was_planted() {
    ask(&["--duckdb"]);
}

/// `make spark`: a Java machine takes its time.
#[test]
fn spark_answers_like_duckdb() {
    let update = std::env::var_os("UPDATE_SNAPSHOTS").is_some();
    ask(if size() != PAGE {
        &[]
    } else if update {
        &["--update"]
    } else {
        &["--check"]
    });
}

fn ask(how: &[&str]) {
    let (boards, runs) = size();
    let dir = tempfile::tempdir_in(common::place()).expect("a directory");
    let traces = fleet::generate(&dir.path().join("traces"), boards, runs);
    let set = dir.path().join("fleet");
    let start = std::time::Instant::now();
    let program = std::env::var_os("PROFINFER").map_or_else(common::profinfer, Into::into);
    let out = Command::new(program).args(["export", "--parquet"]).arg(&set).args(&traces).output();
    let out = out.expect("profinfer runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(String::from_utf8_lossy(&out.stdout).lines().count(), traces.len());
    println!("exported {} runs in {:.1} s", traces.len(), start.elapsed().as_secs_f64());

    let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut ask = Command::new("python3");
    ask.arg(common::source("fleet/questions.py")).arg(&set).arg(here.join("docs/SQL.md")).args(how);
    let Some(answers) = python::json(&mut ask) else { return };
    assert_eq!(answers["questions"].as_array().map(Vec::len), Some(10));
    planted(&answers);
}

fn planted(answers: &Value) {
    // The feed-forward network.
    assert_eq!(text(&rows(answers, 1)[0], 1), "ffn_out-{L}");
    // One operator, by as much as it was.
    let slower = rows(answers, 2);
    assert_eq!(slower.len(), 1, "{slower:?}");
    assert_eq!((text(&slower[0], 0), text(&slower[0], 1)), ("MUL_MAT", "ffn_up-{L}"));
    assert!((number(&slower[0], 3) - 100.0 * (SLOWER - 1.0)).abs() < 0.5, "{slower:?}");
    // The slowest boards, and the ones with the least energy.
    assert_eq!((rows(answers, 3).len(), text(&rows(answers, 3)[0], 0)), (5, "RK3566"));
    assert!(rows(answers, 4).iter().all(|r| number(r, 3) > 0.0));
    // Two of eight experts for each token, the first ones more often.
    for layer in rows(answers, 5) {
        assert_eq!(number(layer, 1), 8.0);
        assert!(number(layer, 3) > 2.0 && number(layer, 3) < 7.9, "{layer}");
    }
    assert!(!rows(answers, 6).is_empty());
    // Every tenth board, and no other.
    for board in rows(answers, 7) {
        assert_eq!(text(board, 0).ends_with('3'), number(board, 1) > 1.0, "{board}");
    }
    assert!(number(&rows(answers, 7)[0], 1) > 2.0);
    let waiting = rows(answers, 8);
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert_eq!((text(&waiting[0], 0), text(&waiting[0], 1)), ("RK3566", "small-1b-q8_0.gguf"));
    assert_eq!(text(&rows(answers, 9)[0], 0), "Dimensity 900");
    assert!((number(&rows(answers, 9)[0], 2) - 2.0 * 1.7 / 2.7).abs() < 0.02);
    assert_eq!((rows(answers, 10).len(), text(&rows(answers, 10)[0], 1)), (4, "q4_0"));
}
