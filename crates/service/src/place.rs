//! A directory of our own, and files in it: opened without following links, and refused if somebody else could put
//! something there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a directory is refused.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("{} is a symbolic link: give the directory it points to", .0.display())]
    Link(PathBuf),
    #[error("{} is not a directory: remove it, or give another one", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} belongs to user {owner}, but this runs as user {us}: chown it, or give another one", path.display())]
    Owner { path: PathBuf, owner: u32, us: u32 },
    #[error("others may write to {} (mode {mode:04o}): chmod go-w it, or give another one", path.display())]
    Mode { path: PathBuf, mode: u32 },
    #[error("cannot {what} {}: {source}; give a directory that user {us} may write to", path.display())]
    Io { what: &'static str, path: PathBuf, us: u32, source: io::Error },
}

/// An open directory: whatever later takes its path, this one is used.
#[derive(Debug)]
pub struct OpenDir {
    dir: File,
    path: PathBuf,
}

impl OpenDir {
    /// Opens the directory; if missing, creates it (mode 0700) and its parents (0755).
    ///
    /// # Errors
    /// It is a link or not a directory, it belongs to somebody else, others may write to it, or the system refuses.
    pub fn open(path: &Path) -> Result<OpenDir, PlaceError> {
        // A trailing slash would make a link be followed.
        let path: PathBuf = path.components().collect();
        let failed = |what| {
            let path = path.clone();
            move |source| PlaceError::Io { what, path, us: us(), source }
        };
        if let Err(e) = fs::symlink_metadata(&path)
            && e.kind() == io::ErrorKind::NotFound
        {
            make(&path).map_err(failed("create"))?;
        }
        let dir = match directory().open(&path) {
            Ok(dir) => dir,
            Err(source) => return Err(refused(path, source)),
        };
        let found = dir.metadata().map_err(failed("inspect"))?;
        let (owner, mode) = (found.uid(), found.permissions().mode() & 0o7777);
        if owner != us() {
            return Err(PlaceError::Owner { path, owner, us: us() });
        }
        if mode & 0o022 != 0 {
            return Err(PlaceError::Mode { path, mode });
        }
        Ok(OpenDir { dir, path })
    }

    /// Its path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path that reaches it, whatever its own path leads to by now.
    pub fn here(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.dir.as_raw_fd()).into()
    }

    /// A name in it, for system calls.
    pub fn at(&self, name: &str) -> PathBuf {
        self.here().join(name)
    }

    /// Creates a file in it for writing, mode 0600; an existing link is not followed.
    ///
    /// # Errors
    /// The name exists, or the system refuses.
    pub fn create(&self, name: &str) -> io::Result<File> {
        self.options().read(true).write(true).create_new(true).open(self.at(name))
    }

    /// Opens a permanent file in it for reading and writing; creates it if missing.
    ///
    /// # Errors
    /// It is a link, or the system refuses.
    pub fn keep(&self, name: &str) -> io::Result<File> {
        self.options().read(true).write(true).create(true).truncate(false).open(self.at(name))
    }

    /// Opens a file in it for reading.
    ///
    /// # Errors
    /// It is a link, or the system refuses.
    pub fn read(&self, name: &str) -> io::Result<File> {
        self.options().read(true).open(self.at(name))
    }

    /// Removes a file; a missing one is no error.
    ///
    /// # Errors
    /// The system refuses.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.at(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Metadata of the directory itself.
    ///
    /// # Errors
    /// The system refuses.
    pub fn metadata(&self) -> io::Result<fs::Metadata> {
        self.dir.metadata()
    }

    /// A system error as text, with the intended operation on the directory.
    pub fn failed(&self, what: &'static str, source: io::Error) -> PlaceError {
        PlaceError::Io { what, path: self.path.clone(), us: us(), source }
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        // Do not block even on a planted pipe.
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        options
    }
}

/// The effective user of this process.
pub fn us() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn directory() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW);
    options
}

fn make(path: &Path) -> io::Result<()> {
    if let Some(above) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o755).create(above)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Why it could not be opened: the kernel gives the same error for a link and for a file.
fn refused(path: PathBuf, source: io::Error) -> PlaceError {
    match fs::symlink_metadata(&path) {
        Ok(found) if found.is_symlink() => PlaceError::Link(path),
        Ok(found) if !found.is_dir() => PlaceError::NoDirectory(path),
        _ => PlaceError::Io { what: "open", path, us: us(), source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_directory_is_made_for_us_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a/b");
        let place = OpenDir::open(&path).expect("it can be made");
        assert_eq!(place.metadata().expect("metadata").permissions().mode() & 0o7777, 0o700);
        place.create("x").expect("a file");
        let mode = fs::metadata(path.join("x")).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        // It remains the directory that was opened.
        fs::rename(&path, dir.path().join("moved")).expect("it can be moved");
        fs::create_dir(&path).expect("another in its place");
        place.create("y").expect("a file");
        assert!(dir.path().join("moved/y").exists() && !path.join("y").exists());
    }

    #[test]
    fn what_is_not_ours_alone_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().expect("a directory");
        let says = |path: &Path| OpenDir::open(path).expect_err("it is refused").to_string();
        let (link, file, open) = (dir.path().join("link"), dir.path().join("file"), dir.path().join("open"));
        symlink(dir.path(), &link).expect("a link");
        fs::write(&file, "").expect("a file");
        fs::create_dir(&open).expect("a directory");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("its mode");
        assert!(says(&link).ends_with("link is a symbolic link: give the directory it points to"));
        assert!(says(&link.join("")).contains("is a symbolic link"), "with a slash behind it");
        assert!(says(&file).contains("is not a directory"));
        assert!(says(&open).contains("(mode 0777): chmod go-w"));
        assert!(says(&file.join("below")).contains("Not a directory"));
        let others = if us() == 0 { None } else { Some(Path::new("/")) };
        if let Some(root) = others {
            assert!(says(root).contains("belongs to user 0"));
        }
    }

    #[test]
    fn links_in_it_are_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = OpenDir::open(&dir.path().join("own")).expect("a place");
        let outside = dir.path().join("outside");
        symlink(&outside, place.at("link")).expect("a link");
        assert_eq!(place.create("link").expect_err("refused").kind(), io::ErrorKind::AlreadyExists);
        assert!(place.keep("link").is_err() && place.read("link").is_err());
        assert!(!outside.exists());
    }
}
