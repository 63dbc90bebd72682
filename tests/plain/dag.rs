//! The graph of a synthetic trace: its nodes, edges, layers and figures; folded, compared, and with missing parts.

use crate::dag_support;
use crate::synth_trace;

use analysis::questions::dag::compare::{DagComparison, compare};
use analysis::questions::dag::fold::{fold, only};
use analysis::questions::dag::{Dag, DagError, DagOptions, Metric, Node, NodeRole, Spread};
use analysis::recorded::calls::Phase;
use dag_support::*;
use pfi::Trace;
use pfi::record::{CpuGraph, Entry, Token};
use proptest::prelude::*;
use render::dag::{GraphFormat, write};

const ALL: DagOptions = DagOptions { pid: None, token: None, phase: None };

/// Short form of a node: op and name of its result.
fn word(n: &Node) -> String {
    n.result().map_or_else(String::new, |t| format!("{} {}", t.op, t.name))
}

/// Edges to the node with this short form, as the short forms of their sources with tensor and slot.
fn sources(d: &Dag, of: &str) -> Vec<String> {
    let node = d.nodes.iter().position(|n| word(n) == of).unwrap_or_else(|| panic!("no {of}"));
    let one =
        |e: &analysis::questions::dag::Edge| format!("{}.{} {}", e.tensor, e.slot, word(&d.nodes[e.from]));
    d.sources(node).iter().map(one).collect()
}

fn figure(d: &Dag, of: &str, metric: Metric) -> Option<Spread> {
    d.nodes.iter().find(|n| word(n) == of).unwrap_or_else(|| panic!("no {of}")).figures[metric as usize]
}

#[test]
fn every_source_is_an_edge() {
    let d = drawn(run(LLAMA, 2), &ALL).unwrap();
    assert_eq!(sources(&d, "GET_ROWS inp_embd"), ["0.0 NONE token_embd.weight", "0.1 NONE inp_tokens"]);
    // Fused: the first takes the layer's input, the second takes the first and its weight.
    let norm = ["0.0 GET_ROWS inp_embd", "1.0 MUL attn_norm-0", "1.1 NONE blk.0.attn_norm.weight"];
    assert_eq!(sources(&d, "MUL attn_norm-0"), norm);
    assert_eq!(sources(&d, "RESHAPE Qcur-0"), ["0.0 MUL_MAT Qcur-0"]);
    assert_eq!(sources(&d, "ROPE Kcur-1"), ["0.0 RESHAPE Kcur-1", "0.1 NONE inp_pos"]);
    let set = ["0.0 VIEW Kcur-2 (view)", "0.1 NONE inp_pos", "0.2 NONE cache_k_l2"];
    assert_eq!(sources(&d, "SET_ROWS cache_k_l2 (view)"), set);
    assert_eq!(sources(&d, "MUL_MAT kq-0"), ["0.0 PERMUTE cache_k_l0 (view) (permuted)", "0.1 ROPE Qcur-0"]);
    assert_eq!(sources(&d, "PERMUTE cache_k_l0 (view) (permuted)"), ["0.0 VIEW cache_k_l0 (view)"]);
    assert_eq!(sources(&d, "VIEW cache_k_l0 (view)"), ["0.0 NONE cache_k_l0"]);
    assert_eq!(sources(&d, "ADD l_out-1"), ["0.0 MUL_MAT attn_out-1", "0.1 ADD l_out-0"]);
    // A copy onto itself has itself as a source.
    assert_eq!(sources(&d, "CPY KQ_mask (copy)"), ["0.0 NONE KQ_mask", "0.1 CPY KQ_mask (copy)"]);
    assert!(d.edges.iter().all(|e| e.from <= e.to && !e.back), "numbered behind their sources");
    assert_eq!(d.notes, [""; 0]);
}

#[test]
fn a_source_has_as_many_users_as_it_has() {
    let d = drawn(run(LLAMA, 1), &ALL).unwrap();
    for (name, users) in [("inp_pos", 9), ("cache_k_l1", 2), ("KQ_mask (copy)", 4), ("attn_norm-0", 4)] {
        let nodes: Vec<usize> = (0..d.nodes.len()).filter(|i| d.nodes[*i].name() == name).collect();
        assert_eq!(nodes.len(), 1, "{name}");
        assert_eq!(d.edges.iter().filter(|e| e.from == nodes[0]).count(), users, "{name}");
    }
}

