//! The graph built by `dag` compared with the engine's own: node for node and edge for edge, for each kind of
//! model.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use common::run::{Recorder, Target};
use common::truth::{self, Graph, Habits, Node};
use common::{driver, engine, live, model, profinfer, skip};
use serde_json::Value;

const EARLY: Habits = Habits { runs_nops: true, wants_flag: false, fuses: false };
const TODAY: Habits = Habits { runs_nops: false, wants_flag: true, fuses: true };

/// The tensor at an address: op, name, type, dimensions.
type Told = (String, String, String, Vec<u64>);

/// From, to, slot.
type Edge = (u64, u64, u64);

/// A graph as sets by address, and what ran, in order (a fused one after the other).
#[derive(Debug, Default, PartialEq)]
struct Seen {
    ran: Vec<Vec<u64>>,
    nodes: BTreeMap<u64, Told>,
    edges: BTreeSet<Edge>,
}

/// From the engine: the sources of all its ops, and their sources.
fn of_engine(graph: &Graph, habits: Habits) -> Seen {
    let mut seen = Seen::default();
    let told = |n: &Node| (n.desc.clone(), n.name.clone(), n.ty.clone(), n.ne.to_vec());
    let nodes: BTreeMap<u64, &Node> = graph.nodes.iter().map(|n| (n.addr, n)).collect();
    let mut open = Vec::new();
    for (first, second) in truth::ops(graph, habits) {
        let run: Vec<u64> =
            [Some(first), second].into_iter().flatten().map(|i| graph.nodes[i].addr).collect();
        open.extend(&run);
        seen.ran.push(run);
    }
    while let Some(addr) = open.pop() {
        let Some(node) = nodes.get(&addr) else { continue };
        if seen.nodes.insert(addr, told(node)).is_some() {
            continue;
        }
        for (slot, source) in node.src.iter().enumerate() {
            let Some(source) = source else { continue };
            seen.edges.insert((source.addr, addr, slot as u64));
            if nodes.contains_key(&source.addr) {
                open.push(source.addr);
            } else {
                seen.nodes.insert(source.addr, told(source));
            }
        }
    }
    seen
}

/// From `dag`.
fn of_dag(json: &Value) -> Seen {
    let mut seen = Seen::default();
    let text = |v: &Value| v.as_str().expect("a text").to_owned();
    let addr =
        |v: &Value| u64::from_str_radix(text(&v["addr"]).trim_start_matches("0x"), 16).expect("an address");
    let nodes = json["nodes"].as_array().expect("nodes");
    let tensors =
        |i: &Value| nodes[i.as_u64().expect("a node") as usize]["tensors"].as_array().expect("tensors");
    for n in nodes {
        let all = n["tensors"].as_array().expect("tensors");
        for t in all {
            let ne = t["ne"]
                .as_array()
                .expect("dimensions")
                .iter()
                .map(|n| n.as_u64().expect("a number"))
                .collect();
            let told = (text(&t["op"]), text(&t["name"]), text(&t["type"]), ne);
            assert_eq!(seen.nodes.insert(addr(t), told), None, "a tensor is there once");
        }
        if n["order"].is_u64() {
            assert_eq!(n["order"], seen.ran.len());
            seen.ran.push(all.iter().map(addr).collect());
        }
        let role = n["role"].as_str().expect("a role");
        assert!(role != "unknown" && role != "elsewhere", "{n}");
    }
    for e in json["edges"].as_array().expect("edges") {
        let from = tensors(&e["from"]);
        // A node of two tensors has its first one as an internal source.
        let from = if e["from"] == e["to"] { &from[0] } else { from.last().expect("one") };
        let to = &tensors(&e["to"])[e["tensor"].as_u64().expect("a place") as usize];
        assert!(seen.edges.insert((addr(from), addr(to), e["slot"].as_u64().expect("a slot"))), "{e}");
    }
    seen
}

/// Runs prefill and two decodes, and compares each graph with the engine's.
fn compare(name: &str, presets: &[&str], habits: Habits) {
    let _turn = live!(beside others);
    let lib = match engine(name) {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    for preset in presets {
        println!("{name}, {preset}");
        one(&lib, &model(preset, "q4_0"), habits);
    }
}

fn one(lib: &Path, model: &Path, habits: Habits) {
    let dir = tempfile::tempdir().expect("a directory");
    let dump = dir.path().join("dump");
    let mut command = Command::new(driver());
    command.arg("--engine").arg(lib).arg("--model").arg(model).arg("--dump").arg(&dump);
    let mut target = Target::controlled(command.args(["--control", "--ctx", "256", "-t", "2"]));
    assert_eq!(target.tell("", 1)["ready"], true);
    let recorder = Recorder::start(&["-p", &target.pid().to_string()]);
    recorder.wait_for_probes();
    target.tell("prefill 7\n", 2);
    target.tell("run 2\n", 3);
    drop(target.0.stdin.take());
    target.said();
    let run = recorder.finish();
    let graphs = truth::read(&dump);
    assert_eq!(graphs.len(), 3, "graphs in the dump");
    let batches: Vec<u64> = run.seen().all.tokens.iter().map(|t| t.seq).collect();
    for (graph, batch) in graphs.iter().zip(batches) {
        let out = Command::new(profinfer())
            .arg("dag")
            .arg(&run.trace)
            .args(["--format", "json", "--token", &batch.to_string()])
            .output()
            .expect("profinfer runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let (engine, dag) =
            (of_engine(graph, habits), of_dag(&serde_json::from_slice(&out.stdout).expect("JSON")));
        println!(
            "  batch {batch}: {} ops, {} nodes, {} edges",
            engine.ran.len(),
            engine.nodes.len(),
            engine.edges.len()
        );
        assert!(engine.edges.len() > engine.nodes.len(), "a graph that says something");
        assert_eq!(engine.ran, dag.ran, "what ran, in its order");
        let not_there = |a: &Seen, b: &Seen| -> Vec<(Told, u64)> {
            a.nodes
                .iter()
                .filter(|(at, t)| b.nodes.get(at) != Some(t))
                .map(|(at, t)| (t.clone(), *at))
                .collect()
        };
        assert_eq!(
            (not_there(&engine, &dag), not_there(&dag, &engine)),
            (vec![], vec![]),
            "nodes of one alone"
        );
        let lost: Vec<&Edge> = engine.edges.symmetric_difference(&dag.edges).collect();
        assert!(lost.is_empty(), "edges of one alone: {lost:x?}");
    }
}

#[test]
fn llama_qwen2_gemma2_and_experts() {
    compare("b11549", &["tiny", "qwen2-tiny", "gemma2", "moe"], TODAY);
}

#[test]
fn an_engine_that_calls_views() {
    compare("b3889", &["tiny"], EARLY);
}
