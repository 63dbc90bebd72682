//! Renders the text display of `profinfer top`: the state of a recording.

use serde::Serialize;

use super::table::{Style, Table, clean, cut, number, text as words};
use super::units::*;
use analysis::calls::Phase;
use analysis::live::{LiveDevice, LiveSpan, PhaseSpan, ProcessSpan, keep};
use analysis::words::share;

/// Maximum lines for threads.
const THREAD_LINES: usize = 4;
/// Maximum lines for processes.
const PROCESSES: usize = 8;
/// Columns of one thread.
const THREAD: usize = 18;
/// Default width in columns if it is not known.
const USUAL: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordingState {
    /// No engine has been found yet.
    Waiting,
    Running,
    Ended,
}

/// The state of a recording. The field names are those of the JSON lines; `schema` is increased when a field
/// changes its meaning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopSnapshot {
    pub schema: u32,
    pub state: RecordingState,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
    /// The target, in words.
    pub target: String,
    pub elapsed_s: f64,
    /// The call that has been running the longest.
    pub call: Option<CallNow>,
    pub level: String,
    /// Overhead of the level as a share of a token's time, 0 to 1; null if no budget measures it.
    pub cost: Option<f64>,
    pub budget: Option<f64>,
    /// CPU time of the recorder since the last update, as a share of one CPU.
    pub own_cpu: f64,
    pub events: u64,
    pub lost: u64,
    /// The output file, and its size.
    pub output: Option<String>,
    pub bytes: u64,
    /// The last seconds, for the process shown.
    pub now: LiveSpan,
    pub run: LiveSpan,
    /// All processes with calls or graphs.
    pub processes: Vec<ProcessSpan>,
    /// Recent messages of the recorder.
    pub messages: Vec<String>,
}

/// A running call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CallNow {
    /// Unknown until its first graph begins.
    pub phase: Phase,
    pub seconds: f64,
}

/// The display as lines, each ending in a newline; at most `height` lines, and at most `rows` ops.
pub fn text(p: &TopSnapshot, rows: usize, height: Option<usize>, style: &Style) -> String {
    let width = style.width.unwrap_or(usize::MAX);
    let mut out = ScreenLines { lines: Vec::new(), width };
    head(&mut out, p, style);
    processes(&mut out, p, style);
    let messages = p.messages.iter().map(|m| cut(&clean(m), width));
    let mut tail: Vec<String> = messages.collect();
    match shown(p) {
        None => out.plain(if p.state == RecordingState::Waiting { "" } else { "No ops recorded yet." }),
        Some((span, phase)) => {
            out.plain("");
            out.plain(&ops_title(p, span, phase));
            let threads = threads(phase, style.width.unwrap_or(USUAL));
            tail.splice(..0, threads);
            // The heading of the table takes a line as well.
            let room = height.map_or(rows, |h| h.saturating_sub(out.lines.len() + 1 + tail.len()).max(2));
            out.lines.extend(ops(phase, rows.min(room), style));
        }
    }
    out.lines.extend(tail);
    out.lines.truncate(height.unwrap_or(usize::MAX));
    out.lines.iter().flat_map(|l| [l.as_str(), "\n"]).collect()
}

/// The processes, if there are several: each has its speed, and the rest of the display is about one.
fn processes(out: &mut ScreenLines, p: &TopSnapshot, style: &Style) {
    if p.processes.len() < 2 {
        return;
    }
    let columns = vec![
        words("process"),
        number("prefill tok/s", 0),
        number("decode tok/s", 0),
        number("calls", 0),
        words(""),
    ];
    let mut table = Table::new(columns);
    let speed = |v| or_dash(v, |v: f64| format!("{v:.2}"));
    // The one shown always has its line.
    let rows = p.processes.iter().enumerate().filter(|(i, row)| row.shown || *i < PROCESSES - 1);
    for (_, row) in rows.take(PROCESSES) {
        table.row(vec![
            row.pid.map_or("others".into(), |pid| pid.to_string()),
            speed(row.prefill_tokens_per_s),
            speed(row.decode_tokens_per_s),
            row.calls.to_string(),
            if row.shown { "shown".into() } else { String::new() },
        ]);
    }
    out.plain("");
    out.lines.extend(table.render(style).lines().map(String::from));
    let more = p.processes.len().saturating_sub(PROCESSES);
    if more > 0 {
        out.plain(&format!("  and {more} more (--json lists all)"));
    }
}

