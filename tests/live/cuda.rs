//! Recordings of llama.cpp's CUDA backend with a runtime without a device (tests/gpu/cuda.sh), in which kernels do
//! nothing: the nodes that the host enqueues, and those of CUDA graphs, which it does not.

use crate::common;

use std::path::Path;

use common::reported::{on_backend, report, seen_whole, sum, text};
use common::run::{Run, record};
use common::{driver, engine, live, model, skip};

const DECODES: u64 = 16;

const ENGINE: &str = "cuda-v0.5.0";
const BACKEND: &str = "CUDA/HIP/MUSA";

/// A recording of the driver, with these settings of the engine; kernels and graphs that the runtime was given.
fn run(engine: &Path, settings: &[&str]) -> (Run, (u64, u64)) {
    let here = tempfile::tempdir().expect("a directory");
    let counts = here.path().join("counts");
    let told = format!("FAKE_CUDA_COUNTS={}", counts.display());
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
        "--json",
        "--free",
        "-n",
        &decodes,
    ];
    let run = record(&[&["--", "env", &libraries, &told], settings, &program].concat());
    let counts = std::fs::read_to_string(counts).expect("the runtime's counts");
    let mut counts = counts.split_whitespace().map(|n| n.parse().expect("a number"));
    (run, (counts.next().expect("kernels"), counts.next().expect("graphs")))
}

#[test]
fn each_node_is_enqueued_once() {
    let _turn = live!();
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
    let _turn = live!();
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