#[test]
fn what_ran_is_in_its_order_with_roles_and_layers() {
    let d = drawn(run(LLAMA, 1), &ALL).unwrap();
    let ran: Vec<u32> = d.nodes.iter().filter_map(|n| n.order).collect();
    assert_eq!(ran, (0..ran.len() as u32).collect::<Vec<_>>());
    assert_eq!(ran.len(), 2 + 3 * 11 + 2);
    let role = |name: &str| d.nodes.iter().find(|n| n.name() == name).map(|n| (n.role, n.layer));
    assert_eq!(role("token_embd.weight"), Some((NodeRole::Weight, None)));
    assert_eq!(role("blk.2.attn_v.weight"), Some((NodeRole::Weight, Some(2))));
    assert_eq!(role("cache_k_l1"), Some((NodeRole::Cache, Some(1))));
    assert_eq!(role("inp_pos"), Some((NodeRole::Input, None)));
    assert_eq!(role("cache_k_l1 (view) (permuted)"), Some((NodeRole::View, Some(1))));
    assert_eq!(role("attn_norm-0"), Some((NodeRole::Op, Some(0))));
    assert_eq!(role("result_norm"), Some((NodeRole::Op, None)));
}

#[test]
fn times_are_those_of_the_graphs_asked_for() {
    let bytes = run(LLAMA, 3);
    let time = |o: &DagOptions| {
        figure(&drawn(bytes.clone(), o).unwrap(), "GET_ROWS inp_embd", Metric::Time).unwrap()
    };
    // Decodes ran 0, 100 and 200 ns longer, the prefill 5000.
    assert_eq!(time(&ALL).median, busy(0) as f64 + 100.0);
    assert_eq!(time(&DagOptions { token: Some(3), ..ALL }).median, busy(0) as f64 + 200.0);
    assert_eq!(time(&DagOptions { phase: Some(Phase::Prefill), ..ALL }).median, busy(0) as f64 + 5000.0);
    let d = drawn(bytes, &ALL).unwrap();
    assert_eq!((d.phase, d.graphs), (Phase::Decode, 3));
    // Thread 1 takes a third: the maximum over the mean is 3 / 2.
    let imbalance = figure(&d, "ADD l_out-1", Metric::Imbalance).unwrap().median;
    assert!((imbalance - 1.5).abs() < 1e-3, "{imbalance}");
    // Weights of 32 rows of 18 bytes, 32 times 2 floats in and out.
    let bytes = 32.0 * 18.0 + 2.0 * 32.0 * 2.0 * 4.0;
    assert_eq!(figure(&d, "MUL_MAT Qcur-0", Metric::Bytes), Some(Spread::one(bytes)));
    assert_eq!(figure(&d, "MUL_MAT Qcur-0", Metric::Flops), Some(Spread::one(2.0 * 32.0 * 32.0 * 2.0)));
    let place = d.nodes.iter().find(|n| word(n) == "MUL_MAT Qcur-0").unwrap().order.unwrap() as usize;
    let gbps = figure(&d, "MUL_MAT Qcur-0", Metric::Gbps).unwrap().median;
    assert!((gbps - bytes / (busy(place) as f64 + 100.0)).abs() < 1e-9, "{gbps}");
    assert!(!d.has(Metric::Stall) && !d.has(Metric::Faults));
    assert!(d.nodes.iter().all(|n| n.order.is_some() == n.figures[0].is_some()));
}

/// One graph in nine is preempted: the mean of its ops is not that of a usual graph, the median is.
#[test]
fn a_preempted_graph_repaints_nothing() {
    let of = |preempted: u64| {
        let mut made = Made::new(LLAMA);
        made.batch(4, 0);
        (0..9).for_each(|i| made.batch(1, if i == 4 { preempted } else { 0 }));
        drawn(made.finish(), &ALL).unwrap()
    };
    let (calm, d) = (of(0), of(900_000));
    let all =
        |d: &Dag, metric: Metric| d.nodes.iter().map(|n| n.figures[metric as usize]).collect::<Vec<_>>();
    assert_eq!(all(&d, Metric::Median), all(&calm, Metric::Median));
    assert_eq!(all(&calm, Metric::Median), all(&calm, Metric::Time));
    let op = |metric| figure(&d, "MUL_MAT Qcur-0", metric).unwrap().median;
    assert_eq!(op(Metric::Time), op(Metric::Median) + 100_000.0);
    assert!(op(Metric::Spread) > 2.0);
    let svg = |d: &Dag| {
        let mut out = Vec::new();
        write(&mut out, d, Metric::Median, GraphFormat::Svg).unwrap();
        String::from_utf8(out).unwrap()
    };
    // Its spread is in the frame, not in the colour.
    assert!(svg(&d).contains("stroke-width=\"4\"") && !svg(&calm).contains("stroke-width=\"4\""));
}

