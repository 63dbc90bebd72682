//! Python scripts used by tests. If a dependency is missing, they exit with 3 and name it.

use std::process::Command;

use serde_json::Value;

use super::skips;

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
