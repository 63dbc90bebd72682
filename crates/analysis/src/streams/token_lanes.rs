//! Every slice and off-CPU time of a few calls of a run, thread by thread: the input of a page's timeline. The calls
//! are chosen so that all of their slices stay within a limit.

use std::collections::{BTreeSet, HashMap};

use crate::recorded::calls::{Call, Phase, Timeline};
use crate::recorded::idents::Idents;
use crate::recorded::load::Loaded;
use crate::recorded::selection::SelectedPart;
use crate::sums::attribution::interference::Culprits;
use crate::sums::attribution::parts::Off;
use crate::sums::attribution::sched::{OffCpuSpan, OffCpuTimes};
use crate::sums::op_cpus::CpuChanges;
use crate::sums::ops::Edges;
use crate::sums::tables::backend_name;
use common::order;
use pfi::slice_iter;

/// Maximum calls.
const CALLS: usize = 240;
/// Maximum off-CPU times of a thread in a call.
const OFF_CPU: usize = 4096;

/// Why a call was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    Slowest,
    Median,
    First,
    /// One of some that are evenly spaced.
    Spaced,
}

/// The slices of a thread that belong to one run of plan positions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SliceGroup {
    /// Ident of each slice.
    pub idents: Vec<Option<usize>>,
    /// Start after the call's start, op time and barrier wait, ns; a time that was not seen is `None`.
    pub slices: Vec<(i64, Option<u64>, Option<u64>)>,
}

/// What a thread was doing while it had no CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffState {
    /// Another thread took its CPU.
    Preempted,
    /// Woken, but not yet on a CPU.
    Runnable,
    Idle,
    PageFault,
    Io,
    Blocked,
}

/// A time off-CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OffCpuMark {
    pub state: OffState,
    /// After the call's start, ns.
    pub from: i64,
    pub ns: u64,
    /// Index in [`TokenLanes::culprits`] of who had the CPU, and which CPU; for times in which it was runnable.
    pub by: Option<(usize, u16)>,
}

/// A thread in a call.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadLane {
    pub ith: u16,
    pub tid: u32,
    pub groups: Vec<SliceGroup>,
    /// The CPU of its slices from a time on, after the call's start, ns; `None`: not known.
    pub cpus: Vec<(i64, Option<u16>)>,
    /// `None` if its off-CPU times are not known.
    pub off_cpu: Option<Vec<OffCpuMark>>,
    /// Off-CPU times beyond the maximum of a thread.
    pub off_cpu_left_out: usize,
}

/// A call with all of its slices.
#[derive(Debug, Clone, PartialEq)]
pub struct CallLanes {
    pub seq: u64,
    pub phase: Phase,
    pub why: Chosen,
    pub dur: u64,
    pub threads: Vec<ThreadLane>,
    /// Start after the call's start, duration in ns, and backend.
    pub splits: Vec<(i64, u64, String)>,
}

/// The calls that were chosen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenLanes {
    /// In time order.
    pub calls: Vec<CallLanes>,
    /// Programs that had a CPU while a thread was runnable.
    pub culprits: Vec<String>,
    /// By ident: op, name with `{L}` for the layer, and layer.
    pub ops: HashMap<usize, (String, String, Option<u32>)>,
    /// Calls with slices that were not chosen.
    pub left_out: usize,
    /// Maximum slices, as requested.
    pub most: usize,
}

