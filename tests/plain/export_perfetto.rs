//! `profinfer export --perfetto`, decoded with the definitions that Perfetto publishes (tests/perfetto/decode.py): no
//! unknown fields, slices nest, and their totals are those of `profinfer report`.

use crate::common::timeline;

use crate::synth_trace;

use std::path::Path;

use pfi::record::*;
use serde_json::Value;
use synth_trace::*;
use timeline::*;

const ABOVE: [&str; 4] = ["graph", "split CPU", "CPU graph", "(barrier wait)"];

fn is_op(name: &str) -> bool {
    !ABOVE.contains(&name) && !is_call(name, "prefill") && !is_call(name, "decode")
}

/// `decode 17`
fn is_call(name: &str, phase: &str) -> bool {
    let number = name.strip_prefix(phase).and_then(|rest| rest.strip_prefix(' '));
    number.is_some_and(|n| n.parse::<u64>().is_ok())
}

fn run(spec: Spec) -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), spec);
    s.cpu = |graph, p, ith| (p % 5 != 4).then_some(ith + ((graph + p as u64) % 3) as u16);
    s.ubatches(&[4, 3], |p, t| 2000 + 10 * p as u64 + 5 * u64::from(t));
    for i in 0..5 {
        s.call(1, |p, t| 1000 + 1037 * p as u64 + 5 * u64::from(t) + i);
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

/// Sum of a field over the rows of all phases selected by `is`.
fn reported(report: &Value, table: &str, is: impl Fn(&Value) -> bool, field: &str) -> u64 {
    let phases = report["phases"].as_array().unwrap().iter();
    let rows = phases.flat_map(|p| p[table].as_array().unwrap()).filter(|r| is(r));
    rows.map(|r| r[field].as_u64().unwrap_or(0)).sum()
}

#[test]
fn totals_of_tracks_are_those_of_the_report() {
    for (barrier, threads, experts) in [(true, 2, false), (false, 3, false), (true, 1, true)] {
        let files = files(&run(Spec { barrier, threads, experts, ..Spec::default() }));
        let Some(all) = files.export(&[]) else { return };
        let report = files.report();
        for ith in 0..u64::from(threads) {
            let track = track(&all, u64::from(TID) + ith);
            let of = |field| reported(&report, "by_thread", |r| r["ith"] == ith, field);
            assert_eq!(total(track, is_op), (of("slices"), of("op_ns")), "ops of thread {ith}");
            assert_eq!(total(track, |n| n == "(barrier wait)").1, of("wait_ns"), "waits of thread {ith}");
            // Token, graph, split, CPU graph, op; the other threads have only ops.
            assert_eq!(track["deepest"], if ith == 0 { 5 } else { 1 });
        }
        let phases = report["phases"].as_array().unwrap().iter();
        let rows = phases.flat_map(|p| p["by_cpu"]["cpus"].as_array().unwrap());
        // Without those of which it is not known.
        let rows: Vec<&Value> = rows.filter(|r| r["cpu"].is_u64()).collect();
        assert!(!rows.is_empty());
        for row in &rows {
            let slices = all["tracks"].as_array().unwrap().iter().filter_map(|t| t["slices"].as_array());
            let on = slices.flatten().filter(|s| s["args"]["cpu"] == row["cpu"]).count();
            let of = rows.iter().filter(|r| r["cpu"] == row["cpu"]).map(|r| r["ops"].as_u64().unwrap());
            assert_eq!(on as u64, of.sum::<u64>(), "ops on CPU {}", row["cpu"]);
        }
        let main = track(&all, TID.into());
        let phase = |name: &str, field: &str| {
            let all = report["phases"].as_array().unwrap().iter();
            all.filter(|p| name.is_empty() || p["phase"] == name)
                .map(|p| p[field].as_u64().unwrap())
                .sum::<u64>()
        };
        for name in ["prefill", "decode"] {
            assert_eq!(total(main, |n| is_call(n, name)), (phase(name, "calls"), phase(name, "in_call_ns")));
        }
        assert_eq!(total(main, |n| n == "CPU graph"), (phase("", "cpu_graphs"), phase("", "graph_ns")));
        assert_eq!(total(main, |n| n == "split CPU").1, reported(&report, "splits", |_| true, "total_ns"));
        // Ops by name match those of the report by name, across all layers.
        let add = reported(&report, "by_op", |r| r["name"] == "ADD", "total_ns");
        assert_eq!(total(main, |n| n.starts_with("ADD ")).1, add);
    }
}

#[test]
fn slices_say_what_they_are() {
    let files = files(&run(Spec::default()));
    let Some(all) = files.export(&[]) else { return };
    let tracks = all["tracks"].as_array().unwrap();
    let process = tracks.iter().find(|t| t["pid"] == PID && t["tid"] == 0).unwrap();
    assert_eq!((&process["name"], &process["cmdline"][0]), (&"llama-cli".into(), &"llama-cli -m x".into()));
    let main = track(&all, TID.into());
    assert_eq!(main["parent"], process["uuid"]);
    let slices = main["slices"].as_array().unwrap();
    let first = |name: &str| &slices.iter().find(|s| s["name"] == name).unwrap()["args"];
    assert_eq!(*first("prefill 0"), serde_json::json!({"token": 0, "tokens": 7}));
    assert_eq!(first("graph")["ubatch"], 4);
    assert_eq!(first("CPU graph")["threads"], 2);
    let op = first("MUL_MAT Kcur-1");
    assert_eq!((&op["op"], &op["layer"], &op["token"]), (&"MUL_MAT".into(), &1.into(), &0.into()));
    assert_eq!(op["types"], "f32[32,4] = q4_0[64,32], f32[64,4]");
    // 32 rows of two blocks of 18 bytes, and both matrices of f32; a multiplication and an addition per weight.
    let read = 32 * 2 * 18 + 4 * 64 * 4;
    assert_eq!((&op["bytes"], &op["flops"]), (&(read + 4 * 32 * 4).into(), &(2 * 32 * 64 * 4).into()));
    // Two norms in one hit; a nameless node by its weight.
    assert!(slices.iter().any(|s| s["name"] == "RMS_NORM+MUL attn_norm-0"));
    assert!(slices.iter().any(|s| s["name"] == "MUL_MAT node_{N} [blk.1.attn_output.weight]"));
}

/// Every event has a category, and each is of its kind: viewers filter by them.
#[test]
fn events_have_categories() {
    let mut synth = Synth::new(Vec::new(), Spec::default());
    synth.call(4, |p, t| 2000 + 10 * p as u64 + 5 * u64::from(t));
    synth.call(1, |p, t| 1000 + 10 * p as u64 + 5 * u64::from(t));
    causes::one_of_each(&mut synth);
    let files = files(&synth.enc.finish(&footer("target exited")).unwrap());
    let Some(all) = files.export(&[]) else { return };
    let tracks = all["tracks"].as_array().unwrap();
    let count = |track: &Value, name: &str| track["categories"][name].as_u64().unwrap_or(0);
    let sum = |name: &str| tracks.iter().map(|t| count(t, name)).sum::<u64>();
    assert_eq!(sum(""), 0);
    let main = track(&all, TID.into());
    assert_eq!(count(main, "op") + count(main, "function"), total(main, is_op).0);
    assert_eq!(count(main, "barrier"), total(main, |n| n == "(barrier wait)").0);
    assert_eq!(count(main, "call"), 2);
    assert_eq!(count(main, "graph"), total(main, |n| n == "graph" || n == "CPU graph").0);
    assert_eq!(count(main, "split"), total(main, |n| n == "split CPU").0);
    for (track, of) in [("thread state", "state"), ("tok/s", "counter"), ("profinfer record", "recorder")] {
        let found = tracks.iter().find(|t| t["name"] == track).unwrap_or_else(|| panic!("{track}"));
        let only = found["categories"].as_object().unwrap();
        assert!(only.len() == 1 && count(found, of) > 0, "{track}: {only:?}");
    }
}

/// Ops of all threads say which call they are of; that of thread 0 can also be seen from the slices around them.
#[test]
fn ops_of_all_threads_have_the_number_of_their_call() {
    let files = files(&run(Spec::default()));
    let Some(all) = files.export(&[]) else { return };
    let numbers = |tid: u64| {
        let slices = track(&all, tid)["slices"].as_array().unwrap().iter();
        let ops = slices.filter(|s| s["category"] == "op").map(|s| s["args"]["token"].as_u64().unwrap());
        ops.fold(vec![0; 6], |mut sum, n| {
            sum[n as usize] += 1;
            sum
        })
    };
    let of_call = |seq: u64| {
        let slices = track(&all, TID.into())["slices"].as_array().unwrap().iter();
        let named = |s: &&Value| s["args"]["token"] == seq && s["category"] == "call";
        let call = slices.clone().find(named).unwrap();
        let inside = |s: &&Value| {
            let t = |s: &Value| s["t"].as_u64().unwrap();
            t(call) <= t(s) && t(s) < t(call) + call["dur"].as_u64().unwrap()
        };
        slices.filter(|s| s["category"] == "op").filter(inside).count()
    };
    assert_eq!(numbers(TID.into()), (0..6).map(of_call).collect::<Vec<_>>());
    assert_eq!(numbers(u64::from(TID) + 1), numbers(TID.into()));
}

/// Threads are named by their number in GGML's pool, and in its order.
#[test]
fn threads_have_the_names_and_order_of_the_pool() {
    let files = files(&run(Spec { threads: 4, ..Spec::default() }));
    let Some(all) = files.export(&[]) else { return };
    assert_eq!(all["thread_ordering"], 1);
    let of = |ith: u64| track(&all, u64::from(TID) + ith);
    for ith in 0..4 {
        assert_eq!(of(ith)["name"], format!("ggml {ith}"));
    }
    let ranks: Vec<i64> = (0..4).map(|ith| of(ith)["rank"].as_i64().unwrap()).collect();
    // Tracks without a rank count as 0.
    assert!(ranks.is_sorted_by(|a, b| a < b) && ranks.iter().all(|rank| *rank < 0), "{ranks:?}");
}

/// The offset between the trace's clock and CLOCK_BOOTTIME is that of the header.
#[test]
fn times_are_boottime() {
    let header = Header { boot_ns: ORIGIN + 77_000_000_000, ..header(true) };
    let cfg = pfi::EncoderConfig::default();
    let mut e = pfi::Encoder::new(Vec::new(), cfg, &header).unwrap();
    let (t, entry) = (ORIGIN as i64 + 5, Entry::Decode);
    let token = Token {
        seq: 3,
        pid: 9,
        tid: 8,
        entry,
        n_tokens: Some(1),
        t,
        dur: 100,
        cut: true,
        device: Device::Idle,
    };
    e.token(&token).unwrap();
    let files = files(&e.finish(&footer("signal")).unwrap());
    let Some(all) = files.export(&[]) else { return };
    let slice = &track(&all, 8)["slices"][0];
    assert_eq!(slice["t"], ORIGIN + 77_000_000_005);
    assert_eq!(
        (&slice["name"], &slice["args"]["cut_by_end_of_recording"]),
        (&"decode 3".into(), &true.into())
    );
    let snapshot = &all["snapshots"][0];
    assert_eq!(snapshot["6"].as_u64().unwrap() - snapshot["3"].as_u64().unwrap(), 77_000_000_000);
    assert_eq!(snapshot["1"], 1_700_000_000_000_000_000u64);
}

#[test]
fn ops_and_waits_take_few_bytes() {
    for (barrier, most) in [(false, 70), (true, 48)] {
        let files = files(&[]);
        // Names are stored once: enough ops to make them negligible.
        generate(Path::new(&files.trace), 300_000, barrier);
        let report = files.report();
        let ops = report["quality"]["hits"]["slices"].as_u64().unwrap();
        let out = profinfer(&["export", "--perfetto", &files.out, &files.trace]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let bytes = std::fs::metadata(&files.out).unwrap().len();
        // A wait is a separate slice.
        let slices = if barrier { 2 * ops } else { ops };
        assert!(bytes <= most * slices, "{} bytes a slice, barrier: {barrier}", bytes as f64 / slices as f64);
    }
}

#[test]
fn parts_by_token_time_and_process() {
    let files = files(&run(Spec::default()));
    let Some(all) = files.export(&["--tokens", "2..3"]) else { return };
    let main = track(&all, TID.into());
    assert_eq!(total(main, |n| is_call(n, "decode")).0, 2);
    assert_eq!(total(main, |n| n == "CPU graph").0, 2);
    let ops = total(main, is_op).0;
    assert_eq!(total(track(&all, u64::from(TID) + 1), is_op).0, ops);
    let whole = files.export(&["--pid", &PID.to_string(), "--time", "0s.."]).unwrap();
    assert_eq!(total(track(&whole, TID.into()), |n| is_call(n, "decode")).0, 5);
    // Everything that begins in the first 100 us, and nothing else.
    let begin = files.export(&["--time", "..100us"]).unwrap();
    let slices = track(&begin, TID.into())["slices"].as_array().unwrap();
    // The wait after the last op may begin later.
    let early = |s: &Value| s["name"] == "(barrier wait)" || s["t"].as_u64().unwrap() < ORIGIN + 100_000;
    assert!(slices.iter().all(early));
    assert!(total(track(&begin, TID.into()), is_op).0 > 10);

    let refused = |flags: &[&str], code: i32, why: &str| {
        let out =
            profinfer(&[&["export", "--force", "--perfetto", &files.out, &files.trace], flags].concat());
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), err.lines().count()), (Some(code), 1), "{err}");
        assert!(err.contains(why), "{err}");
    };
    refused(&["--tokens", "10..12"], 1, "the trace has calls 0 to 5");
    refused(&["--time", "1h..2h"], 1, "begins in the selected range");
    refused(&["--pid", "1"], 1, "recorded processes: 4242");
    refused(&["--tokens", "3..2"], 2, "end is before the start");
    refused(&["--tokens", "1", "--time", "1s.."], 2, "cannot be combined");
}

