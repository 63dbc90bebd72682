//! A directory for the recordings of a search, which does not outlive it.

use std::io;
use std::path::PathBuf;

/// Beginning of a directory's name, before the process.
const SCRATCH: &str = "profinfer-tune-";

/// A directory of our own, removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> io::Result<Scratch> {
        use std::os::unix::fs::DirBuilderExt;
        sweep();
        for n in 0..100 {
            let dir = std::env::temp_dir().join(format!("{SCRATCH}{}-{n}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok(Scratch(dir)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// Removes the directories of searches that were killed.
fn sweep() {
    let all = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in all {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix(SCRATCH)?.split('-').next()?.parse::<u32>().ok());
        // Another user's cannot be removed, and a link is not followed.
        if pid.is_some_and(|pid| !machine::target::alive(pid)) && entry.file_type().is_ok_and(|t| t.is_dir())
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
