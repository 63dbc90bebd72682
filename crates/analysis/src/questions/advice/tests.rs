//! The rules about devices, on runs made by hand; each beside one in which nothing is to be said.

use super::*;
use crate::questions::report::{Report, ReportOptions, report};
use crate::recorded::calls::Phase;
use crate::recorded::load::LoadProgress;
use crate::sums::offload::{CpuNodes, FallbackReason, Offload};
use pfi::record::*;
use pfi::*;

const PID: u32 = 7;
const GRAPHS: u64 = 4;
const CPU: [u8; 16] =
    [0xaa, 0x67, 0xc7, 0x43, 0x96, 0xe6, 0xa3, 0x8a, 0xe3, 0xaf, 0xea, 0x92, 0x36, 0xbc, 0xfc, 0x89];
const VULKAN: [u8; 16] =
    [0xb8, 0xf7, 0x4f, 0x86, 0x40, 0x3c, 0xe1, 0x02, 0x91, 0xc8, 0xdd, 0xe9, 0x02, 0x3f, 0xc0, 0x2b];
const OPS: [&str; 7] = ["NONE", "MUL_MAT", "RMS_NORM", "ADD", "FLASH_ATTN_EXT", "GET_ROWS", "VIEW"];
const TYPES: [(&str, u32, u32); 4] = [("f32", 1, 4), ("q4_0", 32, 18), ("f16", 1, 2), ("q8_0", 32, 34)];

