//! Which model a process computes, for the labels of metrics: the name and the quantization that its file states, else
//! what the file's name says. Runs in recorders: the file is a user's.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ggml::gguf::general::{file_type_name, general, named_type};
use serde::{Deserialize, Serialize};

use crate::lines::plain;
use machine::{maps, open};

/// Longest name kept, characters.
const NAME: usize = 120;
/// Longest line of a list of mappings, and longest command line that is read.
const LINE: usize = 3 * libc::PATH_MAX as usize;
const COMMAND_LINE: u64 = 256 << 10;
/// Files opened at most, in search of one that begins like a model; smaller ones are none.
const FILES: usize = 16;
const LEAST: u64 = 16 << 10;

/// A model, as far as it is known. Data from a target: escape it wherever it is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModelLabel {
    pub name: Option<String>,
    /// As in `enum llama_ftype`: `Q4_K_M`.
    pub quantization: Option<String>,
}

impl ModelLabel {
    /// The model of a process: of the files that it has mapped the largest that is one, else the one named by `-m` in its
    /// command line. All unknown: there is none.
    pub fn of(pid: u32) -> ModelLabel {
        let Ok(root) = open::located(Path::new(&format!("/proc/{pid}/root"))) else {
            return ModelLabel::default();
        };
        let mapped = largest(mapped(pid).into_iter(), &mut |path| model_file(&root, path));
        let found = mapped.or_else(|| {
            let path = argument(pid)?;
            let base = if path.is_absolute() { "root" } else { "cwd" };
            let base = open::located(Path::new(&format!("/proc/{pid}/{base}"))).ok()?;
            let file = model_file(&base, &path);
            Some((path, file))
        });
        found.map(|(path, file)| ModelLabel::read(&path, file)).unwrap_or_default()
    }

    fn read(path: &Path, file: Option<File>) -> ModelLabel {
        let head =
            file.and_then(|file| general(&mut BufReader::with_capacity(64 << 10, file))).unwrap_or_default();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let stem = name.strip_suffix(".gguf").map(|stem| without_part(stem).to_owned());
        let quantization = head.file_type.and_then(file_type_name).or_else(|| named_type(&name));
        ModelLabel { name: head.name.or(stem), quantization: quantization.map(str::to_owned) }.bounded()
    }

    /// The label with texts that fit into a line.
    pub fn bounded(self) -> ModelLabel {
        let bound =
            |text: Option<String>| text.map(|text| plain(&text, NAME)).filter(|text| !text.is_empty());
        ModelLabel { name: bound(self.name), quantization: bound(self.quantization) }
    }
}

/// A file's name without the number of its part: `-00001-of-00003`.
fn without_part(stem: &str) -> &str {
    let number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let part = stem.rsplit_once("-of-").filter(|(_, of)| number(of));
    let part = part.and_then(|(rest, _)| rest.rsplit_once('-')).filter(|(_, n)| number(n));
    part.map_or(stem, |(name, _)| name)
}

/// Files mapped, but not to be executed, each once: those with a model's name first.
fn mapped(pid: u32) -> Vec<PathBuf> {
    let Ok(file) = File::open(format!("/proc/{pid}/maps")) else { return Vec::new() };
    let mut lines = BufReader::with_capacity(16 << 10, file);
    let (mut named, mut others, mut line) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        line.clear();
        match lines.by_ref().take(LINE as u64).read_until(b'\n', &mut line) {
            Ok(n) if n > 0 => {}
            _ => break,
        }
        let mapping = maps::parse_line(line.strip_suffix(b"\n").unwrap_or(&line)).filter(|m| m.is_file());
        let Some(mapping) = mapping.filter(|m| !m.executable && !m.deleted) else { continue };
        let is_named = mapping.path.as_os_str().as_bytes().ends_with(b".gguf");
        let list = if is_named { &mut named } else { &mut others };
        if list.len() < 4 * FILES && list.last() != Some(&mapping.path) && !list.contains(&mapping.path) {
            list.push(mapping.path);
        }
    }
    // A library has mappings of both kinds; a model does not have that name.
    others.retain(|path| !path.to_string_lossy().contains(".so"));
    if named.is_empty() { others } else { named }
}

