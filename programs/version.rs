//! The build script of both programs: embeds the commit of the sources in their version, and links the files for boards.
#![allow(clippy::expect_used, reason = "a build script stops the build")]

use std::path::Path;
use std::process::Command;

/// The top of the sources, where this script looks for the inputs of a program.
const TOP: &str = "../..";

/// Inputs of both programs: after a change here they differ from what the commit says. What is in `crates` does not
/// know the commit, and is not compiled again for it.
const SOURCES: [&str; 3] = ["Cargo.toml", "Cargo.lock", "crates"];

/// Further inputs of the program of a package.
fn own(package: &str) -> &'static [&'static str] {
    match package {
        "profinfer" => &["programs/profinfer", "build.rs", "src", "cross", "conf"],
        _ => &["programs/ggml-runner", "cross"],
    }
}

fn main() {
    std::env::set_current_dir(TOP).expect("programs are two folders below the top");
    let package = std::env::var("CARGO_PKG_NAME").expect("cargo sets CARGO_PKG_NAME");
    let sources = [&SOURCES[..], own(&package), &["programs/version.rs"]].concat();
    for source in &sources {
        println!("cargo::rerun-if-changed={TOP}/{source}");
    }
    println!("cargo::rerun-if-env-changed=PROFINFER_COMMIT");
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION");
    // Sources without git, e.g. from an archive, omit the commit or take it from the environment.
    let version = match std::env::var("PROFINFER_COMMIT").ok().or_else(|| commit(&sources)) {
        Some(commit) if !commit.is_empty() => format!("{version} ({commit})"),
        _ => version,
    };
    println!("cargo::rustc-env=PROFINFER_VERSION={version}");
    println!("cargo::rerun-if-env-changed=PROFINFER_MERGE");
    // Identical functions are merged; not in ggml-runner, where a probe on one would hit the other.
    if package == "profinfer" && std::env::var_os("PROFINFER_MERGE").is_some() {
        println!("cargo::rustc-link-arg-bins=--icf=all");
    }
}

/// The commit checked out here, followed by `, dirty` if tracked sources differ from it.
fn commit(sources: &[&str]) -> Option<String> {
    // Sources unpacked inside another repository are not from its commit.
    let top = Path::new(&git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    if top != Path::new(".").canonicalize().ok()? {
        return None;
    }
    // HEAD's log grows with each commit, checkout and reset, also with packed references. If there is none, watch
    // HEAD and its branch. Do not name missing paths: cargo would rebuild every time.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]).unwrap_or_default();
    for name in ["HEAD", "logs/HEAD", "packed-refs", &branch] {
        let path = git(&["rev-parse", "--git-path", name]).unwrap_or_default();
        if !name.is_empty() && Path::new(&path).is_file() {
            println!("cargo::rerun-if-changed={}", Path::new(TOP).join(path).display());
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed =
        git(&[&["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--"], sources]
            .concat())?;
    Some(if changed.is_empty() { commit } else { format!("{commit}, dirty") })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim_end().to_owned())
}
