//! Formats the report as text for a terminal or a pipe.

use std::io::{self, Write};

use super::attribution;
use super::counters;
use super::cpus;
use super::energy;
use super::experts;
use super::levels;
use super::offload;
use super::quality;
use super::runs;
use super::section::{SectionItem, fact, lines, said, title};
use super::sequences;
use super::submissions;
use super::table::{Style, Table, number, text};
use super::units::*;
use analysis::questions::report::{By, OpTime, PhaseReport, Report};
use analysis::recorded::calls::{CallSource, Latency, Phase, RunWork};
use analysis::recorded::clusters::Cluster;
use analysis::sums::tables::{OpRow, SplitRow, ThreadRow, TokenRow};

/// [`all`] with every figure of the recording quality.
pub fn write(out: &mut dyn Write, report: &Report, style: &Style) -> io::Result<()> {
    all(out, report, true, style)
}

/// Writes all sections, or with one table selected that table. `verbose` includes all figures of the recording
/// quality, which otherwise is a line unless something is wrong.
pub fn all(out: &mut dyn Write, report: &Report, verbose: bool, style: &Style) -> io::Result<()> {
    if report.tables.len() == 1 {
        quality::warning(out, &report.quality, style)?;
        if report.runs.len() > 1 {
            lines(out, &runs::lines(&report.runs), style)?;
        }
        return sections(out, report, style);
    }
    writeln!(out, "{}", style.heading("Run"))?;
    lines(out, &run(report), style)?;
    quality::left_out(out, &report.quality, style)?;
    let several = report.runs.len() > 1;
    if several {
        title(out, style, "Processes and contexts")?;
    }
    lines(out, &runs::lines(&report.runs), style)?;
    title(out, style, "Model (from its tensors)")?;
    lines(out, &model(report), style)?;
    title(out, style, if report.work == RunWork::Graphs { "Runs" } else { "Prefill and decode" })?;
    lines(out, &calls(report), style)?;
    sections(out, report, style)?;
    if verbose || !report.quality.complete {
        return quality::write(out, &report.quality, style);
    }
    quality::line(out, &report.quality, style)
}

/// Writes the tables.
fn sections(out: &mut dyn Write, report: &Report, style: &Style) -> io::Result<()> {
    for phase in &report.phases {
        tables(out, report, phase, style)?;
    }
    counters::notes(out, report, style)?;
    if let Some(found) = &report.experts {
        let shown =
            if report.tables == [By::Expert] { report.top.unwrap_or(usize::MAX) } else { experts::BRIEF };
        experts::write(out, found, shown, style)?;
    }
    if let Some(rows) = &report.stages {
        levels::stages(out, rows, style)?;
    }
    if let Some(found) = report.sampling.as_ref().filter(|_| report.stages.is_some()) {
        levels::sampling(out, found, style)?;
    }
    if let Some(found) = report.submissions.as_ref().filter(|_| report.tables.len() > 1) {
        submissions::write(out, found, style)?;
    }
    if let Some(found) = &report.energy {
        energy::write(out, found, style)?;
    }
    if let Some(found) = &report.levels {
        levels::write(out, found, style)?;
    }
    sequences::write(out, report, style)?;
    absent(out, report, style)?;
    if let Some(rows) = &report.interference {
        attribution::interference(out, rows, report.tables == [By::Interference], style)?;
        left_out(out, report.interference_left_out, "row", style)?;
    }
    Ok(())
}

