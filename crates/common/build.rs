//! Embeds the source commit in the programs' version string.
#![allow(clippy::expect_used, reason = "a build script stops the build")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace root, relative to this crate.
const ROOT: &str = "../..";

/// Inputs of the programs: after a change here they differ from what the commit says.
const SOURCES: [&str; 7] = ["build.rs", "Cargo.toml", "Cargo.lock", "src", "crates", "cross", "conf"];

fn main() {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={ROOT}/{source}");
    }
    println!("cargo::rerun-if-env-changed=PROFINFER_COMMIT");
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION");
    // Sources without git, e.g. from an archive, omit the commit or take it from the environment.
    let version = match std::env::var("PROFINFER_COMMIT").ok().or_else(commit) {
        Some(commit) if !commit.is_empty() => format!("{version} ({commit})"),
        _ => version,
    };
    println!("cargo::rustc-env=PROFINFER_VERSION={version}");
}

/// The commit checked out here, followed by `, dirty` if tracked sources differ from it.
fn commit() -> Option<String> {
    // Sources unpacked inside another repository are not from its commit.
    let top = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != Path::new(ROOT).canonicalize().ok()? {
        return None;
    }
    // HEAD's log grows with each commit, checkout and reset, also with packed references. If there is none, watch
    // HEAD and its branch. Do not name missing paths: cargo would rebuild every time.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]).unwrap_or_default();
    for name in ["HEAD", "logs/HEAD", "packed-refs", &branch] {
        let path = git(&["rev-parse", "--git-path", name]).unwrap_or_default();
        let path = Path::new(ROOT).join(path);
        if !name.is_empty() && path.is_file() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&[
        &["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--"],
        &SOURCES[..],
    ]
    .concat())?;
    Some(if changed.is_empty() { commit } else { format!("{commit}, dirty") })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(["-C", ROOT])
        .args(arguments)
        .output()
        .ok()
        .filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}
