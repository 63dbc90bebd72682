//! Additional timeline tracks next to calls and ops: thread states, values over time, and the recorder's
//! messages.

use std::collections::BTreeMap;
use std::io;

use super::{ArgValue, SliceArgs, TimelineRun, TimelineSink, category, executed};
use analysis::recorded::sequences::Sequences;
use analysis::streams::gauges::gauges;
use analysis::streams::lanes::LaneOwner;
use analysis::sums::attribution::interference::Culprits;
use analysis::sums::attribution::levels;
use analysis::sums::attribution::parts::Off;
use analysis::sums::attribution::sched::{OffCpuSpan, OffCpuTimes};
use common::order;
use requests::ChunkWork;

/// Draws all of these tracks; `pids` are the processes drawn.
pub fn draw(run: &TimelineRun<'_, '_>, pids: &[u32], sink: &mut dyn TimelineSink) -> io::Result<()> {
    states(run, sink)?;
    executed::draw(run, sink)?;
    sequences(run, pids, sink)?;
    for g in gauges(run.loaded, run.line, &run.lanes.select) {
        if g.values.is_empty() || g.pid.is_some_and(|pid| !pids.contains(&pid)) {
            continue;
        }
        sink.track(g.pid, None, &g.name, Some(&g.unit))?;
        for (t, value) in &g.values {
            sink.value(*t, &g.name, *value)?;
        }
    }
    recorder(run, sink)
}

/// Tracks drawn; the calls themselves show all.
const SEQUENCES: usize = 256;

/// Draws the sequences of the processes drawn, if any call computed for several or verified a draft, or if there are
/// several contexts.
fn sequences(run: &TimelineRun<'_, '_>, pids: &[u32], sink: &mut dyn TimelineSink) -> io::Result<()> {
    let Some(all) = run.line.sequences.as_ref() else { return Ok(()) };
    let mut contexts: Vec<(u32, u64)> = Vec::new();
    let mut tracks: BTreeMap<(u32, usize, i64), Vec<(usize, usize)>> = BTreeMap::new();
    let select = &run.lanes.select;
    for (i, (call, work)) in run.line.calls.iter().zip(&all.works).enumerate() {
        let Some(work) = work.as_ref().filter(|_| pids.contains(&call.pid)) else { continue };
        let own = (call.pid, work.context);
        let context = contexts.iter().position(|c| *c == own).unwrap_or_else(|| {
            contexts.push(own);
            contexts.len() - 1
        });
        if call.end() < select.from || call.start >= select.to {
            continue;
        }
        for (at, chunk) in work.chunks.iter().enumerate() {
            let key = (call.pid, context, chunk.0.seq);
            if tracks.contains_key(&key) || tracks.len() < SEQUENCES {
                let list = tracks.entry(key).or_default();
                // Slices of a track do not overlap.
                let before = list.last().and_then(|(before, _)| run.line.calls.get(*before));
                if before.is_none_or(|before| before.end() <= call.start) {
                    list.push((i, at));
                }
            }
        }
    }
    if tracks.len() < 2 && !all.requests.iter().any(|r| r.steps.iter().any(|s| s.drafted > 0)) {
        return Ok(());
    }
    let several = |pid: u32| contexts.iter().filter(|c| c.0 == pid).count() > 1;
    for ((pid, context, seq), chunks) in tracks {
        let number = contexts.iter().take(context + 1).filter(|c| c.0 == pid).count();
        let name = match several(pid) {
            true => format!("sequence {seq} of context {number}"),
            false => format!("sequence {seq}"),
        };
        sink.track(Some(pid), None, &name, None)?;
        chunks.into_iter().try_for_each(|(call, at)| chunk(run, all, call, at, sink))?;
    }
    Ok(())
}

fn chunk(
    run: &TimelineRun<'_, '_>,
    all: &Sequences,
    index: usize,
    at: usize,
    sink: &mut dyn TimelineSink,
) -> io::Result<()> {
    let found = || Some((run.line.calls.get(index)?, all.works.get(index)?.as_ref()?.chunks.get(at)?));
    let Some((call, (chunk, kind, request))) = found() else { return Ok(()) };
    let name = match kind {
        ChunkWork::Prefill => "prefill",
        ChunkWork::Decode => "decode",
        ChunkWork::Verify => "verify",
        ChunkWork::Encode => "encode",
    };
    let mut values: SliceArgs =
        vec![(super::TOKEN, ArgValue::Count(call.seq)), ("tokens", ArgValue::Count(chunk.tokens))];
    if let Ok(pos) = u64::try_from(chunk.pos) {
        values.push(("position", ArgValue::Count(pos)));
    }
    values.push(("request", ArgValue::Count(*request as u64)));
    let accepted = || all.requests.get(*request)?.step_of(index)?.accepted;
    if *kind == ChunkWork::Verify
        && let Some(accepted) = accepted()
    {
        values.push(("accepted", ArgValue::Count(accepted)));
    }
    sink.begin(
        call.start,
        super::SliceName::Other { name, category: category::SEQUENCE, values: &values, flow: None },
    )?;
    sink.end(call.end())
}

