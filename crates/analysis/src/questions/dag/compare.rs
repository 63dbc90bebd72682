//! Compares the structure of two models: which ops only one of them has, and where they are.
//!
//! Kinds of layers are paired, those with the most layers first. If one model has more kinds, the rest is paired
//! with the first kind of the other. Within a pair the ops are aligned in order so that as many as possible are
//! matched with one of the same op, and of those as many as possible with one of the same name. Ops of the same
//! op and name that only run in a different order are equal too. Dimensions and views are ignored, and so is
//! whether an engine fuses two ops.

use super::fold::{fold, ranges};
use super::{Dag, DagError, Edge, NodeRole};
use common::order;
use serde::Serialize;

/// Maximum ops of a kind of layer; four times those of the largest.
const MAX_OPS: usize = 1024;
/// Maximum kinds of layers; models have a few.
const MAX_KINDS: usize = 64;
/// Scores of two ops with the same op and name, and with the same op only.
const SAME: u32 = 3;
const SAME_OP: u32 = 2;

/// An op that only one of the two has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Extra {
    pub op: String,
    pub name: String,
    /// Its sources and its users; views are skipped.
    pub takes: Vec<String>,
    pub taken_by: Vec<String>,
}

/// Layers of one kind in both models, or everything outside the layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerPair {
    /// Which layers, in words; empty outside the layers, none if one of the two has no layers.
    pub layers: [Option<String>; 2],
    /// Ops that both have.
    pub alike: usize,
    pub only: [Vec<Extra>; 2],
}

/// The result for both graphs.
#[derive(Debug, Clone, PartialEq)]
pub struct DagComparison {
    /// Number of layers.
    pub layers: [usize; 2],
    pub pairs: Vec<LayerPair>,
}

impl DagComparison {
    /// True if no op is on one side only, and the numbers of layers are equal.
    pub fn is_same(&self) -> bool {
        self.layers[0] == self.layers[1] && self.pairs.iter().all(|p| p.only.iter().all(Vec::is_empty))
    }
}

/// An op: its node and which of the node's tensors.
type TensorIndex = (usize, usize);

/// Compares two graphs.
///
/// # Errors
/// A layer has too many ops.
pub fn compare(a: &Dag, b: &Dag) -> Result<DagComparison, DagError> {
    let (a, b) = (fold(a), fold(b));
    if a.blocks.len().max(b.blocks.len()) > MAX_KINDS {
        return Err(DagError::TooLarge(MAX_KINDS, "kinds of layers"));
    }
    let mut pairs =
        vec![pair(&a, &b, [Some(String::new()), Some(String::new())], [ops(&a, None), ops(&b, None)])?];
    let (kinds_a, kinds_b) = (kinds(&a), kinds(&b));
    for i in 0..kinds_a.len().max(kinds_b.len()) {
        // A kind without a counterpart is compared with the other model's first kind.
        let of = |kinds: &[usize]| kinds.get(i).or(kinds.first()).copied();
        let (in_a, in_b) = (of(&kinds_a), of(&kinds_b));
        let ops = |dag: &Dag, block: Option<usize>| block.map_or(Vec::new(), |_| ops(dag, block));
        pairs.push(pair(&a, &b, [in_words(&a, in_a), in_words(&b, in_b)], [ops(&a, in_a), ops(&b, in_b)])?);
    }
    let count = |dag: &Dag| dag.blocks.iter().map(|b| b.layers.len()).sum();
    Ok(DagComparison { layers: [count(&a), count(&b)], pairs })
}

fn in_words(dag: &Dag, block: Option<usize>) -> Option<String> {
    Some(ranges(&dag.blocks.get(block?)?.layers))
}

/// Kinds of layers, those with the most layers first.
fn kinds(dag: &Dag) -> Vec<usize> {
    let mut all: Vec<usize> = (0..dag.blocks.len()).collect();
    order::by_key(&mut all, |i| (!(dag.blocks.get(*i).map_or(0, |b| b.layers.len()) as u64), 0));
    all
}

