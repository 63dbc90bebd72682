//! The machine's mode of transparent huge pages, changed for a run and restored: at the end of a run, and after a kill by
//! the next `tune`, or `tune --restore`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Documentation/admin-guide/mm/transhuge.rst.
const ENABLED: &str = "kernel/mm/transparent_hugepage/enabled";
/// Note of the mode to restore. In /run, which is empty after a boot, as the mode is the default then.
const NOTE: &str = "/run/profinfer-tune.mode";

/// Why the mode could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct ModeError {
    path: PathBuf,
    source: io::Error,
}

/// A changed mode; restored when dropped.
#[derive(Debug)]
pub struct ChangedMode {
    file: PathBuf,
    note: PathBuf,
    before: String,
}

fn failed(path: &Path) -> impl Fn(io::Error) -> ModeError {
    let path = path.to_owned();
    move |source| ModeError { path: path.clone(), source }
}

fn places(sysfs: &Path) -> (PathBuf, PathBuf) {
    // A tree for tests keeps its own note.
    let note =
        if sysfs == Path::new("/sys") { PathBuf::from(NOTE) } else { sysfs.join("profinfer-tune.mode") };
    (sysfs.join(ENABLED), note)
}

/// The selected mode of `always [madvise] never`.
fn selected(text: &str) -> Option<&str> {
    text.split(['[', ']']).nth(1).filter(|mode| ["always", "madvise", "never"].contains(mode))
}

impl ChangedMode {
    /// Sets a mode. The note is written first.
    ///
    /// # Errors
    /// The kernel has no such setting, or it may not be written.
    pub fn set(sysfs: &Path, mode: &str) -> Result<ChangedMode, ModeError> {
        restore(sysfs)?;
        let (file, note) = places(sysfs);
        let text = fs::read_to_string(&file).map_err(failed(&file))?;
        let unknown = || failed(&file)(io::Error::other("no mode is selected in it"));
        let before = selected(&text).ok_or_else(unknown)?.to_owned();
        let mut out = File::create(&note).map_err(failed(&note))?;
        out.write_all(before.as_bytes()).and_then(|()| out.sync_all()).map_err(failed(&note))?;
        let changed = ChangedMode { file, note, before };
        fs::write(&changed.file, mode).map_err(failed(&changed.file))?;
        Ok(changed)
    }
}

impl Drop for ChangedMode {
    fn drop(&mut self) {
        // If this fails, the note stays, and the next call tries again.
        if fs::write(&self.file, &self.before).is_ok() {
            let _ = fs::remove_file(&self.note);
        }
    }
}

/// Restores the mode that a killed `tune` left changed; returns it.
///
/// # Errors
/// It cannot be written.
pub fn restore(sysfs: &Path) -> Result<Option<String>, ModeError> {
    let (file, note) = places(sysfs);
    let before = match fs::read_to_string(&note) {
        Ok(before) => before,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(&note)(e)),
    };
    // A note cut short by a crash was written before the mode was changed.
    let known = ["always", "madvise", "never"].contains(&before.as_str());
    if known {
        fs::write(&file, &before).map_err(failed(&file))?;
    }
    fs::remove_file(&note).map_err(failed(&note))?;
    Ok(known.then_some(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let file = root.path().join(ENABLED);
        fs::create_dir_all(file.parent().expect("a parent")).expect("created");
        fs::write(file, "always [madvise] never\n").expect("written");
        root
    }

    fn mode(root: &Path) -> String {
        fs::read_to_string(root.join(ENABLED)).expect("a file")
    }

    #[test]
    fn the_mode_comes_back() {
        let root = tree();
        let changed = ChangedMode::set(root.path(), "always").expect("set");
        assert_eq!(mode(root.path()), "always");
        drop(changed);
        assert_eq!(mode(root.path()), "madvise");
        assert_eq!(restore(root.path()).expect("nothing to do"), None);
    }

    #[test]
    fn what_a_kill_left_is_restored() {
        let root = tree();
        std::mem::forget(ChangedMode::set(root.path(), "never").expect("set"));
        assert_eq!(restore(root.path()).expect("restored"), Some("madvise".to_owned()));
        assert_eq!(mode(root.path()), "madvise");
        let (_, note) = places(root.path());
        fs::write(&note, "mad").expect("written");
        assert_eq!(restore(root.path()).expect("a note cut short"), None);
        assert!(!note.exists());
    }

    #[test]
    fn a_kernel_without_the_setting_is_told() {
        let root = tempfile::tempdir().expect("a directory");
        let why = ChangedMode::set(root.path(), "never").expect_err("no file").to_string();
        assert!(why.contains(ENABLED), "{why}");
        let root = tree();
        fs::write(root.path().join(ENABLED), "nonsense").expect("written");
        assert!(ChangedMode::set(root.path(), "never").is_err());
        assert_eq!(mode(root.path()), "nonsense");
    }
}
