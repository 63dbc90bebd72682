//! Tests of the Prometheus text, with a strict parser of its format.

use proptest::prelude::*;

use super::super::model::ModelLabel;
use super::super::net::NetworkStatus;
use super::super::page_faults::PageFaults;
use super::super::run::Run;
use super::super::status::{ServiceUsage, StatusCounts};
use super::super::store::DirectoryUsage;
use super::super::totals::ModelTally;
use super::*;
use crate::resident::energy::EnergyUsed;
use crate::supervisor::run_table::LeftRuns;
use agent::recorder::tally::{ObservedRequest, RequestTally};

/// Maximum runs with lines of their own.
const RUNS: usize = 100;

fn text(state: &ServiceState) -> String {
    exposition::text(&families(state, true))
}

/// One line with a value: name, ordered labels, value.
type Sample = (String, Vec<(String, String)>, f64);

/// Parses the text as strictly as its format is specified: a HELP and a TYPE line before the samples of each
/// metric, samples of a metric together, and no duplicate. Histograms are checked by [`complete`].
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
            let known = ["gauge", "counter", "histogram"].contains(&kind);
            if !known || (kind == "counter") != name.ends_with("_total") {
                return Err(format!("{name} is no {kind}"));
            }
            families.push((name.to_owned(), kind.to_owned()));
        } else {
            let sample = sample(line).ok_or_else(|| format!("no sample: {line:?}"))?;
            let is_of = |(name, kind): &(String, String)| match kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"].iter().any(|s| sample.0 == format!("{name}{s}")),
                _ => *name == sample.0,
            };
            if !families.last().is_some_and(is_of) {
                return Err(format!("{} stands in another's place", sample.0));
            }
            if all.iter().any(|s| (&s.0, &s.1) == (&sample.0, &sample.1)) {
                return Err(format!("twice: {line}"));
            }
            all.push(sample);
        }
    }
    for (name, kind) in &families {
        let has = |name: &str| all.iter().any(|s| s.0 == name);
        match kind.as_str() {
            "histogram" => complete(&all, name)?,
            _ if has(name) => {}
            _ => return Err(format!("{name} has no sample")),
        }
    }
    Ok(all)
}

/// Checks a histogram: its buckets grow, and the last one is the count.
fn complete(all: &[Sample], name: &str) -> Result<(), String> {
    let of = |suffix: &'static str| all.iter().filter(move |s| s.0 == format!("{name}{suffix}"));
    if of("_count").count() == 0 || of("_count").count() != of("_sum").count() {
        return Err(format!("{name} has no count, or not all sums"));
    }
    for count in of("_count") {
        let without = |s: &Sample| s.1.iter().filter(|(l, _)| l != "le").cloned().collect::<Vec<_>>();
        let buckets: Vec<&Sample> =
            all.iter().filter(|s| s.0 == format!("{name}_bucket") && without(s) == count.1).collect();
        let le = |s: &Sample| s.1.iter().find(|(l, _)| l == "le").and_then(|(_, le)| le.parse::<f64>().ok());
        let bounds: Vec<Option<f64>> = buckets.iter().map(|s| le(s)).collect();
        let counts: Vec<f64> = buckets.iter().map(|s| s.2).collect();
        let last = bounds.last().copied().flatten();
        if !bounds.is_sorted()
            || !counts.is_sorted()
            || last != Some(f64::INFINITY)
            || counts.last() != Some(&count.2)
        {
            return Err(format!("{name}: {bounds:?} {counts:?} of {}", count.2));
        }
    }
    Ok(())
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
        requests: Vec::new(),
        lost: 3,
        seen: 9_007_199_254,
        cost: Some(0.008),
        figures: None,
        ended: None,
    }
}

fn state() -> ServiceState {
    let mut state = ServiceState::new("0.1.0 (abc)");
    state.state = ServicePhase::Recording;
    state.counts = StatusCounts {
        seen: 12,
        recorded: 5,
        empty: 0,
        by_rule: 4,
        sample_one_in: 2,
        max_concurrent: 1,
        ..StatusCounts::default()
    };
    state.store =
        DirectoryUsage { files: 3, writing: 1, bytes: 5000, counted: 70_000, quota: 1 << 29, removed: 77 };
    state.own = ServiceUsage { resident_bytes: Some(4_300_000), cpu_seconds: Some(1.25) };
    state.files_removed = 77;
    state.totals.left = LeftRuns { ignored: 4, sampled: 2 };
    state.totals.add_events("chat", 9_007_199_254, 3);
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
    let of_rule = |name: &str| value(&all, name, ("rule", "chat"));
    assert_eq!((of_rule("events_total"), of_rule("events_lost_total")), (Some(9_007_199_254.0), Some(3.0)));
    let tpot = |percentile| value(&all, "run_tpot_seconds", ("percentile", percentile));
    assert_eq!((tpot("50"), tpot("90"), tpot("99")), (Some(0.036), None, Some(0.0485)));
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
    assert!(
        all.iter().all(|s| s.0.starts_with("profinfer_") && !s.0.starts_with("profinfer_run_")),
        "{text}"
    );
    for unknown in
        ["tokens_total", "events_total", "scrapes_total", "otlp_exports_total", "resident_memory_bytes"]
    {
        assert_eq!(value(&all, unknown, ("", "")), None);
    }
}

