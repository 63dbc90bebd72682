//! Calls that are phases, compared with the calls that the program made.

use crate::common;

use std::collections::BTreeMap;
use std::process::Command;

use analysis::sums::attribution::sampling::sampling;
use common::run::{Recorder, Target, record, run};
use common::seen::Seen;
use common::{driver, engine, fixture, live, model, runner, skip};
use pfi::record::{Availability, PhaseCall, SamplerCall};

fn count(seen: &Seen) -> BTreeMap<&str, usize> {
    let mut all = BTreeMap::new();
    seen.all.causes.phases.iter().for_each(|p| *all.entry(p.what).or_default() += 1);
    all
}

fn feature(seen: &Seen) -> (Availability, &str) {
    let f = seen.all.causes.features.iter().find(|f| f.name == "phases").expect("told");
    (f.state, f.why)
}

/// No call lies outside the recording, and calls of the same thread and kind do not overlap.
fn in_order(seen: &Seen) {
    let mut ends: BTreeMap<(u32, &str), i64> = BTreeMap::new();
    let mut all: Vec<&PhaseCall> = seen.all.causes.phases.iter().collect();
    all.sort_by_key(|p| p.t);
    for p in all {
        assert!(!p.cut && p.t > 0, "{p:?}");
        let end = ends.entry((p.tid, p.what)).or_default();
        assert!(p.t >= *end, "{p:?} begins before {end}");
        *end = p.t + p.dur as i64;
    }
}

/// Calls of samplers by name and function, each within a call of sampling that takes at least as long as they do.
fn samplers(seen: &Seen) -> BTreeMap<(&str, &str), usize> {
    let causes = &seen.all.causes;
    let mut all = BTreeMap::new();
    for c in &causes.samplers {
        let name = causes.sampler_names.get(&c.sampler).unwrap_or_else(|| panic!("{c:?} has no name"));
        assert!(name.why.is_empty() && c.within <= c.dur, "{name:?}, {c:?}");
        *all.entry((name.name, if c.accept { "accept" } else { "apply" })).or_default() += 1;
    }
    for p in causes.phases.iter().filter(|p| p.what == "sampling") {
        let end = p.t + p.dur as i64;
        let within = |c: &&SamplerCall| c.tid == p.tid && c.t >= p.t && c.t < end;
        let own = causes.samplers.iter().filter(within).map(|c| c.dur - c.within).sum::<u64>();
        assert!(own > 0 && own <= p.dur, "{p:?} has samplers of {own} ns");
    }
    let found = sampling(&seen.all).expect("sampling");
    let rows = found.samplers.expect("samplers");
    assert_eq!(rows.iter().map(|r| r.calls).sum::<u64>(), causes.samplers.len() as u64, "none is outside");
    assert_eq!(rows.iter().map(|r| r.total_ns).sum::<u64>() + found.rest_ns.expect("a rest"), found.total_ns);
    assert_eq!(found.unknown, None);
    all
}