/// A tensor: op, name, type, names of its sources. Those that no split computes are leaves.
type Node = (&'static str, &'static str, &'static str, &'static [&'static str]);

/// A split: times in us from the graph's start.
#[derive(Clone, Copy, Default)]
struct Part {
    device: bool,
    nodes: &'static [Node],
    at: u64,
    /// Until the call returned, and until the device had finished.
    host: u64,
    whole: u64,
    /// Host time of each node.
    enqueued: &'static [u64],
    /// Kernels: enqueued and submitted, started, ended, in us from the graph's start.
    kernels: &'static [(u64, u64, u64)],
}

/// Leaves with types of their own; all others are f32.
const LEAVES: [(&str, &str); 8] = [
    ("token_embd.weight", "q4_0"),
    ("blk.0.attn_q.weight", "q4_0"),
    ("output.weight", "q4_0"),
    ("cache_k_l0", "q8_0"),
    ("CPU#cache_k_l0#0", "q8_0"),
    ("cache_k_l1", "f16"),
    ("Vulkan0#blk.0.ffn_down_exps.weight#0", "q4_0"),
    ("inp_tokens", "f32"),
];

const LOOKUP: Part = Part {
    device: false,
    nodes: &[("GET_ROWS", "embd", "f32", &["token_embd.weight", "inp_tokens"])],
    at: 0,
    host: 10,
    whole: 10,
    enqueued: &[],
    kernels: &[],
};

fn header() -> Header<'static> {
    Header {
        tool: "profinfer",
        command: "",
        kernel: "6.1.0",
        arch: "x86_64",
        host: "board",
        cpu_model: "",
        topology: "0,0,0,1800000,400;1,1,0,1800000,400",
        mono_ns: 0,
        boot_ns: 0,
        real_ns: 0,
        level: Level::Op,
        structure: true,
        transport: TransportKind::Ring,
        buffer_bytes: 8 << 20,
        hit_ns: 512,
        source: SourceKind::Bpf,
    }
}

fn number(of: &[&str], name: &str) -> u16 {
    of.iter().position(|n| *n == name).unwrap_or_else(|| panic!("no {name}")) as u16
}

/// The trace of a run whose graphs all have these splits and last so long (us).
fn run(parts: &[Part], call: u64, submitted: &[(u64, u64)]) -> Report {
    let mut e = Encoder::new(Vec::new(), EncoderConfig::default(), &header()).unwrap();
    e.engine(&Engine { id: 0, version: "b6000", layout: "" }).unwrap();
    e.process(&Process { pid: PID, engine: 0, exe: "/usr/bin/x", cmdline: "x" }).unwrap();
    for (id, name) in OPS.iter().enumerate() {
        e.op_def(id as u16, name, name);
    }
    for (id, (name, block, bytes)) in TYPES.iter().enumerate() {
        e.type_def(id as u16, name, *block, *bytes);
    }
    let types: Vec<&str> = TYPES.iter().map(|t| t.0).collect();
    let mut ids: Vec<(&str, u32)> = Vec::new();
    let mut tensor =
        |e: &mut Encoder<Vec<u8>>, name: &'static str, op: &str, ty: &str, src: &[&'static str]| {
            let of =
                |ids: &[(&str, u32)], name: &str| ids.iter().find(|(n, _)| *n == name).map(|(_, id)| *id);
            let src: Vec<Option<u32>> = src.iter().map(|s| of(&ids, s)).collect();
            let addr = 0x1000 + ids.len() as u64 * 512;
            let (op, ty) = (number(&OPS, op), number(&types, ty));
            let (name_bytes, ne) = (name.as_bytes(), [256, 256, 1, 1]);
            let desc = TensorDesc {
                pid: PID,
                addr,
                known: true,
                op,
                ty,
                flags: 0,
                name: name_bytes,
                ne,
                nb: None,
                src: &src,
                view_src: None,
            };
            let id = e.tensor(&desc).unwrap();
            ids.push((name, id));
            id
        };
    let mut plans = Vec::new();
    let mut known: Vec<&str> = Vec::new();
    for part in parts {
        let mut hits = Vec::new();
        for (op, name, ty, src) in part.nodes {
            for leaf in src.iter().filter(|s| !known.contains(s)).copied().collect::<Vec<_>>() {
                let ty = LEAVES.iter().find(|(n, _)| *n == leaf).map_or("f32", |(_, ty)| ty);
                tensor(&mut e, leaf, "NONE", ty, &[]);
                known.push(leaf);
            }
            hits.push(PlanHit { tensor: tensor(&mut e, name, op, ty, src), fused: None });
            known.push(name);
        }
        plans.push(e.plan(PID, hits.len() as u32, &hits).unwrap());
    }
    let backends = [e.backend(CPU, "CPU"), e.backend(VULKAN, "Vulkan")];
    let mut seq = 0;
    for g in 0..GRAPHS {
        let t = 1_000_000_000 + g * 100_000_000;
        let us = |at: u64| (t + at * 1000) as i64;
        for (part, plan) in parts.iter().zip(&plans) {
            let n_nodes = part.nodes.len() as u32;
            let waited = (part.whole - part.host) * 1000;
            let s = Split {
                seq,
                graph: Some(g),
                backend: backends[usize::from(part.device)],
                pid: PID,
                tid: PID,
                n_nodes,
                t: us(part.at),
                dur: part.whole * 1000,
                cut: false,
                device: if part.device { Device::Busy(waited) } else { Device::Idle },
                plan: part.device.then_some(*plan),
            };
            if part.device {
                if !part.enqueued.is_empty() {
                    let run =
                        EnqueueRun { split: seq, pid: PID, tid: PID, plan: *plan, first: 0, t: us(part.at) };
                    e.enqueued(&run, part.enqueued.iter().map(|n| (1, n * 1000))).unwrap();
                }
                let times = |k: &(u64, u64, u64)| {
                    let (host, started, ended) = (us(k.0) as u64, us(k.1) as u64, us(k.2) as u64);
                    KernelTimes { name: 1, host, queued: host, submitted: host, started, ended }
                };
                if !part.kernels.is_empty() {
                    e.kernel_name(1, "k").unwrap();
                    let source = KernelSource::OpenClLayer;
                    let run = KernelRun { pid: PID, tid: PID, source, queue: 1, error_ns: 10 };
                    let times: Vec<KernelTimes> = part.kernels.iter().map(times).collect();
                    e.device_kernels(&run, &times).unwrap();
                }
            } else {
                let each = part.host * 1000 / u64::from(n_nodes);
                let slice = |i: u64| {
                    let start = us(part.at) as u64 + i * each;
                    Slice { start, end: Some(start + each) }
                };
                let slices: Vec<Slice> = (0..u64::from(n_nodes)).map(slice).collect();
                let run = SliceRun { graph: seq, ith: 0, tid: PID, plan: *plan, first: 0, barrier: true };
                e.slices(&run, &slices).unwrap();
                e.cpu_graph(&CpuGraph {
                    seq,
                    graph: Some(g),
                    split: Some(seq),
                    pid: PID,
                    tid: PID,
                    plan: Some(*plan),
                    n_nodes,
                    n_threads: 1,
                    ubatch: 1,
                    t: us(part.at),
                    dur: part.host * 1000,
                    expected: Some(n_nodes),
                    seen: n_nodes,
                    barrier: true,
                    cut: false,
                })
                .unwrap();
            }
            e.split(&s).unwrap();
            seq += 1;
        }
        let dur = call * 1000;
        let device = Device::Busy(0);
        e.graph(&Graph {
            seq: g,
            token: Some(g),
            pid: PID,
            tid: PID,
            cgraph: 1,
            n_nodes: 9,
            ubatch: 1,
            t: us(0),
            dur,
            cut: false,
            device,
        })
        .unwrap();
        let (entry, n_tokens) = (Entry::Decode, Some(1));
        e.token(&Token { seq: g, pid: PID, tid: PID, entry, n_tokens, t: us(0), dur, cut: false, device })
            .unwrap();
        if !submitted.is_empty() {
            let ring = DeviceRing { id: 1, source: SubmissionSource::Scheduler, device: "gpu", name: "gfx" };
            e.device_ring(&ring).unwrap();
            let all = submitted.iter().map(|(run, end)| {
                let run = us(*run) as u64;
                Submission {
                    pid: PID,
                    queued: Some(run),
                    run: Some(run),
                    end: us(*end) as u64,
                    ..Submission::default()
                }
            });
            e.submissions(1, &all.collect::<Vec<_>>()).unwrap();
        }
    }
    let footer = Footer {
        end: "target exited",
        kinds: Vec::new(),
        lost_cpu: Vec::new(),
        orphans: 0,
        read_errors: 0,
        agent_user_us: 1,
        agent_sys_us: 1,
        agent_peak_rss: 1,
        wall_ns: 5_000_000_000,
        bpf_ns: 1,
        bpf_runs: 1,
    };
    let trace = Trace::from_bytes(e.finish(&footer).unwrap()).unwrap();
    report(&trace, &ReportOptions { verdict: true, ..ReportOptions::default() }, &LoadProgress::default())
}

