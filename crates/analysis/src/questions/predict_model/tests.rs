//! Predictions for a made-up model from made-up times.

use super::recorded::{AttentionTime, PhaseTimes, ProductTime};
use super::*;
use ggml::model_shape::{AttentionShape, AttentionWindow, WeightProduct};

fn ty(name: &str) -> StoredType {
    StoredType::named(name).expect("known")
}

fn product(name: &str, k: u64, m: u64, count: u64) -> WeightProduct {
    let head = name.starts_with("output");
    WeightProduct { name: name.into(), ty: ty("q4_0"), k, m, experts: None, count, head }
}

/// Eight layers with one product each, and a head.
fn shape() -> ModelShape {
    ModelShape {
        arch: "llama".into(),
        name: "made up".into(),
        layers: 8,
        embd: 1024,
        vocab: 32_000,
        context: Some(8192),
        attention: AttentionShape { heads: 16, kv_heads: 8 * 4, key: 64, value: 64, window: None },
        experts: None,
        products: vec![
            product("blk.{L}.attn_q.weight", 1024, 1024, 8),
            product("output.weight", 1024, 32_000, 1),
        ],
        tensors: ["blk.{L}.attn_q.weight".to_owned(), "output.weight".to_owned()].into(),
        stored: 100 << 20,
        aside: std::collections::BTreeMap::new(),
        row: 576,
    }
}

fn time(k: u64, m: u64, columns: u64, ns: f64) -> ProductTime {
    ProductTime { ty: ty("q4_0"), k, m, experts: 1, used: 1, columns, count: 1.0, ns }
}

/// Of a model with four layers of the same kind.
fn recording() -> Recorded {
    let attention = AttentionTime {
        ns: 1e5,
        width: 16.0 * 64.0 * 4.0,
        contexts: [64.0, 128.0, 192.0],
        slope: Some(500.0),
    };
    let decode = PhaseTimes {
        calls: 100,
        tokens: 1,
        call_ns: 2e6,
        spread: 0.01,
        products: vec![time(1024, 1024, 1, 1e5), time(1024, 32_000, 1, 2e6)],
        attention,
        layer_ops_ns: 4e4,
        other_ops_ns: 1e4,
        rest_ns: 2e4,
        ..PhaseTimes::default()
    };
    let prefill = PhaseTimes {
        calls: 1,
        tokens: 64,
        products: vec![time(1024, 1024, 64, 1e6)],
        ..PhaseTimes::default()
    };
    Recorded {
        machine: "a board".into(),
        cpu_model: "a board".into(),
        cpus: 4,
        threads: 2,
        layers: 4,
        embd: 1024,
        tensors: shape().tensors,
        decode,
        prefill: Some(prefill),
        peaks: Vec::new(),
    }
}

fn options() -> PredictOptions {
    PredictOptions {
        threads: None,
        context: 1128,
        prompt: 128,
        ubatch: 512,
        cache: ty("f16"),
        memory: None,
        flash: true,
    }
}

fn of(shape: &ModelShape, r: &Recorded, options: &PredictOptions) -> ModelPrediction {
    predict(shape, Some(r), None, options).expect("a prediction")
}

/// Nanoseconds of a token.
fn token(p: &ModelPrediction, at: usize) -> f64 {
    1e9 / p.decode[at].tokens_per_s.expect("a speed").value
}

#[test]
fn a_token_is_the_sum_of_its_parts() {
    let p = of(&shape(), &recording(), &options());
    let without_attention = 8.0 * 1e5 + 2e6 + 2.0 * 4e4 + 1e4 + 2e4;
    assert!((token(&p, 0) - (without_attention + 2.0 * 1e5)).abs() < 1.0);
    assert!((token(&p, 1) - (without_attention + 2.0 * 6e5)).abs() < 1.0);
    let parts = p.basis.parts.expect("parts");
    assert_eq!((&*parts[0].what, parts[0].from, parts[0].ns), ("output.weight", "measured", 2e6));
    assert!((parts.iter().map(|p| p.ns).sum::<f64>() - (without_attention + 2e5)).abs() < 1.0);
    assert_eq!(p.decode[0].confidence, Some(Confidence::High));
    // Far beyond the recorded contexts, the range is wider.
    let width = |i: usize| {
        let r = p.decode[i].tokens_per_s.expect("a speed");
        r.most / r.least
    };
    assert!(width(1) > width(0));
}

#[test]
fn a_window_bounds_attention() {
    let mut windowed = shape();
    windowed.attention.window = Some(AttentionWindow { tokens: 128, layers: 8 });
    let p = of(&windowed, &recording(), &options());
    assert_eq!(token(&p, 0), token(&p, 1));
}

