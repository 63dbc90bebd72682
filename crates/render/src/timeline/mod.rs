//! A run as a timeline: engine calls above graphs, splits and CPU graphs, and each thread's ops and barrier
//! waits. This module decides what is drawn; [`perfetto`] and [`chrome`] write it.

use std::io;

use analysis::recorded::calls::Timeline;
use analysis::recorded::idents::Idents;
use analysis::recorded::load::Loaded;
use analysis::streams::lanes::{LaneOwner, LaneStep, Lanes, SliceKind, Walked};
use analysis::sums::op_cpus::CpuChanges;
use analysis::sums::tables::{WAIT_ROW, backend_name};
use common::order;
use common::redact;
use pfi::record::KernelSource;

mod beside;
pub mod chrome;
mod executed;
pub mod labels;
pub mod merge;
pub mod perfetto;

use labels::Labels;

/// A value attached to a slice.
#[derive(Debug, Clone, PartialEq)]
pub enum ArgValue {
    Text(String),
    Count(u64),
    Real(f64),
    Yes,
}

/// The values attached to a slice, by name.
pub type SliceArgs = Vec<(&'static str, ArgValue)>;

/// Categories of events: viewers filter and colour by them.
pub mod category {
    /// An engine call.
    pub const CALL: &str = "call";
    /// A function of the engine.
    pub const FUNCTION: &str = "function";
    /// A scheduler graph or a CPU graph.
    pub const GRAPH: &str = "graph";
    pub const SPLIT: &str = "split";
    pub const OP: &str = "op";
    /// The wait at the barrier after an op.
    pub const BARRIER: &str = "barrier";
    /// What a call computes for one sequence.
    pub const SEQUENCE: &str = "sequence";
    /// A kernel on a device.
    pub const DEVICE: &str = "device";
    /// A state of a thread.
    pub const STATE: &str = "state";
    pub const COUNTER: &str = "counter";
    /// A message of the recorder.
    pub const RECORDER: &str = "recorder";
}

/// Name of the value that says which call an event belongs to.
pub const TOKEN: &str = "token";

/// Name of the value that is the CPU on which an op started.
pub const CPU: &str = "cpu";

/// Name of the value that is the number of a split: its slice on the host and its kernels on the device have it.
pub const SPLIT: &str = "split";

/// What a slice is.
#[derive(Clone, Copy)]
pub enum SliceName<'n> {
    /// By its index in [`Labels::ops`]; the number of its call and the CPU on which it started, if known.
    Op { op: usize, call: Option<u64>, cpu: Option<u16> },
    /// Slices of the same flow are joined by arrows.
    Other { name: &'n str, category: &'static str, values: &'n SliceArgs, flow: Option<u64> },
}

/// A queue of a device.
pub struct DeviceQueue<'n> {
    pub pid: u32,
    /// Distinguishes it from the other queues of the timeline; from 0 on.
    pub index: u32,
    /// `Vulkan queue 0`
    pub name: &'n str,
    /// Where the times of its kernels come from.
    pub times: &'n str,
    pub source: KernelSource,
}

