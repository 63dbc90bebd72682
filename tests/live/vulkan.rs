//! Recordings of llama.cpp's Vulkan backend with the Vulkan layer, on a device in software: the times of its dispatches,
//! beside the engine's own table of the same run.

use crate::common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use analysis::sums::device_kernels;
use common::reported::{counted_as_executed, on_backend, report, seen_whole, sum};
use common::run::{Run, record};
use common::{driver, engine, live, model, skip};
use serde_json::Value;

const DECODES: usize = 8;

/// Where the loader finds the software device.
pub fn device() -> Result<PathBuf, String> {
    let dir = Path::new("/usr/share/vulkan/icd.d");
    let files = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut files = files.filter_map(|f| Some(f.ok()?.path()));
    let found = files.find(|f| f.file_name().is_some_and(|n| n.to_string_lossy().starts_with("lvp_icd")));
    found.ok_or_else(|| "no Vulkan device in software (apt-get install mesa-vulkan-drivers)".into())
}

/// The directory with the layer: that of the program under test.
fn layer() -> Result<PathBuf, String> {
    let dir = common::profinfer().parent().expect("a directory").to_owned();
    let there = ["libprofinfer-vk.so", "VkLayer_profinfer.json"].iter().all(|f| dir.join(f).is_file());
    if there { Ok(dir) } else { Err(format!("no layer in {}: run make layers", dir.display())) }
}

/// The engine, the device and the layer, or what is missing.
fn bed(name: &str) -> Result<(PathBuf, PathBuf, PathBuf), String> {
    Ok((engine(name)?, device()?, layer()?))
}

/// The driver on the device, as a command line that begins with `env`.
pub fn command(engine: &Path, device: &Path, more: &[&str], args: &[&str]) -> Vec<String> {
    let env = [
        "env".to_owned(),
        format!("VK_DRIVER_FILES={}", device.display()),
        format!("VK_ICD_FILENAMES={}", device.display()),
        "GGML_VK_VISIBLE_DEVICES=0".to_owned(),
    ];
    let program = [
        driver().display().to_string(),
        format!("--engine={}", engine.display()),
        format!("--model={}", model("tiny", "q4_0").display()),
    ];
    let rest = ["-p", "16", "-t", "1", "--gpu-layers", "99", "--json", "-n"].map(str::to_owned);
    let owned = |all: &[&str]| all.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>();
    let n = vec![DECODES.to_string()];
    [env.to_vec(), owned(more), program.to_vec(), rest.to_vec(), n, owned(args)].concat()
}

pub fn run(args: &[&str], command: &[String]) -> Run {
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    // The first run compiles the shaders, and Mesa caches them.
    assert!(Command::new(command[0]).args(&command[1..]).output().expect("it runs").status.success());
    record(&[args, &["--"], &command].concat())
}

/// What a phase of the report says about the device.
fn on_device<'r>(report: &'r Value, phase: &str) -> &'r Value {
    on_backend(report, phase, "Vulkan")
}

/// Each dispatch is of the nodes that were being enqueued, lies in its split, and follows the one before it.
fn dispatches_are_timed(name: &str, preset: &str) {
    let _turn = live!(beside others);
    let (engine, device, _) = match bed(name) {
        Ok(bed) => bed,
        Err(why) => skip!("{why}"),
    };
    let model = format!("--model={}", model(preset, "q4_0").display());
    let run = run(&["--gpu", "kernel"], &command(&engine, &device, &[], &[&model]));
    let (seen, report) = (run.seen(), report(&run));
    seen.books_close();
    let placed = device_kernels::placed(&seen.all);
    assert!(placed.len() > 50 * DECODES, "{}", placed.len());
    for k in &placed {
        let (t, error) = (k.times, k.of.error_ns);
        assert!(t.host <= t.submitted && t.submitted <= t.started + error && t.started <= t.ended, "{t:?}");
        assert!(t.ended <= k.split.t as u64 + k.split.dur + error, "{t:?} in {:?}", k.split);
        assert!(seen.all.kernel_names[&t.name].starts_with("shader "));
    }
    for phase in [on_device(&report, "prefill"), on_device(&report, "decode")] {
        assert_eq!(phase["device"]["groups_without"], 0, "{phase:#}");
        assert_eq!(phase["device"]["groups"], sum(&phase["enqueued"], "groups"));
        seen_whole(phase);
        counted_as_executed(phase);
        assert!(sum(&phase["device"]["ops"], "kernels") >= sum(&phase["enqueued"], "groups"));
        // Only the matrices' products can be more than one dispatch of a node, and none is outside nodes.
        let outside =
            phase["device"]["ops"].as_array().expect("ops").iter().find(|r| r["ops"] == "(outside nodes)");
        assert!(outside.is_none(), "{phase:#}");
    }
}

