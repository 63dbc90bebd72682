//! `profinfer doctor` on this machine, on the fixtures of tests/fixtures, and on real engines.
//!
//! `PROFINFER_ENGINES` is a directory with unpacked engine packages (tests/engines/fetch.sh). Tests whose
//! requirements are missing are skipped with a message; with `CI=true` or `PROFINFER_REQUIRE=1` they fail.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::Value;

use crate::common::program;
use crate::common::refuse;
use crate::common::skips::skipped as skip;

const PROGRAM: &str = env!("CARGO_BIN_EXE_profinfer");

fn is_root() -> bool {
    // SAFETY: takes no arguments and returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// One doctor measures at a time: its probes are in its own file, which all instances share.
fn alone() -> MutexGuard<'static, ()> {
    static MEASURES: Mutex<()> = Mutex::new(());
    MEASURES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn doctor(args: &[&str]) -> Output {
    let _alone = alone();
    Command::new(PROGRAM).arg("doctor").args(args).output().expect("profinfer starts")
}

fn text(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).expect("UTF-8")
}

fn last_line(o: &Output) -> String {
    text(o).lines().last().unwrap_or_default().to_owned()
}

fn line_before(o: &Output) -> String {
    text(o).lines().rev().nth(1).unwrap_or_default().to_owned()
}

fn json(args: &[&str]) -> (Value, Option<i32>) {
    let o = doctor(&[&["--json"], args].concat());
    (serde_json::from_slice(&o.stdout).expect("JSON"), o.status.code())
}

/// Directory with the built fixtures; `None` (with a message) if they cannot be built.
fn fixture(name: &str) -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let built = BUILT.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doctor-fixtures");
        let script = root.join("tests/fixtures/build.sh");
        let wanted = ["modern", "local-forward", "old-stripped", "static-stripped", "dead-barrier"];
        let built = Command::new("bash").arg(script).arg(&out).args(wanted).stdout(Stdio::null()).status();
        built.is_ok_and(|s| s.success()).then_some(out)
    });
    let program = built.as_ref().map(|dir| dir.join(name).join("fakellama")).filter(|p| p.exists());
    if program.is_none() {
        skip(&format!("fixture {name} was not built (no compiler?)"));
    }
    program
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("UTF-8 path")
}

/// The first rung of a role of the target's first engine.
fn expected<'v>(v: &'v Value, role: &str) -> &'v Value {
    let roles = v["target"]["engines"][0]["roles"].as_array().expect("roles");
    let role = roles.iter().find(|r| r["role"] == role).expect("the role");
    &role["rungs"][0]
}

/// Offsets of the entry probes on a symbol, one for each distinct choice.
fn offsets(rung: &Value, symbol: &str) -> Vec<(u64, String)> {
    let points = rung["points"].as_array().expect("points");
    let mut out: Vec<(u64, String)> = points
        .iter()
        .filter(|p| p["symbol"] == symbol)
        .map(|p| {
            let text = |v: &Value| v.as_str().expect("text").to_owned();
            (p["entry"]["offset"].as_u64().expect("offset"), text(&p["entry"]["cost"]))
        })
        .collect();
    out.sort();
    out.dedup();
    out
}

#[test]
fn what_the_process_may_use_of_the_machine_is_told() {
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        return skip("one CPU: no mask is smaller");
    }
    let o = Command::new("taskset")
        .args(["-c", "0", PROGRAM, "doctor", "--no-probe"])
        .output()
        .expect("taskset starts");
    let said = text(&o);
    assert!(said.lines().any(|l| l.starts_with("Limits: CPUs 0 of 0-")), "{said}");
}

