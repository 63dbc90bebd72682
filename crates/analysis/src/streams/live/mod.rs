//! Figures of a recording in progress: reads the blocks of its trace as they grow, and sums up the last seconds
//! and the complete run, in memory that does not grow with the number of tokens.
//!
//! Ops, waits and calls follow the rules of `report`, one graph at a time: the sums of a graph's slices are held
//! until its own record, and that of the scheduler's graph around it, show its phase. Two differences remain: a
//! ubatch of one token that comes before wider ones of the same call is decode here and prefill there; and the
//! ops of graphs cut off by the beginning or end of a recording are counted there, unless its level changed, and
//! not here.

mod batches;
mod causes;
mod devices;
mod energy;
mod limit;
mod run;
mod sensors;
mod span;
mod sums;
mod work;

use self::batches::{BatchShape, Batches, Brought};
use self::causes::LiveScheduler;
pub use self::devices::LiveDevice;
use self::devices::{DeviceSums, Devices, submitted};
pub use self::energy::EnergyNow;
use self::energy::LiveEnergy;
pub use self::limit::{limit, limit_of};
pub use self::run::ProcessSpan;
use self::run::{LiveRun, Phases};
use self::sensors::LiveSensors;
pub use self::sensors::SensorNow;
pub use self::span::{LiveOp, LiveSpan, LiveThread, PhaseSpan, keep};
use self::sums::LiveSums;
pub use self::work::{PhaseWork, Work, combined, phases};
use crate::recorded::calls::{Call, CallSource, Phase, Width, reads_or_gives_tokens, settle};
use crate::recorded::describe::{NO_STRUCTURE, describe};
use crate::recorded::idents::{OpKey, label};
use crate::recorded::load::Loaded;
use crate::sums::ops::Edges;
use crate::sums::tables::OTHER_ROW;
use pfi::record::{CpuGraph, Device, Entry, Graph, Record, Slices, Split, Token};
use pfi::{Block, SliceTime, slice_iter};

/// Length of the window for current figures, ns.
pub const WINDOW_NS: u64 = 5_000_000_000;
/// Number of steps per window.
const STEPS: u64 = 10;
/// Maximum number of distinct names; the ops of any others are summed in [`OTHER_ROW`].
const NAMES: usize = 2048;
/// Plans whose names are cached; the names of other plans are looked up again.
const PLANS: usize = 128;
/// Maximum number of graphs and calls with an outstanding end; beyond that, the oldest count as ended.
const OPEN: usize = 64;
/// Threads and plans of a graph whose last slice is waiting for its end.
const ENDS: usize = 4096;

/// Whether a call's end is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Known,
    Cut,
    Unseen,
}

fn ending(cut: bool, device: Device) -> Ending {
    match (cut, device) {
        (true, _) => Ending::Cut,
        (false, Device::Unseen) => Ending::Unseen,
        (false, _) => Ending::Known,
    }
}

/// A call that has ended, whose tokens may not be known yet.
#[derive(Clone, Copy)]
struct EndedCall {
    pid: u32,
    start: i64,
    dur: u64,
    end: Ending,
    /// The part of the duration spent waiting for a device after the call returned.
    device: u64,
}

/// The record being waited for: of a CPU graph, of the scheduler's graph around it, or of the call around both,
/// by seq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AwaitedRecord {
    CpuGraph(u64),
    Graph(u64),
    Call(u64),
}

/// The last slice of a run, which ends where the thread's next run begins, or with the graph.
struct LastSlice {
    ith: u16,
    tid: u32,
    plan: u32,
    /// Position in the plan of a directly following slice.
    next: u32,
    name: u16,
    slice: SliceTime,
}

/// Sums so far of an open item.
struct OpenItem {
    of: AwaitedRecord,
    sums: LiveSums,
    ends: Vec<LastSlice>,
    /// Ubatch of its first graph that has one, 0 = not known.
    width: u32,
    pid: Option<u32>,
}

impl OpenItem {
    fn new(of: AwaitedRecord) -> OpenItem {
        OpenItem { of, sums: LiveSums::default(), ends: Vec::new(), width: 0, pid: None }
    }

    fn settle(&mut self, scheduler: &LiveScheduler, graph_end: Option<i64>) {
        for end in self.ends.drain(..) {
            let times = Edges::known(None, graph_end).times(&end.slice);
            self.sums.slice(end.ith, end.name, times);
            scheduler.thread(end.tid, end.slice.start).slice(end.slice.start, times, &mut self.sums.causes);
        }
    }
}

