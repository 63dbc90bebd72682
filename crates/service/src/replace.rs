//! Replaces files while others read them: a reader sees either the complete old file or the complete new one.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Suffix of the new file until it takes its place; its name begins with a dot.
pub const SUFFIX: &str = ".tmp";

/// Writes the complete file next to this path and then renames it into place; a link there is replaced, not
/// followed.
///
/// # Errors
/// The path has no file name, or the system refuses; the old file is unchanged.
pub fn replace(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let new = beside(path)?;
    // Left by a process that died.
    remove(&new)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(&new)?;
    // The requested mode, whatever the umask.
    let written = file
        .set_permissions(fs::Permissions::from_mode(mode))
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| drop(remove(&new)))
}

/// Removes what a process left that died while replacing this file. True: there was something.
///
/// # Errors
/// The system refuses.
pub fn clear(path: &Path) -> io::Result<bool> {
    remove(&beside(path)?)
}

fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(SUFFIX);
    Ok(path.with_file_name(hidden))
}

fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        done => done.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, target) = (dir.path().join("status.json"), dir.path().join("target"));
        fs::write(&target, "before").expect("a file");
        symlink(&target, &path).expect("a link");
        // Planted, or left by a process that died.
        symlink(&target, dir.path().join(".status.json.tmp")).expect("a link");
        assert!(clear(&path).expect("it goes") && !clear(&path).expect("nothing there"));
        symlink(&target, dir.path().join(".status.json.tmp")).expect("a link");
        replace(&path, 0o644, b"new").expect("it is replaced");
        assert_eq!(fs::read_to_string(&target).expect("the target"), "before");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "new");
        let found = fs::symlink_metadata(&path).expect("it is there");
        assert_eq!((found.is_file(), found.permissions().mode() & 0o777), (true, 0o644));
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 2);
    }

    #[test]
    fn where_it_cannot_be_the_old_one_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x");
        fs::create_dir(&path).expect("a directory");
        assert!(replace(&path, 0o600, b"new").is_err());
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing is left");
        assert!(replace(Path::new("/"), 0o600, b"").is_err());
        assert!(replace(&dir.path().join("no/x"), 0o600, b"").is_err());
    }
}