#[test]
fn root_is_fit_and_a_hit_is_measured() {
    if !is_root() {
        return skip("needs root");
    }
    let o = doctor(&[]);
    assert_eq!(o.status.code(), Some(0), "{}", text(&o));
    assert!(last_line(&o).starts_with("fit: "), "{}", last_line(&o));
    assert!(!text(&o).contains('\x1b') && o.stderr.is_empty(), "plain text in a pipe, and libbpf is silent");
    let (v, code) = json(&[]);
    assert_eq!((code, &v["fit"], &v["reason"]), (Some(0), &Value::Bool(true), &Value::String(String::new())));
    let states = ["privileges", "kernel", "programs"].map(|part| v[part].as_array().expect("checks").clone());
    assert!(states.iter().flatten().all(|c| c["state"] != "missing"));
    assert!(v["hit"]["emulated_ns"].as_u64().is_some_and(|ns| ns > 0));
    assert!(v["hit"]["single_stepped_ns"].as_u64().is_some_and(|ns| ns > 0));
}

#[test]
fn without_probes_nothing_is_measured() {
    let (v, _) = json(&["--no-probe"]);
    assert!(v["hit"].is_null());
    let kernel = v["kernel"].as_array().expect("checks");
    let uprobe = kernel.iter().find(|c| c["id"] == "uprobe").expect("a line about probes");
    assert_eq!(uprobe["state"], "skipped");
    let energy = kernel.iter().find(|c| c["id"] == "energy").expect("a line about energy");
    let (state, detail) = (energy["state"].as_str(), energy["detail"].as_str().expect("a text"));
    let none = detail.starts_with("none, so joules per token are unknown");
    assert_eq!(state, Some(if none { "optional" } else { "ok" }), "{detail}");
    assert!(none || detail.contains("measured"), "{detail}");
}

/// A world-executable copy of the program, and the command to run it.
fn as_other(how: &[&str]) -> Option<(tempfile::TempDir, Command)> {
    if !is_root() || !Command::new("setpriv").arg("--version").output().is_ok_and(|o| o.status.success()) {
        skip("needs root and setpriv");
        return None;
    }
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("opened");
    let copy = dir.path().join("profinfer");
    program::copy(PROGRAM, &copy);
    let mut command = Command::new("setpriv");
    command.args(how).arg(copy);
    Some((dir, command))
}

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

#[test]
fn an_unprivileged_user_hears_which_capability_is_missing() {
    let Some((_dir, mut command)) = as_other(&NOBODY) else { return };
    // A command can be recorded from inside; the line before says what the kernel's probes need.
    let o = command.arg("doctor").output().expect("runs");
    assert_eq!(o.status.code(), Some(0), "{}", text(&o));
    assert!(last_line(&o).starts_with("fit: ops of a command can be recorded"), "{}", text(&o));
    let last = line_before(&o);
    assert!(last.contains("without CAP_BPF and CAP_PERFMON; "), "{last}");
    assert!(last.contains("setcap cap_bpf,cap_perfmon"), "{last}");
    // A running process cannot.
    let running = std::process::id().to_string();
    let o = command.args(["-p", &running]).output().expect("runs");
    assert_eq!(o.status.code(), Some(1));
    assert!(last_line(&o).starts_with("not fit: without CAP_BPF and CAP_PERFMON; "), "{}", text(&o));
    assert!(o.stderr.is_empty(), "libbpf is silent: {}", String::from_utf8_lossy(&o.stderr));
    // With file capabilities, whoever may execute it can record all users: first a group, then everybody.
    let steps = ["groupadd -f profinfer", "chgrp profinfer", "chmod 0750", "setcap cap_bpf"]
        .map(|step| last.find(step).unwrap_or_else(|| panic!("{step} in {last}")));
    assert!(steps.is_sorted(), "chgrp takes capabilities away: setcap is last: {last}");
    assert!(last.contains("may read and probe the processes of all users"), "{last}");
}

