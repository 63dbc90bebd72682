//! The level of a recording follows what it costs and how fast the engine decodes, on a live engine.
#![cfg(feature = "agent")]

mod common;

use std::process::Command;
use std::time::Duration;

use common::run::{Recorder, record};
use common::seen::Seen;
use common::{live, model, runner};
use profinfer::agent::qos::law::PATIENCE;
use profinfer::trace::record::{Availability, Detail, LevelChange};

fn run<'a>(program: &'a str, model: &'a str, tokens: &'a str) -> Vec<&'a str> {
    vec![program, "run", "--no-roofline", "-m", model, "-t", "1", "-p", "4", "-n", tokens]
}

fn levels(seen: &Seen) -> &[LevelChange<'static>] {
    &seen.all.causes.levels
}

#[test]
fn a_generous_budget_gets_all_ops_with_their_structure() {
    let _turn = live!();
    let (program, model) = (runner(), model("llama1b-L4", "q4_0"));
    let mut args = vec!["--budget", "60%", "--"];
    args.extend(run(program.to_str().expect("a path"), model.to_str().expect("a path"), "60"));
    let run = record(&args);
    let seen = run.seen();
    let steps: Vec<_> = levels(&seen).iter().map(|l| (l.to, l.one_in)).collect();
    assert_eq!(steps, [(Detail::Graph, 1), (Detail::Structure, 1)], "{}", run.stderr);
    assert!(levels(&seen)[1].predicted_ppm.is_some_and(|p| p < 600_000));
    seen.books_close();
    // Ops came after their graphs were known: their structure was sent all the same.
    let whole = seen.all.cpu_graphs.iter().filter(|g| g.plan.is_some() && !g.cut);
    let known = |id: &u32| seen.tensor(*id).known;
    let plans: Vec<u32> = whole.filter_map(|g| g.plan).collect();
    assert!(plans.len() > 20, "{} graphs with ops", plans.len());
    for plan in plans {
        assert!(seen.all.plans[&plan].hits.iter().all(|h| known(&h.0)), "plan {plan}");
    }
    // Nothing was missing where nothing came or went.
    let checked = seen.all.cpu_graphs.iter().filter(|g| !g.cut && g.expected.is_some());
    assert!(checked.clone().count() > 20 && checked.clone().all(|g| g.expected == Some(g.seen)));
    assert!(seen.left("op").is_empty(), "{:?}", seen.left("op"));
    let budget = seen.all.causes.features.iter().find(|f| f.name == "budget").expect("a last word");
    assert_eq!(budget.state, Availability::Whole);
}

#[test]
fn a_budget_that_no_level_meets_leaves_no_probe_and_says_what_the_cheapest_costs() {
    let _turn = live!();
    let (program, model) = (runner(), model("tiny", "q4_0"));
    let mut args = vec!["--budget", "0.00001%", "--"];
    args.extend(run(program.to_str().expect("a path"), model.to_str().expect("a path"), "800"));
    let run = record(&args);
    let seen = run.seen();
    let last = levels(&seen).iter().rfind(|l| l.to == Detail::Nothing).expect("nothing fits");
    assert!(last.measured_ppm.is_some_and(|p| p > 0), "{last:?}");
    assert!(last.why.contains("the budget is"), "{}", last.why);
    assert!(run.stderr.contains("level now nothing"), "{}", run.stderr);
    assert!((seen.all.tokens.len() as u64) < 800, "{} tokens recorded", seen.all.tokens.len());
    seen.books_close();
}

/// Takes nearly all of CPU 0 while it runs: ahead of every ordinary thread.
fn hog(seconds: &str) {
    let spin = "while :; do :; done";
    let mut hog = Command::new("timeout");
    let ended = hog.args([seconds, "taskset", "-c", "0", "chrt", "-f", "1", "sh", "-c", spin]).status();
    assert_eq!(ended.expect("timeout, taskset and chrt").code(), Some(124));
}

#[test]
fn a_processor_hog_lowers_the_level_within_two_tokens_and_calm_raises_it_again() {
    let _turn = live!();
    let (program, model) = (runner(), model("llama1b-L4", "q4_0"));
    let mut args = vec!["--qos", "8tok/s", "--", "timeout", "25", "taskset", "-c", "0"];
    args.extend(run(program.to_str().expect("a path"), model.to_str().expect("a path"), "100000"));
    let mut recorder = Recorder::start(&args);
    recorder.wait_for_bytes(100);
    std::thread::sleep(Duration::from_secs(3));
    hog("3");
    std::thread::sleep(Duration::from_secs(9));
    recorder.signal(libc::SIGINT);
    let run = recorder.finish();
    let seen = run.seen();
    let all = levels(&seen);
    let lowered = all.iter().position(|l| l.why.contains("tokens/s")).unwrap_or_else(|| panic!("{all:?}"));
    assert!(all[..lowered].iter().any(|l| l.to == Detail::Structure), "{all:?}");
    assert_eq!((all[lowered].to, all[lowered].one_in), (Detail::Graph, 1), "{all:?}");
    let slow = |t: &&profinfer::trace::record::Token| t.dur > 125_000_000 && t.n_tokens == Some(1);
    let first = seen.all.tokens.iter().find(slow).expect("the hog slows tokens down").t;
    let until = all[lowered].t;
    let waited = seen.all.tokens.iter().filter(slow).filter(|t| (first..until).contains(&t.t)).count();
    // One more may have begun before the recorder had seen the second end.
    assert!(waited as u32 <= PATIENCE + 1, "{waited} slow tokens before the step");
    assert_eq!(all.last().map(|l| l.to), Some(Detail::Structure), "{all:?}");
    seen.books_close();
}
