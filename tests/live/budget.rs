//! The level of a recording follows its cost and the engine's decode speed, on a live engine.

use crate::common;

use std::process::Command;
use std::time::Duration;

use analysis::recorded::load::Loaded;
use common::busy::Busy;
use common::run::{Recorder, Run, Target, profinfer, record, wait_until};
use common::seen::Seen;
use common::waiting::monotonic;
use common::{counted, driver, engine, live, model, runner, skip};
use pfi::record::{Availability, Detail, Feature, LevelChange};
use serde_json::Value;

fn run<'a>(program: &'a str, model: &'a str, tokens: &'a str) -> Vec<&'a str> {
    vec![program, "run", "--no-roofline", "-m", model, "-t", "1", "-p", "4", "-n", tokens]
}

fn levels(seen: &Seen) -> &[LevelChange<'static>] {
    &seen.all.causes.levels
}

#[test]
fn a_generous_budget_gets_all_ops_with_their_structure() {
    let _turn = live!();
    generous_budget("auto");
}

#[test]
fn so_does_one_that_is_kept_from_inside() {
    let _turn = live!();
    generous_budget("inside");
}

fn generous_budget(source: &str) {
    let (program, model) = (runner(), model("llama1b-L4", "q4_0"));
    // Without the scheduler: a slow machine would have the time for that level, too.
    let mut args = vec!["--source", source, "--budget", "60%", "--no-sched", "--"];
    args.extend(run(program.to_str().expect("a path"), model.to_str().expect("a path"), "1000000"));
    let recorder = Recorder::start(&args);
    recorder.wait_for_event_where("all ops", |event| {
        event["event"] == "level" && event["to"] == "op with structure"
    });
    let with_ops = |all: &Loaded<'_>| all.cpu_graphs.iter().filter(|g| g.plan.is_some() && !g.cut).count();
    recorder.wait_for_trace("graphs have ops", |all| with_ops(all) > 30);
    // It hands the signal on.
    recorder.signal(libc::SIGTERM);
    let run = recorder.finish();
    let seen = run.seen();
    let steps: Vec<_> = levels(&seen).iter().map(|l| (l.to, l.one_in)).collect();
    assert_eq!(steps, [(Detail::Graph, 1), (Detail::Structure, 1)], "{}", run.stderr);
    assert!(levels(&seen)[1].predicted_ppm.is_some_and(|p| p < 600_000));
    seen.books_close();
    // Ops were added after their graphs were known: their structure was sent anyway.
    let whole = seen.all.cpu_graphs.iter().filter(|g| g.plan.is_some() && !g.cut);
    let known = |id: &u32| seen.tensor(*id).known;
    let plans: Vec<u32> = whole.filter_map(|g| g.plan).collect();
    assert!(plans.len() > 20, "{} graphs with ops", plans.len());
    for plan in plans {
        assert!(seen.all.plans[&plan].hits.iter().all(|h| known(&h.0)), "plan {plan}");
    }
    // Nothing is missing except while probes were added or removed.
    let checked = seen.all.cpu_graphs.iter().filter(|g| !g.cut && g.expected.is_some());
    assert!(checked.clone().count() > 20 && checked.clone().all(|g| g.expected == Some(g.seen)));
    assert!(seen.left("op").is_empty(), "{:?}", seen.left("op"));
    assert_eq!(feature(&seen, "budget").state, Availability::Whole);
}

fn feature<'s>(seen: &'s Seen, name: &str) -> &'s Feature<'static> {
    let found = seen.all.causes.features.iter().find(|f| f.name == name);
    found.unwrap_or_else(|| panic!("nothing is said of {name}"))
}

/// How often a process has waited so far.
fn waits(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|n| n.trim().parse().ok()).expect("a number")
}

/// A recorder looks at the rate of its target's context switches at the first passes of its loop that are a second apart
/// (LOOK_NS in src/recorder/session/extras.rs). There is no event of that, but its loop waits once a pass.
fn wait_for_rate(recorder: &Recorder) {
    let second = recorder.wait_for_event("ready")["t_ns"].as_u64().expect("a time") + 1_000_000_000;
    wait_until("a second has passed", || monotonic() > second);
    let pid = recorder.child.id();
    let before = waits(pid);
    wait_until("its loop has passed", || waits(pid) > before + 3);
}

/// A real engine, recorded with counters and scheduler under a budget from before its first token, and until this level
/// was reached, if one is given. Err: skipped.
fn budgeted(budget: &str, level: Option<&str>) -> Result<Run, String> {
    let lib = engine("v0.5.0")?;
    let mut command = Command::new(driver());
    command.arg("--engine").arg(lib).arg("--model").arg(model("llama1b-L4", "q4_0"));
    let mut target = Target::controlled(command.args(["--control", "--ctx", "256", "-t", "2"]));
    target.tell("", 1);
    let pid = target.pid().to_string();
    let recorder = Recorder::start(&["--faults", "--sched", "--budget", budget, "-p", &pid]);
    recorder.wait_for_engine();
    wait_for_rate(&recorder);
    target.tell("prefill 7\n", 2);
    target.tell("run 20\n", 3);
    if let Some(level) = level {
        recorder.wait_for_event_where(level, |event| event["event"] == "level" && event["to"] == level);
    }
    target.tell("run 60\n", 4);
    drop(target.0.stdin.take());
    target.said();
    Ok(recorder.finish())
}

