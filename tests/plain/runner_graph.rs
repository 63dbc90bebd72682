//! The steps that the runner's graph goes through before it runs: they change no result, and what they did is shown.

use crate::common;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use runner::engine::{EngineSettings, RunnerEngine};
use runner::kernels::Isa;
use runner::model::{Model, Placement};
use runner::optimise::{Report, Step, Steps};

/// One preset for each architecture: llama, qwen2, qwen2moe, gemma2.
const PRESETS: [&str; 4] = ["tiny", "qwen2-tiny", "moe", "gemma2"];
const PROMPT: usize = 250;
/// More than fit into the first chunk of the cache.
const DECODED: usize = 10;

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}

/// The logits after a prompt and after each token that follows.
fn logits(model: &Arc<Model>, steps: Steps) -> (Vec<Vec<u32>>, Report) {
    let settings = EngineSettings {
        context: 512,
        threads: 2,
        decode_threads: 2,
        pin: false,
        two_backends: false,
        steps,
        truth: None,
    };
    let mut engine = RunnerEngine::new(Arc::clone(model), settings).expect("an engine");
    let prompt: Vec<i32> = (0..PROMPT).map(|i| 3 + i as i32 * 37 % 250).collect();
    let mut all = vec![bits(engine.decode(&prompt).expect("logits"))];
    for i in 0..DECODED {
        all.push(bits(engine.decode(&[7 + i as i32]).expect("logits")));
    }
    (all, engine.report().clone())
}

#[test]
fn each_step_switched_off_gives_the_same_logits() {
    for (preset, ty) in PRESETS.into_iter().zip(["q4_0", "q8_0", "q4_0", "f16"]) {
        let path = common::model(preset, ty);
        let model = Model::load(&path, Isa::best(), Placement::Packed, |_, _| {}).expect("a model");
        let model = Arc::new(model);
        let (all, report) = logits(&model, Steps::ALL);
        assert_eq!(report.left_out, [], "{preset}");
        assert_eq!((report.checked, report.nodes), (report.built, report.built - 3), "{preset}");
        assert!(report.fused > 0 && report.prepared > 0, "{preset}: {report}");
        assert!(report.bytes < report.bytes_apart / 4, "{preset}: {report}");
        // Parts of the kernels, which come last, are decided when a model is loaded.
        let of_graph = Step::ALL.iter().take_while(|f| f.step != Step::Layout);
        let mut variants: Vec<Steps> = of_graph.map(|f| Steps::ALL.without(f.step)).collect();
        variants.push(Steps::NONE);
        for steps in variants {
            let (less, report) = logits(&model, steps);
            assert!(less == all, "{preset}: other logits, {report}");
            assert_eq!(report.off, steps.off().collect::<Vec<_>>());
            let fuses = steps.has(Step::Fuse);
            assert_eq!((report.fused > 0, report.prepared > 0), (fuses, fuses), "{preset}: {report}");
            assert_eq!(report.dead, if steps.has(Step::Dead) { 3 } else { 0 }, "{preset}: {report}");
            assert_eq!(report.bytes == report.bytes_apart, !steps.has(Step::Plan), "{preset}: {report}");
        }
    }
}

#[test]
fn a_model_without_a_part_of_the_kernels_gives_the_same_logits() {
    let path = common::model("tiny", "q4_0");
    let first = |steps: Steps| {
        let (isa, place) = (Isa::best(), Placement::Packed);
        let model = Model::load_with(&path, isa, place, steps.parts(), |_, _| {}).expect("a model");
        logits(&Arc::new(model), Steps::ALL).0.swap_remove(0)
    };
    let all = first(Steps::ALL);
    let most = all.iter().map(|v| f32::from_bits(*v).abs()).fold(0.0, f32::max);
    for part in [Step::Layout, Step::HugePages, Step::Uint4, Step::Prefetch, Step::Attention, Step::Halves] {
        for (a, b) in all.iter().zip(first(Steps::ALL.without(part))) {
            let difference = (f32::from_bits(*a) - f32::from_bits(b)).abs();
            // Attention rounds otherwise, and so may an activation that is rounded to 8 bits.
            let rounds = matches!(part, Step::Attention | Step::Halves);
            let limit = if rounds { 0.05 * most } else { 1e-5 * most };
            assert!(difference <= limit, "{}: {difference} of {most}", part.name());
        }
    }
}

fn run(model: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ggml-runner"));
    command.args(["run", "--no-roofline", "-p", "3", "-n", "2", "-t", "1", "-m"]).arg(model).args(args);
    command.output().expect("ggml-runner runs")
}

