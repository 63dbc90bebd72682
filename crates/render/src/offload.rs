//! What each backend computes, as text.

mod batches;
mod kernels;

use std::io::{self, Write};

use super::section::title;
use super::table::{Style, Table, number, text};
use super::units::*;
use analysis::offload::{BackendWork, CopyRow, CpuNodes, Offload, Work};

/// Most rows of a table.
const ROWS: usize = 12;

/// Writes the tables of one phase. Figures are per scheduler graph.
///
/// # Errors
/// The output cannot be written.
pub fn write(out: &mut dyn Write, work: &Offload, phase: &str, style: &Style) -> io::Result<()> {
    let graphs = count(work.graphs, "graph");
    title(out, style, &format!("Work by backend, {phase} (per graph, mean of {graphs}; by the cost model)"))?;
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
    write!(out, "{}", t.render(style))?;
    for b in work.backends.iter().filter(|b| !b.ops.is_empty()) {
        title(out, style, &format!("Nodes on {}, {phase} (per graph; what, not how long)", b.backend))?;
        let mut t = Table::new(columns("op"));
        for op in b.ops.iter().take(ROWS) {
            t.row(row(&op.work, "", op.op.clone(), per));
        }
        write!(out, "{}", t.render(style))?;
        more(out, b.ops.len(), style)?;
        enqueued(out, b, phase, work.graphs, style)?;
        dispatched(out, b, work.graphs)?;
        if let Some(device) = &b.device {
            kernels::write(out, &b.backend, device, phase, &per, style)?;
        }
    }
    batches::write(out, &work.backends, phase, work.graphs, style)?;
    copies(out, &work.copies, phase, per, style)?;
    on_cpu(out, &work.on_cpu, phase, per, style)
}

fn enqueued(out: &mut dyn Write, b: &BackendWork, phase: &str, graphs: u64, style: &Style) -> io::Result<()> {
    match b.unseen_splits {
        0 if b.enqueued.is_empty() => return Ok(()),
        n if b.enqueued.is_empty() => {
            let what = format!("Enqueued on {}, {phase}: not seen ({})", b.backend, count(n, "split"));
            title(out, style, &what)?;
            return why_unseen(out, b, style);
        }
        _ => {}
    }
    // A graph may have several splits: the mean is over as many graphs as the splits that were seen make up.
    let seen = b.splits.saturating_sub(b.unseen_splits);
    let per = |n: u64| n as f64 * b.splits as f64 / (graphs as f64 * seen as f64).max(1.0);
    let unseen = match b.unseen_splits {
        0 => String::new(),
        n => format!("; without {n} of {}", count(b.splits, "split")),
    };
    let what = format!("Enqueued on {}, {phase} (per graph; host time, not execution{unseen})", b.backend);
    title(out, style, &what)?;
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
            kernels.map_or("-".into(), |n| format!("{n:.1}")),
            r.ops.clone(),
        ]);
    }
    write!(out, "{}", t.render(style))?;
    more(out, b.enqueued.len(), style)?;
    why_unseen(out, b, style)
}

/// How many kernels were given to a backend's device.
fn dispatched(out: &mut dyn Write, b: &BackendWork, graphs: u64) -> io::Result<()> {
    let Some(d) = &b.dispatched else { return Ok(()) };
    let per = |n: u64| n as f64 * b.splits as f64 / (graphs as f64 * d.splits as f64).max(1.0);
    let launched = match d.graphs {
        0 => String::new(),
        n => format!(
            ", and {:.1} graphs of kernels were launched as a whole: how many kernels they have is not known",
            per(n)
        ),
    };
    let uncounted = match b.splits.saturating_sub(d.splits) {
        0 => String::new(),
        n => format!(" (not counted in {n} of {})", count(b.splits, "split")),
    };
    writeln!(
        out,
        "  {:.1} kernels per graph were given to {}{launched}{uncounted}",
        per(d.kernels),
        b.backend
    )
}

/// What may be the reason that no node was seen in some splits, and what shows the nodes.
fn why_unseen(out: &mut dyn Write, b: &BackendWork, style: &Style) -> io::Result<()> {
    if b.unseen_splits == 0 || !b.backend.starts_with("CUDA") {
        return Ok(());
    }
    // ggml-cuda.cu, ggml_cuda_graph: most decode steps are one cudaGraphLaunch.
    let why = "a CUDA graph is launched as a whole, and its nodes are not enqueued one by one;\n  \
               with GGML_CUDA_DISABLE_GRAPHS=1 the engine enqueues each";
    writeln!(out, "{}", style.dim(&format!("  {why}")))
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

fn copies(
    out: &mut dyn Write,
    rows: &[CopyRow],
    phase: &str,
    per: impl Fn(u64) -> f64,
    style: &Style,
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    title(out, style, &format!("Copied between backends, {phase} (per graph)"))?;
    let mut t = Table::new(vec![number("copies", 0), number("KiB", 0), text("to"), text("tensor")]);
    for r in rows.iter().take(ROWS) {
        let bytes = or_dash(r.bytes, |n| format!("{:.2}", per(n) / 1024.0));
        t.row(vec![format!("{:.1}", per(r.copies)), bytes, r.to.clone(), r.name.clone()]);
    }
    write!(out, "{}", t.render(style))?;
    more(out, rows.len(), style)
}

fn on_cpu(
    out: &mut dyn Write,
    rows: &[CpuNodes],
    phase: &str,
    per: impl Fn(u64) -> f64,
    style: &Style,
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    title(out, style, &format!("Left to the CPU, {phase} (per graph)"))?;
    let mut t = Table::new(vec![number("nodes", 0), text("op"), text("of"), text("such as"), text("why")]);
    for r in rows.iter().take(ROWS) {
        let why = match r.also_on.is_empty() {
            true => "no other backend computes it in this recording".to_owned(),
            false => format!("its data: {} computes the same op elsewhere", r.also_on.join(", ")),
        };
        t.row(vec![format!("{:.1}", per(r.nodes)), r.op.clone(), r.ty.clone(), r.name.clone(), why]);
    }
    write!(out, "{}", t.render(style))?;
    more(out, rows.len(), style)
}

fn more(out: &mut dyn Write, rows: usize, style: &Style) -> io::Result<()> {
    match rows.saturating_sub(ROWS) {
        0 => Ok(()),
        n => writeln!(out, "{}", style.dim(&format!("  and {} (--json)", count(n as u64, "more row")))),
    }
}
