//! Recordings of llama.cpp's CUDA backend with a runtime without a device (tests/gpu/cuda.sh), in which kernels do
//! nothing: the nodes that the host enqueues, those of CUDA graphs, which it does not, and the times of kernels by a CUPTI
//! that is fake too.

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;

use analysis::sums::device_kernels::{self, PlacedKernel};
use common::reported::{on_backend, report, seen_whole, sum, text};
use common::run::{Run, record};
use common::{driver, engine, live, model, skip};
use pfi::record::{Availability, KernelSource};
use serde_json::Value;

const DECODES: u64 = 16;

const ENGINE: &str = "cuda-v0.5.0";
const BACKEND: &str = "CUDA/HIP/MUSA";

/// A recording of the driver, with these settings of the engine; kernels and graphs that the runtime was given.
fn run(engine: &Path, settings: &[&str]) -> (Run, (u64, u64)) {
    let here = tempfile::tempdir().expect("a directory");
    let counts = here.path().join("counts");
    let path = format!("FAKE_CUDA_COUNTS={}", counts.display());
    let run = run_with(&[], engine, &[settings, &[&path]].concat());
    let counts = std::fs::read_to_string(counts).expect("the runtime's counts");
    let mut counts = counts.split_whitespace().map(|n| n.parse().expect("a number"));
    (run, (counts.next().expect("kernels"), counts.next().expect("graphs")))
}

/// A recording with these flags of `record`.
fn run_with(flags: &[&str], engine: &Path, settings: &[&str]) -> Run {
    let (libraries, decodes) = (format!("LD_LIBRARY_PATH={}", engine.display()), DECODES.to_string());
    let (driver, engine) = (driver().display().to_string(), format!("--engine={}", engine.display()));
    let model = format!("--model={}", model("tiny", "q4_0").display());
    let program = [
        &*driver,
        &engine,
        &model,
        "-p",
        "16",
        "-t",
        "1",
        "--gpu-layers",
        "99",
        "--exit",
        "--json",
        "-n",
        &decodes,
    ];
    record(&[flags, &["--", "env", &libraries], settings, &program].concat())
}

