//! Programs whose loader does not load a library for the recorder.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Why a program cannot be recorded from inside, and what can be done instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error(
        "{} is statically linked: nothing can be loaded into its process; record it by BPF (as root), or use a build that \
         is linked dynamically",
        .0.display()
    )]
    Static(PathBuf),
    #[error(
        "{} gets other rights than its caller (set-uid, set-gid or file capabilities), so its loader ignores LD_PRELOAD; \
         record it by BPF (as root), or start it as the user that it becomes",
        .0.display()
    )]
    Secure(PathBuf),
    #[error(
        "the command runs as another user, who may not read the recorder's library: record without sudo, or with --as-root"
    )]
    OtherUser,
}

/// What is known from the program's file. A script, or what cannot be read, is not refused: what it starts may have an
/// engine.
///
/// # Errors
/// The loader would not load the library.
pub fn check(program: &Path) -> Result<(), Refused> {
    let Ok(file) = File::open(program) else { return Ok(()) };
    let Ok(meta) = file.metadata() else { return Ok(()) };
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let becomes =
        meta.mode() & 0o4000 != 0 && meta.uid() != uid || meta.mode() & 0o2000 != 0 && meta.gid() != gid;
    let gains = uid != 0 && rustix::fs::fgetxattr(&file, c"security.capability", &mut [0u8; 64][..]).is_ok();
    if becomes || gains {
        return Err(Refused::Secure(program.to_owned()));
    }
    match has_interpreter(&file) {
        Some(false) => Err(Refused::Static(program.to_owned())),
        _ => Ok(()),
    }
}

/// Whether an ELF program names a loader (elf.h: Elf64_Ehdr, Elf64_Phdr, PT_INTERP); None: it is something else.
fn has_interpreter(file: &File) -> Option<bool> {
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = u64::from_le_bytes(*head.get(32..)?.first_chunk()?);
    let half = |at: usize| Some(u16::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let (size, number) = (half(54)?, half(56)?);
    let is_interpreter = |i: u16| {
        let mut kind = [0; 4];
        let at = table.checked_add(u64::from(i) * u64::from(size))?;
        file.read_exact_at(&mut kind, at).ok()?;
        Some(u32::from_le_bytes(kind) == 3)
    };
    Some((0..number).any(|i| is_interpreter(i) == Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    /// A program with one program header of this kind.
    fn program(kind: u8) -> tempfile::NamedTempFile {
        let mut bytes = [0; 128];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[32], bytes[54], bytes[56], bytes[64]) = (64, 56, 1, kind);
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(&bytes).expect("written");
        file
    }

    #[test]
    fn a_program_without_a_loader_is_refused() {
        assert_eq!(check(program(3).path()), Ok(()));
        let fixed = program(1);
        assert_eq!(check(fixed.path()), Err(Refused::Static(fixed.path().to_owned())));
        let mut script = tempfile::NamedTempFile::new().expect("a file");
        script.write_all(b"#!/bin/sh\n").expect("written");
        assert_eq!((check(script.path()), check(Path::new("/nowhere"))), (Ok(()), Ok(())));
    }

    #[test]
    fn a_program_of_another_group_that_gives_its_rights_is_refused() {
        let file = program(3);
        let group = rustix::process::getegid().as_raw();
        let other = Some(rustix::fs::Gid::from_raw(group + 1));
        // Only root may give a file away.
        if rustix::fs::chown(file.path(), None, other).is_ok() {
            let mode = std::fs::Permissions::from_mode(0o2755);
            std::fs::set_permissions(file.path(), mode).expect("a mode");
            assert_eq!(check(file.path()), Err(Refused::Secure(file.path().to_owned())));
        }
    }
}