/// Chooses calls with up to `most` slices together and reads them. Needs the runs in the order of
/// [`crate::sums::ops::sort_runs`].
pub fn token_lanes(
    loaded: &Loaded<'_>,
    line: &Timeline,
    idents: &Idents,
    part: &SelectedPart,
    most: usize,
) -> TokenLanes {
    let reader = LaneReader::new(loaded, line, idents);
    let sizes = reader.sizes();
    let shown = |call: &Call| part.pid.is_none_or(|pid| pid == call.pid);
    let able: Vec<usize> = (0..line.calls.len())
        .filter(|i| sizes.get(*i).is_some_and(|n| *n > 0))
        .filter(|i| line.calls.get(*i).is_some_and(|c| !c.cut && shown(c)))
        .collect();
    let chosen = choose(line, &able, &sizes, most);
    let mut out = TokenLanes { left_out: able.len() - chosen.len(), most, ..TokenLanes::default() };
    for (call, why) in chosen {
        out.calls.extend(reader.call(call, why, &mut out.culprits));
    }
    let used = out.calls.iter().flat_map(|c| &c.threads).flat_map(|t| &t.groups).flat_map(|g| &g.idents);
    let used: BTreeSet<usize> = used.flatten().copied().collect();
    for ident in used {
        if let Some(known) = idents.list().get(ident) {
            out.ops.insert(ident, (known.op.clone(), known.name.clone(), known.layer));
        }
    }
    out
}

/// Of decode the slowest, the median and the first call, of the other phases the slowest and the first, then
/// evenly spaced ones of decode, or of what there is.
fn choose(line: &Timeline, able: &[usize], sizes: &[usize], most: usize) -> Vec<(usize, Chosen)> {
    let dur = |i: usize| line.calls.get(i).map_or(0, |c| c.dur);
    let of = |phase: Phase| -> Vec<usize> {
        able.iter().copied().filter(|i| line.calls.get(*i).is_some_and(|c| c.phase == phase)).collect()
    };
    let phases = [Phase::Decode, Phase::Prefill, Phase::Unknown].map(of);
    let mut wanted: Vec<(usize, Chosen)> = Vec::new();
    for calls in &phases {
        let mut by_time = calls.clone();
        order::by_key(&mut by_time, |i| (dur(*i), *i as u64));
        wanted.extend(by_time.last().map(|i| (*i, Chosen::Slowest)));
        wanted.extend(by_time.get(by_time.len() / 2).map(|i| (*i, Chosen::Median)));
        wanted.extend(calls.first().map(|i| (*i, Chosen::First)));
    }
    let mut left = most;
    let mut out: Vec<(usize, Chosen)> = Vec::new();
    let mut take = |(i, why): (usize, Chosen), out: &mut Vec<(usize, Chosen)>| {
        let size = sizes.get(i).copied().unwrap_or(usize::MAX);
        if out.len() < CALLS && size <= left && out.iter().all(|(known, _)| *known != i) {
            left -= size;
            out.push((i, why));
        }
        left
    };
    let left = wanted.into_iter().fold(most, |_, call| take(call, &mut out));
    let spaced = phases.iter().find(|calls| !calls.is_empty()).map_or(&[][..], Vec::as_slice);
    let slices: usize = spaced.iter().filter_map(|i| sizes.get(*i)).sum();
    let mean = slices.div_ceil(spaced.len().max(1)).max(1);
    let fit = (left / mean).min(CALLS).min(spaced.len());
    for k in 0..fit {
        if let Some(i) = spaced.get(k * spaced.len() / fit) {
            take((*i, Chosen::Spaced), &mut out);
        }
    }
    order::by_key(&mut out, |(i, _)| (*i as u64, 0));
    out
}

/// Reads calls out of a trace.
struct LaneReader<'l, 'a> {
    loaded: &'l Loaded<'a>,
    line: &'l Timeline,
    idents: &'l Idents,
    sched: OffCpuTimes,
    cpus: CpuChanges,
    culprits: Culprits,
    /// Index of the CPU graph by its number.
    graphs: HashMap<u64, usize>,
    /// Runs by call.
    runs: Vec<Vec<usize>>,
}

impl<'l, 'a> LaneReader<'l, 'a> {
    fn new(loaded: &'l Loaded<'a>, line: &'l Timeline, idents: &'l Idents) -> Self {
        let graphs: HashMap<u64, usize> =
            loaded.cpu_graphs.iter().enumerate().map(|(i, g)| (g.seq, i)).collect();
        let mut runs = vec![Vec::new(); line.calls.len()];
        for (i, run) in loaded.runs.iter().enumerate() {
            let call = graphs.get(&run.graph).and_then(|g| *line.cpu_call.get(*g)?);
            if let Some(list) = call.and_then(|c| runs.get_mut(c)) {
                list.push(i);
            }
        }
        let (sched, culprits) = (OffCpuTimes::new(loaded), Culprits::new(loaded));
        let cpus = CpuChanges::new(&loaded.causes.cpus);
        LaneReader { loaded, line, idents, sched, cpus, culprits, graphs, runs }
    }