/// The ops of a kind of layer, or those outside all layers.
fn ops(dag: &Dag, block: Option<usize>) -> Vec<TensorIndex> {
    let within = dag.nodes.iter().enumerate().filter(|(_, n)| n.role == NodeRole::Op && n.block == block);
    within.flat_map(|(i, n)| (0..n.tensors.len()).map(move |k| (i, k))).collect()
}

fn label(dag: &Dag, (node, tensor): TensorIndex) -> (&str, &str) {
    let t = dag.nodes.get(node).and_then(|n| n.tensors.get(tensor));
    t.map_or(("", ""), |t| (t.op.as_str(), t.name.as_str()))
}

fn pair(
    a: &Dag,
    b: &Dag,
    layers: [Option<String>; 2],
    ops: [Vec<TensorIndex>; 2],
) -> Result<LayerPair, DagError> {
    let [in_a, in_b] = &ops;
    if in_a.len().max(in_b.len()) > MAX_OPS {
        return Err(DagError::TooLarge(MAX_OPS, "ops in a layer"));
    }
    let score = |i: usize, j: usize| {
        let (x, y) = (label(a, in_a[i]), label(b, in_b[j]));
        match x.0 == y.0 {
            true if x.1 == y.1 => SAME,
            true => SAME_OP,
            false => 0,
        }
    };
    let mut beside = line_up(in_a.len(), in_b.len(), &score);
    // Ops left on both sides with the same name run in a different order, which is not a structural difference.
    let mut free: Vec<usize> = (0..in_b.len()).filter(|j| !beside.contains(&Some(*j))).collect();
    for (i, to) in beside.iter_mut().enumerate().filter(|(_, to)| to.is_none()) {
        if let Some(at) = free.iter().position(|j| score(i, *j) == SAME) {
            *to = Some(free.remove(at));
        }
    }
    let alike = beside.iter().flatten().count();
    let left: Vec<TensorIndex> =
        in_a.iter().zip(&beside).filter(|(_, j)| j.is_none()).map(|(op, _)| *op).collect();
    let right: Vec<TensorIndex> = free.into_iter().map(|j| in_b[j]).collect();
    let extras = |dag: &Dag, list: Vec<TensorIndex>| {
        let users = if list.is_empty() { Vec::new() } else { by_source(dag) };
        list.into_iter().map(|op| extra(dag, &users, op)).collect()
    };
    Ok(LayerPair { layers, alike, only: [extras(a, left), extras(b, right)] })
}

/// For each of `n`, the matching one of `m`, so that both keep their order and the sum of scores is maximal.
fn line_up(n: usize, m: usize, score: &dyn Fn(usize, usize) -> u32) -> Vec<Option<usize>> {
    // best[i][j]: the score from i and j on, both included.
    let width = m + 1;
    let mut best = vec![0u32; (n + 1) * width];
    for i in (0..n).rev() {
        for j in (0..m).rev() {
            let skip = best[(i + 1) * width + j].max(best[i * width + j + 1]);
            let s = score(i, j);
            let both = if s > 0 { s + best[(i + 1) * width + j + 1] } else { 0 };
            best[i * width + j] = skip.max(both);
        }
    }
    let mut beside = vec![None; n];
    let (mut i, mut j) = (0, 0);
    while i < n && j < m {
        let (here, s) = (best[i * width + j], score(i, j));
        if s > 0 && here == s + best[(i + 1) * width + j + 1] {
            beside[i] = Some(j);
            (i, j) = (i + 1, j + 1);
        } else if here == best[(i + 1) * width + j] {
            i += 1;
        } else {
            j += 1;
        }
    }
    beside
}

