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
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::args::{Args, Flag, Usage};
use common::files;

/// Whether an existing output may be replaced.
pub const FORCE: Flag = Flag::switch("force", "Replace an existing output file");

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

/// Permissions as for any new file of the user: the umask decides.
pub const SHARED: u32 = 0o666;

/// The file to write: the given one, or the first of `run.pfi`, `run.1.pfi` and so on that does not exist.
///
/// # Errors
/// An empty name.
pub fn unused(args: &Args) -> Result<PathBuf, Usage> {
    let name = args.path("output")?.ok_or_else(|| args.missing("output"))?;
    if args.flag("output") || args.flag("force") {
        return Ok(name);
    }
    let numbered = (1..10_000).map(|n| name.with_extension(format!("{n}.pfi")));
    Ok(std::iter::once(name.clone()).chain(numbered).find(|name| !name.exists()).unwrap_or(name))
}

/// What to do with an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// Fail; a new file has its name immediately.
    Never,
    /// Fail; a new file has its name when it is complete.
    NeverHidden,
    /// Replace it, with a file named FILE.part until then.
    Part,
    /// Replace it, with a file that nobody is meant to find until then.
    Hidden,
    /// The same; a new file, too, has its name when it is complete.
    Whole,
}

impl Overwrite {
    /// The choice made by [`FORCE`].
    pub fn of(args: &Args) -> Overwrite {
        if args.flag("force") { Overwrite::Hidden } else { Overwrite::Never }
    }

    fn fails(self) -> bool {
        matches!(self, Overwrite::Never | Overwrite::NeverHidden)
    }
}

/// How to write an output.
#[derive(Debug, Clone, Copy)]
pub struct OutputRules {
    pub over: Overwrite,
    /// Permissions of a new file.
    pub mode: u32,
    /// How to give another name, for messages: " with -o".
    hint: &'static str,
}

impl OutputRules {
    /// For the file of `-o`.
    pub fn new(over: Overwrite, mode: u32) -> OutputRules {
        OutputRules { over, mode, hint: " with -o" }
    }

    /// For another flag or argument: " with --FLAG", or nothing.
    pub fn hint(self, hint: &'static str) -> OutputRules {
        OutputRules { hint, ..self }
    }

    /// Those of [`FORCE`] and [`MODE`].
    ///
    /// # Errors
    /// Invalid permissions.
    pub fn read(args: &Args) -> Result<OutputRules, Usage> {
        Ok(OutputRules::new(Overwrite::of(args), args.needed("mode", mode)?))
    }

    /// Fails before long work if the file exists and may not be replaced. [`OutputFile::create`] checks again.
    ///
    /// # Errors
    /// The file exists.
    pub fn check(self, path: &Path) -> Result<()> {
        let exists = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
        if exists && self.over.fails() && path.as_os_str() != "-" {
            return Err(self.exists(path));
        }
        Ok(())
    }

    fn exists(self, path: &Path) -> anyhow::Error {
        anyhow!("{} exists: give another name{}, or use --force to replace it", path.display(), self.hint)
    }
}

/// A file being written, or a pipe or device named by the user.
pub struct OutputFile {
    file: File,
    name: Option<Rc<OutputName>>,
}

/// The name of a file being written.
pub struct OutputName {
    dir: Dir,
    last: CString,
    /// Its temporary name until it takes the final one.
    part: RefCell<Option<CString>>,
    path: PathBuf,
    rules: OutputRules,
    /// Device and inode.
    id: Cell<(u64, u64)>,
}

impl OutputFile {
    /// Creates it.
    ///
    /// # Errors
    /// A file exists and may not be replaced, the name is something that cannot be a file, or the system refuses.
    /// The message includes the name and what to do.
    pub fn create(path: &Path, rules: OutputRules) -> Result<OutputFile> {
        let hint = rules.hint;
        let cannot = || format!("cannot write {}: give another place{hint}", path.display());
        let Some(last) = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/")) else {
            bail!("{}: is a directory: give a file name{hint}", path.display());
        };
        let above = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = Dir::open(above).with_context(cannot)?;
        let name = OutputName {
            dir,
            last: c_string(last).with_context(cannot)?,
            part: RefCell::new(None),
            path: path.to_owned(),
            rules,
            id: Cell::new((0, 0)),
        };
        // Retry if the existing file appears or vanishes meanwhile.
        for _ in 0..8 {
            let made = match name.dir.look(&name.last) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => match rules.over {
                    Overwrite::NeverHidden | Overwrite::Whole => name.beside(),
                    _ => name.dir.create(&name.last, rules.mode),
                },
                Err(e) => return Err(e).with_context(cannot),
                Ok(found) => match name.over(&found)? {
                    Stands::Stream(file) => return Ok(OutputFile { file, name: None }),
                    Stands::Beside(made) => made,
                },
            };
            match made {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e).with_context(cannot),
                Ok(file) => {
                    let found = file.metadata().with_context(cannot)?;
                    name.id.set((found.dev(), found.ino()));
                    return Ok(OutputFile { file, name: Some(Rc::new(name)) });
                }
            }
        }
        bail!("{} keeps changing: give another name{hint}", path.display())
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

    /// Another handle of the open file, for a writer that moves to a thread.
    ///
    /// # Errors
    /// The system refuses.
    pub fn clone_file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Its name; None for a pipe or a device.
    pub fn name(&self) -> Option<Rc<OutputName>> {
        self.name.clone()
    }
}

