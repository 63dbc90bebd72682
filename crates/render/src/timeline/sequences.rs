//! A track for each sequence of a context: what each call computed for it.

use std::collections::BTreeMap;
use std::io;

use super::{ArgValue, SliceArgs, SliceName, TimelineRun, TimelineSink, category};
use analysis::sequences::{ChunkWork, Sequences};

/// Tracks drawn; the calls themselves show all.
const TRACKS: usize = 256;

/// Draws the sequences of the processes drawn, if any call computed for several or verified a draft, or if there are
/// several contexts.
pub fn draw(run: &TimelineRun<'_, '_>, pids: &[u32], sink: &mut dyn TimelineSink) -> io::Result<()> {
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
            if tracks.contains_key(&key) || tracks.len() < TRACKS {
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
        SliceName::Other { name, category: category::SEQUENCE, values: &values, flow: None },
    )?;
    sink.end(call.end())
}