#[test]
fn each_node_is_enqueued_once() {
    let _turn = live!(beside others);
    let engine = match engine(ENGINE) {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let (run, launched) = run(&engine, &["GGML_CUDA_DISABLE_GRAPHS=1"]);
    run.seen().books_close();
    let report = report(&run);
    ["prefill", "decode"].iter().for_each(|phase| seen_whole(on_backend(&report, phase, BACKEND)));
    let phases = ["prefill", "decode"].map(|phase| on_backend(&report, phase, BACKEND));
    for device in phases {
        assert_eq!(device["dispatched"]["splits"], device["splits"], "{device:#}");
        // The backend gives no kernel to the device outside its nodes.
        assert_eq!(sum(&device["enqueued"], "kernels"), device["dispatched"]["kernels"], "{device:#}");
    }
    let of = |key: &str| phases.map(|d| d["dispatched"][key].as_u64().expect("a number")).iter().sum();
    assert_eq!((of("kernels"), of("graphs")), launched, "as the runtime counts");
    let text = text(&run);
    assert!(!text.contains("CUDA graph"), "{text}");
}

/// The first graphs are run or captured node by node; each later one is one launch, and has no node's time.
#[test]
fn nodes_of_a_launched_graph_are_told_as_unseen() {
    let _turn = live!(beside others);
    let engine = match engine(ENGINE) {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let (run, launched) = run(&engine, &[]);
    run.seen().books_close();
    let (text, report) = (text(&run), report(&run));
    let device = on_backend(&report, "decode", BACKEND);
    let unseen = device["unseen_splits"].as_u64().expect("splits without nodes");
    assert!(unseen > DECODES / 2 && unseen < DECODES, "{device:#}");
    let one = device["nodes"].as_u64().expect("nodes") / DECODES;
    assert_eq!(sum(&device["enqueued"], "nodes"), one * (DECODES - unseen), "{device:#}");
    assert_eq!(device["dispatched"]["graphs"], launched.1, "{device:#}");
    assert!(text.contains("graphs of kernels were launched as a whole"), "{text}");
    assert!(text.contains(&format!("without {unseen} of {DECODES} splits")), "{text}");
    assert!(text.contains("GGML_CUDA_DISABLE_GRAPHS=1"), "{text}");
}

/// The engine, if the layer is there too.
fn engine_and_layer() -> Result<std::path::PathBuf, String> {
    let layer = common::profinfer().with_file_name("libprofinfer-cu.so");
    let engine = engine(ENGINE)?;
    if layer.is_file() { Ok(engine) } else { Err(format!("no {}: run make layers", layer.display())) }
}

/// A kernel that the device without hardware has executed.
#[derive(Debug)]
struct Executed {
    by_graph: bool,
    start: u64,
    ns: u64,
    name: String,
}

fn executed(log: &Path) -> Vec<Executed> {
    let row = |line: &str| {
        let [by_graph, start, ns, name] =
            line.splitn(4, ' ').collect::<Vec<_>>().try_into().expect("four columns");
        let number = |text: &str| text.parse().expect("a number");
        Executed { by_graph: by_graph == "1", start: number(start), ns: number(ns), name: name.to_owned() }
    };
    std::fs::read_to_string(log).expect("the device's log").lines().map(row).collect()
}

/// A recording of kernels, and what the device has executed.
fn run_kernels(engine: &Path, settings: &[&str]) -> (Run, Vec<Executed>) {
    let here = tempfile::tempdir().expect("a directory");
    let log = here.path().join("kernels");
    let path = format!("FAKE_CUDA_LOG={}", log.display());
    let run = run_with(&["--gpu", "kernel"], engine, &[settings, &[&path]].concat());
    let all = executed(&log);
    (run, all)
}

/// The trace has just these kernels: names, durations, starts.
fn are_those(run: &Run, device: &[Executed]) {
    let seen = run.seen();
    seen.books_close();
    let all = &seen.all;
    let told = all.causes.features.iter().find(|f| f.name == "device kernels").expect("told");
    assert_eq!((told.state, told.why), (Availability::Whole, &*format!("{} kernels", device.len())));
    let mut placed = device_kernels::placed(all);
    placed.sort_by_key(|k| k.times.started);
    assert_eq!(placed.len(), device.len());
    for (k, own) in placed.iter().zip(device) {
        let (t, error) = (k.times, k.of.error_ns);
        assert_eq!(all.kernel_names[&t.name], own.name);
        assert_eq!(t.ended - t.started, own.ns, "{own:?}");
        // The clocks differ by years.
        assert!(t.started.abs_diff(own.start) <= error && error < 1_000_000, "{t:?} {error}: {own:?}");
        assert!(t.host <= t.queued + error && t.queued <= t.submitted, "{t:?}");
        assert!(t.submitted <= t.started + error, "{t:?}");
        assert_eq!(k.of.source == KernelSource::CuptiGraph, own.by_graph, "{own:?}");
    }
}

/// Kernels and their time on the device, by name, in both phases of the report.
fn by_name(report: &Value) -> BTreeMap<String, (u64, u64)> {
    let mut out = BTreeMap::new();
    for phase in ["prefill", "decode"] {
        for row in on_backend(report, phase, BACKEND)["device"]["by_kernel"].as_array().expect("kernels") {
            let sum: &mut (u64, u64) =
                out.entry(row["name"].as_str().expect("a name").to_owned()).or_default();
            sum.0 += row["kernels"].as_u64().expect("a number");
            sum.1 += row["device_ns"].as_u64().expect("a time");
        }
    }
    out
}

fn by_name_of(device: &[Executed]) -> BTreeMap<String, (u64, u64)> {
    let mut out = BTreeMap::new();
    for k in device {
        let sum: &mut (u64, u64) = out.entry(k.name.clone()).or_default();
        *sum = (sum.0 + 1, sum.1 + k.ns);
    }
    out
}

#[test]
fn kernels_are_those_that_the_device_executed() {
    let _turn = live!(beside others);
    let engine = match engine_and_layer() {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let (run, device) = run_kernels(&engine, &["GGML_CUDA_DISABLE_GRAPHS=1"]);
    assert!(device.len() as u64 > 50 * DECODES && device.iter().all(|k| !k.by_graph), "{}", device.len());
    are_those(&run, &device);
    let report = report(&run);
    assert_eq!(by_name(&report), by_name_of(&device));
    // Each was launched for a node.
    let seen = run.seen();
    assert!(device_kernels::placed(&seen.all).iter().all(|k: &PlacedKernel<'_>| k.group.is_some()));
    for phase in ["prefill", "decode"] {
        let all = on_backend(&report, phase, BACKEND);
        let (on, enqueued) = (&all["device"], all["enqueued"].as_array().expect("rows"));
        assert_eq!(on["source"], "CUPTI");
        // What is contiguous already is only copied.
        let of = |rows: &Value, ops: &Value| {
            let row = rows.as_array().expect("rows").iter().find(|r| r["ops"] == *ops).cloned();
            row.map_or(0, |r| r["groups"].as_u64().expect("a number"))
        };
        let without = |r: &&Value| of(&on["ops"], &r["ops"]) != r["groups"].as_u64().expect("a number");
        assert!(enqueued.iter().filter(without).all(|r| r["ops"] == "CONT"), "{on:#}");
        let executed: u64 = enqueued.iter().map(|r| of(&on["ops"], &r["ops"])).sum();
        assert_eq!(on["groups"].as_u64(), on["groups_without"].as_u64().map(|n| n + executed), "{on:#}");
    }
}

/// A graph's kernels have times, and no node.
#[test]
fn kernels_of_a_graph_have_no_node() {
    let _turn = live!(beside others);
    let engine = match engine_and_layer() {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let (run, device) = run_kernels(&engine, &[]);
    let in_graphs = device.iter().filter(|k| k.by_graph).count();
    assert!(in_graphs > 0 && in_graphs < device.len(), "{in_graphs} of {}", device.len());
    are_those(&run, &device);
    let (seen, report) = (run.seen(), report(&run));
    for k in device_kernels::placed(&seen.all) {
        assert_eq!(k.group.is_none(), k.of.source == KernelSource::CuptiGraph, "{k:?}");
    }
    assert_eq!(by_name(&report), by_name_of(&device));
    let ops = &on_backend(&report, "decode", BACKEND)["device"]["ops"];
    let of_graphs = ops.as_array().expect("ops").iter().find(|r| r["ops"] == "(CUDA graph)");
    assert_eq!(of_graphs.expect("a row")["kernels"], in_graphs, "{ops:#}");
}

/// Records of an unknown layout are not read: the command runs, says why, and there are no kernels.
#[test]
fn an_unknown_version_of_cupti_is_refused() {
    let _turn = live!(beside others);
    let engine = match engine_and_layer() {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let (run, device) = run_kernels(&engine, &["FAKE_CUPTI_VERSION=140000"]);
    assert!(!device.is_empty());
    assert!(run.stderr.contains("CUPTI's API version 140000 is not known"), "{}", run.stderr);
    let seen = run.seen();
    let told = seen.all.causes.features.iter().find(|f| f.name == "device kernels").expect("told");
    assert_eq!((told.state, device_kernels::placed(&seen.all).len()), (Availability::None, 0));
}

#[test]
fn without_cupti_the_command_says_so() {
    let _turn = live!(beside others);
    let engine = match engine_and_layer() {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let here = tempfile::tempdir().expect("a directory");
    for entry in std::fs::read_dir(&engine).expect("the engine").map(|e| e.expect("a file")) {
        if entry.file_name() != "libcupti.so.13" {
            std::fs::copy(entry.path(), here.path().join(entry.file_name())).expect("a copy");
        }
    }
    let run = run_with(&["--gpu", "kernel"], here.path(), &[]);
    assert!(run.stderr.contains("no libcupti.so.13, .12 or .11 was found"), "{}", run.stderr);
}

/// The layer changes nothing that the host does: as many launches, by the same calls.
#[test]
fn the_layer_changes_no_launch() {
    let _turn = live!(beside others);
    let engine = match engine_and_layer() {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let here = tempfile::tempdir().expect("a directory");
    let launches = |layer: bool| -> Vec<(bool, String)> {
        let log = here.path().join("kernels");
        let mut command = std::process::Command::new(driver());
        command.arg(format!("--engine={}", engine.display()));
        command.arg(format!("--model={}", model("tiny", "q4_0").display()));
        command.args(["-p", "16", "-t", "1", "--gpu-layers", "99", "-n", "8"]);
        command.env("LD_LIBRARY_PATH", &engine).env("FAKE_CUDA_LOG", &log);
        if layer {
            command.env("CUDA_INJECTION64_PATH", common::profinfer().with_file_name("libprofinfer-cu.so"));
        }
        let out = command.output().expect("it runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(!String::from_utf8_lossy(&out.stderr).contains("profinfer:"));
        executed(&log).into_iter().map(|k| (k.by_graph, k.name)).collect()
    };
    let without = launches(false);
    assert!(without == launches(true) && !without.is_empty());
}