/// What is written, given what exists.
enum Stands {
    Stream(File),
    Beside(io::Result<File>),
}

impl OutputName {
    fn over(&self, found: &ExistingFile) -> Result<Stands> {
        let (shown, hint) = (self.path.display(), self.rules.hint);
        let ours = found.kind != FileType::Symlink;
        if found.streams()
            || found.kind == FileType::Symlink && self.dir.look_through(&self.last).is_ok_and(|f| f.streams())
        {
            if !self
                .dir
                .trusts(found, ours)
                .with_context(|| format!("cannot access the directory of {shown}"))?
            {
                bail!(
                    "{shown} belongs to another user, in a directory that others can write to: give \
                     another name{hint}"
                );
            }
            let file = self.dir.stream(&self.last, ours).with_context(|| format!("cannot write {shown}"))?;
            return Ok(Stands::Stream(file));
        }
        match found.kind {
            FileType::Symlink => {
                bail!("{shown} is a link, which is not followed: give its target or another name{hint}")
            }
            FileType::Directory => bail!("{shown} is a directory: give a file name{hint}"),
            FileType::RegularFile if self.rules.over.fails() => Err(self.rules.exists(&self.path)),
            FileType::RegularFile => Ok(Stands::Beside(self.beside())),
            _ => bail!("{shown} is not a regular file, pipe or terminal: give another name{hint}"),
        }
    }

