//! Files next to one that a process has mapped, and in backend directories there.
//!
//! The process chooses the directory's name and contents. So it is opened through the process's root or ours, without
//! following links, and is used only if the mapped file itself is in it. Its files are located before they are opened.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::search;
use common::files;
use machine::budget::{Budget, Limits};
use machine::maps::{FileId, Mapping};
use machine::open;

/// Limits for searching next to the files of one process: an engine's directory has some dozens of files.
pub const LIMITS: Limits =
    Limits { bytes: 1 << 30, files: 512, names: 4096, modules: 64, time: Duration::from_secs(2) };

/// A directory of the process.
pub struct Directory {
    located: File,
    in_target: PathBuf,
    host: PathBuf,
    pub id: FileId,
}

/// An open file in it.
pub struct OpenedFile {
    pub file: File,
    pub id: FileId,
    pub in_target: PathBuf,
    pub host: PathBuf,
}

fn id(file: &File) -> Option<FileId> {
    file.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The directory of the mapped file. None: the file is not there.
pub fn directory(pid: u32, m: &Mapping) -> Option<Directory> {
    let (in_target, name) = (m.path.parent()?, m.path.file_name()?);
    if m.deleted {
        return None;
    }
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    // Kernel paths start at our root if the process has another root in the same tree (chroot).
    [root.as_path(), Path::new("/")].into_iter().find_map(|root| {
        let located = open::located(root).and_then(|root| open::within(&root, in_target)).ok()?;
        let file = files::locate_at(located.as_fd(), Path::new(name), OFlags::NOFOLLOW).ok()?;
        (file.metadata().ok()?.ino() == m.inode).then_some(())?;
        let host = root.join(in_target.strip_prefix("/").unwrap_or(in_target));
        Some(Directory { id: id(&located)?, located, in_target: in_target.to_owned(), host })
    })
}

/// The shared objects in it and in its backend directories, without links. In a system-wide directory only those in
/// the backend directories.
pub fn files<'b>(dir: &Directory, budget: &'b Budget) -> impl Iterator<Item = OpenedFile> + use<'b> {
    let mut dirs = Vec::new();
    for below in ["", "ggml"] {
        let Some(parent) = sub(dir, Path::new(below)) else { continue };
        for name in
            names(&parent, budget).iter().filter(|name| name.to_string_lossy().starts_with("backends"))
        {
            dirs.extend(sub(&parent, Path::new(name)));
        }
    }
    dirs.extend(sub(dir, Path::new("")).filter(|_| !search::is_shared(&dir.in_target)));
    dirs.into_iter().flat_map(move |dir| {
        let names = names(&dir, budget);
        names.into_iter().filter_map(move |name| entry(&dir, Path::new(&name), budget))
    })
}

/// A directory in it, or the directory itself if there is no name.
fn sub(dir: &Directory, name: &Path) -> Option<Directory> {
    let located = match name.as_os_str().is_empty() {
        true => dir.located.try_clone().ok()?,
        false => files::locate_at(dir.located.as_fd(), name, OFlags::NOFOLLOW | OFlags::DIRECTORY).ok()?,
    };
    Some(Directory {
        id: id(&located)?,
        located,
        in_target: dir.in_target.join(name),
        host: dir.host.join(name),
    })
}

/// Names in a directory, as far as the budget allows.
fn names(dir: &Directory, budget: &Budget) -> Vec<OsString> {
    let Ok(list) = std::fs::read_dir(format!("/proc/self/fd/{}", dir.located.as_raw_fd())) else {
        return Vec::new();
    };
    let mut names: Vec<OsString> = list
        .flatten()
        .map(|e| e.file_name())
        .take_while(|name| budget.name(&name.to_string_lossy()))
        .collect();
    names.sort_unstable();
    names
}

/// A file in a directory, if it starts like an ELF file.
fn entry(dir: &Directory, name: &Path, budget: &Budget) -> Option<OpenedFile> {
    if budget.spent().is_some() {
        return None;
    }
    let located = files::locate_at(dir.located.as_fd(), name, OFlags::NOFOLLOW).ok()?;
    let id = id(&located)?;
    let mut file = open::reopened(&located).ok()?;
    let mut head = [0; 4];
    file.read_exact(&mut head).ok()?;
    let in_target = dir.in_target.join(name);
    (head == *b"\x7fELF" && budget.file(&in_target.to_string_lossy())).then_some(())?;
    Some(OpenedFile { file, id, in_target, host: dir.host.join(name) })
}
