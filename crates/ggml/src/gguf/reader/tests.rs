//! Tests the reader on the writer's output and on malformed bytes.

use super::*;
use crate::gguf::writer::{self, GgufHeader};
use proptest::prelude::*;

fn sample() -> Vec<u8> {
    let mut h = GgufHeader::default();
    h.set("general.architecture", writer::NewGgufValue::Str("llama".into())).expect("new key");
    h.set("n", writer::NewGgufValue::U32(7)).expect("new key");
    h.set("big", writer::NewGgufValue::U64(1 << 40)).expect("new key");
    h.set("neg", writer::NewGgufValue::I32(-2)).expect("new key");
    h.set("eps", writer::NewGgufValue::F32(0.5)).expect("new key");
    h.set("yes", writer::NewGgufValue::Bool(true)).expect("new key");
    h.set("words", writer::NewGgufValue::Strings(vec!["a".into(), String::new(), "ccc".into()]))
        .expect("new key");
    h.set("scores", writer::NewGgufValue::F32s(vec![1.0, -1.0])).expect("new key");
    h.set("kinds", writer::NewGgufValue::I32s(vec![3, -3])).expect("new key");
    h.tensor("w", TensorType::Q4_0, &[64, 3, 2]).expect("fits");
    h.tensor("b", TensorType::F32, &[5]).expect("fits");
    let mut body = h.begin(Vec::new()).expect("memory");
    body.write(&[1; 216]).expect("all of w");
    body.write(&[2; 20]).expect("all of b");
    body.finish().expect("complete")
}

#[test]
fn what_was_written_is_read() {
    let file = sample();
    let g = Gguf::parse(&file).expect("valid");
    assert_eq!((g.version, g.alignment), (3, 32));
    assert_eq!(g.get("general.architecture"), Some(&GgufValue::Str("llama")));
    assert_eq!(g.get("n").and_then(GgufValue::as_u64), Some(7));
    assert_eq!(g.get("big").and_then(GgufValue::as_u64), Some(1 << 40));
    assert_eq!(g.get("neg"), Some(&GgufValue::I32(-2)));
    assert_eq!(g.get("neg").and_then(GgufValue::as_u64), None);
    assert_eq!(g.get("eps"), Some(&GgufValue::F32(0.5)));
    assert_eq!(g.get("yes"), Some(&GgufValue::Bool(true)));
    assert_eq!(g.get("absent"), None);
    let Some(GgufValue::Array(words)) = g.get("words") else { panic!("an array") };
    assert_eq!((words.kind(), words.len(), words.is_empty()), (ValueKind::String, 3, false));
    assert_eq!(words.strings().collect::<Vec<_>>(), [&b"a"[..], b"", b"ccc"]);
    assert_eq!(words.values().count(), 0);
    let Some(GgufValue::Array(scores)) = g.get("scores") else { panic!("an array") };
    assert_eq!(scores.values().collect::<Vec<_>>(), [GgufValue::F32(1.0), GgufValue::F32(-1.0)]);
    let [w, b] = &g.tensors[..] else { panic!("two tensors") };
    assert_eq!((w.name, w.dims, w.dim_count, w.type_id, w.bytes), ("w", [64, 3, 2, 1], 3, 2, Some(216)));
    assert_eq!((w.offset, b.offset, b.bytes), (g.data_offset, g.data_offset + 224, Some(20)));
    assert_eq!(file.get(b.offset as usize..).map(|s| &s[..20]), Some(&[2u8; 20][..]));
}

#[test]
fn a_file_cut_anywhere_is_an_error_or_only_lacks_padding() {
    let file = sample();
    let end_of_data = Gguf::parse(&file).expect("valid").tensors[1].offset as usize + 20;
    for cut in 0..end_of_data {
        assert!(Gguf::parse(&file[..cut]).is_err(), "cut at {cut}");
    }
    assert!(Gguf::parse(&file[..end_of_data]).is_ok());
}

/// A head with these counts, followed by `rest`.
fn head(version: u32, tensors: u64, entries: u64, rest: &[u8]) -> Vec<u8> {
    let mut b = MAGIC.to_vec();
    b.extend(version.to_le_bytes());
    b.extend(tensors.to_le_bytes());
    b.extend(entries.to_le_bytes());
    b.extend(rest);
    b
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key)[..], &kind.to_le_bytes(), value].concat()
}

fn tensor(name: &str, dims: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    let dims: Vec<u8> = (dims.len() as u32)
        .to_le_bytes()
        .into_iter()
        .chain(dims.iter().flat_map(|d| d.to_le_bytes()))
        .collect();
    [&text(name)[..], &dims, &ty.to_le_bytes(), &offset.to_le_bytes()].concat()
}

