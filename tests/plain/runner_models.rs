//! Model files that are damaged, hostile or unsupported: each is refused with the name of the invalid item, without
//! a panic.

use crate::common;

use std::fs;
use std::path::Path;

use runner::kernels::Isa;
use runner::model::{Model, Placement};

/// A file's bytes, with lookup of items in them.
struct File(Vec<u8>);

impl File {
    fn of(preset: &str, ty: &str) -> File {
        File(fs::read(common::model(preset, ty)).expect("a model"))
    }

    /// Offset of the end of a length-prefixed text.
    fn end_of(&self, text: &str) -> usize {
        let mut wanted = (text.len() as u64).to_le_bytes().to_vec();
        wanted.extend(text.as_bytes());
        let at = self.0.windows(wanted.len()).position(|w| w == wanted);
        at.unwrap_or_else(|| panic!("no {text}")) + wanted.len()
    }

    fn put(mut self, at: usize, bytes: &[u8]) -> File {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Changes the value of a key, keeping its type.
    fn key(self, key: &str, value: &[u8]) -> File {
        let at = self.end_of(key) + 4;
        self.put(at, value)
    }

    /// Changes the n-th dimension of a tensor.
    fn dimension(self, tensor: &str, n: usize, value: u64) -> File {
        let at = self.end_of(tensor) + 4 + 8 * n;
        self.put(at, &value.to_le_bytes())
    }

    /// Offset of a tensor's type, which follows its dimensions.
    fn type_at(&self, tensor: &str) -> usize {
        let at = self.end_of(tensor);
        at + 4 + 8 * usize::from(self.0[at])
    }

    /// Changes a text to another of the same length.
    fn rename(self, from: &str, to: &str) -> File {
        assert_eq!(from.len(), to.len());
        let at = self.end_of(from) - from.len();
        self.put(at, to.as_bytes())
    }

    fn load(&self, placement: Placement) -> Result<Model, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("model.gguf");
        fs::write(&path, &self.0).expect("written");
        load(&path, placement)
    }

    /// The error message.
    fn said(&self) -> String {
        match self.load(Placement::Packed) {
            Ok(_) => panic!("it is taken"),
            Err(why) => why,
        }
    }
}

fn load(path: &Path, placement: Placement) -> Result<Model, String> {
    Model::load(path, Isa::Scalar, placement, |_, _| {}).map_err(|e| e.to_string())
}

#[test]
fn what_is_wrong_with_the_metadata_is_named() {
    let tiny = || File::of("tiny", "f16");
    let word = |n: u32| n.to_le_bytes();
    let cases: [(File, &str); 11] = [
        (tiny().rename("llama", "lhama"), "architecture 'lhama' is not supported"),
        (tiny().rename("llama.block_count", "llama.block_coumt"), "'llama.block_count' is missing"),
        (tiny().key("llama.block_count", &word(0)), "'llama.block_count': 0 is not in the range"),
        (tiny().key("llama.block_count", &word(u32::MAX)), "'llama.block_count': 4294967295"),
        (tiny().key("llama.block_count", &word(7)), "tensor 'blk.6.attn_norm.weight' is missing"),
        (tiny().key("llama.block_count", &word(5)), "is unknown for architecture 'llama'"),
        (
            tiny().key("llama.attention.head_count", &word(7)),
            "'llama.attention.head_count_kv': 4 does not divide 7",
        ),
        (tiny().key("llama.attention.head_count_kv", &word(3)), "3 does not divide 8 heads"),
        (tiny().key("llama.rope.dimension_count", &word(16)), "'llama.rope.dimension_count': 16"),
        (tiny().key("llama.rope.freq_base", &f32::NAN.to_le_bytes()), "'llama.rope.freq_base': F32(NaN)"),
        (
            tiny().key("llama.feed_forward_length", &word(1 << 23)),
            "'blk.0.ffn_gate.weight' is [256, 768], but",
        ),
    ];
    for (file, expected) in cases {
        let said = file.said();
        assert!(said.contains(expected), "{said:?} does not say {expected:?}");
    }
}

#[test]
fn what_is_wrong_with_a_tensor_is_named() {
    let tiny = || File::of("tiny", "f16");
    let ty = |tensor: &str, n: u32| {
        let file = tiny();
        let at = file.type_at(tensor);
        file.put(at, &n.to_le_bytes())
    };
    let offset = |by: u64| {
        let file = tiny();
        let at = file.type_at("output_norm.weight") + 4;
        let old = u64::from_le_bytes(file.0[at..at + 8].try_into().expect("8 bytes"));
        file.put(at, &old.wrapping_add(by).to_le_bytes())
    };
    let cases = [
        (tiny().rename("blk.3.attn_q.weight", "blk.3.attn_p.weight"), "'blk.3.attn_q.weight' is missing"),
        (tiny().dimension("blk.3.attn_q.weight", 1, 128), "'blk.3.attn_q.weight' is [256, 128]"),
        (tiny().dimension("blk.3.attn_q.weight", 1, u64::MAX), "tensor 'blk.3.attn_q.weight'"),
        (tiny().dimension("blk.3.attn_q.weight", 1, 0), "'blk.3.attn_q.weight' is [256, 0]"),
        (ty("blk.3.attn_q.weight", 11), "'blk.3.attn_q.weight' has type q3_K; supported here: f32, f16"),
        (ty("blk.3.attn_q.weight", 999), "'blk.3.attn_q.weight' has type number 999"),
        (ty("output_norm.weight", 1), "'output_norm.weight' has type f16; supported here: f32"),
        (offset(1), "'output_norm.weight': its offset is not aligned"),
        (offset(1 << 40), "'output_norm.weight': its data is outside the file"),
    ];
    for (file, expected) in cases {
        let said = file.said();
        assert!(said.contains(expected), "{said:?} does not say {expected:?}");
    }
}

#[test]
fn a_file_that_ends_early_is_refused() {
    let whole = File::of("tiny", "q4_0").0;
    for part in [0, 3, 4, 23, 100, 5000, whole.len() / 2, whole.len() - 1] {
        let said = File(whole[..part].to_vec()).said();
        assert!(!said.is_empty(), "{part}");
    }
}

/// The end of the file is the data of a layer's last matrix: the last block's scale becomes NaN.
#[test]
fn scales_that_are_no_numbers_are_found() {
    let nan = 0x7e00u16.to_le_bytes();
    let rows =
        [("f16", 2, "not a finite number"), ("q4_0", 18, "not a finite number"), ("q8_0", 34, "finite")];
    for (ty, block, expected) in rows {
        let file = File::of("tiny", ty);
        let at = file.0.len() - block;
        let said = file.put(at, &nan).said();
        assert!(said.contains("'blk.5.ffn_down.weight'") && said.contains(expected), "{ty}: {said}");
    }
}

#[test]
fn a_model_of_another_kind_is_a_clear_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = |path: &Path| load(path, Placement::Auto).map(|_| ()).expect_err("it is taken");
    assert!(said(&dir.path().join("none")).contains("none: No such file"));
    assert!(said(dir.path()).contains(&dir.path().display().to_string()));
    let empty = dir.path().join("empty");
    fs::write(&empty, "").expect("written");
    assert!(!said(&empty).is_empty());
}
