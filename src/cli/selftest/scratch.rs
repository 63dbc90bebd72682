//! Where the selftest keeps its files while it runs. Uses nothing of this crate.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

/// Room that the models and traces take at most, for messages, MB: the model with experts has 62.
const ROOM: u32 = 70;

/// A directory that goes away with its content.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one: where TMPDIR says, else in the first place that takes it.
    pub fn new() -> anyhow::Result<Scratch> {
        // Android and OpenHarmony have no /tmp.
        let places = match env::var_os("TMPDIR").filter(|d| !d.is_empty()) {
            Some(told) => vec![PathBuf::from(told)],
            None => ["/tmp", "/data/local/tmp", "."].map(PathBuf::from).to_vec(),
        };
        let mut failed = Vec::new();
        for place in &places {
            match make(place) {
                Ok(path) => return Ok(Scratch(path)),
                Err(e) => failed.push(format!("{}: {e}", place.display())),
            }
        }
        Err(anyhow!(
            "no place for the models and traces ({}); set TMPDIR to a directory that can be written, with {ROOM} MB free",
            failed.join("; ")
        ))
    }

    /// Path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// What to do when a file could not be written in it.
    pub fn advice(&self) -> String {
        format!(
            "{} needs {ROOM} MB free; TMPDIR names another place",
            self.0.parent().unwrap_or(&self.0).display()
        )
    }
}

fn make(place: &Path) -> io::Result<PathBuf> {
    let me = std::process::id();
    // Numbers of processes come again, and one that was killed leaves its directory.
    for attempt in 0..1000 {
        let path = place.join(format!("profinfer-selftest-{me}-{attempt}"));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other("full of left-over directories profinfer-selftest-*: remove them"))
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing is left to do where it cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}
