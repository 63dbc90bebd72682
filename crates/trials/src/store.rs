//! Measurements kept between calls of `tune`, one JSON object a line: a search that was interrupted goes on where it
//! ended.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::command::Tuned;
use tune::{Candidate, Machine, Sample};

/// Version of a line.
const VERSION: u32 = 1;
/// Maximum size of a file that is read.
const SIZE: u64 = 4 << 20;

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    version: u32,
    pub work: String,
    /// CPUs and threads; null for the command as it is.
    pub candidate: Option<KeptCandidate>,
    /// The setting that was added, if any.
    pub setting: Option<String>,
    pub tokens_per_s: f64,
    pub scatter: f64,
    pub joules_per_token: Option<f64>,
    /// Source of the energy.
    pub source: Option<String>,
    /// Seconds since 1970.
    pub at: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCandidate {
    pub cpus: Vec<u32>,
    pub threads: u32,
}

/// The file of one machine, command and model.
pub struct Store {
    path: PathBuf,
    out: Option<File>,
    pub kept: Vec<Kept>,
}

impl Kept {
    pub fn new(
        work: &str,
        candidate: Option<&Candidate>,
        setting: Option<&str>,
        sample: &Sample,
        source: Option<&str>,
    ) -> Kept {
        let candidate = candidate.map(|c| KeptCandidate { cpus: c.cpus.clone(), threads: c.threads });
        Kept {
            version: VERSION,
            work: work.to_owned(),
            candidate,
            setting: setting.map(str::to_owned),
            tokens_per_s: sample.tokens_per_s,
            scatter: sample.scatter,
            joules_per_token: sample.joules_per_token,
            source: source.map(str::to_owned),
            at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
        }
    }

    pub fn sample(&self) -> Sample {
        Sample {
            tokens_per_s: self.tokens_per_s,
            scatter: self.scatter,
            joules_per_token: self.joules_per_token,
        }
    }

    fn is_of(&self, work: &str, candidate: &Candidate) -> bool {
        let same = |c: &KeptCandidate| c.cpus == candidate.cpus && c.threads == candidate.threads;
        self.work == work && self.setting.is_none() && self.candidate.as_ref().is_some_and(same)
    }
}

impl Store {
    /// Opens the file below `dir`, with what it has; `fresh`: without.
    ///
    /// # Errors
    /// The directory or the file cannot be written.
    pub fn open(dir: &Path, key: &str, fresh: bool) -> io::Result<Store> {
        fs::create_dir_all(dir)?;
        let path = dir.join(format!("{key}.jsonl"));
        let kept = if fresh { Vec::new() } else { read(&path)? };
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(!fresh).truncate(fresh);
        let out = Some(options.open(&path)?);
        Ok(Store { path, out, kept })
    }

    /// Keeps nothing.
    pub fn none() -> Store {
        Store { path: PathBuf::new(), out: None, kept: Vec::new() }
    }

    /// The measurements of a candidate by earlier calls, in their order.
    pub fn of<'s>(&'s self, work: &'s str, candidate: &'s Candidate) -> impl Iterator<Item = &'s Kept> {
        self.kept.iter().filter(move |kept| kept.is_of(work, candidate))
    }

    /// Adds a measurement to the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(&mut self, kept: &Kept) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        let mut line = serde_json::to_vec(kept)?;
        line.push(b'\n');
        out.write_all(&line)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Lines that are damaged, or of another version, are left out.
fn read(path: &Path) -> io::Result<Vec<Kept>> {
    let text = match fs::metadata(path) {
        Ok(m) if m.len() <= SIZE => fs::read(path)?,
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => return Ok(Vec::new()),
    };
    let lines = text.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice::<Kept>(line).ok());
    let valid = |k: &Kept| {
        let energy = k.joules_per_token.is_none_or(|j| j.is_finite() && j > 0.0);
        k.version == VERSION
            && k.tokens_per_s.is_finite()
            && k.tokens_per_s > 0.0
            && k.scatter.is_finite()
            && energy
    };
    Ok(lines.filter(valid).collect())
}

/// Name of the file for this machine, command and the files that it names: another build or model has another name.
pub fn key(machine: &Machine, cpu_model: &str, tuned: &Tuned, more: &str) -> String {
    let mut text = format!("{cpu_model}\n{machine:?}\n{more}\n");
    for word in &tuned.argv {
        text += &word.to_string_lossy();
        text += &identity(word).unwrap_or_default();
        text.push('\n');
    }
    format!("{:016x}", fnv(text.as_bytes()))
}

/// Size and time of change of a file: of a program without a directory, where PATH has it.
fn identity(word: &OsStr) -> Option<String> {
    let direct = Path::new(word);
    let is_bare = direct.components().count() == 1;
    let dirs = std::env::var_os("PATH").filter(|_| is_bare);
    let found =
        dirs.iter().flat_map(std::env::split_paths).map(|dir| dir.join(word)).find(|path| path.is_file());
    let meta = fs::metadata(found.as_deref().unwrap_or(direct)).ok().filter(fs::Metadata::is_file)?;
    Some(format!(" {} {} {}", meta.len(), meta.mtime(), meta.mtime_nsec()))
}

/// FNV-1a, 64 bits: the same in every build, unlike the standard library's hashes.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tokens_per_s: f64) -> Sample {
        Sample { tokens_per_s, scatter: 0.01, joules_per_token: None }
    }

    #[test]
    fn what_was_measured_is_found_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let one = Candidate { cpus: vec![0], threads: 1 };
        let two = Candidate { cpus: vec![0, 1], threads: 2 };
        let mut store = Store::open(dir.path(), "k", false).expect("opened");
        store.add(&Kept::new("decode", Some(&one), None, &sample(10.0), Some("battery"))).expect("written");
        store.add(&Kept::new("decode", Some(&two), Some("-fa on"), &sample(20.0), None)).expect("written");
        fs::write(
            store.path(),
            [fs::read(store.path()).expect("read"), b"{\"version\":1,\"wo".to_vec()].concat(),
        )
        .expect("written");
        let store = Store::open(dir.path(), "k", false).expect("opened");
        assert_eq!(store.of("decode", &one).next().map(|k| k.sample().tokens_per_s), Some(10.0));
        assert_eq!(store.of("decode", &two).next(), None, "it had a setting");
        assert_eq!(store.of("prefill", &one).next(), None);
        assert_eq!(Store::open(dir.path(), "k", true).expect("opened").kept, []);
        assert_eq!(Store::open(dir.path(), "k", false).expect("opened").kept, []);
    }

    #[test]
    fn values_that_cannot_be_are_left_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = Store::open(dir.path(), "k", false).expect("opened");
        for speed in [-1.0, 0.0] {
            store.add(&Kept::new("decode", None, None, &sample(speed), None)).expect("written");
        }
        assert_eq!(Store::open(dir.path(), "k", false).expect("opened").kept, []);
    }

    #[test]
    fn another_model_is_another_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let model = dir.path().join("m.gguf");
        let machine = Machine { clusters: Vec::new() };
        let tuned = Tuned::of(vec!["llama-bench".into(), model.clone().into()]).expect("known");
        fs::write(&model, "a").expect("written");
        let first = key(&machine, "cpu", &tuned, "");
        assert_eq!(first, key(&machine, "cpu", &tuned, ""));
        assert_ne!(first, key(&machine, "cpu", &tuned, "64"));
        fs::write(&model, "ab").expect("written");
        assert_ne!(first, key(&machine, "cpu", &tuned, ""));
    }
}