/// The sums of a live recording.
#[derive(Default)]
pub struct Live {
    names: Vec<String>,
    /// The name of each position.
    plans: Vec<(u32, Vec<u16>)>,
    open: Vec<OpenItem>,
    /// Widths of the graphs of calls that have not ended.
    widths: Vec<(u64, Width)>,
    batches: Batches<EndedCall>,
    /// The processes, in order of appearance.
    runs: Vec<LiveRun>,
    /// Index of the one shown, and whether the user chose it.
    shown: usize,
    chosen: bool,
    begun: Option<u64>,
    ticked: u64,
    /// The last block, and how many of its records were processed.
    fed: Option<(u32, usize)>,
    /// The level of the recording changes.
    steered: bool,
    /// What graphs are given are tokens: there are calls of llama.cpp, or tensors with its names.
    tokens: bool,
    devices: Devices,
    scheduler: LiveScheduler,
    sensors: LiveSensors,
    energy: LiveEnergy,
}

/// Maximum number of processes with separate figures; all others are summed.
const RUNS: usize = 64;

impl Live {
    /// Processes the new records of a block. Blocks come in order; the last one may come again when it has grown.
    pub fn feed(&mut self, block: &Block<'_>) {
        let known = self.fed.filter(|(seq, _)| *seq == block.seq()).map_or(0, |(_, records)| records);
        let mut defined = Loaded::default();
        let mut records = 0;
        for record in block.records() {
            records += 1;
            // A definition is valid for the rest of the block.
            let rest = record.ok().and_then(|r| defined.define(r));
            if let Some(record) = rest.filter(|_| records > known) {
                self.take(&defined, &record);
            }
        }
        self.fed = Some((block.seq(), records));
    }

    /// Advances the window to `t`, CLOCK_MONOTONIC ns. Call it from the beginning on, and a few times per second.
    pub fn tick(&mut self, t: u64) {
        self.begun.get_or_insert(t);
        self.ticked = t;
        self.runs.iter_mut().for_each(|run| run.tick(t));
        // Keep the same process while it computes: figures that jump between processes cannot be read.
        let rests = self.runs.get(self.shown).is_some_and(|run| !run.is_at_work());
        if rests && !self.chosen {
            let at_work = self.runs.iter().enumerate().filter(|(_, run)| run.is_at_work());
            self.shown = at_work.max_by_key(|(_, run)| run.calls()).map_or(self.shown, |(i, _)| i);
        }
    }

    /// Ends the input: items without an end count as they are, and the process with the most calls is shown, as
    /// in `report`.
    pub fn finish(&mut self) {
        for mut open in std::mem::take(&mut self.open) {
            open.settle(&self.scheduler, None);
            let width = self.width(open.width);
            self.add(open.pid, Phase::of_width(width.into()), &open.sums);
        }
        let rest = self.batches.finish();
        self.verified(rest);
        if !self.chosen {
            // On a tie the first.
            let most = self.runs.iter().enumerate().rev().max_by_key(|(_, run)| run.calls());
            self.shown = most.map_or(0, |(i, _)| i);
        }
    }

    /// The last seconds before `t`, for the process shown.
    pub fn now(&self, t: u64) -> LiveSpan {
        let ns = t.saturating_sub(self.begun.unwrap_or(t));
        let Some(run) = self.runs.get(self.shown) else {
            return LiveSpan { seconds: ns.min(WINDOW_NS) as f64 / 1e9, ..LiveSpan::default() };
        };
        self.span(t.saturating_sub(run.since()), run, &run.lately(), &run.devices_lately())
    }

    /// All of the time from the first tick to `t`, for the process shown.
    pub fn whole(&self, t: u64) -> LiveSpan {
        let ns = t.saturating_sub(self.begun.unwrap_or(t));
        match self.runs.get(self.shown) {
            Some(run) => self.span(ns, run, &run.total, &run.devices),
            None => LiveSpan { seconds: ns as f64 / 1e9, ..LiveSpan::default() },
        }
    }

    /// The processes with calls or graphs.
    pub fn processes(&self) -> Vec<ProcessSpan> {
        self.runs.iter().enumerate().map(|(i, run)| run.row(i == self.shown)).collect()
    }

