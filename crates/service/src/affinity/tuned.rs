//! The results of `profinfer tune`, for rules with `auto`: on which CPUs an engine is best. The format is described in
//! docs/RUNS.md.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::masks::WantedCpus;
use crate::replace::replace;
use common::cpus;
use machine::hardware;

/// The file in the service's directory.
pub const NAME: &str = "tuned.json";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Longest file, and longest command line of a process that is read, bytes.
const MOST: u64 = 1 << 20;
const COMMAND_LINE: u64 = 256 << 10;

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunedFile {
    pub version: u32,
    pub results: Vec<TunedResult>,
}

/// A result, for one machine, engine and model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TunedResult {
    /// As [`machine_name`] says.
    pub machine: String,
    /// Build id of the engine's base library (`report` shows it), in hexadecimal.
    pub engine: String,
    /// File name of the model.
    pub model: String,
    #[serde(default)]
    pub decode: Option<TunedCpus>,
    #[serde(default)]
    pub prefill: Option<TunedCpus>,
}

/// The CPUs that were best, and the engine's threads on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunedCpus {
    /// A list: `4-7`.
    pub cpus: String,
    pub threads: u32,
}

/// What identifies this machine in the file: its CPU's name, and how many there are.
pub fn machine_name() -> String {
    let machine = hardware::read();
    let cpus = machine.topology.split(';').filter(|cpu| !cpu.is_empty()).count();
    let model = if machine.cpu_model.is_empty() { "unknown CPU" } else { &machine.cpu_model };
    format!("{model}, {cpus} CPUs")
}

/// The file name of the model that a process computes: a mapped file, or what follows `-m` in its command line. None: not
/// known.
pub fn model_of(pid: u32) -> Option<String> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapped = maps.split(|&b| b == b'\n').find_map(|line| {
        let path = String::from_utf8_lossy(line.get(line.iter().position(|&b| b == b'/')?..)?).into_owned();
        path.ends_with(".gguf").then_some(path)
    });
    let path = mapped.or_else(|| {
        let mut line = Vec::new();
        File::open(format!("/proc/{pid}/cmdline")).ok()?.take(COMMAND_LINE).read_to_end(&mut line).ok()?;
        model_argument(&line)
    })?;
    path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The value of `-m` or `--model` in a command line whose words end with a zero.
pub(crate) fn model_argument(line: &[u8]) -> Option<String> {
    let mut words = line.split(|&b| b == 0).map(String::from_utf8_lossy);
    while let Some(word) = words.next() {
        if matches!(&*word, "-m" | "--model") {
            return words.next().map(|value| value.into_owned());
        }
        if let Some(value) = word.strip_prefix("--model=") {
            return Some(value.to_owned());
        }
    }
    None
}

/// The results in this directory for this machine, engine and model.
///
/// # Errors
/// Why there is none, as a sentence.
pub fn find(directory: &Path, machine: &str, engine: &str, model: &str) -> Result<TunedResult, String> {
    let path = directory.join(NAME);
    let hint = "run profinfer tune --write-conf, or give a list of CPUs";
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(MOST).read_to_string(&mut text));
    if let Err(e) = read {
        return Err(format!("no result of tune: {}: {e}; {hint}", path.display()));
    }
    let file: TunedFile = serde_json::from_str(&text)
        .map_err(|e| format!("no result of tune: {} is damaged: {e}; {hint}", path.display()))?;
    if file.version != VERSION {
        return Err(format!(
            "no result of tune: {} has format {}, not {VERSION}; {hint}",
            path.display(),
            file.version
        ));
    }
    let same = |r: &TunedResult| r.machine == machine && r.engine == engine && r.model == model;
    // The newest is the last one.
    file.results.into_iter().rfind(same).ok_or_else(|| {
        format!("no result of tune for this machine ({machine}), engine ({engine}) and model ({model}) in {}; {hint}", path.display())
    })
}

/// Adds a result to the file in this directory, in place of one for the same machine, engine and model. Returns the
/// file's path.
///
/// # Errors
/// The file cannot be read or written, or is not one of this version.
pub fn add(directory: &Path, result: TunedResult) -> io::Result<PathBuf> {
    let path = directory.join(NAME);
    let mut text = String::new();
    let mut all = match File::open(&path).and_then(|file| file.take(MOST).read_to_string(&mut text)) {
        Ok(_) => serde_json::from_str(&text)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => TunedFile { version: VERSION, results: Vec::new() },
        Err(e) => return Err(e),
    };
    if all.version != VERSION {
        return Err(io::Error::other(format!("it has format {}, not {VERSION}", all.version)));
    }
    let same =
        |r: &TunedResult| r.machine == result.machine && r.engine == result.engine && r.model == result.model;
    all.results.retain(|r| !same(r));
    all.results.push(result);
    replace(&path, 0o644, &serde_json::to_vec_pretty(&all)?)?;
    Ok(path)
}

