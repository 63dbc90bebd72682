//! `ggml-runner synth` from the command line.

use crate::common::runner_name;
use std::path::Path;
use std::process::{Command, Output};

fn synth(dir: &Path, args: &[&str]) -> Output {
    Command::new(runner_name()).arg("synth").args(args).current_dir(dir).output().expect("ggml-runner runs")
}

fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn writes_a_model_and_only_that() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let o = synth(dir.path(), &["tiny", "m.gguf", "--type", "q4_0"]);
    assert!(o.status.success(), "{}", stderr(&o));
    assert!(o.stdout.is_empty() && o.stderr.is_empty(), "no progress but on a terminal");
    assert_eq!(files(dir.path()), ["m.gguf"]);
    let to_stdout = synth(dir.path(), &["tiny", "-", "--type", "q4_0"]);
    assert!(to_stdout.stdout == std::fs::read(dir.path().join("m.gguf")).expect("the model"));
}

#[test]
fn an_existing_file_is_replaced_only_by_force() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, "precious").expect("written");
    let o = synth(dir.path(), &["tiny", "m.gguf"]);
    assert_eq!(o.status.code(), Some(1));
    assert!(stderr(&o).contains("--force"), "{}", stderr(&o));
    assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    assert!(synth(dir.path(), &["tiny", "m.gguf", "--force", "--type", "q4_0"]).status.success());
    assert_eq!(std::fs::read(&path).expect("a model").get(..4), Some(&b"GGUF"[..]));
    assert_eq!(files(dir.path()), ["m.gguf"]);
}

#[test]
fn a_failed_write_leaves_nothing_and_keeps_the_old_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("old.gguf"), "precious").expect("written");
    // A file size limit stands in for a full disk.
    for args in ["tiny new.gguf", "tiny old.gguf --force"] {
        let script = format!("trap '' XFSZ; ulimit -f 64; exec '{}' synth {args}", runner_name());
        let o = Command::new("sh").args(["-c", &script]).current_dir(dir.path()).output().expect("sh runs");
        assert_eq!(o.status.code(), Some(1));
        assert!(stderr(&o).contains("MB needed; incomplete file removed"), "{}", stderr(&o));
        assert_eq!(stderr(&o).lines().count(), 1);
    }
    assert_eq!(files(dir.path()), ["old.gguf"]);
    assert_eq!(std::fs::read(dir.path().join("old.gguf")).expect("still there"), b"precious");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_one_clear_line() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let o = synth(dir.path(), &["tiny", "/dev/full"]);
    assert_eq!(o.status.code(), Some(1));
    assert!(stderr(&o).starts_with("ggml-runner: write /dev/full: No space left"), "{}", stderr(&o));
    assert!(Path::new("/dev/full").exists());
}

#[test]
fn wrong_usage_says_what_is_right() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let o = synth(dir.path(), &["nope", "m.gguf"]);
    assert_eq!(o.status.code(), Some(1));
    assert!(stderr(&o).contains("llama1b-L4"), "{}", stderr(&o));
    for args in [&["tiny"][..], &[], &["tiny", "m.gguf", "--type", "q9"], &["--list", "tiny", "m.gguf"]] {
        assert_eq!(synth(dir.path(), args).status.code(), Some(2), "{args:?}");
    }
    let o = synth(dir.path(), &["tiny", "m.gguf", "--graph", "onnx"]);
    let said = stderr(&o);
    assert_eq!((o.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(["'onnx'", "--graph", "llama", "exported"].iter().all(|part| said.contains(part)), "{said}");
    let o = synth(dir.path(), &["tiny", "."]);
    assert_eq!(o.status.code(), Some(1));
    assert!(files(dir.path()).is_empty());
}

#[test]
fn the_list_names_every_preset() {
    let o = synth(Path::new("."), &["--list"]);
    assert!(o.status.success());
    let text = String::from_utf8(o.stdout).expect("text");
    for p in &runner::synth::presets::PRESETS {
        assert!(text.lines().any(|l| l.starts_with(&format!("{} ", p.name))), "{}", p.name);
    }
}