    /// The sums of a process so far. None: nothing of it was seen, or it is one of those after the 64th, which are summed
    /// together.
    pub fn work(&self, pid: u32) -> Option<Work> {
        let run = self.runs.iter().find(|run| run.pid == Some(pid))?;
        let source = run.source();
        Some(run.total.each_ref().map(|sums| PhaseWork::of(sums, source)))
    }

    /// Whether some processes have no sums of their own.
    pub fn is_crowded(&self) -> bool {
        self.runs.iter().any(|run| run.pid.is_none())
    }

    /// Energy of the calls of these processes, in the last ten seconds.
    pub fn energy(&self, pids: &[u32]) -> EnergyNow {
        self.energy.now(pids)
    }

    /// Drops the sums of a process, which has ended.
    pub fn forget(&mut self, pid: u32) {
        self.runs.retain(|run| run.pid != Some(pid));
    }

    /// What comes from now on is another trace of the same recording.
    pub fn next_trace(&mut self) {
        self.fed = None;
    }

    /// Ends a step of the speeds' history: one update of the display.
    pub fn mark(&mut self) {
        self.runs.iter_mut().for_each(LiveRun::mark);
    }

    /// Tokens/s of the process shown in each of the last steps, oldest first. None: no call ended in that step, or
    /// the number of its tokens is not known.
    pub fn speeds(&self, phase: Phase) -> Vec<Option<f64>> {
        self.runs.get(self.shown).map_or_else(Vec::new, |run| run.speeds(phase))
    }

    /// The machine's sensors, as last read.
    pub fn sensors(&self) -> Vec<SensorNow> {
        self.sensors.now()
    }

    /// Shows the next process, and keeps showing it.
    pub fn show_next(&mut self) {
        self.shown = (self.shown + 1) % self.runs.len().max(1);
        self.chosen = true;
    }

    /// Sums of a process; for an unknown one, those of the process shown.
    fn total(&mut self, pid: Option<u32>) -> Option<&mut Phases> {
        self.run(pid).map(|run| &mut run.total)
    }

    fn run(&mut self, pid: Option<u32>) -> Option<&mut LiveRun> {
        let at = match pid {
            None => self.shown,
            Some(_) => self.runs.iter().position(|run| run.pid == pid).unwrap_or_else(|| {
                let pid = pid.filter(|_| self.runs.len() < RUNS);
                if self.runs.len() <= RUNS {
                    self.runs.push(LiveRun::new(pid, self.ticked));
                }
                self.runs.len() - 1
            }),
        };
        self.runs.get_mut(at)
    }

    fn take(&mut self, defined: &Loaded<'_>, record: &Record<'_>) {
        match record {
            Record::Slices(run) => self.slices(defined, run),
            Record::CpuGraph(g) => self.cpu_graph(g),
            Record::Graph(g) => self.graph(g),
            Record::Token(t) => self.token(t),
            Record::Ubatch(u) => self.batches.take(u),
            Record::Memory(m) => self.batches.memory(m),
            Record::Backend(b) => self.devices.define(b),
            Record::Split(s) => self.split(s),
            Record::DeviceKernels(k) if k.are_single() => {
                if let Some(run) = self.run(Some(k.pid)) {
                    run.devices.kernels(k);
                }
            }
            Record::Submissions(of) => {
                for (pid, from, to) in submitted(of) {
                    // Others use the device as well, and make no calls here.
                    if let Some(run) = self.runs.iter_mut().find(|run| run.pid == Some(pid)) {
                        run.devices.submission(from, to);
                    }
                }
            }
            Record::LevelChange(r) => {
                self.steered = true;
                self.scheduler.level(r);
            }
            Record::OffCpu(r) => self.scheduler.off_cpu(r),
            Record::Feature(r) => self.scheduler.feature(r),
            Record::Sensor(r) => {
                self.sensors.define(r);
                self.energy.define(r);
            }
            Record::Sample(r) => {
                self.sensors.sample(r);
                self.energy.sample(r);
            }
            _ => {}
        }
    }

