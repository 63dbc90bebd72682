//! Reduces a graph: identical layers folded into one, or one layer only.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Dag, DagError, Edge, LayerGroup, METRICS, Node, Spread};
use common::order;
use ggml::names::fold as pattern;

/// Nodes of each layer.
struct LayerNodes {
    numbers: Vec<u32>,
    nodes: Vec<Vec<usize>>,
}

impl LayerNodes {
    fn of(dag: &Dag) -> LayerNodes {
        let numbers = dag.layers();
        let mut nodes = vec![Vec::new(); numbers.len()];
        for (i, node) in dag.nodes.iter().enumerate() {
            let place = node.layer.and_then(|l| numbers.binary_search(&l).ok());
            if let Some(list) = place.and_then(|p| nodes.get_mut(p)) {
                list.push(i);
            }
        }
        LayerNodes { numbers, nodes }
    }
}

/// Folds all layers that have the same ops, names, dimensions and internal edges. Sources outside a layer may
/// differ if they are computed.
pub fn fold(dag: &Dag) -> Dag {
    let layers = LayerNodes::of(dag);
    // For each node its representative, and the block of that.
    let mut stands: Vec<usize> = (0..dag.nodes.len()).collect();
    let mut block_of: Vec<Option<usize>> = vec![None; dag.nodes.len()];
    let mut blocks = Vec::new();
    for group in equal(dag, &layers) {
        let Some(first) = group.first().and_then(|l| layers.nodes.get(*l)) else { continue };
        for layer in &group {
            for (node, stand) in layers.nodes.get(*layer).into_iter().flatten().zip(first) {
                stands[*node] = *stand;
                block_of[*node] = Some(blocks.len());
            }
        }
        blocks.push(LayerGroup {
            layers: group.iter().filter_map(|l| layers.numbers.get(*l)).copied().collect(),
        });
    }
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); dag.nodes.len()];
    for (node, stand) in stands.iter().enumerate() {
        members[*stand].push(node);
    }
    // New numbers of the remaining nodes.
    let mut number = vec![0; dag.nodes.len()];
    let mut nodes: Vec<Node> = Vec::new();
    for (i, members) in members.iter().enumerate().filter(|(_, m)| !m.is_empty()) {
        number[i] = nodes.len();
        nodes.push(Node { block: block_of[i], ..merged(dag, i, members, block_of[i].is_some()) });
    }
    let of = |node: usize| number[stands[node]];
    let mut edges: Vec<Edge> = dag
        .edges
        .iter()
        .map(|e| {
            let (from, to) = (of(e.from), of(e.to));
            Edge { from, to, back: e.from != e.to && from >= to, ..*e }
        })
        .collect();
    order::by_key(&mut edges, |e| {
        ((e.to as u64) << 16 | u64::from(e.tensor) << 8 | u64::from(e.slot), e.from as u64)
    });
    edges.dedup();
    Dag { nodes, edges, blocks, notes: dag.notes.clone(), counter: dag.counter.clone(), ..*dag }
}

/// Groups of identical layers, by index; groups and layers in ascending order.
fn equal(dag: &Dag, layers: &LayerNodes) -> Vec<Vec<usize>> {
    let mut shapes: Vec<(u64, usize)> =
        layers.nodes.iter().enumerate().map(|(i, nodes)| (shape(dag, nodes), i)).collect();
    order::by_key(&mut shapes, |s| (s.0, s.1 as u64));
    let mut groups: Vec<Vec<usize>> =
        shapes.chunk_by(|a, b| a.0 == b.0).map(|g| g.iter().map(|(_, i)| *i).collect()).collect();
    order::by_key(&mut groups, |g| (g.first().map_or(0, |i| *i as u64), 0));
    groups
}

