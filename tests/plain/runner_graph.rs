//! The steps that the runner's graph goes through before it runs: they change no result, but norms that were written as
//! their parts round otherwise; and what they did is shown.

use crate::common;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use ggml::names::fold;
use runner::abi::{GgmlTensor, Op};
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

fn engine(model: &Arc<Model>, steps: Steps) -> RunnerEngine {
    let settings = EngineSettings {
        context: 512,
        threads: 2,
        decode_threads: 2,
        pin: false,
        two_backends: false,
        steps,
        truth: None,
    };
    RunnerEngine::new(Arc::clone(model), settings).expect("an engine")
}

fn loaded(path: &Path) -> Arc<Model> {
    Arc::new(Model::load(path, Isa::best(), Placement::Packed, |_, _| {}).expect("a model"))
}

/// The logits after a prompt and after each token that follows.
fn logits(model: &Arc<Model>, steps: Steps) -> (Vec<Vec<u32>>, Report) {
    let mut engine = engine(model, steps);
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
        let model = loaded(&common::model(preset, ty));
        let (all, report) = logits(&model, Steps::ALL);
        assert_eq!((report.left_out.len(), report.built), (0, report.nodes), "{preset}: {report}");
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
            assert_eq!(report.bytes == report.bytes_apart, !steps.has(Step::Plan), "{preset}: {report}");
        }
    }
}

/// Steps of the graph, as they are switched off.
fn without(list: &str) -> Steps {
    if list.is_empty() { Steps::ALL } else { list.parse().expect("steps") }
}

/// Largest square error of the logits after a token, relative to the square of the true ones.
fn error(truth: &[Vec<u32>], other: &[Vec<u32>]) -> f64 {
    assert_eq!(truth.len(), other.len());
    let of = |(truth, other): (&Vec<u32>, &Vec<u32>)| {
        let value = |bits: &u32| f64::from(f32::from_bits(*bits));
        let wrong: f64 = truth.iter().zip(other).map(|(a, b)| (value(a) - value(b)).powi(2)).sum();
        wrong / truth.iter().map(|a| value(a).powi(2)).sum::<f64>()
    };
    truth.iter().zip(other).map(of).fold(0.0, f64::max)
}

#[test]
fn an_exported_graph_gives_the_logits_of_the_one_that_llama_builds() {
    for (preset, ty, bound) in
        [("tiny", "f32", 1e-6), ("qwen2-tiny", "q8_0", 1e-3), ("moe", "f32", 1e-6), ("gemma2", "f32", 1e-6)]
    {
        let (plain, model) =
            (loaded(&common::model(preset, ty)), loaded(&common::exported_model(preset, ty)));
        let (truth, ordinary) = logits(&plain, Steps::ALL);
        let (all, report) = logits(&model, Steps::ALL);
        assert!(all == truth, "{preset}: other logits, {report}");
        let same = |r: &Report| (r.nodes, r.fused, r.prepared, r.bytes, r.bytes_apart, r.left_out.len());
        assert_eq!(same(&report), same(&ordinary), "{preset}: {report}");
        // These change no bit.
        for off in ["shapes", "cse", "dead", "plan", "shapes,cse,dead,plan"] {
            let (less, report) = logits(&model, without(off));
            assert!(less == all, "{preset} without {off}: other logits, {report}");
        }
        // Norms as their parts round otherwise; without constants, their epsilon is unknown.
        let (parts, report) = logits(&model, without("fuse"));
        let wrong = error(&all, &parts);
        println!("{preset} {ty}: square error of norms as their parts {wrong:.1e}");
        assert!(wrong < bound && (ty != "f32" || parts != all), "{preset}: {wrong:.1e}, {report}");
        for off in ["fold", "fold,shapes,cse,dead,fuse,plan"] {
            let (less, report) = logits(&model, without(off));
            assert!(less == parts, "{preset} without {off}: other logits, {report}");
        }
    }
}

/// What a node computes: its op, the name without numbers, type, dimensions, strides and parameters.
type Computes = (Op, String, usize, [i64; 4], [usize; 4], [i32; 16]);