#[test]
fn capabilities_in_a_file_that_all_may_execute_are_told() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let Some((dir, mut command)) = as_other(&NOBODY) else { return };
    let copy = dir.path().join("profinfer");
    let give = |mode| {
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(mode)).expect("mode");
        // CAP_NET_BIND_SERVICE, inheritable only (struct vfs_cap_data, revision 2): it grants nothing.
        let value: [u32; 5] = [0x0200_0000, 0, 1 << 10, 0, 0];
        let value: Vec<u8> = value.iter().flat_map(|n| n.to_le_bytes()).collect();
        let path = std::ffi::CString::new(copy.to_str().expect("a path")).expect("a path");
        // SAFETY: both strings end with a zero byte, and the length is the value's.
        let set = unsafe {
            libc::setxattr(
                path.as_ptr(),
                c"security.capability".as_ptr(),
                value.as_ptr().cast(),
                value.len(),
                0,
            )
        };
        set == 0
    };
    chown(&copy, Some(0), Some(65534)).expect("group");
    if !give(0o755) {
        return skip("this file system keeps no capabilities");
    }
    let told = text(&command.args(["doctor", "--no-probe"]).output().expect("runs"));
    assert!(told.contains("any user may execute it"), "{told}");
    assert!(told.contains("chmod 0750"), "{told}");
    assert!(give(0o750));
    let told = text(&command.output().expect("runs"));
    assert!(!told.contains("any user may execute it"), "{told}");
}

#[test]
fn a_single_missing_capability_is_named_alone() {
    let Some((_dir, mut command)) = as_other(&["--bounding-set=-cap_38,-sys_admin"]) else { return };
    let o = command.arg("doctor").output().expect("runs");
    assert_eq!(o.status.code(), Some(0), "{}", text(&o));
    let last = line_before(&o);
    assert!(last.contains("without CAP_PERFMON;"), "{last}");
}

/// Runs the program with bpf() failing with `errno`, and perf_event_open() too if `perf` is set.
fn refused(errno: i32, perf: bool, args: &[&str]) -> Output {
    let _alone = alone();
    let mut calls = vec![libc::SYS_bpf];
    calls.extend(perf.then_some(libc::SYS_perf_event_open));
    let mut command = Command::new(PROGRAM);
    refuse::refuse(command.args(args), errno, &calls);
    command.output().expect("runs")
}

#[test]
fn a_kernel_without_bpf_is_told_from_one_that_forbids_it() {
    if !is_root() {
        return skip("needs root");
    }
    for (errno, want) in [(libc::ENOSYS, "no bpf()"), (libc::EPERM, "seccomp filter forbids it")] {
        let o = refused(errno, true, &["doctor"]);
        assert_eq!(o.status.code(), Some(0), "{}", text(&o));
        assert!(line_before(&o).contains(want), "{}", text(&o));
        assert!(o.stderr.is_empty());
        let Some(engine) = fixture("modern") else { return };
        let o = refused(errno, true, &["record", "-o", "-", "--exe", shown(&engine)]);
        let said = String::from_utf8_lossy(&o.stderr);
        // A recorder of another test may just have ended.
        let own: Vec<&str> =
            said.lines().filter(|line| !line.contains("probes left by a killed recorder")).collect();
        assert!(own.len() == 1 && own[0].contains(want), "{said}");
    }
}

#[test]
fn without_bpf_perf_events_do() {
    if !is_root() {
        return skip("needs root");
    }
    for errno in [libc::ENOSYS, libc::EPERM] {
        let o = refused(errno, false, &["doctor"]);
        assert_eq!(o.status.code(), Some(0), "{}", text(&o));
        let said = text(&o);
        assert!(last_line(&o).starts_with("fit by perf events, without BPF: "), "{said}");
        assert!(said.contains("without BPF: sources and strides") && !said.contains("missing"), "{said}");
        let o = refused(errno, false, &["doctor", "--json"]);
        let v: Value = serde_json::from_slice(&o.stdout).expect("JSON");
        assert_eq!((&v["fit"], v["source"].as_str()), (&Value::Bool(true), Some("perf")));
        assert!(v["hit"]["emulated_ns"].as_u64().is_some_and(|ns| ns > 0), "{v}");
    }
    let (v, _) = json(&["--no-probe"]);
    assert_eq!((v["source"].as_str(), v["lacks"].as_str()), (Some("bpf"), Some("")));
}

