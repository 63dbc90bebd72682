//! The generated models: shapes and metadata against tables, bytes against a constant, and both against gguf-py.

use crate::common::skips;
use ggml::gguf::reader::{Gguf, GgufValue};
use ggml::quant::TensorType;
use runner::synth::{self, DEFAULT_SEED, GraphForm, ModelSpec, presets};
use std::io::{self, Write};
use std::process::Command;

/// CRC-32C of `tiny` with the default seed.
const CRC_F16: u32 = 0x9273_82aa;
const CRC_Q4_0: u32 = 0xdafc_ce42;
const CRC_Q4_K: u32 = 0x1a5e_d8ae;

fn order(preset: &str, ty: TensorType) -> ModelSpec {
    let preset = presets::find(preset).expect("a preset");
    ModelSpec { preset, ty, graph: GraphForm::Llama, seed: DEFAULT_SEED, threads: 2 }
}

fn model(preset: &str, ty: TensorType) -> Vec<u8> {
    synth::write(&order(preset, ty), Vec::new(), |_| ()).expect("memory takes all")
}

/// Computes the checksum and size of a model without storing it.
#[derive(Default)]
struct Sink {
    crc: u32,
    bytes: u64,
}

impl Write for Sink {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.crc = crc32c::crc32c_append(self.crc, part);
        self.bytes += part.len() as u64;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn checksum(order: &ModelSpec) -> (u32, u64) {
    let sink = synth::write(order, Sink::default(), |_| ()).expect("a sink takes all");
    assert_eq!(order.file_bytes().expect("storable"), sink.bytes);
    (sink.crc, sink.bytes)
}

/// `key=value` for all metadata; arrays of the vocabulary are replaced with their length.
fn metadata(g: &Gguf<'_>) -> Vec<String> {
    let shown = |v: &GgufValue<'_>| match v {
        GgufValue::U32(v) => v.to_string(),
        GgufValue::F32(v) => format!("{v:?}f"),
        GgufValue::Bool(v) => v.to_string(),
        GgufValue::Str(v) => (*v).to_owned(),
        GgufValue::Array(a) => format!("{:?}[{}]", a.kind(), a.len()),
        other => format!("{other:?}"),
    };
    g.metadata.iter().map(|(k, v)| format!("{k}={}", shown(v))).collect()
}

/// `name type dims` of all tensors.
fn tensors(g: &Gguf<'_>) -> Vec<String> {
    let line = |t: &ggml::gguf::reader::GgufTensor<'_>| {
        let dims: Vec<_> = t.dims.iter().take(t.dim_count).map(u64::to_string).collect();
        let ty = TensorType::from_id(t.type_id).map_or("?", TensorType::name);
        format!("{} {ty} {}", t.name, dims.join("x"))
    };
    g.tensors.iter().map(line).collect()
}

/// The expected properties of a preset: architecture keys in file order, tensors outside the layers, tensors of each
/// layer.
struct Expected {
    preset: &'static str,
    layers: usize,
    vocab: u32,
    keys: &'static [&'static str],
    outside: &'static [&'static str],
    layer: &'static [&'static str],
}

const TINY_LAYER: [&str; 9] = [
    "attn_norm.weight f32 256",
    "attn_q.weight f16 256x256",
    "attn_k.weight f16 256x128",
    "attn_v.weight f16 256x128",
    "attn_output.weight f16 256x256",
    "ffn_norm.weight f32 256",
    "ffn_gate.weight f16 256x768",
    "ffn_up.weight f16 256x768",
    "ffn_down.weight f16 768x256",
];

const LLAMA_1B_LAYER: [&str; 9] = [
    "attn_norm.weight f32 2048",
    "attn_q.weight f16 2048x2048",
    "attn_k.weight f16 2048x512",
    "attn_v.weight f16 2048x512",
    "attn_output.weight f16 2048x2048",
    "ffn_norm.weight f32 2048",
    "ffn_gate.weight f16 2048x8192",
    "ffn_up.weight f16 2048x8192",
    "ffn_down.weight f16 8192x2048",
];