fn extra(dag: &Dag, users: &[Edge], op: TensorIndex) -> Extra {
    let (node, tensor) = op;
    let mut takes = Vec::new();
    for e in dag.sources(node).iter().filter(|e| usize::from(e.tensor) == tensor) {
        // Within a node of two tensors the second uses the first.
        let before = (e.from == node).then_some((node, 0));
        push(&mut takes, before.map_or_else(|| layer_under(dag, e.from), |op| in_full(label(dag, op))));
    }
    let mut taken_by = Vec::new();
    let last = dag.nodes.get(node).map_or(0, |n| n.tensors.len()) == tensor + 1;
    if last {
        let mut views = MAX_VIEWS;
        above(dag, users, node, &mut views, &mut taken_by);
    } else {
        push(&mut taken_by, in_full(label(dag, (node, tensor + 1))));
    }
    let (op, name) = label(dag, op);
    Extra { op: op.to_owned(), name: name.to_owned(), takes, taken_by }
}

/// Limits: views of views, views skipped to find the users of one op, and users listed for each op.
const MAX_DEPTH: u32 = 16;
const MAX_VIEWS: u32 = 32;
const MAX_USERS: usize = 64;

fn push(list: &mut Vec<String>, text: String) {
    if !list.contains(&text) {
        list.push(text);
    }
}

fn in_full((op, name): (&str, &str)) -> String {
    format!("{op} {name}").trim().to_owned()
}

/// The source behind a node: the node itself, or what it is a view of.
fn layer_under(dag: &Dag, mut node: usize) -> String {
    for _ in 0..MAX_DEPTH {
        match (dag.nodes.get(node).map(|n| n.role), dag.sources(node).first()) {
            (Some(NodeRole::View), Some(e)) if e.from != node => node = e.from,
            _ => break,
        }
    }
    let Some(n) = dag.nodes.get(node) else { return String::new() };
    let op = n.op();
    if n.role.is_constant() { n.name().to_owned() } else { in_full((&op, n.name())) }
}

/// The edges by the node they come from.
fn by_source(dag: &Dag) -> Vec<Edge> {
    let mut edges = dag.edges.clone();
    order::by_key(&mut edges, |e| (e.from as u64, e.to as u64));
    edges
}

/// The ops that use a node, or a view of it; `views` limits how many more views are followed.
fn above(dag: &Dag, users: &[Edge], node: usize, views: &mut u32, to: &mut Vec<String>) {
    let first = users.partition_point(|e| e.from < node);
    let of_node = users.iter().skip(first).take_while(|e| e.from == node);
    for e in of_node.filter(|e| e.to != node).take(MAX_USERS) {
        match dag.nodes.get(e.to) {
            Some(n) if n.role == NodeRole::View && *views > 0 => {
                *views -= 1;
                above(dag, users, e.to, views, to);
            }
            Some(n) if n.role == NodeRole::View => {}
            Some(_) => push(to, in_full(label(dag, (e.to, e.tensor.into())))),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lined(a: &[(&str, &str)], b: &[(&str, &str)]) -> Vec<Option<usize>> {
        line_up(a.len(), b.len(), &|i, j| match a[i].0 == b[j].0 {
            true if a[i].1 == b[j].1 => SAME,
            true => SAME_OP,
            false => 0,
        })
    }

    #[test]
    fn what_is_more_is_left_over() {
        let llama = [("MUL_MAT", "q"), ("ROPE", "q"), ("MUL_MAT", "k"), ("ROPE", "k"), ("ADD", "out")];
        let qwen = [
            ("MUL_MAT", "q"),
            ("ADD", "q"),
            ("ROPE", "q"),
            ("MUL_MAT", "k"),
            ("ADD", "k"),
            ("ROPE", "k"),
            ("ADD", "out"),
        ];
        assert_eq!(lined(&llama, &qwen), [Some(0), Some(2), Some(3), Some(5), Some(6)]);
        assert_eq!(lined(&qwen, &llama), [Some(0), None, Some(1), Some(2), None, Some(3), Some(4)]);
        assert_eq!(lined(&llama, &[]), [None; 5]);
    }

    #[test]
    fn another_name_is_better_than_none() {
        assert_eq!(lined(&[("ADD", "a"), ("ADD", "b")], &[("ADD", "c"), ("ADD", "b")]), [Some(0), Some(1)]);
        assert_eq!(lined(&[("ADD", "a")], &[("ADD", "b"), ("ADD", "a")]), [Some(1)]);
    }
}
