//! Requests, sequences, batches and drafts, as text.

use std::io::{self, Write};

use super::section::{Section, title};
use super::table::{Style, Table, number, text};
use super::units::*;
use analysis::questions::report::{By, Report};
use analysis::recorded::sequences::{
    BatchRow, PromptBefore, RequestRow, SequenceReport, SequenceRow, Speculation,
};

/// Most rows of the tables of a report with all tables.
const ROWS: usize = 12;

/// Writes the tables that were requested, or says why there are none.
///
/// # Errors
/// The output cannot be written.
pub fn write(out: &mut dyn Write, report: &Report, style: &Style) -> io::Result<()> {
    let only = (report.tables.len() == 1).then(|| report.tables.first()).flatten();
    let wanted = |by| report.tables.contains(&by);
    let Some(found) = &report.sequences else {
        let asked = [By::Request, By::Sequence, By::Batch].iter().any(|by| only == Some(by));
        let why = report.sequences_unknown.as_deref().unwrap_or_default();
        return if asked { title(out, style, &format!("Sequences: not known ({why})")) } else { Ok(()) };
    };
    // One request after the other, without drafts, says what the phases say.
    let several = found.sequences.len() > 1 || found.batching.most > 1;
    let most = if only.is_some() { usize::MAX } else { ROWS };
    let mut all = Vec::new();
    if wanted(By::Request) && (only.is_some() || found.requests.len() > 1) {
        all.push(requests(found, most));
    }
    if wanted(By::Sequence) && (only.is_some() || several) {
        all.push(sequences(&found.sequences, most));
    }
    if wanted(By::Batch) && (only.is_some() || several || found.speculation.is_some()) {
        all.extend(batches(found));
    }
    all.iter().try_for_each(|section| section.write(out, style))?;
    match found.incomplete.as_ref().filter(|_| only.is_some() || several) {
        Some(why) => writeln!(out, "{}", style.dim(&format!("  incomplete: {why}"))),
        None => Ok(()),
    }
}

/// All tables, with at most `most` rows each.
pub(crate) fn sections(found: &SequenceReport, most: usize) -> Vec<Section> {
    let mut all = vec![requests(found, most), sequences(&found.sequences, most)];
    all.extend(batches(found));
    if let (Some(why), Some(last)) = (&found.incomplete, all.last_mut()) {
        last.notes.push(format!("incomplete: {why}"));
    }
    all
}

fn requests(found: &SequenceReport, most: usize) -> Section {
    let drafts = found.requests.iter().any(|r| r.drafts > 0);
    let queued = found.queued.is_some();
    let columns = ["seq", "prompt", "cached"].into_iter().chain(queued.then_some("queued ms"));
    let columns = columns.chain(["TTFT ms", "tokens", "p50 ms", "p95 ms", "p99 ms", "stalled ms"]);
    let mut columns: Vec<_> = columns.map(|c| number(c, 0)).collect();
    if drafts {
        columns.extend([number("drafts", 0), number("accepted", 0)]);
    }
    let compared = found.requests.iter().any(|r| r.before.is_some());
    if compared {
        columns.extend([number("again", 0), text("beside what was there")]);
    }
    let mut t = Table::new(columns);
    for r in found.requests.iter().take(most) {
        let mut row = request(r);
        if queued {
            row.insert(3, or_dash(r.queued_ns, ms));
        }
        if drafts {
            row.extend([r.drafts.to_string(), format!("{}/{}", r.accepted, r.drafted)]);
        }
        if compared {
            row.extend([
                or_dash(r.before, |b| b.again_tokens.to_string()),
                or_dash(r.before, |b| beside(&b, r.cached_tokens)),
            ]);
        }
        t.row(row);
    }
    let mut notes = Vec::new();
    if compared {
        notes.push(
            "again: tokens of the prompt that were computed, and had stood at the same positions of the sequence; whole \
             blocks of 16 are compared"
                .into(),
        );
    }
    let left = found.requests.len().saturating_sub(most) as u64 + found.requests_left_out;
    if left > 0 {
        notes.push(format!("and {}: --by request", count(left, "more request")));
    }
    if found.requests.iter().any(|r| r.at_least) {
        notes.push("+: the result of a request's last draft was not seen".into());
    }
    if found.untracked > 0 {
        notes.push(format!("{} of further sequences are in no row", count(found.untracked, "chunk")));
    }
    let before = if queued {
        "queued: from when the server took the request in until its first call; TTFT: with that, from when it took it in"
    } else {
        "TTFT: from the start of the first call for the sequence, as when the request was taken in is not known,"
    };
    notes.push(format!(
        "{before} to the end of the one that gave its first token; p50 to p99: per token after it; stalled: added to \
         these by prompts of other sequences"
    ));
    let all = found.requests.len() as u64 + found.requests_left_out;
    Section { title: format!("Requests ({all})"), table: Some(t), notes }
}

/// How a prompt stands to what its sequence, and others, had.
fn beside(b: &PromptBefore, cached: Option<u64>) -> String {
    let elsewhere = b.elsewhere_seq.zip(b.elsewhere_tokens);
    match (elsewhere, b.differs_at) {
        (Some((seq, tokens)), _) => format!("sequence {seq} had {tokens} of it"),
        (None, Some(at)) => format!("differs from position {at} of {}", b.had_tokens),
        (None, None) if b.again_tokens > 0 => "the same".into(),
        (None, None) if b.had_tokens > 0 && cached >= Some(b.had_tokens) => "goes on".into(),
        (None, None) => "-".into(),
    }
}

fn name(context: u32, seq: i64) -> String {
    if context > 1 { format!("{context}:{seq}") } else { seq.to_string() }
}

