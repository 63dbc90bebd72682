//! What each backend computes, as tables.

mod batches;
mod fallback;
mod kernels;

use super::section::Section;
use super::table::{Table, number, text};
use super::units::*;
use analysis::sums::offload::{BackendWork, CopyRow, Offload, Work};

/// Most rows of a table.
const ROWS: usize = 12;

/// The tables of one phase. Figures are per scheduler graph.
pub(crate) fn sections(work: &Offload, phase: &str) -> Vec<Section> {
    let graphs = count(work.graphs, "graph");
    let per = |n: u64| n as f64 / work.graphs.max(1) as f64;
    let mut t = Table::new(columns("backend"));
    for b in &work.backends {
        let splits = format!("{:.1}", per(b.splits));
        let unknown = match b.unknown_splits {
            0 => String::new(),
            n => format!(" ({n} of {} splits not described)", b.splits),
        };
        let mut cells = row(&b.work, &splits, format!("{}{unknown}", b.backend), per);
        if let Some(nodes) = cells.get_mut(1).filter(|_| b.unknown_splits == b.splits) {
            *nodes = "-".into();
        }
        t.row(cells);
    }
    let title = format!("Work by backend, {phase} (per graph, mean of {graphs}; by the cost model)");
    let mut all = vec![Section { title, table: Some(t), notes: Vec::new() }];
    for b in work.backends.iter().filter(|b| !b.ops.is_empty()) {
        let mut t = Table::new(columns("op"));
        for op in b.ops.iter().take(ROWS) {
            t.row(row(&op.work, "", op.op.clone(), per));
        }
        let title = format!("Nodes on {}, {phase} (per graph; what, not how long)", b.backend);
        all.push(Section { title, table: Some(t), notes: more(b.ops.len()).into_iter().collect() });
        let given = dispatched(b, work.graphs);
        match (enqueued(b, phase, work.graphs), all.last_mut()) {
            (Some(section), _) => all.push(Section { notes: [section.notes, given].concat(), ..section }),
            (None, Some(nodes)) => nodes.notes.extend(given),
            (None, None) => {}
        }
        if let Some(device) = &b.device {
            all.extend(kernels::sections(&b.backend, device, phase, &per));
        }
    }
    all.extend(batches::section(&work.backends, phase, work.graphs));
    all.extend(copies(&work.copies, phase, per));
    all.extend(fallback::sections(work, phase, &per));
    all
}

fn enqueued(b: &BackendWork, phase: &str, graphs: u64) -> Option<Section> {
    if b.enqueued.is_empty() {
        let title =
            format!("Enqueued on {}, {phase}: not seen ({})", b.backend, count(b.unseen_splits, "split"));
        return (b.unseen_splits > 0).then(|| Section { notes: why_unseen(b), ..Section::nothing(title) });
    }
    // A graph may have several splits: the mean is over as many graphs as the splits that were seen make up.
    let seen = b.splits.saturating_sub(b.unseen_splits);
    let per = |n: u64| n as f64 * b.splits as f64 / (graphs as f64 * seen as f64).max(1.0);
    let unseen = match b.unseen_splits {
        0 => String::new(),
        n => format!("; without {n} of {}", count(b.splits, "split")),
    };
    let title = format!("Enqueued on {}, {phase} (per graph; host time, not execution{unseen})", b.backend);
    let mut t = Table::new(vec![
        number("us", 0),
        number("groups", 0),
        number("nodes", 1),
        number("us/group", 2),
        number("kernels", 1),
        text("op"),
    ]);
    for r in b.enqueued.iter().take(ROWS) {
        let each = r.kernels.map(|n| n as f64 / r.counted_groups.max(1) as f64);
        let kernels = each.map(|n| n * per(r.groups));
        t.row(vec![
            us(per(r.host_ns)),
            format!("{:.1}", per(r.groups)),
            format!("{:.1}", per(r.nodes)),
            us(r.host_ns as f64 / r.groups.max(1) as f64),
            or_dash(kernels, |n| format!("{n:.1}")),
            r.ops.clone(),
        ]);
    }
    let notes = more(b.enqueued.len()).into_iter().chain(why_unseen(b)).collect();
    Some(Section { title, table: Some(t), notes })
}

/// How many kernels were given to a backend's device.
fn dispatched(b: &BackendWork, graphs: u64) -> Vec<String> {
    let Some(d) = &b.dispatched else { return Vec::new() };
    let per = |n: u64| n as f64 * b.splits as f64 / (graphs as f64 * d.splits as f64).max(1.0);
    let uncounted = match b.splits.saturating_sub(d.splits) {
        0 => String::new(),
        n => format!(" (not counted in {n} of {})", count(b.splits, "split")),
    };
    let kernels = format!("{:.1} kernels per graph were given to {}{uncounted}", per(d.kernels), b.backend);
    let launched = (d.graphs > 0).then(|| {
        format!(
            "{:.1} graphs of kernels were launched as a whole: how many kernels they have is not known",
            per(d.graphs)
        )
    });
    [kernels].into_iter().chain(launched).collect()
}

/// What may be the reason that no node was seen in some splits, and what shows the nodes.
fn why_unseen(b: &BackendWork) -> Vec<String> {
    if b.unseen_splits == 0 || !b.backend.starts_with("CUDA") {
        return Vec::new();
    }
    // ggml-cuda.cu, ggml_cuda_graph: most decode steps are one cudaGraphLaunch.
    vec![
        "a CUDA graph is launched as a whole, and its nodes are not enqueued one by one;".into(),
        "with GGML_CUDA_DISABLE_GRAPHS=1 the engine enqueues each".into(),
    ]
}

fn columns(last: &'static str) -> Vec<super::table::Column> {
    let mut all = vec![number("nodes", 0), number("MiB", 0), number("MFLOP", 1), text(last)];
    if last == "backend" {
        all.insert(0, number("splits", 0));
    }
    all
}

fn row(work: &Work, splits: &str, name: String, per: impl Fn(u64) -> f64) -> Vec<String> {
    // A sum of nothing known is not zero.
    let known = |text: String| if work.unknown_nodes == work.nodes { "-".into() } else { text };
    let mut cells = vec![
        format!("{:.1}", per(work.nodes)),
        known(format!("{:.3}", per(work.bytes) / (1 << 20) as f64)),
        known(format!("{:.3}", per(work.flops) / 1e6)),
        name,
    ];
    if !splits.is_empty() {
        cells.insert(0, splits.to_owned());
    }
    cells
}

fn copies(rows: &[CopyRow], phase: &str, per: impl Fn(u64) -> f64) -> Option<Section> {
    let mut t = Table::new(vec![number("copies", 0), number("KiB", 0), text("to"), text("tensor")]);
    for r in rows.iter().take(ROWS) {
        let bytes = or_dash(r.bytes, |n| format!("{:.2}", per(n) / 1024.0));
        t.row(vec![format!("{:.1}", per(r.copies)), bytes, r.to.clone(), r.name.clone()]);
    }
    let title = format!("Copied between backends, {phase} (per graph)");
    let notes = more(rows.len()).into_iter().collect();
    (!rows.is_empty()).then_some(Section { title, table: Some(t), notes })
}

/// How many rows are left out.
fn more(rows: usize) -> Option<String> {
    let left = rows.checked_sub(ROWS).filter(|n| *n > 0)?;
    Some(format!("and {} (--json)", count(left as u64, "more row")))
}
