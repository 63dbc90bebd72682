//! Reads the heads of a model's files: only as much of each as its tensor descriptions need.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use ggml::gguf::reader::{Gguf, GgufReadError};
use ggml::model_shape::ModelShape;

/// Bytes read first, and at most; a vocabulary of a million words takes some 30 MiB.
const FIRST: usize = 1 << 20;
const MOST: usize = 512 << 20;
/// Most parts of a model.
const PARTS: u64 = 1024;

/// A model's shape, and what was read for it.
pub struct Heads {
    pub shape: ModelShape,
    /// In words.
    pub said: String,
}

/// Reads a model, of which any part may be named.
pub fn read(path: &Path) -> anyhow::Result<Heads> {
    let named = || format!("cannot predict {}", path.display());
    let first = beginning(path).with_context(named)?;
    let head = Gguf::parse_head(&first.bytes)?;
    let parts = number(&head, "split.count").filter(|n| *n > 1);
    let Some(parts) = parts else {
        let shape = ModelShape::read(&[head]).with_context(named)?;
        return Ok(Heads { shape, said: said(first.needed, first.len, 1) });
    };
    if parts > PARTS {
        bail!("cannot predict {}: it is a part of {parts} files, more than {PARTS}", path.display());
    }
    let mut files = Vec::new();
    for part in part_names(path, parts)? {
        let missing = || {
            format!(
                "{} is a part of a model in {parts} files, of which all heads are needed: {} cannot be read",
                path.display(),
                part.display()
            )
        };
        files.push(beginning(&part).with_context(missing)?);
    }
    let heads: Result<Vec<Gguf<'_>>, GgufReadError> =
        files.iter().map(|f| Gguf::parse_head(&f.bytes)).collect();
    let heads = heads?;
    let all = heads.iter().map(|h| h.tensors.len() as u64).sum::<u64>();
    if let Some(wanted) = heads.first().and_then(|h| number(h, "split.tensors.count")).filter(|n| *n != all) {
        bail!("cannot predict {}: its parts have {all} of {wanted} tensors", path.display());
    }
    let shape = ModelShape::read(&heads).with_context(named)?;
    let sum = |of: fn(&Beginning) -> u64| files.iter().map(of).sum();
    Ok(Heads { shape, said: said(sum(|f| f.needed), sum(|f| f.len), files.len()) })
}

fn number(head: &Gguf<'_>, key: &str) -> Option<u64> {
    head.get(key)?.as_u64()
}

fn said(needed: u64, len: u64, files: usize) -> String {
    let of = if files == 1 { String::new() } else { format!(" in {files} files") };
    format!("the first {needed} of {len} bytes{of} were needed")
}

/// The names of all parts: `NAME-00002-of-00003.gguf`.
fn part_names(path: &Path, parts: u64) -> anyhow::Result<Vec<PathBuf>> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = name.strip_suffix(&format!("-of-{parts:05}.gguf"));
    let base = stem.and_then(|s| Some((s.rsplit_once('-')?, s))).filter(|((_, n), _)| n.len() == 5);
    let Some(((base, _), _)) = base else {
        bail!(
            "{} is a part of a model in {parts} files, of which all heads are needed: name the parts \
             NAME-00001-of-{parts:05}.gguf and so on, in one directory",
            path.display()
        );
    };
    Ok((1..=parts).map(|n| path.with_file_name(format!("{base}-{n:05}-of-{parts:05}.gguf"))).collect())
}

/// The beginning of a file.
struct Beginning {
    bytes: Vec<u8>,
    /// Bytes up to the end of the tensor descriptions.
    needed: u64,
    /// Of the complete file, if its data is there.
    len: u64,
}

/// Reads until the head is complete.
fn beginning(path: &Path) -> anyhow::Result<Beginning> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut bytes = Vec::new();
    let mut wanted = FIRST;
    loop {
        let more = wanted.saturating_sub(bytes.len()) as u64;
        let got = file.by_ref().take(more).read_to_end(&mut bytes)?;
        match Gguf::parse_head(&bytes) {
            Ok(head) => {
                let needed = head.data_offset.min(bytes.len() as u64);
                return Ok(Beginning { needed, len, bytes });
            }
            Err(e) if e.is_cut() && (got as u64) < more => {
                let there = bytes.len();
                return Err(e).context(format!(
                    "the tensor descriptions are not complete in the {there} bytes that are there: get more of the \
                     beginning of the file, e.g. its first 64 MB"
                ));
            }
            Err(e) if e.is_cut() && wanted < MOST => wanted = wanted.saturating_mul(4).min(MOST),
            Err(e) if e.is_cut() => {
                return Err(e).context(format!("its head takes more than {MOST} bytes"));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_after_each_other() {
        let all = part_names(Path::new("/d/a-b-00002-of-00003.gguf"), 3).unwrap();
        let names: Vec<_> = all.iter().map(|p| p.to_string_lossy().into_owned()).collect();
        assert_eq!(names[0], "/d/a-b-00001-of-00003.gguf");
        assert_eq!((names.len(), &*names[2]), (3, "/d/a-b-00003-of-00003.gguf"));
        for wrong in ["model.gguf", "m-00001-of-00002.gguf", "-of-00003.gguf", ""] {
            let why = part_names(Path::new(wrong), 3).unwrap_err().to_string();
            assert!(why.contains("NAME-00001-of-00003.gguf"), "{why}");
        }
    }
}