fn request(r: &RequestRow) -> Vec<String> {
    let at = |pick: fn(&analysis::recorded::calls::Latency) -> u64| or_dash(r.tpot.as_ref(), |l| ms(pick(l)));
    vec![
        name(r.context, r.seq),
        if r.late { "-".into() } else { r.prompt_tokens.to_string() },
        or_dash(r.cached_tokens, |n| n.to_string()),
        or_dash(r.ttft_ns, ms),
        format!("{}{}", r.tokens, if r.at_least { "+" } else { "" }),
        at(|l| l.p50_ns),
        at(|l| l.p95_ns),
        at(|l| l.p99_ns),
        ms(r.stalled_ns),
    ]
}

fn sequences(rows: &[SequenceRow], most: usize) -> Section {
    let columns = [
        "seq",
        "requests",
        "prompt",
        "cached",
        "tokens",
        "TTFT p50 ms",
        "TPOT p50 ms",
        "TPOT p99 ms",
        "stalled %",
    ];
    let mut t = Table::new(columns.into_iter().map(|c| number(c, 0)).collect());
    for r in rows.iter().take(most) {
        t.row(vec![
            name(r.context, r.seq),
            r.requests.to_string(),
            r.prompt_tokens.to_string(),
            or_dash(r.cached_tokens, |n| n.to_string()),
            r.tokens.to_string(),
            or_dash(r.ttft.as_ref(), |l| ms(l.p50_ns)),
            or_dash(r.tpot.as_ref(), |l| ms(l.p50_ns)),
            or_dash(r.tpot.as_ref(), |l| ms(l.p99_ns)),
            or_dash(r.stalled, pct),
        ]);
    }
    let left = rows.len().saturating_sub(most) as u64;
    let notes = (left > 0).then(|| format!("and {}: --by sequence", count(left, "more sequence")));
    Section {
        title: format!("Sequences ({})", rows.len()),
        table: Some(t),
        notes: notes.into_iter().collect(),
    }
}

/// The calls by kind, and the drafts.
fn batches(found: &SequenceReport) -> Vec<Section> {
    let columns = ["sequences", "calls", "tokens", "in calls ms", "tok/s", "tok/s each"];
    let columns = [text("kind")].into_iter().chain(columns.into_iter().map(|c| number(c, 0)));
    let mut t = Table::new(columns.collect());
    found.batching.rows.iter().for_each(|r| t.row(batch(r)));
    let mut notes = Vec::new();
    if let Some(share) = found.batching.stalled.filter(|share| *share > 0.0) {
        let of = format!("{} %", pct(share));
        notes
            .push(format!("prompts of other sequences take {of} of the time from first tokens to last ones"));
    }
    if found.batching.unknown_calls > 0 {
        notes.push(format!("the batch of {} was not read", count(found.batching.unknown_calls, "call")));
    }
    let mut all = vec![Section { title: "Batches".into(), table: Some(t), notes }];
    if let Some(s) = &found.speculation {
        let mut t = Table::new(vec![text("drafts"), text("")]);
        facts(s).into_iter().for_each(|(name, value)| t.row(vec![name.to_owned(), value]));
        all.push(Section { title: format!("Drafts ({})", s.drafts), table: Some(t), notes: Vec::new() });
    }
    all
}

fn batch(r: &BatchRow) -> Vec<String> {
    let rate = |v: Option<f64>| or_dash(v, |v| format!("{v:.1}"));
    vec![
        r.kind.name().to_owned(),
        r.sequences.to_string(),
        r.calls.to_string(),
        or_dash(r.tokens, |n| n.to_string()),
        ms(r.in_call_ns),
        rate(r.tokens_per_s),
        rate(r.tokens_per_s_each),
    ]
}

/// The figures of drafts as names and values.
fn facts(s: &Speculation) -> Vec<(&'static str, String)> {
    let mut out = vec![(
        "accepted",
        format!("{} of {} drafted tokens ({} %)", s.accepted, s.drafted, pct(s.acceptance)),
    )];
    let known = s.drafts - s.unseen;
    let share = |n: u64| format!("{} %", pct(n as f64 / known.max(1) as f64));
    let lengths: Vec<String> =
        s.accepted_lengths.iter().take(12).map(|(length, n)| format!("{length}: {}", share(*n))).collect();
    if !lengths.is_empty() {
        out.push(("per draft", lengths.join(", ")));
    }
    if s.unseen > 0 {
        out.push(("not seen", format!("the result of {}", count(s.unseen, "draft"))));
    }
    if let Some(l) = &s.verify {
        out.push(("verify", format!("{} a call (p50), {}", time(l.p50_ns as f64), count(l.n, "call"))));
    }
    match s.draft_calls.zip(s.draft_ns) {
        Some((calls, ns)) => out.push((
            "draft model",
            format!("{} a draft, {}", time(ns as f64 / s.drafts.max(1) as f64), count(calls, "call")),
        )),
        None => out.push(("draft model", "none: no other context of the process computed".into())),
    }
    match &s.cost {
        Some(c) => {
            let per = format!("{} a token with drafts, {} without", time(c.with_ns), time(c.without_ns));
            let effect = if c.gain < 0.0 { "drafts cost time" } else { "drafts gain" };
            out.push(("effect", format!("{effect}: {:+.1} % tok/s ({per})", c.gain * 100.0)));
            let best = match c.best_length {
                0 => "no drafts (estimated from the accepted lengths)".to_owned(),
                n => format!(
                    "drafts of {n} ({:+.1} %, estimated from the accepted lengths)",
                    c.best_gain * 100.0
                ),
            };
            out.push(("best", best));
        }
        None => out.push((
            "effect",
            "not known: it takes calls of one sequence, some of them without a draft, to compare".into(),
        )),
    }
    out
}
