//! Output files of a subcommand: private to the user unless another mode is requested, and never something that
//! somebody else has put under the name.
//!
//! The directory is opened once, and names are looked up in it. A new file gets its name immediately, so that a
//! killed recording can be found. A replacement is written next to the old file and takes its name when it is worth
//! it. Links are not followed, except to a pipe or a device, and in a directory where nobody else can create one.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, OsStr};
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::args::Flag;
use common::files;

/// Who may read the output.
pub const MODE: Flag =
    Flag::value("mode", "MODE", "Permissions of FILE, in octal; 0640 allows its group to read it")
        .default("0600")
        .valid(|text| mode(text).map(drop));

/// File permissions: the owner may read and write, others at most read, the group both.
///
/// # Errors
/// Any other permissions.
pub fn mode(text: &str) -> Result<u32, String> {
    let wanted = "expected octal digits, e.g. 0600, 0640 or 0644; the owner must have read and write access, execute \
     bits and write access for others are not allowed";
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let mode = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    mode.filter(|mode| mode & 0o600 == 0o600 && mode & !0o664 == 0).ok_or_else(|| wanted.to_owned())
}

/// What to do with an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// Fail.
    Never,
    /// Replace it, with a file named FILE.part until then.
    Part,
    /// Replace it, with a file that nobody is meant to find until then.
    Hidden,
}

/// A file being written, or a pipe or device named by the user.
pub struct Output {
    file: File,
    name: Option<Rc<Name>>,
}

/// The name of a file being written.
pub struct Name {
    dir: Dir,
    last: CString,
    /// Its temporary name while another file has the name.
    part: RefCell<Option<CString>>,
    path: PathBuf,
    /// Device and inode.
    id: Cell<(u64, u64)>,
}

impl Output {
    /// Creates it with these permissions.
    ///
    /// # Errors
    /// A file exists and may not be replaced, the name is something that cannot be a file, or the system refuses.
    /// The message includes the name and what to do.
    pub fn create(path: &Path, over: Over, mode: u32) -> Result<Output> {
        let cannot = || format!("cannot write {}: give another place with -o", path.display());
        let Some(last) = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/")) else {
            bail!("{}: is a directory: give a file name with -o", path.display());
        };
        let above = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = Dir::open(above).with_context(cannot)?;
        let name = Name {
            dir,
            last: c_string(last).with_context(cannot)?,
            part: RefCell::new(None),
            path: path.to_owned(),
            id: Cell::new((0, 0)),
        };
        // Retry if the existing file appears or vanishes meanwhile.
        for _ in 0..8 {
            let made = match name.dir.look(&name.last) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => name.dir.create(&name.last, mode),
                Err(e) => return Err(e).with_context(cannot),
                Ok(found) => match name.over(&found, over, mode)? {
                    Stands::Stream(file) => return Ok(Output { file, name: None }),
                    Stands::Beside(made) => made,
                },
            };
            match made {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e).with_context(cannot),
                Ok(file) => {
                    let found = file.metadata().with_context(cannot)?;
                    name.id.set((found.dev(), found.ino()));
                    return Ok(Output { file, name: Some(Rc::new(name)) });
                }
            }
        }
        bail!("{} keeps changing: give another name with -o", path.display())
    }

    /// Gives a new file to this user and group if they own the directory or anybody can write to it: there they
    /// could have created it themselves. False: elsewhere, it stays ours. A pipe or a device keeps its owner.
    ///
    /// # Errors
    /// The system refuses.
    pub fn give(&self, uid: u32, gid: u32) -> io::Result<bool> {
        let Some(name) = &self.name else { return Ok(true) };
        let dir = name.dir.0.metadata()?;
        let his = dir.uid() == uid || dir.mode() & 0o002 != 0;
        if his {
            std::os::unix::fs::fchown(&self.file, Some(uid), Some(gid))?;
        }
        Ok(his)
    }

    /// Its name; None for a pipe or a device.
    pub fn name(&self) -> Option<Rc<Name>> {
        self.name.clone()
    }
}

/// What is written, given what exists.
enum Stands {
    Stream(File),
    Beside(io::Result<File>),
}

