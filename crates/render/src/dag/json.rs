//! Writes the graph of an engine as JSON, with a node or an edge a line.

use std::io::{self, Write};

use analysis::questions::dag::{Dag, METRICS, Metric, Node};
use common::plain::Json;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// Writes the graph.
pub(super) fn write(out: &mut dyn Write, dag: &Dag, metric: Metric) -> io::Result<()> {
    let blocks: Vec<&[u32]> = dag.blocks.iter().map(|b| &b.layers[..]).collect();
    member(out, "{", "schema", &2)?;
    member(out, ",", "pid", &dag.pid)?;
    member(out, ",", "phase", dag.phase.name())?;
    member(out, ",\n", "batch", &dag.token)?;
    member(out, ",", "graphs", &dag.graphs)?;
    member(out, ",\n", "metric", METRICS[metric as usize].key)?;
    member(out, ",\n", "notes", &dag.notes)?;
    member(out, ",\n", "blocks", &blocks)?;
    let missing = |m: Metric, needs| if dag.has(m) { None } else { Some(needs) };
    lines(
        out,
        "metrics",
        METRICS.iter().map(|m| Facts { key: m.key, what: m.what, missing: missing(m.metric, m.needs) }),
    )?;
    lines(out, "nodes", dag.nodes.iter().enumerate().map(|(id, node)| Numbered { id, node }))?;
    lines(out, "edges", &dag.edges)?;
    writeln!(out, "}}")
}

/// Writes a member of an object, after a brace or a comma.
pub(super) fn member(
    out: &mut dyn Write,
    before: &str,
    key: &str,
    value: &(impl Serialize + ?Sized),
) -> io::Result<()> {
    write!(out, "{before}\"{key}\":")?;
    Ok(serde_json::to_writer(Json(out), value)?)
}

/// Writes a further member of an object: a list, an item a line.
pub(super) fn lines<T: Serialize>(
    out: &mut dyn Write,
    key: &str,
    of: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    write!(out, ",\n\"{key}\":[")?;
    for (i, item) in of.into_iter().enumerate() {
        out.write_all(if i > 0 { b",\n" } else { b"\n" })?;
        serde_json::to_writer(Json(out), &item)?;
    }
    out.write_all(b"\n]")
}

#[derive(Serialize)]
struct Facts {
    key: &'static str,
    what: &'static str,
    /// What records it.
    missing: Option<&'static str>,
}

struct Numbered<'a> {
    id: usize,
    node: &'a Node,
}

impl Serialize for Numbered<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("role", self.node.role.name())?;
        map.serialize_entry("order", &self.node.order)?;
        map.serialize_entry("layer", &self.node.layer)?;
        map.serialize_entry("block", &self.node.block)?;
        if let Some(backend) = &self.node.backend {
            map.serialize_entry("backend", backend)?;
        }
        map.serialize_entry("tensors", &self.node.tensors)?;
        for (m, figure) in METRICS.iter().zip(&self.node.figures) {
            map.serialize_entry(m.key, figure)?;
        }
        map.serialize_entry("time_share", &self.node.time_share)?;
        map.end()
    }
}
