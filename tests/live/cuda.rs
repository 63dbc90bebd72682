//! Recordings of llama.cpp's CUDA backend with a runtime without a device (tests/gpu/cuda.sh), in which kernels do
//! nothing: the nodes that the host enqueues, and those of CUDA graphs, which it does not.

use crate::common;

use std::path::PathBuf;
use std::process::Command;

use common::run::{Run, profinfer, record};
use common::{driver, live, model, skip, source};
use serde_json::Value;

const DECODES: u64 = 16;

/// The engine, or why there is none.
fn engine() -> Result<PathBuf, String> {
    let out = Command::new(source("gpu/cuda.sh")).output().map_err(|e| format!("cuda.sh: {e}"))?;
    let (said, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    match said.lines().find_map(|l| l.strip_prefix("cuda-v0.5.0 ")) {
        Some(path) if out.status.success() => Ok(path.into()),
        _ => Err(format!("the CUDA engine is not to be had: {}", wrong.trim())),
    }
}

/// A recording of the driver, with these settings of the engine.
fn run(engine: &std::path::Path, settings: &[&str]) -> Run {
    let (libraries, decodes) = (format!("LD_LIBRARY_PATH={}", engine.display()), DECODES.to_string());
    let (driver, engine) = (driver().display().to_string(), format!("--engine={}", engine.display()));
    let model = format!("--model={}", model("tiny", "q4_0").display());
    let program =
        [&*driver, &engine, &model, "-p", "16", "-t", "1", "--gpu-layers", "99", "--json", "-n", &decodes];
    record(&[&["--", "env", &libraries], settings, &program].concat())
}

/// What a phase of the text and of the JSON report says about the device.
fn on_device(run: &Run, phase: &str) -> (String, Value) {
    let report = |flags: &[&str]| {
        let out = profinfer().arg("report").args(flags).arg(&run.trace).output().expect("it runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    };
    let all: Value = serde_json::from_str(&report(&["--json"])).expect("JSON");
    let phases = all["phases"].as_array().expect("phases");
    let offload = &phases.iter().find(|p| p["phase"] == phase).expect("the phase")["offload"];
    let backends = offload["backends"].as_array().expect("backends");
    let of = backends.iter().find(|b| b["backend"] == "CUDA/HIP/MUSA");
    (report(&[]), of.unwrap_or_else(|| panic!("{offload:#}")).clone())
}

fn nodes(device: &Value) -> u64 {
    let rows = device["enqueued"].as_array().expect("rows");
    rows.iter().map(|r| r["nodes"].as_u64().expect("a number")).sum()
}

#[test]
fn each_node_is_enqueued_once() {
    let _turn = live!();
    let engine = match engine() {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let run = run(&engine, &["GGML_CUDA_DISABLE_GRAPHS=1"]);
    run.seen().books_close();
    for phase in ["prefill", "decode"] {
        let (text, device) = on_device(&run, phase);
        assert_eq!(device["unseen_splits"].as_u64().unwrap_or(0), 0, "{device:#}");
        assert_eq!(nodes(&device), device["nodes"].as_u64().expect("nodes"), "{device:#}");
        assert!(!text.contains("CUDA graph"), "{text}");
    }
}

/// The first graphs are run or captured node by node; each later one is one launch, and has no node's time.
#[test]
fn nodes_of_a_launched_graph_are_told_as_unseen() {
    let _turn = live!();
    let engine = match engine() {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let run = run(&engine, &[]);
    run.seen().books_close();
    let (text, device) = on_device(&run, "decode");
    let unseen = device["unseen_splits"].as_u64().expect("splits without nodes");
    assert!(unseen > DECODES / 2 && unseen < DECODES, "{device:#}");
    let one = device["nodes"].as_u64().expect("nodes") / DECODES;
    assert_eq!(nodes(&device), one * (DECODES - unseen), "{device:#}");
    assert!(text.contains(&format!("without {unseen} of {DECODES} splits")), "{text}");
    assert!(text.contains("GGML_CUDA_DISABLE_GRAPHS=1"), "{text}");
}