#[test]
fn no_label_names_a_process_unless_asked_for() {
    let mut state = state();
    state.totals.models.add("chat", model(Some("m")), 0);
    let text = exposition::text(&families(&state, false));
    let all = read(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let labels: std::collections::BTreeSet<&str> =
        all.iter().flat_map(|s| s.1.iter().map(|(label, _)| label.as_str())).collect();
    let known = [
        "gen_ai_operation_name",
        "gen_ai_provider_name",
        "gen_ai_request_model",
        "ggml_quantization",
        "le",
        "outcome",
        "reason",
        "rule",
        "state",
        "version",
    ];
    assert!(labels.into_iter().eq(known), "{text}");
}

/// What was seen of two requests of a model.
fn model(name: Option<&str>) -> ModelTally {
    let mut tally = RequestTally { tokens: 7, ..RequestTally::default() };
    for ms in [50, 300] {
        tally.observe_request(&ObservedRequest {
            first_token_ns: Some(ms * 1_000_000),
            output_token_ns: &[30_000_000; 3],
            duration_ns: Some(90_000_000),
        });
    }
    tally.miss(Unobserved::NoPrompt);
    let quantization = name.map(|_| "Q4_K_M".to_owned());
    ModelTally { model: ModelLabel { name: name.map(str::to_owned), quantization }, tally }
}

#[test]
fn requests_are_cumulative_histograms_by_model() {
    let mut state = state();
    state.totals.models.add("chat", model(Some("A \"model\"")), 0);
    state.totals.models.add("chat", model(Some("A \"model\"")), 0);
    state.totals.models.add("chat", model(None), 1000);
    let text = text(&state);
    let all = read(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let of = |name: &str, le: &str, model: Option<&str>| {
        let has = |s: &&Sample, label: &str, text: &str| {
            s.1.iter().any(|(l, v)| (l.as_str(), v.as_str()) == (label, text))
        };
        let named = |s: &&Sample| s.1.iter().any(|(l, _)| l == "gen_ai_request_model");
        let mut those = all.iter().filter(|s| {
            s.0 == format!("gen_ai_server_{name}")
                && (le.is_empty() || has(s, "le", le))
                && model.map_or(!named(s), |model| has(s, "gen_ai_request_model", model))
        });
        those.next().map(|s| s.2)
    };
    let name = Some("A \"model\"");
    assert_eq!(of("time_to_first_token_seconds_bucket", "0.04", name), Some(0.0));
    assert_eq!(of("time_to_first_token_seconds_bucket", "0.06", name), Some(2.0));
    assert_eq!(of("time_to_first_token_seconds_bucket", "0.5", name), Some(4.0));
    assert_eq!(of("time_to_first_token_seconds_bucket", "+Inf", name), Some(4.0));
    assert_eq!(of("time_to_first_token_seconds_sum", "", name), Some(0.7));
    assert_eq!(of("time_per_output_token_seconds_count", "", name), Some(12.0));
    assert_eq!(of("time_per_output_token_seconds_bucket", "0.05", None), Some(6.0));
    assert_eq!(of("request_duration_seconds_bucket", "0.16", None), Some(2.0));
    let number = |bounds: &[u64]| bounds.len() + 1;
    let of_model = |name: &str| {
        let labels = |s: &&Sample| s.1.iter().any(|(l, v)| l == "ggml_quantization" && v == "Q4_K_M");
        all.iter().filter(|s| s.0 == format!("gen_ai_server_{name}_bucket")).filter(labels).count()
    };
    assert_eq!(of_model("time_to_first_token_seconds"), number(&FIRST_TOKEN_NS));
    assert_eq!(of_model("time_per_output_token_seconds"), number(&OUTPUT_TOKEN_NS));
    assert_eq!(of_model("request_duration_seconds"), number(&DURATION_NS));
    assert_eq!(value(&all, "tokens_total", ("ggml_quantization", "Q4_K_M")), Some(18.0));
    let of_models = |s: &&Sample| {
        s.0.starts_with("gen_ai_")
            || s.0.starts_with("profinfer_tokens_")
            || s.0.starts_with("profinfer_requests_")
    };
    let has_rule = |s: Sample| s.1.contains(&("rule".into(), "chat".into()));
    assert!(all.iter().filter(of_models).cloned().all(has_rule), "{text}");
    assert_eq!(value(&all, "requests_unobserved_total", ("reason", "prompt not seen")), Some(2.0));
    let les: Vec<&str> = text
        .lines()
        .filter(|l| l.starts_with("gen_ai_server_time_to_first_token_seconds_bucket") && l.contains("Q4_K_M"))
        .filter_map(|l| l.split(",le=\"").nth(1)?.split('"').next())
        .collect();
    let wanted = [
        "0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1", "2.5",
        "5", "7.5", "10", "+Inf",
    ];
    assert_eq!(les, wanted);
}

#[test]
fn hardware_and_network_are_told_where_they_are_known() {
    let mut state = ServiceState::new("1");
    state.energy = vec![EnergyUsed { id: "package-0".into(), kind: "cpu", joules: 12.5 }];
    state.faults = Some(PageFaults { major: 3, minor: 40 });
    let mut network = NetworkStatus { listen: Some("127.0.0.1:1".into()), ..NetworkStatus::default() };
    (network.scrapes.served, network.exports.dropped) = (5, 2);
    state.network = Some(network.clone());
    let of = |state: &ServiceState, name: &str, label: (&str, &str)| {
        let text = text(state);
        let all = read(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let has = |s: &&Sample| s.1.iter().any(|(l, v)| (l.as_str(), v.as_str()) == label);
        all.iter().filter(|s| s.0 == name).find(has).map(|s| s.2)
    };
    assert_eq!(of(&state, "hw_energy_joules_total", ("hw_type", "cpu")), Some(12.5));
    let faults = |kind| of(&state, "process_paging_faults_total", ("system_paging_fault_type", kind));
    assert_eq!((faults("major"), faults("minor")), (Some(3.0), Some(40.0)));
    assert_eq!(of(&state, "profinfer_scrapes_total", ("answer", "metrics")), Some(5.0));
    assert_eq!(of(&state, "profinfer_otlp_exports_total", ("outcome", "dropped")), None);
    state.network =
        Some(NetworkStatus { endpoint: Some("http://x:1/v1/metrics".into()), listen: None, ..network });
    assert_eq!(of(&state, "profinfer_scrapes_total", ("answer", "metrics")), None);
    assert_eq!(of(&state, "profinfer_otlp_exports_total", ("outcome", "dropped")), Some(2.0));
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

#[test]
fn a_name_of_another_rule_s_model_adds_nothing_to_it() {
    let mut state = ServiceState::new("1");
    state.totals.models.add("production", model(Some("m")), 990);
    (0..10).for_each(|_| state.totals.models.add("rest", model(Some("m")), 1000));
    let all = read(&text(&state)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(value(&all, "tokens_total", ("rule", "production")), Some(9.0));
    assert_eq!(value(&all, "tokens_total", ("rule", "rest")), Some(90.0));
}

#[test]
fn no_two_models_are_told_alike() {
    let mut state = ServiceState::new("1");
    // Characters that hide, beside the text that is shown in their place.
    for c in ['\n', '\u{ad}', '\u{61c}', '\u{fff9}', '\u{e0041}'] {
        for name in [format!("a{c}"), format!("a{}", c.escape_default()), format!("a\\x{:02x}", u32::from(c))]
        {
            state.totals.models.add("chat", model(Some(&name)), 0);
        }
    }
    let text = text(&state);
    let all = read(&text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(all.iter().filter(|s| s.0 == "profinfer_tokens_total").map(|s| s.2).sum::<f64>(), 15.0 * 9.0);
}

/// Writes what two services expose, earlier and later, and what the first one pushes, for `tests/service/metrics.py`:
/// other programs read it there.
#[test]
fn samples_for_other_programs() {
    // The test program is in target/debug/deps.
    let target =
        std::env::current_exe().expect("this test").ancestors().nth(3).map(|dir| dir.join("tests/metrics"));
    let dir = std::env::var_os("PROFINFER_METRICS_SAMPLES").map(Into::into).or(target).expect("a directory");
    std::fs::create_dir_all(&dir).expect("made");
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).expect("written");
    for (name, requests) in [("a-0", 3u32), ("a-1", 40), ("b-0", 2), ("b-1", 20)] {
        let mut state = state();
        state.energy = vec![EnergyUsed { id: "package-0".into(), kind: "cpu", joules: f64::from(requests) }];
        state.faults = Some(PageFaults { major: 1, minor: u64::from(requests) });
        state.network = Some(NetworkStatus {
            listen: Some("127.0.0.1:1".into()),
            endpoint: Some("http://127.0.0.1:2/v1/metrics".into()),
            ..NetworkStatus::default()
        });
        state.totals.models.add("chat", model(None), 0);
        for n in 0..requests {
            let mut seen = model(Some("A \"model\"\\of\nmine"));
            // Those of the second service are slower.
            let slow = if name.starts_with('b') { 8 } else { 1 };
            let tokens = [u64::from(n + 1) * 2_000_000 * slow; 5];
            seen.tally.observe_request(&ObservedRequest {
                first_token_ns: Some(u64::from(n + 1) * 11_000_000 * slow),
                output_token_ns: &tokens,
                duration_ns: Some(u64::from(n) * 70_000_000 * slow),
            });
            state.totals.models.add("chat", seen, 0);
        }
        let families = families(&state, true);
        write(&format!("{name}.prom"), &exposition::text(&families));
        let times = otlp::Times { began: 1_700_000_000_000_000_000, now: 1_700_000_060_000_000_000 };
        let resource = [("service.name".to_owned(), "profinfer".to_owned())];
        write(&format!("{name}.json"), &otlp::request(&families, &resource, "1", times));
    }
}
