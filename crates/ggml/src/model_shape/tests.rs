//! Shapes of made-up heads, with numbers worked out by hand; hostile ones.

use super::*;
use crate::gguf::writer::{GgufHeader, NewGgufValue};
use crate::quant::TensorType;
use proptest::prelude::*;

const EMBD: u64 = 64;
const FF: u64 = 128;
const VOCAB: u64 = 320;

/// Two layers, four heads of 16, two of them for keys and values.
fn header(arch: &str) -> GgufHeader {
    let mut h = GgufHeader::default();
    h.set("general.architecture", NewGgufValue::Str(arch.into())).expect("a new key");
    let numbers = [
        ("block_count", 2),
        ("embedding_length", 64),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ];
    for (key, n) in numbers {
        h.set(format!("{arch}.{key}"), NewGgufValue::U32(n)).expect("a new key");
    }
    h.tensor("token_embd.weight", TensorType::Q8_0, &[EMBD, VOCAB]).expect("fits");
    h.tensor("output_norm.weight", TensorType::F32, &[EMBD]).expect("fits");
    for l in 0..2 {
        for (name, m) in [("attn_q", 64), ("attn_k", 32), ("attn_v", 32), ("attn_output", 64)] {
            h.tensor(&format!("blk.{l}.{name}.weight"), TensorType::Q4_0, &[EMBD, m]).expect("fits");
        }
        h.tensor(&format!("blk.{l}.attn_q.bias"), TensorType::F32, &[EMBD]).expect("fits");
    }
    h
}

fn dense(h: &mut GgufHeader) {
    for l in 0..2 {
        h.tensor(&format!("blk.{l}.ffn_up.weight"), TensorType::Q4_0, &[EMBD, FF]).expect("fits");
        h.tensor(&format!("blk.{l}.ffn_down.weight"), TensorType::F16, &[FF, EMBD]).expect("fits");
    }
}

fn bytes(h: GgufHeader) -> Vec<u8> {
    let mut out = Vec::new();
    h.begin(&mut out).expect("memory takes all");
    out
}

fn read(h: GgufHeader) -> Result<ModelShape, ShapeError> {
    let bytes = bytes(h);
    ModelShape::read(&[Gguf::parse_head(&bytes).expect("a head")])
}

#[test]
fn a_token_reads_all_matrices_and_one_row_of_the_table() {
    let mut h = header("llama");
    dense(&mut h);
    let s = read(h).unwrap();
    let (attention, up, down) = (64 * (64 + 32 + 32 + 64) / 32 * 18, 64 * 128 / 32 * 18, 128 * 64 * 2);
    let (head, row) = (320 * 64 / 32 * 34, 64 / 32 * 34);
    assert_eq!(s.bytes_a_token(), f64::from(2 * (attention + up + down) + head + row));
    // Products with f16 are in floating point.
    let int8 = 2 * 64 * (2 * (192 + 128) + 320);
    assert_eq!(s.flops_a_token(), (f64::from(int8), f64::from(2 * 2 * 128 * 64)));
    assert_eq!(s.cache_elements(), 2 * 2 * (16 + 16));
    assert_eq!((s.layers, s.vocab, s.context, s.main_type()), (2, VOCAB, None, "f16"));
    let output = s.products.iter().find(|p| p.head).unwrap();
    assert_eq!((&*output.name, output.m, output.count), ("token_embd.weight", VOCAB, 1));
    let q = s.products.iter().find(|p| p.name == "blk.{L}.attn_q.weight").unwrap();
    assert_eq!((q.count, q.k, q.m), (2, 64, 64));
    assert!(s.tensors.contains("blk.{L}.attn_q.bias"));
    assert_eq!(s.stored, u64::from((2 * (attention + up + down) + head + (1 + 2) * 64 * 4) as u32));
    assert_eq!((s.attended(100.0), s.widest()), (100.0, FF));
    // Without any product of a kind: zero, not minus zero.
    assert!(read(self::header("llama")).unwrap().flops_a_token().1.is_sign_positive());
}

#[test]
fn encoders_of_pictures_and_heads_for_later_tokens_are_not_read_for_text() {
    let mut h = header("gemma3");
    dense(&mut h);
    let text = read(h.clone()).unwrap();
    for name in ["v.blk.0.attn_q.weight", "mm.0.weight", "mtp.fc.weight"] {
        h.tensor(name, TensorType::F16, &[EMBD, FF]).expect("fits");
    }
    h.tensor("v.patch_embd.weight", TensorType::F16, &[14, 14, 3, 64]).expect("fits");
    let all = read(h).unwrap();
    assert_eq!((all.bytes_a_token(), &all.products), (text.bytes_a_token(), &text.products));
    let (matrix, patch) = (EMBD * FF * 2, 14 * 14 * 3 * 64 * 2);
    let aside =
        [("mm", matrix), ("mtp", matrix), ("v", matrix + patch)].map(|(word, n)| (word.to_owned(), n));
    assert_eq!(all.aside.into_iter().collect::<Vec<_>>(), aside);
    assert_eq!(all.stored, text.stored + 3 * matrix + patch);
}

