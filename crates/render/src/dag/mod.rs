//! Writes the graph of an engine as DOT, GraphML or JSON; [`svg`] draws it. Names come from a target and are
//! escaped for each format.

pub mod colour;
pub mod compare;
mod json;
pub mod layout;
pub mod svg;

use std::io::{self, Write};

use self::colour::Scale;
use super::table::clean;
use super::units;
use analysis::questions::dag::fold::ranges;
use analysis::questions::dag::{Dag, METRICS, Metric, Node, NodeRole, NodeTensor, Spread};
use common::plain::dot_string;

/// Fill of a copy between backends.
pub(crate) const COPY: &str = "#fde9c8";

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphFormat {
    Dot,
    Graphml,
    Json,
    Svg,
}

/// Writes the graph; `metric` colours it.
pub fn write(out: &mut dyn Write, dag: &Dag, metric: Metric, format: GraphFormat) -> io::Result<()> {
    match format {
        GraphFormat::Dot => dot(out, dag, metric),
        GraphFormat::Graphml => graphml(out, dag),
        GraphFormat::Json => json::write(out, dag, metric),
        GraphFormat::Svg => svg::write(out, dag, metric),
    }
}

/// A one-line description of the graph.
pub fn title(dag: &Dag) -> String {
    let what = match dag.token {
        Some(seq) => format!("batch {seq} ({})", dag.phase.name()),
        None => dag.phase.name().to_owned(),
    };
    format!("process {}, {what}: {} with the same structure", dag.pid, units::count(dag.graphs, "graph"))
}

/// What the colours mean, or that there is nothing to colour by.
pub fn legend(dag: &Dag, metric: Metric, scale: Option<&Scale>) -> String {
    let facts = &METRICS[metric as usize];
    match scale {
        Some(s) => {
            let log = if s.log { ", logarithmic" } else { "" };
            let counter = dag.counter.as_ref().filter(|_| metric == Metric::Counted);
            let by = counter.map_or_else(String::new, |c| format!(" (counter {c})"));
            format!(
                "{}: {}{by}, {} to {}{log}",
                facts.name,
                facts.what,
                value(metric, s.low),
                value(metric, s.high)
            )
        }
        None => format!("{} is not available: {}", facts.name, facts.needs),
    }
}

/// A value with its unit.
pub fn value(metric: Metric, v: f64) -> String {
    match metric {
        Metric::Median | Metric::Time => units::time(v),
        Metric::Gbps => format!("{v:.2} GB/s"),
        Metric::Bytes | Metric::Counted => units::bytes(v),
        Metric::Flops => format!("{} FLOP", units::decimal(v)),
        Metric::Stall => format!("{} % stalled", units::pct(v)),
        Metric::Faults => format!("{v:.1} faults"),
        Metric::Imbalance => format!("{v:.2} imbalance"),
        Metric::Spread => format!("p95 {v:.2} times the median"),
    }
}

/// A node's value; for folded layers with minimum and maximum.
pub fn spread(metric: Metric, s: &Spread) -> String {
    match s.min == s.max {
        true => value(metric, s.median),
        false => {
            format!("{} ({} to {})", value(metric, s.median), value(metric, s.min), value(metric, s.max))
        }
    }
}

/// Type and dimensions in GGML order, without trailing ones: `f32 [64, 8]`.
pub fn shape(t: &NodeTensor) -> String {
    let n = t.ne.iter().rposition(|n| *n != 1).map_or(1, |i| i + 1);
    let dims: Vec<String> = t.ne.iter().take(n).map(u64::to_string).collect();
    format!("{} [{}]", t.ty, dims.join(", "))
}

