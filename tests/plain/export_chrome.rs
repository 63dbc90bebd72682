//! `profinfer export --chrome`: JSON that nests, with the totals of `profinfer report`.

use crate::synth_trace;

use std::process::{Command, Stdio};

use serde_json::Value;
use synth_trace::*;

fn profinfer(args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_profinfer")).args(args).output().unwrap()
}

fn trace() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.cpu = |graph, p, ith| (p % 5 != 4).then_some(ith + ((graph + p as u64) % 3) as u16);
    s.call(4, |p, t| 2000 + 10 * p as u64 + 5 * u64::from(t));
    for i in 0..3 {
        s.call(1, |p, t| 1000 + 1037 * p as u64 + 5 * u64::from(t) + i);
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

/// Microseconds with three decimals, as ns.
fn ns(ts: &Value) -> u64 {
    let text = ts.to_string();
    let (us, ns) = text.split_once('.').unwrap();
    us.parse::<u64>().unwrap() * 1000 + format!("{ns:0<3}").parse::<u64>().unwrap()
}

#[test]
fn totals_are_those_of_the_report() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pfi").to_str().unwrap().to_string();
    std::fs::write(&file, trace()).unwrap();
    let out = profinfer(&["export", "--chrome", "-", &file]);
    assert!(out.status.success() && out.stderr.is_empty());
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    let report: Value = serde_json::from_slice(&profinfer(&["report", "--json", &file]).stdout).unwrap();
    for ith in 0..2u64 {
        let (mut open, mut ops, mut waits) = (Vec::new(), 0, 0);
        let name: Value = format!("ggml {ith}").into();
        let events = all["traceEvents"].as_array().unwrap();
        for e in events.iter().filter(|e| e["tid"] == u64::from(TID) + ith) {
            match e["ph"].as_str().unwrap() {
                "B" => open.push((ns(&e["ts"]), e["cat"].as_str().unwrap(), &e["name"])),
                "E" => {
                    let (from, cat, name) = open.pop().unwrap();
                    assert_eq!(&e["name"], name, "speedscope finds the beginning by it");
                    let dur = ns(&e["ts"]).checked_sub(from).unwrap();
                    match cat {
                        "op" => ops += dur,
                        "barrier" => waits += dur,
                        _ => {}
                    }
                }
                _ if e["name"] == "thread_sort_index" => assert_eq!(e["args"]["sort_index"], ith),
                _ => assert_eq!((&e["name"], &e["args"]["name"]), (&"thread_name".into(), &name)),
            }
        }
        assert!(open.is_empty());
        let of = |field: &str| -> u64 {
            let rows =
                report["phases"].as_array().unwrap().iter().flat_map(|p| p["by_thread"].as_array().unwrap());
            rows.filter(|r| r["ith"] == ith).map(|r| r[field].as_u64().unwrap()).sum()
        };
        assert_eq!((ops, waits), (of("op_ns"), of("wait_ns")));
    }
    let events = all["traceEvents"].as_array().unwrap();
    let op = &events.iter().find(|e| e["name"] == "MUL_MAT Kcur-1").unwrap()["args"];
    assert_eq!((&op["op"], &op["tensor"], &op["layer"]), (&"MUL_MAT".into(), &"Kcur-1".into(), &1.into()));
    let phases = report["phases"].as_array().unwrap().iter();
    let rows = phases.flat_map(|p| p["by_cpu"]["cpus"].as_array().unwrap());
    // Without those of which it is not known.
    let rows: Vec<&Value> = rows.filter(|r| r["cpu"].is_u64()).collect();
    assert!(!rows.is_empty());
    for row in &rows {
        let on = events.iter().filter(|e| e["ph"] == "B" && e["args"]["cpu"] == row["cpu"]).count();
        let of = rows.iter().filter(|r| r["cpu"] == row["cpu"]).map(|r| r["ops"].as_u64().unwrap());
        assert_eq!(on as u64, of.sum::<u64>(), "ops on CPU {}", row["cpu"]);
    }
    assert_eq!((&op["types"], &op["token"]), (&"f32[32,4] = q4_0[64,32], f32[64,4]".into(), &0.into()));
    assert!(op["bytes"].is_u64() && op["flops"].is_u64() && op["mean_gb_per_s"].is_f64());
}

/// A complete small run, in both formats, byte for byte.
#[test]
fn formats_do_not_change() {
    let mut s = Synth::new(Vec::new(), Spec { layers: 1, ..Spec::default() });
    s.call(1, |p, t| 1000 + 10 * p as u64 + 5 * u64::from(t));
    causes::one_of_each(&mut s);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pfi").to_str().unwrap().to_string();
    std::fs::write(&file, s.enc.finish(&footer("target exited")).unwrap()).unwrap();
    for (format, name) in [("--chrome", "timeline.json"), ("--perfetto", "timeline.pftrace")] {
        let out = profinfer(&["export", format, "-", &file]);
        assert!(out.status.success());
        let golden =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/snapshots").join(name);
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&golden, &out.stdout).unwrap();
        }
        let same = std::fs::read(&golden).unwrap() == out.stdout;
        assert!(same, "{name} changed; if it should, run again with UPDATE_SNAPSHOTS=1");
    }
}

/// Names chosen by a target are data.
#[test]
fn odd_names_stay_json() {
    use pfi::record::*;
    let cfg = pfi::EncoderConfig::default();
    let mut e = pfi::Encoder::new(Vec::new(), cfg, &header(true)).unwrap();
    let odd = "a\"b\\c\u{1b}[31m</script>\n\u{2028}é";
    e.process(&Process { pid: PID, engine: 0, exe: odd, cmdline: odd }).unwrap();
    let t = ORIGIN as i64;
    e.phase_call(&PhaseCall { what: odd, pid: PID, tid: TID, t, dur: 5, cut: false }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pfi").to_str().unwrap().to_string();
    std::fs::write(&file, e.finish(&footer("signal")).unwrap()).unwrap();
    let out = profinfer(&["export", "--chrome", "-", &file]);
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    let events = all["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|e| e["name"] == odd && e["ph"] == "B"), "{all}");
}

/// A closed pipe ends the output: no error, no message.
#[test]
fn a_broken_pipe_ends_quietly() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pfi").to_str().unwrap().to_string();
    std::fs::write(&file, trace()).unwrap();
    for format in ["--chrome", "--perfetto"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut c = Command::new(env!("CARGO_BIN_EXE_profinfer"));
        let out =
            c.args(["export", format, "-", &file]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((out.status.code(), out.stderr.as_slice()), (Some(0), &b""[..]));
    }
}