/// Says so if the one requested table has nothing to show.
fn absent(out: &mut dyn Write, report: &Report, style: &Style) -> io::Result<()> {
    let &[by] = report.tables.as_slice() else { return Ok(()) };
    let causes =
        |p: &PhaseReport| p.by_op.iter().flatten().any(|r| r.causes.is_some() || r.verdict.is_some());
    let (name, there, flag) = match by {
        By::Cause => ("Causes", report.phases.iter().any(causes), "--sched"),
        By::Counter => ("Counters", report.counters.is_some(), "--pmc"),
        By::Interference => ("Interference", report.interference.is_some(), "--sched"),
        By::Expert => ("Experts", report.experts.is_some(), "--experts"),
        By::Phase => ("Phases", report.stages.is_some(), "--phases"),
        By::Energy => ("Energy", report.energy.is_some(), "--sensors"),
        By::Level => ("Levels", report.levels.is_some(), "--budget"),
        By::Cpu if report.phases.iter().all(|p| p.by_cpu.is_none()) => {
            return title(out, style, "CPUs: none known (no ops, or recorded by an older profinfer)");
        }
        _ => return Ok(()),
    };
    if there {
        return Ok(());
    }
    title(out, style, &format!("{name}: none recorded (use record {flag})"))
}

/// Recorder, target and machine of the recording.
pub(super) fn run(report: &Report) -> Vec<SectionItem> {
    let run = &report.run;
    let by = match run.source.as_deref() {
        Some("inside") => format!("{}, from inside the process", run.tool),
        Some("perf") => format!("{}, by perf events", run.tool),
        _ => run.tool.clone(),
    };
    let mut out = vec![said("recorded by", by), said("command", &run.command)];
    let machine = [run.host.as_str(), &run.cpu_model, &run.kernel, &run.arch];
    let machine: Vec<&str> = machine.into_iter().filter(|s| !s.is_empty()).collect();
    out.push(said("machine", machine.join(", ")));
    if run.clusters.len() > 1 {
        out.push(said("cores", run.clusters.iter().map(cores).collect::<Vec<_>>().join(", ")));
    }
    if let (Some(level), Some(structure)) = (&run.level, run.structure) {
        let structure = if structure { "with structure" } else { "without structure" };
        out.push(said("level", format!("{level}, {structure}, over {}", time(run.span_ns as f64))));
    }
    for p in &run.processes {
        let cmdline = match (&*p.cmdline, &*p.exe) {
            ("", "") => "(ended before its command line was read)",
            ("", exe) => exe,
            (cmdline, _) => cmdline,
        };
        out.push(said("process", format!("{} {cmdline}", p.pid)));
    }
    let state = super::state::lines(&report.state).into_iter().chain(super::state::used(&report.usage));
    out.extend(state.map(|(label, text)| said(label, text)));
    for e in &run.engines {
        let version = if e.version.is_empty() { "version unknown" } else { &e.version };
        out.push(said("engine", version));
        for m in &e.modules {
            let id = if m.build_id.is_empty() { "no build id" } else { &m.build_id };
            out.push(said("", format!("{}  {}  {id}", m.role, m.path)));
        }
    }
    out
}

/// `4 of capacity 276 up to 1.8 GHz (CPU 0 1 2 3)`.
pub(super) fn cores(c: &Cluster) -> String {
    let capacity = c.capacity.map_or("unknown capacity".to_owned(), |n| format!("capacity {n}"));
    let speed = c.max_khz.map(|khz| format!(" up to {:.1} GHz", khz as f64 / 1e6)).unwrap_or_default();
    let cpus: Vec<String> = c.cpus.iter().map(u32::to_string).collect();
    format!("{} of {capacity}{speed} (CPU {})", cpus.len(), cpus.join(" "))
}

