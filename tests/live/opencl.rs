//! Recordings of llama.cpp's OpenCL backend on a device in software (tests/gpu/opencl.sh): the nodes that it enqueues,
//! and the times of its kernels, beside the engine's own profile of the same run.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use analysis::recorded::idents::Idents;
use analysis::recorded::load::Loaded;
use analysis::sums::device_kernels::{self, PlacedKernel};
use common::reported::{counted_as_executed, on_backend, report, seen_whole, sum};
use common::run::{Run, profinfer, record};
use common::{driver, engine, live, model, skip};
use serde_json::Value;

const DECODES: usize = 8;

/// Held while kernels are compiled.
static COMPILES: Mutex<()> = Mutex::new(());

/// The folder "profiled" has the same with its own profile.
const ENGINE: &str = "opencl-v0.5.0";

/// The layer, beside the program under test.
fn layer() -> Result<PathBuf, String> {
    let layer = common::profinfer().with_file_name("libprofinfer-cl.so");
    if layer.is_file() { Ok(layer) } else { Err(format!("no {}: run make layers", layer.display())) }
}

/// The driver on the device, as a command line that begins with `env`.
fn command(engine: &Path, libraries: &Path, here: &Path, args: &[&str]) -> Vec<String> {
    let (engine, here) = (engine.display(), here.display());
    let env = [
        "env".to_owned(),
        format!("--chdir={here}"),
        format!("LD_LIBRARY_PATH={engine}:{engine}/runtime"),
        format!("OCL_ICD_VENDORS={engine}/vendors"),
        format!("LD_PRELOAD={engine}/device_name.so"),
        // The runtime computes SOFT_MAX wrongly on a CPU.
        "GGML_OPENCL_OPFILTER=SOFT_MAX".to_owned(),
        driver().display().to_string(),
        format!("--engine={}", libraries.display()),
        format!("--model={}", model("tiny", "q4_0").display()),
    ];
    let rest = ["-p", "16", "-t", "1", "--gpu-layers", "99", "--json", "-n"].map(str::to_owned);
    let end = [DECODES.to_string()].into_iter().chain(args.iter().map(|a| (*a).to_owned()));
    env.into_iter().chain(rest).chain(end).collect()
}

fn run(args: &[&str], command: &[String]) -> Run {
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    // The first run compiles the kernels, for minutes, and they are kept: others wait for it.
    let compiles = COMPILES.lock().expect("no panic");
    assert!(Command::new(command[0]).args(&command[1..]).output().expect("it runs").status.success());
    drop(compiles);
    record(&[args, &["--"], &command].concat())
}

/// What a phase of the report says about the device.
fn device<'r>(report: &'r Value, phase: &str) -> &'r Value {
    on_backend(report, phase, "OpenCL")
}

/// Names of the tensors that a kernel's group computes, and of their sources: some kernels only prepare one of these.
fn tensors<'l>(all: &'l Loaded<'_>, idents: &Idents, k: &PlacedKernel<'_>) -> Vec<&'l str> {
    let group = k.group.unwrap_or_else(|| panic!("a kernel of no node: {k:?}"));
    let plan = &idents.of_plan(group.plan)[group.first as usize..][..group.nodes as usize];
    let ids = plan.iter().filter_map(|i| idents.list()[*i].hit).flat_map(|(a, b)| [Some(a), b]).flatten();
    let nodes = ids.map(|id| &all.tensors[&id]);
    let sources = |id: &u32| all.tensors.get(id).map(|t| &*t.name);
    nodes.flat_map(|t| t.src.iter().flatten().filter_map(sources).chain([&*t.name])).collect()
}

