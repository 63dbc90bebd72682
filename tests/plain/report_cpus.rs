//! The CPUs of ops: `report --by cpu`, and the columns of the table of threads.

use crate::synth_trace;

use std::process::Command;

use analysis::questions::report::{By, PhaseReport, ReportOptions, report};
use analysis::recorded::calls::Phase;
use analysis::recorded::load::LoadProgress;
use analysis::sums::op_cpus::CpuTable;
use pfi::Trace;
use pfi::record::KindCount;
use synth_trace::*;

/// 33 positions of 1000 ns on thread 0 and 2000 ns on thread 1, in each of `decodes` graphs.
fn trace(cpu: fn(u64, usize, u16) -> Option<u16>, decodes: u64) -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec { clusters: true, ..Spec::default() });
    s.cpu = cpu;
    for _ in 0..decodes {
        s.call(1, |_, ith| 1000 * (1 + u64::from(ith)));
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

fn decode(file: Vec<u8>) -> PhaseReport {
    let options = ReportOptions { tables: By::ALL.to_vec(), ..ReportOptions::default() };
    let r = report(&Trace::from_bytes(file).unwrap(), &options, &LoadProgress::default());
    r.phases.into_iter().find(|p| p.phase == Phase::Decode).unwrap()
}

fn rows(t: &CpuTable) -> Vec<(Option<u16>, u64, u64, &[u16])> {
    t.cpus.iter().map(|r| (r.cpu, r.ops, r.op_ns, r.threads.as_slice())).collect()
}

/// Thread 0 stays on CPU 3. Thread 1 is on CPU 0, in the second graph on CPU 2 from position 10 on, and from the third
/// graph on the CPU is not known.
fn moving(graph: u64, p: usize, ith: u16) -> Option<u16> {
    match (ith, graph, p) {
        (0, ..) => Some(3),
        (_, 0, _) | (_, 1, ..10) => Some(0),
        (_, 1, _) => Some(2),
        _ => None,
    }
}

/// The load of each CPU by the probes: a hit at each op, and one at each barrier, at the cost measured.
#[test]
fn probes_load_each_cpu() {
    let file = |barriers: u64| {
        let mut s = Synth::new(Vec::new(), Spec { clusters: true, ..Spec::default() });
        s.cpu = moving;
        (0..4).for_each(|_| s.call(1, |_, ith| 1000 * (1 + u64::from(ith))));
        let mut end = footer("target exited");
        end.kinds.retain(|k| k.kind != "barrier");
        end.kinds.push(KindCount { kind: "barrier", seen: barriers, recorded: 0, lost: 0 });
        let trace = Trace::from_bytes(s.enc.finish(&end).unwrap()).unwrap();
        report(&trace, &ReportOptions::default(), &LoadProgress::default())
    };
    let (ops, n) = (4 * 2 * 33, 33);
    for (barriers, each) in [(0, 1), (ops, 2)] {
        let r = file(barriers);
        let load: Vec<(u16, u64)> = r.quality.probe_load.iter().map(|p| (p.cpu, p.hits)).collect();
        assert_eq!(load, [(0, each * (n + 10)), (2, each * (n - 10)), (3, each * 4 * n)]);
        // The same cost as in the predicted slowdown.
        let (share, slowdown) = (r.quality.probe_load[2].share.value, r.quality.predicted_slowdown.value);
        let cost = slowdown.unwrap() / r.quality.busiest_thread_hits as f64;
        assert!((share.unwrap() - (each * 4 * n) as f64 * cost).abs() < 1e-12, "{share:?} {slowdown:?}");
    }
}

#[test]
fn time_is_summed_by_cpu_and_by_cluster() {
    let p = decode(trace(moving, 4));
    let t = p.by_cpu.as_ref().unwrap();
    let n = 33;
    let expected: [(Option<u16>, u64, u64, &[u16]); 4] = [
        (Some(0), n + 10, 2000 * (n + 10), &[1]),
        (Some(2), n - 10, 2000 * (n - 10), &[1]),
        (Some(3), 4 * n, 1000 * 4 * n, &[0]),
        (None, 2 * n, 2000 * 2 * n, &[1]),
    ];
    assert_eq!(rows(t), expected);
    assert!((t.cpus.iter().map(|r| r.share).sum::<f64>() - 1.0).abs() < 1e-9);
    assert_eq!(t.cpus.iter().map(|r| r.cluster).collect::<Vec<_>>(), [Some(1), Some(0), Some(0), None]);

    // The largest cores first; what is not known is in no cluster.
    let clusters = t.clusters.iter().map(|c| (c.cluster.cpus.as_slice(), c.ops, c.threads.as_slice()));
    let clusters: Vec<_> = clusters.collect();
    assert_eq!(clusters, [(&[2, 3][..], 5 * n - 10, &[0, 1][..]), (&[0, 1][..], n + 10, &[1][..])]);
}

#[test]
fn a_thread_that_moves_has_its_migrations_counted() {
    let p = decode(trace(moving, 4));
    let t = p.by_cpu.as_ref().unwrap();
    let moves: Vec<_> = t.threads.iter().map(|r| (r.ith, r.migrations)).collect();
    assert_eq!(moves, [(0, 0), (1, 1)]);
    assert_eq!(t.threads[1].migrations_per_s, Some(1e9 / p.graph_ns as f64));
    let threads = p.by_thread.as_ref().unwrap();
    let of = |ith| threads.iter().find(|r| r.ith == ith).unwrap();
    assert_eq!((of(0).migrations, of(1).migrations), (Some(0), Some(1)));
    let cpus: Vec<_> = of(1).cpus.as_ref().unwrap().iter().map(|c| (c.cpu, c.ops)).collect();
    assert_eq!(cpus, [(None, 66), (Some(0), 43), (Some(2), 23)]);

    // One migration for each graph: between two, and within one.
    let between = decode(trace(|graph, _, ith| Some(graph as u16 % 2 + 2 * ith), 5));
    let within = decode(trace(|_, p, ith| Some(if p < 5 && ith == 1 { 0 } else { 1 }), 5));
    let counts =
        |p: &PhaseReport| p.by_cpu.as_ref().unwrap().threads.iter().map(|r| r.migrations).collect::<Vec<_>>();
    assert_eq!((counts(&between), counts(&within)), (vec![4, 4], vec![0, 9]));
}

/// Hits were lost: what follows them says where it ran itself, and the ops before and after are not mixed up.
#[test]
fn after_a_loss_nothing_is_assumed() {
    let p = decode(trace(|graph, _, _| (graph != 1).then_some(graph as u16), 3));
    let t = p.by_cpu.as_ref().unwrap();
    assert_eq!(
        rows(t).iter().map(|r| (r.0, r.1)).collect::<Vec<_>>(),
        [(Some(0), 66), (Some(2), 66), (None, 66)]
    );
    // From a known CPU to an unknown one and on to another: that it moved is certain, but not when.
    assert!(t.threads.iter().all(|r| r.migrations == 0));
}

#[test]
fn without_cpus_there_is_no_table() {
    let p = decode(trace(|_, _, _| None, 3));
    assert!(p.by_cpu.is_none());
    assert!(p.by_thread.unwrap().iter().all(|r| r.cpus.is_none() && r.migrations.is_none()));
}

fn shown(file: &[u8], args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.pfi");
    std::fs::write(&path, file).unwrap();
    let out =
        Command::new(env!("CARGO_BIN_EXE_profinfer")).arg("report").arg(&path).args(args).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Lines of a text, their cells separated by one space.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn the_text_shows_cpus_clusters_and_threads() {
    let file = trace(moving, 4);
    let own = lines(&shown(&file, &["--by", "cpu"]));
    let has = |lines: &[String], want: &str| assert!(lines.iter().any(|l| l == want), "{want}: {lines:#?}");
    has(&own, "CPU capacity ops op ms % threads");
    has(&own, "2 1024 23 0.046 11.62 1");
    has(&own, "unknown - 66 0.132 33.33 1");
    has(&own, "155 0.178 44.95 0-1 2 of capacity 1024 up to 2.9 GHz (CPU 2 3)");
    has(&own, "1 1 3506.3 unknown (50.00 %), 0 (32.58 %), 2");
    let all = lines(&shown(&file, &["--all"]));
    assert!(all.iter().any(|l| l == "CPUs, decode"), "{all:#?}");
    assert!(
        all.iter().any(|l| l.starts_with("thread tids ops") && l.ends_with("migrations CPUs")),
        "{all:#?}"
    );
    assert!(all.iter().any(|l| l.ends_with(" 1 unknown (50.00 %), 0 (32.58 %), 2")), "{all:#?}");

    let none = shown(&trace(|_, _, _| None, 3), &["--by", "cpu"]);
    assert!(none.contains("CPUs: none known"), "{none}");
}