/// Calls made by a controlled program, recorded with `options`.
fn calls(name: &str, options: &[&str]) {
    const N: usize = 20;
    let lib = match engine(name) {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    println!("{name} {options:?}");
    let mut command = Command::new(driver());
    command.arg("--engine").arg(lib).arg("--model").arg(model("tiny", "q4_0"));
    let mut target = Target::controlled(command.args(["--control", "--ctx", "256"]));
    let pid = target.pid().to_string();
    target.tell("", 1);
    let recorder = Recorder::start(&[options, &["--phases", "-p", &pid]].concat());
    recorder.wait_for_probes();
    target.tell("prefill 7\n", 2);
    target.tell(&format!("phases {N}\n"), 3);
    target.tell("run 2\n", 4);
    drop(target.0.stdin.take());
    target.said();
    let seen = recorder.finish().seen();
    seen.complete();
    in_order(&seen);
    // One sampling call each, although it calls itself for every sampler of its chain.
    let want = BTreeMap::from([("tokenize", N), ("detokenize", 3 * N), ("sampling", N)]);
    assert_eq!(count(&seen), want, "{name}");
    let (state, why) = feature(&seen);
    assert_eq!(state, Availability::Whole, "{why}");
    let names = ["chain", "top-k", "top-p", "temp", "dist"];
    let does = ["apply", "accept"].into_iter().flat_map(|does| names.map(|name| ((name, does), N)));
    assert_eq!(samplers(&seen), does.collect::<BTreeMap<_, _>>(), "{name}");
    // They are where they were made: after the prefill, before the decodes.
    let [prefill, first, ..] = &seen.all.tokens[..] else { panic!("{:?}", seen.all.tokens) };
    let between = |p: &PhaseCall| p.t >= prefill.t + prefill.dur as i64 && p.t + (p.dur as i64) <= first.t;
    assert!(seen.all.causes.phases.iter().all(between));
    assert_eq!(seen.used("phase").map(|r| r.seen), Some(5 * N as u64), "{:?}", seen.rungs("phase"));
}

#[test]
fn every_call_once() {
    let _turn = live!(beside others);
    for name in ["b3889", "v0.5.0", "b11549"] {
        calls(name, &[]);
    }
}

#[test]
fn without_bpf_as_well() {
    let _turn = live!(beside others, by perf events);
    calls("v0.5.0", &["--source", "perf"]);
}

#[test]
fn at_the_lowest_level_and_through_perf_buffers() {
    let _turn = live!(beside others);
    calls("v0.5.0", &["--level", "token", "--pbuf"]);
}

/// A program that loads, tokenizes and ends, recorded through its library from before its start.
#[test]
fn loading_comes_first() {
    let _turn = live!();
    for name in ["b3889", "b8121", "b11549"] {
        let lib = match engine(name) {
            Ok(path) => path,
            Err(why) => skip!("{why}"),
        };
        let exe = match lib.is_dir() {
            true => {
                let of = |e: std::fs::DirEntry| {
                    Some(e.path()).filter(|p| p.to_string_lossy().contains("/libllama."))
                };
                std::fs::read_dir(&lib)
                    .expect("a directory")
                    .filter_map(|e| of(e.ok()?))
                    .next()
                    .expect("libllama")
            }
            false => lib.clone(),
        };
        println!("{name}");
        let recorder =
            Recorder::start(&["--phases", "--level", "token", "--exe", exe.to_str().expect("a path")]);
        recorder.wait_for_probes();
        let mut program = Command::new(driver());
        program.arg("--engine").arg(&lib).arg("--model").arg(model("tiny", "q4_0"));
        let said = run(program.args(["-p", "4", "-n", "2", "--json", "--pause", "1"]));
        assert!(said.status.success(), "{}", said.stderr);
        recorder.signal(libc::SIGINT);
        let seen = recorder.finish().seen();
        seen.complete();
        in_order(&seen);
        // What it detokenizes meanwhile, to know its vocabulary, is part of loading.
        assert_eq!(count(&seen), BTreeMap::from([("load", 1)]), "{name}");
        let load = seen.all.causes.phases[0];
        assert_eq!(u64::from(load.pid), said.said()["pid"].as_u64().expect("a pid"));
        let first = seen.all.tokens.iter().map(|t| t.t).min().expect("tokens");
        assert!(load.dur > 0 && load.t + load.dur as i64 <= first, "{load:?}, first token at {first}");
    }
}

#[test]
fn an_engine_without_the_functions_is_told() {
    let _turn = live!(beside others);
    let (program, model) = (runner(), model("tiny", "q4_0"));
    let [program, model] = [&program, &model].map(|p| p.to_str().expect("a path"));
    let seen = record(&["--phases", "--", program, "run", "--no-roofline", "-m", model, "-n", "2"]).seen();
    seen.complete();
    let (state, why) = feature(&seen);
    assert_eq!(state, Availability::None, "{why}");
    assert!(seen.all.causes.phases.is_empty());
}

/// Calls that nest, jump, or never return, compared with the known behavior of the fake.
#[test]
fn habits_of_calls() {
    let _turn = live!(beside others, by perf events);
    const N: usize = 5;
    for variant in ["modern", "modern-clang", "static", "stripped"] {
        let program = fixture!(variant);
        for source in if variant == "modern" { &["bpf", "perf", "inside"][..] } else { &["bpf"] } {
            println!("{variant}, {source}");
            let run = ["--phases", "--source", source, "--", program.to_str().expect("a path")];
            let seen =
                record(&[&run[..], &["-n", "2", "--hold", "1", "--phases", &N.to_string()]].concat()).seen();
            seen.complete();
            in_order(&seen);
            let want = [("load", N), ("tokenize", N), ("detokenize", 3 * N), ("sampling", 2 * N)];
            assert_eq!(count(&seen), BTreeMap::from(want), "{variant}, {source}");
            let told = [
                (("chain", "apply"), 2 * N),
                (("top-k", "apply"), N),
                (("empty", "apply"), N),
                (("dist", "apply"), N),
                (("penalties", "apply"), 2 * N),
                (("chain", "accept"), 2 * N),
                (("penalties", "accept"), N),
                (("top-k", "accept"), N),
                (("empty", "accept"), N),
                (("dist", "accept"), N),
            ];
            assert_eq!(samplers(&seen), BTreeMap::from(told), "{variant}, {source}");
        }
    }
}