#[test]
fn record_says_the_same_in_one_line() {
    let Some(engine) = fixture("modern") else { return };
    let Some((dir, mut command)) = as_other(&NOBODY) else { return };
    // The build directory may be closed to others.
    let lib = engine.with_file_name("libfakeggml.so");
    let copy = dir.path().join("libfakeggml.so");
    std::fs::copy(lib, &copy).expect("copied");
    let o = command.args(["record", "-o", "-", "--exe"]).arg(copy).output().expect("runs");
    assert_eq!(o.status.code(), Some(1));
    let said = String::from_utf8_lossy(&o.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("CAP_BPF and CAP_PERFMON are missing"), "{said}");
}

#[test]
fn targets_without_an_engine_are_refused_with_the_next_step() {
    for (args, want) in [
        (["/bin/true"].as_slice(), "no GGML in"),
        (&["/nonexistent"], "/nonexistent"),
        (&["/etc/hostname"], "no GGML in"),
        (&["-p", "4194999"], "does not exist"),
    ] {
        let o = doctor(&[args, &["--no-probe"]].concat());
        assert_eq!(o.status.code(), Some(1), "{args:?}");
        if is_root() {
            assert!(
                last_line(&o).starts_with("not fit: ") && last_line(&o).contains(want),
                "{}",
                last_line(&o)
            );
            assert_eq!(text(&o).matches("no GGML in").count(), last_line(&o).matches("no GGML in").count());
        }
    }
    assert_eq!(doctor(&["-p", "1", "/bin/true"]).status.code(), Some(2));
    assert_eq!(doctor(&["-p", "x"]).status.code(), Some(2));
}

#[test]
fn a_static_stripped_program_needs_a_build_with_symbols() {
    let Some(program) = fixture("static-stripped") else { return };
    let o = doctor(&["--no-probe", shown(&program)]);
    assert_eq!(o.status.code(), Some(1));
    assert!(text(&o).contains("use a build with symbols"), "{}", text(&o));
}

#[test]
fn an_old_stripped_engine_leaves_the_graph_level() {
    let Some(program) = fixture("old-stripped") else { return };
    let (v, code) = json(&["--no-probe", shown(&program)]);
    assert_eq!(code, Some(1));
    assert!(expected(&v, "op").is_null());
    assert_eq!(expected(&v, "cpu-graph")["name"], "ggml_graph_compute");
    let limits = v["target"]["engines"][0]["limits"].to_string();
    assert!(limits.contains("do not run strip") && limits.contains("--level graph"), "{limits}");
}

#[test]
fn fixtures_stand_on_their_rungs() {
    for (name, rung) in
        [("modern", "ggml_cpu_extra_compute_forward"), ("local-forward", "ggml_compute_forward")]
    {
        let Some(program) = fixture(name) else { continue };
        let (v, code) = json(&["--no-probe", shown(&program)]);
        assert_eq!(expected(&v, "op")["name"], rung, "{name}");
        assert_eq!(v["target"]["engines"][0]["tables"]["ops"], 101);
        // Without privilege, a command can be recorded from inside.
        assert_eq!(code, Some(0), "{}", v["reason"]);
    }
}