#[test]
fn of_several_processes_one_can_be_chosen() {
    let cfg = pfi::EncoderConfig::default();
    let mut e = pfi::Encoder::new(Vec::new(), cfg, &header(true)).unwrap();
    for (seq, pid) in [(0, 5), (1, 6), (2, 5)] {
        let (t, entry) = ((ORIGIN + 1000 * seq) as i64, Entry::Decode);
        let token = Token {
            seq,
            pid,
            tid: pid,
            entry,
            n_tokens: Some(1),
            t,
            dur: 100,
            cut: false,
            device: Device::Idle,
        };
        e.token(&token).unwrap();
    }
    let files = files(&e.finish(&footer("signal")).unwrap());
    let Some(all) = files.export(&[]) else { return };
    assert_eq!([5, 6].map(|tid| total(track(&all, tid), |n| is_call(n, "decode")).0), [2, 1]);
    let one = files.export(&["--pid", "6"]).unwrap();
    assert!(one["tracks"].as_array().unwrap().iter().all(|t| t["pid"] != 5));
    assert_eq!(total(track(&one, 6), |n| is_call(n, "decode")).0, 1);
}

/// Engines that start new threads for each graph get one track per slot in the pool.
#[test]
fn threads_that_come_and_go_share_a_track() {
    let mut bytes = Vec::new();
    for spec_threads in [2u32, 20] {
        let cfg = pfi::EncoderConfig::default();
        let mut e = pfi::Encoder::new(Vec::new(), cfg, &header(true)).unwrap();
        for i in 0..20u64 {
            let t = ORIGIN + 1000 * i;
            let plan = e.plan(PID, 1, &[pfi::PlanHit { tensor: 0, fused: None }]).unwrap();
            for ith in 0..2u16 {
                let tid = if ith == 0 { TID } else { 9000 + i as u32 % spec_threads };
                let run = pfi::SliceRun { graph: i, ith, tid, plan, first: 0, barrier: true };
                e.slices(&run, &[pfi::Slice { start: t + 10, end: Some(t + 110) }]).unwrap();
            }
            let graph = CpuGraph {
                seq: i,
                graph: None,
                split: None,
                pid: PID,
                tid: TID,
                plan: Some(plan),
                n_nodes: 1,
                n_threads: 2,
                ubatch: 1,
                t: t as i64,
                dur: 200,
                expected: Some(2),
                seen: 2,
                barrier: true,
                cut: false,
            };
            e.cpu_graph(&graph).unwrap();
        }
        bytes.push(e.finish(&footer("signal")).unwrap());
    }
    let few = files(&bytes[0]);
    let Some(all) = few.export(&[]) else { return };
    assert_eq!(track(&all, 9001)["totals"].as_object().unwrap().len(), 1);
    let all = files(&bytes[1]).export(&[]).unwrap();
    let shared =
        all["tracks"].as_array().unwrap().iter().find(|t| t["name"] == "ggml 1 of 4243 (many threads)");
    assert_eq!(total(shared.unwrap(), is_op), (20, 2000));
}

