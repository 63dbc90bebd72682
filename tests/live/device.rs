//! Recordings of packaged llama.cpp builds whose Vulkan backend computes on a software device (Mesa's lavapipe): a
//! call ends when the device has finished, as shown by the program's own clock and the engine's own figures for the
//! same run.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::Command;

use analysis::load::Loaded;
use common::run::{Run, profinfer, record};
use common::{driver, engine, live, model, skip};
use ggml::backend_guid;
use pfi::record::{Availability, Detail, Device};
use serde_json::Value;

const DECODES: usize = 12;

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
    let model = model("tiny", "q4_0");
    let vars = [("VK_DRIVER_FILES", icd.as_os_str()), ("VK_ICD_FILENAMES", icd.as_os_str())];
    let command = |c: &mut Command| {
        c.envs(vars).env("GGML_VK_VISIBLE_DEVICES", "0");
    };
    let decodes = DECODES.to_string();
    let (driver, lib, model) = (driver(), lib.display().to_string(), model.display().to_string());
    let driver = driver.to_str().expect("a path");
    let work = ["--engine", &lib, "--model", &model, "-p", "16", "-t", "1", "--gpu-layers", layers, "--json"];
    // The first run compiles the shaders, and Mesa caches them.
    let mut warm = Command::new(driver);
    command(warm.args(work).args(["-n", "1"]));
    assert!(warm.output().expect("the driver runs").status.success());
    let mut env = vec!["env".to_owned(), "GGML_VK_VISIBLE_DEVICES=0".to_owned()];
    env.extend(vars.map(|(name, file)| format!("{name}={}", file.display())));
    let env: Vec<&str> = env.iter().map(String::as_str).collect();
    record(&[args, &["--"], &env, &[driver], &work, &["-n", &decodes]].concat())
}

fn report(run: &Run) -> Value {
    let out = profinfer().args(["report", "--json"]).arg(&run.trace).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
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

/// Both figures of one run agree to a hundredth, however fast it was.
fn same(what: &str, ours: &Value, truth: &Value) {
    let (ours, truth) = (ours.as_f64().unwrap_or(0.0), truth.as_f64().unwrap_or(0.0));
    assert!((ours / truth - 1.0).abs() < 0.01, "{what}: {ours} here, {truth} there");
}

fn ends(name: &str) {
    let _turn = live!();
    let (lib, icd) = match engine(name).and_then(|lib| Ok((lib, vulkan()?))) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    for level in ["graph", "token"] {
        let run = run(&lib, &icd, &["--level", level], "99");
        let (said, report, seen) = (run.said(), report(&run), run.seen());
        seen.books_close();
        println!("{name}, level {level}: {} tok/s", said["decode"]["tok_s"]);
        let calls = DECODES as u64;
        let decode = phase(&report, "decode");
        assert_eq!((decode["calls"].as_u64(), decode["tokens"].as_u64()), (Some(calls), Some(calls)));
        same("decode, by the engine", &decode["tokens_per_s"], &said["perf"]["decode_tok_s"]);
        same("decode, by the driver", &decode["tokens_per_s"], &said["decode"]["tok_s"]);
        let prefill = phase(&report, "prefill")["in_call_ns"].as_f64().unwrap_or(0.0) / 1e6;
        same("prefill", &prefill.into(), &said["prefill"]["wall_ms"]);
        let ttft = report["ttft"]["mean_ns"].as_f64().unwrap_or(0.0) / 1e6;
        same("first token", &ttft.into(), &said["prefill"]["wall_ms"]);
        assert!(seen.all.tokens.iter().all(|t| matches!(t.device, Device::Busy(_)) && !t.cut));
        let feature = seen.all.causes.features.iter().find(|f| f.name == "device").expect("told");
        assert_eq!(feature.state, Availability::Whole, "{}", feature.why);
        if level == "graph" {
            assert_eq!(on_device(&seen.all), 1 + DECODES);
            // The queue takes the work, and the bar lasts until it is done: inside the call or, in newer versions,
            // after it.
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

#[test]
fn a_service_level_goes_by_the_device() {
    let _turn = live!();
    let (lib, icd) = match engine("vulkan-v0.5.0").and_then(|lib| Ok((lib, vulkan()?))) {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    // Calls return after some milliseconds, as if 50 tokens/s were easy; the device takes far longer.
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
        budget.why.contains("at least 50 tokens/s") && !budget.why.contains("not observed"),
        "{}",
        budget.why
    );
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