/// Facts of the model.
pub(super) fn model(report: &Report) -> Vec<SectionItem> {
    let m = &report.model;
    let facts = [
        (m.layers.map(u64::from), "layers"),
        (m.embedding, "embedding"),
        (m.feed_forward, "feed-forward"),
        (m.heads, "heads"),
        (m.kv_heads, "KV heads"),
        (m.head_width, "head width"),
        (m.vocabulary, "vocabulary"),
    ];
    let shape: Vec<String> = facts.iter().filter_map(|(v, name)| v.map(|v| format!("{name} {v}"))).collect();
    let mut out = vec![said("shape", shape.join(", "))];
    if let Some(experts) = m.experts {
        let used = or_dash(m.experts_used, |n| n.to_string());
        out.push(said("experts", format!("{experts}, of which {used} used")));
    }
    let weights: Vec<String> = m
        .weights
        .iter()
        .map(|w| match (w.bytes, w.share) {
            (Some(b), Some(share)) => format!("{} {} ({} %)", w.name, bytes(b as f64), pct(share)),
            _ => format!("{} in {}", w.name, count(w.tensors, "tensor")),
        })
        .collect();
    if !weights.is_empty() {
        let sum = format!("{} in {}: ", bytes(m.weight_bytes as f64), count(m.weight_tensors, "tensor"));
        out.push(said("weights", sum + &weights.join(", ")));
    }
    if shape.is_empty() && weights.is_empty() {
        let why = match report.run.structure {
            Some(false) => "not recorded (--no-str)",
            _ => "unknown (no tensor that determines it was recorded)",
        };
        out.push(said("shape", why));
    }
    out
}

/// Calls by phase, and how long they took.
pub(super) fn calls(report: &Report) -> Vec<SectionItem> {
    let mut out = match report.call_source {
        CallSource::Token => Vec::new(),
        CallSource::SchedulerGraph => {
            vec![said("note", "no engine calls were recorded; each scheduler graph counts as a call")]
        }
        CallSource::CpuGraph => {
            vec![said("note", "no engine calls were recorded; each CPU graph counts as a call")]
        }
    };
    if report.phases.is_empty() {
        out.push(said("calls", "none recorded"));
        return out;
    }
    out.push(SectionItem::Table(match report.work {
        RunWork::Graphs => kinds(report),
        RunWork::Tokens | RunWork::Embeddings => phases(report),
    }));
    out.extend(
        report.phases.iter().filter_map(|p| Some(said("runs", format!("{:.2} runs/s", p.runs_per_s?)))),
    );
    let batched = report.phases.iter().any(|p| p.batched);
    if report.ttft.is_none() && report.work == RunWork::Tokens {
        let why = if batched { "prompts cannot be identified in batched calls" } else { NO_PREFILL };
        out.push(said("TTFT", format!("unknown ({why})")));
    }
    if batched {
        out.push(said("note", BATCHED));
    }
    let several = report.requests.iter().filter(|r| r.prefill_calls > 1).count();
    if several > 0 && !batched {
        let of = format!(
            "{several} of {} had several prefill calls",
            count(report.requests.len() as u64, "request")
        );
        out.push(said("note", format!("{of}: parts of one prompt; TTFT includes the time between them")));
    }
    for p in report.phases.iter().filter(|p| p.unseen_calls > 0) {
        let calls = count(p.unseen_calls, &format!("{} call", p.phase.name()));
        let why = report.unseen.as_deref().unwrap_or_default();
        let text =
            format!("{calls} excluded from the figures above: the device's completion was not seen ({why})");
        out.push(said("note", text));
    }
    for p in report.phases.iter().filter(|p| p.device_ns > 0) {
        let share = p.device_ns as f64 * 100.0 / p.in_call_ns.max(1) as f64;
        let text = format!(
            "{}: {share:.0} % of the calls' time was spent waiting for a device after they returned",
            p.phase.name()
        );
        out.push(said("device", text));
    }
    for p in report.phases.iter().filter(|p| p.cut_calls > 0) {
        let cut = count(p.cut_calls, &format!("{} call", p.phase.name()));
        let were = if p.cut_calls == 1 { "was" } else { "were" };
        let text =
            format!("{cut} {were} still running when recording stopped; excluded from the figures above");
        out.push(said("note", text));
    }
    if report.phases.iter().any(|p| p.phase == Phase::Unknown && p.runs_per_s.is_none()) {
        out.push(said("note", "unknown: the batch and the ubatch of these calls could not be read"));
    }
    out
}

