//! The requests in progress: a line for one, a table for several.

use super::super::table::{Table, number, text as words};
use super::super::units::{or_dash, time};
use super::{ScreenLines, TopSnapshot};
use common::order;
use requests::{RequestNow, RequestPhase};

/// Maximum lines for requests.
const REQUESTS: usize = 8;
/// Nothing was computed for this long: the request rests, or is over, ns.
const IDLE_NS: u64 = 1_000_000_000;

pub fn rows(out: &mut ScreenLines<'_>, p: &TopSnapshot) {
    match &p.requests[..] {
        [] => {}
        [one] => out.named("request", &line(one)),
        all => table(out, all),
    }
}

fn line(r: &RequestNow) -> String {
    let mut parts = vec![format!("sequence {}: {}", r.seq, state(r)), prompt(r)];
    parts.extend(r.ttft_ns.map(|ns| format!("first token after {}", time(ns as f64))));
    if r.tokens > 0 {
        let speed = r.tokens_per_s.map_or(String::new(), |v| format!(" at {v:.2} tok/s"));
        parts.push(format!("{} tokens{speed}", r.tokens));
    }
    parts.extend(accepted(r).map(|share| format!("{share} of drafts accepted")));
    parts.join(", ")
}

fn prompt(r: &RequestNow) -> String {
    let cached = r.cached_tokens.filter(|n| *n > 0).map_or(String::new(), |n| format!(" ({n} more cached)"));
    format!("prompt of {}{cached}", r.prompt_tokens)
}

fn state(r: &RequestNow) -> String {
    let phase = match r.phase {
        RequestPhase::Prompt => "prompt",
        RequestPhase::Decode => "decode",
    };
    if r.idle_ns < IDLE_NS { phase.into() } else { format!("idle for {}", time(r.idle_ns as f64)) }
}

fn accepted(r: &RequestNow) -> Option<String> {
    (r.drafted > 0).then(|| format!("{:.0} %", r.accepted as f64 / r.drafted as f64 * 100.0))
}

/// Those that computed last have a row.
fn table(out: &mut ScreenLines<'_>, all: &[RequestNow]) {
    let mut shown: Vec<&RequestNow> = all.iter().collect();
    order::by_key(&mut shown, |r| (r.idle_ns, 0));
    shown.truncate(REQUESTS);
    order::by(&mut shown, |a, b| (a.context, a.seq).cmp(&(b.context, b.seq)));
    let contexts = all.iter().any(|r| r.context > 1);
    let drafts = all.iter().any(|r| r.drafted > 0);
    let mut columns = vec![words("sequence"), words("state")];
    columns.extend(["prompt", "cached", "TTFT", "tokens", "tok/s"].map(|name| number(name, 0)));
    columns.extend(drafts.then(|| number("accepted", 0)));
    let mut table = Table::new(columns);
    for r in shown {
        let seq = if contexts { format!("{} of context {}", r.seq, r.context) } else { r.seq.to_string() };
        let mut row = vec![
            seq,
            state(r),
            r.prompt_tokens.to_string(),
            or_dash(r.cached_tokens, |n| n.to_string()),
            or_dash(r.ttft_ns, |ns| time(ns as f64)),
            r.tokens.to_string(),
            or_dash(r.tokens_per_s, |v| format!("{v:.2}")),
        ];
        row.extend(drafts.then(|| or_dash(accepted(r), |share| share)));
        table.row(row);
    }
    out.plain("");
    out.lines.extend(table.render(out.style).lines().map(String::from));
    let more = all.len().saturating_sub(REQUESTS);
    if more > 0 {
        out.plain(&format!("  and {more} more requests (--json lists all)"));
    }
}