fn report(run: &Run) -> String {
    let out = common::run::run(profinfer().args(["report", "--verbose"]).arg(&run.trace));
    assert!(out.status.success(), "{}", out.stderr);
    out.stdout
}

/// Intervals during which a level, or one above it, was on.
fn spells(seen: &Seen, level: Detail) -> Vec<(i64, i64)> {
    let all = levels(seen);
    let ends = all.iter().skip(1).map(|l| l.t).chain([i64::MAX]);
    all.iter().zip(ends).filter(|(l, _)| l.to >= level).map(|(l, end)| (l.t, end)).collect()
}

/// A level is written once all its parts are attached; some of them are added and removed some ten milliseconds
/// apart. ns
const CHANGE: i64 = 1_000_000_000;

/// No scheduler record lies outside the scheduler level, except while its probes are added or removed.
fn times_away_are_of_their_level(seen: &Seen) {
    let on = spells(seen, Detail::Scheduler);
    let within = |t: i64| {
        on.iter().any(|(from, to)| from.saturating_sub(CHANGE) <= t && t <= to.saturating_add(CHANGE))
    };
    let outside = seen.all.causes.off_cpu.iter().find(|r| !within(r.t.saturating_add_unsigned(r.dur)));
    assert!(outside.is_none(), "{outside:?} is not of {on:?}");
}

#[test]
fn counters_and_scheduler_come_on_within_a_wide_budget() {
    let _turn = live!();
    let run = match budgeted("50%", Some("scheduler")) {
        Ok(run) => run,
        Err(why) => skip!("{why}"),
    };
    let seen = run.seen();
    seen.books_close();
    println!("{}", run.stderr);
    let all = levels(&seen);
    assert_eq!(all.first().map(|l| l.to), Some(Detail::Graph), "{all:?}");
    let last = all.last().expect("levels");
    assert_eq!((last.to, last.one_in), (Detail::Scheduler, 1), "{all:?}");
    assert!(last.predicted_ppm.is_some_and(|p| p < 500_000), "{last:?}");
    times_away_are_of_their_level(&seen);
    assert!(!seen.all.causes.off_cpu.is_empty(), "its threads slept and woke");
    // Every op after the last change is counted, none before the first with counters.
    let from = spells(&seen, Detail::Counters)[0].0.saturating_sub(CHANGE);
    let of = |graph: u64| seen.all.cpu_graphs.iter().find(|g| g.seq == graph).expect("its graph");
    let counted = counted::ops(&seen);
    let late: Vec<_> = counted.iter().filter(|o| of(o.graph).t > last.t && !of(o.graph).cut).collect();
    let unknown = late.iter().filter(|o| o.counts.iter().any(Option::is_none)).count();
    assert!(late.len() > 1000 && unknown * 100 < late.len(), "{unknown} unknown of {}", late.len());
    let end = |graph: u64| of(graph).t.saturating_add_unsigned(of(graph).dur);
    assert!(counted.iter().all(|o| end(o.graph) >= from || o.counts.iter().all(Option::is_none)));
    for name in ["counters", "scheduler"] {
        let f = feature(&seen, name);
        assert_eq!(f.state, Availability::Partly, "{f:?}");
        assert!(f.why.contains("; on for "), "{f:?}");
    }
    let budget = feature(&seen, "budget");
    assert!(budget.why.contains("ns with counters") && budget.why.contains("off-CPU interval"), "{budget:?}");
    let text = report(&run);
    assert!(text.contains("Overhead by level") && text.contains("\n  partial"), "{text}");
}

/// Perf events of the scheduler stay: the recording says that the budget does not cover them, and no level claims
/// to.
#[test]
fn without_bpf_the_scheduler_is_in_no_budget() {
    let _turn = live!();
    let (program, model) = (runner(), model("tiny", "q4_0"));
    let mut args = vec!["--source", "perf", "--sched", "--budget", "60%", "--"];
    args.extend(run(program.to_str().expect("a path"), model.to_str().expect("a path"), "200"));
    let run = record(&args);
    let seen = run.seen();
    seen.books_close();
    assert!(levels(&seen).iter().all(|l| l.to < Detail::Counters), "{:?}", levels(&seen));
    let budget = feature(&seen, "budget");
    assert_eq!(budget.state, Availability::Partly, "{budget:?}");
    assert!(budget.why.contains("not controlled by the budget: scheduler perf events"), "{budget:?}");
    assert!(!seen.all.causes.off_cpu.is_empty(), "its thread slept and woke");
}