/// Calls by phase.
fn phases(report: &Report) -> Table {
    let mut t = Table::new(vec![
        text("phase"),
        number("calls", 0),
        number("tokens", 0),
        number("tok/s", 0),
        number("wall tok/s", 1),
        number("mean ms", 0),
        number("p50 ms", 2),
        number("p95 ms", 3),
        number("p99 ms", 4),
        number("max ms", 1),
        text("per"),
    ]);
    for p in &report.phases {
        // If every call has one token, a call is a token.
        let single = p.tokens == Some(p.calls.saturating_sub(p.cut_calls));
        let decode = p.phase == Phase::Decode;
        t.row(call_row(p, p.latency, if decode && single { "call (TPOT)" } else { "call" }));
        if p.start_to_start.is_some() {
            t.row(call_row(
                p,
                p.start_to_start,
                if single { "start to start (TPOT)" } else { "start to start" },
            ));
        }
        if let (Some(_), false) = (p.tpot, single) {
            t.row(token_row(p.tpot, "token (TPOT)"));
            t.row(token_row(p.tpot_start_to_start, "token, start to start (TPOT)"));
        }
    }
    if let Some(l) = report.ttft {
        let mut cells: Vec<String> = vec!["TTFT".into(), l.n.to_string(), "".into(), "".into(), "".into()];
        cells.extend(latency_cells(Some(l)));
        cells.push("request, prefill start to end".into());
        t.row(cells);
    }
    t
}

/// Graphs by kind.
fn kinds(report: &Report) -> Table {
    let mut t = Table::new(vec![
        text("graphs"),
        number("runs", 0),
        number("% of time", 0),
        number("mean ms", 0),
        number("p50 ms", 2),
        number("p95 ms", 3),
        number("p99 ms", 4),
        number("max ms", 1),
    ]);
    for kind in &report.graph_kinds {
        let mut cells = vec![super::verdict::kind_name(kind), kind.graphs.to_string(), pct(kind.share)];
        cells.extend(latency_cells(kind.latency));
        t.row(cells);
    }
    t
}

const NO_PREFILL: &str = "no request's prefill was recorded completely";
/// What prefill means if a server may have batched several requests.
const BATCHED: &str = "batched: calls of several tokens may be prompts, next tokens of several requests (in a server) or \
                       tokens proposed by a draft model; they cannot be distinguished, and the tables call them prefill";

/// A row of tokens below that of the calls.
fn token_row(l: Option<Latency>, per: &str) -> Vec<String> {
    let mut cells: Vec<String> = vec!["".into(), l.map_or_else(String::new, |l| l.n.to_string())];
    cells.resize(5, String::new());
    cells.extend(latency_cells(l));
    cells.push(per.into());
    cells
}

fn latency_cells(l: Option<Latency>) -> Vec<String> {
    match l {
        Some(l) => {
            let ns = [l.mean_ns, l.p50_ns as f64, l.p95_ns as f64, l.p99_ns as f64, l.max_ns as f64];
            ns.iter().map(|ns| format!("{:.3}", ns / 1e6)).collect()
        }
        None => vec!["-".into(); 5],
    }
}

fn call_row(p: &PhaseReport, l: Option<Latency>, per: &str) -> Vec<String> {
    let wall = per.starts_with("start");
    let mut cells = if wall {
        vec!["".into(), l.map_or_else(String::new, |l| l.n.to_string()), "".into(), "".into()]
    } else {
        vec![
            if p.batched { "batched".into() } else { p.phase.name().to_string() },
            p.calls.to_string(),
            or_dash(p.tokens, |n| n.to_string()),
            or_dash(p.tokens_per_s, |v| format!("{v:.2}")),
        ]
    };
    cells.push(if wall { or_dash(p.tokens_per_s_wall, |v| format!("{v:.2}")) } else { String::new() });
    cells.extend(latency_cells(l));
    cells.push(per.into());
    cells
}