/// The largest file of those that `open` opens, with its path.
fn largest(
    paths: impl Iterator<Item = PathBuf>,
    open: &mut dyn FnMut(&Path) -> Option<File>,
) -> Option<(PathBuf, Option<File>)> {
    let opened = paths.take(FILES).filter_map(|path| {
        let file = open(&path)?;
        Some((file.metadata().ok()?.len(), path, file))
    });
    opened.max_by_key(|(size, ..)| *size).map(|(_, path, file)| (path, Some(file)))
}

/// The file, if it begins like a model.
fn model_file(root: &File, path: &Path) -> Option<File> {
    let mut file = open::within(root, path).and_then(|found| open::reopened(&found)).ok()?;
    let mut magic = [0; 4];
    (file.metadata().ok()?.len() >= LEAST).then_some(())?;
    file.read_exact(&mut magic).ok()?;
    file.rewind().ok()?;
    (magic == ggml::gguf::MAGIC).then_some(file)
}

/// The value of `-m` or `--model` in the command line of a process.
fn argument(pid: u32) -> Option<PathBuf> {
    let mut line = Vec::new();
    fs::File::open(format!("/proc/{pid}/cmdline")).ok()?.take(COMMAND_LINE).read_to_end(&mut line).ok()?;
    crate::affinity::tuned::model_argument(&line).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A file with a name in its metadata, or none, mapped nowhere.
    fn model(path: &Path, name: &str, size: usize) -> File {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(u64::from(!name.is_empty()).to_le_bytes());
        if !name.is_empty() {
            let mut text = |text: &str, kind: Option<u32>| {
                bytes.extend((text.len() as u64).to_le_bytes());
                bytes.extend(text.as_bytes());
                bytes.extend(kind.into_iter().flat_map(u32::to_le_bytes));
            };
            text("general.name", Some(8));
            text(name, None);
        }
        bytes.resize(size, 0);
        let mut file = File::create(path).expect("made");
        file.write_all(&bytes).expect("written");
        File::open(path).expect("there")
    }

    #[test]
    fn a_label_is_what_the_file_states_or_its_name_says() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = |name: &str, stated: &str| {
            let path = dir.path().join(name);
            let label = ModelLabel::read(&path, Some(model(&path, stated, 30_000)));
            (label.name, label.quantization)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("x-q4_k_m.gguf", "A model"), (some("A model"), some("Q4_K_M")));
        assert_eq!(of("y-F16-00001-of-00003.gguf", ""), (some("y-F16"), some("F16")));
        assert_eq!(of("sha256-abcd", ""), (None, None));
        assert_eq!(of("sha256-abcd", "a\nb"), (some("a\\nb"), None));
        let long = of("z.gguf", &"x".repeat(200)).0.expect("a name");
        assert_eq!(long.chars().count(), NAME + 1);
        let bare = ModelLabel::read(Path::new("/no/file.gguf"), None);
        assert_eq!(bare, ModelLabel { name: some("file"), quantization: None });
    }

    #[test]
    fn the_largest_model_is_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = open::located(Path::new("/")).expect("a root");
        let paths: Vec<PathBuf> =
            ["small", "large", "none", "tiny"].iter().map(|n| dir.path().join(n)).collect();
        model(&paths[0], "small", 20_000);
        model(&paths[1], "large", 40_000);
        fs::write(&paths[2], vec![0; 80_000]).expect("written");
        model(&paths[3], "tiny", 1000);
        let found = largest(paths.into_iter(), &mut |path| model_file(&root, path)).expect("one");
        assert_eq!(ModelLabel::read(&found.0, found.1).name.as_deref(), Some("large"));
    }

    #[test]
    fn this_process_computes_none() {
        assert_eq!(ModelLabel::of(std::process::id()), ModelLabel::default());
        assert_eq!(ModelLabel::of(u32::MAX), ModelLabel::default());
    }
}
