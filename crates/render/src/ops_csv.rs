//! All op slices as comma-separated values (RFC 4180), one row each, written as they are read from the trace.

use std::collections::HashMap;
use std::fmt::{Display, Write as _};
use std::io::{self, Write};

use analysis::recorded::calls::{CallSource, Timeline};
use analysis::recorded::idents::Idents;
use analysis::recorded::load::Loaded;
use analysis::recorded::runs::Runs;
use analysis::streams::lanes::{Select, process_of};
use analysis::sums::op_cpus::CpuChanges;
use analysis::sums::ops::Edges;
use pfi::record::{Entry, Slices};
use pfi::slice_iter;

use crate::table::{clean, csv_text};
use crate::timeline::ArgValue;
use crate::timeline::labels::Labels;

/// The columns. A cell is empty if its value is not known. Times are those of timelines: CLOCK_BOOTTIME, ns.
pub const COLUMNS: [&str; 18] = [
    "pid",     // The number of the context, if the process has several.
    "context", // The engine's function.
    "call", "phase", // The number of the call, as in `report --by token` and for --tokens.
    "token", // The number of the CPU graph.
    "graph", "layer", "op", "name",
    // The index in GGML's pool, 0 is the thread that computes the graph; then the kernel's number.
    "thread", "tid", // On which it started.
    "cpu", "start_ns", "end_ns",  // At the barrier after the op.
    "wait_ns", // By the cost model.
    "bytes", "flops", // Type and dimensions of the result and of the sources.
    "types",
];

/// Bytes buffered before they are written.
const FULL: usize = 64 << 10;

/// What a row is made of.
pub struct OpsTable<'l, 'a> {
    pub loaded: &'l Loaded<'a>,
    pub line: &'l Timeline,
    pub idents: &'l Idents,
    pub labels: &'l Labels,
    pub runs: &'l Runs,
    pub select: Select,
}

impl OpsTable<'_, '_> {
    /// Writes the heading and all rows: by graph, thread and position. Returns the number of rows. Needs the runs in
    /// the order of [`analysis::sums::ops::sort_runs`].
    ///
    /// # Errors
    /// Write errors.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<u64> {
        let l = self.loaded;
        let graphs: HashMap<u64, usize> = l.cpu_graphs.iter().zip(0..).map(|(g, i)| (g.seq, i)).collect();
        let offset = l.header.as_ref().map_or(0, |h| h.boot_ns.wrapping_sub(h.mono_ns).cast_signed());
        // The cells that are the same in all rows of an op: before its thread, and after its times.
        let ops: Vec<[String; 2]> = (0..self.labels.ops.len()).map(|op| self.cells(op)).collect();
        let unknown = [",,".to_string(), ",,".to_string()];
        let mut buf = COLUMNS.join(",");
        buf.push_str("\r\n");
        let mut rows = 0;
        let cpus = CpuChanges::new(&l.causes.cpus);
        for (i, run) in l.runs.iter().enumerate() {
            let at = graphs.get(&run.graph).copied();
            let graph = at.and_then(|at| l.cpu_graphs.get(at));
            let pid = graph.map(|g| g.pid).or_else(|| process_of(l, run));
            if self.select.pid.is_some_and(|only| pid != Some(only)) {
                continue;
            }
            let head = self.head(run, at, pid);
            let next = l.runs.get(i + 1).filter(|n| (n.graph, n.plan) == (run.graph, run.plan));
            let edges = Edges::new(run, next, graph);
            let positions = self.idents.of_plan(run.plan);
            let mut cpu = cpus.cursor(run.tid, run.t);
            for (position, slice) in (run.first as usize..).zip(slice_iter(run)) {
                if !(self.select.from..self.select.to).contains(&slice.start) {
                    continue;
                }
                let [op, tail] = positions.get(position).and_then(|op| ops.get(*op)).unwrap_or(&unknown);
                let (time, wait) = edges.times(&slice);
                let start = slice.start.saturating_add(offset);
                let _ = write!(buf, "{head},{op},{},{},", run.ith, run.tid);
                push(&mut buf, cpu.at(slice.start));
                let _ = write!(buf, ",{start},");
                push(&mut buf, time.map(|time| start.saturating_add_unsigned(time)));
                buf.push(',');
                push(&mut buf, wait);
                let _ = write!(buf, ",{tail}\r\n");
                rows += 1;
                if buf.len() >= FULL {
                    out.write_all(buf.as_bytes())?;
                    buf.clear();
                }
            }
        }
        out.write_all(buf.as_bytes())?;
        Ok(rows)
    }

    /// The cells from the process to the graph.
    fn head(&self, run: &Slices<'_>, graph: Option<usize>, pid: Option<u32>) -> String {
        let context =
            graph.and_then(|g| self.runs.list.get(*self.runs.of_cpu.get(g)?)).and_then(|r| r.context);
        let call = graph.and_then(|g| self.line.calls.get((*self.line.cpu_call.get(g)?)?));
        let phase = graph.and_then(|g| self.line.cpu_phase.get(g)).map_or("", |p| p.name());
        let entry = call.filter(|_| self.line.source == CallSource::Token).and_then(|c| c.entry);
        let mut out = String::new();
        push(&mut out, pid);
        out.push(',');
        push(&mut out, context);
        let _ = write!(out, ",{},", entry.map_or("", function));
        out.push_str(if phase == "unknown" { "" } else { phase });
        out.push(',');
        push(&mut out, call.map(|c| c.seq));
        let _ = write!(out, ",{}", run.graph);
        out
    }

    fn cells(&self, at: usize) -> [String; 2] {
        let op = self.labels.ops.get(at);
        let cell = |name: &str| match op.and_then(|op| op.value(name)) {
            Some(ArgValue::Text(text)) => csv_text(&clean(text)),
            Some(ArgValue::Count(n)) => n.to_string(),
            _ => String::new(),
        };
        let row = |names: [&str; 3]| names.map(cell).join(",");
        [row(["layer", "op", "tensor"]), row(["bytes", "flops", "types"])]
    }
}

fn push(out: &mut String, value: Option<impl Display>) {
    if let Some(value) = value {
        let _ = write!(out, "{value}");
    }
}

/// The function of llama.h that a call entered.
fn function(entry: Entry) -> &'static str {
    match entry {
        Entry::Process => "llama_process",
        Entry::Decode => "llama_decode",
        Entry::Encode => "llama_encode",
    }
}