    /// Slices of each call.
    fn sizes(&self) -> Vec<usize> {
        let of = |runs: &Vec<usize>| {
            runs.iter()
                .filter_map(|i| self.loaded.runs.get(*i))
                .fold(0usize, |n, run| n.saturating_add(run.n as usize))
        };
        self.runs.iter().map(of).collect()
    }

    fn call(&self, index: usize, why: Chosen, names: &mut Vec<String>) -> Option<CallLanes> {
        let call = self.line.calls.get(index)?;
        let mut threads: Vec<ThreadLane> = Vec::new();
        for at in self.runs.get(index)? {
            let Some(run) = self.loaded.runs.get(*at) else { continue };
            let group = self.group(*at, call.start);
            match threads.iter_mut().find(|t| (t.ith, t.tid) == (run.ith, run.tid)) {
                Some(thread) => thread.groups.push(group),
                None => threads.push(ThreadLane {
                    ith: run.ith,
                    tid: run.tid,
                    groups: vec![group],
                    cpus: Vec::new(),
                    off_cpu: None,
                    off_cpu_left_out: 0,
                }),
            }
        }
        order::by_key(&mut threads, |t| (t.ith.into(), t.tid.into()));
        for thread in &mut threads {
            order::by_key(&mut thread.groups, |g| (g.slices.first().map_or(0, |s| order::time(s.0)), 0));
            thread.cpus = self.cpus(thread, call.start);
            let Some(spans) = self.sched.thread(thread.tid, call.start, call.end()) else { continue };
            let from = spans.partition_point(|s| s.to <= call.start);
            let to = spans.partition_point(|s| s.from < call.end());
            let within = spans.get(from..to).unwrap_or_default();
            let shown = within.get(..within.len().min(OFF_CPU)).unwrap_or_default();
            thread.off_cpu = Some(self.off_cpu(shown, call, names));
            thread.off_cpu_left_out = within.len() - shown.len();
        }
        let (seq, phase, dur) = (call.seq, call.phase, call.dur);
        Some(CallLanes { seq, phase, why, dur, threads, splits: self.splits(call) })
    }

    fn group(&self, at: usize, start: i64) -> SliceGroup {
        let Some(run) = self.loaded.runs.get(at) else { return SliceGroup::default() };
        let next = self.loaded.runs.get(at + 1).filter(|n| (n.graph, n.plan) == (run.graph, run.plan));
        let graph = self.graphs.get(&run.graph).and_then(|g| self.loaded.cpu_graphs.get(*g));
        let edges = Edges::new(run, next, graph);
        let idents = self.idents.of_plan(run.plan);
        let mut out = SliceGroup::default();
        for (position, slice) in (run.first as usize..).zip(slice_iter(run)) {
            let (time, wait) = edges.times(&slice);
            out.idents.push(idents.get(position).copied());
            out.slices.push((slice.start.saturating_sub(start), time, wait));
        }
        out
    }

    /// Where the slices of a thread, whose groups are in order, change their CPU.
    fn cpus(&self, thread: &ThreadLane, start: i64) -> Vec<(i64, Option<u16>)> {
        let mut cursor = self.cpus.cursor(thread.tid, start);
        let mut out: Vec<(i64, Option<u16>)> = Vec::new();
        for (from, _, _) in thread.groups.iter().flat_map(|g| &g.slices) {
            let cpu = cursor.at(start.saturating_add(*from));
            if out.last().and_then(|last| last.1) != cpu {
                out.push((*from, cpu));
            }
        }
        out
    }