const EXPECTED: [Expected; 7] = [
    Expected {
        preset: "tiny",
        layers: 6,
        vocab: 4096,
        keys: &[
            "general.architecture=llama",
            "general.name=random-tiny",
            "llama.context_length=2048",
            "llama.embedding_length=256",
            "llama.block_count=6",
            "llama.feed_forward_length=768",
            "llama.attention.head_count=8",
            "llama.attention.head_count_kv=4",
            "llama.attention.layer_norm_rms_epsilon=1e-5f",
            "llama.rope.freq_base=500000.0f",
            "general.file_type=1",
            "llama.vocab_size=4096",
            "llama.rope.dimension_count=32",
        ],
        outside: &[
            "token_embd.weight f16 256x4096",
            "output_norm.weight f32 256",
            "output.weight f16 256x4096",
        ],
        layer: &TINY_LAYER,
    },
    Expected {
        preset: "qwen2-tiny",
        layers: 6,
        vocab: 4096,
        keys: &[
            "general.architecture=qwen2",
            "general.name=random-qwen2-tiny",
            "qwen2.context_length=2048",
            "qwen2.embedding_length=256",
            "qwen2.block_count=6",
            "qwen2.feed_forward_length=768",
            "qwen2.attention.head_count=8",
            "qwen2.attention.head_count_kv=4",
            "qwen2.attention.layer_norm_rms_epsilon=1e-5f",
            "qwen2.rope.freq_base=1000000.0f",
            "general.file_type=1",
            "qwen2.vocab_size=4096",
        ],
        outside: &["token_embd.weight f16 256x4096", "output_norm.weight f32 256"],
        layer: &[
            "attn_norm.weight f32 256",
            "attn_q.weight f16 256x256",
            "attn_k.weight f16 256x128",
            "attn_v.weight f16 256x128",
            "attn_output.weight f16 256x256",
            "ffn_norm.weight f32 256",
            "attn_q.bias f32 256",
            "attn_k.bias f32 128",
            "attn_v.bias f32 128",
            "ffn_gate.weight f16 256x768",
            "ffn_up.weight f16 256x768",
            "ffn_down.weight f16 768x256",
        ],
    },
    Expected {
        preset: "moe",
        layers: 4,
        vocab: 4096,
        keys: &[
            "general.architecture=qwen2moe",
            "general.name=random-moe",
            "qwen2moe.context_length=2048",
            "qwen2moe.embedding_length=512",
            "qwen2moe.block_count=4",
            "qwen2moe.feed_forward_length=1024",
            "qwen2moe.attention.head_count=8",
            "qwen2moe.attention.head_count_kv=8",
            "qwen2moe.attention.layer_norm_rms_epsilon=1e-5f",
            "qwen2moe.rope.freq_base=10000.0f",
            "general.file_type=1",
            "qwen2moe.vocab_size=4096",
            "qwen2moe.expert_count=60",
            "qwen2moe.expert_used_count=4",
            "qwen2moe.expert_feed_forward_length=256",
            "qwen2moe.expert_shared_feed_forward_length=1024",
        ],
        outside: &[
            "token_embd.weight f16 512x4096",
            "output_norm.weight f32 512",
            "output.weight f16 512x4096",
        ],
        layer: &[
            "attn_norm.weight f32 512",
            "attn_q.weight f16 512x512",
            "attn_k.weight f16 512x512",
            "attn_v.weight f16 512x512",
            "attn_output.weight f16 512x512",
            "ffn_norm.weight f32 512",
            "attn_q.bias f32 512",
            "attn_k.bias f32 512",
            "attn_v.bias f32 512",
            "ffn_gate_inp.weight f32 512x60",
            "ffn_gate_exps.weight f16 512x256x60",
            "ffn_up_exps.weight f16 512x256x60",
            "ffn_down_exps.weight f16 256x512x60",
            "ffn_gate_inp_shexp.weight f32 512",
            "ffn_gate_shexp.weight f16 512x1024",
            "ffn_up_shexp.weight f16 512x1024",
            "ffn_down_shexp.weight f16 1024x512",
        ],
    },
    Expected {
        preset: "gemma2",
        layers: 4,
        vocab: 16_000,
        keys: &[
            "general.architecture=gemma2",
            "general.name=random-gemma2",
            "gemma2.context_length=4096",
            "gemma2.embedding_length=768",
            "gemma2.block_count=4",
            "gemma2.feed_forward_length=3072",
            "gemma2.attention.head_count=4",
            "gemma2.attention.head_count_kv=2",
            "gemma2.attention.layer_norm_rms_epsilon=1e-5f",
            "gemma2.rope.freq_base=10000.0f",
            "general.file_type=1",
            "gemma2.vocab_size=16000",
            "gemma2.attention.key_length=256",
            "gemma2.attention.value_length=256",
            "gemma2.attention.sliding_window=1024",
            "gemma2.attn_logit_softcapping=50.0f",
            "gemma2.final_logit_softcapping=30.0f",
        ],
        outside: &["token_embd.weight f16 768x16000", "output_norm.weight f32 768"],
        layer: &[
            "attn_norm.weight f32 768",
            "attn_q.weight f16 768x1024",
            "attn_k.weight f16 768x512",
            "attn_v.weight f16 768x512",
            "attn_output.weight f16 1024x768",
            "ffn_norm.weight f32 768",
            "post_attention_norm.weight f32 768",
            "post_ffw_norm.weight f32 768",
            "ffn_gate.weight f16 768x3072",
            "ffn_up.weight f16 768x3072",
            "ffn_down.weight f16 3072x768",
        ],
    },
    Expected {
        preset: "llama1b-L4",
        layers: 4,
        vocab: 32_000,
        keys: &[
            "general.architecture=llama",
            "general.name=random-llama1b-L4",
            "llama.context_length=8192",
            "llama.embedding_length=2048",
            "llama.block_count=4",
            "llama.feed_forward_length=8192",
            "llama.attention.head_count=32",
            "llama.attention.head_count_kv=8",
            "llama.attention.layer_norm_rms_epsilon=1e-5f",
            "llama.rope.freq_base=500000.0f",
            "general.file_type=1",
            "llama.vocab_size=32000",
            "llama.rope.dimension_count=64",
        ],
        outside: &["token_embd.weight f16 2048x32000", "output_norm.weight f32 2048"],
        layer: &LLAMA_1B_LAYER,
    },
    Expected {
        preset: "llama1b-L12",
        layers: 12,
        vocab: 128_256,
        keys: &["general.architecture=llama", "general.name=random-llama1b-L12"],
        outside: &["token_embd.weight f16 2048x128256", "output_norm.weight f32 2048"],
        layer: &LLAMA_1B_LAYER,
    },
    Expected {
        preset: "llama1b",
        layers: 16,
        vocab: 128_256,
        keys: &["general.architecture=llama", "general.name=random-llama1b"],
        outside: &["token_embd.weight f16 2048x128256", "output_norm.weight f32 2048"],
        layer: &LLAMA_1B_LAYER,
    },
];