fn shape(dag: &Dag, nodes: &[usize]) -> u64 {
    let mut hash = DefaultHasher::new();
    for i in nodes {
        let Some(node) = dag.nodes.get(*i) else { continue };
        (node.role, node.order.is_some(), node.tensors.len(), &node.backend).hash(&mut hash);
        for t in &node.tensors {
            (&t.op, &pattern(&t.name).pattern, t.ne).hash(&mut hash);
        }
        for e in dag.sources(*i) {
            (e.tensor, e.slot).hash(&mut hash);
            match (nodes.binary_search(&e.from), dag.nodes.get(e.from)) {
                (Ok(within), _) => within.hash(&mut hash),
                (_, Some(from)) if from.role.is_constant() => pattern(from.name()).pattern.hash(&mut hash),
                _ => "outside".hash(&mut hash),
            }
        }
    }
    hash.finish()
}

/// The node that represents these.
fn merged(dag: &Dag, first: usize, members: &[usize], in_layer: bool) -> Node {
    let mut node = dag.nodes[first].clone();
    let all = || members.iter().map(|i| &dag.nodes[*i]);
    for (k, t) in node.tensors.iter_mut().enumerate().filter(|_| in_layer) {
        t.name = pattern(&t.name).pattern.into_owned();
        let mut types: Vec<&str> = Vec::new();
        for ty in all().filter_map(|n| n.tensors.get(k)).map(|t| t.ty.as_str()) {
            if !types.contains(&ty) {
                types.push(ty);
            }
        }
        t.ty = types.join("|");
    }
    for (k, figure) in node.figures.iter_mut().enumerate().take(METRICS.len()) {
        *figure = spread(all().filter_map(|n| Some(n.figures[k]?.median)).collect());
    }
    node.time_share = all().filter_map(|n| n.time_share).reduce(|sum, share| sum + share);
    node
}

fn spread(mut values: Vec<f64>) -> Option<Spread> {
    order::by_key(&mut values, |v| (order::fraction(*v), 0));
    let (min, max) = (*values.first()?, *values.last()?);
    let at = |i: usize| values.get(i).copied().unwrap_or(max);
    let median = (at((values.len() - 1) / 2) + at(values.len() / 2)) / 2.0;
    Some(Spread { min, median, max })
}

/// The nodes of one layer, and their sources outside it.
///
/// # Errors
/// There is no such layer.
pub fn only(dag: &Dag, layer: u32) -> Result<Dag, DagError> {
    let inside = |i: usize| dag.nodes.get(i).is_some_and(|n| n.layer == Some(layer));
    let mut kept = vec![false; dag.nodes.len()];
    for i in (0..dag.nodes.len()).filter(|i| inside(*i)) {
        kept[i] = true;
        for e in dag.sources(i) {
            kept[e.from] = true;
        }
    }
    let mut number = vec![0; dag.nodes.len()];
    let mut nodes = Vec::new();
    for (i, node) in dag.nodes.iter().enumerate().filter(|(i, _)| kept[*i]) {
        number[i] = nodes.len();
        nodes.push(node.clone());
    }
    if nodes.is_empty() {
        return Err(DagError::NoLayer { layer, there: ranges(&dag.layers()) });
    }
    let within = dag.edges.iter().filter(|e| inside(e.to));
    let edges = within.map(|e| Edge { from: number[e.from], to: number[e.to], ..*e }).collect();
    Ok(Dag {
        nodes,
        edges,
        blocks: Vec::new(),
        notes: dag.notes.clone(),
        counter: dag.counter.clone(),
        ..*dag
    })
}

/// Ascending numbers as text: `0-3, 7`; `none`.
pub fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for run in numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        match run {
            [] => {}
            [one] => parts.push(one.to_string()),
            [first, .., last] => parts.push(format!("{first}-{last}")),
        }
    }
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_words() {
        assert_eq!(ranges(&[0, 1, 2, 4, 6, 7]), "0-2, 4, 6-7");
        assert_eq!(ranges(&[]), "none");
    }

    #[test]
    fn a_spread_is_lowest_middle_highest() {
        assert_eq!(spread(vec![4.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 4.0 }));
        assert_eq!(spread(vec![4.0, 1.0]), Some(Spread { min: 1.0, median: 2.5, max: 4.0 }));
        assert_eq!(spread(Vec::new()), None);
    }
}
