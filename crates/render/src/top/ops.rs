//! The tables of ops and the threads.

use super::super::table::{Table, number, text as words};
use super::super::units::*;
use super::{RecordingState, ScreenLines, ShownPhase, TopSnapshot, TopView};
use analysis::recorded::calls::Phase;
use analysis::recorded::labels::share;
use analysis::streams::live::{LiveOp, LiveSpan, PhaseSpan, keep};
use common::order;

/// Maximum lines for threads.
const THREAD_LINES: usize = 4;
/// Columns of one thread.
const THREAD: usize = 18;
/// Default width in columns if it is not known.
const USUAL: usize = 100;
/// Lines of a table that are not rows: an empty one, the title, the heading.
const AROUND: usize = 3;

/// Order of the ops, largest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OpOrder {
    #[default]
    Time,
    Calls,
    /// Mean time of an execution.
    Mean,
}

impl OpOrder {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Calls => "calls",
            Self::Mean => "mean",
        }
    }

    pub const fn next(self) -> Self {
        match self {
            Self::Time => Self::Calls,
            Self::Calls => Self::Mean,
            Self::Mean => Self::Time,
        }
    }

    /// Sorts ops, which are in the order of their time.
    pub fn sort(self, ops: &mut [LiveOp]) {
        match self {
            Self::Time => {}
            Self::Calls => order::by_key(ops, |op| (!op.calls, !op.total_ns)),
            Self::Mean => order::by_key(ops, |op| (!(op.total_ns / op.calls.max(1)), !op.total_ns)),
        }
    }
}

/// The phases that are shown, with the time range of each: the last seconds, or the complete run if no op was recorded
/// in them.
pub fn shown<'p>(p: &'p TopSnapshot, view: &TopView) -> Vec<(&'p LiveSpan, &'p PhaseSpan)> {
    let spans = [Some(&p.now).filter(|_| p.state != RecordingState::Ended), Some(&p.run)];
    let mut spans = spans.into_iter().flatten();
    let of = |wanted: Phase| {
        let mut spans = spans.clone();
        spans.find_map(|span| {
            Some((span, span.phases.iter().find(|s| s.phase == wanted && !s.ops.is_empty())?))
        })
    };
    let wanted: &[Phase] = match view.phase {
        ShownPhase::Busiest => {
            let busiest = |span: &'p LiveSpan| {
                let phases = span.phases.iter().filter(|s| !s.ops.is_empty());
                phases.max_by_key(|s| s.graph_ns).map(|phase| (span, phase))
            };
            return spans.find_map(busiest).into_iter().collect();
        }
        ShownPhase::Decode => &[Phase::Decode],
        ShownPhase::Prefill => &[Phase::Prefill],
        ShownPhase::All => &[Phase::Decode, Phase::Prefill, Phase::Unknown],
    };
    wanted.iter().filter_map(|phase| of(*phase)).collect()
}

/// The tables, in `room` lines.
pub fn tables(out: &mut ScreenLines<'_>, p: &TopSnapshot, view: &TopView, room: Option<usize>) {
    let phases = shown(p, view);
    if phases.is_empty() {
        out.plain(match (p.state, view.phase) {
            (RecordingState::Waiting, _) => "",
            (_, ShownPhase::Busiest | ShownPhase::All) => "No ops recorded yet.",
            (_, ShownPhase::Decode) => "No ops of decode recorded yet; f shows another phase.",
            (_, ShownPhase::Prefill) => "No ops of prefill recorded yet; f shows another phase.",
        });
        return;
    }
    let each = room.map(|room| room / phases.len());
    for (span, phase) in phases {
        let before = out.lines.len();
        out.plain("");
        out.plain(&title(p, span, phase));
        // The title may take more than one line.
        let around = (out.lines.len() - before + 1).max(AROUND);
        let rows = each.map_or(view.rows, |each| each.saturating_sub(around).max(2));
        let table = rows_of(phase, view, rows.min(view.rows)).render(out.style);
        out.lines.extend(table.lines().map(String::from));
    }
}

fn title(p: &TopSnapshot, span: &LiveSpan, phase: &PhaseSpan) -> String {
    let over = match (std::ptr::eq(span, &p.now), p.state) {
        (true, _) => format!("last {:.1} s", span.seconds),
        (false, RecordingState::Ended) => "over the run".into(),
        (false, _) => format!("over the run, none in the last {:.1} s", p.now.seconds),
    };
    let part = |ns| format!("{:.1} %", share(ns, phase.graph_ns) * 100.0);
    let wait =
        phase.wait_ns.map_or("including barrier waits".into(), |ns| format!("{} at barriers", part(ns)));
    let (ops, gaps) = (part(phase.op_ns), part(phase.gaps_ns));
    format!("Ops, {}, {over}: {ops} in ops, {wait}, {gaps} in gaps", phase.phase.name())
}

fn rows_of(phase: &PhaseSpan, view: &TopView, rows: usize) -> Table {
    let columns = vec![
        number("%", 0),
        number("ms/token", 1),
        number("mean us", 2),
        number("calls/s", 3),
        words("op and name"),
    ];
    let mut table = Table::new(columns);
    let mut ops = phase.ops.clone();
    view.order.sort(&mut ops);
    if ops.len() > rows {
        keep(&mut ops, rows.saturating_sub(1));
    }
    for op in ops {
        table.row(vec![
            pct(op.share),
            or_dash(op.ns_per_token, |ns| format!("{:.4}", ns / 1e6)),
            format!("{:.1}", op.total_ns as f64 / op.calls.max(1) as f64 / 1e3),
            or_dash(op.calls_per_s, |n| format!("{n:.0}")),
            op.name,
        ]);
    }
    table
}

/// Threads side by side: number, share of the graphs' time in ops, and at barriers.
pub fn threads(out: &mut ScreenLines<'_>, p: &TopSnapshot, view: &TopView) {
    let Some((_, phase)) = shown(p, view).into_iter().next() else { return };
    let width = out.style.width.unwrap_or(USUAL);
    let per_line = (width / THREAD).max(1);
    let cells = phase.threads.iter().map(|t| {
        let wait = t.wait_share.map_or(String::new(), |w| format!(" +{:>5.1}", w * 100.0));
        format!("{:>4}: {:>5.1}{wait}", t.ith, t.op_share * 100.0)
    });
    let mut cells: Vec<String> = cells.map(|c| format!("{c:<THREAD$}")).collect();
    let most = per_line * THREAD_LINES;
    if cells.len() > most {
        let more = cells.len() - (most - 1);
        cells.truncate(most - 1);
        cells.push(format!("  and {more} more"));
    }
    let waits = if phase.wait_ns.is_some() { " + % at barriers" } else { "" };
    out.plain(&format!("Threads: % in ops{waits}"));
    for line in cells.chunks(per_line) {
        out.lines.push(super::cut(line.concat().trim_end(), out.width));
    }
}
