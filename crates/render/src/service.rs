//! Formats the service status as text. The status is JSON from the service, which may be of another version:
//! missing fields are treated as unknown.

use std::io::{self, Write};

use serde_json::Value;

use super::section::{fact, title};
use super::table::{Style, Table, clean, number, text};
use super::units::{bytes, count, ms, or_dash, pct};

/// Writes the complete status.
///
/// # Errors
/// The text cannot be written.
pub fn write(out: &mut dyn Write, state: &Value, style: &Style) -> io::Result<()> {
    let (version, since) = (word(state, "version"), word(state, "since"));
    let now = clean(&format!("{}, process {}, since {since}", version, whole(state, "pid")));
    writeln!(out, "{}: {} ({now})", style.bold("Service"), clean(&word(state, "state")))?;
    fact(
        out,
        style,
        "discovery",
        &with(&word(at(state, "finder"), "backend"), &word(at(state, "finder"), "why")),
    )?;
    let held_back = held_back(at(state, "finder"));
    if !held_back.is_empty() {
        fact(out, style, "held back", &held_back)?;
    }
    let conf = at(state, "configuration");
    let file =
        Some(word(conf, "file")).filter(|f| !f.is_empty()).unwrap_or_else(|| "built-in defaults".into());
    fact(out, style, "settings", &format!("{file}, read {}", word(conf, "read")))?;
    for error in list(conf, "errors") {
        fact(out, style, "", error.as_str().unwrap_or_default())?;
    }
    fact(out, style, "rules", &rules(state))?;
    fact(out, style, "runs", &counts(at(state, "counts")))?;
    let hooks = hooks(at(state, "on_trigger"));
    if !hooks.is_empty() {
        fact(out, style, "on-trigger", &hooks)?;
    }
    fact(out, style, "recordings", &store(state))?;
    fact(out, style, "own cost", &own(at(state, "own")))?;
    runs(out, state, style)?;
    requests(out, state, style)?;
    affinity(out, state, style)?;
    messages(out, state, style)
}

/// A text field of an object; empty if there is none.
pub fn word(of: &Value, name: &str) -> String {
    of.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn at<'v>(of: &'v Value, name: &str) -> &'v Value {
    of.get(name).unwrap_or(&Value::Null)
}

fn list<'v>(of: &'v Value, name: &str) -> &'v [Value] {
    of.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn whole(of: &Value, name: &str) -> String {
    or_dash(of.get(name).and_then(Value::as_u64), |n| n.to_string())
}

fn size(of: &Value, name: &str) -> String {
    or_dash(of.get(name).and_then(Value::as_f64), bytes)
}

/// A text, followed by the reason in parentheses if there is one.
fn with(text: &str, why: &str) -> String {
    if why.is_empty() { text.to_owned() } else { format!("{text} ({why})") }
}

/// Users whose files are not all examined; empty if all are.
fn held_back(finder: &Value) -> String {
    let user = |of: &Value| {
        format!(
            "{} mapped files of user {} not examined ({} of the user's processes wait): the user's time share is used up",
            whole(of, "files"),
            whole(of, "uid"),
            whole(of, "processes")
        )
    };
    let users = list(finder, "held_back").iter().map(user);
    let large = finder.get("files_too_large").and_then(Value::as_u64).filter(|n| *n > 0);
    let large = large.map(|n| format!("{n} files are too large to search"));
    users.chain(large).collect::<Vec<_>>().join("; ")
}

fn rules(state: &Value) -> String {
    let rule = |rule: &Value| {
        let runs = rule.get("runs").and_then(Value::as_u64).map(|n| count(n, "run")).unwrap_or_default();
        let recorder = rule.get("recorder").and_then(Value::as_u64).map(|pid| format!("recorder {pid}"));
        let why: Vec<String> = [runs].into_iter().chain(recorder).filter(|s| !s.is_empty()).collect();
        with(&word(rule, "name"), &why.join(", "))
    };
    list(state, "rules").iter().map(rule).collect::<Vec<_>>().join(", ")
}

fn counts(of: &Value) -> String {
    let named = [
        ("recorded", "recorded"),
        ("empty", "seen, nothing recorded"),
        ("by_rule", "left out by rule"),
        ("sample_one_in", "left out by sample_one_in"),
        ("max_concurrent", "left out by max_concurrent"),
        ("missed", "missed"),
        ("waiting", "waiting for a slot"),
    ];
    let part = |(name, says): &(&str, &str)| {
        let n = of.get(name).and_then(Value::as_u64).filter(|n| *n > 0 || *name == "recorded")?;
        Some(format!("{n} {says}"))
    };
    let parts: Vec<String> = named.iter().filter_map(part).collect();
    format!("{} seen: {}", whole(of, "seen"), parts.join(", "))
}

fn store(state: &Value) -> String {
    let of = at(state, "store");
    let writing = match of.get("writing").and_then(Value::as_u64) {
        Some(n) if n > 0 => format!(", {n} being written"),
        _ => String::new(),
    };
    let (files, used, quota) = (whole(of, "files"), size(of, "bytes"), size(of, "quota"));
    let (directory, removed) = (word(state, "directory"), whole(of, "removed"));
    format!("{files} in {directory}{writing}: {used} of {quota}, {removed} removed")
}

fn own(of: &Value) -> String {
    let cpu = or_dash(of.get("cpu_seconds").and_then(Value::as_f64), |s| format!("{s:.2} s"));
    format!("{} of memory, {cpu} of CPU time", size(of, "resident_bytes"))
}

