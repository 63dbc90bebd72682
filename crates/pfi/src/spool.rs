//! A trace read from a pipe: a short one is kept in memory, a long one in an unnamed file.
#![warn(clippy::indexing_slicing)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::block::{BLOCK_MAGIC, FILE_MAGIC};
use super::reader::{ReadError, looks_like};
use super::store::TraceBytes;

/// Bytes within which the input must look like a trace.
const HEAD: usize = 1 << 20;
/// Most bytes kept in memory.
const IN_MEMORY: usize = 32 << 20;
/// Bytes written at a time.
const PIECE: usize = 256 << 10;

/// Reads all input to its end.
///
/// # Errors
/// The input cannot be read, is not a trace, or there is no room for it.
pub fn all_of(input: &mut dyn Read) -> Result<TraceBytes, ReadError> {
    let mut bytes = Vec::new();
    input.take(HEAD as u64).read_to_end(&mut bytes)?;
    // Input that is not a trace is not read to its end, as it may have none.
    let of_a_trace =
        bytes.starts_with(&FILE_MAGIC) || bytes.windows(BLOCK_MAGIC.len()).any(|w| w == BLOCK_MAGIC);
    if bytes.len() == HEAD && !of_a_trace {
        return Err(ReadError::NotATrace(looks_like(&bytes)));
    }
    input.take((IN_MEMORY - HEAD) as u64).read_to_end(&mut bytes)?;
    if bytes.len() < IN_MEMORY {
        return Ok(TraceBytes::Memory(bytes));
    }
    let dir = std::env::temp_dir();
    let mut spool = Spool::new(&dir)?;
    for piece in bytes.chunks(PIECE) {
        spool.put(piece, &dir)?;
    }
    drop(bytes);
    let mut piece = vec![0; PIECE];
    loop {
        let mut got = 0;
        while let Some(room) = piece.get_mut(got..).filter(|room| !room.is_empty()) {
            match input.read(room) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        spool.put(piece.get(..got).unwrap_or_default(), &dir)?;
        if got < PIECE {
            break;
        }
    }
    spool.file.set_len(spool.len)?;
    Ok(TraceBytes::File(spool.file, spool.len))
}

/// An unnamed file.
struct Spool {
    file: File,
    len: u64,
    /// Bytes of it that are not holes, and their limit.
    used: u64,
    most: u64,
}

impl Spool {
    fn new(dir: &Path) -> io::Result<Spool> {
        let told = |e: io::Error| {
            io::Error::new(
                e.kind(),
                format!("cannot create a temporary file for it in {}: {e}; set TMPDIR", dir.display()),
            )
        };
        let file = nameless(dir).map_err(told)?;
        // Leave room for others.
        let most = room(&file)? / 4 * 3;
        Ok(Spool { file, len: 0, used: 0, most })
    }

    fn put(&mut self, piece: &[u8], dir: &Path) -> Result<(), ReadError> {
        let no_room = |most| ReadError::NoRoom { dir: dir.display().to_string(), most };
        // Holes stay holes.
        if piece.iter().any(|b| *b != 0) {
            self.used += piece.len() as u64;
            if self.used > self.most {
                return Err(no_room(self.most));
            }
            self.file.write_all_at(piece, self.len).map_err(|e| match e.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => no_room(self.used),
                _ => e.into(),
            })?;
        }
        self.len += piece.len() as u64;
        Ok(())
    }
}

/// Creates a file that only we may open, and unlinks it.
fn nameless(dir: &Path) -> io::Result<File> {
    const TRIES: u32 = 100;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    for n in 0..TRIES {
        let path = dir.join(format!(".profinfer-{}-{n}", std::process::id()));
        match options.open(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            opened => {
                let file = opened?;
                fs::remove_file(&path)?;
                return Ok(file);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Free bytes on the file's file system.
fn room(file: &File) -> io::Result<u64> {
    let stat = rustix::fs::fstatvfs(file)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