fn tables(out: &mut dyn Write, report: &Report, p: &PhaseReport, style: &Style) -> io::Result<()> {
    let wanted = |by: By| report.tables.contains(&by);
    let name = p.phase.name();
    if let Some(changed) = level_changed(p) {
        title(out, style, &format!("Level, {name}"))?;
        fact(out, style, "changed", &format!("{changed} (--by level)"))?;
    }
    let label = op_time(p);
    if p.op_time.is_none() && [By::Op, By::Name, By::Layer].into_iter().any(wanted) {
        title(out, style, &format!("Operators, {name}: none recorded"))?;
    }
    let by_op = [(By::Op, "op", &p.by_op), (By::Name, "name", &p.by_name), (By::Layer, "layer", &p.by_layer)];
    for (by, head, rows) in by_op {
        if let Some(rows) = rows.as_ref().filter(|rows| !rows.is_empty() && wanted(by)) {
            title(out, style, &format!("Operators by {head}, {name} ({label})"))?;
            write!(out, "{}", ops(rows, head, p).render(style))?;
            let graphs = count(p.cpu_graphs, "CPU graph");
            let between = p.between_calls.map_or_else(String::new, |share| {
                format!("; {} % of the time from call to call is between the calls", pct(share))
            });
            writeln!(out, "{}", style.dim(&format!("  100 % = {} ms in {graphs}{between}", ms(p.graph_ns))))?;
        }
    }
    if let Some(rows) = p.by_thread.as_ref().filter(|rows| !rows.is_empty() && wanted(By::Thread)) {
        title(out, style, &format!("Threads, {name}"))?;
        write!(out, "{}", threads(rows, p).render(style))?;
        left_out(out, p.threads_left_out, "thread", style)?;
        if p.wait_ns.is_none() {
            writeln!(out, "{}", style.dim(&format!("  {NO_WAIT}")))?;
        }
    }
    if let Some(found) = &p.by_cpu {
        title(out, style, &format!("CPUs, {name}"))?;
        cpus::write(out, found, report, style)?;
    }
    attribution::phase(out, report, p, style)?;
    counters::phase(out, report, p, style)?;
    if let Some(rows) = &p.by_token {
        title(out, style, &format!("Calls, {name}, slowest first"))?;
        tokens(out, rows, p, style)?;
        left_out(out, p.calls_left_out, "call", style)?;
    }
    if !p.splits.is_empty() && report.tables.len() > 1 {
        title(out, style, &format!("Graph splits by backend, {name}"))?;
        splits(out, &p.splits, style)?;
        if let Some(work) = &p.offload {
            offload::sections(work, name).iter().try_for_each(|section| section.write(out, style))?;
        }
    }
    Ok(())
}

/// Number of rows a table has beyond those shown.
fn left_out(out: &mut dyn Write, more: u64, noun: &str, style: &Style) -> io::Result<()> {
    match more {
        0 => Ok(()),
        n => writeln!(out, "{}", style.dim(&format!("  and {} (--top)", count(n, &format!("more {noun}"))))),
    }
}

/// How often the level changed, and which graphs therefore have ops; `None` if it never did.
pub(super) fn level_changed(p: &PhaseReport) -> Option<String> {
    let ops = match p.graphs_below_ops {
        0 => String::new(),
        n => format!("; {} of {} CPU graphs have ops", p.cpu_graphs, p.cpu_graphs + n),
    };
    let any = p.level_changes > 0 || p.graphs_below_ops > 0;
    any.then(|| format!("{} during these calls{ops}", count(p.level_changes, "time")))
}

/// How op times are measured.
pub(super) fn op_time(p: &PhaseReport) -> &'static str {
    match p.op_time {
        Some(OpTime::Busy) => "busy: start to barrier entry, thread 0",
        Some(OpTime::Wall) => "wall: start to next op's start, including barrier wait, thread 0",
        Some(OpTime::Mixed) => "busy in some graphs, wall in others, thread 0",
        None => "none recorded",
    }
}

fn op_head(p: &PhaseReport) -> &'static str {
    match p.op_time {
        Some(OpTime::Busy) => "busy ms",
        Some(OpTime::Wall) => "wall ms",
        _ => "time ms",
    }
}