fn tokenizer_keys(arch: &str, vocab: u32) -> Vec<String> {
    if arch.contains("qwen2") {
        return vec![
            "tokenizer.ggml.model=gpt2".into(),
            "tokenizer.ggml.pre=qwen2".into(),
            format!("tokenizer.ggml.tokens=String[{vocab}]"),
            format!("tokenizer.ggml.token_type=I32[{vocab}]"),
            "tokenizer.ggml.merges=String[1378]".into(),
            format!("tokenizer.ggml.eos_token_id={}", vocab - 3),
            "tokenizer.ggml.add_bos_token=false".into(),
        ];
    }
    vec![
        "tokenizer.ggml.model=llama".into(),
        "tokenizer.ggml.pre=default".into(),
        format!("tokenizer.ggml.tokens=String[{vocab}]"),
        format!("tokenizer.ggml.scores=F32[{vocab}]"),
        format!("tokenizer.ggml.token_type=I32[{vocab}]"),
        "tokenizer.ggml.bos_token_id=1".into(),
        "tokenizer.ggml.eos_token_id=2".into(),
        "tokenizer.ggml.unknown_token_id=0".into(),
        "tokenizer.ggml.add_bos_token=true".into(),
        "tokenizer.ggml.add_eos_token=false".into(),
        "tokenizer.ggml.add_space_prefix=true".into(),
    ]
}

