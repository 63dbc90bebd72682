//! What each backend computes, from a trace in which a device has a split of its own: the report's figures, the graph
//! across backends, and what is said where nodes are not known.

use crate::trace_support;

use analysis::questions::dag::{DagOptions, NodeRole, dag};
use analysis::questions::report::{By, Report, ReportOptions, report};
use analysis::questions::stat::shapes::{of_trace, shapes};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use analysis::recorded::selection::Cut;
use analysis::streams::overview::overview;
use analysis::sums::offload::{
    BetweenSplits, CopyRow, CpuNodes, Crossing, DispatchSum, FallbackReason, Offload,
};
use pfi::record::*;
use pfi::*;
use render::table::Style;
use trace_support::*;

const VULKAN: [u8; 16] =
    [0xb8, 0xf7, 0x4f, 0x86, 0x40, 0x3c, 0xe1, 0x02, 0x91, 0xc8, 0xdd, 0xe9, 0x02, 0x3f, 0xc0, 0x2b];
const CPU: [u8; 16] =
    [0xaa, 0x67, 0xc7, 0x43, 0x96, 0xe6, 0xa3, 0x8a, 0xe3, 0xaf, 0xea, 0x92, 0x36, 0xbc, 0xfc, 0x89];
const GRAPHS: u64 = 4;
const ROW: [u64; 4] = [2048, 1, 1, 1];
const SQUARE: [u64; 4] = [2048, 2048, 1, 1];

/// A run whose first op and, if `twice`, a copy of it after the device's part are computed by the CPU. `described`: the
/// nodes of the device's split are known.
fn run(described: bool, twice: bool) -> Trace {
    run_with(described, twice, &[])
}

/// The device's nodes of a graph that were seen being enqueued: from a first one on, in groups of (nodes, ns).
pub type Seen<'a> = (u64, u32, &'a [(u32, u64)]);

