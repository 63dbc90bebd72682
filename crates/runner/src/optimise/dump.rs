//! A graph as DOT, with its nodes labelled like those of `profinfer dag`.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::abi::GgmlTensor;
use common::plain::{clean, dot_string};

/// Which graph to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// As it was built.
    Before,
    /// As it runs.
    After,
}

/// The nodes as DOT, numbered by their place in the list. `fused` tells for an index whether that node and the next
/// run as one.
///
/// # Safety
/// The nodes' sources must be live tensors.
pub unsafe fn dot(title: &str, nodes: &[&GgmlTensor], fused: impl Fn(usize) -> bool) -> String {
    let mut out = format!("digraph {} {{\n", quoted(title));
    out.push_str("  labelloc=t; labeljust=l; rankdir=TB; fontname=\"monospace\";\n");
    out.push_str(
        "  node [shape=box, style=filled, fillcolor=\"#ffffff\", fontname=\"monospace\", fontsize=10];\n",
    );
    // What is drawn as which box: two nodes may be one.
    let mut boxes: HashMap<*const GgmlTensor, usize> = HashMap::new();
    let mut i = 0;
    while let Some(node) = nodes.get(i) {
        let both = if fused(i) { nodes.get(i + 1) } else { None };
        let parts: Vec<&GgmlTensor> = [Some(node), both].into_iter().flatten().copied().collect();
        let look = if node.is_nop() { ", shape=plaintext, fillcolor=\"#eeeeee\"" } else { "" };
        let _ = writeln!(out, "  n{i} [label={}{look}];", quoted(&label(i, &parts)));
        boxes.extend(parts.iter().map(|p| (&raw const **p, i)));
        i += parts.len();
    }
    let mut edges = String::new();
    for node in nodes {
        let to = boxes.get(&(&raw const **node)).copied().unwrap_or(0);
        // SAFETY: guaranteed by the caller.
        for source in (0..node.src.len()).filter_map(|s| unsafe { node.source(s) }) {
            let new = nodes.len() + boxes.len();
            let from = *boxes.entry(&raw const *source).or_insert(new);
            if from == new {
                let text = format!("{}\n{}", source.name(), shape(source));
                let _ = writeln!(
                    out,
                    "  n{from} [label={}, shape=ellipse, fillcolor=\"#e3edf7\"];",
                    quoted(&text)
                );
            }
            if from != to {
                let _ = writeln!(edges, "  n{from} -> n{to};");
            }
        }
    }
    out + &edges + "}\n"
}

/// Place and op, the names, and the shape of the result.
fn label(place: usize, parts: &[&GgmlTensor]) -> String {
    let ops: Vec<&str> = parts.iter().map(|p| op(p)).collect();
    let mut lines = vec![format!("{place}  {}", ops.join("+"))];
    lines.extend(parts.iter().map(|p| p.name().to_owned()).filter(|n| !n.is_empty()));
    lines.extend(parts.last().map(|p| shape(p)));
    lines.join("\n")
}

/// The op; of UNARY and GLU the function.
fn op(node: &GgmlTensor) -> &'static str {
    let (unary, glu) = (node.unary().map(|f| f.name()), node.glu().map(|f| f.name()));
    unary.or(glu).unwrap_or_else(|| node.op.name())
}

/// Type and dimensions in GGML order, without trailing ones: `f32 [64, 8]`.
fn shape(t: &GgmlTensor) -> String {
    let n = t.ne.iter().rposition(|n| *n != 1).map_or(1, |i| i + 1);
    let dims: Vec<String> = t.ne.iter().take(n).map(i64::to_string).collect();
    format!("{} [{}]", t.ty.traits().type_name.as_str(), dims.join(", "))
}

/// A string of DOT; names of weights come from a file.
fn quoted(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(clean).collect();
    dot_string(&lines.join("\n"), "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::made::Made;
    use super::*;
    use crate::abi::Op;

    #[test]
    fn boxes_are_ops_and_arrows_their_sources() {
        const NE: [i64; 4] = [16, 2, 1, 1];
        let mut g = Made::new();
        let (x, w) = (g.leaf(NE), g.weight([16, 1, 1, 1]));
        g.change(w, |t| t.set_name("a \"weight\""));
        let norm = g.named(Op::RMS_NORM, NE, &[x], "norm-0");
        let mul = g.named(Op::MUL, NE, &[norm, w], "attn_norm-0");
        let view = g.view(Op::RESHAPE, [32, 1, 1, 1], mul, 0);
        let nodes = [norm, mul, view].map(|t| g.of(t));
        // SAFETY: the sources are tensors of the graph.
        let text = unsafe { dot("a graph", &nodes, |i| i == 0) };
        let body: Vec<&str> = text.lines().skip(3).collect();
        let leaf = "shape=ellipse, fillcolor=\"#e3edf7\"];";
        let expected = [
            "  n0 [label=\"0  RMS_NORM+MUL\\nnorm-0\\nattn_norm-0\\nf32 [16, 2]\"];".to_owned(),
            "  n2 [label=\"2  RESHAPE\\nt3\\nf32 [32]\", shape=plaintext, fillcolor=\"#eeeeee\"];".to_owned(),
            format!("  n6 [label=\"t0\\nf32 [16, 2]\", {leaf}"),
            format!("  n7 [label=\"a \\\"weight\\\"\\nf32 [16]\", {leaf}"),
            "  n6 -> n0;".to_owned(),
            "  n7 -> n0;".to_owned(),
            "  n0 -> n2;".to_owned(),
            "}".to_owned(),
        ];
        assert_eq!(body, expected);
        // SAFETY: as above.
        let text = unsafe { dot("a graph", &nodes, |_| false) };
        assert!(text.contains("n0 -> n1;") && text.contains("0  RMS_NORM\\nnorm-0\\nf32"), "{text}");
    }
}
