//! The target's own account of its graphs: the JSON lines of `fakellama --dump` and `driver --dump`, which have the
//! same form.

use std::path::Path;

use serde_json::Value;

/// A node, or a source of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub addr: u64,
    pub name: String,
    pub op: String,
    pub desc: String,
    pub ty: String,
    pub ne: [u64; 4],
    pub nb: [u64; 4],
    pub flags: u64,
    pub view_src: u64,
    /// Slots; None = a gap.
    pub src: Vec<Option<Node>>,
    /// Fate of the node according to the fake; empty for real engines, which do not report it.
    pub fate: String,
}

/// One graph as given to its scheduler.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    pub n_tokens: u32,
    pub nodes: Vec<Node>,
}

/// Reads a dump.
pub fn read(path: &Path) -> Vec<Graph> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut graphs: Vec<Graph> = Vec::new();
    for line in text.lines() {
        let v: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        if v.get("i").is_none() {
            graphs.push(Graph {
                n_tokens: v["n_tokens"].as_u64().expect("n_tokens") as u32,
                nodes: Vec::new(),
            });
            continue;
        }
        graphs.last_mut().expect("a graph begins before its nodes").nodes.push(node(&v));
    }
    graphs
}

fn node(v: &Value) -> Node {
    let text = |key: &str| v[key].as_str().unwrap_or_default().to_owned();
    let four = |key: &str| std::array::from_fn(|i| v[key][i].as_u64().expect("four numbers"));
    let src = v.get("src").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    Node {
        addr: address(&v["addr"]),
        name: text("name"),
        op: text("op"),
        desc: text("desc"),
        ty: text("type"),
        ne: four("ne"),
        nb: four("nb"),
        flags: v["flags"].as_u64().unwrap_or(0),
        view_src: address(&v["view_src"]),
        src: src.iter().map(|s| (!s.is_null()).then(|| node(s))).collect(),
        fate: text("fate"),
    }
}

fn address(v: &Value) -> u64 {
    let text = v.as_str().unwrap_or("0x0");
    match text {
        "(nil)" => 0,
        _ => u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a hexadecimal address"),
    }
}

impl Node {
    pub fn is_nop(&self) -> bool {
        matches!(self.op.as_str(), "NONE" | "RESHAPE" | "VIEW" | "PERMUTE" | "TRANSPOSE")
    }

    fn is_empty(&self) -> bool {
        self.ne.contains(&0)
    }
}

/// How GGML of a period runs its nodes; tests/engines/README.md and tests/fixtures/README.md describe the same in
/// prose.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// Views and reshapes are dispatched like ops (before 2025-11).
    pub runs_nops: bool,
    /// Nodes without the flag COMPUTE are skipped (since 2026-01).
    pub wants_flag: bool,
    /// RMS_NORM and the MUL after it are fused (since 2026-05).
    pub fuses: bool,
}

/// GGML_TENSOR_FLAG_COMPUTE (ggml.h, since 2026-01).
const FLAG_COMPUTE: u64 = 16;

/// An op that each thread must pass: index of its node, and of the node fused with it.
pub type Op = (usize, Option<usize>);

/// What each thread passes in a graph of a real engine.
pub fn ops(graph: &Graph, habits: Habits) -> Vec<Op> {
    let runs = |n: &Node| {
        n.op != "NONE"
            && !n.is_empty()
            && (habits.runs_nops || !n.is_nop())
            && (!habits.wants_flag || n.flags & FLAG_COMPUTE != 0)
    };
    let mut out = Vec::new();
    let mut i = 0;
    while i < graph.nodes.len() {
        let fused = habits.fuses && fused(graph, i);
        if runs(&graph.nodes[i]) {
            out.push((i, fused.then_some(i + 1)));
        }
        i += if fused { 2 } else { 1 };
    }
    out
}

/// True if node `i` is an RMS_NORM whose only user is the MUL after it.
fn fused(graph: &Graph, i: usize) -> bool {
    let (Some(norm), Some(mul)) = (graph.nodes.get(i), graph.nodes.get(i + 1)) else { return false };
    let uses = |n: &Node| n.src.iter().flatten().filter(|s| s.addr == norm.addr).count();
    let others: usize = graph.nodes.iter().map(uses).sum();
    norm.op == "RMS_NORM"
        && mul.op == "MUL"
        && uses(mul) == 1
        && others == 1
        && norm.flags & FLAG_COMPUTE != 0
        && mul.flags & FLAG_COMPUTE != 0
}

/// The nodes that each thread passes in a graph of the fake, as reported by the fake: the CPU graphs of the
/// scheduler's graph in order. Nodes with fate `none` are never passed.
pub fn fake_ops(graph: &Graph) -> Vec<Vec<Op>> {
    let mut parts: Vec<Vec<Op>> = Vec::new();
    let mut elsewhere = true;
    for (i, n) in graph.nodes.iter().enumerate() {
        match n.fate.as_str() {
            "gpu" => elsewhere = true,
            fate => {
                if std::mem::take(&mut elsewhere) {
                    parts.push(Vec::new());
                }
                let part = parts.last_mut().expect("just begun");
                match fate {
                    "run" => part.push((i, None)),
                    "fused" => part.last_mut().expect("the first of the pair").1 = Some(i),
                    _ => {}
                }
            }
        }
    }
    parts
}
