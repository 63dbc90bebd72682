//! Experts in `report`: choices by layer, cache hit rates, cost of a page fault.

use crate::synth_trace;

use analysis::questions::report::{By, Report, ReportOptions, report};
use analysis::recorded::load::LoadProgress;
use pfi::record::{Availability, Engine, SourceKind};
use pfi::{CounterRun, Encoder, EncoderConfig, ExpertRows, TensorDesc, Trace};
use synth_trace::causes::*;
use synth_trace::*;

const MOE: Spec = Spec {
    layers: 2,
    threads: 2,
    experts: true,
    barrier: true,
    structure: true,
    source: SourceKind::Bpf,
    widths: true,
    clusters: false,
    weights: Q4_0_WEIGHTS,
    foreign: false,
};

fn busy(p: usize, ith: u16) -> u64 {
    1000 + 10 * p as u64 + u64::from(ith)
}

fn read(s: Synth<Vec<u8>>, expert_cache: &[u32]) -> Report {
    let trace = Trace::from_bytes(s.enc.finish(&footer("target exited")).unwrap()).unwrap();
    let options = ReportOptions {
        tables: By::ALL.to_vec(),
        expert_cache: expert_cache.to_vec(),
        ..ReportOptions::default()
    };
    report(&trace, &options, &LoadProgress::default())
}

fn shown(r: &Report) -> String {
    let mut out = Vec::new();
    render::text::write(&mut out, r, &Default::default()).unwrap();
    String::from_utf8(out).unwrap()
}

/// A tensor of ids and one of weights, named as in the engine.
fn tensors(s: &mut Synth<Vec<u8>>, ids: &str, weights: &str, experts: u64) -> (u32, u32) {
    let mut tensor = |addr, name: &str, ne| {
        let d = TensorDesc {
            pid: PID,
            addr,
            known: true,
            op: 0,
            ty: 3,
            flags: 0,
            name: name.as_bytes(),
            ne,
            nb: None,
            src: &[],
            view_src: None,
        };
        s.enc.tensor(&d).unwrap()
    };
    let at = 0x9000_0000 + ids.len() as u64 * 0x1000 + u64::from(ids.as_bytes()[ids.len() - 1]) * 0x10_0000;
    (tensor(at, ids, [2, 1, 1, 1]), tensor(at + 512, weights, [EMBD, FF, experts, 1]))
}

fn rows((ids, weights): (u32, u32), graph: u64, tokens: u32) -> ExpertRows<'static> {
    ExpertRows { graph, ids, weights, used: 2, tokens, first: 0, why: "" }
}

#[test]
fn choices_are_told_by_layer_and_phase() {
    let mut s = Synth::new(Vec::new(), MOE);
    let layer0 = tensors(&mut s, "ffn_moe_topk-0", "blk.0.ffn_up_exps.weight", 8);
    // Only the name of the weights shows the layer.
    let layer1 = tensors(&mut s, "node_77", "blk.1.ffn_up_exps.weight", 8);
    s.call(3, busy);
    s.enc.experts(&rows(layer0, 0, 3), &[0, 1, 0, 2, 0, 3]).unwrap();
    for (i, chosen) in [[4, 5], [4, 6], [4, 7], [4, 5]].iter().enumerate() {
        s.call(1, busy);
        let graph = 1 + i as u64;
        s.enc.experts(&rows(layer0, graph, 1), chosen).unwrap();
        s.enc.experts(&rows(layer1, graph, 1), &[1, 2]).unwrap();
    }
    let r = read(s, &[1, 2]);
    let e = r.experts.as_ref().unwrap();
    let [l0, l1] = &e.layers[..] else { panic!("{:?}", e.layers) };
    assert_eq!((l0.layer, l0.experts, l0.name.as_str(), l0.pid), (Some(0), Some(8), "ffn_moe_topk-0", PID));
    assert_eq!((l1.layer, l1.experts), (Some(1), Some(8)));
    assert_eq!((l0.prefill.as_slice(), l0.prefill_tokens), (&[3, 1, 1, 1, 0, 0, 0, 0][..], 3));
    assert_eq!(l0.decode, [0, 0, 0, 0, 4, 2, 1, 1]);
    assert_eq!((l1.prefill_tokens, l1.prefill.len()), (0, 0));
    // Half of the choices are one expert, a quarter another, an eighth each of two more: 1.75 bits.
    assert!((l0.usage.effective_experts.unwrap() - 1.75f64.exp2()).abs() < 1e-9);
    assert!((l1.usage.effective_experts.unwrap() - 2.0).abs() < 1e-9);
    // Three reuses after one token, and one of expert 5 after three.
    assert_eq!((l0.usage.tokens, l0.usage.choices, l0.usage.first_uses), (4, 8, 4));
    assert_eq!((l0.usage.reuse_p50, l0.usage.reuse_p90, l0.usage.reuse_mean), (Some(1), Some(3), Some(1.5)));
    let rates: Vec<_> = l0.usage.caches.iter().map(|c| (c.experts, c.hit_rate.unwrap())).collect();
    assert_eq!(rates, [(1, 0.0), (2, 3.0 / 8.0)]);
    let all: Vec<_> = e.all.caches.iter().map(|c| c.hit_rate.unwrap()).collect();
    // Layer 1 keeps both of its experts from the second token on, and the last one where there is room for one.
    assert_eq!((e.all.choices, all), (16, vec![3.0 / 16.0, 9.0 / 16.0]));
    let text = shown(&r);
    assert!(text.contains("4 (50.0 %), 5 (25.0 %), 6 (12.5 %), 7 (12.5 %)"), "{text}");
    assert!(text.contains("2 experts 56.25 %") && text.contains("Experts, prefill"), "{text}");
}