    /// The off-CPU times of a thread within a call.
    fn off_cpu(&self, spans: &[OffCpuSpan], call: &Call, names: &mut Vec<String>) -> Vec<OffCpuMark> {
        let (start, end) = (call.start, call.end());
        let mut out = Vec::new();
        for span in spans {
            let mut mark = |state: OffState, from: i64, to: i64, by| {
                let (from, to) = (from.max(start), to.min(end));
                if from < to {
                    out.push(OffCpuMark {
                        state,
                        from: from.saturating_sub(start),
                        ns: from.abs_diff(to),
                        by,
                    });
                }
            };
            let before = match span.kind {
                Off::Preempted => None,
                Off::Idle | Off::Asleep => Some(OffState::Idle),
                Off::Faulting => Some(OffState::PageFault),
                Off::Io => Some(OffState::Io),
                Off::Blocked => Some(OffState::Blocked),
            };
            let by = self.by(span, names);
            match before {
                None => mark(OffState::Preempted, span.from, span.to, by),
                Some(state) => {
                    mark(state, span.from, span.runnable, None);
                    mark(OffState::Runnable, span.runnable, span.to, by);
                }
            }
        }
        out
    }

    /// Who had the CPU, as an index into `names`, and which CPU.
    fn by(&self, span: &OffCpuSpan, names: &mut Vec<String>) -> Option<(usize, u16)> {
        let record = self.loaded.causes.off_cpu.get(span.record)?;
        let cpu = if span.kind == Off::Preempted { record.cpu } else { record.to_cpu };
        let name = self.culprits.name(span.record);
        let at = names.iter().position(|known| known == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        });
        Some((at, cpu))
    }

    fn splits(&self, call: &Call) -> Vec<(i64, u64, String)> {
        let inside = |t: i64| call.start <= t && t < call.end();
        let of_call = self.loaded.splits.iter().filter(|s| s.pid == call.pid && !s.cut && inside(s.t));
        of_call
            .map(|s| {
                (s.t.saturating_sub(call.start), s.dur, backend_name(self.loaded, s.backend).to_string())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::calls::{CallSource, RunWork};

    fn line(durations: &[u64]) -> Timeline {
        let call = |(i, dur): (usize, &u64)| Call {
            seq: i as u64,
            pid: 1,
            tid: 1,
            entry: None,
            start: i as i64 * 1000,
            dur: *dur,
            tokens: Some(1),
            phase: if i == 0 { Phase::Prefill } else { Phase::Decode },
            graphs: 1,
            cut: false,
            unseen: false,
            device: 0,
        };
        Timeline {
            source: CallSource::Token,
            work: RunWork::Tokens,
            calls: durations.iter().enumerate().map(call).collect(),
            cpu_phase: Vec::new(),
            cpu_call: Vec::new(),
            graph_phase: HashMap::new(),
            graph_call: HashMap::new(),
            sequences: None,
        }
    }

    #[test]
    fn the_slowest_the_median_and_the_first_come_before_others() {
        let mut durations = vec![50u64; 101];
        (durations[0], durations[40], durations[1]) = (500, 90, 10);
        let line = line(&durations);
        let able: Vec<usize> = (0..101).collect();
        let sizes = vec![100; 101];
        let chosen = |most| choose(&line, &able, &sizes, most);
        let seen: Vec<usize> = chosen(400).iter().map(|c| c.0).collect();
        assert_eq!(seen.len(), 4, "{seen:?}");
        assert!(seen.contains(&40) && seen.contains(&1) && seen.contains(&0), "{seen:?}");
        assert_eq!(chosen(400).iter().find(|c| c.0 == 40), Some(&(40, Chosen::Slowest)));
        assert_eq!(chosen(99), []);
        assert_eq!(chosen(1_000_000).len(), 101);
        // Those in between are evenly spaced, and no limit is exceeded.
        let some = chosen(2000);
        assert!((14..=20).contains(&some.len()), "{some:?}");
        let gaps = some.windows(2).map(|w| w[1].0 - w[0].0).max();
        assert!(gaps <= Some(8), "{some:?}");
    }
}