/// The nodes of the graph that decodes a token: what each computes, and that of its sources.
fn nodes(model: &Arc<Model>, steps: Steps) -> Vec<(Computes, Vec<Computes>)> {
    let mut engine = engine(model, steps);
    engine.decode(&[3]).expect("logits");
    let of =
        |t: &GgmlTensor| (t.op, fold(t.name()).pattern.into_owned(), t.ty as usize, t.ne, t.nb, t.op_params);
    // SAFETY: the engine's graph, after a batch, whose sources live as long as the engine.
    let nodes = unsafe { engine.graph().expect("a graph").nodes() };
    // SAFETY: as above.
    let sources = |n: &GgmlTensor| (0..10).filter_map(|i| unsafe { n.source(i) }.map(of)).collect();
    nodes.iter().map(|n| (of(n), sources(n))).collect()
}

#[test]
fn the_steps_turn_an_exported_graph_into_the_one_that_llama_builds() {
    for preset in PRESETS {
        let (plain, model) = (common::model(preset, "f16"), common::exported_model(preset, "f16"));
        let (expected, found) = (nodes(&loaded(&plain), Steps::ALL), nodes(&loaded(&model), Steps::ALL));
        for (i, (a, b)) in expected.iter().zip(&found).enumerate() {
            assert_eq!(a, b, "{preset}: node {i}");
        }
        assert_eq!(expected.len(), found.len(), "{preset}");
    }
}

/// Nodes after each step that was done, and what is fused then.
const STEPS: &str = "\
tiny       without                                  built 451, fold 376, shapes 322, cse 250, dead 244, fuse 192; 13 fused, 18 prepared
tiny       without fold                             built 451, shapes 372, cse 264, dead 258, fuse 258; 0 fused, 18 prepared
tiny       without shapes                           built 451, fold 376, cse 304, dead 298, fuse 246; 13 fused, 18 prepared
tiny       without cse                              built 451, fold 376, shapes 322, dead 316, fuse 216; 25 fused, 6 prepared
tiny       without dead                             built 451, fold 376, shapes 322, cse 250, fuse 198; 13 fused, 18 prepared
tiny       without fuse                             built 451, fold 376, shapes 322, cse 250, dead 244; 0 fused, 0 prepared
tiny       without plan                             built 451, fold 376, shapes 322, cse 250, dead 244, fuse 192; 13 fused, 18 prepared
tiny       without fold,shapes,cse,dead,fuse,plan   built 451; 0 fused, 0 prepared
qwen2-tiny without                                  built 469, fold 394, shapes 340, cse 268, dead 262, fuse 210; 13 fused, 18 prepared
qwen2-tiny without fold                             built 469, shapes 390, cse 282, dead 276, fuse 276; 0 fused, 18 prepared
qwen2-tiny without shapes                           built 469, fold 394, cse 322, dead 316, fuse 264; 13 fused, 18 prepared
qwen2-tiny without cse                              built 469, fold 394, shapes 340, dead 334, fuse 234; 25 fused, 6 prepared
qwen2-tiny without dead                             built 469, fold 394, shapes 340, cse 268, fuse 216; 13 fused, 18 prepared
qwen2-tiny without fuse                             built 469, fold 394, shapes 340, cse 268, dead 262; 0 fused, 0 prepared
qwen2-tiny without plan                             built 469, fold 394, shapes 340, cse 268, dead 262, fuse 210; 13 fused, 18 prepared
qwen2-tiny without fold,shapes,cse,dead,fuse,plan   built 469; 0 fused, 0 prepared
moe        without                                  built 441, fold 390, shapes 326, cse 278, dead 274, fuse 238; 9 fused, 16 prepared
moe        without fold                             built 441, shapes 360, cse 288, dead 284, fuse 284; 0 fused, 16 prepared
moe        without shapes                           built 441, fold 390, cse 330, dead 326, fuse 290; 9 fused, 16 prepared
moe        without cse                              built 441, fold 390, shapes 326, dead 322, fuse 254; 17 fused, 12 prepared
moe        without dead                             built 441, fold 390, shapes 326, cse 278, fuse 242; 9 fused, 16 prepared
moe        without fuse                             built 441, fold 390, shapes 326, cse 278, dead 274; 0 fused, 0 prepared
moe        without plan                             built 441, fold 390, shapes 326, cse 278, dead 274, fuse 238; 9 fused, 16 prepared
moe        without fold,shapes,cse,dead,fuse,plan   built 441; 0 fused, 0 prepared
gemma2     without                                  built 385, fold 310, shapes 274, cse 226, dead 222, fuse 154; 17 fused, 12 prepared
gemma2     without fold                             built 385, shapes 324, cse 244, dead 240, fuse 240; 0 fused, 12 prepared
gemma2     without shapes                           built 385, fold 310, cse 262, dead 258, fuse 190; 17 fused, 12 prepared
gemma2     without cse                              built 385, fold 310, shapes 274, dead 270, fuse 170; 25 fused, 4 prepared
gemma2     without dead                             built 385, fold 310, shapes 274, cse 226, fuse 158; 17 fused, 12 prepared
gemma2     without fuse                             built 385, fold 310, shapes 274, cse 226, dead 222; 0 fused, 0 prepared
gemma2     without plan                             built 385, fold 310, shapes 274, cse 226, dead 222, fuse 154; 17 fused, 12 prepared
gemma2     without fold,shapes,cse,dead,fuse,plan   built 385; 0 fused, 0 prepared
";

