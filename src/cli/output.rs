//! Files that a subcommand writes: for the user alone unless another mode is asked for, and never what somebody else has put
//! under the name. Uses `trace`'s outputs.
//!
//! The directory is opened once, and names are looked up in it. A new file gets its name at once, so that a recording that is
//! killed is found. One that replaces another is written beside it and takes its name when it is worth that. A link is not
//! followed, but to a pipe or a device, and in a directory where nobody else can put one.

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
use crate::{files, trace};

/// Who may read what is written.
pub const MODE: Flag =
    Flag::value("mode", "MODE", "Permissions of FILE when it is made, in octal: 0640 lets its group read it")
        .default("0600")
        .valid(|text| mode(text).map(drop));

/// Permissions of a file: its owner may read and write it, others at most read, its group both.
///
/// # Errors
/// Others.
pub fn mode(text: &str) -> Result<u32, String> {
    let wanted = "wanted: octal digits, e.g. 0600, 0640 or 0644; the owner reads and writes, nobody executes, others do not write";
    let digits = (3..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let mode = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    mode.filter(|mode| mode & 0o600 == 0o600 && mode & !0o664 == 0).ok_or_else(|| wanted.to_owned())
}

/// What becomes of a file that stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// It is an error.
    Never,
    /// It is replaced, by one that is called FILE.part until then.
    Part,
    /// It is replaced, by one that nobody is to find until then.
    Hidden,
}

/// A file being written, or a pipe or device that the user named.
pub struct Output {
    file: File,
    name: Option<Rc<Name>>,
}

/// The name of a file being written.
pub struct Name {
    dir: Dir,
    last: CString,
    /// What it is called as long as another one has the name.
    part: RefCell<Option<CString>>,
    path: PathBuf,
    /// Device and inode.
    id: Cell<(u64, u64)>,
}

impl Output {
    /// Creates it with these permissions.
    ///
    /// # Errors
    /// There is one and it is not to be replaced, or something that is no place for a file; or the system refuses. With its
    /// name, and what to do.
    pub fn create(path: &Path, over: Over, mode: u32) -> Result<Output> {
        let cannot = || format!("cannot write {}: give another place with -o", path.display());
        let Some(last) = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/")) else {
            bail!("{}: a directory is no place for a file: give a name with -o", path.display());
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
        // Again where what stands there comes or goes meanwhile.
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
        bail!("{} changes all the time: give another name with -o", path.display())
    }

    /// Gives a new file to this user and group, where the directory is his or anybody's to write in: there he could have made
    /// it himself. False: elsewhere, and then it stays ours. A pipe or a device stays whose it is.
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

    /// Its name; none where it is a pipe or a device.
    pub fn name(&self) -> Option<Rc<Name>> {
        self.name.clone()
    }
}

/// What is written where something stands.
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
                .with_context(|| format!("cannot look at the directory of {shown}"))?
            {
                bail!(
                    "{shown} is somebody else's, in a directory that others write to: give another name with -o"
                );
            }
            let file = self.dir.stream(&self.last, ours).with_context(|| format!("cannot write {shown}"))?;
            return Ok(Stands::Stream(file));
        }
        match (found.kind, over) {
            (libc::S_IFLNK, _) => {
                bail!("{shown} is a link, which is not followed: give the file that it leads to, or another")
            }
            (libc::S_IFDIR, _) => bail!("{shown} is a directory: give the name of a file with -o"),
            (libc::S_IFREG, Over::Never) => {
                bail!("{shown} exists: give another name with -o, or --force to replace it")
            }
            (libc::S_IFREG, _) => Ok(Stands::Beside(self.beside(over, mode))),
            _ => bail!("{shown} is no regular file, pipe or terminal: give another name with -o"),
        }
    }

    /// A new file beside the one that is to be replaced.
    fn beside(&self, over: Over, mode: u32) -> io::Result<File> {
        // With what stands around it a name still is one.
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
        // No other try would find more.
        Err(io::Error::other(format!("too many unfinished files stand beside it: {refused}")))
    }

    /// Where the file is to be found now.
    pub fn now(&self) -> PathBuf {
        match &*self.part.borrow() {
            Some(part) => self.path.with_file_name(OsStr::from_bytes(part.as_bytes())),
            None => self.path.clone(),
        }
    }

    /// Whether another one has the name still.
    pub fn is_part(&self) -> bool {
        self.part.borrow().is_some()
    }

    /// Takes the name, from a file that has it if there is one.
    ///
    /// # Errors
    /// The system refuses; with both names.
    pub fn settle(&self) -> Result<()> {
        let Some(part) = self.part.borrow().clone() else { return Ok(()) };
        self.dir.rename(&part, &self.last).with_context(|| {
            format!("{} cannot take the place of {}", self.now().display(), self.path.display())
        })?;
        *self.part.borrow_mut() = None;
        Ok(())
    }

    /// Bytes of the file, as long as it is there.
    pub fn bytes(&self) -> Option<u64> {
        let part = self.part.borrow();
        let found = self.dir.look(part.as_ref().unwrap_or(&self.last)).ok()?;
        (found.id == self.id.get()).then_some(found.bytes)
    }

    /// Removes the file, and nothing else that may stand there by now.
    pub fn remove(&self) {
        if self.bytes().is_some() {
            let part = self.part.borrow();
            // What is left is empty, or as good as that.
            let _ = self.dir.remove(part.as_ref().unwrap_or(&self.last));
        }
    }
}