/// Ops by type, name or layer.
pub(super) fn ops(rows: &[OpRow], by: &'static str, p: &PhaseReport) -> Table {
    let with_wait = p.wait_ns.is_some();
    let mut columns = vec![
        number("%", 0),
        number("cum %", 1),
        number(op_head(p), 0),
        number("calls", 0),
        number("mean us", 0),
        number("min us", 6),
        number("max us", 5),
    ];
    if with_wait {
        columns.extend([number("wait ms", 3), number("imbalance", 2)]);
    }
    columns.extend([number("GB/s", 4), number("GFLOP/s", 4), text(by)]);
    let mut t = Table::new(columns);
    for r in rows {
        let mut cells = vec![
            pct(r.share),
            pct(r.cumulative_share),
            ms(r.total_ns),
            if r.calls == 0 { "-".into() } else { r.calls.to_string() },
            or_dash(r.mean_ns, us),
            or_dash(r.min_ns, |v| us(v as f64)),
            or_dash(r.max_ns, |v| us(v as f64)),
        ];
        if with_wait {
            cells.push(or_dash(r.wait_ns, ms));
            cells.push(or_dash(r.imbalance, |v| format!("{v:.2}")));
        }
        cells.push(or_dash(r.model_gb_per_s, |v| format!("{v:.2}")));
        cells.push(or_dash(r.model_gflop_per_s, |v| format!("{v:.2}")));
        cells.push(r.name.clone());
        t.row(cells);
    }
    t
}

/// Threads of the engine's pool.
pub(super) fn threads(rows: &[ThreadRow], p: &PhaseReport) -> Table {
    let known = rows.iter().any(|r| r.cpus.is_some());
    let mut columns = vec![
        number("thread", 0),
        number("tids", 2),
        number("ops", 1),
        number(op_head(p), 0),
        number("%", 0),
        number("wait ms", 0),
        number("wait %", 0),
    ];
    if known {
        columns.extend([number("migrations", 3), text("CPUs")]);
    }
    let mut t = Table::new(columns);
    for r in rows {
        let mut cells = vec![
            r.ith.to_string(),
            r.tids.to_string(),
            r.slices.to_string(),
            ms(r.op_ns),
            pct(r.op_share),
            or_dash(r.wait_ns, ms),
            or_dash(r.wait_share, pct),
        ];
        if known {
            cells.push(or_dash(r.migrations, |n| n.to_string()));
            cells.push(or_dash(r.cpus.as_deref(), cpus::list));
        }
        t.row(cells);
    }
    t
}

/// Shown if threads have no wait column.
pub(super) const NO_WAIT: &str =
    "barrier wait was not recorded separately (interval mode): op times include it";

fn tokens(out: &mut dyn Write, rows: &[TokenRow], p: &PhaseReport, style: &Style) -> io::Result<()> {
    let mut t = Table::new(vec![
        number("call", 0),
        number("start ms", 1),
        number("ms", 0),
        number("since last ms", 4),
        number("tokens", 0),
        number("graphs", 3),
        number("ops ms", 0),
        number("wait ms", 2),
        number("ops", 5),
        text(""),
    ]);
    for r in rows {
        t.row(vec![
            r.seq.to_string(),
            format!("{:.3}", r.start_ns as f64 / 1e6),
            ms(r.dur_ns),
            or_dash(r.since_last_ns, |ns| format!("{:.3}", ns as f64 / 1e6)),
            or_dash(r.tokens, |n| n.to_string()),
            r.graphs.to_string(),
            ms(r.op_ns),
            if p.wait_ns.is_some() { ms(r.wait_ns) } else { "-".into() },
            r.slices.to_string(),
            if r.cut { "still running when recording stopped".into() } else { String::new() },
        ]);
    }
    write!(out, "{}", t.render(style))
}

fn splits(out: &mut dyn Write, rows: &[SplitRow], style: &Style) -> io::Result<()> {
    let mut t = Table::new(vec![number("%", 0), number("ms", 0), number("splits", 0), text("backend")]);
    for r in rows {
        t.row(vec![pct(r.share), ms(r.total_ns), r.splits.to_string(), r.backend.clone()]);
    }
    write!(out, "{}", t.render(style))
}