impl Name {
    fn over(&self, found: &Found, over: Over, mode: u32) -> Result<Stands> {
        let shown = self.path.display();
        let ours = found.kind != libc::S_IFLNK;
        if found.streams()
            || found.kind == libc::S_IFLNK && self.dir.look_through(&self.last).is_ok_and(|f| f.streams())
        {
            if !self
                .dir
                .trusts(found, ours)
                .with_context(|| format!("cannot access the directory of {shown}"))?
            {
                bail!(
                    "{shown} belongs to another user, in a directory that others can write to: give \
                     another name with -o"
                );
            }
            let file = self.dir.stream(&self.last, ours).with_context(|| format!("cannot write {shown}"))?;
            return Ok(Stands::Stream(file));
        }
        match (found.kind, over) {
            (libc::S_IFLNK, _) => {
                bail!("{shown} is a link, which is not followed: give its target or another name with -o")
            }
            (libc::S_IFDIR, _) => bail!("{shown} is a directory: give a file name with -o"),
            (libc::S_IFREG, Over::Never) => {
                bail!("{shown} exists: give another name with -o, or use --force to replace it")
            }
            (libc::S_IFREG, _) => Ok(Stands::Beside(self.beside(over, mode))),
            _ => bail!("{shown} is not a regular file, pipe or terminal: give another name with -o"),
        }
    }

    /// Creates a new file next to the one to replace.
    fn beside(&self, over: Over, mode: u32) -> io::Result<File> {
        // Short enough to be a valid name with the additions.
        let last = self.last.as_bytes();
        let last = last.get(..200).unwrap_or(last);
        let mut refused = io::Error::from(io::ErrorKind::AlreadyExists);
        for n in 1..100 {
            let number = if n > 1 { n.to_string() } else { String::new() };
            let (before, behind) = match over {
                Over::Hidden => (".", format!(".{}{number}.tmp", std::process::id())),
                _ => ("", format!(".part{number}")),
            };
            let part = c_string(OsStr::from_bytes(&[before.as_bytes(), last, behind.as_bytes()].concat()))?;
            match self.dir.create(&part, mode) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => refused = e,
                made => {
                    *self.part.borrow_mut() = made.is_ok().then_some(part);
                    return made;
                }
            }
        }
        // Another attempt would not find more.
        Err(io::Error::other(format!("too many unfinished files next to it: {refused}")))
    }

    /// The file's current path.
    pub fn now(&self) -> PathBuf {
        match &*self.part.borrow() {
            Some(part) => self.path.with_file_name(OsStr::from_bytes(part.as_bytes())),
            None => self.path.clone(),
        }
    }

    /// Whether another file still has the name.
    pub fn is_part(&self) -> bool {
        self.part.borrow().is_some()
    }

    /// Takes the final name, replacing the file that has it, if any.
    ///
    /// # Errors
    /// The system refuses; the message has both names.
    pub fn settle(&self) -> Result<()> {
        let Some(part) = self.part.borrow().clone() else { return Ok(()) };
        self.dir
            .rename(&part, &self.last)
            .with_context(|| format!("{} cannot replace {}", self.now().display(), self.path.display()))?;
        *self.part.borrow_mut() = None;
        Ok(())
    }

    /// Size of the file, as long as it exists.
    pub fn bytes(&self) -> Option<u64> {
        let part = self.part.borrow();
        let found = self.dir.look(part.as_ref().unwrap_or(&self.last)).ok()?;
        (found.id == self.id.get()).then_some(found.bytes)
    }

    /// Removes the file, and nothing else that may have the name by now.
    pub fn remove(&self) {
        if self.bytes().is_some() {
            let part = self.part.borrow();
            // What would be left is empty, or nearly so.
            let _ = self.dir.remove(part.as_ref().unwrap_or(&self.last));
        }
    }
}

/// Removes an unfinished file on every exit path.
struct Unfinished(Option<Rc<Name>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(name) = &self.0 {
            name.remove();
        }
    }
}

