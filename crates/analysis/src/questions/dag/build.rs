//! Builds the nodes and edges from plans and tensors.

use std::collections::HashMap;

use super::pick::DagSelection;
use super::{Dag, DagError, Edge, METRICS, Node, NodeRole, NodeTensor};
use crate::recorded::describe::{NO_STRUCTURE, copied_name, op_desc, op_name};
use crate::recorded::load::Loaded;
use crate::sums::tables::backend_name;
use ggml::names::fold;
use pfi::record::Tensor;

/// Maximum nodes of a graph: a hundred times those of the largest models.
const MAX_NODES: usize = 500_000;
/// Maximum depth of views of views; a recorder has the same limit.
const MAX_DEPTH: usize = 64;
/// Number of edges after a view that are searched for its users.
const NEAR: usize = 256;
/// Address of the placeholder tensor for sources that were not available (docs/FORMAT.md).
const SOURCES_LOST: u64 = 1;

struct DagBuilder<'l, 'a> {
    loaded: &'l Loaded<'a>,
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    /// Node by address.
    at: HashMap<u64, usize>,
    /// Addresses of the tensors whose sources are currently being resolved.
    open: Vec<u64>,
    order: u32,
    /// That of the current plan, if it is to be shown.
    backend: Option<String>,
    /// The node of each result, for copies of it.
    named: HashMap<&'l str, usize>,
}

/// Builds the graph of the first of the selected graphs.
///
/// # Errors
/// No op is described, or there are too many.
pub fn build(loaded: &Loaded<'_>, pick: &DagSelection) -> Result<Dag, DagError> {
    let mut b = DagBuilder {
        loaded,
        nodes: Vec::new(),
        edges: Vec::new(),
        at: HashMap::new(),
        open: Vec::new(),
        order: 0,
        backend: None,
        named: HashMap::new(),
    };
    let several = pick.places.iter().any(|p| p.offloaded);
    for place in &pick.places {
        let Some(plan) = place.plans.first().and_then(|p| loaded.plans.get(p)) else { continue };
        b.backend = place.backend.filter(|_| several).map(|id| backend_name(loaded, id));
        for (first, second) in &plan.hits {
            b.hit(*first, *second);
            if b.nodes.len() > MAX_NODES {
                return Err(DagError::TooLarge(MAX_NODES, "nodes"));
            }
        }
    }
    let ran = b.nodes.iter().filter(|n| n.order.is_some());
    let unknown = ran.clone().filter(|n| n.role == NodeRole::Unknown).count();
    if unknown == ran.count() {
        let without = loaded.header.as_ref().is_some_and(|h| !h.structure);
        return Err(if without { DagError::NoStructure } else { DagError::Lost });
    }
    let mut notes = Vec::new();
    let mut note = |n: usize, what: &str| {
        if n > 0 {
            notes.push(format!("{n} {what}"));
        }
    };
    note(unknown, "ops have no description and are shown without sources");
    note(
        b.nodes.iter().filter(|n| n.role == NodeRole::Elsewhere).count(),
        "tensors have no recorded op: computed on another backend, or the hits were lost",
    );
    note(pick.others as usize, "graphs with another structure (or cut off) are excluded");
    layers(&mut b.nodes, &b.edges);
    let DagBuilder { nodes, edges, .. } = b;
    let (pid, phase, token) = (pick.pid, pick.phase, pick.token);
    Ok(Dag { pid, phase, token, graphs: pick.graphs, nodes, edges, blocks: Vec::new(), counter: None, notes })
}

impl DagBuilder<'_, '_> {
    /// An executed op: one tensor, or two fused ones.
    fn hit(&mut self, first: u32, second: Option<u32>) {
        let ids: Vec<u32> = [Some(first), second].into_iter().flatten().collect();
        self.open = ids.iter().filter_map(|id| Some(self.loaded.tensors.get(id)?.addr)).collect();
        let order = Some(self.order);
        self.order += 1;
        self.node(&ids, order);
        self.open.clear();
    }

    /// Adds a node after those of its sources; returns its number.
    fn node(&mut self, ids: &[u32], order: Option<u32>) -> usize {
        let loaded = self.loaded;
        let mut sources = Vec::new();
        for (tensor, id) in (0..=u8::MAX).zip(ids) {
            let src = loaded
                .tensors
                .get(id)
                .filter(|t| t.known && self.open.len() < MAX_DEPTH)
                .map_or(&[][..], |t| &*t.src);
            for (slot, source) in (0..=u8::MAX).zip(src) {
                if let Some(source) = source {
                    sources.push((tensor, slot, self.source(*source)));
                }
            }
        }
        let leaf = ids.first().filter(|_| sources.is_empty() && order.is_none());
        let name = leaf.and_then(|id| self.known(*id)).and_then(|t| copied_name(&t.name));
        if let Some(from) = name.and_then(|name| self.named.get(name)) {
            sources.push((0, 0, Some(*from)));
        }
        let own = self.nodes.len();
        self.nodes.push(self.describe(ids, order));
        for (tensor, slot, from) in sources {
            self.edges.push(Edge { from: from.unwrap_or(own), to: own, tensor, slot, back: false });
        }
        for t in ids.iter().filter_map(|id| loaded.tensors.get(id)) {
            self.at.insert(t.addr, own);
            if order.is_some() && t.known {
                self.named.insert(&t.name, own);
            }
        }
        own
    }