#[test]
fn dispatches_are_timed_b5640() {
    dispatches_are_timed("vulkan-b5640", "tiny");
}

#[test]
fn dispatches_are_timed_b8390() {
    dispatches_are_timed("vulkan-b8390", "tiny");
}

/// With this model the driver of Debian 12 crashes under later builds, recorded or not.
#[test]
fn dispatches_of_experts_are_timed_b5640() {
    dispatches_are_timed("vulkan-b5640", "moe");
}

#[test]
fn dispatches_are_timed_v0_5_0() {
    dispatches_are_timed("vulkan-v0.5.0", "tiny");
}

/// Groups and device time (us) by the first word of the engine's own tables, over all graphs of a run.
fn own_tables(text: &str) -> BTreeMap<String, (f64, f64)> {
    let mut sum = BTreeMap::<String, (f64, f64)>::new();
    for table in text.split("Vulkan Timings:").skip(1) {
        for line in table.lines().take_while(|line| !line.starts_with("Total time")) {
            let Some((name, (n, us))) =
                line.rsplit_once(": ").and_then(|(name, rest)| Some((name, rest.split_once(" x ")?)))
            else {
                continue;
            };
            let first = name.split([' ', '(']).next().unwrap_or_default().replace("_MUL", "+MUL");
            let us: f64 = us.split_once(" us").expect("us").0.trim().parse().expect("a number");
            let n: f64 = n.trim().parse().expect("a number");
            let of = sum.entry(first).or_default();
            (of.0, of.1) = (of.0 + n, of.1 + n * us);
        }
    }
    sum
}

#[test]
fn times_are_within_the_engines_own() {
    let _turn = live!(beside others);
    let (engine, device, _) = match bed("vulkan-v0.5.0") {
        Ok(bed) => bed,
        Err(why) => skip!("{why}"),
    };
    let run = run(&["--gpu", "kernel"], &command(&engine, &device, &["GGML_VK_PERF_LOGGER=1"], &[]));
    let own = own_tables(&(run.stderr.clone() + &run.stdout));
    let report = report(&run);
    let phases = [on_device(&report, "prefill"), on_device(&report, "decode")];
    let names = [("RMS_NORM+MUL", "RMS_NORM+MUL"), ("SWIGLU", "GLU"), ("ROPE", "ROPE"), ("ADD", "ADD")];
    for (op, theirs) in names {
        let rows = phases.iter().flat_map(|p| p["device"]["ops"].as_array().expect("ops"));
        let rows = rows.filter(|r| r["ops"] == op);
        let number = |v: &Value| v.as_f64().expect("a number");
        let (groups, ns) =
            rows.fold((0.0, 0.0), |s, r| (s.0 + number(&r["groups"]), s.1 + number(&r["device_ns"])));
        let (n, us) = *own.get(theirs).unwrap_or_else(|| panic!("{op}: {own:?}"));
        println!(
            "{op}: {groups} groups of {:.1} us, by the engine {n} of {:.1} us",
            ns / groups / 1e3,
            us / n
        );
        assert_eq!(groups, n, "{op}");
        // The engine's time begins with the barrier behind the op before, and ends with its own timestamp.
        assert!(ns / 1e3 <= us * 1.001, "{op}: {} us here, {us} there", ns / 1e3);
    }
}

#[test]
fn the_layer_changes_no_result() {
    let _turn = live!(beside others);
    let (engine, device, layer) = match bed("vulkan-v0.5.0") {
        Ok(bed) => bed,
        Err(why) => skip!("{why}"),
    };
    let dir = tempfile::tempdir().expect("a directory");
    let logits = |name: &str, with: bool| {
        let file = dir.path().join(name);
        let ids = ["--ids", "5,9,2,7", "--logits", file.to_str().expect("a path")];
        let (path, loaded) =
            (format!("VK_ADD_LAYER_PATH={}", layer.display()), "VK_INSTANCE_LAYERS=VK_LAYER_PROFINFER_gpu");
        let more: &[&str] = if with { &[&path, loaded] } else { &[] };
        let command = command(&engine, &device, more, &ids);
        let out = Command::new(&command[0]).args(&command[1..]).output().expect("it runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        (std::fs::read(&file).expect("logits"), out.stdout)
    };
    assert_eq!(logits("without", false), logits("with", true));
}