/// A trace as other programs write it, merged with ours: it is unchanged, and no sequence id is used twice.
#[test]
fn another_trace_is_merged() {
    let ours = files(&run(Spec::default()));
    let theirs = files(&run(Spec { threads: 3, ..Spec::default() }));
    let Some(alone) = theirs.export(&[]) else { return };
    let both = ours.export(&["--merge", &theirs.out]).unwrap();
    let n = |v: &Value| v["sequences"].as_array().unwrap().len();
    // Processes, two threads, tokens per second.
    assert_eq!(n(&both), n(&alone) + 4);
    let merged = std::fs::read(&ours.out).unwrap();
    assert!(merged.ends_with(&std::fs::read(&theirs.out).unwrap()));

    let refused = |other: &str, why: &str| {
        let out = profinfer(&["export", "--force", "--perfetto", &ours.out, &ours.trace, "--merge", other]);
        let err = text(&out.stderr);
        assert!(!out.status.success() && err.contains(why) && err.lines().count() == 1, "{err}");
    };
    refused(&ours.trace, "not a Perfetto trace");
    refused("/no/such.pftrace", "No such file");
    refused(&ours.out, "cannot also be the output");
}

#[test]
fn what_cannot_be_exported_is_told() {
    let files = files(&run(Spec::default()));
    let refused = |args: &[&str], code: i32, why: &str| {
        let out = profinfer(args);
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), err.lines().count()), (Some(code), 1), "{err}");
        assert!(err.contains(why), "{err}");
    };
    refused(&["export", &files.trace], 2, "a format is required");
    refused(&["export", "--perfetto", &files.trace, &files.trace], 2, "cannot also be the output");
    refused(&["export", "--perfetto", "/no/such/dir/x", &files.trace], 1, "cannot write /no/such/dir/x");
    refused(&["export", "--perfetto", "x", "--chrome", "x", &files.trace], 2, "a separate file");
    refused(&["export", "--perfetto", &files.out, "/no/such.pfi"], 1, "no such file");
    // Nothing from the engine in it.
    let empty = Synth::new(Vec::new(), Spec::default()).enc.finish(&footer("signal")).unwrap();
    std::fs::write(&files.trace, empty).unwrap();
    refused(&["export", "--perfetto", &files.out, &files.trace], 1, "no engine call, graph or op");
}
