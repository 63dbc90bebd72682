//! Recordings of packaged llama.cpp builds whose Vulkan backend computes on a software device (Mesa's lavapipe): a
//! call ends when the device has finished, as shown by the program's own clock and the engine's own figures for the
//! same run.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use analysis::recorded::load::Loaded;
use common::reported::report;
use common::run::{Run, profinfer, record};
use common::{driver, engine, live, model, skip};
use ggml::backend_guid;
use pfi::record::{Availability, Detail, Device, Token};
use serde_json::Value;

const DECODES: usize = 12;

/// Engines whose shaders are compiled.
static WARM: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Where the loader finds the software device. The engine accepts a CPU as a device only if it is named.
fn vulkan() -> Result<PathBuf, String> {
    let dir = Path::new("/usr/share/vulkan/icd.d");
    let files = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut files = files.filter_map(|f| Some(f.ok()?.path()));
    let found = files.find(|f| f.file_name().is_some_and(|n| n.to_string_lossy().starts_with("lvp_icd")));
    found.ok_or_else(|| "no Vulkan device in software (apt-get install mesa-vulkan-drivers)".into())
}

/// Records the driver on an engine, with this many layers on the device.
fn run(lib: &Path, icd: &Path, args: &[&str], layers: &str) -> Run {
    run_with(lib, icd, args, layers, &[])
}

/// The same, with more arguments of the driver.
fn run_with(lib: &Path, icd: &Path, args: &[&str], layers: &str, more: &[&str]) -> Run {
    let model = model("tiny", "q4_0");
    let vars = [("VK_DRIVER_FILES", icd.as_os_str()), ("VK_ICD_FILENAMES", icd.as_os_str())];
    let command = |c: &mut Command| {
        c.envs(vars).env("GGML_VK_VISIBLE_DEVICES", "0");
    };
    let decodes = DECODES.to_string();
    let (driver, lib, model) = (driver(), lib.display().to_string(), model.display().to_string());
    let driver = driver.to_str().expect("a path");
    let work = ["--engine", &lib, "--model", &model, "-p", "16", "-t", "1", "--gpu-layers", layers, "--json"];
    // The first run of an engine compiles its shaders, for minutes, and Mesa caches them: other tests wait for it.
    let mut warmed = WARM.lock().expect("no panic");
    if warmed.insert(lib.clone()) {
        let mut warm = Command::new(driver);
        command(warm.args(work).args(["-n", "1"]));
        assert!(warm.output().expect("the driver runs").status.success());
    }
    drop(warmed);
    let mut env = vec!["env".to_owned(), "GGML_VK_VISIBLE_DEVICES=0".to_owned()];
    env.extend(vars.map(|(name, file)| format!("{name}={}", file.display())));
    let env: Vec<&str> = env.iter().map(String::as_str).collect();
    record(&[args, &["--"], &env, &[driver], &work, &["-n", &decodes], more].concat())
}

fn phase<'r>(report: &'r Value, name: &str) -> &'r Value {
    let phases = report["phases"].as_array().expect("phases");
    phases.iter().find(|p| p["phase"] == name).unwrap_or_else(|| panic!("no {name}: {report:#}"))
}

/// Splits on a device.
fn on_device(all: &Loaded<'_>) -> usize {
    let device = |id: &u32| all.backends.get(id).is_some_and(|b| backend_guid::is_device(&b.guid));
    all.splits.iter().filter(|s| device(&s.backend)).count()
}

/// Times of calls lie within those that their caller measured, and most of them fill these to 1 %: between the clocks
/// of the two are some instructions, and what else the machine has to do.
fn fill(what: &str, ours: &[u64], callers: &[u64]) {
    assert_eq!(ours.len(), callers.len(), "{what}");
    let pairs: Vec<_> = ours.iter().zip(callers).collect();
    assert!(pairs.iter().all(|(ours, caller)| ours <= caller), "{what}: {pairs:?}");
    let full = pairs.iter().filter(|(ours, caller)| **ours as f64 >= 0.99 * **caller as f64).count();
    assert!(full * 2 > pairs.len(), "{what}: {full} of {pairs:?}");
}