/// The head of a full-size model: the head is real, the data is a hole.
fn with_head<R>(preset: &str, look: impl FnOnce(&Gguf<'_>) -> R) -> R {
    /// Fails as soon as the head is written, so that no weights of a large model are generated.
    struct Head(Vec<u8>);
    impl Write for &mut Head {
        fn write(&mut self, part: &[u8]) -> io::Result<usize> {
            if !self.0.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.extend(part);
            Ok(part.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let order = order(preset, TensorType::F16);
    let mut head = Head(Vec::new());
    assert!(synth::write(&order, &mut head, |_| ()).is_err());
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(&head.0).expect("written");
    file.set_len(order.file_bytes().expect("storable")).expect("a hole");
    // SAFETY: this unnamed file has no other users.
    let map = unsafe { memmap2::Mmap::map(&file) }.expect("mapped");
    look(&Gguf::parse(&map).expect("valid"))
}

#[test]
fn every_preset_is_in_the_table() {
    let mut names: Vec<_> = EXPECTED.iter().map(|e| e.preset).collect();
    let mut presets: Vec<_> = presets::PRESETS.iter().map(|p| p.name).collect();
    names.sort_unstable();
    presets.sort_unstable();
    assert_eq!(names, presets);
}

#[test]
fn metadata_and_tensors_are_as_expected() {
    for e in &EXPECTED {
        with_head(e.preset, |g| {
            let keys = metadata(g);
            let tokenizer = tokenizer_keys(e.keys[0], e.vocab);
            let split = keys.len() - tokenizer.len();
            assert_eq!(keys[..e.keys.len()], *e.keys, "{}", e.preset);
            assert_eq!(keys[split..], tokenizer, "{}", e.preset);
            if e.keys.len() > 2 {
                assert_eq!(split, e.keys.len(), "{}", e.preset);
            }
            let mut expected: Vec<_> = e.outside.iter().map(ToString::to_string).collect();
            for layer in 0..e.layers {
                expected.extend(e.layer.iter().map(|t| format!("blk.{layer}.{t}")));
            }
            assert_eq!(tensors(g), expected, "{}", e.preset);
        });
    }
}

#[test]
fn the_large_presets_differ_only_in_layers_and_vocabulary() {
    let keys = |preset: &str| with_head(preset, metadata);
    let (whole, twelve) = (keys("llama1b"), keys("llama1b-L12"));
    let differing: Vec<_> =
        whole.iter().zip(&twelve).filter(|(a, b)| a != b).map(|(a, _)| a.as_str()).collect();
    assert_eq!(differing, ["general.name=random-llama1b", "llama.block_count=16"]);
    assert!(whole.contains(&"llama.vocab_size=128256".to_owned()));
    assert_eq!(whole.len(), 24);
}

#[test]
fn vocabulary_holds_specials_bytes_ascii_and_filler() {
    with_head("tiny", |g| {
        let array = |key| match g.get(key) {
            Some(GgufValue::Array(a)) => *a,
            other => panic!("{key}: {other:?}"),
        };
        let tokens: Vec<_> = array("tokenizer.ggml.tokens").strings().collect();
        let at = |i: usize| std::str::from_utf8(tokens[i]).expect("UTF-8");
        assert_eq!([at(0), at(2), at(3), at(258)], ["<unk>", "</s>", "<0x00>", "<0xFF>"]);
        assert_eq!([at(259), at(260), at(353), at(354)], ["\u{2581}", "!", "~", "\u{2581}t354"]);
        let scores: Vec<_> = array("tokenizer.ggml.scores").values().collect();
        assert_eq!([scores[258], scores[259], scores[354]], [0.0, -360.0, -1355.0].map(GgufValue::F32));
        let kinds: Vec<_> = array("tokenizer.ggml.token_type").values().collect();
        assert_eq!([kinds[0], kinds[1], kinds[3], kinds[259]], [2, 3, 6, 1].map(GgufValue::I32));
    });
}

#[test]
fn quantised_files_keep_vectors_and_router_and_say_their_type() {
    let file = model("moe", TensorType::Q4_0);
    let g = Gguf::parse(&file).expect("valid");
    assert_eq!(g.get("general.file_type").and_then(GgufValue::as_u64), Some(2));
    assert_eq!(g.get("general.quantization_version").and_then(GgufValue::as_u64), Some(2));
    for line in tensors(&g) {
        let kept = line.contains("norm") || line.contains("bias") || line.contains("ffn_gate_inp");
        let ty = if kept { " f32 " } else { " q4_0 " };
        assert!(line.contains(ty), "{line}");
    }
}

#[test]
fn the_form_of_a_graph_is_a_key_and_nothing_else() {
    let plain = order("tiny", TensorType::Q4_0);
    let whole = |order: &ModelSpec| synth::write(order, Vec::new(), |_| ()).expect("memory takes all");
    let (plain, exported) = (whole(&plain), whole(&ModelSpec { graph: GraphForm::Exported, ..plain }));
    let (a, b) = (Gguf::parse(&plain).expect("valid"), Gguf::parse(&exported).expect("valid"));
    let mut keys = metadata(&b);
    let key = keys.iter().position(|k| k == "ggml_runner.graph=exported").expect("the key");
    keys.remove(key);
    assert_eq!((keys, tensors(&b)), (metadata(&a), tensors(&a)));
    let data = |file: &[u8], g: &Gguf<'_>| file[usize::try_from(g.data_offset).expect("small")..].to_vec();
    assert!(data(&plain, &a) == data(&exported, &b));
}

#[test]
fn same_seed_same_bytes() {
    // Checksums of the generator's output: if they change, every generated model changes.
    assert_eq!(checksum(&order("tiny", TensorType::F16)), (CRC_F16, 13_745_664));
    assert_eq!(checksum(&order("tiny", TensorType::Q4_0)), (CRC_Q4_0, 3_948_064));
    assert_eq!(checksum(&order("tiny", TensorType::Q4K)), (CRC_Q4_K, 3_948_064));
    let other = ModelSpec { seed: 43, ..order("tiny", TensorType::Q4_0) };
    assert_ne!(checksum(&other).0, CRC_Q4_0);
}

#[test]
fn number_of_threads_changes_nothing() {
    let base = ModelSpec { threads: 1, ..order("gemma2", TensorType::Q8_0) };
    let one = checksum(&base);
    for threads in [0, 2, 3] {
        assert_eq!(checksum(&ModelSpec { threads, ..base }), one, "{threads} threads");
    }
}

#[test]
fn weights_have_the_deviation_of_their_fan_in() {
    let file = model("tiny", TensorType::F32);
    let g = Gguf::parse(&file).expect("valid");
    let deviation = |name: &str| {
        let t = g.tensors.iter().find(|t| t.name == name).expect("a tensor");
        let (start, len) = (t.offset as usize, t.bytes.expect("f32") as usize);
        let values: Vec<f64> = file[start..start + len]
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("four bytes"))))
            .collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt())
    };
    let (mean, dev) = deviation("blk.0.ffn_down.weight");
    assert!(mean.abs() < 1e-3 && (dev * 768f64.sqrt() - 1.0).abs() < 0.02, "{mean} {dev}");
    let (mean, dev) = deviation("blk.5.attn_norm.weight");
    assert!((mean - 1.0).abs() < 5e-3 && (dev - 0.01).abs() < 2e-3, "{mean} {dev}");
}