#[test]
fn ids_that_are_no_expert_and_ids_unread_are_told() {
    let mut s = Synth::new(Vec::new(), MOE);
    let layer0 = tensors(&mut s, "ffn_moe_topk-0", "blk.0.ffn_up_exps.weight", 8);
    s.call(1, busy);
    s.enc.experts(&rows(layer0, 0, 1), &[7, 8]).unwrap();
    s.enc.experts(&rows(layer0, 0, 1), &[-1, i32::MAX]).unwrap();
    let layer3 = tensors(&mut s, "ffn_moe_topk-3", "blk.3.ffn_up_exps.weight", 8);
    let unread = ExpertRows { why: "device memory", ..rows(layer3, 0, 1) };
    s.enc.experts(&unread, &[]).unwrap();
    s.enc.experts(&unread, &[]).unwrap();
    let r = read(s, &[]);
    let e = r.experts.as_ref().unwrap();
    assert_eq!((e.layers.len(), e.all.choices, e.out_of_range), (1, 1, 3));
    assert_eq!((e.unread.len(), e.unread[0].layer, e.unread[0].tensors), (1, Some(3), 2));
    let text = shown(&r);
    assert!(text.contains("3 expert ids out of range"), "{text}");
    assert!(text.contains("layer 3, 2 id tensors: device memory"), "{text}");
}

/// Without recorded structure the tensors have no names; each counts as a separate layer.
#[test]
fn without_names_each_tensor_stands_for_itself() {
    let mut enc = Encoder::new(Vec::new(), EncoderConfig::default(), &header(false)).unwrap();
    enc.engine(&Engine { id: 0, version: "x", layout: "x" }).unwrap();
    for ids in [5, 9] {
        let rows = ExpertRows { graph: 0, ids, weights: 1, used: 2, tokens: 1, first: 0, why: "" };
        enc.experts(&rows, &[1, 70_000]).unwrap();
    }
    let trace = Trace::from_bytes(enc.finish(&footer("x")).unwrap()).unwrap();
    let options = ReportOptions { tables: By::ALL.to_vec(), ..ReportOptions::default() };
    let r = report(&trace, &options, &LoadProgress::default());
    let e = r.experts.as_ref().unwrap();
    let names: Vec<_> = e.layers.iter().map(|l| (l.layer, l.name.as_str(), l.experts)).collect();
    assert_eq!(names, [(None, "tensor 5", None), (None, "tensor 9", None)]);
    assert_eq!((e.out_of_range, e.all.choices), (2, 2));
    shown(&r);
}

#[test]
fn a_miss_costs_the_time_of_calls_with_major_faults() {
    let mut s = Synth::new(Vec::new(), MOE);
    s.enc.feature(&feature("experts", Availability::Whole, "")).unwrap();
    s.enc.counter(&counter(0, "major-faults", "events", 1)).unwrap();
    let layer0 = tensors(&mut s, "ffn_moe_topk-0", "blk.0.ffn_up_exps.weight", 8);
    let positions = s.positions(1);
    // MUL_MAT_ID up and down of layer 0 are positions 12 and 13.
    for graph in 0..4u64 {
        let slow = graph % 2 * 500_000;
        s.call(1, |p, ith| busy(p, ith) + if p == 12 { slow } else { 0 });
        s.enc.experts(&rows(layer0, graph, 1), &[graph as i32, 5]).unwrap();
        for ith in 0..2 {
            let faults = |p: usize| if p == 12 && graph % 2 == 1 { 3 } else { u64::from(p == 0) * 99 };
            let told: Vec<_> = (0..positions).map(|p| Some(faults(p))).collect();
            let run = CounterRun { graph, ith, plan: 0, first: 0, counters: 1 };
            s.enc.op_counts(&run, &told).unwrap();
        }
    }
    let r = read(s, &[]);
    let e = r.experts.as_ref().unwrap();
    let miss = e.layers[0].miss.unwrap();
    assert_eq!((miss.with_faults, miss.major_faults), (2, 12));
    assert_eq!(miss.with_faults_ns, 2 * (busy(12, 1) + 500_000));
    assert_eq!((miss.without, miss.without_ns), (6, 2 * busy(12, 1) + 4 * busy(13, 1)));
    // Layer 1 had none: 8 more calls.
    assert_eq!(e.miss.unwrap().without, 14);
    let text = shown(&r);
    assert!(text.contains("2 of 16 MUL_MAT_ID calls had 12 major faults and took"), "{text}");
}
