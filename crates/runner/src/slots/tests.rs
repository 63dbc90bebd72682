//! Slots change no result, and read exactly what the rules say about the experts that the engine chose.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use ggml::expert_cache::{ExpertPolicy, ExpertSlots, Successors};
use ggml::quant::TensorType;

use super::*;
use crate::engine::{EngineSettings, RunnerEngine};
use crate::kernels::Isa;
use crate::model::{Model, ModelError, Placement};
use crate::optimise::{Step, Steps};
use crate::parts::KernelParts;
use crate::synth::presets::{self, Arch, ExpertPreset, ExpertRouting, Preset};
use crate::synth::{self, DEFAULT_SEED, GraphForm, ModelSpec};
use crate::truth::Truth;
use ggml::expert_pins::PinFile;

const EXPERTS: usize = 12;
const USED: usize = 3;
const LAYERS: usize = 3;
const DECODED: usize = 10;

static SMALL: Preset = Preset {
    name: "slots",
    about: "a few small experts",
    arch: Arch::Qwen2Moe,
    layers: LAYERS as u32,
    embd: 256,
    ff: 64,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    vocab: 512,
    context: 1024,
    tied: true,
    rope_base: 10_000.0,
    // 100 rows: groups of rows of two experts would overlap.
    experts: Some(ExpertPreset {
        count: EXPERTS as u32,
        used: USED as u32,
        ff: 100,
        shared_ff: 64,
        routing: ExpertRouting::Even,
    }),
};

fn made(ty: TensorType) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let order = ModelSpec { preset: &SMALL, ty, graph: GraphForm::Llama, seed: DEFAULT_SEED, threads: 1 };
    synth::write(&order, file.as_file(), |_| ()).expect("room");
    file
}

fn pins(dir: &Path) -> SlotPolicy {
    let path = dir.join("pins.csv");
    let lines: String = (0..LAYERS * EXPERTS).map(|i| format!("{},{}\n", i % LAYERS, i / LAYERS)).collect();
    std::fs::write(&path, lines).expect("written");
    SlotPolicy::Pin(PinFile::read(&path).expect("a file"))
}

fn engine(
    file: &Path,
    (placement, parts): (Placement, KernelParts),
    slots: Option<&SlotSettings>,
    (threads, truth): (usize, Option<&Arc<Truth>>),
) -> Result<RunnerEngine, ModelError> {
    let model = Model::load_in_slots(file, Isa::best(), placement, parts, slots, |_, _| ())?;
    let settings = EngineSettings {
        context: 1024,
        threads,
        decode_threads: threads,
        pin: false,
        two_backends: false,
        steps: Steps::ALL,
        truth: truth.cloned(),
    };
    Ok(RunnerEngine::new(Arc::new(model), settings).expect("an engine"))
}

/// The bits of the logits after a prompt and after each token that follows.
fn run(engine: &mut RunnerEngine, prompt: usize) -> Vec<Vec<u32>> {
    let bits = |logits: &[f32]| logits.iter().map(|v| v.to_bits()).collect();
    let tokens: Vec<i32> = (0..prompt).map(|i| 3 + i as i32 * 37 % 400).collect();
    let mut all = vec![bits(engine.decode(&tokens).expect("logits"))];
    for i in 0..DECODED {
        all.push(bits(engine.decode(&[7 + i as i32 * 31 % 400]).expect("logits")));
    }
    all
}

fn slots(slots: usize, policy: &SlotPolicy, from: ExpertsFrom) -> SlotSettings {
    SlotSettings { slots, policy: policy.clone(), from, readers: 2 }
}

fn report(engine: &RunnerEngine) -> SlotReport {
    engine.model().weights.slots.as_ref().expect("slots").report()
}

