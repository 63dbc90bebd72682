//! `profinfer diagnose` of recordings that exist: its JSON, by its schema, and beside that of `report` and `advise`.

use crate::common::python;
use crate::synth_trace::{Spec, Synth, footer};

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn profinfer(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_profinfer")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn object(args: &[&str]) -> Value {
    let out = profinfer(args);
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", text(&out.stderr)))
}

/// Recordings of several kinds; of the first one there is advice.
fn recordings(dir: &Path) -> Vec<String> {
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let made = |spec: Spec| {
        let mut s = Synth::new(Vec::new(), spec);
        s.call(4, |p, t| 2000 + 10 * p as u64 + 5 * u64::from(t));
        (0..3).for_each(|i| s.call(1, |p, t| 1000 + 10 * p as u64 + 5 * u64::from(t) + i));
        s.enc.finish(&footer("target exited")).unwrap()
    };
    let whole = made(Spec::default());
    let cut = &whole[..whole.len() - 40];
    vec![
        write("run.pfi", &whole),
        write("cut.pfi", cut),
        write("foreign.pfi", &made(Spec { foreign: true, widths: false, ..Spec::default() })),
        write("experts.pfi", &made(Spec { experts: true, barrier: false, ..Spec::default() })),
        write("empty.pfi", &Synth::new(Vec::new(), Spec::default()).enc.finish(&footer("signal")).unwrap()),
    ]
}

#[test]
fn all_figures_are_those_of_the_other_views() {
    let dir = tempfile::tempdir().unwrap();
    for file in recordings(dir.path()) {
        let (all, report) = (object(&["diagnose", &file, "--json"]), object(&["report", &file, "--json"]));
        assert_eq!(all["verdict"], object(&["advise", &file, "--json"]), "{file}");
        assert_eq!(all["verdict"], report["verdict"], "{file}");
        assert_eq!(all["runs"], report["runs"], "{file}");
        for (name, value) in all["quality"].as_object().unwrap() {
            assert_eq!(*value, report["quality"][name], "{file}: {name}");
        }
        assert_eq!((&all["file"], &all["tool"]), (&file.as_str().into(), &env_version()), "{file}");
        assert_eq!(all["schema"], serde_json::json!({ "name": "profinfer.diagnosis", "version": 1 }));
        assert!(all.get("status").is_none(), "no command was started");
    }
}

fn env_version() -> Value {
    text(&profinfer(&["--version"]).stdout).trim().into()
}

#[test]
fn each_object_is_one_of_the_schema() {
    let dir = tempfile::tempdir().unwrap();
    let mut all: Vec<Value> =
        recordings(dir.path()).iter().map(|file| object(&["diagnose", file, "--json"])).collect();
    assert!(all[0]["verdict"]["advice"][0]["rule"].is_string(), "{}", all[0]);
    // What the schema must refuse.
    let good = all.len();
    for (at, wrong) in [
        ("/schema/version", Value::from(2)),
        ("/verdict/advice/0/rule", 7.into()),
        ("/quality/complete", Value::Null),
        ("/next/0/argv", Value::Array(Vec::new())),
        ("/verdict/limit/kind", "luck".into()),
    ] {
        let mut one = all[0].clone();
        *one.pointer_mut(at).unwrap_or_else(|| panic!("no {at}")) = wrong;
        all.push(one);
    }
    let Some(wrong) = wrong(&all) else { return };
    let of = |i: usize| wrong.iter().filter(|w| w.starts_with(&format!("{i}: "))).collect::<Vec<_>>();
    (0..good).for_each(|i| assert_eq!(of(i), Vec::<&String>::new()));
    (good..all.len()).for_each(|i| assert!(!of(i).is_empty(), "nothing is wrong with {}", all[i]));
}

/// What the schema refuses; None: it cannot be asked here.
fn wrong(all: &[Value]) -> Option<Vec<String>> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/mcp");
    let input = tempfile::tempfile().unwrap();
    serde_json::to_writer(&input, all).unwrap();
    std::io::Seek::rewind(&mut &input).unwrap();
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", python::package("mcp")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.arg(tests.join("validate.py")).arg(tests.join("../../docs/diagnosis.schema.json")).stdin(input);
    serde_json::from_value(python::json(&mut command)?).ok()
}

#[test]
fn the_schema_is_that_of_the_documentation() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/diagnosis.schema.json");
    assert_eq!(text(&profinfer(&["diagnose", "--schema"]).stdout), std::fs::read_to_string(file).unwrap());
}

#[test]
fn the_next_commands_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = &recordings(dir.path())[0];
    let all = object(&["diagnose", file, "--json"]);
    let next = all["next"].as_array().unwrap();
    assert_eq!(next.len(), 6, "{next:?}");
    std::fs::copy(file, dir.path().join("NEW.pfi")).unwrap();
    for command in next {
        let words: Vec<&str> =
            command["argv"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
        assert_eq!(words[0], "profinfer");
        let out = Command::new(env!("CARGO_BIN_EXE_profinfer"))
            .current_dir(&dir)
            .args(&words[1..])
            .output()
            .unwrap();
        // A promise that is not kept, of the same run, has a code of its own.
        let code = out.status.code();
        assert!(
            code == Some(0) || words.contains(&"--check") && code == Some(3),
            "{words:?}: {}",
            text(&out.stderr)
        );
    }
}

#[test]
fn the_text_is_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let file = &recordings(dir.path())[0];
    let [diagnosed, reported] = [["diagnose", file], ["report", file]].map(|args| profinfer(&args));
    assert!(diagnosed.status.success());
    assert_eq!(text(&diagnosed.stdout), text(&reported.stdout));
}

#[test]
fn a_pipe_is_diagnosed_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = &recordings(dir.path())[0];
    let mut child = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    child.args(["diagnose", "-", "--json"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&std::fs::read(file).unwrap()).unwrap();
    let all: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!((&all["file"], &all["next"]), (&"-".into(), &Value::Array(Vec::new())));
}

#[test]
fn a_recording_without_calls_is_an_error_after_its_object() {
    let dir = tempfile::tempdir().unwrap();
    let empty = recordings(dir.path()).pop().unwrap();
    let out = profinfer(&["diagnose", &empty, "--json"]);
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((out.status.code(), &all["verdict"]["limit"]), (Some(1), &Value::Null));
    assert!(text(&out.stderr).contains("no engine call was recorded"), "{}", text(&out.stderr));
}

#[test]
fn wrong_usage_is_said_before_anything_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let file = &recordings(dir.path())[0];
    let cases: [(&[&str], &str); 6] = [
        (&["diagnose", file, "-p", "1"], "-p/--pid is for a recording: not with FILE"),
        (&["diagnose", file, "--", "true"], "COMMAND is for a recording: not with FILE"),
        (&["diagnose", "--list", "--duration", "1s"], "--duration is for a recording: not with --list"),
        (&["diagnose", "-o", "-", "--", "true"], "standard output has the diagnosis"),
        (&["diagnose", "--duration", "soon", "--", "true"], "--duration"),
        (&["diagnose", "-p", "1", "--exe", "/bin/true"], "exe"),
    ];
    for (args, why) in cases {
        let out = profinfer(args);
        assert_eq!(
            (out.status.code(), &*text(&out.stdout)),
            (Some(2), ""),
            "{args:?}: {}",
            text(&out.stderr)
        );
        assert!(text(&out.stderr).contains(why), "{args:?}: {}", text(&out.stderr));
    }
}
