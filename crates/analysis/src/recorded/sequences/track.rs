//! The requests of all sequences, from what becomes known of them.

use super::data::{CallWork, SeqRequest, Sequences, TokenStep};
use super::given::Given;
use crate::recorded::call::Call;
use requests::{ContextKey, Event, Fact, Requests};

/// Collects the requests of the calls shown.
struct Collected<'a> {
    calls: &'a [Call],
    /// Their contexts.
    contexts: Vec<ContextKey>,
    all: Sequences,
    /// Index of each request; none of those of other contexts.
    at: Vec<Option<usize>>,
}

/// Reads the requests of the calls shown, which are in time order.
pub fn sequences(given: &Given<'_>, calls: &[Call]) -> Sequences {
    let (all, drafts) = collect(given, calls, Requests::default());
    if drafts.is_empty() {
        return all;
    }
    // A draft model is known by what it drafts. What it computed before that, a second reading knows.
    collect(given, calls, Requests::knowing(drafts)).0
}

/// Returns the contexts of draft models, too.
fn collect(given: &Given<'_>, calls: &[Call], mut requests: Requests) -> (Sequences, Vec<ContextKey>) {
    let mut works = vec![None; calls.len()];
    let mut contexts: Vec<ContextKey> = Vec::new();
    for (call, batch) in &given.calls {
        if let Some(work) = works.get_mut(call.id as usize) {
            let (context, chunks, unread) = (batch.context, Vec::new(), batch.unread());
            *work = Some(CallWork { context, chunks, unread });
            contexts.push((call.pid, batch.context));
        }
    }
    contexts.sort_unstable();
    contexts.dedup();
    let all = Sequences { works, ..Sequences::default() };
    let mut collected = Collected { calls, contexts, all, at: Vec::new() };
    given.read(&mut requests, &mut |event| collected.take(&event));
    (collected.all, requests.drafts())
}

impl Collected<'_> {
    fn take(&mut self, event: &Event) {
        match event.fact {
            Fact::Began { key, start, cached, late } => {
                let shown = self.contexts.binary_search(&(key.0, key.1)).is_ok();
                self.at.push(shown.then_some(self.all.requests.len()));
                if shown {
                    self.all.requests.push(SeqRequest::begin(key, start, cached, late));
                }
            }
            Fact::Untracked { .. } => self.all.untracked += 1,
            _ => {
                let at = event.request.and_then(|id| self.at.get(id as usize).copied().flatten());
                at.into_iter().for_each(|at| self.add(at, &event.fact));
            }
        }
    }

    /// Something became known of a request.
    fn add(&mut self, at: usize, fact: &Fact) {
        let Some(request) = self.all.requests.get_mut(at) else { return };
        match *fact {
            Fact::Chunk { call, chunk, work, .. } => {
                let index = call as usize;
                if let Some(Some(of_call)) = self.all.works.get_mut(index) {
                    of_call.chunks.push((chunk, work, at));
                }
                self.calls.get(index).into_iter().for_each(|call| request.take(call, &chunk, work));
            }
            Fact::Arrived { at } => request.arrived = Some(at),
            Fact::FirstToken { at, .. } => request.first_token = Some(at),
            Fact::Tokens { call, end, seen, drafted, accepted, .. } => {
                let call = call as usize;
                request.steps.push(TokenStep { call, end, drafted, accepted, cut: !seen });
            }
            _ => {}
        }
    }
}