#[test]
fn wrong_heads_say_what_is_wrong() {
    assert_eq!(Gguf::parse(b""), Err(GgufReadError::Magic));
    assert_eq!(Gguf::parse(b"GGML____"), Err(GgufReadError::Magic));
    assert_eq!(Gguf::parse(&head(1, 0, 0, &[])), Err(GgufReadError::Version(1)));
    assert_eq!(Gguf::parse(&head(3 << 24, 0, 0, &[])), Err(GgufReadError::BigEndian));
    assert!(Gguf::parse(&head(2, 0, 0, &[])).is_ok());
    // Counts far larger than the available bytes must not allocate.
    assert!(matches!(Gguf::parse(&head(3, u64::MAX, 0, &[])), Err(GgufReadError::TooMany { .. })));
    assert!(matches!(Gguf::parse(&head(3, 0, u64::MAX, &[])), Err(GgufReadError::TooMany { .. })));
}

#[test]
fn wrong_metadata_says_what_is_wrong() {
    let parse = |n: u64, rest: &[u8]| Gguf::parse(&head(3, 0, n, rest)).map(|_| ()).expect_err("wrong");
    assert!(matches!(parse(1, &entry("k", 99, &[0; 8])), GgufReadError::Kind { id: 99, .. }));
    let nested = [9u32.to_le_bytes(), [0; 4], [0; 4]].concat();
    assert!(matches!(parse(1, &entry("k", 9, &nested)), GgufReadError::Kind { id: 9, .. }));
    let huge = [&4u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat();
    assert!(matches!(parse(1, &entry("k", 9, &huge)), GgufReadError::TooMany { .. }));
    let twice = [entry("k", 7, &[1]), entry("k", 7, &[1])].concat();
    assert_eq!(parse(2, &twice), GgufReadError::DuplicateKey("k".into()));
    assert!(matches!(parse(1, &entry(&"k".repeat(256), 7, &[1])), GgufReadError::TooMany { .. }));
    let bad = [&1u64.to_le_bytes()[..], &[0xff], &7u32.to_le_bytes(), &[1]].concat();
    assert!(matches!(parse(1, &bad), GgufReadError::Utf8 { .. }));
    for v in [0u32, 3, 1 << 17] {
        assert_eq!(parse(1, &entry(ALIGNMENT_KEY, 4, &v.to_le_bytes())), GgufReadError::Alignment);
    }
}

#[test]
fn wrong_tensors_say_what_is_wrong() {
    let parse = |t: &[u8]| match Gguf::parse(&head(3, 1, 0, &[t, &[0; 64]].concat())) {
        Err(GgufReadError::Tensor { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert!(parse(&tensor("t", &[], 0, 0)).contains("dimensions"));
    assert!(parse(&tensor("t", &[1; 5], 0, 0)).contains("dimensions"));
    assert!(parse(&tensor("t", &[u64::MAX, 2], 0, 0)).contains("too many elements"));
    assert!(parse(&tensor("t", &[33], 2, 0)).contains("blocks"));
    assert!(parse(&tensor("t", &[4], 0, 8)).contains("aligned"));
    assert!(parse(&tensor("t", &[4096], 0, 0)).contains("outside"));
    assert!(parse(&tensor("t", &[1], 0, u64::MAX - 31)).contains("outside"));
    let twice = [tensor("t", &[1], 0, 0), tensor("t", &[1], 0, 0), vec![0; 64]].concat();
    assert_eq!(Gguf::parse(&head(3, 2, 0, &twice)), Err(GgufReadError::DuplicateTensor("t".into())));
    // An unknown type is not an error; only its size is unknown.
    let file = head(3, 1, 0, &[tensor("t", &[256], 1000, 0), vec![0; 64]].concat());
    assert_eq!(Gguf::parse(&file).expect("valid").tensors[0].bytes, None);
}

/// Reads everything that a caller could read.
fn walk(file: &[u8]) {
    if let Ok(g) = Gguf::parse(file) {
        for (_, v) in &g.metadata {
            if let GgufValue::Array(a) = v {
                assert!(a.strings().count() as u64 + a.values().count() as u64 == a.len());
            }
        }
        for t in &g.tensors {
            assert!(t.offset + t.bytes.unwrap_or(0) <= file.len() as u64);
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        walk(&bytes);
        walk(&head(3, 1, 1, &bytes));
    }

    #[test]
    fn flipped_bytes_never_panic(flips in prop::collection::vec((0usize..800, any::<u8>()), 1..6)) {
        let mut file = sample();
        for (at, with) in flips {
            if let Some(b) = file.get_mut(at) {
                *b = with;
            }
        }
        walk(&file);
    }
}