#[test]
fn counters_are_told_where_there_are_some() {
    use pfi::CounterRun;
    let mut made = Made::new(LLAMA);
    let names = ["cycles", "stalled-cycles-backend", "major-faults", "minor-faults"];
    for (id, name) in (0..).zip(names) {
        made.enc.counter(&synth_trace::causes::counter(id, name, "events", 1)).unwrap();
    }
    made.batch(1, 0);
    for ith in 0..2 {
        let told = [Some(100), Some(25), Some(1), Some(4)];
        let run = CounterRun { graph: 0, ith, plan: 0, first: 0, counters: 0xf };
        made.enc.op_counts(&run, &told).unwrap();
    }
    let d = drawn(made.finish(), &ALL).unwrap();
    assert_eq!(figure(&d, "GET_ROWS inp_embd", Metric::Stall), Some(Spread::one(0.25)));
    assert_eq!(figure(&d, "GET_ROWS inp_embd", Metric::Faults), Some(Spread::one(10.0)));
    // Only the first op was counted.
    assert_eq!(figure(&d, "ADD l_out-0", Metric::Faults), None);
}

#[test]
fn equal_layers_become_one() {
    let d = drawn(run(Model { layers: 5, last_differs: true, ..LLAMA }, 1), &ALL).unwrap();
    let f = fold(&d);
    let layers: Vec<_> = f.blocks.iter().map(|b| b.layers.clone()).collect();
    assert_eq!(layers, [vec![0, 1, 2, 3], vec![4]]);
    let in_layer = |d: &Dag, l| d.nodes.iter().filter(|n| n.layer == Some(l)).count();
    let outside = d.nodes.iter().filter(|n| n.layer.is_none()).count();
    assert_eq!(f.nodes.len(), outside + in_layer(&d, 0) + in_layer(&d, 4));
    assert_eq!(in_layer(&d, 4), in_layer(&d, 0) + 2, "the nameless ops are in the last layer");
    // Across layers: each runs 11 ops later, 300 ns per op.
    let time = figure(&f, "MUL_MAT Qcur-{L}", Metric::Time).unwrap();
    assert_eq!((time.max - time.min, time.median - time.min), (3.0 * 11.0 * 300.0, 1.5 * 11.0 * 300.0));
    // A layer's input from the previous layer becomes a back edge; the first layer's own source comes from above.
    let into: Vec<_> =
        f.edges.iter().filter(|e| word(&f.nodes[e.to]) == "MUL attn_norm-{L}" && e.tensor == 0).collect();
    let from: Vec<_> = into.iter().map(|e| (word(&f.nodes[e.from]), e.back)).collect();
    assert!(
        from.contains(&("GET_ROWS inp_embd".into(), false)) && from.contains(&("ADD l_out-{L}".into(), true)),
        "{from:?}"
    );
    assert!(f.edges.iter().all(|e| e.back || e.from <= e.to));
    // Nothing is lost: every edge is present.
    for e in &d.edges {
        let name = |d: &Dag, i: usize| ggml::names::fold(d.nodes[i].name()).pattern.into_owned();
        let (from, to) = (name(&d, e.from), name(&d, e.to));
        let same = |g: &&analysis::questions::dag::Edge| (g.tensor, g.slot) == (e.tensor, e.slot);
        assert!(
            f.edges.iter().filter(same).any(|g| name(&f, g.from) == from && name(&f, g.to) == to),
            "{from} {to}"
        );
    }
}

#[test]
fn one_layer_comes_with_what_it_takes() {
    let d = drawn(run(LLAMA, 1), &ALL).unwrap();
    let one = only(&d, 1).unwrap();
    assert_eq!(sources(&one, "ADD l_out-1"), sources(&d, "ADD l_out-1"));
    assert_eq!(sources(&one, "ADD l_out-0"), [""; 0], "not what those take in turn");
    assert_eq!(
        one.nodes.iter().filter(|n| n.layer == Some(1)).count(),
        d.nodes.iter().filter(|n| n.layer == Some(1)).count()
    );
    let wrong = only(&d, 7).unwrap_err().to_string();
    assert_eq!(wrong, "no op of layer 7 was recorded; recorded layers: 0-2");
}

