//! What is written for people, as values: numbers with the units of the JSON.

use serde_json::{Map, Value, json};

/// A wrapped item has its name in the first line only.
fn unwrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        match line.strip_prefix("           ") {
            Some(rest) if !rest.trim_start().starts_with('#') => out.push_str(&format!(" {rest}")),
            _ => out.push_str(&format!("\n{line}")),
        }
    }
    out
}

/// The item of this name.
fn item<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(&format!("{name:<10} ")))
}

/// The number before these words.
pub fn before(text: &str, words: &str) -> Option<f64> {
    let (left, _) = text.split_once(words)?;
    left.rsplit([' ', ';', '(', ',']).next()?.parse().ok()
}

/// `p50 431.99 ms`: a time after a word, ns.
fn time_after(text: &str, word: &str) -> Option<f64> {
    let (_, right) = text.split_once(word)?;
    let mut words = right.trim_start().split([' ', ',', ';']);
    let (number, unit) = (words.next()?.parse::<f64>().ok()?, words.next()?);
    let factor = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9)]
        .into_iter()
        .find(|(name, _)| *name == unit)?;
    Some(number * factor.1)
}

/// What a line on the speed of a phase says.
fn speed(phase: &str, text: &str) -> Value {
    let ceiling = text.split_once("ceiling").map(|(_, right)| right);
    let calls = text.split_once(" in other calls").map_or(text, |(left, _)| left);
    json!({
        "phase": phase,
        "tokens_per_s": before(calls, " tok/s"),
        "tokens_per_s_wall": before(text, " tok/s with the time between calls"),
        "others_tokens_per_s": before(text, " tok/s without the first call"),
        "runs_per_s": before(text, " runs/s"),
        "p50_ns": time_after(text, "; p50 "),
        "p95_ns": time_after(text, ", p95 "),
        "ceiling_tokens_per_s": ceiling.and_then(|text| before(text, " tok/s")),
        "reached": ceiling.and_then(|text| before(text, " % reached")).map(|n| n / 100.0),
    })
}

const HEADINGS: [(&str, &str); 4] =
    [("Decode", "decode"), ("Prefill", "prefill"), ("Calls", "unknown"), ("Runs", "prefill")];

fn shares(legend: &str) -> Value {
    let share = |part: &str| {
        let part = part.trim().trim_start_matches(['#', '=', '.', '!', '~', '%', '-', '_', '?', ' ']);
        let (n, name) = part.split_once(" % ")?;
        Some((name.trim().replace(' ', "_"), json!(n.parse::<f64>().ok()? / 100.0)))
    };
    Value::Object(legend.split(',').filter_map(share).collect())
}

/// `report FILE`.
pub fn verdict(text: &str) -> Value {
    let text = &unwrapped(text);
    let mut phases: Vec<Value> =
        HEADINGS.iter().filter_map(|(name, phase)| Some(speed(phase, item(text, name)?))).collect();
    let limit = item(text, "Limit").and_then(|said| before(said, " % of the ceiling"));
    if let Some(first) = phases.first_mut() {
        first["bar_wall"] = text.lines().find(|l| l.trim_start().starts_with("# ")).map(shares).into();
        first["limit_reached"] = limit.map(|n| n / 100.0).into();
        first["read_mb"] = item(text, "Limit").and_then(|said| before(said, " MB from storage")).into();
    }
    json!({
        "phases": phases,
        "complete": item(text, "Recording").map(|said| !said.starts_with("NOT complete")),
        "limit": item(text, "Limit"),
        "no_advice": item(text, "Advice").map(|said| said != "largest gain first"),
        "requests": item(text, "Requests").map(|said| json!({
            "n": said.split(';').next().and_then(|n| n.parse::<f64>().ok()),
            "queued_p50_ns": time_after(said, "queued p50 "),
            "ttft_p50_ns": time_after(said, "time to first token p50 "),
            "tpot_p50_ns": time_after(said, "then p50 "),
            "most": before(said, " in a call"),
        })),
    })
}

/// The section of the calls in `report FILE --all`.
pub fn calls(all: &str) -> String {
    let begin = all.find("\nRuns\n").or(all.find("\nPrefill and decode\n")).expect("the section");
    let section = &all[begin + 1..];
    section[..section.find("\n\n").unwrap_or(section.len())].to_owned()
}

