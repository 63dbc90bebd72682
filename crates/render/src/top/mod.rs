//! Renders the text display of `profinfer top`: the state of a recording.
//!
//! Each line of the head is made by one function of `head.rs`, which says nothing where nothing is known: to add a line,
//! add a function there.

mod head;
mod ops;
mod requests;
mod spark;
#[cfg(test)]
mod tests;

use serde::Serialize;

use super::table::{Style, clean, cut};
use ::requests::RequestNow;
use analysis::recorded::calls::Phase;
use analysis::streams::live::{LiveSpan, ProcessSpan, SensorNow};

pub use self::ops::OpOrder;

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
    /// What limits the phase that took the most time in the last seconds; null if they do not show it.
    pub limit: Option<String>,
    /// Page faults of the process shown since the last update; null if not known.
    pub faults: Option<FaultRate>,
    /// Frequencies and temperatures; empty if the machine has no such sensors.
    pub sensors: Vec<SensorNow>,
    /// Tokens/s of the process shown in each update, oldest first.
    #[serde(skip)]
    pub speeds: Vec<(Phase, Vec<Option<f64>>)>,
    /// Requests in progress of the process shown; empty if the batches are not read.
    pub requests: Vec<RequestNow>,
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

/// Page faults per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FaultRate {
    pub minor_per_s: f64,
    /// Those that waited for a page to be read.
    pub major_per_s: f64,
}

/// Whose ops the table shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShownPhase {
    /// The phase that took the most time.
    #[default]
    Busiest,
    Decode,
    Prefill,
    /// One table for each.
    All,
}

/// What the viewer chose, and what the terminal can show.
#[derive(Debug, Clone, Copy)]
pub struct TopView {
    /// Maximum rows of a table of ops.
    pub rows: usize,
    /// Lines of the terminal. None: no terminal.
    pub height: Option<usize>,
    pub order: OpOrder,
    pub phase: ShownPhase,
    /// The terminal shows characters outside ASCII.
    pub unicode: bool,
    /// Keys are read: the last line names them.
    pub keys: bool,
    /// The explanation of keys and columns, in place of the tables.
    pub help: bool,
}

/// The display as lines, each ending in a newline; at most `height` lines.
pub fn text(p: &TopSnapshot, view: &TopView, style: &Style) -> String {
    let mut out = ScreenLines { lines: Vec::new(), width: style.width.unwrap_or(usize::MAX), style };
    head::lines(&mut out, p, view);
    let mut tail = ScreenLines { lines: Vec::new(), ..out };
    if !view.help {
        ops::threads(&mut tail, p, view);
    }
    p.messages.iter().for_each(|m| tail.plain(m));
    if view.keys {
        tail.lines.push(style.dim(&keys(view, tail.width)));
    }
    if view.help {
        HELP.lines().for_each(|line| out.plain(line));
    } else {
        let room = view.height.map(|h| h.saturating_sub(out.lines.len() + tail.lines.len()));
        ops::tables(&mut out, p, view, room);
    }
    // The last line, with the keys, stays.
    let most = view.height.unwrap_or(usize::MAX);
    out.lines.truncate(most.saturating_sub(tail.lines.len()).max(most.min(MIN_HEAD)));
    out.lines.extend(tail.lines);
    out.lines.truncate(most);
    out.lines.iter().flat_map(|l| [l.as_str(), "\n"]).collect()
}

/// Lines of the head that stay, however many messages there are.
const MIN_HEAD: usize = 3;

/// Lines that fit the width.
struct ScreenLines<'s> {
    lines: Vec<String>,
    width: usize,
    style: &'s Style,
}

/// Columns of a line's name.
const NAME: usize = 9;

impl ScreenLines<'_> {
    /// A text, continued on further lines where it does not fit.
    fn plain(&mut self, text: &str) {
        self.painted("", text, |_, text| text.to_owned());
    }

    fn named(&mut self, name: &str, text: &str) {
        self.painted(name, text, |_, text| text.to_owned());
    }

    /// The same in a colour: of the text, not of its name.
    fn painted(&mut self, name: &str, text: &str, paint: impl Fn(&Style, &str) -> String) {
        let indent = if name.is_empty() { 0 } else { NAME };
        for (i, line) in wrapped(&clean(text), self.width.saturating_sub(indent)).into_iter().enumerate() {
            let name = if i == 0 { name } else { "" };
            let line = cut(&line, self.width.saturating_sub(indent).max(1));
            self.lines.push(format!("{name:<indent$}{}", paint(self.style, &line)));
        }
    }
}

/// Lines of at most this width, without a break inside a word; spaces within a line stay.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text;
    while rest.chars().count() > width {
        let end = rest.char_indices().nth(width).map_or(rest.len(), |(at, _)| at);
        // The last space that has a word before it.
        let head = rest.get(..=end).or_else(|| rest.get(..end)).unwrap_or(rest);
        let begin = rest.len() - rest.trim_start().len();
        let Some(at) = head.rfind(' ').filter(|at| *at > begin) else { break };
        lines.push(rest.get(..at).unwrap_or_default().trim_end().to_owned());
        rest = rest.get(at..).unwrap_or_default().trim_start();
    }
    lines.push(rest.to_owned());
    lines
}

/// The keys, as many as fit.
fn keys(view: &TopView, width: usize) -> String {
    let all = [
        "q quit".to_owned(),
        "? help".into(),
        format!("s sort: {}", view.order.name()),
        format!("f phase: {}", view.phase.name()),
        "p pause".into(),
        "n next process".into(),
    ];
    let mut line = String::new();
    for key in all {
        let before = if line.is_empty() { "" } else { "   " };
        if line.chars().count() + before.len() + key.chars().count() > width {
            break;
        }
        line.push_str(before);
        line.push_str(&key);
    }
    line
}

impl ShownPhase {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busiest => "busiest",
            Self::Decode => "decode",
            Self::Prefill => "prefill",
            Self::All => "all",
        }
    }

    pub const fn next(self) -> Self {
        match self {
            Self::Busiest => Self::Decode,
            Self::Decode => Self::Prefill,
            Self::Prefill => Self::All,
            Self::All => Self::Busiest,
        }
    }
}

const HELP: &str = "
Keys
  q, Ctrl-C  quit                     p  pause and resume the display
  s  sort by time, calls or mean      f  phase: busiest, decode, prefill or all
  n  show the next process            ?, h  this help

Columns
  %         share of the time of the CPU graphs
  ms/token  thread 0's time in the op, per token whose ops were recorded
  mean us   mean time of one execution
  calls/s   executions per second of time in graphs

Lines
  limit     what limits the phase in the last seconds, if they show it
  tok/s     speed in each refresh, oldest first; a gap: no call ended
  time      where the time of the phase goes, that between its calls included";
