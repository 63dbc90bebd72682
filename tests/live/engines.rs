//! Recordings of real engines compared with the engine's own account of what it runs: every op, on every thread,
//! with its structure. The dump is from the same run: the engine calls back for each node and still runs the graph
//! in one piece.

use crate::common;

use std::path::Path;
use std::process::Command;

use common::run::{Recorder, Target, profinfer, record};
use common::seen::Seen;
use common::truth::{self, Habits};
use common::{driver, engine, expect, live, model, skip};

/// b3889 and b4753: every node is dispatched, none skipped, nothing fused.
pub const EARLY: Habits = Habits { runs_nops: true, wants_flag: false, fuses: false };
pub const B8121: Habits = Habits { runs_nops: false, wants_flag: true, fuses: false };
pub const TODAY: Habits = Habits { runs_nops: false, wants_flag: true, fuses: true };

pub const FORWARD: &str = "ggml_compute_forward";
pub const EXTRA: &str = "ggml_cpu_extra_compute_forward";
pub const FUSED: &str = "ggml_compute_forward_rms_norm_mul_fused + ggml_cpu_extra_compute_forward";

/// Tokens after the prefill: two graphs of the same shape, and a few more.
const DECODES: usize = 4;

/// How often each engine is started: once, or PROFINFER_STARTS times.
fn starts() -> usize {
    std::env::var("PROFINFER_STARTS").map_or(1, |n| n.parse().expect("PROFINFER_STARTS: a number"))
}

