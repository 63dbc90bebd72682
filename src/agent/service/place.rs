//! A directory of our own, and files in it: opened without following links, refused where somebody else could put something
//! there. Uses nothing of this crate.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("{} is a link: give the directory that it leads to", .0.display())]
    Link(PathBuf),
    #[error("{} is no directory: remove it, or give another", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} belongs to user {owner} and not to user {us}, who runs this: chown it, or give another", path.display())]
    Owner { path: PathBuf, owner: u32, us: u32 },
    #[error("others may write to {} (mode {mode:04o}): chmod go-w it, or give another", path.display())]
    Mode { path: PathBuf, mode: u32 },
    #[error("cannot {what} {}: {source}; give a directory that user {us} may write to", path.display())]
    Io { what: &'static str, path: PathBuf, us: u32, source: io::Error },
}

/// A directory that is open: whatever is put in the place of its path later, this is the one that is used.
#[derive(Debug)]
pub struct Place {
    dir: File,
    path: PathBuf,
}

impl Place {
    /// Opens the directory; makes it (mode 0700) and those above it (0755) when it is missing.
    ///
    /// # Errors
    /// It is a link, or no directory, or belongs to somebody else, or others may write to it, or the system refuses.
    pub fn open(path: &Path) -> Result<Place, PlaceError> {
        // With a slash at its end a link would be followed.
        let path: PathBuf = path.components().collect();
        let failed = |what| {
            let path = path.clone();
            move |source| PlaceError::Io { what, path, us: us(), source }
        };
        if let Err(e) = fs::symlink_metadata(&path)
            && e.kind() == io::ErrorKind::NotFound
        {
            make(&path).map_err(failed("make"))?;
        }
        let dir = match directory().open(&path) {
            Ok(dir) => dir,
            Err(source) => return Err(refused(path, source)),
        };
        let found = dir.metadata().map_err(failed("look at"))?;
        let (owner, mode) = (found.uid(), found.permissions().mode() & 0o7777);
        if owner != us() {
            return Err(PlaceError::Owner { path, owner, us: us() });
        }
        if mode & 0o022 != 0 {
            return Err(PlaceError::Mode { path, mode });
        }
        Ok(Place { dir, path })
    }

    /// Its path, for people.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it is reached whatever its path leads to by now.
    pub fn here(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.dir.as_raw_fd()).into()
    }

    /// A name in it, for system calls.
    pub fn at(&self, name: &str) -> PathBuf {
        self.here().join(name)
    }

    /// A new file in it, mode 0600, to be written; a link that stands there is not followed.
    ///
    /// # Errors
    /// There is something of this name, or the system refuses.
    pub fn create(&self, name: &str) -> io::Result<File> {
        self.options().read(true).write(true).create_new(true).open(self.at(name))
    }

    /// A file in it that is kept, to be read and written; made where it is missing.
    ///
    /// # Errors
    /// It is a link, or the system refuses.
    pub fn keep(&self, name: &str) -> io::Result<File> {
        self.options().read(true).write(true).create(true).truncate(false).open(self.at(name))
    }

    /// A file in it, to be read.
    ///
    /// # Errors
    /// It is a link, or the system refuses.
    pub fn read(&self, name: &str) -> io::Result<File> {
        self.options().read(true).open(self.at(name))
    }

    /// Removes a file; it is all right when there is none.
    ///
    /// # Errors
    /// The system refuses.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.at(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// What is known of the directory itself.
    ///
    /// # Errors
    /// The system refuses.
    pub fn metadata(&self) -> io::Result<fs::Metadata> {
        self.dir.metadata()
    }

    /// An error of the system in words, with what was to be done with the directory.
    pub fn failed(&self, what: &'static str, source: io::Error) -> PlaceError {
        PlaceError::Io { what, path: self.path.clone(), us: us(), source }
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        // Not even a pipe put there keeps us waiting.
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        options
    }
}

/// The user that this process acts as.
pub fn us() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
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

/// Why it could not be opened: the kernel says the same of a link and of a file.
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
        let place = Place::open(&path).expect("it can be made");
        assert_eq!(place.metadata().expect("metadata").permissions().mode() & 0o7777, 0o700);
        place.create("x").expect("a file");
        let mode = fs::metadata(path.join("x")).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        // It stays the one that was opened.
        fs::rename(&path, dir.path().join("moved")).expect("it can be moved");
        fs::create_dir(&path).expect("another in its place");
        place.create("y").expect("a file");
        assert!(dir.path().join("moved/y").exists() && !path.join("y").exists());
    }

    #[test]
    fn what_is_not_ours_alone_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().expect("a directory");
        let says = |path: &Path| Place::open(path).expect_err("it is refused").to_string();
        let (link, file, open) = (dir.path().join("link"), dir.path().join("file"), dir.path().join("open"));
        symlink(dir.path(), &link).expect("a link");
        fs::write(&file, "").expect("a file");
        fs::create_dir(&open).expect("a directory");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("its mode");
        assert!(says(&link).ends_with("link is a link: give the directory that it leads to"));
        assert!(says(&link.join("")).contains("is a link"), "with a slash behind it");
        assert!(says(&file).contains("is no directory"));
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
        let place = Place::open(&dir.path().join("own")).expect("a place");
        let outside = dir.path().join("outside");
        symlink(&outside, place.at("link")).expect("a link");
        assert_eq!(place.create("link").expect_err("refused").kind(), io::ErrorKind::AlreadyExists);
        assert!(place.keep("link").is_err() && place.read("link").is_err());
        assert!(!outside.exists());
    }
}