/// Thread states, if the scheduler was recorded: a track under each thread.
fn states(run: &TimelineRun<'_, '_>, sink: &mut dyn TimelineSink) -> io::Result<()> {
    let sched = OffCpuTimes::new(run.loaded);
    if !sched.any() {
        return Ok(());
    }
    let culprits = Culprits::new(run.loaded);
    for lane in &run.lanes.list {
        let LaneOwner::Thread { pid, tid, .. } = lane.place else { continue };
        let list = sched.recorded(tid);
        let select = &run.lanes.select;
        let (from, to) =
            (list.partition_point(|a| a.from < select.from), list.partition_point(|a| a.from < select.to));
        let list = list.get(from..to).unwrap_or_default();
        if list.is_empty() {
            continue;
        }
        sink.track(Some(pid), Some(tid), "thread state", None)?;
        for (i, offcpu) in list.iter().enumerate() {
            off(run, &culprits, offcpu, sink)?;
            if let Some(next) =
                list.get(i + 1).filter(|next| offcpu.to < next.from && sched.known(offcpu.to, next.from))
            {
                let cpu = run.loaded.causes.off_cpu.get(next.record).map(|r| r.cpu);
                let values = cpu.map(|cpu| ("cpu", ArgValue::Count(cpu.into()))).into_iter().collect();
                slice(sink, category::STATE, (offcpu.to, next.from), "running", &values)?;
            }
        }
    }
    Ok(())
}

/// An off-CPU time: what the thread waited for, then the wait for a CPU and the thread that had it.
fn off(
    run: &TimelineRun<'_, '_>,
    culprits: &Culprits,
    offcpu: &OffCpuSpan,
    sink: &mut dyn TimelineSink,
) -> io::Result<()> {
    let Some(r) = run.loaded.causes.off_cpu.get(offcpu.record) else { return Ok(()) };
    let mut values = SliceArgs::new();
    if offcpu.kind != Off::Preempted {
        let name = match offcpu.kind {
            Off::Idle => "idle",
            Off::Faulting => "page fault",
            Off::Io => "I/O",
            Off::Asleep => "asleep",
            Off::Blocked | Off::Preempted => "blocked",
        };
        values.push(("cpu_left", ArgValue::Count(r.cpu.into())));
        slice(sink, category::STATE, (offcpu.from, offcpu.runnable), name, &values)?;
        values.clear();
    }
    let from = if offcpu.kind == Off::Preempted { offcpu.from } else { offcpu.runnable };
    let (what, cpu, tid) = match offcpu.kind {
        Off::Preempted => ("preempted by", r.cpu, r.by),
        _ => ("runnable:", r.to_cpu, r.from),
    };
    values.push(("cpu", ArgValue::Count(cpu.into())));
    if tid != 0 {
        values.push(("tid", ArgValue::Count(tid.into())));
    }
    let name = format!("{what} {}", culprits.name(offcpu.record));
    slice(sink, category::STATE, (from, offcpu.to), &name, &values)
}

fn slice(
    sink: &mut dyn TimelineSink,
    category: &'static str,
    (from, to): (i64, i64),
    name: &str,
    values: &SliceArgs,
) -> io::Result<()> {
    if from >= to {
        return Ok(());
    }
    sink.begin(from, super::SliceName::Other { name, category, values, flow: None })?;
    sink.end(to)
}

/// Level changes, notices, and graphs with missing op hits.
fn recorder(run: &TimelineRun<'_, '_>, sink: &mut dyn TimelineSink) -> io::Result<()> {
    let l = run.loaded;
    let select = &run.lanes.select;
    let mut told: Vec<(i64, String, SliceArgs)> = Vec::new();
    for c in &l.causes.levels {
        let mut values: SliceArgs = vec![("why", ArgValue::Text(c.why.into()))];
        if c.one_in > 1 {
            values.push(("calls_one_in", ArgValue::Count(c.one_in.into())));
        }
        told.push((c.t, format!("level {}", levels::name(c.to)), values));
    }
    for n in &l.notices {
        told.push((n.t, n.text.to_string(), SliceArgs::new()));
    }
    for g in &l.cpu_graphs {
        let missing = g.expected.map_or(0, |e| e.saturating_sub(g.seen));
        if missing > 0 && !g.cut && select.pid.is_none_or(|pid| pid == g.pid) {
            let values =
                vec![("missing", ArgValue::Count(missing.into())), ("cpu_graph", ArgValue::Count(g.seq))];
            told.push((g.t.saturating_add_unsigned(g.dur), "op hits missing".into(), values));
        }
    }
    told.retain(|(t, ..)| select.from <= *t && *t < select.to);
    order::by_key(&mut told, |(t, ..)| (order::time(*t), 0));
    if told.is_empty() {
        return Ok(());
    }
    sink.track(None, None, "profinfer record", None)?;
    told.iter().try_for_each(|(t, name, values)| sink.instant(*t, name, values))
}