    fn split(&mut self, s: &Split) {
        let Some(at) = self.devices.number(s.backend) else { return };
        if let Some(run) = self.run(Some(s.pid)) {
            run.devices.split(at, s);
        }
        let counted = !self.devices.is_host(at) && !s.cut && s.device != Device::Unseen;
        if let Some(graph) = s.graph.filter(|_| counted) {
            let open = self.open(AwaitedRecord::Graph(graph));
            if let Some(open) = self.open.get_mut(open) {
                open.sums.device_ns = open.sums.device_ns.saturating_add(s.dur);
                open.pid = Some(s.pid);
            }
        }
    }

    fn slices(&mut self, defined: &Loaded<'_>, run: &Slices<'_>) {
        let (plan, open) = (self.plan(defined, run.plan), self.open(AwaitedRecord::CpuGraph(run.graph)));
        let beyond = name(&mut self.names, NO_STRUCTURE.into());
        let (Some((_, names)), Some(open)) = (self.plans.get(plan), self.open.get_mut(open)) else { return };
        if let Some(at) = open.ends.iter().position(|e| (e.ith, e.plan) == (run.ith, run.plan)) {
            let end = open.ends.swap_remove(at);
            let joined = (end.next == run.first).then_some(run.t);
            let times = Edges::known(joined, None).times(&end.slice);
            open.sums.slice(end.ith, end.name, times);
            let mut thread = self.scheduler.thread(end.tid, end.slice.start);
            thread.slice(end.slice.start, times, &mut open.sums.causes);
        }
        let mut thread = self.scheduler.thread(run.tid, run.t);
        for (i, slice) in (0..).zip(slice_iter(run)) {
            let at = run.first.saturating_add(i);
            let name = names.get(at as usize).copied().unwrap_or(beyond);
            if i + 1 == run.n && open.ends.len() < ENDS {
                let next = at.saturating_add(1);
                open.ends.push(LastSlice { ith: run.ith, tid: run.tid, plan: run.plan, next, name, slice });
            } else {
                let times = Edges::known(None, None).times(&slice);
                open.sums.slice(run.ith, name, times);
                thread.slice(slice.start, times, &mut open.sums.causes);
            }
        }
    }

    fn cpu_graph(&mut self, g: &CpuGraph) {
        let mut open = self.close(AwaitedRecord::CpuGraph(g.seq));
        open.settle(&self.scheduler, Some(g.t.saturating_add_unsigned(g.dur)));
        let sums = &mut open.sums;
        // If probes were attached or detached, or the recording ended, ops are missing and their time is charged
        // to the preceding op.
        if g.cut {
            *sums = LiveSums::default();
        // A graph recorded below level op cannot be compared with one that has ops.
        } else if g.plan.is_some() || !self.steered {
            let ran = !sums.threads.is_empty();
            sums.graphs.graphs += 1;
            sums.graphs.graph_ns = sums.graphs.graph_ns.saturating_add(g.dur);
            sums.graphs.barrier += u64::from(g.barrier && ran);
            sums.graphs.interval += u64::from(!g.barrier && ran);
            sums.team += u64::from(sums.threads.len() > 1);
        } else {
            sums.graphs.below += 1;
        }
        let ubatch = self.width(g.ubatch);
        let phase = Phase::of_width(ubatch.into());
        let (pid, end) = (Some(g.pid), ending(g.cut, Device::Idle));
        let ended = EndedCall { pid: g.pid, start: g.t, dur: g.dur, end, device: 0 };
        self.step(CallSource::CpuGraph, phase, &ended);
        self.call(CallSource::CpuGraph, phase, known(ubatch), &ended);
        match g.graph {
            Some(seq) => self.hold(AwaitedRecord::Graph(seq), pid, &open.sums, g.ubatch),
            None => {
                open.sums.op_tokens += if open.sums.ops.is_empty() { 0 } else { u64::from(ubatch) };
                self.add(pid, phase, &open.sums);
            }
        }
    }

