//! What a process has mapped: `/proc/PID/maps` and access to its files.
//!
//! A target may be in another mount namespace or chroot, and its files may be renamed or deleted; so each file is
//! opened through `/proc/PID/root`, checked by inode, and otherwise through `/proc/PID/map_files`.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{capset, open};

/// Maximum number of lines read of a maps file; the kernel's own default limit for a process is 65530.
const MAX_LINES: usize = 1 << 20;
/// Maximum number of bytes of a maps file: as many mappings as the kernel allows, with paths of a kilobyte each.
const MAX_TEXT: u64 = 64 << 20;

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Offset into the file in bytes.
    pub offset: u64,
    pub executable: bool,
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    /// Path as the target sees it, without the " (deleted)" mark; empty for anonymous memory.
    pub path: PathBuf,
    pub deleted: bool,
}

/// A file's identity on this machine.
pub type FileId = (u64, u64);

impl Mapping {
    /// Whether the mapping is of a file (not anonymous, heap, stack or vdso).
    pub fn is_file(&self) -> bool {
        self.inode != 0 && self.path.as_os_str().as_bytes().first() == Some(&b'/')
    }
}

/// Parses one line; `None` if it is not in the kernel's format.
pub fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|&b| b != b' ')?;
        let tail = rest.get(start..)?;
        let end = tail.iter().position(|&b| b == b' ').unwrap_or(tail.len());
        let (word, left) = tail.split_at(end);
        rest = left;
        std::str::from_utf8(word).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let perms = field()?;
    let offset = field()?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?;
    let hex = |s: &str| u64::from_str_radix(s, 16).ok();
    // The path is padded with spaces and may itself contain spaces; a newline in it is written as \012.
    let begin = rest.iter().position(|&b| b != b' ').unwrap_or(rest.len());
    let path = rest.get(begin..).unwrap_or(&[]);
    let deleted = path.strip_suffix(b" (deleted)");
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        executable: perms.as_bytes().get(2) == Some(&b'x'),
        major: u32::from_str_radix(major, 16).ok()?,
        minor: u32::from_str_radix(minor, 16).ok()?,
        inode: inode.parse().ok()?,
        path: Path::new(std::ffi::OsStr::from_bytes(&unescape(deleted.unwrap_or(path)))).to_owned(),
        deleted: deleted.is_some(),
    })
}

fn unescape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, tail)) = rest.split_first() {
        match rest.strip_prefix(b"\\012") {
            Some(after) => {
                out.push(b'\n');
                rest = after;
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

/// Parses a complete maps file; lines that are not in the kernel's format are skipped.
pub fn parse(text: &[u8]) -> Vec<Mapping> {
    text.split(|&b| b == b'\n').take(MAX_LINES).filter_map(parse_line).collect()
}

/// The mappings of a process.
///
/// # Errors
/// The process is gone, or this user may not read its mappings, or the list is longer than 64 MiB.
pub fn read(pid: u32) -> io::Result<Vec<Mapping>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?.take(MAX_TEXT + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_TEXT {
        let why = format!("its list of mappings is longer than {MAX_TEXT} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(parse(&text))
}

/// The mapping that contains an address, to translate a live pointer to file and offset.
pub fn find(maps: &[Mapping], address: u64) -> Option<&Mapping> {
    maps.iter().find(|m| address >= m.start && address < m.end)
}

/// File and file offset of a live address, `None` for memory that does not belong to a file.
pub fn file_offset(maps: &[Mapping], address: u64) -> Option<(&Mapping, u64)> {
    let m = find(maps, address).filter(|m| m.is_file())?;
    Some((m, m.offset.checked_add(address - m.start)?))
}

/// Opens the file of a mapping. Also returns the path by which this process reaches it.
///
/// # Errors
/// Neither way leads to the mapped file, or this user may not open it.
pub fn open(pid: u32, m: &Mapping) -> io::Result<(PathBuf, File, FileId)> {
    let relative = m.path.strip_prefix("/").unwrap_or(&m.path);
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    // Within the target's root: a link of the target cannot lead outside.
    let first = open::located(&root).and_then(|root| open::within(&root, &m.path)).and_then(|located| {
        // Overlay and btrfs show different device numbers in maps and in stat, so only the inode is compared.
        let id = id(&located)?;
        match id.1 == m.inode {
            true => Ok((open::reopened(&located)?, id)),
            false => Err(io::Error::new(io::ErrorKind::NotFound, "another file has taken its place")),
        }
    });
    let error = match first {
        Ok((file, id)) => return Ok((root.join(relative), file, id)),
        Err(e) => e,
    };
    // The kernel itself resolves this link to the mapped file, whatever its name or inode look like from here.
    let through_map = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", m.start, m.end));
    let located = {
        // CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, needed only here.
        let _all = capset::raised();
        open::located(&through_map)
    };
    match located.and_then(|located| Ok((open::reopened(&located)?, id(&located)?))) {
        Ok((file, id)) => Ok((through_map, file, id)),
        Err(_) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        Err(e) => Err(e),
    }
}

fn id(file: &File) -> io::Result<FileId> {
    let meta = file.metadata()?;
    Ok((meta.dev(), meta.ino()))
}