/// Lines cut to the width.
struct ScreenLines {
    lines: Vec<String>,
    width: usize,
}

impl ScreenLines {
    fn plain(&mut self, line: &str) {
        self.lines.push(cut(&clean(line), self.width));
    }

    fn named(&mut self, name: &str, line: &str) {
        self.plain(&format!("{name:<9}{line}"));
    }
}

fn head(out: &mut ScreenLines, p: &TopSnapshot, style: &Style) {
    let file = p.output.as_ref().map(|f| format!(", output {f} ({})", bytes(p.bytes as f64)));
    let title = format!("profinfer top: {}, {:.0} s{}", p.target, p.elapsed_s, file.unwrap_or_default());
    out.lines.push(style.bold(&cut(&clean(&title), out.width)));
    out.named("now", &state(p));
    for run in &p.run.phases {
        let now = p.now.phases.iter().find(|n| n.phase == run.phase).and_then(|n| n.tokens_per_s);
        let speed = |v| or_dash(v, |v: f64| format!("{v:.2}"));
        let (now, all, calls) = (speed(now), speed(run.tokens_per_s), count(run.calls, "call"));
        out.named(run.phase.name(), &format!("{now:>9} tok/s now {all:>9} over the run   {calls}"));
    }
    for d in &p.run.devices {
        let now = p.now.devices.iter().find(|n| n.backend == d.backend);
        out.named("device", &device(now.unwrap_or(d)));
    }
    let cost = p.cost.map_or("overhead not measured".into(), |c| format!("overhead {} % of a token", pct(c)));
    let budget = p.budget.map_or(String::new(), |b| format!(", budget {} %", pct(b)));
    out.named("level", &format!("{}, {cost}{budget}; own CPU {} %", p.level, pct(p.own_cpu)));
    match p.lost {
        0 => out.named("events", &format!("{}, none lost", p.events)),
        n => {
            let part = pct(share(n, p.events.saturating_add(n)));
            let line = format!("{:<9}{}, {n} LOST ({part} %)", "events", p.events);
            out.lines.push(style.bad(&cut(&line, out.width)));
        }
    }
}

/// A device's part of the time in calls: of the last seconds, or if it had no split in them, over the run.
fn device(d: &LiveDevice) -> String {
    let busy = match (d.busy_share, d.busy_source) {
        (Some(share), Some(source)) => format!("; busy {} % (by {source})", pct(share)),
        _ => String::new(),
    };
    let unseen = match d.unseen {
        0 => String::new(),
        n => format!("; end of {} not seen", count(n, "split")),
    };
    let (splits, waited) = (pct(d.share), pct(d.waited_share));
    format!(
        "{}: {splits} % of the calls' time in its splits, {waited} % waiting for it{busy}{unseen}",
        d.backend
    )
}

fn state(p: &TopSnapshot) -> String {
    match (p.state, &p.call) {
        (RecordingState::Waiting, _) => "waiting: no engine found yet".into(),
        (RecordingState::Ended, _) => format!("ended: {}", p.end.as_deref().unwrap_or("unknown reason")),
        (RecordingState::Running, Some(call)) => {
            let phase = if call.phase == Phase::Unknown { "" } else { call.phase.name() };
            format!(
                "in a {phase}{}call for {}",
                if phase.is_empty() { "" } else { " " },
                time(call.seconds * 1e9)
            )
        }
        (RecordingState::Running, None) if p.run.phases.is_empty() => "no calls seen yet".into(),
        (RecordingState::Running, None) => "between calls".into(),
    }
}

/// The phase that the table of ops shows: the one that took the most time recently, else over the complete run.
fn shown(p: &TopSnapshot) -> Option<(&LiveSpan, &PhaseSpan)> {
    let most = |span: &'_ LiveSpan| {
        let phases = span.phases.iter().enumerate().filter(|(_, s)| !s.ops.is_empty());
        phases.max_by_key(|(_, s)| s.graph_ns).map(|(i, _)| i)
    };
    let spans = [Some(&p.now).filter(|_| p.state != RecordingState::Ended), Some(&p.run)];
    spans.into_iter().flatten().find_map(|span| Some((span, span.phases.get(most(span)?)?)))
}