/// gguf-py's listing of a file, and whether quantizing the second file's tensors in Python gives the bytes of the
/// first.
const PYTHON: &str = r#"
import sys, numpy as np, gguf
made, plain = (gguf.GGUFReader(p) for p in sys.argv[1:3])
source = {t.name: np.asarray(t.data) for t in plain.tensors}
for t in made.tensors:
    print(t.name, t.tensor_type.name.lower(), 'x'.join(str(int(d)) for d in t.shape), int(t.data_offset))
    again = gguf.quants.quantize(source[t.name], t.tensor_type)
    if not np.array_equal(np.asarray(t.data).view(np.uint8).reshape(-1), again.view(np.uint8).reshape(-1)):
        sys.exit('other bytes than gguf-py: ' + t.name)
"#;

#[test]
fn gguf_py_agrees() {
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    match Command::new(&python).args(["-c", "import gguf, numpy"]).output() {
        Ok(o) if o.status.success() => {}
        _ => {
            let python = python.to_string_lossy();
            return skips::lacking(&format!("{python} has no module gguf (set PYTHON to one that has)"));
        }
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("plain"), model("tiny", TensorType::F32)).expect("written");
    // gguf-py rounds Q4_0 like a machine with fused multiply-add, and has no encoder for K types.
    for ty in [TensorType::F16, TensorType::BF16, TensorType::Q8_0] {
        let file = model("tiny", ty);
        std::fs::write(path("made"), &file).expect("written");
        let run = Command::new(&python).args(["-c", PYTHON]).args([path("made"), path("plain")]).output();
        let run = run.expect("python runs");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let g = Gguf::parse(&file).expect("valid");
        let ours: Vec<_> =
            tensors(&g).iter().zip(&g.tensors).map(|(line, t)| format!("{line} {}", t.offset)).collect();
        let theirs = String::from_utf8(run.stdout).expect("text");
        assert_eq!(theirs.lines().collect::<Vec<_>>(), ours);
    }
}
