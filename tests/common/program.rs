//! Programs that a test copies in order to run the copy.

use std::path::Path;
use std::process::Command;

/// Copies a program with its mode. `cp` does it: were the copy written by this process, a child that another test's
/// thread starts meanwhile would have it open for writing too, and the kernel runs no such file (ETXTBSY).
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let done = Command::new("cp").arg("--preserve=mode").arg(from).arg(to).status().expect("cp runs");
    assert!(done.success(), "{} is not copied to {}", from.display(), to.display());
}