fn advice_of(report: &Report, rule: &str) -> Option<Advice> {
    let all = &report.verdict.as_ref().expect("a verdict").advice;
    all.iter().find(|a| a.rule == rule).cloned()
}

/// The rules about devices that say something.
fn rules(report: &Report) -> Vec<&'static str> {
    let all = &report.verdict.as_ref().expect("a verdict").advice;
    all.iter().map(|a| a.rule).filter(|rule| rule.starts_with("device-")).collect()
}

fn offload(report: &Report) -> &Offload {
    report
        .phases
        .iter()
        .find(|p| p.phase == Phase::Decode)
        .and_then(|p| p.offload.as_ref())
        .expect("a device")
}

fn row<'r>(report: &'r Report, name: &str) -> &'r CpuNodes {
    let rows = &offload(report).on_cpu;
    rows.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no {name}: {rows:#?}"))
}

const ATTENTION_ON_DEVICE: &[Node] = &[
    ("MUL_MAT", "Qcur-0", "f32", &["blk.9.attn_q.weight", "Vulkan0#embd#0"]),
    ("FLASH_ATTN_EXT", "kqv-1", "f32", &["Qcur-0", "cache_k_l1"]),
];

/// Attention on a cache of q8_0 leaves the device, with its cache; on one of f16 it does not.
fn fallen(cpu_us: u64) -> [Part; 4] {
    [
        LOOKUP,
        Part { device: true, nodes: ATTENTION_ON_DEVICE, at: 20, host: 50, whole: 280, ..Part::default() },
        Part {
            nodes: &[("FLASH_ATTN_EXT", "kqv-0", "f32", &["CPU#Qcur-0#0", "CPU#cache_k_l0#0"])],
            at: 500,
            host: cpu_us,
            whole: cpu_us,
            ..Part::default()
        },
        Part {
            device: true,
            nodes: &[("ADD", "l_out-0", "f32", &["Vulkan0#kqv-0#0", "Vulkan0#inp#0"])],
            at: 600 + cpu_us,
            host: 20,
            whole: 200,
            ..Part::default()
        },
    ]
}