#[test]
fn many_layers_take_no_more_room_than_few() {
    let size = |layers| {
        let f = fold(&drawn(run(Model { layers, last_differs: true, ..LLAMA }, 1), &ALL).unwrap());
        (f.blocks.len(), f.nodes.len(), f.edges.len())
    };
    assert_eq!(size(28), size(3));
}

fn compared(a: Model, b: Model) -> DagComparison {
    let of = |m| drawn(run(m, 1), &ALL).unwrap();
    compare(&of(a), &of(b)).unwrap()
}

#[test]
fn qwen2_has_three_adds_after_q_k_v() {
    let qwen2 = Model { biases: true, layers: 4, ..LLAMA };
    let c = compared(LLAMA, qwen2);
    assert_eq!(c.layers, [3, 4]);
    let layer = &c.pairs[1];
    assert_eq!(layer.layers, [Some("0-2".into()), Some("0-3".into())]);
    assert!(layer.only[0].is_empty() && c.pairs[0].only.iter().all(Vec::is_empty), "{c:?}");
    let told: Vec<_> = layer.only[1]
        .iter()
        .map(|e| (e.op.as_str(), e.name.as_str(), e.takes.join(", "), e.taken_by.join(", ")))
        .collect();
    let of = |name: &str, bias: &str| format!("MUL_MAT {name}-{{L}}, blk.{{L}}.{bias}.bias");
    assert_eq!(
        told,
        [
            ("ADD", "Qcur-{L}", of("Qcur", "attn_q"), "ROPE Qcur-{L}".into()),
            ("ADD", "Kcur-{L}", of("Kcur", "attn_k"), "ROPE Kcur-{L}".into()),
            ("ADD", "Vcur-{L}", of("Vcur", "attn_v"), String::new()),
        ]
    );
    let back = compared(qwen2, LLAMA);
    assert_eq!(back.pairs[1].only[0].len(), 3);
    assert!(compared(qwen2, qwen2).is_same());
    assert!(!compared(LLAMA, Model { layers: 2, ..LLAMA }).is_same());
}

fn refused(bytes: Vec<u8>, options: &DagOptions) -> String {
    drawn(bytes, options).unwrap_err().to_string()
}

#[test]
fn what_cannot_be_drawn_is_said_with_what_to_do() {
    let said = refused(run(Model { structure: false, ..LLAMA }, 1), &ALL);
    assert!(said.contains("--no-str"), "{said}");
    let said = refused(run(LLAMA, 2), &DagOptions { token: Some(9), ..ALL });
    assert_eq!(said, "it has no graph of batch 9; `profinfer report --by token` lists them (0 to 2)");
    let said = refused(run(LLAMA, 0), &DagOptions { phase: Some(Phase::Decode), ..ALL });
    assert_eq!(said, "it has no ops in decode, only in prefill");
    assert!(matches!(drawn(Made::new(LLAMA).finish(), &ALL), Err(DagError::NoGraphs)));
    let said = refused(run(LLAMA, 1), &DagOptions { pid: Some(1.into()), ..ALL });
    assert_eq!(said, "process 1 was not recorded; recorded processes: 77 (/opt/llama/llama-cli)");
    let mut made = Made::new(LLAMA);
    let (pid, t, dur, cut) = (PID, synth_trace::ORIGIN as i64, 10, false);
    let g = CpuGraph {
        seq: 0,
        graph: None,
        split: None,
        pid,
        tid: pid,
        plan: None,
        n_nodes: 9,
        n_threads: 1,
        ubatch: 1,
        t,
        dur,
        expected: None,
        seen: 0,
        barrier: false,
        cut,
    };
    made.enc.cpu_graph(&g).unwrap();
    let token = Token {
        seq: 0,
        pid,
        tid: pid,
        entry: Entry::Decode,
        n_tokens: Some(1),
        t,
        dur,
        cut,
        device: pfi::record::Device::Idle,
    };
    made.enc.token(&token).unwrap();
    let said = refused(made.finish(), &ALL);
    assert!(said.contains("no ops") && said.contains("--level op"), "{said}");
}

#[test]
fn of_several_processes_one_must_be_chosen() {
    let mut first = Made::new(LLAMA);
    first.batch(1, 0);
    let mut second = Made::with(Model { pid: 78, biases: true, ..LLAMA }, "", first.enc, 5);
    second.batch(1, 50);
    let bytes = second.finish();
    let said = refused(bytes.clone(), &ALL);
    assert!(
        said.contains("77 (/opt/llama/llama-cli), 78 (/opt/llama/llama-cli)") && said.contains("--pid"),
        "{said}"
    );
    let nodes =
        |pid: u32| drawn(bytes.clone(), &DagOptions { pid: Some(pid.into()), ..ALL }).unwrap().nodes.len();
    assert_eq!(nodes(78), nodes(77) + 3 * 6, "an ADD and a bias for each of three");
}

