//! Tests of the Prometheus text, with a strict parser of its format.

use proptest::prelude::*;

use super::super::status::{ServiceUsage, StatusCounts};
use super::super::store::DirectoryUsage;
use super::*;

/// One line with a value: name, ordered labels, value.
type Sample = (String, Vec<(String, String)>, f64);

/// Parses the text as strictly as its format is specified: a HELP and a TYPE line before the samples of each
/// metric, samples of a metric together, and no duplicate.
fn read(text: &str) -> Result<Vec<Sample>, String> {
    let mut all: Vec<Sample> = Vec::new();
    let mut families: Vec<(String, String)> = Vec::new();
    let mut helped = String::new();
    if !text.ends_with('\n') {
        return Err("the last line has no end".into());
    }
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            helped = rest.split_once(' ').ok_or("a HELP line without a text")?.0.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or("a TYPE line without a type")?;
            if name != helped || families.iter().any(|(n, _)| n == name) {
                return Err(format!("{name} is typed twice, or without a HELP line"));
            }
            if !["gauge", "counter"].contains(&kind) || (kind == "counter") != name.ends_with("_total") {
                return Err(format!("{name} is no {kind}"));
            }
            families.push((name.to_owned(), kind.to_owned()));
        } else {
            let sample = sample(line).ok_or_else(|| format!("no sample: {line:?}"))?;
            if families.last().is_none_or(|(name, _)| *name != sample.0) {
                return Err(format!("{} stands in another's place", sample.0));
            }
            if all.iter().any(|s| (&s.0, &s.1) == (&sample.0, &sample.1)) {
                return Err(format!("twice: {line}"));
            }
            all.push(sample);
        }
    }
    match families.iter().find(|(name, _)| !all.iter().any(|s| s.0 == *name)) {
        Some((name, _)) => Err(format!("{name} has no sample")),
        None => Ok(all),
    }
}

fn named(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(plain) && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((label.to_owned(), value));
            rest = after;
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break rest = rest.strip_prefix('}')?,
            }
        }
    }
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    (named(name) && labels.iter().all(|(l, _)| named(l))).then(|| (name.to_owned(), labels, value))
}

/// The text before the closing quote, and the text after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match chars.next()?.1 {
                '\\' => '\\',
                '"' => '"',
                'n' => '\n',
                _ => return None,
            }),
            (_, c) if c.is_control() => return None,
            (_, c) => value.push(c),
        }
    }
}

fn recorded() -> Run {
    Run {
        threads: [None; 2],
        pid: 42,
        start: 7,
        uid: 0,
        processes: vec![42],
        exe: "/opt/llama \"8B\"\\bin\n\u{1b}[31m/llama-server".into(),
        rule: "chat".into(),
        recorder: Some(900),
        level: "op".into(),
        file: Some("x.pfi".into()),
        tokens: 1234,
        ttft_ns: Some(1_500_000_000),
        rate: Some(27.5),
        tpot_ns: [Some(36_000_000), None, Some(48_500_000)],
        lost: 3,
        seen: 9_007_199_254,
        cost: Some(0.008),
        ended: None,
    }
}

fn state() -> ServiceState {
    let mut state = ServiceState::new("0.1.0 (abc)");
    state.state = ServicePhase::Recording;
    state.counts = StatusCounts {
        seen: 12,
        recorded: 4,
        by_rule: 4,
        sample_one_in: 2,
        max_concurrent: 1,
        over_budget: 1,
        ..StatusCounts::default()
    };
    state.store =
        DirectoryUsage { files: 3, writing: 1, bytes: 5000, counted: 70_000, quota: 1 << 29, removed: 77 };
    state.own = ServiceUsage { resident_bytes: Some(4_300_000), cpu_seconds: Some(1.25) };
    state.run(&recorded());
    state.run(&Run { pid: 43, exe: "/bin/new".into(), ..Run::default() });
    state.run(&Run { pid: 44, ended: Some("exited".into()), ..recorded() });
    state
}

fn value(all: &[Sample], name: &str, label: (&str, &str)) -> Option<f64> {
    let has = |s: &&Sample| label.0.is_empty() || s.1.iter().any(|(l, v)| (l.as_str(), v.as_str()) == label);
    all.iter().filter(|s| s.0 == format!("profinfer_{name}")).find(has).map(|s| s.2)
}

