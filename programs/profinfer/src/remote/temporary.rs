//! A private directory on this machine for the time of a session.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use machine::owner;

/// A directory with mode 0700, removed in the end.
pub struct Temporary(PathBuf);

impl Temporary {
    /// In the first of these directories that can hold it: nobody else may be able to exchange it there, and its path
    /// may have at most `longest` bytes. `id` names the session.
    ///
    /// # Errors
    /// None of them can; with the reason for each.
    pub fn new(within: &[PathBuf], id: &str, longest: usize) -> Result<Temporary> {
        let mut reasons = Vec::new();
        for dir in within {
            let path = dir.join(format!("profinfer-{id}"));
            let made = usable(dir, &path, longest)
                .and_then(|()| make(&path).map_err(|e| format!("cannot create {}: {e}", path.display())));
            match made {
                Ok(()) => return Ok(Temporary(path)),
                Err(why) => reasons.push(why),
            }
        }
        bail!("no private directory on this machine: {}; name another one in TMPDIR", reasons.join("; "))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

fn usable(dir: &Path, path: &Path, longest: usize) -> Result<(), String> {
    if !dir.is_absolute() {
        return Err(format!("{} is not an absolute path", dir.display()));
    }
    if path.as_os_str().len() > longest {
        return Err(format!("the path of {} is too long", dir.display()));
    }
    owner::only_ours(dir)
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // It is in a directory for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_private_and_removed_in_the_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = Temporary::new(&[dir.path().to_owned()], "id", 4096).expect("a directory");
        assert_eq!(own.path(), dir.path().join("profinfer-id"));
        let mode = std::fs::metadata(own.path()).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        std::fs::write(own.path().join("s"), "").expect("written");
        drop(own);
        assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0);
    }

    #[test]
    fn directories_that_cannot_hold_it_are_passed_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let long = at(&"x".repeat(70));
        for name in [long.clone(), at("open"), at("taken/profinfer-id"), at("last")] {
            std::fs::create_dir_all(name).expect("made");
        }
        std::fs::set_permissions(at("open"), std::fs::Permissions::from_mode(0o777)).expect("its mode");
        let bad = ["relative".into(), long, at("open"), at("none"), at("taken")];
        let own = Temporary::new(&[&bad[..], &[at("last")]].concat(), "id", 80).expect("a directory");
        assert!(own.path().starts_with(at("last")));
        let said = Temporary::new(&bad, "id", 80).map(|_| ()).expect_err("no other").to_string();
        for why in
            ["not an absolute path", "too long", "its mode is 0777", "No such file", "File exists", "TMPDIR"]
        {
            assert!(said.contains(why), "{why}: {said}");
        }
    }
}
