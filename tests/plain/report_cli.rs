//! `profinfer report` as a command: its output, exit codes and errors.

use crate::synth_trace;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use synth_trace::*;

fn trace() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec { layers: 1, ..Spec::default() });
    s.call(4, |p, t| 2000 + 10 * p as u64 + 5 * u64::from(t));
    for i in 0..3 {
        s.call(1, |p, t| 1000 + 10 * p as u64 + 5 * u64::from(t) + i);
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

fn profinfer(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    c.args(args).stdin(Stdio::null());
    c
}

fn with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child =
        profinfer(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A program that fails early may close its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn file(dir: &tempfile::TempDir, bytes: &[u8]) -> String {
    let path = dir.path().join("run.pfi");
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_string()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Compares with a file under tests/snapshots; UPDATE_SNAPSHOTS=1 writes it instead.
fn snapshot(name: &str, got: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap();
    assert_eq!(got, want, "the output changed; if it should, run again with UPDATE_SNAPSHOTS=1");
}

#[test]
fn the_whole_report() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(&dir, &trace());
    let out = profinfer(&["report", &file, "--verbose"]).output().unwrap();
    assert!(out.status.success());
    assert_eq!(text(&out.stderr), "");
    snapshot("report-verbose.txt", &text(&out.stdout));
    // Of a complete recording, the quality is one line.
    let out = profinfer(&["report", &file, "--all"]).output().unwrap();
    snapshot("report.txt", &text(&out.stdout));
    let out = profinfer(&["report", &file, "--json"]).output().unwrap();
    assert!(out.status.success());
    snapshot("report.json", &text(&out.stdout));
}

#[test]
fn markdown_is_the_verdict_and_the_tables() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(&dir, &trace());
    let out = profinfer(&["report", "run.pfi", "--markdown"]).current_dir(&dir).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let markdown = text(&out.stdout);
    snapshot("report.md", &markdown);
    let verdict = profinfer(&["report", "run.pfi"]).current_dir(&dir).output().unwrap();
    assert!(markdown.starts_with(&format!("```text\n{}```\n", text(&verdict.stdout))), "{markdown}");
    // All rows of a table have as many cells; tables are the ones of the text.
    let cells = |line: &str| line.replace("\\|", "").matches('|').count();
    let rows: Vec<&str> = markdown.lines().filter(|line| line.starts_with('|')).collect();
    let heads = rows
        .iter()
        .enumerate()
        .filter(|(_, line)| line.starts_with("| ---") || line.starts_with("| :---"))
        .map(|(i, _)| i - 1);
    let heads: Vec<usize> = heads.collect();
    for (at, head) in heads.iter().enumerate() {
        let end = heads.get(at + 1).copied().unwrap_or(rows.len());
        assert!(rows[*head..end].iter().all(|row| cells(row) == cells(rows[*head])), "{}", rows[*head]);
    }
    let all = profinfer(&["report", &file, "--all"]).output().unwrap();
    assert!(heads.len() > 5 && text(&all.stdout).matches("\nOperators by").count() > 1, "{}", heads.len());
    let one = profinfer(&["report", &file, "--markdown", "--by", "layer"]).output().unwrap();
    assert_eq!(text(&one.stdout).matches("\n## Operators by layer").count(), 2);
    let both = profinfer(&["report", &file, "--markdown", "--json"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn a_pipe_gives_the_same_as_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = trace();
    let from_file = profinfer(&["report", &file(&dir, &bytes), "--all"]).output().unwrap();
    let from_pipe = with_input(&["report", "-", "--all"], &bytes);
    assert_eq!(text(&from_file.stdout), text(&from_pipe.stdout));
}

#[test]
fn flags_choose_table_phase_and_rows() {
    let bytes = trace();
    let json = |args: &[&str]| -> serde_json::Value {
        let out = with_input(&[&["report", "-", "--json"], args].concat(), &bytes);
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let report = json(&["--by", "layer", "--phase", "decode", "--top", "1"]);
    let phases = report["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 1);
    assert_eq!(phases[0]["phase"], "decode");
    assert!(phases[0].get("by_op").is_none());
    let layers: Vec<_> = phases[0]["by_layer"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    assert_eq!(layers, ["layer 0", "(other)", "(barrier wait)", "(gaps)"]);
    for by in ["op", "name", "thread", "token"] {
        let report = json(&["--by", by]);
        assert!(report["phases"][0].get(format!("by_{by}")).is_some());
    }
}

#[test]
fn errors_are_one_line_and_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&[u8], &str); 4] = [
        (b"", "the trace is empty"),
        (b"hello", "not a profinfer trace: it looks like text"),
        (b"\x7fELF\x02\x01\x01", "a program or library (ELF)"),
        (&[0xa5; 5000], "not a profinfer trace"),
    ];
    for (bytes, want) in cases {
        let out = profinfer(&["report", &file(&dir, bytes)]).output().unwrap();
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{err}");
        assert!(err.starts_with("profinfer: cannot report on ") && err.contains(want), "{err}");
        assert!(err.contains("`profinfer record` writes traces"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert_eq!(text(&out.stdout), "");
    }
    let out = profinfer(&["report", "/no/such/file.pfi"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let err = text(&out.stderr);
    assert!(err.contains("/no/such/file.pfi") && err.contains("no such file"), "{err}");
    assert_eq!(err.matches("no such file").count(), 1, "{err}");
}

#[test]
fn a_trace_that_is_cut_in_its_first_block_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = trace();
    let out = profinfer(&["report", &file(&dir, &bytes[..200])]).output().unwrap();
    let err = text(&out.stderr);
    assert_eq!((out.status.code(), &*text(&out.stdout)), (Some(1), ""), "{err}");
    assert!(err.contains("nothing in its 200 bytes is readable"), "{err}");
    // A directory, and whose file it is.
    let out = profinfer(&["report", dir.path().to_str().unwrap()]).output().unwrap();
    let err = text(&out.stderr);
    assert!(err.contains("it is a directory: name a trace in it; traces there: "), "{err}");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let out = profinfer(&["report", &file(&dir, &bytes)]).stdout(full).output().unwrap();
    let err = text(&out.stderr);
    assert!(err.starts_with("profinfer: cannot write standard output: No space left"), "{err}");
}

#[test]
fn a_newer_trace_is_refused_by_its_version() {
    let mut bytes = trace();
    bytes[8..10].copy_from_slice(&9u16.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..12]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let out = with_input(&["report", "-"], &bytes);
    assert_eq!(out.status.code(), Some(1));
    let err = text(&out.stderr);
    assert!(err.contains("version 9.") && err.contains("use a newer profinfer"), "{err}");
}

#[test]
fn wrong_usage_is_exit_code_two() {
    for args in [
        &["report"][..],
        &["report", "x", "--by", "colour"],
        &["report", "x", "--top", "0"],
        &["report", "x", "--phase", "sleep"],
        &["nonsense"],
        &[],
    ] {
        let out = profinfer(args).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn help_has_examples() {
    let out = profinfer(&["report", "--help"]).output().unwrap();
    assert!(out.status.success());
    assert!(text(&out.stdout).contains("profinfer report run.pfi --all --phase decode"));
}

/// A closed pipe ends the output: no error, no message.
#[test]
fn a_broken_pipe_ends_quietly() {
    let dir = tempfile::tempdir().unwrap();
    for json in [&["--json"][..], &[]] {
        let file = file(&dir, &trace());
        let mut args = vec!["report", file.as_str()];
        args.extend(json);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out = profinfer(&args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(text(&out.stderr), "");
        assert_eq!(out.status.code(), Some(0));
    }
}

/// A command that this build lacks is reported as missing, not as unknown.
#[cfg(not(feature = "agent"))]
#[test]
fn a_build_without_the_recorder_says_so() {
    for name in ["record", "serve", "install"] {
        let output =
            std::process::Command::new(env!("CARGO_BIN_EXE_profinfer")).arg(name).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("without the recorder does not include '{name}'")), "{said}");
    }
}