#[test]
fn a_running_engine_is_found_and_left_alone() {
    if !is_root() {
        return skip("needs root");
    }
    let Some(program) = fixture("modern") else { return };
    let mut child = Command::new(&program)
        .args(["--hold", "60"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the fixture starts");
    let pid = child.id().to_string();
    // The library is mapped before main begins, but not immediately.
    let mapped =
        || std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|m| m.contains("libfakeggml"));
    while !mapped() && matches!(child.try_wait(), Ok(None)) {
        std::thread::yield_now();
    }
    let o = doctor(&["-p", &pid]);
    let still_there = matches!(child.try_wait(), Ok(None));
    child.kill().expect("killed");
    child.wait().expect("reaped");
    assert_eq!(o.status.code(), Some(0), "{}", text(&o));
    assert!(last_line(&o).ends_with(&format!("profinfer record -p {pid}")), "{}", last_line(&o));
    assert!(text(&o).contains("at the target's op probe") && still_there);
}

fn engine(build: &str, file: &str) -> Option<PathBuf> {
    let Some(dir) = std::env::var_os("PROFINFER_ENGINES") else {
        skip("PROFINFER_ENGINES is not set");
        return None;
    };
    let path = PathBuf::from(dir).join(build).join(file);
    if !path.exists() {
        skip(&format!("no {build} in PROFINFER_ENGINES"));
        return None;
    }
    Some(path)
}

fn emulated(offsets: &[u64]) -> Vec<(u64, String)> {
    offsets.iter().map(|o| (*o, "emulated".to_owned())).collect()
}

#[test]
fn a_release_of_2024_is_probed_in_its_local_function() {
    let Some(path) = engine("b3889", "libllama.so") else { return };
    let (v, _) = json(&["--no-probe", shown(&path)]);
    let op = expected(&v, "op");
    assert_eq!(op["name"], "ggml_compute_forward");
    assert_eq!(offsets(op, "ggml_compute_forward"), emulated(&[0]));
    assert_eq!(offsets(expected(&v, "cpu-graph"), "ggml_graph_compute"), emulated(&[4]));
    assert_eq!(offsets(expected(&v, "token"), "llama_decode"), emulated(&[4]));
    assert_eq!(v["target"]["engines"][0]["tables"]["ops"], 81);
}

#[test]
fn a_release_of_2026_is_probed_in_the_extra_and_fused_functions() {
    let Some(path) = engine("v0.5.0", "libllama.v0.5.0.so") else { return };
    let (v, _) = json(&["--no-probe", shown(&path)]);
    let op = expected(&v, "op");
    assert_eq!(op["name"], "ggml_cpu_extra_compute_forward");
    assert_eq!(offsets(op, "ggml_cpu_extra_compute_forward"), emulated(&[4]));
    let fused = offsets(op, "ggml_compute_forward_rms_norm_mul_fused");
    // Variants without wide vectors need no realigned stack, so they begin with the push.
    assert_eq!(fused, emulated(&[4, 17, 20]));
    assert_eq!(offsets(expected(&v, "cpu-graph"), "ggml_graph_compute"), emulated(&[4]));
    assert_eq!(offsets(expected(&v, "split"), "ggml_backend_graph_compute_async"), emulated(&[7]));
}

#[test]
fn an_extension_module_without_cet_is_probed_at_the_entry() {
    let Some(path) = engine("b11549", "xllamacpp.abi3.so") else { return };
    let (v, _) = json(&["--no-probe", shown(&path)]);
    let op = expected(&v, "op");
    assert_eq!(offsets(op, "ggml_cpu_extra_compute_forward"), emulated(&[0]));
    assert_eq!(offsets(op, "ggml_compute_forward_rms_norm_mul_fused"), emulated(&[16]));
    assert_eq!(offsets(expected(&v, "token"), "llama_process"), emulated(&[2]));
    assert_eq!(offsets(expected(&v, "op-end"), "ggml_barrier"), emulated(&[7]));
    let modules = v["target"]["engines"][0]["modules"].as_array().expect("modules");
    assert_eq!(modules[0]["roles"], serde_json::json!(["llama", "base", "cpu"]));
}

#[test]
fn a_slow_down_is_predicted_for_each_level() {
    let (v, _) = json(&["--no-probe", "--predict", "10tok/s", "--ops", "400"]);
    let levels = v["prediction"]["levels"].as_array().expect("levels");
    let hits: Vec<f64> = levels.iter().map(|l| l["hits"].as_f64().expect("hits")).collect();
    assert_eq!(hits, [2.0, 8.0, 408.0, 808.0]);
    for level in levels {
        // Nothing was measured, and the output says so instead of giving a figure.
        assert!(level["here"].is_null(), "{level}");
        let share = |end: &str| level["boards"][end].as_f64().expect("share");
        assert!(share("least") > 0.0 && share("most") < 0.02, "{level}");
    }
    assert!(!v["prediction"]["assumptions"].as_array().expect("assumptions").is_empty());
    let o = doctor(&["--no-probe", "--predict", "10", "--ops", "400"]);
    assert!(text(&o).contains("op, with barriers") && text(&o).contains("not measured"), "{}", text(&o));
}

#[test]
fn a_slow_down_is_predicted_from_a_recording() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/small.pfi");
    let (v, _) = json(&["--no-probe", "--predict", "10", "--trace", trace]);
    assert!(v["prediction"]["hits"]["ops"].as_f64().expect("ops") > 0.0, "{}", v["prediction"]);
}