fn runs(out: &mut dyn Write, state: &Value, style: &Style) -> io::Result<()> {
    let all = list(state, "runs");
    if all.is_empty() {
        return title(out, style, "Runs: none yet");
    }
    title(out, style, "Runs")?;
    let mut table = Table::new(vec![
        number("pid", 0),
        text("rule"),
        text("level"),
        number("tokens", 0),
        number("tok/s", 0),
        number("TTFT ms", 2),
        number("p50 ms", 1),
        number("p90 ms", 3),
        number("p99 ms", 1),
        number("lost", 2),
        number("cost %", 3),
        text("state"),
        text("file"),
        text("program"),
    ]);
    for run in all {
        table.row(row(run));
    }
    write!(out, "{}", table.render(style))
}

/// The requests in progress of all runs.
fn requests(out: &mut dyn Write, state: &Value, style: &Style) -> io::Result<()> {
    let all: Vec<&Value> = list(state, "runs").iter().flat_map(|run| list(run, "requests")).collect();
    if all.is_empty() {
        return Ok(());
    }
    title(out, style, "Requests in progress")?;
    let mut columns = vec![number("pid", 0), number("context", 0), number("sequence", 0), text("state")];
    columns.extend(["prompt", "cached", "TTFT ms", "tokens", "tok/s", "accepted %"].map(|n| number(n, 1)));
    let mut table = Table::new(columns);
    for of in all {
        let n = |name: &str| of.get(name).and_then(Value::as_u64);
        let idle = n("idle_ns").filter(|ns| *ns >= 1_000_000_000);
        let accepted = n("drafted").filter(|n| *n > 0).zip(n("accepted"));
        table.row(vec![
            whole(of, "pid"),
            whole(of, "context"),
            whole(of, "seq"),
            idle.map_or_else(|| word(of, "phase"), |ns| format!("idle for {} s", ns / 1_000_000_000)),
            whole(of, "prompt_tokens"),
            whole(of, "cached_tokens"),
            or_dash(n("ttft_ns"), ms),
            whole(of, "tokens"),
            or_dash(of.get("tokens_per_s").and_then(Value::as_f64), |v| format!("{v:.2}")),
            or_dash(accepted, |(all, good)| pct(good as f64 / all as f64)),
        ]);
    }
    write!(out, "{}", table.render(style))
}

/// The CPUs that rules give to engines: a line each.
fn affinity(out: &mut dyn Write, state: &Value, style: &Style) -> io::Result<()> {
    let all = list(state, "affinity");
    if !all.is_empty() {
        title(out, style, "CPUs of engines")?;
    }
    all.iter().try_for_each(|of| writeln!(out, "  {}", clean(&given(of))))
}

fn given(of: &Value) -> String {
    let (work, why) = (word(of, "work"), word(of, "why"));
    let has = match word(of, "state").as_str() {
        "set" => format!("CPUs {} for {work}", word(of, "cpus")),
        "free" => format!("all its CPUs for {work}"),
        "refused" => format!("all its CPUs: {why}"),
        _ => format!("not changed: {why}"),
    };
    let delay = of
        .get("delay_ns")
        .and_then(Value::as_u64)
        .map(|ns| format!(", {} ms after a change of phase", ms(ns)));
    let changes = of.get("changes").and_then(Value::as_u64).unwrap_or(0);
    let changes = if changes > 0 {
        format!("; {}{}", count(changes, "change"), delay.unwrap_or_default())
    } else {
        String::new()
    };
    format!("process {} (rule {}): {has}{changes}", whole(of, "pid"), word(of, "rule"))
}

/// How often programs of rules were run; empty: never.
fn hooks(of: &Value) -> String {
    let n = |name: &str| of.get(name).and_then(Value::as_u64).unwrap_or(0);
    if n("runs") + n("skipped") == 0 {
        return String::new();
    }
    let text = format!(
        "{} of programs: {} failed, {} at their time limit; {} skipped while one ran",
        count(n("runs"), "run"),
        n("failed"),
        n("timed_out"),
        n("skipped")
    );
    let last = word(of, "last_failure");
    if last.is_empty() { text } else { format!("{text}; last failure: {last}") }
}

fn row(run: &Value) -> Vec<String> {
    let real = |name: &str| run.get(name).and_then(Value::as_f64);
    let tpot = |i: usize| or_dash(list(run, "tpot_ns").get(i).and_then(Value::as_u64), ms);
    let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
    vec![
        whole(run, "pid"),
        or(word(run, "rule"), "-"),
        or(word(run, "level"), "-"),
        whole(run, "tokens"),
        or_dash(real("rate"), |x| format!("{x:.2}")),
        or_dash(run.get("ttft_ns").and_then(Value::as_u64), ms),
        tpot(0),
        tpot(1),
        tpot(2),
        whole(run, "lost"),
        or_dash(real("cost"), pct),
        or(word(run, "ended"), "running"),
        or(word(run, "file"), "-"),
        or(word(run, "exe"), "-"),
    ]
}

fn messages(out: &mut dyn Write, state: &Value, style: &Style) -> io::Result<()> {
    let all = list(state, "messages");
    if !all.is_empty() {
        title(out, style, "Messages")?;
    }
    all.iter().try_for_each(|m| {
        writeln!(out, "  {}  {}", style.dim(&clean(&word(m, "at"))), clean(&word(m, "text")))
    })
}