    /// Creates a file under a temporary name next to the final one.
    fn beside(&self) -> io::Result<File> {
        // Short enough to be a valid name with the additions.
        let last = self.last.as_bytes();
        let last = last.get(..200).unwrap_or(last);
        let mut refused = io::Error::from(io::ErrorKind::AlreadyExists);
        for n in 1..100 {
            let number = if n > 1 { n.to_string() } else { String::new() };
            let (before, behind) = match self.rules.over {
                Overwrite::Part => ("", format!(".part{number}")),
                _ => (".", format!(".{}{number}.tmp", std::process::id())),
            };
            let part = c_string(OsStr::from_bytes(&[before.as_bytes(), last, behind.as_bytes()].concat()))?;
            match self.dir.create(&part, self.rules.mode) {
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

    /// Whether it still has a temporary name.
    pub fn is_part(&self) -> bool {
        self.part.borrow().is_some()
    }

    /// Takes the final name, replacing the file that has it if that is allowed.
    ///
    /// # Errors
    /// A file exists and may not be replaced, or the system refuses; the message has both names.
    pub fn settle(&self) -> Result<()> {
        let Some(part) = self.part.borrow().clone() else { return Ok(()) };
        if self.rules.over.fails() {
            // An empty file of our own holds the name: not every file system can rename without replacing.
            let claimed = self.dir.create(&self.last, self.rules.mode);
            claimed.map_err(|e| match e.kind() {
                io::ErrorKind::AlreadyExists => self.rules.exists(&self.path),
                _ => anyhow!(e).context(format!("cannot write {}", self.path.display())),
            })?;
        }
        let renamed = self.dir.rename(&part, &self.last);
        if renamed.is_err() && self.rules.over.fails() {
            // The first error is the one to report.
            let _ = self.dir.remove(&self.last);
        }
        renamed
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
struct Unfinished(Option<Rc<OutputName>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(name) = &self.0 {
            name.remove();
        }
    }
}

/// Writes a complete file, or nothing; `content` says whether it is worth keeping.
///
/// # Errors
/// Those of [`OutputFile::create`] and of `content`; the existing file is unchanged.
pub fn whole<T>(
    path: &Path,
    rules: OutputRules,
    keep: impl FnOnce(&T) -> bool,
    content: impl FnOnce(&mut dyn Write) -> io::Result<T>,
) -> Result<T> {
    fill(path, rules, keep, |out| {
        let mut out = BufWriter::with_capacity(64 << 10, out);
        let done = content(&mut out).and_then(|done| out.flush().map(|()| done));
        done.with_context(|| format!("cannot write {}", path.display()))
    })
}

/// As [`whole`], without a buffer; errors of `content` are passed on as they are.
///
/// # Errors
/// Those of [`OutputFile::create`] and of `content`; the existing file is unchanged.
pub fn fill<T>(
    path: &Path,
    rules: OutputRules,
    keep: impl FnOnce(&T) -> bool,
    content: impl FnOnce(OutputFile) -> Result<T>,
) -> Result<T> {
    let out = OutputFile::create(path, rules)?;
    let mut unfinished = Unfinished(out.name());
    let done = content(out)?;
    if keep(&done)
        && let Some(name) = &unfinished.0
    {
        name.settle()?;
        unfinished.0 = None;
    }
    Ok(done)
}

impl Write for OutputFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl pfi::Output for OutputFile {
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
struct ExistingFile {
    kind: FileType,
    owner: u32,
    id: (u64, u64),
    bytes: u64,
}

impl ExistingFile {
    /// A pipe, a terminal or /dev/null: it is written to directly.
    fn streams(&self) -> bool {
        matches!(self.kind, FileType::Fifo | FileType::CharacterDevice)
    }
}

/// Opening a pipe without a reader fails; time until the next attempt.
const PAUSE: Duration = Duration::from_millis(20);

impl Dir {
    fn open(path: &Path) -> io::Result<Dir> {
        // Names are looked up in it; it need not be readable.
        files::locate(path, OFlags::DIRECTORY).map(Dir)
    }

    fn look(&self, name: &CString) -> io::Result<ExistingFile> {
        self.stat(name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn look_through(&self, link: &CString) -> io::Result<ExistingFile> {
        self.stat(link, AtFlags::empty())
    }

    #[allow(clippy::unnecessary_cast, reason = "the types of stat's fields differ from system to system")]
    fn stat(&self, name: &CString, how: AtFlags) -> io::Result<ExistingFile> {
        let found = rustix::fs::statat(&self.0, name, how)?;
        Ok(ExistingFile {
            kind: FileType::from_raw_mode(found.st_mode),
            owner: found.st_uid,
            id: (found.st_dev as u64, found.st_ino as u64),
            bytes: u64::try_from(found.st_size).unwrap_or(0),
        })
    }

    /// Whether it is safe to write to, not planted by somebody else: it is ours or root's, or nobody else can write
    /// to the directory. For a link only the latter counts.
    fn trusts(&self, found: &ExistingFile, may_be_ours: bool) -> io::Result<bool> {
        let us = rustix::process::geteuid().as_raw();
        let closed = self.0.metadata()?.permissions().mode() & 0o022 == 0;
        Ok(closed || may_be_ours && (found.owner == us || found.owner == 0))
    }

    fn openat(&self, name: &CString, flags: OFlags, mode: Mode) -> io::Result<File> {
        Ok(rustix::fs::openat(&self.0, name, flags | OFlags::CLOEXEC, mode)?.into())
    }

    fn create(&self, name: &CString, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file =
            self.openat(name, flags, Mode::from_raw_mode(if mode == SHARED { mode } else { 0o600 }))?;
        if ![0o600, SHARED].contains(&mode) {
            // As requested, whatever the umask.
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(file)
    }

    /// Opens a pipe or a device; waits for a pipe's reader, as a shell does.
    fn stream(&self, name: &CString, direct: bool) -> io::Result<File> {
        let follow = if direct { OFlags::NOFOLLOW } else { OFlags::empty() };
        loop {
            match self.openat(
                name,
                OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | follow,
                Mode::empty(),
            ) {
                Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => std::thread::sleep(PAUSE),
                Err(e) => return Err(e),
                Ok(file) => {
                    let kind = file.metadata()?.file_type();
                    if !kind.is_fifo() && !kind.is_char_device() {
                        return Err(io::Error::other("it has been replaced meanwhile"));
                    }
                    // Writes block again.
                    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
                    return Ok(file);
                }
            }
        }
    }

    fn rename(&self, from: &CString, to: &CString) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    fn remove(&self, name: &CString) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }
}

#[cfg(test)]
mod tests;