#[test]
fn what_cannot_be_predicted_from_is_said() {
    let refused = |args: &[&str], code: i32, part: &str| {
        let o = doctor(&[&["--no-probe"], args].concat());
        let told = String::from_utf8_lossy(&o.stderr).into_owned();
        assert_eq!(o.status.code(), Some(code), "{args:?}: {told}");
        assert!(told.contains(part), "{args:?}: {told}");
    };
    for speed in ["0", "-1", "nan", "inf", "10m/s", ""] {
        refused(&[&format!("--predict={speed}"), "--ops", "4"], 2, "tokens per second");
    }
    refused(&["--predict", "10"], 2, "--ops");
    refused(&["--ops", "10"], 2, "--predict");
    refused(&["--predict", "10", "--ops", "0"], 2, "--ops");
    refused(&["--predict", "10", "--trace", "/nowhere.pfi"], 1, "/nowhere.pfi");
    refused(&["--predict", "10", "--trace", file!()], 1, "doctor.rs");
}

#[test]
fn a_file_of_another_machine_would_fit_there() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doctor-other");
    let (other, wanted) = match std::env::consts::ARCH {
        "x86_64" => ("aarch64", ["stripped", "old-stripped"]),
        _ => return skip("no other machine's compiler is known here"),
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/build.sh");
    let built = Command::new("bash")
        .arg(script)
        .arg(&out)
        .args(wanted)
        .env("ARCH", other)
        .stdout(Stdio::null())
        .status();
    let program = |name: &str| out.join(name).join("fakellama");
    if !built.is_ok_and(|s| s.success()) || !program("stripped").exists() {
        return skip("no compiler for another machine");
    }
    for path in [program("stripped"), out.join("stripped")] {
        let o = doctor(&["--no-probe", shown(&path)]);
        assert_eq!(o.status.code(), Some(0), "{}", text(&o));
        assert!(last_line(&o).starts_with("would fit on aarch64: "), "{}", last_line(&o));
        let (v, code) = json(&["--no-probe", shown(&path)]);
        assert_eq!((code, &v["fit"], &v["fits_on"]), (Some(0), &Value::Bool(false), &Value::from("aarch64")));
    }
    // Cannot be recorded on any machine.
    let o = doctor(&["--no-probe", shown(&program("old-stripped"))]);
    assert_eq!(o.status.code(), Some(1), "{}", text(&o));
    assert!(last_line(&o).starts_with("not fit: "), "{}", last_line(&o));
    assert!(json(&["--no-probe", shown(&program("old-stripped"))]).0["fits_on"].is_null());
}

#[test]
fn a_root_that_the_file_is_not_in_is_refused() {
    let o = doctor(&["--no-probe", "--sysroot", "/proc", "/bin/sh"]);
    assert_eq!(o.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&o.stderr).contains("is not inside /proc"));
}