    /// The node of a source; none if it is a tensor whose sources are being resolved.
    fn source(&mut self, id: u32) -> Option<usize> {
        // A tensor without a definition is identified by its id, mapped to a value that is no program address.
        let addr = self.loaded.tensors.get(&id).map_or(!u64::from(id), |t| t.addr);
        if self.open.contains(&addr) {
            return None;
        }
        match self.at.get(&addr) {
            Some(node) if addr != SOURCES_LOST => Some(*node),
            _ => {
                self.open.push(addr);
                let node = self.node(&[id], None);
                self.open.pop();
                self.at.insert(addr, node);
                Some(node)
            }
        }
    }

    fn describe(&self, ids: &[u32], order: Option<u32>) -> Node {
        let tensors = ids.iter().map(|id| self.tensor(*id)).collect();
        let mut known = ids.iter().filter_map(|id| self.known(*id));
        let role = known.next().map_or(NodeRole::Unknown, |t| self.role(t, order));
        // A copy is made for the ops of the plan that it is met in.
        let placed = order.is_some() || role == NodeRole::Copy;
        let backend = self.backend.clone().filter(|_| placed);
        Node {
            role,
            tensors,
            order,
            layer: None,
            block: None,
            backend,
            figures: [None; METRICS.len()],
            time_share: None,
        }
    }

    fn known(&self, id: u32) -> Option<&Tensor> {
        self.loaded.tensors.get(&id).filter(|t| t.known)
    }

    fn tensor(&self, id: u32) -> NodeTensor {
        let Some(t) = self.known(id) else { return self.unknown(id) };
        let ty =
            self.loaded.types.get(&t.ty).map_or_else(|| format!("type#{}", t.ty), |ty| ty.name.to_owned());
        NodeTensor { op: op_desc(self.loaded, t.op), name: t.name.to_string(), ty, ne: t.ne, addr: t.addr }
    }

    fn unknown(&self, id: u32) -> NodeTensor {
        let addr = self.loaded.tensors.get(&id).map_or(0, |t| t.addr);
        let name = if addr == SOURCES_LOST { "(sources not recorded)" } else { NO_STRUCTURE };
        NodeTensor { op: String::new(), name: name.into(), ty: String::new(), ne: [0; 4], addr }
    }

    fn role(&self, t: &Tensor, order: Option<u32>) -> NodeRole {
        match op_name(self.loaded, t.op) {
            "VIEW" | "RESHAPE" | "PERMUTE" | "TRANSPOSE" => NodeRole::View,
            "NONE" if t.src.iter().any(Option::is_some) => NodeRole::View,
            "NONE" if order.is_none() && copied_name(&t.name).is_some() => NodeRole::Copy,
            "NONE" if order.is_none() => match fold(&t.name).pattern.as_ref() {
                name if name.starts_with("cache_") => NodeRole::Cache,
                name if name.contains(".weight") || name.contains(".bias") => NodeRole::Weight,
                _ => NodeRole::Input,
            },
            _ if order.is_some() => NodeRole::Op,
            _ => NodeRole::Elsewhere,
        }
    }
}

/// Assigns each node its layer: the one in its name, else that of a weight or cache it uses, else, if it has no
/// name, that of the op that ran before it, else the last of its sources' layers.
fn layers(nodes: &mut [Node], edges: &[Edge]) {
    // Edges are sorted by target node.
    let mut rest = edges;
    let mut before = None;
    for to in 0..nodes.len() {
        let n = rest.iter().take_while(|e| e.to == to).count();
        let (own, after) = rest.split_at(n);
        rest = after;
        let Some(node) = nodes.get(to) else { continue };
        let named = node.tensors.iter().rev().find_map(|t| fold(&t.name).layer);
        let nameless = node.tensors.iter().all(|t| {
            let pattern = fold(&t.name).pattern;
            pattern.is_empty() || pattern.starts_with("node_{N}") || pattern.starts_with(' ')
        });
        let sources = || own.iter().filter(|e| e.from < to).filter_map(|e| nodes.get(e.from));
        let constant = || sources().filter(|s| s.role.is_constant()).find_map(|s| s.layer);
        let ran = node.order.is_some();
        let near = || before.filter(|_| ran).or_else(|| sources().filter_map(|s| s.layer).max());
        let layer = named.or_else(constant).or_else(|| if nameless { near() } else { None });
        if ran {
            before = layer;
        }
        if let Some(node) = nodes.get_mut(to) {
            node.layer = layer;
        }
    }
    views(nodes, edges);
}

/// A view without a layer belongs to the only layer that uses it.
fn views(nodes: &mut [Node], edges: &[Edge]) {
    for e in edges.iter().rev().filter(|e| e.from < e.to) {
        let (Some(to), Some(from)) = (nodes.get(e.to), nodes.get(e.from)) else { continue };
        let (user, own) = (to.layer, from.layer);
        if from.role == NodeRole::View && own.is_none() && user.is_some() {
            let alone = |o: &Edge| o.from != e.from || nodes.get(o.to).is_none_or(|n| n.layer == user);
            // Users follow closely after their sources: a view's first user created its node.
            let near = edges.partition_point(|o| o.to <= e.from);
            let near = edges.get(near..).unwrap_or_default();
            if near.iter().take(NEAR).all(alone)
                && let Some(from) = nodes.get_mut(e.from)
            {
                from.layer = user;
            }
        }
    }
}