#[test]
fn without_growth_in_the_recording_the_context_is_a_range() {
    let mut r = recording();
    r.decode.attention.slope = None;
    let p = of(&shape(), &r, &options());
    let ns = |rate: f64| 1e9 / rate;
    let full = p.decode[1].tokens_per_s.expect("a speed");
    // Between no growth and growth in proportion, 1128 / 128 times.
    assert!(ns(full.most) < 2e6 + 8e5 + 3e5 && ns(full.least) > 2e6 + 8e5 + 2.0 * 8.8e5);
    assert_eq!(p.decode[1].confidence, Some(Confidence::Medium));
}

#[test]
fn a_prompt_is_computed_in_batches() {
    let p = of(&shape(), &recording(), &options());
    let seconds =
        |p: &ModelPrediction| p.first_token.as_ref().expect("a prompt").seconds.expect("a time").value;
    // Twice the tokens of the recorded prompt; the head for one token.
    assert!((seconds(&p) - (8.0 * 2e6 + 2e6) / 1e9).abs() < 1e-5, "{}", seconds(&p));
    let long = of(&shape(), &recording(), &PredictOptions { prompt: 1024, ..options() });
    assert!((seconds(&long) - (8.0 * 16e6 + 2e6) / 1e9).abs() < 1e-4, "{}", seconds(&long));
    let mut short = recording();
    short.prefill = short.prefill.map(|p| PhaseTimes { tokens: 4, ..p });
    let p = of(&shape(), &short, &options());
    assert_eq!(p.first_token.and_then(|p| p.seconds), None);
    assert!(p.notes.iter().any(|n| n.contains("has 4 tokens, fewer than 16")), "{:?}", p.notes);
}

#[test]
fn layers_of_another_kind_are_less_certain() {
    let mut other = shape();
    other.tensors.insert("blk.{L}.attn_q.bias".into());
    let p = of(&other, &recording(), &options());
    assert_eq!(p.decode[0].confidence, Some(Confidence::Medium));
    assert!(p.notes.iter().any(|n| n.contains("differ from the recorded ones")));
}

#[test]
fn what_the_recorder_took_widens_the_range_and_is_said() {
    let mut r = recording();
    r.decode.recorder = 0.3;
    let p = of(&shape(), &r, &options());
    assert!(p.notes.iter().any(|n| n.contains("the recorder took about 30 %")), "{:?}", p.notes);
    assert_eq!(p.decode[0].confidence, Some(Confidence::Medium));
}

#[test]
fn peaks_of_the_recording_are_its_ceiling() {
    let mut r = recording();
    let peak = |threads, gb_per_s| Peak { threads: Some(threads), gb_per_s, ..Peak::default() };
    r.peaks = vec![peak(1, 10.0), peak(2, 20.0)];
    let p = of(&shape(), &r, &options());
    assert_eq!((p.basis.peak_source, p.basis.peak.map(|p| p.gb_per_s)), (Some("recording"), Some(20.0)));
    let ceiling = p.decode[0].ceiling_tokens_per_s.expect("a ceiling");
    let bytes = shape().bytes_a_token() + 128.0 * 32.0 * 128.0 * 2.0;
    assert!((ceiling - 20e9 / bytes).abs() < 1e-6, "{ceiling}");
    // Given peaks come first.
    let given = KnownPeaks { source: "given", peaks: vec![peak(4, 50.0)] };
    let p = predict(&shape(), Some(&r), Some(&given), &options()).expect("a prediction");
    assert_eq!(p.basis.peak_source, Some("given"));
    assert!(p.notes.iter().any(|n| n.contains("the ceiling is that of 4")), "{:?}", p.notes);
}

#[test]
fn memory_is_weights_cache_and_a_batch() {
    let need = |options: &PredictOptions| memory::need(&shape(), options);
    let m = need(&options());
    // 1128 positions are 1280 cells.
    assert_eq!((m.weights, m.cache), (100 << 20, 8 * 4 * 128 * 2 * 1280));
    assert_eq!(m.compute, (32_000 + 1024) * 512 * 4);
    assert_eq!((m.total, m.fits), (m.weights + m.cache + m.compute, None));
    let long = PredictOptions { context: 8192, flash: false, memory: Some(1 << 40), ..options() };
    assert_eq!((need(&long).compute, need(&long).fits), (16 * 8192 * 512 * 4, Some(true)));
    assert_eq!(need(&PredictOptions { memory: Some(m.total), ..options() }).fits, Some(false));
}

#[test]
fn without_a_basis_or_with_contradicting_lengths_there_is_no_prediction() {
    assert_eq!(predict(&shape(), None, None, &options()), Err(NoPrediction::Basis));
    let short = PredictOptions { context: 100, ..options() };
    assert_eq!(predict(&shape(), Some(&recording()), None, &short), Err(NoPrediction::Context(100, 128)));
    let many = PredictOptions { threads: Some(5), ..options() };
    assert_eq!(predict(&shape(), Some(&recording()), None, &many), Err(NoPrediction::Threads(5, 4)));
}