#[test]
fn an_op_on_types_that_the_device_does_not_compute() {
    let found = run(&fallen(100), 1000, &[]);
    let nodes = row(&found, "kqv-{L}");
    assert_eq!((nodes.reason, nodes.nodes), (FallbackReason::Types, GRAPHS));
    assert_eq!(nodes.types, "f32 of f32, q8_0");
    assert_eq!(nodes.why, "likely its types: source 1 q8_0, not f16 as on Vulkan");
    assert_eq!(nodes.cpu_ns, Some(100_000 * GRAPHS));
    let (square, cache) = (256 * 256 * 4, 256 * 256 / 32 * 34);
    assert_eq!(nodes.to_cpu_bytes, Some((square + cache) * GRAPHS));
    assert_eq!(nodes.from_cpu_bytes, Some(square * GRAPHS));
    let crossing = &offload(&found).crossings[0];
    assert_eq!((&*crossing.ops, crossing.splits, crossing.between), ("FLASH_ATTN_EXT", GRAPHS, GRAPHS));
    assert_eq!(crossing.extra_splits, 2 * GRAPHS);
    // The device had finished at 300, 230 after the call's return; the CPU ran from 500 to 600, the device from 700.
    let us = |ns: u64| ns / GRAPHS / 1000;
    let times = [crossing.wait_ns, crossing.before_ns, crossing.cpu_ns, crossing.after_ns].map(us);
    assert_eq!(times, [230, 200, 100, 100]);
    let lookup = &offload(&found).crossings[1];
    assert_eq!((&*lookup.ops, lookup.extra_splits, us(lookup.after_ns)), ("GET_ROWS", 0, 10));
    let advice = advice_of(&found, "device-fallback").expect("advice");
    assert_eq!(
        advice.title,
        "FLASH_ATTN_EXT (f32 of f32, q8_0) runs on the CPU although a device takes part"
    );
    assert!(advice.actions[0].contains("-ctk f16"), "{advice:?}");
    // 300 us around the split and 100 in it, of 1000.
    let gain = advice.gain.expect("waste that is removed");
    assert!(
        (gain.least - 1000.0 / 700.0).abs() < 1e-9 && (gain.most - 1000.0 / 600.0).abs() < 1e-9,
        "{gain:?}"
    );
    assert!(
        advice.evidence.contains("2 extra splits a graph") && advice.evidence.contains("300 us around"),
        "{advice:?}"
    );
}

#[test]
fn weights_in_host_memory_are_the_reason_and_nothing_is_promised() {
    let cpu = Part {
        nodes: &[
            ("GET_ROWS", "embd", "f32", &["token_embd.weight", "inp_tokens"]),
            ("MUL_MAT", "Qcur-0", "f32", &["blk.0.attn_q.weight", "embd"]),
            ("ADD", "l_out-0", "f32", &["Qcur-0", "embd"]),
        ],
        host: 300,
        whole: 300,
        ..Part::default()
    };
    let device = Part {
        device: true,
        nodes: &[
            ("MUL_MAT", "Qcur-1", "f32", &["output.weight", "Vulkan0#l_out-0#0"]),
            ("ADD", "l_out-1", "f32", &["Qcur-1", "Vulkan0#l_out-0#0"]),
        ],
        at: 310,
        host: 20,
        whole: 100,
        ..Part::default()
    };
    let found = run(&[cpu, device], 420, &[]);
    let reasons = ["embd", "Qcur-{L}", "l_out-{L}"].map(|name| row(&found, name).reason);
    let expected = [FallbackReason::InputLayer, FallbackReason::HostWeights, FallbackReason::Neighbours];
    assert_eq!(reasons, expected);
    assert_eq!(row(&found, "Qcur-{L}").also_on, ["Vulkan"]);
    // The lookup keeps its split.
    assert_eq!(offload(&found).crossings[0].extra_splits, 0);
    let advice = advice_of(&found, "device-fallback").expect("advice");
    assert!(advice.title.starts_with("MUL_MAT") && advice.actions[0].starts_with("-ngl 999"), "{advice:?}");
    assert_eq!((advice.gain, advice.confidence), (None, Confidence::High));
}

/// A model that is on the device as a whole: only the input layer is not.
fn healthy() -> [Part; 2] {
    let device = Part {
        device: true,
        nodes: ATTENTION_ON_DEVICE,
        at: 12,
        host: 50,
        whole: 900,
        enqueued: &[25, 25],
        ..Part::default()
    };
    [LOOKUP, device]
}

#[test]
fn nothing_is_said_of_a_model_that_is_on_the_device() {
    let found = run(&healthy(), 920, &[]);
    assert_eq!(row(&found, "embd").reason, FallbackReason::InputLayer);
    assert_eq!(rules(&found), [""; 0]);
    let bar = found.verdict.as_ref().and_then(|v| v.phases.first()?.bar).expect("a bar");
    assert!(
        (bar.device - 900.0 / 920.0).abs() < 1e-9 && (bar.computing - 10.0 / 920.0).abs() < 1e-9,
        "{bar:?}"
    );
    assert!(bar.gaps < 0.02, "{bar:?}");
}