/// A timeline format. Times are on the trace's clock, CLOCK_MONOTONIC, and never decrease within a lane.
pub trait TimelineSink {
    /// A process; comes before its lanes.
    fn process(&mut self, pid: u32, name: &str, cmdline: &str) -> io::Result<()>;
    /// Everything that follows belongs to this lane.
    fn lane(&mut self, place: &LaneOwner, name: &str) -> io::Result<()>;
    fn begin(&mut self, t: i64, name: SliceName<'_>) -> io::Result<()>;
    fn end(&mut self, t: i64) -> io::Result<()>;
    /// Everything that follows belongs to a separate track under a thread, a process or neither; with a unit it
    /// is a counter track.
    fn track(&mut self, pid: Option<u32>, tid: Option<u32>, name: &str, unit: Option<&str>)
    -> io::Result<()>;
    /// The value of the current track from here on.
    fn value(&mut self, t: i64, name: &str, value: f64) -> io::Result<()>;
    fn instant(&mut self, t: i64, name: &str, values: &SliceArgs) -> io::Result<()>;
    /// The kernels that follow are those of one queue of a device.
    fn queue(&mut self, queue: &DeviceQueue<'_>) -> io::Result<()>;
    /// A kernel of the current queue, from its start to its end. Starts never decrease; kernels may overlap.
    fn kernel(&mut self, time: (i64, i64), name: &str, values: &SliceArgs) -> io::Result<()>;
    /// The timeline is complete.
    fn finish(&mut self) -> io::Result<()>;
}

/// The data needed to draw a run.
pub struct TimelineRun<'l, 'a> {
    pub loaded: &'l Loaded<'a>,
    pub line: &'l Timeline,
    pub lanes: &'l Lanes<'l, 'a>,
    pub idents: &'l Idents,
    pub labels: &'l Labels,
    /// Number of each call, and its index in the list of calls; sorted.
    calls: Vec<(u64, u64)>,
}

impl<'l, 'a> TimelineRun<'l, 'a> {
    pub fn new(
        loaded: &'l Loaded<'a>,
        line: &'l Timeline,
        lanes: &'l Lanes<'l, 'a>,
        idents: &'l Idents,
        labels: &'l Labels,
    ) -> Self {
        let mut calls: Vec<(u64, u64)> = line.calls.iter().zip(0..).map(|(c, i)| (c.seq, i)).collect();
        order::by_key(&mut calls, |c| *c);
        TimelineRun { loaded, line, lanes, idents, labels, calls }
    }

    /// Draws the complete timeline.
    ///
    /// # Errors
    /// Write errors.
    pub fn draw(&self, sink: &mut dyn TimelineSink) -> io::Result<Walked> {
        let mut pids: Vec<u32> = self.lanes.list.iter().map(|l| l.place.pid()).collect();
        order::by_key(&mut pids, |pid| ((*pid).into(), 0));
        pids.dedup();
        for pid in &pids {
            let known = self.loaded.processes.iter().find(|p| p.pid == *pid);
            let (exe, cmdline) = known.map_or(("", String::new()), |p| (p.exe, redact::line(p.cmdline)));
            sink.process(*pid, exe.rsplit('/').next().unwrap_or(exe), &cmdline)?;
        }
        let mut all = Walked::default();
        let mut beside = SliceArgs::new();
        let cpus = CpuChanges::new(&self.loaded.causes.cpus);
        for lane in &self.lanes.list {
            let thread = match lane.place {
                LaneOwner::Thread { tid, .. } => Some(tid),
                LaneOwner::Pool { .. } => None,
            };
            let mut cpus = thread.map(|tid| cpus.cursor(tid, i64::MIN));
            sink.lane(&lane.place, &self.lane_name(&lane.place))?;
            let done = self.lanes.walk(lane, self.idents, &mut |t, step| match step {
                LaneStep::End => sink.end(t),
                LaneStep::Begin(SliceKind::Op(Some(op), graph)) => {
                    let (call, cpu) =
                        (graph.and_then(|g| self.call_of(g)), cpus.as_mut().and_then(|c| c.at(t)));
                    sink.begin(t, SliceName::Op { op, call, cpu })
                }
                LaneStep::Begin(what) => {
                    beside.clear();
                    let name = self.name(what, &mut beside);
                    let (category, flow) = (category_of(what), self.flow(what));
                    sink.begin(t, SliceName::Other { name: &name, category, values: &beside, flow })
                }
            })?;
            all.slices += done.slices;
            all.cut += done.cut;
        }
        beside::draw(self, &pids, sink)?;
        sink.finish()?;
        Ok(all)
    }

    /// Joins a call and its graphs; call numbers are those of the complete recording.
    fn flow(&self, what: SliceKind) -> Option<u64> {
        match what {
            SliceKind::Token(i) => self.loaded.tokens.get(i).map(|r| r.seq),
            SliceKind::Graph(i) => self.loaded.graphs.get(i).and_then(|r| r.token),
            _ => None,
        }
    }

    /// The number of the call of a CPU graph.
    fn call_of(&self, graph: usize) -> Option<u64> {
        let call = (*self.line.cpu_call.get(graph)?)?;
        self.line.calls.get(call).map(|c| c.seq)
    }

    /// The thread's number in GGML's pool, else its own name if it was recorded.
    fn lane_name(&self, place: &LaneOwner) -> String {
        match place {
            LaneOwner::Thread { ith: Some(ith), .. } => thread_name(*ith),
            LaneOwner::Thread { tid, ith: None, .. } => {
                let tasks = &self.loaded.causes.tasks;
                let comm = tasks.iter().rev().find(|(_, t)| t.tid == *tid).map(|(_, t)| t.comm.to_string());
                comm.unwrap_or_default()
            }
            LaneOwner::Pool { caller, ith, .. } => {
                format!("{} of {caller} (many threads)", thread_name(*ith))
            }
        }
    }

    /// Name of a slice that is not a known op, and the values attached to it.
    fn name(&self, what: SliceKind, beside: &mut SliceArgs) -> String {
        let l = self.loaded;
        match what {
            SliceKind::Function(i) => {
                let Some(r) = l.causes.phases.get(i) else { return String::new() };
                cut(r.cut, beside);
                r.what.to_string()
            }
            SliceKind::Token(i) => {
                l.tokens.get(i).map_or_else(String::new, |r| self.token(r.seq, r.cut, beside))
            }
            SliceKind::Graph(i) => {
                let Some(r) = l.graphs.get(i) else { return String::new() };
                beside.push(("graph", ArgValue::Count(r.seq)));
                count("nodes", r.n_nodes, beside);
                count("ubatch", r.ubatch, beside);
                cut(r.cut, beside);
                "graph".into()
            }
            SliceKind::Split(i) => {
                let Some(r) = l.splits.get(i) else { return String::new() };
                beside.push((SPLIT, ArgValue::Count(r.seq)));
                count("nodes", r.n_nodes, beside);
                cut(r.cut, beside);
                format!("split {}", backend_name(l, r.backend))
            }
            SliceKind::CpuGraph(i) => {
                let Some(r) = l.cpu_graphs.get(i) else { return String::new() };
                beside.push(("cpu_graph", ArgValue::Count(r.seq)));
                count("nodes", r.n_nodes, beside);
                count("threads", r.n_threads, beside);
                count("ubatch", r.ubatch, beside);
                count("hits_expected", r.expected.unwrap_or(0), beside);
                if r.expected.is_some() || r.seen > 0 {
                    beside.push(("hits_seen", ArgValue::Count(r.seen.into())));
                }
                cut(r.cut, beside);
                "CPU graph".into()
            }
            SliceKind::Op(op, _) => self.labels.name(op).to_string(),
            SliceKind::OpenOp(op) => format!("{} (end not seen)", self.labels.name(op)),
            SliceKind::Wait => WAIT_ROW.into(),
        }
    }

    fn token(&self, seq: u64, cut_off: bool, beside: &mut SliceArgs) -> String {
        beside.push((TOKEN, ArgValue::Count(seq)));
        let at = self.calls.partition_point(|c| c.0 < seq);
        let place = self.calls.get(at).filter(|c| c.0 == seq).map(|c| c.1 as usize);
        let call = place.and_then(|i| self.line.calls.get(i));
        if let Some(tokens) = call.and_then(|c| c.tokens) {
            beside.push(("tokens", ArgValue::Count(tokens)));
        }
        cut(cut_off, beside);
        match call.map(|c| c.phase) {
            Some(phase) if phase.name() != "unknown" => format!("{} {seq}", phase.name()),
            _ => format!("call {seq}"),
        }
    }
}

/// A thread by its index in GGML's pool.
pub(crate) fn thread_name(ith: u16) -> String {
    format!("ggml {ith}")
}

fn category_of(what: SliceKind) -> &'static str {
    match what {
        SliceKind::Function(_) => category::FUNCTION,
        SliceKind::Token(_) => category::CALL,
        SliceKind::Graph(_) | SliceKind::CpuGraph(_) => category::GRAPH,
        SliceKind::Split(_) => category::SPLIT,
        SliceKind::Op(..) | SliceKind::OpenOp(_) => category::OP,
        SliceKind::Wait => category::BARRIER,
    }
}

/// Adds a count; zero means that the number was not read.
fn count(name: &'static str, n: u32, beside: &mut SliceArgs) {
    if n > 0 {
        beside.push((name, ArgValue::Count(n.into())));
    }
}

fn cut(cut: bool, beside: &mut SliceArgs) {
    if cut {
        beside.push(("cut_by_end_of_recording", ArgValue::Yes));
    }
}