/// The lines that describe a node.
pub fn lines(node: &Node, metric: Metric) -> Vec<String> {
    let mut lines = Vec::new();
    match (node.role.is_constant(), node.order) {
        (true, _) => {}
        (false, Some(order)) => lines.push(format!("{order}  {}", node.op())),
        (false, None) if node.role == NodeRole::Copy => lines.push("copy".into()),
        (false, None) => lines.push(node.op()),
    }
    lines.extend(node.tensors.iter().filter(|t| !t.name.is_empty()).map(|t| t.name.clone()));
    if node.role != NodeRole::Unknown {
        lines.extend(node.result().map(shape));
    }
    let place = if node.role == NodeRole::Copy { "to" } else { "on" };
    lines.extend(node.backend.as_ref().map(|b| format!("{place} {b}")));
    // The value is the last line: a drawing replaces it.
    lines.extend(node.figures[metric as usize].map(|s| spread(metric, &s)));
    lines.retain(|l| !l.is_empty());
    lines.iter().map(|l| clean(l)).collect()
}

/// The title of a block of folded layers, with what computes them if several backends take part.
pub fn block_title(dag: &Dag, block: usize) -> String {
    let title = match dag.blocks.get(block).map_or(&[][..], |b| &b.layers) {
        [one] => format!("layer {one}"),
        all => format!("layers {} ({} identical)", ranges(all), all.len()),
    };
    let inside = dag.nodes.iter().filter(|n| n.block == Some(block) && n.role == NodeRole::Op);
    let mut places: Vec<String> = inside.filter_map(|n| n.backend.clone()).collect();
    common::order::by(&mut places, Ord::cmp);
    places.dedup();
    if places.is_empty() { title } else { format!("{title} on {}", clean(&places.join(" and "))) }
}

fn dot(out: &mut dyn Write, dag: &Dag, metric: Metric) -> io::Result<()> {
    let scale = Scale::of(dag, metric);
    let head = [title(dag), legend(dag, metric, scale.as_ref())];
    let head: Vec<String> = head.iter().chain(&dag.notes).map(|l| clean(l)).collect();
    writeln!(out, "digraph {} {{", dot_string(&clean(&title(dag)), ""))?;
    writeln!(out, "  label={};", dot_string(&head.join("\n"), "\\l"))?;
    writeln!(out, "  labelloc=t; labeljust=l; rankdir=TB; fontname=\"monospace\";")?;
    writeln!(
        out,
        "  node [shape=box, style=filled, fillcolor=\"#ffffff\", fontname=\"monospace\", fontsize=10];"
    )?;
    let node = |out: &mut dyn Write, i: usize, n: &Node| {
        let label = dot_string(&lines(n, metric).join("\n"), "\\n");
        write!(out, "  n{i} [label={label}")?;
        match (n.role, n.figures[metric as usize].zip(scale.as_ref())) {
            (_, Some((s, scale))) => {
                let colour = scale.colour(s.median);
                write!(out, ", fillcolor=\"{colour}\", fontcolor=\"{}\"", colour.ink())?;
            }
            (NodeRole::Op, None) => write!(out, ", style=\"filled,diagonals\", fillcolor=\"#dddddd\"")?,
            (NodeRole::View, None) => write!(out, ", shape=plaintext, fillcolor=\"#eeeeee\"")?,
            (NodeRole::Copy, None) => write!(out, ", style=\"filled,bold\", fillcolor=\"{COPY}\"")?,
            (NodeRole::Elsewhere | NodeRole::Unknown, None) => write!(out, ", style=dashed")?,
            (_, None) => write!(out, ", shape=ellipse, fillcolor=\"#e3edf7\"")?,
        }
        writeln!(out, "];")
    };
    for (i, n) in dag.nodes.iter().enumerate().filter(|(_, n)| n.block.is_none()) {
        node(out, i, n)?;
    }
    let mut inside: Vec<Vec<usize>> = vec![Vec::new(); dag.blocks.len()];
    for (i, n) in dag.nodes.iter().enumerate() {
        if let Some(list) = n.block.and_then(|b| inside.get_mut(b)) {
            list.push(i);
        }
    }
    for (b, inside) in inside.iter().enumerate() {
        writeln!(out, "  subgraph cluster_{b} {{\n  label={};", dot_string(&block_title(dag, b), ""))?;
        for i in inside {
            node(out, *i, &dag.nodes[*i])?;
        }
        writeln!(out, "  }}")?;
    }
    for e in dag.edges.iter().filter(|e| e.from != e.to || e.back) {
        let how = match dag.nodes.get(e.to).map(|n| n.role) {
            _ if e.back => " [style=dashed, constraint=false]",
            Some(NodeRole::Copy) => " [style=bold]",
            _ => "",
        };
        writeln!(out, "  n{} -> n{}{how};", e.from, e.to)?;
    }
    writeln!(out, "}}")
}