    fn graph(&mut self, g: &Graph) {
        let OpenItem { mut sums, width, .. } = self.close(AwaitedRecord::Graph(g.seq));
        let width = if g.ubatch > 0 { g.ubatch } else { width };
        let alone = if g.token.is_some() { width } else { self.width(width) };
        sums.op_tokens = if sums.ops.is_empty() { 0 } else { alone.into() };
        let own = Phase::of_width(alone.into());
        let (pid, end) = (Some(g.pid), ending(g.cut, g.device));
        let ended = EndedCall { pid: g.pid, start: g.t, dur: g.dur, end, device: g.device.waited() };
        self.step(CallSource::SchedulerGraph, own, &ended);
        self.call(CallSource::SchedulerGraph, own, known(alone), &ended);
        // How many of them a draft brings is not known.
        if g.token.and_then(|seq| self.batches.of(seq)) == Some(BatchShape::Drafts) {
            sums.op_tokens = 0;
        }
        let of_call = g.token.map(|seq| (seq, self.widen(seq, width)));
        match of_call {
            Some((seq, Phase::Unknown)) => self.hold(AwaitedRecord::Call(seq), pid, &sums, 0),
            Some((_, phase)) => self.add(pid, phase, &sums),
            None => self.add(pid, own, &sums),
        }
    }

    fn token(&mut self, t: &Token) {
        self.tokens = true;
        let at = self.widths.iter().position(|(seq, _)| *seq == t.seq);
        let width = at.map(|at| self.widths.remove(at).1).unwrap_or_default();
        let mut call = Call {
            seq: t.seq,
            pid: t.pid,
            tid: t.tid,
            entry: Some(t.entry),
            start: t.t,
            dur: t.dur,
            tokens: t.n_tokens.map(u64::from),
            phase: Phase::Unknown,
            graphs: 0,
            cut: t.cut,
            unseen: t.device == Device::Unseen,
            device: t.device.waited(),
        };
        settle(&mut call, &width);
        let (dur, end, device) = (call.dur, ending(t.cut, t.device), t.device.waited());
        let ended = EndedCall { pid: t.pid, start: t.t, dur, end, device };
        let (seen, encodes) = (ended.end == Ending::Known, t.entry == Entry::Encode);
        let (id, pid, end) = (t.seq, t.pid, call.end());
        let of_batch = requests::Call { id, pid, context: 0, width: 0, start: t.t, end, seen, encodes };
        let (shape, brought) = self.batches.end(of_batch, ended);
        match shape {
            Some(BatchShape::Single | BatchShape::Drafts) => call.phase = Phase::Decode,
            // Its graphs were not recorded.
            Some(BatchShape::Other) if call.phase == Phase::Unknown => call.phase = Phase::Prefill,
            Some(BatchShape::Other) | None => {}
        }
        self.step(CallSource::Token, call.phase, &ended);
        let pid = Some(t.pid);
        let known = match brought {
            Brought::Unknown(ended) => Some((ended, call.tokens)),
            Brought::Tokens(ended, n) => Some((ended, Some(n))),
            Brought::Later => None,
        };
        if let Some((ended, tokens)) = known {
            self.call(CallSource::Token, call.phase, tokens, &ended);
        }
        let settled = self.batches.settled();
        self.verified(settled);
        let mut sums = self.close(AwaitedRecord::Call(t.seq)).sums;
        sums.op_tokens = if sums.ops.is_empty() { 0 } else { call.tokens.unwrap_or(0) };
        self.add(pid, call.phase, &sums);
    }

    /// Calls with drafts whose results are known.
    fn verified(&mut self, calls: Vec<(EndedCall, u64)>) {
        for (c, tokens) in calls {
            self.call(CallSource::Token, Phase::Decode, Some(tokens), &c);
        }
    }

    fn step(&mut self, source: CallSource, phase: Phase, c: &EndedCall) {
        if let Some(run) = self.run(Some(c.pid)) {
            let seen = (c.end != Ending::Unseen).then_some((c.start, c.dur));
            run.step(source as usize, phase, seen);
        }
    }

    fn call(&mut self, source: CallSource, phase: Phase, tokens: Option<u64>, c: &EndedCall) {
        let Some(total) = self.total(Some(c.pid)) else { return };
        let sum = &mut total[phase as usize].calls[source as usize];
        sum.calls += 1;
        match c.end {
            Ending::Known => {}
            Ending::Cut => sum.cut += 1,
            Ending::Unseen => sum.unseen += 1,
        }
        if c.end != Ending::Known {
            return;
        }
        sum.tokens = sum.tokens.saturating_add(tokens.unwrap_or(0));
        sum.unknown += u64::from(tokens.is_none());
        sum.ns = sum.ns.saturating_add(c.dur);
        sum.device = sum.device.saturating_add(c.device);
        self.energy.call(source, phase, tokens, c);
    }