/// Writes a complete file in place of an existing one; `content` says whether it is worth keeping.
///
/// # Errors
/// Those of [`Output::create`] and of `content`; the existing file is unchanged.
pub fn whole<T>(
    path: &Path,
    mode: u32,
    keep: impl FnOnce(&T) -> bool,
    content: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> Result<T> {
    let out = Output::create(path, Over::Hidden, mode)?;
    let mut unfinished = Unfinished(out.name());
    let mut out = BufWriter::with_capacity(64 << 10, out.file);
    let done = content(&mut out).and_then(|done| out.flush().map(|()| done));
    let done = done.with_context(|| format!("cannot write {}", path.display()))?;
    if keep(&done)
        && let Some(name) = &unfinished.0
    {
        name.settle()?;
        unfinished.0 = None;
    }
    Ok(done)
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl pfi::Output for Output {
    fn seekable(&self) -> bool {
        self.file.seekable()
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        pfi::Output::write_at(&mut self.file, pos, bytes)
    }
}

fn c_string(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// An open directory: whatever later takes its path, this one is used.
struct Dir(File);

/// What exists under a name.
struct Found {
    kind: libc::mode_t,
    owner: u32,
    id: (u64, u64),
    bytes: u64,
}

impl Found {
    /// A pipe, a terminal or /dev/null: it is written to directly.
    fn streams(&self) -> bool {
        matches!(self.kind, libc::S_IFIFO | libc::S_IFCHR)
    }
}

/// Opening a pipe without a reader fails; time until the next attempt.
const PAUSE: Duration = Duration::from_millis(20);

impl Dir {
    fn open(path: &Path) -> io::Result<Dir> {
        // Names are looked up in it; it need not be readable.
        files::locate(path, libc::O_DIRECTORY).map(Dir)
    }

    fn look(&self, name: &CString) -> io::Result<Found> {
        self.stat(name, libc::AT_SYMLINK_NOFOLLOW)
    }

    fn look_through(&self, link: &CString) -> io::Result<Found> {
        self.stat(link, 0)
    }

    #[allow(clippy::unnecessary_cast, reason = "the types of stat's fields differ from system to system")]
    fn stat(&self, name: &CString, how: libc::c_int) -> io::Result<Found> {
        // SAFETY: all zeros is a valid value of the struct, which the kernel fills; the name is NUL-terminated.
        let (done, found) = unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            (libc::fstatat(self.0.as_raw_fd(), name.as_ptr(), &raw mut found, how), found)
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Found {
            kind: found.st_mode & libc::S_IFMT,
            owner: found.st_uid,
            id: (found.st_dev as u64, found.st_ino as u64),
            bytes: u64::try_from(found.st_size).unwrap_or(0),
        })
    }

    /// Whether it is safe to write to, not planted by somebody else: it is ours or root's, or nobody else can write
    /// to the directory. For a link only the latter counts.
    fn trusts(&self, found: &Found, may_be_ours: bool) -> io::Result<bool> {
        // SAFETY: takes no arguments and cannot fail.
        let us = unsafe { libc::geteuid() };
        let closed = self.0.metadata()?.permissions().mode() & 0o022 == 0;
        Ok(closed || may_be_ours && (found.owner == us || found.owner == 0))
    }

    fn openat(&self, name: &CString, flags: libc::c_int) -> io::Result<File> {
        // SAFETY: the name is NUL-terminated; the mode has the type that the call takes with O_CREAT.
        let fd = unsafe {
            libc::openat(self.0.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, 0o600 as libc::c_uint)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nobody else has it.
        Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn create(&self, name: &CString, mode: u32) -> io::Result<File> {
        let file = self.openat(name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW)?;
        if mode != 0o600 {
            // As requested, whatever the umask.
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(file)
    }

    /// Opens a pipe or a device; waits for a pipe's reader, as a shell does.
    fn stream(&self, name: &CString, direct: bool) -> io::Result<File> {
        let follow = if direct { libc::O_NOFOLLOW } else { 0 };
        loop {
            match self.openat(name, libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | follow) {
                Err(e) if e.raw_os_error() == Some(libc::ENXIO) => std::thread::sleep(PAUSE),
                Err(e) => return Err(e),
                Ok(file) => {
                    let kind = file.metadata()?.file_type();
                    if !kind.is_fifo() && !kind.is_char_device() {
                        return Err(io::Error::other("it has been replaced meanwhile"));
                    }
                    // SAFETY: changes the flags of an open descriptor: writes block again.
                    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) } != 0 {
                        return Err(io::Error::last_os_error());
                    }
                    return Ok(file);
                }
            }
        }
    }

    fn rename(&self, from: &CString, to: &CString) -> io::Result<()> {
        let fd = self.0.as_raw_fd();
        // SAFETY: both names are NUL-terminated.
        match unsafe { libc::renameat(fd, from.as_ptr(), fd, to.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn remove(&self, name: &CString) -> io::Result<()> {
        // SAFETY: the name is NUL-terminated.
        match unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests;