fn ops_title(p: &TopSnapshot, span: &LiveSpan, phase: &PhaseSpan) -> String {
    let over = match (std::ptr::eq(span, &p.now), p.state) {
        (true, _) => format!("last {:.1} s", span.seconds),
        (false, RecordingState::Ended) => "over the run".into(),
        (false, _) => format!("over the run, none in the last {:.1} s", p.now.seconds),
    };
    let part = |ns| pct(share(ns, phase.graph_ns));
    let wait =
        phase.wait_ns.map_or("including barrier waits".into(), |ns| format!("{} % at barriers", part(ns)));
    let (ops, gaps) = (part(phase.op_ns), part(phase.gaps_ns));
    format!(
        "Ops, {}, {over}: {ops} % of the graphs' time in ops, {wait}, {gaps} % in gaps",
        phase.phase.name()
    )
}

fn ops(phase: &PhaseSpan, rows: usize, style: &Style) -> Vec<String> {
    let columns = vec![number("%", 0), number("ms/token", 1), number("calls/s", 2), words("op and name")];
    let mut table = Table::new(columns);
    let mut ops = phase.ops.clone();
    if ops.len() > rows {
        keep(&mut ops, rows.saturating_sub(1));
    }
    for op in ops {
        table.row(vec![
            pct(op.share),
            or_dash(op.ns_per_token, |ns| format!("{:.4}", ns / 1e6)),
            or_dash(op.calls_per_s, |n| format!("{n:.0}")),
            op.name,
        ]);
    }
    table.render(style).lines().map(String::from).collect()
}

