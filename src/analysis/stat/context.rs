//! How long the context is at each call. May use `trace`.
//!
//! Tokens are counted from the first prompt of a request on. Where the cache's width, which the shapes of attention tell,
//! shows that more is in it, the requests before are counted as well; where that fits no better, the width stands for
//! the length.

use std::collections::HashMap;

use crate::analysis::calls::{Phase, Timeline};
use crate::analysis::describe::{op_name, source};
use crate::analysis::load::Loaded;

/// Engines look at the cache in multiples of at most so many positions (llama.cpp: 256, or 32).
const PADDING: u64 = 256;

/// Tokens in the context while a call runs, those of the call included, by index of the call; 0: not known.
pub fn contexts(loaded: &Loaded<'_>, line: &Timeline) -> Vec<u64> {
    let widths = call_widths(loaded, line);
    let mut open: Vec<Open> = Vec::new();
    let mut of_process: HashMap<u64, usize> = HashMap::new();
    let mut out = Vec::with_capacity(line.calls.len());
    for (call, width) in line.calls.iter().zip(widths) {
        let at = *of_process.entry(call.pid.into()).or_insert(open.len());
        if at == open.len() {
            open.push(Open::default());
        }
        let count = open.get_mut(at).and_then(|o| Some(o.after(call.phase, call.tokens?)));
        // More than the width can't be in it, and it would not be so wide for less.
        let fits = |n: &u64| width == 0 || (*n <= width && width < n.saturating_add(PADDING));
        let found = count.and_then(|(since_prompt, all)| [since_prompt, all].into_iter().find(fits));
        out.push(found.unwrap_or(width));
    }
    out
}

/// A process's tokens so far.
#[derive(Default)]
struct Open {
    decoded: bool,
    since_prompt: u64,
    all: u64,
}

impl Open {
    /// Counts a call: tokens since the request's prompt began, and since the recording did.
    fn after(&mut self, phase: Phase, tokens: u64) -> (u64, u64) {
        if phase == Phase::Prefill && self.decoded {
            self.since_prompt = 0;
        }
        self.decoded = phase == Phase::Decode;
        self.since_prompt = self.since_prompt.saturating_add(tokens);
        self.all = self.all.saturating_add(tokens);
        (self.since_prompt, self.all)
    }
}

/// Positions of the cache that attention looks at in each call, over all layers the most; 0: not known.
fn call_widths(loaded: &Loaded<'_>, line: &Timeline) -> Vec<u64> {
    let mut of_plan: HashMap<u64, usize> = HashMap::new();
    let mut out = vec![0; line.calls.len()];
    for (graph, call) in loaded.cpu_graphs.iter().zip(&line.cpu_call) {
        let (Some(plan), Some(width)) = (graph.plan, call.and_then(|c| out.get_mut(c))) else { continue };
        let most = *of_plan.entry(plan.into()).or_insert_with(|| plan_width(loaded, plan) as usize);
        *width = (most as u64).max(*width);
    }
    out
}

fn plan_width(loaded: &Loaded<'_>, plan: u32) -> u64 {
    let hits = loaded.plans.get(&plan).map_or(&[][..], |p| &p.hits);
    let tensors = hits.iter().filter_map(|(id, _)| loaded.tensors.get(id)).filter(|t| t.known);
    let width = tensors.filter_map(|t| match op_name(loaded, t.op) {
        "FLASH_ATTN_EXT" => source(loaded, t, 1).map(|keys| keys.ne[1]),
        // The softmax over experts has no mask.
        "SOFT_MAX" => source(loaded, t, 1).map(|_| t.ne[0]),
        _ => None,
    });
    width.max().unwrap_or(0)
}
