//! A run's timeline in Perfetto format, decoded with the definitions that Perfetto publishes.
#![allow(dead_code, reason = "each test binary uses a part")]

use super::python;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The output of a script in tests/perfetto for Perfetto traces; `None` if they cannot be decoded here.
pub fn script(name: &str, traces: &[&Path]) -> Option<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/perfetto").join(name);
    let mut command = Command::new("python3");
    python::json(
        command
            .env("PYTHONPATH", python::package("perfetto"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg(script)
            .args(traces),
    )
}

/// The contents of a Perfetto trace.
pub fn decoded(trace: &Path) -> Option<Value> {
    script("decode.py", &[trace])
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub fn profinfer(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_profinfer")).args(args).output().unwrap()
}

pub struct Files {
    _dir: tempfile::TempDir,
    pub trace: String,
    pub out: String,
}

pub fn files(bytes: &[u8]) -> Files {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (trace, out) = (at("run.pfi"), at("run.pftrace"));
    std::fs::write(&trace, bytes).unwrap();
    Files { _dir: dir, trace, out }
}

impl Files {
    /// Exports with these flags and decodes the result.
    pub fn export(&self, flags: &[&str]) -> Option<Value> {
        let out = profinfer(&[&["export", "--force", "--perfetto", &self.out, &self.trace], flags].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert_eq!(text(&out.stderr), "");
        let all = decoded(Path::new(&self.out))?;
        assert_eq!(all["unknown"], 0);
        for track in all["tracks"].as_array().unwrap() {
            assert_eq!(track["nested"], true, "{track}");
        }
        Some(all)
    }

    pub fn report(&self) -> Value {
        serde_json::from_slice(&profinfer(&["report", "--json", &self.trace]).stdout).unwrap()
    }
}

pub fn track(all: &Value, tid: u64) -> &Value {
    all["tracks"].as_array().unwrap().iter().find(|t| t["tid"] == tid).unwrap()
}

/// Slices and ns of the names selected by `is`.
pub fn total(track: &Value, is: impl Fn(&str) -> bool) -> (u64, u64) {
    let totals = track["totals"].as_object().unwrap().iter().filter(|(name, _)| is(name));
    totals.fold((0, 0), |sum, (_, t)| (sum.0 + t[0].as_u64().unwrap(), sum.1 + t[1].as_u64().unwrap()))
}