/// Threads side by side: number, share of the graphs' time in ops, and at barriers.
fn threads(phase: &PhaseSpan, width: usize) -> Vec<String> {
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
    let title = [cut(&format!("Threads: % in ops{waits}"), width)];
    let lines = cells.chunks(per_line).map(|line| cut(line.concat().trim_end(), width));
    title.into_iter().chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use analysis::live::{LiveOp, LiveThread};
    use analysis::report::OpTime;

    fn op(name: &str, ns: u64) -> LiveOp {
        let share = share(ns, 5_000_000);
        let (calls, calls_per_s, ns_per_token) = (10, Some(2000.0), Some(ns as f64 / 10.0));
        LiveOp { name: name.into(), calls, total_ns: ns, share, calls_per_s, ns_per_token }
    }

    fn decode() -> PhaseSpan {
        let thread = |ith, op_share| LiveThread { ith, op_share, wait_share: Some(0.95 - op_share) };
        PhaseSpan {
            phase: Phase::Decode,
            calls: 10,
            cut_calls: 0,
            unseen_calls: 0,
            tokens: Some(10),
            in_call_ns: 800_000_000,
            tokens_per_s: Some(12.5),
            cpu_graphs: 10,
            graph_ns: 5_000_000,
            op_ns: 4_500_000,
            wait_ns: Some(250_000),
            gaps_ns: 250_000,
            op_time: Some(OpTime::Busy),
            ops: vec![
                op("MUL_MAT  ffn_up-{L}", 4_000_000),
                op("ADD  a\x1b[31m", 300_000),
                op("ROPE  q", 200_000),
            ],
            threads: vec![thread(0, 0.9), thread(1, 0.85)],
        }
    }

    fn process(pid: u32, shown: bool) -> ProcessSpan {
        ProcessSpan {
            pid: Some(pid),
            calls: 10,
            in_call_ns: 800_000_000,
            prefill_tokens_per_s: None,
            decode_tokens_per_s: Some(11.25),
            shown,
        }
    }

    #[test]
    fn several_processes_stand_in_a_table() {
        let mut p = picture();
        p.processes = (0..20).map(|i| process(4700 + i, i == 15)).collect();
        let said = text(&p, 10, None, &Style::default());
        assert!(said.contains("4700") && said.contains("4715") && !said.contains("4714"), "{said}");
        assert!(said.contains("and 12 more"), "{said}");
        let line = said.lines().find(|l| l.contains("shown")).expect("a line");
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["4715", "-", "11.25", "10", "shown"]);
    }

    fn picture() -> TopSnapshot {
        let span = |seconds, speed| LiveSpan {
            seconds,
            phases: vec![PhaseSpan { tokens_per_s: Some(speed), ..decode() }],
            devices: Vec::new(),
        };
        TopSnapshot {
            schema: 1,
            state: RecordingState::Running,
            end: None,
            target: "process 4711".into(),
            elapsed_s: 12.3,
            call: Some(CallNow { phase: Phase::Decode, seconds: 0.0321 }),
            level: "op with structure".into(),
            cost: Some(0.0071),
            budget: Some(0.01),
            own_cpu: 0.013,
            events: 123_456,
            lost: 0,
            output: Some("run.pfi".into()),
            bytes: 1_258_291,
            now: span(5.0, 12.5),
            run: span(12.3, 11.25),
            processes: vec![process(4711, true)],
            messages: vec!["level now op: the richest\x07".into()],
        }
    }

    #[test]
    fn a_picture_looks_like_this() {
        let want = "\
profinfer top: process 4711, 12 s, output run.pfi (1.2 MiB)
now      in a decode call for 32.10 ms
decode       12.50 tok/s now     11.25 over the run   10 calls
level    op with structure, overhead 0.71 % of a token, budget 1.00 %; own CPU 1.30 %
events   123456, none lost

Ops, decode, last 5.0 s: 90.00 % of the graphs' time in ops, 5.00 % at barriers, 5.00 % in gaps
      %  ms/token  calls/s  op and name
  80.00    0.4000     2000  MUL_MAT  ffn_up-{L}
   6.00    0.0300     2000  ADD  a\\u{1b}[31m
   4.00    0.0200     2000  ROPE  q
Threads: % in ops + % at barriers
   0:  90.0 +  5.0   1:  85.0 + 10.0
level now op: the richest\\u{7}
";
        assert_eq!(text(&picture(), 10, None, &Style::default()), want);
    }

    #[test]
    fn a_device_has_a_line() {
        let mut p = picture();
        let device = LiveDevice {
            backend: "Vulkan".into(),
            splits: 10,
            split_ns: 720_000_000,
            waited_ns: 640_000_000,
            share: 0.9,
            waited_share: 0.8,
            unseen: 0,
            busy_share: None,
            busy_source: None,
        };
        p.run.devices = vec![device.clone()];
        let line = |p: &TopSnapshot| {
            let text = text(p, 10, None, &Style::default());
            text.lines().find(|l| l.starts_with("device")).map(str::to_owned)
        };
        let splits = "device   Vulkan: 90.00 % of the calls' time in its splits, 80.00 % waiting for it";
        assert_eq!(line(&p).as_deref(), Some(splits));
        let (busy_share, busy_source) = (Some(0.5), Some("kernels"));
        p.now.devices = vec![LiveDevice { busy_share, busy_source, unseen: 1, ..device }];
        let all = format!("{splits}; busy 50.00 % (by kernels); end of 1 split not seen");
        assert_eq!(line(&p), Some(all));
        assert_eq!(line(&picture()), None);
    }

    #[test]
    fn it_fits_whatever_room_there_is() {
        for height in 1..30 {
            for width in [1, 20, 60, 100] {
                let style = Style { width: Some(width), color: false };
                let text = text(&picture(), usize::MAX, Some(height), &style);
                assert!(text.lines().count() <= height, "{text}");
                let least = 30;
                assert!(text.lines().all(|l| l.chars().count() <= width.max(least)), "{width}: {text}");
            }
        }
        let rows = |height| text(&picture(), usize::MAX, Some(height), &Style::default());
        assert!(rows(14).contains("ADD") && !rows(14).contains("(other)"), "{}", rows(14));
        assert!(rows(13).contains("  10.00    0.0500     4000  (other)"), "{}", rows(13));
    }

    #[test]
    fn what_is_not_known_is_said() {
        let nothing = LiveSpan::default();
        let mut p = TopSnapshot {
            state: RecordingState::Waiting,
            call: None,
            cost: None,
            budget: None,
            lost: 44,
            run: nothing.clone(),
            now: nothing,
            messages: Vec::new(),
            ..picture()
        };
        let said = |p: &TopSnapshot| text(p, 10, None, &Style::default());
        assert!(said(&p).contains("waiting: no engine found yet"), "{}", said(&p));
        p.state = RecordingState::Running;
        for line in ["no calls seen yet", "overhead not measured", "44 LOST (0.04 %)", "No ops recorded"] {
            assert!(said(&p).contains(line), "{}", said(&p));
        }
        p.run = picture().run;
        assert!(
            said(&p).contains("between calls") && said(&p).contains("over the run, none in the last 0.0 s")
        );
        p.run.phases[0].wait_ns = None;
        p.run.phases[0].threads[0].wait_share = None;
        assert!(
            said(&p).contains("including barrier waits") && said(&p).contains("0:  90.0  "),
            "{}",
            said(&p)
        );
        (p.state, p.end) = (RecordingState::Ended, Some("target exited".into()));
        assert!(
            said(&p).contains("ended: target exited") && said(&p).contains("Ops, decode, over the run: ")
        );
    }
}
