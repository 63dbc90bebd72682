//! Pages for traces of synthetic runs, for the tests of `profinfer html`.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::Path;
use std::process::{Command, Output};

use pfi::record::*;
use pfi::{CounterRun, Encoder, EncoderConfig, ExpertRows, TensorDesc};

use crate::synth_trace::causes::*;
use crate::synth_trace::*;

pub const NASTY: &str =
    "\"'><script>hostile=1</script><img src=x onerror=hostile=1>&\\\u{202e}\u{7f}\u{2028}]]>-->";

/// A prompt and `n` tokens that become slower, with occasional pauses; with experts, threads, scheduler and phases.
pub fn rich(n: u64) -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec { experts: true, layers: 4, ..Spec::default() });
    s.enc.feature(&feature("experts", Availability::Whole, "read before each MUL_MAT_ID")).unwrap();
    s.enc.feature(&feature("scheduler", Availability::Whole, "tracepoints")).unwrap();
    s.enc.counter(&counter(0, "instructions", "events", 1)).unwrap();
    s.enc.counter(&counter(1, "l3d_cache_refill", "bytes", 64)).unwrap();
    s.enc
        .sensor(&Sensor {
            id: 0,
            name: "soc",
            kind: SensorKind::Power,
            path: "/x",
            interval_ns: 0,
            cpus: "",
            origin: pfi::record::SensorOrigin::Device,
        })
        .unwrap();
    s.enc.task(900, NASTY).unwrap();
    let (ids, weights) = experts(&mut s);
    s.call(8, |p, _| 2000 + 10 * p as u64);
    for i in 0..n {
        let pause = if i == 120 { 40_000 } else { 0 };
        s.call(1, |p, t| {
            let grown = if p == 3 { 50 * i } else { 0 };
            2000 + 100 * p as u64 + 500 * u64::from(t) + grown + pause + (i * 31 + p as u64 * 7) % 130
        });
        let graph = s.graphs - 1;
        for (layer, (ids, weights)) in ids.iter().zip(&weights).enumerate() {
            let rows =
                ExpertRows { graph, ids: *ids, weights: *weights, used: 2, tokens: 1, first: 0, why: "" };
            let first = (i * (layer as u64 + 1)) % 7;
            s.enc.experts(&rows, &[first as i32, 7]).unwrap();
        }
        for ith in 0..2 {
            let run = CounterRun { graph, ith, plan: 1, first: 0, counters: 0b11 };
            let told: Vec<_> = (0..2 * s.positions(1) as u64).map(|n| Some(1000 + n)).collect();
            s.enc.op_counts(&run, &told).unwrap();
        }
        s.enc.off_cpu(&preempted((i % 2) as u32, s.now as i64 - 40_000, 500)).unwrap();
        s.enc.sample(s.now as i64, &[(0, 2_500_000 + i as i64)]).unwrap();
    }
    s.enc.phase_call(&phase_call("sampling", ORIGIN + 500, 500)).unwrap();
    s.enc.finish(&footer("target exited")).unwrap()
}

fn experts(s: &mut Synth<Vec<u8>>) -> (Vec<u32>, Vec<u32>) {
    let mut tensor = |addr, name: &str, ne| {
        let (op, ty, flags, nb, view_src) = (0, 3, 0, None, None);
        let (src, name) = (&[][..], name.as_bytes());
        let d = TensorDesc { pid: PID, addr, known: true, op, ty, flags, name, ne, nb, src, view_src };
        s.enc.tensor(&d).unwrap()
    };
    let mut of = |at: u64, name: &str, ne: [u64; 4]| {
        (0..4).map(|l| tensor(at + 0x1000 * l, &name.replace("{L}", &l.to_string()), ne)).collect()
    };
    (
        of(0x9000_0000, "ffn_moe_topk-{L}", [2, 1, 1, 1]),
        of(0x9100_0000, "blk.{L}.ffn_up_exps.weight", [EMBD, FF, 8, 1]),
    )
}

/// 40 tokens in which the ROPE of the queries takes `times` as long as in another run.
pub fn steady(times: u64) -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec { layers: 4, ..Spec::default() });
    for i in 0..40 {
        // A layer has 15 ops, after one op before them.
        s.call(1, |p, t| {
            let slower = if p > 0 && (p - 1) % 15 == 2 { times } else { 1 };
            (2000 + 100 * p as u64 + 50 * u64::from(t)) * slower + (i * 31 + p as u64 * 7) % 130
        });
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

/// The page of two traces.
pub fn compared(a: &[u8], b: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("old.pfi"), a).unwrap();
    std::fs::write(dir.path().join("new.pfi"), b).unwrap();
    let out = profinfer(dir.path(), &["html", "old.pfi", "new.pfi"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(text(&out.stderr), "profinfer: wrote old-new.html\n");
    std::fs::read_to_string(dir.path().join("old-new.html")).unwrap()
}

/// Calls only, as at level token.
pub fn calls(n: u64) -> Vec<u8> {
    let header = Header { level: Level::Token, ..header(true) };
    let mut enc = Encoder::new(Vec::new(), EncoderConfig::default(), &header).unwrap();
    for seq in 0..n {
        let t = (ORIGIN + 20_000 * seq) as i64;
        let dur = if seq == n / 3 { 19_000 } else { 9000 + seq % 97 };
        let n_tokens = Some(if seq == 0 { 7 } else { 1 });
        let token = Token {
            seq,
            pid: PID,
            tid: TID,
            entry: Entry::Process,
            n_tokens,
            t,
            dur,
            cut: false,
            device: pfi::record::Device::Idle,
        };
        enc.token(&token).unwrap();
    }
    enc.finish(&footer("duration")).unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub fn profinfer(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    command.current_dir(dir).args(args).output().unwrap()
}

/// The page for a trace.
pub fn page(trace: &[u8], args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run.pfi"), trace).unwrap();
    let out = profinfer(dir.path(), &[&["html", "run.pfi", "-o", "run.html"], args].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!((text(&out.stderr), text(&out.stdout)), (String::new(), String::new()));
    std::fs::read_to_string(dir.path().join("run.html")).unwrap()
}