#[test]
fn logits_are_those_of_a_run_without_slots() {
    let dir = tempfile::tempdir().expect("a directory");
    let policies = [SlotPolicy::Lru, SlotPolicy::Lfu, pins(dir.path()), SlotPolicy::Next];
    for ty in [TensorType::Q4_0, TensorType::Q4K, TensorType::F16] {
        let file = made(ty);
        for placement in [Placement::Packed, Placement::Mapped] {
            let how = (placement, KernelParts::default());
            let mut plain = engine(file.path(), how, None, (2, None)).expect("a model");
            let wanted = run(&mut plain, 20);
            for policy in &policies {
                for count in [0, USED - 1, USED, 2 * USED, EXPERTS] {
                    for (from, threads) in [(ExpertsFrom::Disk, 2), (ExpertsFrom::Memory, 1)] {
                        let settings = slots(count, policy, from);
                        let engine = engine(file.path(), how, Some(&settings), (threads, None));
                        let mut engine = engine.expect("a model");
                        if from == ExpertsFrom::Disk {
                            // So that the slots are full when the run begins.
                            run(&mut engine, 5);
                            engine.forget();
                        }
                        assert!(run(&mut engine, 20) == wanted, "{ty:?} {placement} {settings:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn parts_of_the_kernels_can_be_left_out() {
    let file = made(TensorType::Q4_0);
    for part in [Step::Layout, Step::HugePages, Step::Uint4, Step::Prefetch] {
        let parts = Steps::ALL.without(part).parts();
        let how = (Placement::Packed, parts);
        let wanted = run(&mut engine(file.path(), how, None, (1, None)).expect("a model"), 20);
        let settings = slots(USED, &SlotPolicy::Next, ExpertsFrom::Disk);
        let mut engine = engine(file.path(), how, Some(&settings), (1, None)).expect("a model");
        assert!(run(&mut engine, 20) == wanted, "{}", part.name());
    }
}

/// An op as the engine's own account has it.
struct SeenOp {
    graph: usize,
    layer: usize,
    /// Tokens of the graph and of the call.
    tokens: [usize; 2],
    set: Vec<u16>,
}

/// The experts of each layer's first MUL_MAT_ID, by the file of `--ground-truth`.
fn seen_ops(truth: &Truth) -> Vec<SeenOp> {
    let mut text = Vec::new();
    truth.write(&mut text).expect("memory takes it");
    let text = String::from_utf8(text).expect("text");
    let (mut names, mut tables, mut parents, mut calls) =
        (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
    let mut ops: Vec<SeenOp> = Vec::new();
    let mut last = None;
    for line in text.lines() {
        let f: Vec<&str> = line.split('\t').collect();
        let n = |i: usize| f[i].parse::<usize>().expect("a number");
        match f[0] {
            "dropped" => assert_eq!(n(1), 0, "all is there"),
            "node" => drop(names.insert((n(1), n(2)), f[5])),
            "call" => drop(calls.insert(n(1), n(3))),
            "graph" => drop(parents.insert(n(1), n(2))),
            "cpu-graph" => {
                tables.insert(n(1), n(5));
                parents.insert(n(1), n(2));
            }
            "experts" => {
                let (graph, node) = (n(1), n(2));
                let name = names[&(tables[&graph], node)];
                let Some(layer) = name.strip_prefix("ffn_moe_gate-") else { continue };
                if last != Some((graph, node)) {
                    let layer = layer.parse().expect("a layer");
                    let call = calls[&parents[&parents[&graph]]];
                    ops.push(SeenOp { graph, layer, tokens: [0, call], set: Vec::new() });
                    last = Some((graph, node));
                }
                let op = ops.last_mut().expect("just added");
                op.tokens[0] += 1;
                for expert in f[4].split(',').map(|e| e.parse().expect("an expert")) {
                    if !op.set.contains(&expert) {
                        op.set.push(expert);
                    }
                }
            }
            _ => {}
        }
    }
    // The last layer has only the tokens whose logits are wanted.
    let of_graph: HashMap<usize, usize> = ops.iter().rev().map(|op| (op.graph, op.tokens[0])).collect();
    ops.iter_mut().for_each(|op| op.tokens[0] = of_graph[&op.graph]);
    ops
}

/// Needed, hits, reads on demand and early of prefill and decode, by layer: what the module's documentation says.
fn replayed(ops: &[SeenOp], settings: &SlotSettings) -> Vec<[[u64; 4]; 2]> {
    let policy = match settings.policy {
        SlotPolicy::Lfu => ExpertPolicy::Lfu,
        SlotPolicy::Pin(_) => ExpertPolicy::Pin,
        _ => ExpertPolicy::Lru,
    };
    let mut slots: Vec<_> = (0..LAYERS).map(|_| ExpertSlots::new(policy, settings.slots, EXPERTS)).collect();
    if let SlotPolicy::Pin(file) = &settings.policy {
        let wanted = file.by_layer(LAYERS, EXPERTS).expect("experts");
        slots = slots.into_iter().zip(wanted).map(|(s, w)| s.warmed(&w).0).collect();
    }
    let mut successors: Vec<_> = (1..LAYERS).map(|_| Successors::new(EXPERTS, EXPERTS)).collect();
    let mut counts = vec![[[0; 4]; 2]; LAYERS];
    for (i, op) in ops.iter().enumerate() {
        let phase = usize::from(op.tokens[1] == 1);
        let mut reads = Vec::new();
        let hits = slots[op.layer].need(&op.set, &mut reads);
        let sums = [op.set.len(), hits, reads.len()];
        counts[op.layer][phase].iter_mut().zip(sums).for_each(|(c, n)| *c += n as u64);
        if op.tokens[0] > 1 || settings.policy != SlotPolicy::Next {
            continue;
        }
        if op.layer > 0 {
            assert_eq!((ops[i - 1].graph, ops[i - 1].layer), (op.graph, op.layer - 1));
            successors[op.layer - 1].learn(&ops[i - 1].set, &op.set);
        }
        if op.layer + 1 < LAYERS {
            let (predicted, mut early) = (successors[op.layer].after(&op.set), Vec::new());
            slots[op.layer + 1].expect(&predicted, op.set.len(), &mut early);
            counts[op.layer + 1][phase][3] += early.len() as u64;
        }
    }
    counts
}

#[test]
fn what_is_read_is_what_the_rules_say_about_the_chosen_experts() {
    let (file, dir) = (made(TensorType::Q4_0), tempfile::tempdir().expect("a directory"));
    let how = (Placement::Packed, KernelParts::default());
    let mut early = Vec::new();
    for policy in [SlotPolicy::Lru, SlotPolicy::Lfu, pins(dir.path()), SlotPolicy::Next] {
        for count in [USED, USED + 2, 2 * USED, EXPERTS] {
            // The last token of the longer prompt has a graph of its own.
            for prompt in [20, crate::engine::UBATCH + 1] {
                let settings = slots(count, &policy, ExpertsFrom::Disk);
                let truth = Arc::new(Truth::new(1, 1000, 50_000, 100_000).expect("memory"));
                let engine = engine(file.path(), how, Some(&settings), (1, Some(&truth)));
                let mut engine = engine.expect("a model");
                run(&mut engine, prompt);
                let (report, wanted) = (report(&engine), replayed(&seen_ops(&truth), &settings));
                let sums = |p: &PhaseReport| [p.needed, p.hits, p.demand_reads, p.early_reads];
                let got: Vec<_> =
                    report.layers.iter().map(|l| [sums(&l.counts.prefill), sums(&l.counts.decode)]).collect();
                assert_eq!(got, wanted, "{settings:?}");
                let all = [&report.counts.prefill, &report.counts.decode];
                let bytes = 18 * 256 * 100 * 2 / 32 + 100 * 256 * 34 / 32;
                for phase in all {
                    assert_eq!(phase.demand_reads + phase.hits, phase.needed);
                    let reads = phase.demand_reads + phase.early_reads;
                    assert!(phase.read_bytes <= reads * 2 * bytes && (phase.read_bytes > 0) == (reads > 0));
                    assert_eq!(phase.hit_rate, Some(phase.hits as f64 / phase.needed as f64));
                }
                early.push((policy == SlotPolicy::Next, report.counts.decode.early_reads));
                let pinned = if matches!(policy, SlotPolicy::Pin(_)) { (LAYERS * count) as u64 } else { 0 };
                assert_eq!(report.pinned_reads, pinned);
                assert_eq!(report.counts.warm_up.hit_rate, None);
            }
        }
    }
    assert!(early.contains(&(true, 0)) && early.iter().any(|(next, reads)| *next && *reads > 0), "{early:?}");
    assert!(early.iter().all(|(next, reads)| *next || *reads == 0), "{early:?}");
}

#[test]
fn models_and_experts_that_do_not_exist_are_refused() {
    let (file, dir) = (made(TensorType::F16), tempfile::tempdir().expect("a directory"));
    let how = (Placement::Packed, KernelParts::default());
    let refused = |file: &Path, policy: &SlotPolicy| {
        let settings = slots(4, policy, ExpertsFrom::Disk);
        engine(file, how, Some(&settings), (1, None)).err().expect("refused").to_string()
    };
    let dense = tempfile::NamedTempFile::new().expect("a file");
    let preset = presets::find("tiny").expect("a preset");
    let order = ModelSpec { preset, ty: TensorType::Q4_0, graph: GraphForm::Llama, seed: 1, threads: 1 };
    synth::write(&order, dense.as_file(), |_| ()).expect("room");
    let said = refused(dense.path(), &SlotPolicy::Lru);
    assert!(said.starts_with("this model (llama) has no experts"), "{said}");
    let path = dir.path().join("pins.csv");
    std::fs::write(&path, format!("0,1\n{LAYERS},1\n")).expect("written");
    let said = refused(file.path(), &SlotPolicy::Pin(PinFile::read(&path).expect("a file")));
    assert!(said.contains("pins.csv, line 2: layer 3, but the model's layers are 0 to 2"), "{said}");
}