/// The summary of a page, without what belongs to its forms and scripts.
pub fn head(html: &str) -> String {
    let (_, rest) = html.split_once("id=\"summary\"").expect("a summary");
    plain(rest.split_once("<details>").map_or(rest, |(head, _)| head))
}

fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut tag = false;
    for c in text.chars() {
        match c {
            '<' => tag = true,
            '>' => tag = false,
            c if !tag => out.push(c),
            _ => {}
        }
    }
    out.replace("&#x27;", "'")
        .replace("&#39;", "'")
        .replace("&gt;", ">")
        .replace("&lt;", "<")
        .replace("&amp;", "&")
}

/// The same of a page.
pub fn page(html: &str) -> Value {
    let item = |name: &str| {
        let (_, rest) = html.split_once(&format!("<dt>{name}</dt><dd>"))?;
        rest.split_once("</dd>").map(|(text, _)| plain(text))
    };
    let phases: Vec<Value> =
        HEADINGS.iter().filter_map(|(name, phase)| Some(speed(phase, &item(name)?))).collect();
    json!({
        "phases": phases,
        "complete": !html.contains("NOT complete"),
        "limit": item("Limit"),
        "ttft_p50_ns": tile(html, " to first token (TTFT), p50"),
    })
}

/// The time in a tile of the page, ns.
fn tile(html: &str, what: &str) -> Option<f64> {
    let (before, _) = html.split_once(what)?;
    time_after(&plain(&before[before.rfind("<b>")?..]), "")
}

/// The data that the page's script reads.
pub fn page_data(html: &str) -> Value {
    let (_, rest) = html.split_once("<script type=\"application/json\" id=\"data\">").expect("data");
    serde_json::from_str(rest.split_once("</script>").expect("an end").0).expect("JSON")
}

/// Cells of a line, which are two spaces apart or more, and the columns where each begins and ends.
fn cells(line: &str) -> Vec<(usize, usize, String)> {
    let chars: Vec<char> = line.chars().collect();
    let (mut out, mut start) = (Vec::new(), None);
    for i in 0..=chars.len() {
        let gap = |at: usize| chars.get(at).is_none_or(|c| *c == ' ');
        match start {
            None if !gap(i) => start = Some(i),
            Some(from) if gap(i) && gap(i + 1) => {
                out.push((from, i, chars[from..i].iter().collect()));
                start = None;
            }
            _ => {}
        }
    }
    out
}

/// The table below this heading: numbers end, and texts begin, where the name of their column does.
fn table(text: &str, heading: &str) -> Value {
    let Some((_, rest)) = text.split_once(&format!("\n{heading}")) else { return Value::Null };
    let mut lines = rest.lines().skip(1).take_while(|line| !line.is_empty());
    let names = cells(lines.next().unwrap_or_default());
    let mut rows: Vec<Value> = Vec::new();
    for line in lines {
        let mut row = Map::new();
        for (from, to, cell) in cells(line) {
            let at = names.iter().find(|(begin, end, _)| to == *end || from == *begin);
            let value = cell.parse::<f64>().map_or(Value::String(cell.clone()), |n| json!(n));
            at.into_iter().for_each(|(_, _, name)| drop(row.insert(name.replace(' ', "_"), value.clone())));
        }
        rows.push(Value::Object(row));
    }
    // A cell is left out where it is that of the row above; the tables of ops have their phase in the heading.
    let mut above = Value::from(heading.rsplit(' ').next().unwrap_or_default());
    for row in &mut rows {
        match row.get("phase") {
            Some(phase) => above = phase.clone(),
            None => row["phase"] = above.clone(),
        }
    }
    Value::Array(rows)
}

/// `report FILE --all`.
pub fn tables(text: &str) -> Value {
    let weights = text.lines().find(|l| l.trim_start().starts_with("weights "));
    json!({
        "phases": table(text, "Prefill and decode"),
        "ops_decode": table(text, "Operators by op, decode"),
        "ops_prefill": table(text, "Operators by op, prefill"),
        "weight_kib": weights.and_then(|l| before(l, " KiB in")),
    })
}