#[test]
fn a_tight_budget_leaves_counters_and_scheduler_out_and_says_so() {
    let _turn = live!();
    let run = match budgeted("0.001%", None) {
        Ok(run) => run,
        Err(why) => skip!("{why}"),
    };
    let seen = run.seen();
    seen.books_close();
    println!("{}", run.stderr);
    assert!(levels(&seen).iter().all(|l| l.to < Detail::Counters), "{:?}", levels(&seen));
    assert!(seen.all.causes.off_cpu.is_empty() && counted::ops(&seen).is_empty());
    for name in ["counters", "scheduler"] {
        let f = feature(&seen, name);
        assert_eq!(f.state, Availability::None, "{f:?}");
        assert!(f.why.contains("never on within the budget"), "{f:?}");
    }
    let text = report(&run);
    for name in ["counters", "scheduler"] {
        assert!(text.lines().any(|l| l.starts_with("  not recorded") && l.contains(name)), "{text}");
    }
}

#[test]
fn a_budget_that_no_level_meets_still_has_all_calls_and_says_what_they_cost() {
    let _turn = live!();
    let (program, model) = (runner(), model("tiny", "q4_0"));
    let mut args = vec!["--budget", "0.00001%", "--"];
    args.extend(run(program.to_str().expect("a path"), model.to_str().expect("a path"), "800"));
    let run = record(&args);
    let seen = run.seen();
    let last = levels(&seen).last().expect("levels");
    assert_eq!((last.to, last.one_in), (Detail::Token, 1), "{last:?}");
    assert!(last.measured_ppm.is_some_and(|p| p > 0) && last.why.contains("the budget is"), "{last:?}");
    let decoded = seen.all.tokens.iter().filter(|t| t.n_tokens == Some(1)).count();
    assert!(decoded >= 799, "{decoded} tokens recorded");
    let budget = feature(&seen, "budget");
    assert!(
        budget.state == Availability::Partly && budget.why.contains("calls are recorded at any cost"),
        "{budget:?}"
    );
    seen.books_close();
}

/// Seconds of a token on CPU 0, when nothing is recorded but tokens.
fn token_time(run: &[&str]) -> f64 {
    let run = record(&[&["--level", "token", "--", "taskset", "-c", "0"], run].concat());
    let mut of_one: Vec<u64> =
        run.seen().all.tokens.iter().filter(|t| t.n_tokens == Some(1)).map(|t| t.dur).collect();
    of_one.sort_unstable();
    of_one[of_one.len() / 2] as f64 / 1e9
}

/// When which level changes is proved in src/recorder/qos/policy/tests.rs; that it does, here.
#[test]
fn a_processor_hog_lowers_the_level_and_calm_raises_it_again() {
    let _turn = live!();
    let (program, model) = (runner(), model("llama1b-L4", "q4_0"));
    let run = |tokens| run(program.to_str().expect("a path"), model.to_str().expect("a path"), tokens);
    // The hog leaves a sixteenth of the CPU, in pieces that no token fits into.
    let limit = 5.0 * token_time(&run("10"));
    let qos = format!("{}tok/s", 1.0 / limit);
    let args = ["--qos", &qos, "--sched", "--faults", "--", "timeout", "300", "taskset", "-c", "0"];
    let recorder = Recorder::start(&[&args[..], &run("100000")].concat());
    let level = |what: &str, since: u64, wanted: &dyn Fn(&Value) -> bool| {
        let is_it = |e: &Value| e["event"] == "level" && e["t_ns"].as_u64() > Some(since) && wanted(e);
        recorder.wait_for_event_where(what, is_it)["t_ns"].as_u64().expect("a time")
    };
    let because =
        |why: &'static str| move |e: &Value| e["why"].as_str().is_some_and(|text| text.contains(why));
    level("all there is", 0, &|event| event["to"] == "scheduler");
    let ms = Duration::from_millis;
    let (begin, hog) = (monotonic(), Busy::start("hog", 0, ms(15), ms(1)));
    let lowered = level("a lower level", begin, &because("tok/s"));
    drop(hog);
    level("a higher level", lowered, &because("one level up"));
    recorder.signal(libc::SIGINT);
    let run = recorder.finish();
    let seen = run.seen();
    let all = levels(&seen);
    let told: Vec<_> = run.events.iter().filter(|e| e["event"] == "level").collect();
    assert_eq!(told.len(), all.len(), "an event for every change: {told:#?}");
    assert!(told.iter().zip(all).all(|(event, l)| event["why"] == l.why), "{told:#?}: {all:?}");
    assert!(told.windows(2).all(|two| two[0]["to"] == two[1]["from"]), "{told:#?}");
    let lowered = all.iter().position(|l| l.why.contains("tok/s")).unwrap_or_else(|| panic!("{all:?}"));
    let before = &all[lowered - 1];
    let less = all[lowered].to < before.to || all[lowered].one_in > before.one_in;
    assert!(less, "{all:?}");
    let slow = |t: &pfi::record::Token| t.dur as f64 > limit * 1e9 && t.n_tokens == Some(1);
    assert!(seen.all.tokens.iter().any(slow), "the hog slows tokens down");
    times_away_are_of_their_level(&seen);
    seen.books_close();
}
