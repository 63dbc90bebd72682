//! Derives the length of the context at each call.
//!
//! Tokens are counted from the first prompt of a request. If the cache width, known from the shapes of attention,
//! shows that it holds more, earlier requests are counted as well. If that does not fit either, the width is used
//! as the length.

use std::collections::HashMap;

use crate::recorded::calls::{Phase, Timeline};
use crate::recorded::describe::{op_name, source};
use crate::recorded::load::Loaded;

/// Engines round the used part of the cache up to a multiple of at most this many positions (llama.cpp: 256, or
/// 32).
const PADDING: u64 = 256;

/// Tokens in the context during a call, including those of the call, by call index; 0: not known.
pub fn contexts(loaded: &Loaded<'_>, line: &Timeline) -> Vec<u64> {
    lengths(line, &call_widths(loaded, line))
}

/// The same, with the widths of [`call_widths`].
pub fn lengths(line: &Timeline, widths: &[u64]) -> Vec<u64> {
    let mut open: Vec<TokenCounts> = Vec::new();
    let mut of_process: HashMap<u64, usize> = HashMap::new();
    let mut out = Vec::with_capacity(line.calls.len());
    for (call, &width) in line.calls.iter().zip(widths) {
        let at = *of_process.entry(call.pid.into()).or_insert(open.len());
        if at == open.len() {
            open.push(TokenCounts::default());
        }
        let count = open.get_mut(at).and_then(|o| Some(o.after(call.phase, call.tokens?)));
        // The width is an upper bound, and it would not be this wide for much fewer tokens.
        let fits = |n: &u64| width == 0 || (*n <= width && width < n.saturating_add(PADDING));
        let found = count.and_then(|(since_prompt, all)| [since_prompt, all].into_iter().find(fits));
        out.push(found.unwrap_or(width));
    }
    out
}

/// A process's tokens so far.
#[derive(Default)]
struct TokenCounts {
    decoded: bool,
    since_prompt: u64,
    all: u64,
}

impl TokenCounts {
    /// Counts a call; returns the tokens since the start of the request's prompt, and since the start of the
    /// recording.
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

/// Cache positions that attention reads in each call, the maximum over all layers; 0: not known.
pub fn call_widths(loaded: &Loaded<'_>, line: &Timeline) -> Vec<u64> {
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
