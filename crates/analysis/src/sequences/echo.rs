//! A draft model computes again what its target has computed, before the next token is chosen: a token is there only when
//! both have.

use std::collections::HashMap;

use super::super::call::Call;
use super::super::load::Loaded;
use super::data::{CallWork, SeqRequest};
use common::order;
use pfi::record::Chunk;
use pfi::track::ChunkWork;

/// A call, and the chunks of one part of its batch.
struct Part {
    pid: u32,
    context: u64,
    start: i64,
    end: i64,
    chunks: Vec<Chunk>,
}

/// Moves the ends of the steps of requests with drafts to the ends of the same chunks in the draft model's context.
pub fn delay(loaded: &Loaded<'_>, calls: &[Call], works: &[Option<CallWork>], requests: &mut [SeqRequest]) {
    let verifies = |w: &CallWork| w.chunks.iter().any(|c| c.1 == ChunkWork::Verify);
    let mut targets: Vec<(u32, u64)> = Vec::new();
    let mut own: HashMap<(u32, u64), Vec<i64>> = HashMap::new();
    for (call, work) in calls.iter().zip(works).filter_map(|(c, w)| Some((c, w.as_ref()?))) {
        let key = (call.pid, work.context);
        own.entry(key).or_default().push(call.start);
        if verifies(work) && !targets.contains(&key) && targets.len() < 64 {
            targets.push(key);
        }
    }
    if targets.is_empty() {
        return;
    }
    let parts = parts(loaded, calls);
    for (i, (call, work)) in calls.iter().zip(works).enumerate() {
        let Some(work) = work.as_ref().filter(|w| targets.contains(&(call.pid, w.context))) else { continue };
        let starts = own.get(&(call.pid, work.context)).map(Vec::as_slice).unwrap_or_default();
        let next = starts.get(starts.partition_point(|t| *t <= call.start)).copied().unwrap_or(i64::MAX);
        let from = parts.partition_point(|p| p.start < call.end());
        let other = |p: &&Part| p.pid == call.pid && p.context != work.context;
        let between = || parts.iter().skip(from).take_while(|p| p.start < next).filter(other);
        for (chunk, kind, request) in &work.chunks {
            let same = |c: &Chunk| (c.seq, c.pos, c.tokens) == (chunk.seq, chunk.pos, chunk.tokens);
            let end = between().find(|p| p.chunks.iter().any(same)).map(|p| p.end);
            if let (Some(end), Some(r)) = (end, requests.get_mut(*request)) {
                r.delay(i, call.end(), *kind, end);
            }
        }
    }
}

/// The parts of all calls, also of contexts that are not shown, by start.
fn parts(loaded: &Loaded<'_>, calls: &[Call]) -> Vec<Part> {
    let mut spans: HashMap<u64, (i64, i64)> = calls.iter().map(|c| (c.seq, (c.start, c.end()))).collect();
    spans.extend(loaded.aside.iter().map(|t| (t.seq, (t.t, t.t.saturating_add_unsigned(t.dur)))));
    let part = |u: &pfi::record::Ubatch<'_>| {
        let (start, end) = *spans.get(&u.token?)?;
        Some(Part { pid: u.pid, context: u.context, start, end, chunks: pfi::chunks(u).collect() })
    };
    let mut parts: Vec<Part> = loaded.causes.ubatches.iter().filter_map(part).collect();
    order::by_key(&mut parts, |p| (order::time(p.start), 0));
    parts
}