/// The same with kernels: submitted and started, ended.
fn timed(kernels: &'static [(u64, u64, u64)]) -> [Part; 2] {
    let [lookup, device] = healthy();
    [lookup, Part { host: 880, kernels, ..device }]
}

#[test]
fn a_device_that_waits_for_the_host_to_submit() {
    // Each kernel starts as soon as it is submitted, and ends long before the next one is.
    let late = timed(&[(100, 101, 200), (400, 401, 500), (700, 701, 800)]);
    let found = run(&late, 920, &[]);
    let device = offload(&found).backends.iter().find_map(|b| b.device.as_ref()).expect("times");
    assert_eq!((device.idle_ns, device.enqueueing_ns), (402_000 * GRAPHS, 400_000 * GRAPHS));
    let advice = advice_of(&found, "device-launch-bound").expect("advice");
    assert_eq!((advice.gain, advice.confidence), (None, Confidence::High));
    assert!(advice.evidence.contains("43 %"), "{advice:?}");
    // All submitted at once: the same gaps are the device's own.
    let early = timed(&[(20, 101, 200), (21, 401, 500), (22, 701, 800)]);
    assert_eq!(rules(&run(&early, 920, &[])), ["device-gaps"]);
    // Without gaps.
    let busy = timed(&[(100, 101, 400), (400, 401, 700), (700, 701, 890)]);
    assert_eq!(rules(&run(&busy, 920, &[])), [""; 0]);
}

#[test]
fn a_host_that_enqueues_until_the_device_has_finished() {
    let [lookup, device] = healthy();
    let of = |host, enqueued| [lookup, Part { host, enqueued, ..device }];
    let advice = advice_of(&run(&of(890, &[800, 90]), 920, &[]), "device-launch-bound").expect("advice");
    assert_eq!(advice.confidence, Confidence::Low);
    assert!(advice.evidence.contains("89 %"), "{advice:?}");
    // With the last node a backend may wait for its device.
    assert_eq!(rules(&run(&of(890, &[90, 800]), 920, &[])), [""; 0]);
}

#[test]
fn few_long_gaps_of_the_device_and_many_short_ones() {
    let long = timed(&[(20, 21, 200), (21, 200, 400), (22, 700, 890)]);
    let advice = advice_of(&run(&long, 920, &[]), "device-gaps").expect("advice");
    assert!(
        advice.evidence.starts_with("1.0 gaps a graph") && advice.evidence.contains("33 %"),
        "{advice:?}"
    );
    let short = timed(&[(20, 21, 200), (21, 220, 400), (22, 420, 890)]);
    assert_eq!(rules(&run(&short, 920, &[])), [""; 0]);
}

#[test]
fn gaps_between_submissions() {
    // Alike: the host submits too slowly. One long one: look at what it does.
    let regular = run(&healthy(), 920, &[(20, 100), (200, 300), (400, 500), (600, 700)]);
    assert_eq!(rules(&regular), ["device-launch-bound"]);
    let all: Vec<(u64, u64)> = (0..10).map(|i| (i * 50, i * 50 + 50)).chain([(700, 900)]).collect();
    assert_eq!(rules(&run(&healthy(), 920, &all)), ["device-gaps"]);
    assert_eq!(rules(&run(&healthy(), 920, &[(20, 400), (401, 900)])), [""; 0]);
}

#[test]
fn weights_that_are_copied_to_the_device() {
    let of = |at| {
        let nodes: &[Node] =
            &[("MUL_MAT", "ffn_out-0", "f32", &["Vulkan0#blk.0.ffn_down_exps.weight#0", "inp_tokens"])];
        [LOOKUP, Part { device: true, nodes, at, host: 50, whole: 300, ..Part::default() }]
    };
    let advice = advice_of(&run(&of(500), 820, &[]), "device-copies").expect("advice");
    assert!(advice.title.contains("blk.{L}.ffn_down_exps.weight"), "{advice:?}");
    assert!(advice.actions[0].contains("--n-cpu-moe") && advice.evidence.contains("60 %"), "{advice:?}");
    assert_eq!(rules(&run(&of(50), 370, &[])), [""; 0]);
    // What is copied for nodes on the CPU, their rule says.
    assert_eq!(rules(&run(&fallen(100), 1000, &[])), ["device-fallback"]);
}