#[test]
fn of_experts_only_those_used_are_read() {
    let mut h = header("qwen2moe");
    h.set("qwen2moe.expert_count", NewGgufValue::U32(8)).unwrap();
    h.set("qwen2moe.expert_used_count", NewGgufValue::U32(2)).unwrap();
    for l in 0..2 {
        h.tensor(&format!("blk.{l}.ffn_up_exps.weight"), TensorType::Q4_0, &[EMBD, FF, 8]).unwrap();
    }
    let s = read(h).unwrap();
    let up = s.products.iter().find(|p| p.experts.is_some()).unwrap();
    let one = (EMBD * FF / 32 * 18) as f64;
    assert_eq!((up.bytes(1), up.bytes(3), up.bytes(100)), (2.0 * one, 6.0 * one, 8.0 * one));
    assert_eq!(up.flops(), (2 * 2 * EMBD * FF) as f64);
    let mut h = header("llama");
    h.tensor("blk.0.ffn_up_exps.weight", TensorType::Q4_0, &[EMBD, FF, 8]).unwrap();
    assert!(matches!(read(h), Err(ShapeError::Tensor { .. })));
}

#[test]
fn windows_and_layers_for_later_tokens_count_less() {
    let mut h = header("gemma2");
    dense(&mut h);
    h.set("gemma2.attention.sliding_window", NewGgufValue::U32(100)).unwrap();
    let s = read(h).unwrap();
    assert_eq!((s.attended(50.0), s.attended(300.0)), (50.0, 200.0));
    let mut h = header("llama");
    dense(&mut h);
    h.set("llama.nextn_predict_layers", NewGgufValue::U32(1)).unwrap();
    let s = read(h).unwrap();
    assert!(s.layers == 1 && s.products.iter().all(|p| p.count == 1));
}

#[test]
fn what_is_missing_is_named() {
    assert_eq!(read(GgufHeader::default()), Err(ShapeError::Missing("general.architecture".into())));
    assert_eq!(read(header("mamba")), Err(ShapeError::Architecture("mamba".into())));
    let mut h = GgufHeader::default();
    h.set("general.architecture", NewGgufValue::Str("llama".into())).unwrap();
    assert_eq!(read(h), Err(ShapeError::Missing("llama.block_count".into())));
    assert_eq!(ModelShape::read(&[]), Err(ShapeError::Missing("general.architecture".into())));
    // A type of a later version.
    let mut file = bytes(header("llama"));
    let at = file.windows(18).position(|w| w == b"output_norm.weight").unwrap() + 18 + 4 + 8;
    file[at] = 200;
    let read = |file: &[u8]| ModelShape::read(&[Gguf::parse_head(file).unwrap()]);
    assert_eq!(
        read(&file),
        Err(ShapeError::Type { name: "output_norm.weight".into(), id: 200, elements: EMBD })
    );
    let mut h = header("llama");
    h.set("llama.attention.key_length", NewGgufValue::U32(0)).unwrap();
    assert!(matches!(self::read(h), Err(ShapeError::Key { .. })));
}

#[test]
fn a_cut_head_is_told_from_a_damaged_one() {
    let mut h = header("llama");
    dense(&mut h);
    let file = bytes(h);
    for end in 4..file.len() {
        match Gguf::parse_head(&file[..end]) {
            // Only the padding before the data is missing.
            Ok(head) => assert!(end + 32 > head.data_offset as usize),
            Err(why) => assert!(why.is_cut(), "{end}: {why}"),
        }
    }
    assert!(!Gguf::parse_head(b"GGUX").unwrap_err().is_cut());
    assert!(!Gguf::parse_head(b"GGUF\x09\0\0\0").unwrap_err().is_cut());
}

proptest! {
    /// Changed heads are read or refused, and a shape that is read has finite figures.
    #[test]
    fn hostile_heads_never_panic(changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6)) {
        let mut h = header("gemma2");
        dense(&mut h);
        let mut file = bytes(h);
        for (at, value) in changes {
            let len = file.len();
            file[at as usize % len] = value;
        }
        if let Ok(head) = Gguf::parse_head(&file) && let Ok(shape) = ModelShape::read(&[head]) {
            prop_assert!(shape.bytes_a_token().is_finite() && shape.attended(1e9).is_finite());
            prop_assert!(shape.flops_a_token().0 >= 0.0 && shape.widest() > 0);
        }
    }
}