/// The lines of `driver --per-token`: start, wall and CPU time of each decode call.
fn walls(file: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(file).expect("the driver's times");
    text.lines().map(|l| l.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number")).collect()
}

fn ends(name: &str) {
    let _turn = live!(beside others);
    let (lib, icd) = match engine(name).and_then(|lib| Ok((lib, vulkan()?))) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    for level in ["graph", "token"] {
        let dir = tempfile::tempdir().expect("a directory");
        let times = dir.path().join("times");
        let file = times.to_str().expect("a path");
        let run = run_with(&lib, &icd, &["--level", level], "99", &["--per-token", file]);
        let (said, report, seen) = (run.said(), report(&run), run.seen());
        seen.books_close();
        println!("{name}, level {level}: {} tok/s", said["decode"]["tok_s"]);
        let calls = DECODES as u64;
        let decode = phase(&report, "decode");
        assert_eq!((decode["calls"].as_u64(), decode["tokens"].as_u64()), (Some(calls), Some(calls)));
        let (prefills, decodes): (Vec<_>, Vec<_>) =
            seen.all.tokens.iter().partition(|t| t.n_tokens != Some(1));
        let durations = |calls: &[&Token]| calls.iter().map(|t| t.dur).collect::<Vec<_>>();
        fill("decode", &durations(&decodes), &walls(&times));
        let sum = durations(&decodes).iter().sum::<u64>() as f64 / 1e9;
        let speed = decode["tokens_per_s"].as_f64().expect("a speed");
        assert!((speed * sum / calls as f64 - 1.0).abs() < 1e-6, "{speed} tok/s, {calls} calls in {sum} s");
        // What the engine says comes from its own clock, inside the call.
        assert!(
            said["perf"]["t_eval_ms"].as_f64().expect("a time")
                <= walls(&times).iter().sum::<u64>() as f64 / 1e6
        );
        // One call: most of the caller's time is spent in it, and not only that of enqueueing.
        let prefill = phase(&report, "prefill")["in_call_ns"].as_u64().expect("a time");
        assert_eq!((prefills.len(), prefill), (1, prefills[0].dur));
        let wall = said["prefill"]["wall_ms"].as_f64().expect("a time") * 1e6;
        let ttft = report["ttft"]["mean_ns"].as_f64().expect("a time");
        for (what, ns) in [("prefill", prefill as f64), ("first token", ttft)] {
            assert!(ns <= wall && 2.0 * ns > wall, "{what}: {ns} of {wall} ns");
        }
        assert!(seen.all.tokens.iter().all(|t| matches!(t.device, Device::Busy(_)) && !t.cut));
        let feature = seen.all.causes.features.iter().find(|f| f.name == "device").expect("told");
        assert_eq!(feature.state, Availability::Whole, "{}", feature.why);
        if level == "graph" {
            assert_eq!(on_device(&seen.all), 1 + DECODES);
            // The queue accepts the work, and the slice lasts until it is done: inside the call or, in newer
            // versions, after it.
            let device = seen.all.splits.iter().filter(|s| s.device != Device::Idle);
            assert!(device.clone().all(|s| s.device.waited() > 0), "{:?}", device.collect::<Vec<_>>());
        }
    }
    // The same build with no work for its device.
    let host = run(&lib, &icd, &["--level", "graph"], "0");
    let (report, seen) = (report(&host), host.seen());
    if on_device(&seen.all) == 0 {
        assert!(seen.all.tokens.iter().all(|t| t.device == Device::Idle));
        assert!(phase(&report, "decode")["tokens_per_s"].as_f64() > Some(0.0));
    }
}

/// Nodes of each op in a decode call that need work, wherever they are computed.
fn nodes(report: &Value) -> BTreeMap<String, f64> {
    let decode = phase(report, "decode");
    let mut sum = BTreeMap::new();
    let mut add = |op: &Value, n: f64| {
        // The CPU fuses some pairs.
        for op in op.as_str().expect("an op").split('+') {
            // Older engines dispatch what is no work, too.
            if !matches!(op, "RESHAPE" | "VIEW" | "PERMUTE" | "TRANSPOSE") && !op.starts_with('(') {
                *sum.entry(op.to_owned()).or_default() += n;
            }
        }
    };
    let number = |v: &Value| v.as_f64().expect("a number");
    match &decode["offload"] {
        Value::Null => {
            for row in decode["by_op"].as_array().expect("ops") {
                add(&row["name"], number(&row["calls"]) / number(&decode["calls"]));
            }
        }
        offload => {
            for row in offload["backends"].as_array().expect("backends") {
                assert_eq!(row.get("unknown_splits"), None, "{row:#}");
                for op in row["ops"].as_array().expect("ops") {
                    add(&op["op"], number(&op["nodes"]) / number(&offload["graphs"]));
                }
            }
        }
    }
    sum
}

/// Enqueued groups of a decode call: number and nodes, by their ops.
fn groups(report: &Value) -> BTreeMap<String, (f64, f64)> {
    let offload = &phase(report, "decode")["offload"];
    let backends = offload["backends"].as_array().expect("backends").iter();
    let rows = backends.flat_map(|b| b["enqueued"].as_array().cloned().unwrap_or_default());
    let per = |v: &Value| v.as_f64().expect("a number") / offload["graphs"].as_f64().expect("a number");
    rows.map(|r| (r["ops"].as_str().expect("ops").to_owned(), (per(&r["groups"]), per(&r["nodes"]))))
        .collect()
}

/// Nodes of the last graph that the engine itself timed on the device, by the first word of its own table.
fn timed_by_the_engine(mut driver: Command) -> BTreeMap<String, f64> {
    let out = driver.env("GGML_VK_PERF_LOGGER", "1").output().expect("the driver runs");
    let text = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    let last = text.rsplit("Vulkan Timings:").next().unwrap_or_default();
    let mut sum = BTreeMap::new();
    for line in last.lines().take_while(|line| !line.starts_with("Total time")) {
        if let Some((name, rest)) = line.rsplit_once(": ")
            && let Some((n, _)) = rest.split_once(" x ")
        {
            let first = name.split([' ', '(']).next().unwrap_or_default().to_owned();
            *sum.entry(first).or_default() += n.trim().parse::<f64>().expect("a number");
        }
    }
    sum
}

/// Each node on the device is in one enqueued group, and the groups are those that the engine times itself.
fn groups_are_known(name: &str, report: &Value, run: &Run, driver: &dyn Fn() -> Command) {
    let (groups, all) = (groups(report), run.seen().all);
    let sum = |of: fn(&(f64, f64)) -> f64| groups.values().map(of).sum::<f64>();
    let offload = &phase(report, "decode")["offload"];
    let device = offload["backends"].as_array().expect("backends").iter().find(|b| b["backend"] == "Vulkan");
    let device = device.expect("Vulkan");
    assert_eq!(Some(sum(|g| g.1) * offload["graphs"].as_f64().expect("graphs")), device["nodes"].as_f64());
    // Enqueueing takes no longer than the call that does it.
    for e in &all.enqueued {
        let split = all.splits.iter().find(|s| s.seq == e.split).expect("its split");
        let ns: u64 = pfi::enqueued_groups(e).map(|g| g.1).sum();
        let (from, until) = (e.t, e.t.saturating_add_unsigned(ns));
        let returned = split.t.saturating_add_unsigned(split.dur - split.device.waited());
        assert!(split.t <= from && until <= returned, "{e:?} {split:?}");
    }
    let rungs = all.rungs.iter().find(|r| r.role == "node").expect("a rung");
    assert!(rungs.used && rungs.seen >= all.enqueued.len() as u64, "{rungs:?}");
    // Its table has each node that it enqueues, fused ones once; older ones have those that are no work, too.
    if matches!(name, "vulkan-b3889" | "vulkan-b5640") {
        return assert!(groups.keys().all(|ops| !ops.contains('+')), "{groups:?}");
    }
    let own = timed_by_the_engine(driver());
    println!("{name}: {groups:?}, by the engine {own:?}");
    assert_eq!(sum(|g| g.0), own.values().sum::<f64>());
    for (ops, theirs) in [("RMS_NORM+MUL", "RMS_NORM_MUL"), ("MUL_MAT+ADD", "MUL_MAT_ADD")] {
        assert!(groups[ops].0 > 1.0 && groups[ops].0 == own[theirs], "{ops}");
    }
}

/// The driver on the device, without a recorder.
fn command_of(lib: &Path, icd: &Path) -> impl Fn() -> Command {
    let (lib, icd) = (lib.to_owned(), icd.to_owned());
    move || {
        let mut c = Command::new(driver());
        c.env("VK_DRIVER_FILES", &icd).env("VK_ICD_FILENAMES", &icd).env("GGML_VK_VISIBLE_DEVICES", "0");
        c.arg("--engine").arg(&lib).arg("--model").arg(model("tiny", "q4_0"));
        c.args(["-p", "16", "-t", "1", "--gpu-layers", "99", "--json", "-n", "2"]);
        c
    }
}

/// The nodes given to a device, with those left to the CPU, are those that the CPU computes in a run without a device.
fn nodes_are_known(name: &str) {
    let _turn = live!(beside others);
    let (lib, icd) = match engine(name).and_then(|lib| Ok((lib, vulkan()?))) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let (device, host) = (run(&lib, &icd, &[], "99"), run(&lib, &icd, &[], "0"));
    device.seen().books_close();
    let (with, without) = (report(&device), report(&host));
    assert_eq!(phase(&without, "decode")["offload"], Value::Null);
    assert_eq!(phase(&with, "decode")["offload"]["graphs"].as_u64(), Some(DECODES as u64));
    assert!(nodes(&with).len() > 5, "{:?}", nodes(&with));
    assert_eq!(nodes(&with), nodes(&without));
    let backends = phase(&with, "decode")["offload"]["backends"].as_array().expect("backends").clone();
    let on = |name: &str| backends.iter().find(|b| b["backend"] == name).expect(name);
    assert!(on("Vulkan")["nodes"].as_u64() > on("CPU")["nodes"].as_u64());
    groups_are_known(name, &with, &device, &command_of(&lib, &icd));
    // The model's facts come from the tensors of both.
    assert_eq!(with["model"], without["model"]);
    // A drawn graph has all of it.
    let out = profinfer()
        .args(["dag", "--format", "json", "-o", "-"])
        .arg(&device.trace)
        .output()
        .expect("it runs");
    let dag: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let of =
        |role: &str| dag["nodes"].as_array().expect("nodes").iter().filter(|n| n["role"] == role).count();
    assert_eq!(of("op") as f64, nodes(&with).values().sum::<f64>());
    assert!(of("copy") > 0 && of("elsewhere") == 0 && of("unknown") == 0, "{}", dag["notes"]);
    // Layers say where they are computed.
    let drawn = profinfer().args(["dag", "--fold", "-o", "-"]).arg(&device.trace).output().expect("it runs");
    let drawn = String::from_utf8_lossy(&drawn.stdout).into_owned();
    let titles: Vec<&str> = drawn.split('"').filter(|text| text.starts_with("layer")).collect();
    assert!(!titles.is_empty() && titles.iter().all(|t| t.contains(" on ")), "{titles:?}");
    assert!(titles.iter().any(|t| t.ends_with("on Vulkan")), "{titles:?}");
}

#[test]
fn nodes_on_the_device_are_known_b3889() {
    nodes_are_known("vulkan-b3889");
}

#[test]
fn nodes_on_the_device_are_known_b7347() {
    nodes_are_known("vulkan-b7347");
}

#[test]
fn nodes_on_the_device_are_known_b5640() {
    nodes_are_known("vulkan-b5640");
}

#[test]
fn nodes_on_the_device_are_known_b8390() {
    nodes_are_known("vulkan-b8390");
}

#[test]
fn nodes_on_the_device_are_known_v0_5_0() {
    nodes_are_known("vulkan-v0.5.0");
}

/// With some layers on the device, the others' weights and caches are in host memory, and the rest follows them.
#[test]
fn layers_left_on_the_cpu_have_a_reason() {
    let _turn = live!(beside others);
    let (lib, icd) = match engine("vulkan-v0.5.0").and_then(|lib| Ok((lib, vulkan()?))) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let report = report(&run(&lib, &icd, &[], "3"));
    let offload = &phase(&report, "decode")["offload"];
    let rows = offload["on_cpu"].as_array().expect("rows");
    let reasons = |op: &str| -> Vec<&str> {
        let of = rows.iter().filter(|r| r["op"] == op);
        of.map(|r| r["reason"].as_str().expect("a reason")).collect()
    };
    let expected = [
        ("GET_ROWS", "input-layer"),
        ("MUL_MAT", "host-weights"),
        ("FLASH_ATTN_EXT", "host-cache"),
        ("ROPE", "neighbours"),
        ("SWIGLU", "neighbours"),
    ];
    for (op, reason) in expected {
        assert_eq!(reasons(op), [reason], "{op}: {rows:#?}");
    }
    // They are in one split with the input layer, which is there anyway.
    let [split] = &offload["crossings"].as_array().expect("splits")[..] else { panic!("{offload:#}") };
    assert_eq!((split["extra_splits"].as_u64(), split["between"].as_u64()), (Some(0), Some(0)));
    assert!(split["cpu_ns"].as_u64() > Some(0) && split["after_ns"].as_u64() > Some(0), "{split:#}");
}

/// A copy of an engine whose Vulkan backend has no symbols but those that it exports.
fn stripped(engine: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for entry in std::fs::read_dir(engine).expect("the engine") {
        let file = entry.expect("a file").path();
        let copy = dir.path().join(file.file_name().expect("a name"));
        if copy.ends_with("libggml-vulkan.so") {
            let out = Command::new("strip").arg("-o").arg(&copy).arg(&file).status();
            assert!(out.expect("strip").success());
        } else if file.is_file() {
            std::fs::copy(&file, &copy).expect("copied");
        }
    }
    dir
}

/// Without a symbol, the function for one node is found in the live process, proved by its hits, and shows what the
/// named one shows.
fn found_without_symbols(name: &str) {
    let _turn = live!(beside others);
    let (lib, icd) = match engine(name).and_then(|lib| Ok((lib, vulkan()?))) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let copy = stripped(&lib);
    let (named, found) = (run(&lib, &icd, &[], "99"), run(copy.path(), &icd, &[], "99"));
    found.seen().books_close();
    let rungs = found.seen().all.rungs.clone();
    let rung = rungs.iter().find(|r| r.role == "node" && r.used).unwrap_or_else(|| panic!("{rungs:?}"));
    assert!(rung.seen > 0 && rung.name == "ggml_vk_build_graph", "{rung:?}");
    assert!(rungs.iter().filter(|r| r.role == "node" && !r.used).all(|r| r.seen == 0), "{rungs:?}");
    let (named, found) = (report(&named), report(&found));
    let on = |report: &Value| {
        let backends = phase(report, "decode")["offload"]["backends"].as_array().expect("backends").clone();
        backends.into_iter().find(|b| b["backend"] == "Vulkan").expect("Vulkan")
    };
    // Graphs that passed while candidates were tried are in no figure.
    let unseen = |b: &Value| b["unseen_splits"].as_u64().unwrap_or(0);
    assert_eq!(unseen(&on(&named)), 0);
    let (splits, missed) = (on(&found)["splits"].as_u64().expect("splits"), unseen(&on(&found)));
    assert!(missed < splits, "{missed} of {splits}");
    let per_split = |b: &Value| -> BTreeMap<String, (f64, f64)> {
        let splits = (b["splits"].as_u64().expect("splits") - unseen(b)) as f64;
        let rows = b["enqueued"].as_array().expect("rows").iter();
        let number = |v: &Value| v.as_f64().expect("a number") / splits;
        rows.map(|r| (r["ops"].to_string(), (number(&r["groups"]), number(&r["nodes"])))).collect()
    };
    assert_eq!(per_split(&on(&found)), per_split(&on(&named)));
}

#[test]
fn found_without_symbols_b5640() {
    found_without_symbols("vulkan-b5640");
}

#[test]
fn found_without_symbols_b8390() {
    found_without_symbols("vulkan-b8390");
}

#[test]
fn found_without_symbols_v0_5_0() {
    found_without_symbols("vulkan-v0.5.0");
}

#[test]
fn a_service_level_goes_by_the_device() {
    let _turn = live!(beside others);
    let (lib, icd) = match engine("vulkan-v0.5.0").and_then(|lib| Ok((lib, vulkan()?))) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    // Calls return after some milliseconds, suggesting 50 tok/s; the device takes far longer.
    let run = run(&lib, &icd, &["--qos", "50tok/s"], "99");
    let (said, seen) = (run.said(), run.seen());
    let speed = said["decode"]["tok_s"].as_f64().expect("a speed");
    if speed > 40.0 {
        println!("not judged: a device of {speed} tok/s keeps the level");
        return;
    }
    let levels: Vec<Detail> = seen.all.causes.levels.iter().map(|l| l.to).collect();
    assert!(levels.iter().all(|&l| l <= Detail::Graph), "{levels:?} at {speed} tok/s");
    let budget = seen.all.causes.features.iter().find(|f| f.name == "budget").expect("told");
    assert!(
        budget.why.contains("at least 50 tok/s") && !budget.why.contains("not observed"),
        "{}",
        budget.why
    );
}

#[test]
fn b3889() {
    ends("vulkan-b3889");
}

#[test]
fn b5640() {
    ends("vulkan-b5640");
}

#[test]
fn b8390() {
    ends("vulkan-b8390");
}

#[test]
fn v0_5_0() {
    ends("vulkan-v0.5.0");
}