impl TunedResult {
    /// Its CPUs.
    ///
    /// # Errors
    /// One of them is not a list of CPUs, or has fewer CPUs than threads.
    pub fn wanted(&self) -> Result<WantedCpus, String> {
        let list = |of: &Option<TunedCpus>, name: &str| {
            let Some(of) = of else { return Ok(None) };
            let cpus = cpus::parse(&of.cpus).filter(|cpus| cpus.len() as u64 >= of.threads.into());
            cpus.map(Some).ok_or_else(|| {
                format!("the result of tune is not valid: {name}: {} for {} threads", of.cpus, of.threads)
            })
        };
        Ok(WantedCpus { prefill: list(&self.prefill, "prefill")?, decode: list(&self.decode, "decode")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_one_of_this_machine_engine_and_model() {
        let dir = tempfile::tempdir().expect("a directory");
        let find = |model: &str| find(dir.path(), "m", "ab12", model);
        assert!(find("x.gguf").expect_err("no file").contains("run profinfer tune --write-conf"));
        let text = r#"{"version":1,"results":[
            {"machine":"m","engine":"ab12","model":"x.gguf","decode":{"cpus":"0","threads":1}},
            {"machine":"m","engine":"ab12","model":"x.gguf","decode":{"cpus":"4-5","threads":2},"prefill":null},
            {"machine":"m","engine":"ab12","model":"y.gguf","decode":{"cpus":"4-5","threads":3}}]}"#;
        fs::write(dir.path().join(NAME), text).expect("written");
        let found = find("x.gguf").expect("one");
        let wanted = WantedCpus { prefill: None, decode: Some(vec![4, 5]) };
        assert_eq!(found.wanted(), Ok(wanted), "the newest");
        assert!(find("y.gguf").expect("one").wanted().expect_err("too few").contains("4-5 for 3 threads"));
        assert!(find("z.gguf").expect_err("none").contains("model (z.gguf)"));
        for damaged in ["", "{", "[]", &text.replace("\"version\":1", "\"version\":2")] {
            fs::write(dir.path().join(NAME), damaged).expect("written");
            assert!(find("x.gguf").is_err(), "{damaged}");
        }
        assert!(machine_name().ends_with(" CPUs"));
    }

    #[test]
    fn a_result_replaces_the_one_before() {
        let dir = tempfile::tempdir().expect("a directory");
        let result = |model: &str, cpus: &str| TunedResult {
            machine: "m".to_owned(),
            engine: "ab12".to_owned(),
            model: model.to_owned(),
            decode: Some(TunedCpus { cpus: cpus.to_owned(), threads: 1 }),
            prefill: None,
        };
        for (model, cpus) in [("x.gguf", "0"), ("y.gguf", "1"), ("x.gguf", "4")] {
            add(dir.path(), result(model, cpus)).expect("added");
        }
        let decode =
            |model: &str| find(dir.path(), "m", "ab12", model).expect("one").wanted().expect("valid").decode;
        assert_eq!((decode("x.gguf"), decode("y.gguf")), (Some(vec![4]), Some(vec![1])));
        let text = fs::read_to_string(dir.path().join(NAME)).expect("a file");
        assert_eq!(text.matches("x.gguf").count(), 1);
        fs::write(dir.path().join(NAME), "{").expect("written");
        assert!(add(dir.path(), result("x.gguf", "0")).is_err());
        assert_eq!(fs::read_to_string(dir.path().join(NAME)).expect("a file"), "{", "it is not overwritten");
    }

    #[test]
    fn the_model_is_in_the_command_line() {
        assert_eq!(model_argument(b"llama-cli\0-m\0/a/b.gguf\0-n\x005\0").as_deref(), Some("/a/b.gguf"));
        assert_eq!(model_argument(b"x\0--model=c.gguf\0").as_deref(), Some("c.gguf"));
        assert_eq!((model_argument(b""), model_argument(b"x\0-m")), (None, None));
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read x; :", "-m", "/x/q.gguf"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("sh");
        crate::until::until("its exec", || model_of(child.id()).as_deref() == Some("q.gguf"));
        child.kill().and_then(|()| child.wait()).expect("killed");
    }
}