    fn add(&mut self, pid: Option<u32>, phase: Phase, sums: &LiveSums) {
        if let Some(total) = self.total(pid) {
            total[phase as usize].combine(sums, u64::saturating_add);
        }
    }

    /// Adds the width of a graph to those of its call, and returns the call's phase as far as it is known.
    fn widen(&mut self, call: u64, width: u32) -> Phase {
        let batch = self.batches.of(call);
        let at = self.widths.iter().rposition(|(seq, _)| *seq == call).unwrap_or_else(|| {
            if self.widths.len() == OPEN {
                self.widths.remove(0);
            }
            self.widths.push((call, Width::default()));
            self.widths.len() - 1
        });
        self.widths.get_mut(at).map_or(Phase::Unknown, |(_, of_call)| {
            of_call.add(width.into());
            match batch {
                Some(BatchShape::Single | BatchShape::Drafts) => Phase::Decode,
                Some(BatchShape::Other) | None => Phase::of_width(of_call.widest),
            }
        })
    }

    /// Index of an open item.
    fn open(&mut self, of: AwaitedRecord) -> usize {
        if let Some(at) = self.open.iter().rposition(|o| o.of == of) {
            return at;
        }
        if self.open.len() == OPEN {
            let mut oldest = self.open.remove(0);
            oldest.settle(&self.scheduler, None);
            let width = self.width(oldest.width);
            self.add(oldest.pid, Phase::of_width(width.into()), &oldest.sums);
        }
        self.open.push(OpenItem::new(of));
        self.open.len() - 1
    }

    fn close(&mut self, of: AwaitedRecord) -> OpenItem {
        let at = self.open.iter().rposition(|o| o.of == of);
        at.map_or_else(|| OpenItem::new(of), |at| self.open.remove(at))
    }

    fn hold(&mut self, of: AwaitedRecord, pid: Option<u32>, sums: &LiveSums, width: u32) {
        let at = self.open(of);
        if let Some(open) = self.open.get_mut(at) {
            open.sums.combine(sums, u64::saturating_add);
            open.width = if open.width == 0 { width } else { open.width };
            open.pid = pid;
        }
    }

    /// The tokens of a graph outside of calls; 0: not known, or none.
    fn width(&self, ubatch: u32) -> u32 {
        if self.tokens { ubatch } else { 0 }
    }

    /// Index of a plan, with the names of its positions.
    fn plan(&mut self, defined: &Loaded<'_>, id: u32) -> usize {
        if let Some(at) = self.plans.iter().rposition(|(plan, _)| *plan == id) {
            return at;
        }
        let hits = defined.plans.get(&id).map_or(&[][..], |p| &p.hits[..]);
        self.tokens |=
            hits.iter().any(|(first, _)| defined.tensors.get(first).is_some_and(reads_or_gives_tokens));
        let names = hits.iter().enumerate().map(|(position, hit)| {
            let ident = describe(defined, position, Some(*hit));
            name(&mut self.names, label(&ident, OpKey::Name))
        });
        let names = names.collect();
        if self.plans.len() == PLANS {
            self.plans.remove(0);
        }
        self.plans.push((id, names));
        self.plans.len() - 1
    }

    fn span(&self, ns: u64, run: &LiveRun, sums: &Phases, devices: &DeviceSums) -> LiveSpan {
        let source = run.source();
        let phases =
            Phase::ALL.into_iter().zip(sums).map(|(phase, s)| PhaseSpan::new(phase, s, &self.names, source));
        let there = |p: &PhaseSpan| p.calls > 0 || p.cpu_graphs > 0 || !p.ops.is_empty();
        let in_calls =
            sums.iter().filter_map(|s| s.calls.get(source)).fold(0, |all: u64, c| all.saturating_add(c.ns));
        let devices = self.devices.rows(devices, in_calls);
        LiveSpan { seconds: ns as f64 / 1e9, phases: phases.filter(there).collect(), devices }
    }
}

/// Index of a name, which is added if it is new.
fn name(names: &mut Vec<String>, name: String) -> u16 {
    let name = if names.len() < NAMES || names.contains(&name) { name } else { OTHER_ROW.into() };
    let at = names.iter().position(|n| *n == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    at as u16
}

/// A width, if it is known.
fn known(width: u32) -> Option<u64> {
    (width > 0).then_some(width.into())
}

#[cfg(test)]
mod tests;
