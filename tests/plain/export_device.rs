//! `profinfer export` of kernels on a device: in Perfetto's format GpuRenderStageEvents, decoded with the definitions that
//! Perfetto publishes, each with the nodes that it computes and the number of its split.

use crate::common::timeline;
use crate::offload::{Launched, Seen, written};
use crate::trace_support::PID;

use pfi::record::KernelSource::{CuptiGraph, VulkanLayer};
use serde_json::{Value, json};
use timeline::*;

/// Two groups in each of three graphs: a fused one and one of one node.
const ENQUEUED: [Seen<'_>; 3] =
    [(1, 0, &[(2, 300), (1, 50)]), (2, 0, &[(2, 300), (1, 50)]), (3, 0, &[(2, 300), (1, 50)])];
/// Two kernels of the fused group that overlap, one of the single node, one before all, and one of a CUDA graph.
const LAUNCHED: [Launched; 5] = [
    (1, VulkanLayer, 120),
    (1, VulkanLayer, 130),
    (1, VulkanLayer, 420),
    (2, VulkanLayer, 105),
    (3, CuptiGraph, 120),
];

fn kernels(all: &Value) -> &[Value] {
    all["kernels"].as_array().unwrap()
}

fn sum(kernels: &[Value], field: &str) -> u64 {
    kernels.iter().map(|k| k[field].as_u64().unwrap()).sum()
}

#[test]
fn kernels_are_render_stages_with_their_nodes() {
    let files = files(&written(true, false, &ENQUEUED, true, &LAUNCHED));
    let Some(all) = files.export(&[]) else { return };
    let found = kernels(&all);
    let ids: Vec<u64> = found.iter().map(|k| k["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
    // With all values: times are as recorded, though two kernels overlap.
    let first = json!({
        "after_enqueue_ns": "10", "after_submit_ns": "10", "clock_error_ns": "10",
        "source": "timestamps around each dispatch", "split": "4", "graph": "1", "token": "1",
        "op": "RMS_NORM+MUL_MAT", "layer": "0", "node": "0", "nodes": "RMS_NORM norm-0, MUL_MAT Qcur-0",
    });
    assert_eq!(found[0]["extra"], first);
    let at = |i: usize| found[i]["t"].as_u64().unwrap();
    assert_eq!((at(1) - at(0), sum(found, "dur")), (10, 5 * 30));
    let of = |i: usize, name: &str| found[i]["extra"][name].clone();
    assert_eq!((of(2, "op"), of(2, "node"), of(2, "layer")), ("ADD".into(), "2".into(), "0".into()));
    // No node is invented.
    for (i, graph) in [(3, "2"), (4, "3")] {
        assert_eq!((of(i, "graph"), of(i, "op"), of(i, "nodes")), (graph.into(), Value::Null, Value::Null));
    }
    assert_eq!(of(4, "source"), "CUPTI");
    for (i, kernel) in found.iter().enumerate() {
        assert_eq!((&kernel["stage"], &kernel["pid"]), (&"mul_mat_q".into(), &PID.into()));
        let (name, iid, api) =
            if i < 4 { ("Vulkan queue 0", 1, "VULKAN") } else { ("Vulkan queue 1", 2, "CUDA") };
        assert_eq!(
            (&kernel["queue"], &kernel["iid"], &kernel["api"]),
            (&name.into(), &iid.into(), &api.into())
        );
    }
    assert_eq!(found[0]["times"], "times: timestamps around each dispatch");
    // The split on the host has the same number, and began before.
    let host = track(&all, PID.into())["slices"].as_array().unwrap();
    for kernel in found {
        let number: u64 = kernel["extra"]["split"].as_str().unwrap().parse().unwrap();
        let split =
            host.iter().find(|s| s["name"] == "split Vulkan" && s["args"]["split"] == number).unwrap();
        assert!(split["t"].as_u64() < kernel["t"].as_u64());
    }
}

/// A kernel is in the file once: the sum over Perfetto's table of slices is that of the report.
#[test]
fn no_kernel_counts_twice() {
    let files = files(&written(true, false, &ENQUEUED, true, &LAUNCHED));
    let Some(all) = files.export(&[]) else { return };
    let device: u64 =
        all["tracks"].as_array().unwrap().iter().filter_map(|t| t["categories"]["device"].as_u64()).sum();
    assert_eq!(device, 0, "a kernel is a slice of a track too");
    let report = files.report();
    let phases = report["phases"].as_array().unwrap().iter();
    let backends = phases.flat_map(|p| p["offload"]["backends"].as_array().cloned().unwrap_or_default());
    let rows = backends.flat_map(|b| b["device"]["by_kernel"].as_array().cloned().unwrap_or_default());
    let (n, ns) = rows.fold((0, 0), |(n, ns), r| {
        (n + r["kernels"].as_u64().unwrap(), ns + r["device_ns"].as_u64().unwrap())
    });
    assert_eq!((n, ns), (kernels(&all).len() as u64, sum(kernels(&all), "dur")));
}

#[test]
fn kernels_are_selected_like_slices() {
    let files = files(&written(true, false, &ENQUEUED, true, &LAUNCHED));
    let Some(one) = files.export(&["--tokens", "1"]) else { return };
    assert_eq!(kernels(&one).len(), 3);
    // Chrome's format has slices that do not overlap.
    let out = profinfer(&["export", "--force", "--chrome", &files.out, &files.trace]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let chrome: Value = serde_json::from_slice(&std::fs::read(&files.out).unwrap()).unwrap();
    let begun: Vec<&Value> =
        chrome["traceEvents"].as_array().unwrap().iter().filter(|e| e["cat"] == "device").collect();
    assert_eq!(begun.len(), LAUNCHED.len());
    assert_eq!(begun[0]["args"]["nodes"], "RMS_NORM norm-0, MUL_MAT Qcur-0");
    let ns = |e: &Value| (e["ts"].as_f64().unwrap() * 1000.0).round() as u64;
    assert_eq!(ns(begun[1]) - ns(begun[0]), 30);
}

/// Each kernel is a row, in a table of values as in the recording: the sums are those of the report.
#[test]
fn a_table_has_the_times_of_each_kernel() {
    let files = files(&written(true, false, &ENQUEUED, true, &LAUNCHED));
    let out = profinfer(&["export", "--csv", "kernels", &files.trace]);
    assert_eq!((text(&out.stderr), out.status.code()), (String::new(), Some(0)));
    let csv = text(&out.stdout);
    let mut lines = csv.split_terminator("\r\n").map(|l| l.split(',').collect::<Vec<_>>());
    let heading = lines.next().expect("a heading");
    let rows: Vec<Vec<&str>> = lines.collect();
    let column = |name: &str| {
        let at = heading.iter().position(|h| *h == name).unwrap_or_else(|| panic!("{name}: {heading:?}"));
        rows.iter().map(|r| r[at]).collect::<Vec<_>>()
    };
    let numbers = |name: &str| -> Vec<u64> { column(name).iter().map(|n| n.parse().unwrap_or(0)).collect() };
    let between = |from: &str, to: &str| -> Vec<u64> {
        let known = numbers(to).into_iter().zip(numbers(from)).filter(|(_, from)| *from > 0);
        known.map(|(to, from)| to - from).collect()
    };
    assert_eq!(
        column("ops"),
        ["RMS_NORM+MUL_MAT", "RMS_NORM+MUL_MAT", "ADD", "(outside nodes)", "(CUDA graph)"]
    );
    assert_eq!((column("token"), column("name")), (vec!["1", "1", "1", "2", "3"], vec!["mul_mat_q"; 5]));
    // When a kernel of the CUDA graph was queued is not known.
    assert_eq!((column("queued_ns")[4], column("submitted_ns")[4]), ("", ""));
    assert_eq!(column("host_ns")[..4], column("queued_ns")[..4]);
    assert_eq!(between("submitted_ns", "start_ns"), [10; 4]);
    // The first kernel of a graph has none before it; the second one overlaps it.
    assert_eq!(column("idle_before_ns"), ["", "0", "260", "", ""]);
    let report = files.report();
    let phases = report["phases"].as_array().unwrap().iter();
    let backends = phases.flat_map(|p| p["offload"]["backends"].as_array().cloned().unwrap_or_default());
    let told: Vec<Value> =
        backends.flat_map(|b| b["device"]["by_kernel"].as_array().cloned().unwrap_or_default()).collect();
    for (field, of) in [
        ("device_ns", between("start_ns", "end_ns")),
        ("queued_ns", between("queued_ns", "start_ns")),
        ("submitted_ns", between("submitted_ns", "start_ns")),
        ("idle_before_ns", numbers("idle_before_ns")),
    ] {
        assert_eq!(sum(&told, field), of.iter().sum::<u64>(), "{field}");
    }
    let one = profinfer(&["export", "--csv", "kernels", "--tokens", "2", &files.trace]);
    assert_eq!(text(&one.stdout).lines().count(), 2);
    let none = profinfer(&["export", "--csv", "kernels", "--pid", "1", &files.trace]);
    assert!(!none.status.success());
}

#[test]
fn a_run_without_kernels_has_no_table_of_them() {
    let files = files(&written(true, false, &ENQUEUED, false, &[]));
    let out = profinfer(&["export", "--csv", "kernels", &files.trace]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        text(&out.stderr).contains("their times are recorded with --gpu kernel"),
        "{}",
        text(&out.stderr)
    );
}