#[test]
fn graphs_of_another_structure_are_left_out_and_told() {
    let mut made = Made::new(LLAMA);
    made.batch(1, 0);
    made.batch(1, 0);
    let mut other = Made::with(Model { biases: true, ..LLAMA }, "", made.enc, 2);
    other.batch(1, 900);
    let d = drawn(other.finish(), &ALL).unwrap();
    assert_eq!(d.graphs, 2);
    assert_eq!(d.notes, ["1 graphs with another structure (or cut off) are excluded"]);
    assert_eq!(figure(&d, "GET_ROWS inp_embd", Metric::Time), Some(Spread::one(busy(0) as f64)));
}

#[test]
fn a_trace_that_is_cut_off_is_drawn_as_far_as_it_goes() {
    let whole = run(LLAMA, 4);
    let mut drawings = 0;
    for len in (0..whole.len()).step_by(97) {
        let Ok(trace) = Trace::from_bytes(whole[..len].to_vec()) else { continue };
        if let Ok(d) = analysis::questions::dag::dag(&trace, &ALL, &Default::default()) {
            drawings += 1;
            assert!(d.notes.iter().any(|n| n.contains("cut off")), "{:?}", d.notes);
        }
    }
    let _ = drawings;
}

#[test]
fn views_that_take_each_other_end() {
    let mut made = Made::new(LLAMA);
    // The next tensor but one is used before it exists: a ring of three views.
    let first = made.tensor("VIEW", 0, "a", [1; 4], &[], None);
    let ring = [first + 3, first + 1, first + 2];
    for of in ring {
        made.tensor("VIEW", 0, "ring", [1; 4], &[of], None);
    }
    let id = made.tensor("ADD", 0, "takes", [1; 4], &[first + 3], None);
    made.hits.push(pfi::PlanHit { tensor: id, fused: None });
    let plan = made.enc.plan(PID, 1, &made.hits.clone()).unwrap();
    made.replan(plan);
    made.batch(1, 0);
    let d = drawn(made.finish(), &ALL).unwrap();
    assert!(d.edges.iter().all(|e| e.from <= e.to));
    for format in [GraphFormat::Dot, GraphFormat::Graphml, GraphFormat::Json, GraphFormat::Svg] {
        write(&mut Vec::new(), &fold(&d), Metric::Time, format).unwrap();
    }
}

/// Arbitrary ops, names and sources.
fn odd(tensors: Vec<(usize, String, Vec<i8>, bool)>) -> Vec<u8> {
    let mut made = Made::new(LLAMA);
    made.hits.clear();
    for (op, name, src, runs) in tensors {
        let next = made.next_id();
        // Before it, itself, or after it.
        let src: Vec<u32> = src.iter().map(|s| next.wrapping_add_signed((*s).into())).collect();
        let id = made.tensor(OPS[op % OPS.len()], 0, &name, [4, 1, 1, 1], &src, None);
        if runs {
            made.hits.push(pfi::PlanHit { tensor: id, fused: (op % 5 == 0).then_some(id - 1) });
        }
    }
    let plan = made.enc.plan(PID, 1, &made.hits.clone()).unwrap();
    made.replan(plan);
    made.batch(1, 0);
    made.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn no_graph_brings_it_down(
        tensors in prop::collection::vec((0usize..99, "([a-z]-[0-3]|\\PC{0,6})", prop::collection::vec(-20i8..6, 0..4), any::<bool>()), 1..60)
    ) {
        if let Ok(d) = drawn(odd(tensors), &ALL) {
            prop_assert!(d.edges.iter().all(|e| e.from <= e.to && e.to < d.nodes.len()));
            let folded = fold(&d);
            prop_assert!(folded.edges.iter().all(|e| e.from.max(e.to) < folded.nodes.len()));
            let _ = compare(&d, &d).map(|c| assert!(c.is_same()));
            let _ = compare(&d, &drawn(run(LLAMA, 1), &ALL).unwrap());
            for format in [GraphFormat::Dot, GraphFormat::Graphml, GraphFormat::Json, GraphFormat::Svg] {
                write(&mut Vec::new(), &folded, Metric::Time, format).unwrap();
            }
        }
    }
}