/// Text escaped for XML, without the control characters that XML does not allow.
pub fn xml(text: &str) -> String {
    let mut out = String::new();
    for c in clean(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Keys of the nodes' text attributes in GraphML.
const TEXTS: [&str; 8] = ["role", "op", "name", "type", "dims", "layers", "order", "backend"];

fn texts(dag: &Dag, n: &Node) -> [String; 8] {
    let layers = match n.block.and_then(|b| dag.blocks.get(b)) {
        Some(block) => ranges(&block.layers),
        None => n.layer.map_or_else(String::new, |l| l.to_string()),
    };
    let names: Vec<&str> = n.tensors.iter().map(|t| t.name.as_str()).collect();
    let dims = n.result().map_or_else(String::new, |t| t.ne.map(|n| n.to_string()).join(" "));
    let ty = n.result().map_or_else(String::new, |t| t.ty.clone());
    let order = n.order.map_or_else(String::new, |o| o.to_string());
    let backend = n.backend.clone().unwrap_or_default();
    [n.role.name().into(), n.op(), names.join(" | "), ty, dims, layers, order, backend]
}

fn graphml(out: &mut dyn Write, dag: &Dag) -> io::Result<()> {
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(out, "<graphml xmlns=\"http://graphml.graphdrawing.org/xmlns\">")?;
    writeln!(out, "<desc>{}</desc>", xml(&title(dag)))?;
    let several = dag.nodes.iter().any(|n| n.backend.is_some());
    for key in TEXTS.iter().filter(|key| several || **key != "backend") {
        writeln!(out, "<key id=\"{key}\" for=\"node\" attr.name=\"{key}\" attr.type=\"string\"/>")?;
    }
    let ends = ["min", "median", "max"];
    for (facts, end) in METRICS.iter().flat_map(|m| ends.map(|e| (m, e))) {
        let key = format!("{}_{end}", facts.key);
        writeln!(out, "<key id=\"{key}\" for=\"node\" attr.name=\"{key}\" attr.type=\"double\"/>")?;
    }
    for (key, ty) in [("tensor", "int"), ("slot", "int"), ("back", "boolean")] {
        writeln!(out, "<key id=\"{key}\" for=\"edge\" attr.name=\"{key}\" attr.type=\"{ty}\"/>")?;
    }
    writeln!(out, "<graph edgedefault=\"directed\">")?;
    for (i, n) in dag.nodes.iter().enumerate() {
        write!(out, "<node id=\"n{i}\">")?;
        for (key, text) in TEXTS.iter().zip(texts(dag, n)).filter(|(_, t)| !t.is_empty()) {
            write!(out, "<data key=\"{key}\">{}</data>", xml(&text))?;
        }
        for (facts, s) in METRICS.iter().zip(n.figures).filter_map(|(m, s)| Some((m, s?))) {
            for (end, v) in ends.iter().zip([s.min, s.median, s.max]) {
                write!(out, "<data key=\"{}_{end}\">{v}</data>", facts.key)?;
            }
        }
        writeln!(out, "</node>")?;
    }
    for e in &dag.edges {
        write!(out, "<edge source=\"n{}\" target=\"n{}\">", e.from, e.to)?;
        for (key, v) in [("tensor", e.tensor), ("slot", e.slot)] {
            write!(out, "<data key=\"{key}\">{v}</data>")?;
        }
        writeln!(out, "<data key=\"back\">{}</data></edge>", e.back)?;
    }
    writeln!(out, "</graph>\n</graphml>")
}