/// A line of the engine's profile: tensor, kernel, ns on the device.
fn profile(dir: &Path) -> Vec<(String, String, u64)> {
    let text = std::fs::read_to_string(dir.join("cl_profiling.csv")).expect("the engine's profile");
    let row = |line: &str| {
        let mut cells = line.split(',');
        let (tensor, kernel) =
            (cells.next().expect("op name").to_owned(), cells.next().expect("kernel").to_owned());
        let ms: f64 = cells.next().expect("a duration").trim().parse().expect("a number");
        (tensor, kernel, (ms * 1e6).round() as u64)
    };
    text.lines().skip(1).map(row).collect()
}

/// How far the engine's figure of a kernel may be from the truth: it computes in single precision, which has 24 bits.
fn rounded(ns: u64) -> u64 {
    ns >> 23
}

/// The timeline has a track with this many kernels, each with its nodes.
fn drawn(run: &Run, n: usize) {
    let out = run.trace.with_extension("json");
    let made = profinfer().args(["export", "--chrome"]).arg(&out).arg(&run.trace).output().expect("it runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let all: Value = serde_json::from_slice(&std::fs::read(&out).expect("a timeline")).expect("JSON");
    let events = all["traceEvents"].as_array().expect("events");
    let kernels = events.iter().filter(|e| e["args"].get("after_enqueue_ns").is_some());
    assert_eq!(kernels.clone().filter(|e| e["args"]["nodes"].is_string()).count(), n);
    let named = |e: &&Value| e["args"]["name"].as_str().is_some_and(|n| n.starts_with("OpenCL queue 0 ("));
    assert_eq!(events.iter().filter(named).count(), 1);
    // A kernel starts behind the call that enqueues it.
    assert!(kernels.clone().all(|e| e["args"]["after_enqueue_ns"].as_u64() > Some(0)));
}

#[test]
fn kernels_are_those_of_the_engines_own_profile() {
    let _turn = live!(beside others);
    let engine = match engine(ENGINE).and_then(|engine| layer().map(|_| engine)) {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let here = tempfile::tempdir().expect("a directory");
    let run =
        run(&["--gpu", "kernel"], &command(&engine, &engine.join("profiled"), here.path(), &["--free"]));
    let (seen, own, report) = (run.seen(), profile(here.path()), report(&run));
    seen.books_close();
    let (all, idents) = (&seen.all, Idents::new(&seen.all));
    let mut placed = device_kernels::placed(all);
    placed.sort_by_key(|k| k.times.host);
    let told = all.causes.features.iter().find(|f| f.name == "device kernels").expect("told");
    assert_eq!(told.state, pfi::record::Availability::Whole, "{}", told.why);
    // The engine has its own events for what a graph enqueues.
    assert_eq!(placed.len(), own.len());
    for (k, (tensor, kernel, ns)) in placed.iter().zip(&own) {
        assert_eq!(all.kernel_names[&k.times.name], kernel);
        let took = k.times.ended - k.times.started;
        assert!(took.abs_diff(*ns) <= rounded(*ns), "{kernel} of {tensor}: {took} and {ns}");
        assert!(tensors(all, &idents, k).contains(&&**tensor), "{tensor}: {:?}", tensors(all, &idents, k));
        let (t, error) = (k.times, k.of.error_ns);
        assert!(t.host <= t.queued + error && t.queued <= t.submitted, "{t:?}");
        assert!(t.submitted <= t.started && t.started <= t.ended, "{t:?}");
        let over = (k.split.t as u64) + k.split.dur;
        assert!(t.ended <= over + error, "{t:?} in {:?}", k.split);
    }
    assert!(placed.iter().all(|k| k.of.error_ns < 1_000_000), "the clock is hardly known");
    drawn(&run, own.len());
    // The report has them all, and each group of nodes has a kernel.
    let (prefill, decode) = (device(&report, "prefill"), device(&report, "decode"));
    let kernels: u64 = [prefill, decode].iter().map(|d| sum(&d["device"]["ops"], "kernels")).sum();
    assert_eq!(kernels, own.len() as u64);
    let ns: u64 = [prefill, decode].iter().map(|d| sum(&d["device"]["by_kernel"], "device_ns")).sum();
    let (owns, off) = own.iter().fold((0, 0), |(sum, off), o| (sum + o.2, off + rounded(o.2)));
    assert!(ns.abs_diff(owns) <= off, "{ns} and {owns}");
    for phase in [prefill, decode] {
        seen_whole(phase);
        counted_as_executed(phase);
        assert_eq!(phase["device"]["groups_without"], 0, "{phase:#}");
        assert_eq!(phase["device"]["groups"], sum(&phase["enqueued"], "groups"));
        let fused = phase["enqueued"].as_array().expect("rows").iter().find(|r| r["ops"] == "RMS_NORM+MUL");
        assert!(fused.is_some_and(|r| r["groups"].as_u64() > Some(0)), "{phase:#}");
    }
}

#[test]
fn the_lower_levels_have_less() {
    let _turn = live!(beside others);
    let engine = match engine(ENGINE) {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let here = tempfile::tempdir().expect("a directory");
    let of = |detail: &str| run(&["--gpu", detail], &command(&engine, &engine, here.path(), &[]));
    let op = of("op");
    op.seen().books_close();
    assert_eq!(device(&report(&op), "decode")["device"], Value::Null);
    assert!(sum(&device(&report(&op), "decode")["enqueued"], "groups") > 0);
    let split = of("split");
    assert_eq!(device(&report(&split), "decode")["enqueued"], Value::Null);
    assert!(sum(&device(&report(&split), "decode")["ops"], "nodes") > 0);
    let off = of("off");
    off.seen().books_close();
    let off = device(&report(&off), "decode").clone();
    assert_eq!(off["unknown_splits"], off["splits"]);
}

#[test]
fn the_layer_changes_no_result() {
    let _turn = live!(beside others);
    let (engine, layer) = match engine(ENGINE).and_then(|engine| Ok((engine, layer()?))) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    let here = tempfile::tempdir().expect("a directory");
    let logits = |name: &str, layer: Option<&Path>| {
        let file = here.path().join(name);
        let ids = ["--ids", "5,9,2,7", "--logits", file.to_str().expect("a path")];
        let command = command(&engine, &engine, here.path(), &ids);
        let mut run = Command::new(&command[0]);
        run.args(&command[1..]);
        layer.map(|layer| run.env("OPENCL_LAYERS", layer));
        let out = run.output().expect("it runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        (std::fs::read(&file).expect("logits"), out.stdout)
    };
    assert_eq!(logits("without", None), logits("with", Some(&layer)));
}

#[test]
fn without_the_layers_file_nothing_is_started() {
    let _turn = live!(beside others);
    let here = tempfile::tempdir().expect("a directory");
    let alone = here.path().join("profinfer");
    std::fs::copy(common::profinfer(), &alone).expect("a copy");
    let mark = here.path().join("started");
    let mut command = Command::new(&alone);
    command.current_dir(here.path()).args(["record", "--gpu", "kernel", "--", "touch"]).arg(&mark);
    let out = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && !mark.exists());
    assert!(said.contains("libprofinfer-cl.so") && said.contains("make layers"), "{said}");
}

#[test]
fn without_a_device_the_recording_says_so() {
    let _turn = live!(beside others);
    let engine = match engine(ENGINE).and_then(|engine| layer().map(|_| engine)) {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let here = tempfile::tempdir().expect("a directory");
    let run = run(&["--gpu", "kernel"], &command(&engine, &engine, here.path(), &["--gpu-layers", "0"]));
    let features = run.seen().all.causes.features.clone();
    let found = features.iter().find(|f| f.name == "device kernels").expect("told");
    assert!(
        found.state == pfi::record::Availability::None && found.why.contains("loaded no layer"),
        "{found:?}"
    );
}

/// A backend that profinfer does not know has its function from the user.
#[test]
fn the_user_may_name_the_function() {
    let _turn = live!(beside others);
    let engine = match engine(ENGINE) {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let here = tempfile::tempdir().expect("a directory");
    let of = |probe: &str| run(&["--op-probe", probe], &command(&engine, &engine, here.path(), &[]));
    let named = of("ggml_cl_compute_forward:2");
    named.seen().books_close();
    for phase in ["prefill", "decode"] {
        seen_whole(device(&report(&named), phase));
    }
    // Its first argument is the backend.
    let wrong = report(&of("ggml_cl_compute_forward:1"));
    assert_eq!(device(&wrong, "decode")["enqueued"], Value::Null);
    let none = of("ggml_cl_compute_backward:2");
    assert!(none.status.success(), "{}", none.stderr);
    assert!(
        none.stderr.contains("no library of the engine has a function ggml_cl_compute_backward"),
        "{}",
        none.stderr
    );
}

/// SOFT_MAX is kept from the device (see [`command`]): each of its nodes leaves the device and comes back.
#[test]
fn what_fell_back_has_its_reason_and_its_cost() {
    let _turn = live!(beside others);
    let engine = match engine(ENGINE) {
        Ok(engine) => engine,
        Err(why) => skip!("{why}"),
    };
    let here = tempfile::tempdir().expect("a directory");
    let run = run(&[], &command(&engine, &engine, here.path(), &[]));
    let report = report(&run);
    let phases = report["phases"].as_array().expect("phases");
    let decode = phases.iter().find(|p| p["phase"] == "decode").expect("decode");
    let offload = &decode["offload"];
    let row = |list: &str, key: &str, of: &str| {
        let rows = offload[list].as_array().expect("rows");
        rows.iter().find(|r| r[key] == of).unwrap_or_else(|| panic!("{offload:#}")).clone()
    };
    let nodes = row("on_cpu", "op", "SOFT_MAX");
    assert_eq!(nodes["reason"], "never-on-device");
    assert_eq!(nodes["types"], "f32 of f32, f32");
    assert!(nodes["cpu_ns"].as_u64() > Some(0));
    assert_eq!(row("on_cpu", "op", "GET_ROWS")["reason"], "input-layer");
    let split = row("crossings", "ops", "SOFT_MAX");
    let n = nodes["nodes"].as_u64().expect("a number");
    assert!(n >= offload["graphs"].as_u64().expect("graphs"));
    // Each is a split of its own between two of the device, and both its input and its result are copied.
    assert_eq!([&split["splits"], &split["between"]].map(Value::as_u64), [Some(n); 2]);
    assert_eq!(split["extra_splits"].as_u64(), Some(2 * n));
    assert_eq!(split["to_cpu_bytes"], split["from_cpu_bytes"]);
    let copied = offload["copies"].as_array().expect("copies");
    let copied = copied.iter().find(|c| c["to"] == "CPU").expect("a copy to the CPU");
    assert_eq!(split["to_cpu_bytes"], copied["bytes"]);
    assert!(
        ["wait_ns", "before_ns", "cpu_ns", "after_ns"].iter().all(|f| split[*f].as_u64() > Some(0)),
        "{split:#}"
    );
    let verdict = &report["verdict"];
    let advice =
        verdict["advice"].as_array().expect("advice").iter().find(|a| a["rule"] == "device-fallback");
    assert!(
        advice.is_some_and(|a| a["title"].as_str().is_some_and(|t| t.starts_with("SOFT_MAX"))),
        "{verdict:#}"
    );
    // The bar has the device's part.
    let bar = &verdict["phases"][0]["bar"];
    let share = |v: &Value| v.as_f64().expect("a share");
    let whole = share(&split["cpu_ns"]) + share(&split["before_ns"]) + share(&split["after_ns"]);
    assert!(share(&bar["device"]) > 0.1 && share(&bar["device"]) < 1.0, "{bar:#}");
    assert!(whole < share(&decode["in_call_ns"]) * (1.0 - share(&bar["device"])) + 1e6, "{bar:#} {split:#}");
}