fn out(model: &Path, args: &[&str]) -> String {
    let o = run(model, args);
    assert!(o.status.success(), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8(o.stdout).expect("UTF-8")
}

#[test]
fn a_run_says_what_the_steps_did() {
    let model = common::model("tiny", "q4_0");
    let line = |args: &[&str]| {
        let text = out(&model, args);
        text.lines().find(|l| l.starts_with("graph: ")).expect("a line").to_owned()
    };
    let all = line(&[]);
    assert!(all.starts_with("graph: 192 nodes of 195 (3 dead, 0 shared), 13 fused, 18 products"), "{all}");
    let less = line(&["--ablate", "dead,fuse"]);
    assert!(less.starts_with("graph: 195 nodes of 195 (0 dead, 0 shared), 0 fused, 0 products"), "{less}");
    assert!(less.ends_with(" MB; switched off: dead, fuse"), "{less}");
    let json: serde_json::Value =
        serde_json::from_str(&out(&model, &["--json", "--ablate", "plan"])).expect("JSON");
    let graph = &json["graph"];
    assert_eq!((&graph["nodes"], &graph["built"], &graph["fused"]), (&192.into(), &195.into(), &13.into()));
    assert_eq!((&graph["bytes"], graph["off"][0].as_str()), (&graph["bytes_apart"], Some("plan")));
    assert_eq!(graph["left_out"].as_array().map(Vec::len), Some(0));
    let wrong = run(&model, &["--ablate", "cse,nosuch"]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!((wrong.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("'nosuch'"), "{said}");
    // The names are in the message and in the help.
    let o = Command::new(env!("CARGO_BIN_EXE_ggml-runner")).args(["run", "--help"]).output();
    let help = String::from_utf8(o.expect("ggml-runner runs").stdout).expect("UTF-8");
    for f in Step::ALL {
        assert!(said.contains(f.name) && help.contains(f.name), "{}", f.name);
    }
}

/// Place, ops and names of the nodes of a dump.
fn boxes(dot: &str) -> Vec<(usize, String, Vec<String>)> {
    let inside =
        |l: &str| l.split_once("[label=\"").and_then(|(_, l)| l.split_once('"')).map(|(l, _)| l.to_owned());
    let labels = dot.lines().filter(|l| !l.contains("shape=ellipse")).filter_map(inside);
    labels
        .map(|label| {
            let lines: Vec<&str> = label.split("\\n").collect();
            let (place, op) = lines[0].split_once("  ").expect("place and op");
            let names = lines[1..lines.len() - 1].iter().map(|l| (*l).to_owned()).collect();
            (place.parse().expect("a number"), op.to_owned(), names)
        })
        .collect()
}

#[test]
fn dumps_are_the_graph_as_built_and_as_it_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    for preset in PRESETS {
        let model = common::model(preset, "f16");
        for (stage, off, fused) in
            [("after", "shapes", true), ("before", "dead,cse,fuse,fold", false), ("after", "fuse", false)]
        {
            let dump = boxes(&out(&model, &["--graph-dump", stage, "--ablate", off]));
            // The ground truth has the nodes that ran, each of them on its own.
            let file = dir.path().join(format!("{preset}-{stage}-{off}"));
            out(&model, &["--ablate", off, "--ground-truth", file.to_str().expect("UTF-8")]);
            let truth = std::fs::read_to_string(&file).expect("ground truth");
            let rows: Vec<Vec<&str>> = truth.lines().map(|l| l.split('\t').collect()).collect();
            let tables = rows.iter().filter(|r| r[0] == "node");
            let last = tables.clone().next_back().expect("nodes")[1];
            let nodes: Vec<(&str, &str)> = tables.filter(|r| r[1] == last).map(|r| (r[4], r[5])).collect();
            let pairs: Vec<(String, String)> = dump
                .iter()
                .flat_map(|(_, op, names)| op.split('+').map(str::to_owned).zip(names.clone()))
                .collect();
            let pairs: Vec<(&str, &str)> = pairs.iter().map(|(op, name)| (&op[..], &name[..])).collect();
            assert_eq!(pairs, nodes, "{preset} {stage}");
            assert_eq!(dump.iter().any(|(_, op, _)| op == "RMS_NORM+MUL"), fused, "{preset} {stage}");
            // A box is the op that the ground truth has for its first node.
            let cpu = rows.iter().rev().find(|r| r[0] == "op").expect("ops")[1];
            let ran: Vec<&str> = rows.iter().filter(|r| r[0] == "op" && r[1] == cpu).map(|r| r[4]).collect();
            let drawn: Vec<String> = dump.iter().map(|(place, ..)| place.to_string()).collect();
            assert!(ran.iter().all(|i| drawn.iter().any(|d| d == i)), "{preset} {stage}");
        }
    }
    let wrong = run(&common::model("tiny", "f16"), &["--graph-dump", "never"]);
    assert_eq!(wrong.status.code(), Some(2));
}