/// The same, with what was seen of the enqueueing.
fn run_with(described: bool, twice: bool, enqueued: &[Seen<'_>]) -> Trace {
    run_probed(described, twice, enqueued, false, &[])
}

/// A kernel of the device: its graph, its source, and when the host launched it after the graph began.
pub type Launched = (u64, KernelSource, u64);

/// The same; `probed`: the function that enqueues a node had a probe.
fn run_probed(
    described: bool,
    twice: bool,
    enqueued: &[Seen<'_>],
    probed: bool,
    launched: &[Launched],
) -> Trace {
    Trace::from_bytes(written(described, twice, enqueued, probed, launched)).unwrap()
}

/// The file of the same. Kernels that a CUDA graph launches are of a queue of their own.
pub fn written(
    described: bool,
    twice: bool,
    enqueued: &[Seen<'_>],
    probed: bool,
    launched: &[Launched],
) -> Vec<u8> {
    let mut e = Encoder::new(Vec::new(), EncoderConfig::default(), &header()).unwrap();
    setup(&mut e);
    if probed {
        let (role, name, why) = ("node", "ggml_vk_build_graph", "by symbol");
        let rung = RungRecord { engine: 0, role, name, used: true, expected: None, seen: 0, why };
        e.rung(&rung).unwrap();
    }
    let mut addr = 0x1000;
    let mut tensor = |e: &mut Encoder<Vec<u8>>, name: &str, op, ne, src: &[u32], ty: u16| {
        addr += 512;
        let src: Vec<Option<u32>> = src.iter().copied().map(Some).collect();
        e.tensor(&TensorDesc { ty, ..desc(addr, name, op, ne, &src) }).unwrap()
    };
    let table = tensor(&mut e, "token_embd.weight", 0, SQUARE, &[], 2);
    let ids = tensor(&mut e, "inp_tokens", 0, [1; 4], &[], 0);
    let embd = tensor(&mut e, "embd", 7, ROW, &[table, ids], 0);
    let copy = tensor(&mut e, "Vulkan0#embd#0", 0, ROW, &[], 0);
    let norm = tensor(&mut e, "norm-0", 2, ROW, &[copy], 0);
    let weight = tensor(&mut e, "blk.0.attn_q.weight", 0, SQUARE, &[], 2);
    let product = tensor(&mut e, "Qcur-0", 1, ROW, &[weight, norm], 0);
    // Both nodes use the copy, which is made once.
    let sum = tensor(&mut e, "l_out-0", 3, ROW, &[product, copy], 0);
    let back = tensor(&mut e, "CPU#l_out-0#1", 0, ROW, &[], 0);
    let last = tensor(&mut e, "result_output", 1, ROW, &[weight, back], 0);
    let hits = |ids: &[u32]| ids.iter().map(|t| PlanHit { tensor: *t, fused: None }).collect::<Vec<_>>();
    let first = e.plan(PID, 1, &hits(&[embd])).unwrap();
    let device = e.plan(PID, 3, &hits(&[norm, product, sum])).unwrap();
    let after = e.plan(PID, 1, &hits(&[last])).unwrap();
    let backends = [e.backend(CPU, "CPU"), e.backend(VULKAN, "Vulkan")];
    for seq in 0..GRAPHS {
        let (t, splits) = (1_000_000_000 + seq * 1_000_000, seq * 3);
        let cpu = |e: &mut Encoder<Vec<u8>>, at: u64, number: u64, plan| {
            let t = t + at;
            let slice = Slice { start: t + 10, end: Some(t + 20) };
            let run = SliceRun { graph: number, ith: 0, tid: PID, plan, first: 0, barrier: true };
            e.slices(&run, &[slice]).unwrap();
            let (graph, split_seq) = (Some(seq), Some(number));
            let g = CpuGraph { graph, split: split_seq, n_nodes: 1, ..cpu_graph(number, plan, t + 5, 30) };
            e.cpu_graph(&CpuGraph { expected: Some(1), seen: 1, n_threads: 1, ..g }).unwrap();
            e.split(&Split { graph, ..split(number, backends[0], t, 50) }).unwrap();
        };
        cpu(&mut e, 0, splits, first);
        let plan = described.then_some(device);
        let busy = Device::Busy(500);
        let of_device = split(splits + 1, backends[1], t + 100, 1000);
        e.split(&Split { graph: Some(seq), device: busy, plan, n_nodes: 3, ..of_device }).unwrap();
        for &(_, first, groups) in enqueued.iter().filter(|(of, ..)| *of == seq) {
            let (split, t) = (splits + 1, t as i64 + 110);
            e.enqueued(
                &EnqueueRun { split, pid: PID, tid: PID, plan: device, first, t },
                groups.iter().copied(),
            )
            .unwrap();
            // One kernel a node, and one before the first.
            let run = DispatchRun { split, pid: PID, tid: PID, t, kernels: 4, graphs: 0 };
            e.dispatches(&run, groups.iter().map(|g| g.0)).unwrap();
        }
        for &(_, source, at) in launched.iter().filter(|(of, ..)| *of == seq) {
            let (host, end) = (t + at, t + at + 40);
            let times =
                KernelTimes { name: 1, host, queued: host, submitted: host, started: end - 30, ended: end };
            e.kernel_name(1, "mul_mat_q").unwrap();
            let queue = if source == KernelSource::CuptiGraph { 2 } else { 1 };
            let run = KernelRun { pid: PID, tid: PID, source, queue, error_ns: 10 };
            e.device_kernels(&run, &[times]).unwrap();
        }
        if twice {
            cpu(&mut e, 1200, splits + 2, after);
        }
        e.graph(&Graph { device: busy, ..graph(seq, t - 5, 1500) }).unwrap();
        e.token(&Token { device: busy, n_tokens: Some(1), ..token(seq, t - 10, 1600) }).unwrap();
    }
    e.finish(&footer()).unwrap()
}

fn reported(trace: &Trace) -> Report {
    let tables = vec![By::Op, By::Thread];
    report(trace, &ReportOptions { tables, ..ReportOptions::default() }, &LoadProgress::default())
}

fn text(report: &Report) -> String {
    let mut out = Vec::new();
    render::text::write(&mut out, report, &Style::default()).unwrap();
    String::from_utf8(out).unwrap()
}

fn decode(report: &Report) -> Option<&Offload> {
    report.phases.iter().find(|p| p.phase == Phase::Decode).expect("decode").offload.as_ref()
}

#[test]
fn each_backend_has_its_nodes_with_their_bytes() {
    let report = reported(&run(true, false));
    let work = decode(&report).expect("described");
    assert_eq!(work.graphs, GRAPHS);
    let figures: Vec<_> = work
        .backends
        .iter()
        .map(|b| (b.backend.as_str(), b.splits, b.unknown_splits, b.work.nodes))
        .collect();
    assert_eq!(figures, [("Vulkan", GRAPHS, 0, 3 * GRAPHS), ("CPU", GRAPHS, 0, GRAPHS)]);
    let device = &work.backends[0];
    let names: Vec<_> = device.ops.iter().map(|o| (o.op.as_str(), o.work.nodes)).collect();
    assert_eq!(names, [("MUL_MAT", GRAPHS), ("ADD", GRAPHS), ("RMS_NORM", GRAPHS)]);
    let product = (2048 * 2048 / 32 * 18 + 2 * 2048 * 4) * GRAPHS;
    assert_eq!((device.ops[0].work.bytes, device.ops[0].work.flops), (product, 2 * 2048 * 2048 * GRAPHS));
    assert_eq!(device.work.bytes, device.ops.iter().map(|o| o.work.bytes).sum::<u64>());
    // The model's facts cover the weights on the device.
    assert_eq!(report.model.weight_tensors, 2);
}

#[test]
fn splits_that_were_not_seen_whole_are_in_no_figure_of_enqueueing() {
    // The first graph's was not seen, the second's only from its second node on, and the fourth's without its last.
    let seen: [Seen<'_>; 3] =
        [(1, 1, &[(2, 999_999)]), (2, 0, &[(2, 300), (1, 50)]), (3, 0, &[(2, 888_888)])];
    let report = reported(&run_with(true, false, &seen));
    let device = &decode(&report).expect("described").backends[0];
    let rows: Vec<_> =
        device.enqueued.iter().map(|r| (r.ops.as_str(), r.groups, r.nodes, r.host_ns)).collect();
    assert_eq!(rows, [("RMS_NORM+MUL_MAT", 1, 2, 300), ("ADD", 1, 1, 50)]);
    assert_eq!((device.splits, device.unseen_splits), (GRAPHS, GRAPHS - 1));
    let kernels: Vec<_> = device.enqueued.iter().map(|r| (r.kernels, r.counted_groups)).collect();
    assert_eq!(kernels, [(Some(2), 1), (Some(1), 1)]);
    assert_eq!(device.dispatched, Some(DispatchSum { splits: 3, kernels: 12, graphs: 0 }));
    let whole = text(&report);
    assert!(whole.contains("without 3 of 4 splits)"), "{whole}");
    // A mean over the one graph that was seen.
    assert!(whole.contains("0.30     1.0    2.0      0.30      2.0  RMS_NORM+MUL_MAT"), "{whole}");
    let counted = "4.0 kernels per graph were given to Vulkan (not counted in 1 of 4 splits)";
    assert!(whole.contains(counted), "{whole}");
    let report = reported(&run_with(true, false, &seen[..1]));
    assert_eq!(decode(&report).expect("described").backends[0].unseen_splits, GRAPHS);
    assert!(text(&report).contains("Enqueued on Vulkan, decode: not seen (4 splits"), "{}", text(&report));
    let report = reported(&run(true, false));
    let device = &decode(&report).expect("described").backends[0];
    assert_eq!((device.unseen_splits, device.dispatched), (0, None), "not recorded at all");
    assert!(!text(&report).contains("kernels per graph"), "{}", text(&report));
    let report = reported(&run_probed(true, false, &[], true, &[]));
    let unseen = decode(&report).expect("described").backends[0].unseen_splits;
    assert_eq!(unseen, GRAPHS, "a probe that never fired");
}

#[test]
fn a_copy_counts_once_a_graph() {
    let report = reported(&run(true, true));
    let row = |to: &str, name: &str| CopyRow {
        to: to.into(),
        name: name.into(),
        copies: GRAPHS,
        bytes: Some(2048 * 4 * GRAPHS),
    };
    assert_eq!(decode(&report).unwrap().copies, [row("CPU", "l_out-{L}"), row("Vulkan", "embd")]);
}

#[test]
fn nodes_left_to_the_cpu_have_a_reason() {
    let report = reported(&run(true, true));
    let row = |op: &str, name: &str, reason, why: &str| CpuNodes {
        op: op.into(),
        ty: "q4_0".into(),
        types: "f32 of q4_0, f32".into(),
        name: name.into(),
        form: "f32 2048 of q4_0 2048x2048, f32 2048".into(),
        forms: 1,
        nodes: GRAPHS,
        also_on: Vec::new(),
        reason,
        why: why.into(),
        cpu_ns: Some(10 * GRAPHS),
        to_cpu_bytes: Some(0),
        from_cpu_bytes: Some(0),
    };
    let copied = Some(2048 * 4 * GRAPHS);
    let lookup = row(
        "GET_ROWS",
        "embd",
        FallbackReason::InputLayer,
        "the input layer (token_embd.weight): always in host memory",
    );
    let last = row(
        "MUL_MAT",
        "result_output",
        FallbackReason::HostWeights,
        "its weights are in host memory: Vulkan computes the same op on the same types elsewhere",
    );
    let expected = [
        CpuNodes { form: "f32 2048 of q4_0 2048x2048, f32 1".into(), from_cpu_bytes: copied, ..lookup },
        CpuNodes { also_on: vec!["Vulkan".into()], to_cpu_bytes: copied, ..last },
    ];
    assert_eq!(decode(&report).unwrap().on_cpu, expected);
    let text = text(&report);
    assert!(text.contains("its weights are in host memory: Vulkan computes the same op"), "{text}");
    assert!(text.contains("result_output 2048 of 2048x2048, 2048"), "{text}");
}

/// The device's work ended 1.1 ms after the graph began, and the CPU's next split began 0.1 ms later.
#[test]
fn a_crossing_has_its_time_and_its_copies() {
    let report = reported(&run(true, true));
    let work = decode(&report).expect("described");
    let copied = Some(2048 * 4 * GRAPHS);
    let both = Crossing { splits: GRAPHS, nodes: GRAPHS, cpu_ns: 50 * GRAPHS, ..Crossing::default() };
    let last = Crossing {
        ops: "MUL_MAT".into(),
        extra_splits: GRAPHS,
        wait_ns: 500 * GRAPHS,
        before_ns: 100 * GRAPHS,
        to_cpu_bytes: copied,
        from_cpu_bytes: Some(0),
        ..both.clone()
    };
    let lookup = Crossing {
        ops: "GET_ROWS".into(),
        after_ns: 50 * GRAPHS,
        to_cpu_bytes: Some(0),
        from_cpu_bytes: copied,
        ..both
    };
    assert_eq!(work.crossings, [last, lookup]);
    let between = BetweenSplits { pairs: 2 * GRAPHS, ns: 150 * GRAPHS, unseen: 0 };
    assert_eq!(work.between_splits, between);
    assert!(text(&report).contains("Splits on the CPU beside a device, decode"), "{}", text(&report));
}

#[test]
fn nodes_that_were_not_recorded_are_unknown_and_not_none() {
    let report = reported(&run(false, true));
    let device =
        decode(&report).unwrap().backends.iter().find(|b| b.backend == "Vulkan").expect("it has splits");
    assert_eq!((device.splits, device.unknown_splits, device.work.nodes), (GRAPHS, GRAPHS, 0));
    let text = text(&report);
    assert!(text.contains("Vulkan (4 of 4 splits not described)"), "{text}");
    assert!(!text.contains("0.0      -      -  Vulkan"), "{text}");
}

#[test]
fn the_graph_crosses_backends() {
    let trace = run(true, true);
    let d =
        dag(&trace, &DagOptions { pid: None, token: None, phase: None }, &LoadProgress::default()).unwrap();
    let node =
        |name: &str| d.nodes.iter().position(|n| n.name() == name).unwrap_or_else(|| panic!("no {name}"));
    let backend = |name: &str| d.nodes[node(name)].backend.as_deref();
    let of = [("embd", "CPU"), ("norm-0", "Vulkan"), ("l_out-0", "Vulkan"), ("result_output", "CPU")];
    assert!(of.iter().all(|(name, on)| backend(name) == Some(*on)), "{:?}", d.nodes);
    // In the order of the splits, each copy between its original and its users.
    assert_eq!(d.nodes.iter().filter_map(|n| n.order).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    for (copy, original) in [("Vulkan0#embd#0", "embd"), ("CPU#l_out-0#1", "l_out-0")] {
        assert_eq!(d.nodes[node(copy)].role, NodeRole::Copy);
        let to = if copy.starts_with("CPU") { "CPU" } else { "Vulkan" };
        assert_eq!(backend(copy), Some(to));
        let from: Vec<usize> = d.sources(node(copy)).iter().map(|e| e.from).collect();
        assert_eq!(from, [node(original)]);
    }
    let drawn = |format| {
        let mut out = Vec::new();
        render::dag::write(&mut out, &d, analysis::questions::dag::Metric::Bytes, format).expect("written");
        String::from_utf8(out).expect("text")
    };
    // A box ends with its value.
    let dot = drawn(render::dag::GraphFormat::Dot);
    assert!(dot.contains("on Vulkan\\n2.3 MiB\""), "{dot}");
    assert!(
        dot.contains("copy\\nVulkan0#embd#0") && dot.contains("to Vulkan\"") && dot.contains("[style=bold]"),
        "{dot}"
    );
    let svg = drawn(render::dag::GraphFormat::Svg);
    assert!(svg.contains(">to Vulkan</text>") && svg.contains(">on CPU</text>"), "{svg}");
    // Work is known on the device, time is not.
    let figures = d.nodes[node("Qcur-0")].figures;
    let known = |m: analysis::questions::dag::Metric| figures[m as usize].is_some();
    assert!(known(analysis::questions::dag::Metric::Bytes) && !known(analysis::questions::dag::Metric::Time));
}

/// Of the first node of a group, on the device; the others have none.
#[test]
fn nodes_of_the_graph_have_the_times_of_their_kernels() {
    let enqueued: Vec<Seen<'_>> = (0..GRAPHS).map(|graph| (graph, 0, &[(1, 100), (2, 700)][..])).collect();
    let own = KernelSource::OpenClLayer;
    let kernels: Vec<Launched> =
        (0..GRAPHS).flat_map(|g| [(g, own, 120), (g, own, 250), (g, own, 260)]).collect();
    let trace = run_probed(true, true, &enqueued, true, &kernels);
    let d = dag(&trace, &DagOptions { pid: None, token: None, phase: None }, &LoadProgress::default())
        .expect("a graph");
    let time = |name: &str| {
        let node = d.nodes.iter().find(|n| n.name() == name).expect("a node");
        node.figures[analysis::questions::dag::Metric::Time as usize].map(|f| f.median)
    };
    assert_eq!(["norm-0", "Qcur-0", "l_out-0"].map(time), [Some(30.0), Some(60.0), None]);
    assert!(d.notes.iter().any(|n| n.contains("the first of them has the time of all")), "{:?}", d.notes);
}

/// A graph that was captured and then launched as a whole: the host launched its kernels while the last node's time ran,
/// and they are not that node's.
#[test]
fn kernels_that_a_cuda_graph_has_launched_belong_to_no_node() {
    let nodes: &[(u32, u64)] = &[(1, 100), (2, 800)];
    let enqueued: Vec<Seen<'_>> = (0..GRAPHS).map(|graph| (graph, 0, nodes)).collect();
    let (own, whole) = (KernelSource::Cupti, KernelSource::CuptiGraph);
    let launched = |graph| [(graph, own, 120), (graph, own, 300)];
    let mut kernels: Vec<Launched> = (0..GRAPHS - 1).flat_map(launched).collect();
    kernels.extend([(GRAPHS - 1, whole, 600), (GRAPHS - 1, whole, 600)]);
    let report = reported(&run_probed(true, false, &enqueued, true, &kernels));
    let device = decode(&report).expect("described").backends[0].device.as_ref().expect("kernels");
    let ops: Vec<_> =
        device.ops.iter().map(|r| (&*r.ops, r.groups, r.sum.kernels, r.sum.device_ns)).collect();
    let n = GRAPHS - 1;
    let of = |ops, groups, kernels| (ops, groups, kernels, 30 * kernels);
    assert_eq!(ops, [of("MUL_MAT+ADD", n, n), of("RMS_NORM", n, n), of("(CUDA graph)", 0, 2)]);
    assert_eq!((device.source, device.kernels), ("CUPTI", 2 * GRAPHS));
    // Groups that were only captured are not missed.
    assert_eq!((device.groups, device.groups_without), (2 * n, 0));
}

/// Recordings of earlier versions may have times of groups of nodes, which are not kernels: they are left out.
#[test]
fn times_that_are_no_longer_recorded_are_left_out() {
    let enqueued: Vec<Seen<'_>> = (0..GRAPHS).map(|graph| (graph, 0, &[(1, 100), (2, 700)][..])).collect();
    let kernels: Vec<Launched> = (0..GRAPHS).map(|g| (g, KernelSource::VulkanLogger, 120)).collect();
    let report = reported(&run_probed(true, true, &enqueued, true, &kernels));
    let without = reported(&run_probed(true, true, &enqueued, true, &[]));
    assert_eq!(decode(&report), decode(&without));
    assert!(decode(&report).expect("described").backends[0].device.is_none());
}

/// An op on the device has the time of its kernels beside the same op on the CPU; nodes that were fused have none.
#[test]
fn the_same_op_stands_side_by_side_on_cpu_and_device() {
    let ran = |nodes: &[(u32, u64)]| {
        let enqueued: Vec<Seen<'_>> = (0..GRAPHS).map(|graph| (graph, 0, nodes)).collect();
        let own = KernelSource::OpenClLayer;
        let kernels: Vec<Launched> =
            (0..GRAPHS).flat_map(|g| [(g, own, 120), (g, own, 250), (g, own, 260)]).collect();
        let trace = run_probed(true, true, &enqueued, true, &kernels);
        shapes(of_trace(&trace, Phase::Decode, &LoadProgress::default()), None)
    };
    let found = ran(&[(1, 100), (1, 200), (1, 500)]).expect("an op on both");
    let places: Vec<_> = found.places.iter().map(|p| &*p.backend).collect();
    assert_eq!(places, ["CPU", "Vulkan"]);
    let [row] = &found.rows[..] else { panic!("{:?}", found.rows) };
    let cells: Vec<_> = row.cells.iter().flatten().map(|c| (c.executions, c.median_ns)).collect();
    // Two kernels of 30 ns.
    assert_eq!((&*row.op, cells), ("MUL_MAT", vec![(GRAPHS, 10.0), (GRAPHS, 60.0)]));
    assert_eq!(ran(&[(1, 100), (2, 700)]), None);
}

/// The page's first sentences are about the device that does the work, not about the share of the ops left to the CPU.
#[test]
fn the_page_tells_what_devices_do() {
    let page = |kernels: &[Launched]| {
        let enqueued: Vec<Seen<'_>> =
            (0..GRAPHS).map(|graph| (graph, 0, &[(1, 100), (2, 700)][..])).collect();
        let trace = run_probed(true, true, &enqueued, true, kernels);
        let found = overview(&trace, &Cut::default(), &[], &LoadProgress::default()).expect("an overview");
        let mut page = Vec::new();
        render::html::write(&mut page, &found, "x", 100, "profinfer").expect("written");
        String::from_utf8(page).expect("text")
    };
    let without = page(&[]);
    assert!(
        without.contains("Vulkan computes 60.00 % of the nodes; how long its ops take is unknown"),
        "{without}"
    );
    let own = KernelSource::OpenClLayer;
    let kernels: Vec<Launched> = (0..GRAPHS).flat_map(|g| [(g, own, 120), (g, own, 250)]).collect();
    let with = page(&kernels);
    assert!(with.contains("it is busy for 60 ns a graph, MUL_MAT+ADD the most with 50.00 %"), "{with}");
    assert!(with.contains("Executed on Vulkan, decode") && !with.contains("No work on a device"), "{with}");
}
