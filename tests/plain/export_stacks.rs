//! `profinfer export --folded | --pprof | --speedscope`: decoded independently (tests/flame.py), the stacks of all three
//! are the same, and their times are those of `profinfer report` to the nanosecond.

use crate::common::python;
use crate::common::timeline::{Files, files, profinfer, text};
use crate::synth_trace;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use pfi::record::*;
use serde_json::Value;
use synth_trace::*;

const FORMATS: [&str; 3] = ["pprof", "speedscope", "folded"];

fn run(spec: Spec) -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), spec);
    s.ubatches(&[4, 3], |p, t| 2000 + 10 * p as u64 + 5 * u64::from(t));
    for i in 0..5 {
        s.call(1, |p, t| 1000 + 1037 * p as u64 + 5 * u64::from(t) + i);
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

/// Exports in one of the formats and decodes the file.
fn decoded(files: &Files, format: &str, flags: &[&str]) -> Option<Value> {
    let flag = format!("--{format}");
    let out = profinfer(&[&["export", "--force", &flag, &files.out, &files.trace], flags].concat());
    assert_eq!((text(&out.stderr), out.status.code()), (String::new(), Some(0)));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/flame.py");
    python::json(Command::new("python3").arg(script).args([format, &files.out]))
}

/// ns by frames.
fn times(all: &Value, thread: Option<&str>) -> BTreeMap<Vec<String>, u64> {
    let mut out = BTreeMap::new();
    for s in all["stacks"].as_array().unwrap() {
        if thread.is_none_or(|t| s["thread"] == t) && s["ns"] != 0 {
            let frames = s["frames"].as_array().unwrap().iter().map(|f| f.as_str().unwrap().to_string());
            *out.entry(frames.collect()).or_insert(0) += s["ns"].as_u64().unwrap();
        }
    }
    out
}

/// Sum of the stacks selected by `is`.
fn sum(times: &BTreeMap<Vec<String>, u64>, is: impl Fn(&[String]) -> bool) -> u64 {
    times.iter().filter(|(frames, _)| is(frames)).map(|(_, ns)| ns).sum()
}

#[test]
fn sums_are_those_of_the_report() {
    for (barrier, threads, experts) in [(true, 2, false), (false, 3, false), (true, 1, true)] {
        let files = files(&run(Spec { barrier, threads, experts, ..Spec::default() }));
        let report = files.report();
        for format in FORMATS {
            let Some(all) = decoded(&files, format, &[]) else { return };
            let times = times(&all, None);
            for phase in report["phases"].as_array().unwrap() {
                let name = phase["phase"].as_str().unwrap();
                let of_phase = |f: &[String]| f[0] == "llama-cli" && f[1] == name;
                assert_eq!(sum(&times, of_phase), phase["graph_ns"].as_u64().unwrap(), "{format} {name}");
                for row in phase["by_name"].as_array().unwrap() {
                    // Two spaces separate op and tensor in the report.
                    let op = row["name"].as_str().unwrap().replace("  ", " ");
                    let found = sum(&times, |f| of_phase(f) && *f.last().unwrap() == op);
                    assert_eq!(found, row["total_ns"].as_u64().unwrap(), "{format} {name} {op}");
                }
                for row in phase["by_layer"].as_array().unwrap() {
                    let layer = row["name"].as_str().unwrap();
                    let own = |f: &[String]| f[2] == layer && f.last().unwrap() != "(barrier wait)";
                    let found = sum(&times, |f| of_phase(f) && own(f));
                    if !layer.starts_with("(barrier") {
                        assert_eq!(found, row["total_ns"].as_u64().unwrap(), "{format} {name} {layer}");
                    }
                }
            }
            assert_eq!(
                times.values().sum::<u64>(),
                report["phases"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|p| p["graph_ns"].as_u64().unwrap())
                    .sum::<u64>()
            );
        }
    }
}

#[test]
fn a_profile_says_what_its_values_are() {
    let files = files(&run(Spec::default()));
    let Some(all) = decoded(&files, "pprof", &[]) else { return };
    assert_eq!(all["kinds"], serde_json::json!([["calls", "count"], ["time", "nanoseconds"]]));
    assert_eq!(all["default"], "time");
    // The first graph begins after its call; the header's clocks are read at ORIGIN.
    let begins = all["time"][0].as_u64().unwrap() - 1_700_000_000_000_000_000;
    assert!((1..10_000).contains(&begins), "{begins}");
    let report = files.report();
    for phase in report["phases"].as_array().unwrap() {
        for row in phase["by_name"].as_array().unwrap().iter().filter(|r| r["calls"] != 0) {
            let op = row["name"].as_str().unwrap().replace("  ", " ");
            let of = |s: &&Value| s["frames"][1] == phase["phase"] && s["frames"][3] == op;
            let calls =
                all["stacks"].as_array().unwrap().iter().filter(of).map(|s| s["calls"].as_u64().unwrap());
            assert_eq!(calls.sum::<u64>(), row["calls"].as_u64().unwrap(), "{op}");
        }
    }
}

#[test]
fn all_threads_can_be_summed() {
    let files = files(&run(Spec { threads: 3, ..Spec::default() }));
    let report = files.report();
    let rows = || report["phases"].as_array().unwrap().iter();
    let gap = |f: &[String]| f.last().unwrap() == "(gaps)";
    let wait = |f: &[String]| f.last().unwrap() == "(barrier wait)";
    for format in ["pprof", "speedscope"] {
        let Some(all) = decoded(&files, format, &["--all-threads"]) else { return };
        for ith in 0..3u64 {
            let times = times(&all, Some(&format!("ggml {ith}")));
            let of = |field: &str| -> u64 {
                let threads = rows().flat_map(|p| p["by_thread"].as_array().unwrap());
                threads.filter(|r| r["ith"] == ith).map(|r| r[field].as_u64().unwrap()).sum()
            };
            assert_eq!(sum(&times, |f| !gap(f) && !wait(f)), of("op_ns"), "{format} {ith}");
            assert_eq!(sum(&times, wait), of("wait_ns"), "{format} {ith}");
            // All threads take part in all graphs here.
            let graphs: u64 = rows().map(|p| p["graph_ns"].as_u64().unwrap()).sum();
            assert_eq!(times.values().sum::<u64>(), graphs, "{format} {ith}");
        }
    }
    let Some(all) = decoded(&files, "folded", &["--all-threads"]) else { return };
    let times = times(&all, None);
    for phase in rows() {
        for row in phase["by_op"].as_array().unwrap().iter().filter(|r| r["calls"] != 0) {
            let op = format!("{} ", row["name"].as_str().unwrap());
            let found = sum(&times, |f| {
                f[1] == phase["phase"].as_str().unwrap() && f.last().unwrap().starts_with(&op)
            });
            assert_eq!(found, row["all_threads_ns"].as_u64().unwrap(), "{op}");
        }
    }
}

#[test]
fn a_part_has_the_graphs_that_begin_in_it() {
    let files = files(&run(Spec::default()));
    let report = files.report();
    let Some(all) = decoded(&files, "folded", &["--tokens", "2..3"]) else { return };
    let times = times(&all, None);
    assert!(times.keys().all(|f| f[1] == "decode"));
    // The five decode calls differ by the same number of ns per op only.
    let decode = report["phases"].as_array().unwrap().iter().find(|p| p["phase"] == "decode").unwrap();
    let two = times.values().sum::<u64>() as f64 / decode["graph_ns"].as_f64().unwrap();
    assert!((0.38..0.42).contains(&two), "{two}");
}

/// Names chosen by a target or a model are data: no name adds a frame or a line.
#[test]
fn odd_names_stay_in_their_frame() {
    let odd = "a;b c\"1\" 5\u{2028}é;";
    let cfg = pfi::EncoderConfig::default();
    let mut e = pfi::Encoder::new(Vec::new(), cfg, &header(true)).unwrap();
    e.process(&Process { pid: PID, engine: 0, exe: odd, cmdline: odd }).unwrap();
    e.op_def(1, "ADD", "ADD");
    let t = ORIGIN;
    let tensor = e
        .tensor(&pfi::TensorDesc {
            pid: PID,
            addr: 1,
            known: true,
            op: 1,
            ty: 0,
            flags: 0,
            name: odd.as_bytes(),
            ne: [4, 1, 1, 1],
            nb: None,
            src: &[],
            view_src: None,
        })
        .unwrap();
    let plan = e.plan(PID, 1, &[pfi::PlanHit { tensor, fused: None }]).unwrap();
    let run = pfi::SliceRun { graph: 0, ith: 0, tid: TID, plan, first: 0, barrier: true };
    e.slices(&run, &[pfi::Slice { start: t + 10, end: Some(t + 110) }]).unwrap();
    let graph = CpuGraph {
        seq: 0,
        graph: None,
        split: None,
        pid: PID,
        tid: TID,
        plan: Some(plan),
        n_nodes: 1,
        n_threads: 1,
        ubatch: 1,
        t: t as i64,
        dur: 200,
        expected: Some(1),
        seen: 1,
        barrier: true,
        cut: false,
    };
    e.cpu_graph(&graph).unwrap();
    let files = files(&e.finish(&footer("signal")).unwrap());
    for format in FORMATS {
        let Some(all) = decoded(&files, format, &[]) else { return };
        let times = times(&all, None);
        assert_eq!(times.values().copied().collect::<Vec<_>>(), [100, 100], "{all}");
        let op = times.keys().find(|f| f.len() == 4).unwrap();
        let name = if format == "folded" {
            odd.replace(';', ",").replace('\u{2028}', "\\u{2028}")
        } else {
            odd.to_string()
        };
        assert_eq!(op[3], format!("ADD {name}"), "{format}");
    }
}

#[test]
fn what_cannot_be_exported_is_told() {
    let files = files(&run(Spec::default()));
    let refused = |args: &[&str], code: i32, why: &str| {
        let out = profinfer(&[&["export"], args].concat());
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), err.lines().count()), (Some(code), 1), "{err}");
        assert!(err.contains(why), "{err}");
    };
    refused(&["--folded", "x", "--pprof", "x", &files.trace], 2, "a separate file");
    refused(&["--folded", &files.trace, &files.trace], 2, "cannot also be the output");
    refused(&["--perfetto", &files.out, "--all-threads", &files.trace], 2, "--all-threads");
    for format in FORMATS {
        let flag = format!("--{format}");
        refused(
            &[&flag, &files.out, "--time", "1h..2h", &files.trace],
            1,
            "no op begins in the selected range",
        );
        assert!(!Path::new(&files.out).exists());
    }
    let empty = Synth::new(Vec::new(), Spec::default()).enc.finish(&footer("signal")).unwrap();
    std::fs::write(&files.trace, empty).unwrap();
    for format in FORMATS {
        refused(&[&format!("--{format}"), "-", &files.trace], 1, "no op begins in the selected range");
    }
}
