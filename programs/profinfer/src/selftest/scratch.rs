//! Directory for the selftest's files while it runs.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

/// Maximum size of the models and traces, for messages, MB: the model with experts has 62.
const ROOM: u32 = 70;

/// A directory that is removed with its contents.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Creates one in TMPDIR, or else in the first place that accepts it.
    pub fn new() -> anyhow::Result<ScratchDir> {
        // Android and OpenHarmony have no /tmp.
        let places = match env::var_os("TMPDIR").filter(|d| !d.is_empty()) {
            Some(told) => vec![PathBuf::from(told)],
            None => ["/tmp", "/data/local/tmp", "."].map(PathBuf::from).to_vec(),
        };
        let mut failed = Vec::new();
        for place in &places {
            match make(place) {
                Ok(path) => return Ok(ScratchDir(path)),
                Err(e) => failed.push(format!("{}: {e}", place.display())),
            }
        }
        Err(anyhow!(
            "no directory for models and traces ({}); set TMPDIR to a writable directory with {ROOM} MB \
             free",
            failed.join("; ")
        ))
    }

    /// Path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What to do if a file could not be written in it.
    pub fn advice(&self) -> String {
        format!(
            "{} needs {ROOM} MB free; set TMPDIR to use another directory",
            self.0.parent().unwrap_or(&self.0).display()
        )
    }
}

fn make(place: &Path) -> io::Result<PathBuf> {
    let me = std::process::id();
    // Pids are reused, and a killed process leaves its directory.
    for attempt in 0..1000 {
        let path = place.join(format!("profinfer-selftest-{me}-{attempt}"));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other("too many left-over directories profinfer-selftest-*: remove them"))
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // Nothing can be done if it cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}