/// Records `engine` on each of the models with one and with two threads.
fn compare(name: &str, models: &[(&str, &str)], habits: Habits, op: &str) {
    let _turn = live!(beside others);
    let lib = match engine(name) {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    for (preset, ty) in models {
        for threads in [1, 2] {
            println!("{name}, {preset} {ty}, {threads} threads");
            one(&lib, &model(preset, ty), threads, habits, op);
        }
    }
}

fn one(lib: &Path, model: &Path, threads: u32, habits: Habits, op: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let dump = dir.path().join("dump");
    // In lock-step: the engine is loaded, the probes are attached, then it works.
    let mut command = Command::new(driver());
    command.arg("--engine").arg(lib).arg("--model").arg(model).arg("--dump").arg(&dump);
    let mut target =
        Target::controlled(command.args(["--control", "--ctx", "256", "-t", &threads.to_string()]));
    let pid = target.pid();
    let ready = target.tell("", 1);
    assert_eq!(ready["ready"], true);
    let recorder = Recorder::start(&["-p", &pid.to_string()]);
    recorder.wait_for_probes();
    target.tell("prefill 7\n", 2);
    target.tell(&format!("run {DECODES}\n"), 3);
    drop(target.0.stdin.take());
    target.said();
    let seen = recorder.finish().seen();
    agrees(&seen, pid, &dump, (threads, DECODES), habits, op);
}

/// A recording agrees with the engine's own account of the same run, a prefill and `decodes` tokens.
pub fn agrees(
    seen: &Seen,
    pid: u32,
    dump: &Path,
    (threads, decodes): (u32, usize),
    habits: Habits,
    op: &str,
) {
    assert_eq!(seen.footer().end, "target exited");
    seen.complete();
    assert_eq!(seen.footer().read_errors, 0, "failed reads of the target's memory");

    let graphs = truth::read(dump);
    assert_eq!(graphs.len(), 1 + decodes, "graphs in the dump");
    let cpu = seen.graphs(pid);
    assert_eq!(cpu.len(), graphs.len(), "CPU graphs");
    let mut hits = 0;
    for (cpu, graph) in cpu.into_iter().zip(&graphs) {
        let ops = truth::ops(graph, habits);
        expect::graph(seen, cpu, graph, &ops, threads);
        hits += ops.len() as u64 * u64::from(threads);
    }
    assert_eq!((seen.slices(), seen.kind("op").seen), (hits, hits), "op hits");

    assert_eq!(seen.all.tokens.len(), graphs.len(), "calls");
    assert!(seen.all.tokens.iter().all(|c| !c.cut));
    let widths: Vec<u32> = seen.all.graphs.iter().map(|g| g.ubatch).collect();
    assert_eq!(widths, graphs.iter().map(|g| g.n_tokens).collect::<Vec<_>>(), "widths of the ubatches");
    assert!(seen.all.graphs.iter().all(|g| g.token.is_some() && !g.cut));

    assert_eq!(seen.used("op").map(|r| r.name), Some(op), "rung of ops");
    assert!(seen.used("split").is_some(), "rung of splits: {:?}", seen.rungs("split"));
    let backends: Vec<&str> = seen.all.splits.iter().map(|s| seen.all.backends[&s.backend].name).collect();
    assert!(!backends.is_empty() && backends.iter().all(|b| *b == "CPU"), "splits on {backends:?}");
}

/// Calls the `main` of a library with the arguments, of which it is the first.
pub const IN_PYTHON: &str = "import ctypes, sys\n\
    args = [a.encode() for a in sys.argv[1:]]\n\
    sys.exit(ctypes.CDLL(sys.argv[1]).main(len(args), (ctypes.c_char_p * (len(args) + 1))(*args)))";

/// A Python interpreter that opens the engine itself, started by the recorder: the first call is recorded, on the
/// CPU variant that the engine selects.
fn in_python(name: &str, habits: Habits, op: &str) {
    let _turn = live!(beside others);
    let lib = match engine(name) {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let (dir, model) = (tempfile::tempdir().expect("a directory"), model("tiny", "q4_0"));
    let (host, dump) = (driver().with_file_name("libdriver.so"), dir.path().join("dump"));
    let path = |p: &Path| p.to_str().expect("UTF-8").to_owned();
    let (host, lib, model) = (path(&host), path(&lib), path(&model));
    let dumped = path(&dump);
    let engine = ["--engine", &lib, "--model", &model, "--dump", &dumped, "-p", "7", "-n", "4", "-t", "2"];
    for _ in 0..starts() {
        let run = record(&[&["--", "python3", "-c", IN_PYTHON, &host][..], &engine].concat());
        let seen = run.seen();
        let pid = seen.all.tokens.first().expect("a call").pid;
        agrees(&seen, pid, &dump, (2, 4), habits, op);
    }
}

#[test]
fn opened_by_python() {
    in_python("b3889", EARLY, FORWARD);
    in_python("b8121", B8121, EXTRA);
    in_python("v0.5.0", TODAY, FUSED);
}

#[test]
fn opened_by_node() {
    let _turn = live!(beside others);
    let dir = match engine("v0.5.0") {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/engines/host.js");
    let (addon, model) = (dir.join("llama-addon.node"), model("tiny", "q4_0"));
    let path = |p: &Path| p.to_str().expect("UTF-8").to_owned();
    for _ in 0..starts() {
        let run = record(&["--", "node", &path(&host), &path(&addon), &path(&model), "6"]);
        let seen = run.seen();
        let calls = run.said()["calls"].as_u64().expect("a count");
        assert_eq!((calls, seen.all.tokens.len() as u64), (7, calls), "{}", run.stderr);
        assert_eq!(seen.all.cpu_graphs.len() as u64, calls);
        assert_eq!(seen.all.cpu_graphs.iter().map(|g| g.ubatch).collect::<Vec<_>>(), [7, 1, 1, 1, 1, 1, 1]);
        assert!(seen.slices() > 7 * 100, "{} slices", seen.slices());
        seen.complete();
    }
}

/// A draft model and its target in one process: each context has its own calls and layers.
fn drafted(name: &str) {
    let _turn = live!(beside others);
    let lib = match engine(name) {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    const ROUNDS: u64 = 6;
    let (target, draft) = (model("llama1b-L4", "q4_0"), model("tiny", "q4_0"));
    let path = |p: &Path| p.to_str().expect("UTF-8").to_owned();
    let (driver, lib, target, draft) = (path(&driver()), path(&lib), path(&target), path(&draft));
    let command = ["--engine", &lib, "--model", &target, "--draft", &draft, "-p", "7", "-n", "6"];
    let run = record(&[&["--", &driver][..], &command, &["--ctx", "256", "-t", "2"]].concat());
    assert_eq!(run.said()["rounds"].as_u64(), Some(ROUNDS));
    run.seen().complete();
    let report = |more: &[&str]| -> serde_json::Value {
        let out = profinfer().args(["report", "--json"]).arg(&run.trace).args(more).output().expect("runs");
        serde_json::from_slice(&out.stdout).expect("JSON")
    };
    let both = report(&[]);
    let rows = both["runs"].as_array().expect("runs");
    let mut told = Vec::new();
    for row in rows {
        let of = |field: &str| row[field].as_u64().unwrap_or_default();
        let own = report(&["--pid", &format!("{}:{}", row["pid"], row["context"])]);
        assert_eq!(own["model"]["layers"], row["model"]["layers"]);
        let prefill = own["phases"].as_array().and_then(|p| p.iter().find(|p| p["phase"] == "prefill"));
        let batched = prefill.is_some_and(|p| p["batched"] == true);
        told.push((
            of("calls"),
            of("tokens"),
            row["model"]["layers"].as_u64(),
            batched,
            own["ttft"].is_null(),
        ));
    }
    told.sort_unstable();
    let (target, draft) = (1 + ROUNDS, 1 + 4 * ROUNDS);
    // Where a draft ends shows how much of the one before was accepted: all of it; of the last, nothing is seen.
    let brought = 7 + 4 * (ROUNDS - 1) + 1;
    assert_eq!(
        told,
        [(target, brought, Some(4), false, false), (draft, 7 + 4 * ROUNDS, Some(6), false, false)],
        "{name}"
    );
    // The target's figures are shown, though the draft model has more calls.
    let drafts = &both["sequences"]["speculation"];
    let counts = ["drafts", "unseen", "drafted", "accepted", "draft_calls"].map(|of| drafts[of].as_u64());
    let known = 3 * (ROUNDS - 1);
    assert_eq!(counts, [ROUNDS, 1, known, known, 4 * ROUNDS].map(Some), "{name}: {drafts}");
}

#[test]
fn a_draft_beside_its_target() {
    drafted("b8121");
    drafted("v0.5.0");
}

const ALL: [(&str, &str); 4] =
    [("tiny", "q4_0"), ("moe", "q4_0"), ("gemma2", "q4_0"), ("llama1b-L4", "q4_0")];

#[test]
fn b3889() {
    // Supports gemma2 only with its published number of layers.
    compare("b3889", &[ALL[0], ALL[1], ALL[3]], EARLY, FORWARD);
}

#[test]
fn b4753() {
    // As for b3889; and its repacked kernels abort on experts in Q4_0.
    compare("b4753", &[ALL[0], ("moe", "f16"), ALL[3]], EARLY, FORWARD);
}

#[test]
fn b8121() {
    compare("b8121", &ALL, B8121, EXTRA);
}

#[test]
fn v0_5_0() {
    compare("v0.5.0", &ALL, TODAY, FUSED);
}

#[test]
fn b11549() {
    compare("b11549", &ALL, TODAY, FUSED);
}
