//! `--version` of both programs: the version, and the commit if known.

use crate::common::skips;
use std::path::Path;
use std::process::Command;

fn said(program: &str) -> String {
    let output = Command::new(program).arg("--version").output().expect("it runs");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn both_programs_say_what_they_are_built_from() {
    assert_eq!(said(env!("CARGO_BIN_EXE_profinfer")), format!("profinfer {}\n", profinfer::VERSION));
    assert_eq!(said(crate::common::runner_name()), format!("ggml-runner {}\n", profinfer::VERSION));
}

#[test]
fn an_option_of_no_subcommand_is_told_where_options_belong() {
    let output = Command::new(env!("CARGO_BIN_EXE_profinfer")).arg("-v").output().expect("it runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("unknown option '-v'; there are -h, --help and --version"), "{said}");
}

#[test]
fn the_commit_is_the_one_checked_out() {
    let version = profinfer::VERSION;
    let rest = version.strip_prefix(env!("CARGO_PKG_VERSION")).expect("the version comes first");
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    // Sources unpacked inside an unrelated repository must not report its commit.
    let ours = Path::new(here).join(".git").exists();
    let head = Command::new("git").args(["-C", here, "rev-parse", "--verify", "HEAD"]).output();
    let head = head.ok().filter(|o| ours && o.status.success());
    let (Some(head), None) = (head, option_env!("PROFINFER_COMMIT")) else {
        return skips::lacking("these sources are not in git, or the build was told its commit");
    };
    let head = String::from_utf8(head.stdout).expect("text");
    let commit = rest.strip_prefix(" (").and_then(|r| r.strip_suffix(')')).expect("a commit in brackets");
    let commit = commit.strip_suffix(", dirty").unwrap_or(commit);
    assert!(commit.len() >= 12 && head.starts_with(commit), "{version}, but HEAD is {head}");
}
