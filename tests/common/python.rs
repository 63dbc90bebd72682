//! Python scripts used by tests. If a dependency is missing, they exit with 3 and name it.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::skips;

/// Where scripts/setup.sh puts a package.
pub fn package(name: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    cache.unwrap_or_else(home).join("profinfer").join(name)
}

/// A command's output as JSON; `None` if it cannot run here. A failure if tests must not be skipped.
#[track_caller]
pub fn json(command: &mut Command) -> Option<Value> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let why = match command.output() {
        Ok(out) if out.status.success() => return Some(serde_json::from_slice(&out.stdout).unwrap()),
        Ok(out) if out.status.code() == Some(3) => text(&out.stderr),
        Ok(out) => panic!("{}", text(&out.stderr)),
        Err(e) => format!("no python3: {e}"),
    };
    skips::skipped(&why);
    None
}
