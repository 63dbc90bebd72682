//! Programs that a test copies to run the copy.

use std::path::Path;
use std::process::Command;

/// Copies a program with its mode. Uses `cp`: if this process wrote the copy, a child started meanwhile by another
/// test's thread would also have it open for writing, and the kernel refuses to run such a file (ETXTBSY).
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let done = Command::new("cp").arg("--preserve=mode").arg(from).arg(to).status().expect("cp runs");
    assert!(done.success(), "{} is not copied to {}", from.display(), to.display());
}