/// Removes a file that was never finished, however it is left.
struct Unfinished(Option<Rc<Name>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(name) = &self.0 {
            name.remove();
        }
    }
}

/// Writes a file in full, in place of one that may be there; `content` says whether it is worth keeping.
///
/// # Errors
/// As [`Output::create`], and those of `content`; the file that was there is as it was.
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

impl trace::Output for Output {
    fn seekable(&self) -> bool {
        self.file.seekable()
    }

    fn write_at(&mut self, pos: u64, bytes: &[u8]) -> io::Result<()> {
        trace::Output::write_at(&mut self.file, pos, bytes)
    }
}

fn c_string(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// A directory that is open: whatever is put in the place of its path later, this is the one that is used.
struct Dir(File);

/// What stands under a name.
struct Found {
    kind: libc::mode_t,
    owner: u32,
    id: (u64, u64),
    bytes: u64,
}

impl Found {
    /// A pipe, a terminal or /dev/null: it is written into as it is.
    fn streams(&self) -> bool {
        matches!(self.kind, libc::S_IFIFO | libc::S_IFCHR)
    }
}

/// Refused while nobody reads a pipe, and how long until the next try.
const PAUSE: Duration = Duration::from_millis(20);

impl Dir {
    fn open(path: &Path) -> io::Result<Dir> {
        // Its names are looked up; what else is in it need not be readable.
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
        // SAFETY: all zero is a value of the struct, which the kernel fills; the name ends with a zero.
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

    /// Whether nobody else has put it there to be written into: it is ours or root's, or the directory is nobody else's to
    /// write to. For a link only the latter counts.
    fn trusts(&self, found: &Found, may_be_ours: bool) -> io::Result<bool> {
        // SAFETY: takes nothing and cannot fail.
        let us = unsafe { libc::geteuid() };
        let closed = self.0.metadata()?.permissions().mode() & 0o022 == 0;
        Ok(closed || may_be_ours && (found.owner == us || found.owner == 0))
    }

    fn openat(&self, name: &CString, flags: libc::c_int) -> io::Result<File> {
        // SAFETY: the name ends with a zero; the mode is what the call takes behind O_CREAT.
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
            // Whatever the umask: it was asked for.
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(file)
    }

    /// Opens a pipe or a device; waits for the one who reads from a pipe, as a shell does.
    fn stream(&self, name: &CString, direct: bool) -> io::Result<File> {
        let follow = if direct { libc::O_NOFOLLOW } else { 0 };
        loop {
            match self.openat(name, libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | follow) {
                Err(e) if e.raw_os_error() == Some(libc::ENXIO) => std::thread::sleep(PAUSE),
                Err(e) => return Err(e),
                Ok(file) => {
                    let kind = file.metadata()?.file_type();
                    if !kind.is_fifo() && !kind.is_char_device() {
                        return Err(io::Error::other("it is something else by now"));
                    }
                    // SAFETY: changes flags of a descriptor that is open: writes wait again.
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
        // SAFETY: both names end with a zero.
        match unsafe { libc::renameat(fd, from.as_ptr(), fd, to.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn remove(&self, name: &CString) -> io::Result<()> {
        // SAFETY: the name ends with a zero.
        match unsafe { libc::unlinkat(self.0.as_raw_fd(), name.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests;