#[test]
fn every_number_is_told_in_base_units() {
    let text = text(&state());
    let all = read(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let whole = |name: &str| value(&all, name, ("", ""));
    assert_eq!(
        (whole("up"), whole("runs_seen_total"), whole("runs_going")),
        (Some(1.0), Some(12.0), Some(2.0))
    );
    assert_eq!((whole("files"), whole("files_removed_total")), (Some(3.0), Some(77.0)));
    assert_eq!((whole("quota_bytes"), whole("quota_used_bytes")), (Some(536_870_912.0), Some(70_000.0)));
    assert_eq!((whole("resident_memory_bytes"), whole("cpu_seconds_total")), (Some(4.3e6), Some(1.25)));
    assert_eq!(value(&all, "state", ("state", "recording")), Some(1.0));
    assert_eq!(value(&all, "state", ("state", "waiting")), Some(0.0));
    let outcomes: f64 = all.iter().filter(|s| s.0 == "profinfer_runs_total").map(|s| s.2).sum();
    assert_eq!(Some(outcomes), whole("runs_seen_total"));
    let run = |name: &str| value(&all, name, ("pid", "42"));
    assert_eq!((run("run_tokens_total"), run("run_ttft_seconds")), (Some(1234.0), Some(1.5)));
    assert_eq!((run("run_tokens_per_second"), run("run_cost_ratio")), (Some(27.5), Some(0.008)));
    let recorder = |name: &str| value(&all, name, ("recorder", "900"));
    assert_eq!(recorder("recorder_events_total"), Some(9_007_199_254.0));
    assert_eq!(recorder("recorder_events_lost_total"), Some(3.0));
    let tpot = |quantile| value(&all, "run_tpot_seconds", ("quantile", quantile));
    assert_eq!((tpot("0.5"), tpot("0.9"), tpot("0.99")), (Some(0.036), None, Some(0.0485)));
    assert_eq!(value(&all, "run_level_info", ("level", "op")), Some(1.0));
    // An unknown value is not zero, and an ended run has no line.
    assert_eq!(value(&all, "run_ttft_seconds", ("pid", "43")), None);
    assert!(!all.iter().any(|s| s.1.contains(&("pid".into(), "44".into()))), "{text}");
    let exe = "/opt/llama \"8B\"\\bin\n\\x1b[31m/llama-server".to_owned();
    assert!(all.iter().any(|s| s.1.contains(&("exe".into(), exe.clone()))), "{text}");
}

#[test]
fn an_idle_service_has_no_lines_without_values() {
    let text = text(&ServiceState::new("1"));
    let all = read(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let of_one = |s: &Sample| s.0.starts_with("profinfer_run_") || s.0.starts_with("profinfer_recorder_");
    assert!(!all.iter().any(of_one), "{text}");
    assert_eq!(value(&all, "resident_memory_bytes", ("", "")), None);
}

#[test]
fn a_recorders_counters_stand_once_however_many_runs_it_has() {
    let mut state = ServiceState::new("1");
    // Two that share a recorder, the first reported a moment earlier; one of another recorder; one that waits, and
    // one that has ended.
    state.run(&Run { pid: 1, seen: 90, lost: 3, ..recorded() });
    state.run(&Run { pid: 2, seen: 100, lost: 4, ..recorded() });
    state.run(&Run { pid: 3, seen: 7, lost: 1, recorder: Some(901), rule: "other".into(), ..recorded() });
    state.run(&Run { pid: 4, seen: 1000, lost: 1000, recorder: None, ..recorded() });
    state.run(&Run { pid: 5, seen: 1000, recorder: Some(902), ended: Some("exited".into()), ..recorded() });
    let text = text(&state);
    let all = read(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let sum = |name: &str| -> f64 { all.iter().filter(|s| s.0 == name).map(|s| s.2).sum() };
    assert_eq!(sum("profinfer_recorder_events_total"), 107.0, "{text}");
    assert_eq!(sum("profinfer_recorder_events_lost_total"), 5.0, "{text}");
    assert_eq!(value(&all, "recorder_events_total", ("rule", "other")), Some(7.0));
    // A recorder's totals belong to no process.
    assert!(
        !all.iter().any(|s| s.0.contains("events") && s.1.iter().any(|(label, _)| label == "pid")),
        "{text}"
    );
}

#[test]
fn a_process_has_one_line_and_a_flood_of_runs_is_cut() {
    let mut state = state();
    // Its pid was reused before its end was noticed.
    state.run(&Run { start: 8, tokens: 1, ..recorded() });
    for pid in 1000..2000 {
        state.run(&Run { pid, ..recorded() });
    }
    let text = text(&state);
    let all = read(&text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(value(&all, "run_tokens_total", ("pid", "42")), Some(1.0));
    assert_eq!(all.iter().filter(|s| s.0 == "profinfer_run_tokens_total").count(), RUNS);
    assert_eq!(value(&all, "runs_going", ("", "")), Some(1003.0));
}

proptest! {
    #[test]
    fn any_name_is_one_value(exe in "\\PC*|[\\x00-\\x7f\\n\"\\\\]*", rule in ".*", rate in any::<f64>()) {
        let mut state = ServiceState::new("1");
        state.run(&Run { exe: exe.clone(), rule, rate: Some(rate), ..recorded() });
        let text = text(&state);
        let all = read(&text);
        prop_assert!(all.is_ok(), "{}\n{text}", all.unwrap_err());
        let told = value(&all.unwrap(), "run_tokens_per_second", ("pid", "42"));
        prop_assert!(told.is_some_and(|t| t == rate || t.is_nan() && rate.is_nan()));
    }
}