#[test]
fn each_step_removes_its_nodes_of_an_exported_graph() {
    let mut table = String::new();
    for preset in PRESETS {
        let model = loaded(&common::exported_model(preset, "q4_0"));
        for off in ["", "fold", "shapes", "cse", "dead", "fuse", "plan", "fold,shapes,cse,dead,fuse,plan"] {
            let report = engine(&model, without(off)).report().clone();
            let steps = report.steps.iter().map(|s| format!("{} {}", s.step, s.after));
            let steps: Vec<String> = [format!("built {}", report.built)].into_iter().chain(steps).collect();
            table += &format!("{preset:<10} without {off:<32} {}", steps.join(", "));
            table += &format!("; {} fused, {} prepared\n", report.fused, report.prepared);
        }
    }
    assert_eq!(table, STEPS, "made:\n{table}");
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
    let mut command = Command::new(crate::common::runner());
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
    assert!(all.starts_with("graph: 192 nodes, 13 fused, 18 products"), "{all}");
    let less = line(&["--ablate", "plan,fuse"]);
    assert!(less.starts_with("graph: 192 nodes, 0 fused, 0 products"), "{less}");
    assert!(less.ends_with(" MB; switched off: fuse, plan"), "{less}");
    let json: serde_json::Value =
        serde_json::from_str(&out(&model, &["--json", "--ablate", "plan"])).expect("JSON");
    let graph = &json["graph"];
    assert_eq!((&graph["nodes"], &graph["fused"]), (&192.into(), &13.into()));
    assert_eq!((&graph["bytes"], graph["off"][0].as_str()), (&graph["bytes_apart"], Some("plan")));
    assert_eq!(graph["left_out"].as_array().map(Vec::len), Some(0));
    let exported = out(&common::exported_model("tiny", "q4_0"), &["--json", "--ablate", "cse"]);
    let exported: serde_json::Value = serde_json::from_str(&exported).expect("JSON");
    let names = exported["graph"]["steps"].as_array().expect("steps").iter().map(|s| s["step"].as_str());
    assert_eq!(names.flatten().collect::<Vec<_>>(), ["fold", "shapes", "dead", "fuse"]);
    let wrong = run(&model, &["--ablate", "plan,nosuch"]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!((wrong.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("'nosuch'"), "{said}");
    // The names are in the message and in the help.
    let o = Command::new(crate::common::runner()).args(["run", "--help"]).output();
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
    let models = PRESETS.map(|preset| (preset, common::model(preset, "f16")));
    for (preset, model) in models {
        for (stage, off, fused) in
            [("after", "plan", true), ("before", "fuse,plan", false), ("after", "fuse", false)]
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
    // What an exporter wrote is there before the steps, and not after.
    let model = common::exported_model("tiny", "f16");
    let ops = |stage| boxes(&out(&model, &["--graph-dump", stage])).into_iter().map(|(_, op, _)| op);
    let count = |stage, wanted: &str| ops(stage).filter(|op| op == wanted).count();
    let made = |stage| ["SQR", "MEAN", "ADD1", "SQRT", "DIV"].map(|op| count(stage, op));
    // Six layers with two norms each, both of them twice, and one behind.
    assert_eq!((made("before"), made("after")), ([25; 5], [0; 5]));
    assert_eq!((count("before", "RMS_NORM+MUL"), count("after", "RMS_NORM+MUL")), (0, 13));
    let wrong = run(&common::model("tiny", "f16"), &["--graph-dump", "never"]);
    assert_eq!(wrong.status.code(), Some(2));
}
