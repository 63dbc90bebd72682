//! A simulated fleet: boards of five kinds that run four models, with causes planted whose effects the questions in
//! docs/SQL.md must find. The times are made up; a board or run has the same ones each time.
#![allow(dead_code)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use pfi::ExpertRows;
use pfi::record::*;

use crate::synth_trace::causes::{faulted, feature, preempted};
use crate::synth_trace::*;

/// A kind of board.
struct Soc {
    name: &'static str,
    arch: &'static str,
    /// Time of an op, relative to the first kind.
    time: f64,
    /// Time of the second thread, relative to the first one: a smaller core.
    second: f64,
    watts: f64,
    /// Share of each graph that a device computes first.
    device: Option<f64>,
}

const fn soc(name: &'static str, arch: &'static str, time: f64, second: f64, watts: f64) -> Soc {
    Soc { name, arch, time, second, watts, device: None }
}

const SOCS: [Soc; 5] = [
    soc("RK3588", "aarch64", 1.0, 1.0, 7.5),
    soc("RK3566", "aarch64", 3.1, 1.0, 3.2),
    // One big core, one small core.
    soc("Dimensity 900", "aarch64", 1.6, 1.7, 4.1),
    Soc { device: Some(0.5), ..soc("Jetson Orin Nano", "aarch64", 0.9, 1.0, 11.0) },
    soc("N100", "x86_64", 0.7, 1.0, 9.5),
];

struct Model {
    file: &'static str,
    layers: u32,
    weights: u16,
    experts: bool,
    time: f64,
}

const MODELS: [Model; 4] = [
    Model { file: "small-1b-q4_0.gguf", layers: 2, weights: Q4_0_WEIGHTS, experts: false, time: 1.0 },
    Model { file: "small-1b-q8_0.gguf", layers: 2, weights: Q8_0_WEIGHTS, experts: false, time: 1.8 },
    Model { file: "mid-3b-q4_0.gguf", layers: 3, weights: Q4_0_WEIGHTS, experts: false, time: 2.2 },
    Model { file: "moe-8x1b-q4_0.gguf", layers: 2, weights: Q4_0_WEIGHTS, experts: true, time: 1.3 },
];

/// The engine's builds; the second is slower in one op.
const BUILDS: [(&str, &str); 2] = [("b6000", "5eed0000a1"), ("b6100", "5eed0000b2")];
pub const SLOWER: f64 = 1.08;

/// GUID of GGML's CPU backend.
const CPU: [u8; 16] = 0xaa67c743_96e6a38a_e3afea92_36bcfc89_u128.to_be_bytes();
/// 2026-03-02, 00:00 UTC.
const BEGIN: u64 = 1_772_409_600_000_000_000;
const DAY: u64 = 86_400_000_000_000;
/// Decoded tokens of a run.
const TOKENS: usize = 12;

/// Numbers from 0 to 1, the same each time.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }
}

/// Writes the traces of `boards` boards with `runs` runs each; returns their names.
pub fn generate(dir: &Path, boards: u64, runs: u64) -> Vec<PathBuf> {
    fs::create_dir_all(dir).expect("a directory for traces");
    let all = (0..boards).flat_map(|board| (0..runs).map(move |run| (board, run)));
    all.map(|(board, run)| {
        let path = dir.join(format!("board-{board:03}-{run:02}.pfi"));
        let out = File::create(&path).expect("a trace");
        record(out, board, run, runs);
        path
    })
    .collect()
}

/// One run. The first half of a board's runs has the first build.
fn record(out: File, board: u64, run: u64, runs: u64) {
    let soc = &SOCS[(board % 5) as usize];
    let model = &MODELS[(run % 4) as usize];
    let second_build = run >= runs.div_ceil(2);
    let (engine_version, engine_build) = BUILDS[usize::from(second_build)];
    let mut chance = Chance(board << 32 | run << 8 | 5);
    let minutes = (chance.next() * 1000.0) as u64;
    let origin = Origin {
        host: &format!("board-{board:03}"),
        cpu_model: soc.name,
        arch: soc.arch,
        real_ns: BEGIN + run / 4 * DAY + minutes * 60_000_000_000 + board,
        engine_version,
        engine_build,
        cmdline: &format!("llama-cli -m /models/{} -n {TOKENS} -t 2", model.file),
    };
    let spec =
        Spec { layers: model.layers, weights: model.weights, experts: model.experts, ..Spec::default() };
    let mut s = Synth::of(out, spec, &origin);
    s.backend = (CPU, "CPU");
    let scheduler = feature("scheduler", Availability::Whole, "");
    s.enc.feature(&scheduler).expect("a feature");
    s.enc.task(900, "hog").expect("a name");
    let begin = target_state(&mut s, StateAt::Start, 0);
    let widths: Vec<u32> = std::iter::once(16).chain([1; TOKENS]).collect();
    let mut faults = 0;
    let times = Times { soc, model, slow_op: second_build, board: 0.95 + 0.1 * (board % 7) as f64 / 6.0 };
    for width in widths {
        s.device = soc.device.map(|share| (share * 400_000.0 * model.time * f64::from(width).sqrt()) as u64);
        let seed = chance.0;
        let graph = s.graphs;
        let first = s.now + 3 * LEAD + s.device.unwrap_or(0);
        s.call(width, |p, t| times.op(p, t, width, seed));
        let after = (s.now - PAUSE) as i64;
        faults += interrupted(&mut s, board, model, first as i64, after, &mut chance);
        if model.experts {
            experts(&mut s, graph, model.layers, width, &mut chance);
        }
    }
    target_state(&mut s, StateAt::End, faults);
    power(&mut s, begin, soc.watts * (0.97 + 0.06 * chance.next()));
    s.enc.finish(&footer("target exited")).expect("a whole trace");
}

/// What the time of an op depends on.
struct Times<'t> {
    soc: &'t Soc,
    model: &'t Model,
    slow_op: bool,
    board: f64,
}

impl Times<'_> {
    /// ns.
    fn op(&self, position: usize, thread: u16, width: u32, seed: u64) -> u64 {
        let mut noise = Chance(seed ^ (position as u64) << 24 ^ u64::from(thread) << 16);
        noise.next();
        // A layer's hits, as in the engine's plan: one with experts has one less.
        let (hits, dense) = if self.model.experts { (14, false) } else { (15, true) };
        let in_layer =
            position.checked_sub(1).filter(|p| *p < hits * self.model.layers as usize).map(|p| p % hits);
        let kind = match in_layer {
            // The projections of attention.
            Some(1 | 3 | 5 | 7) => 14_000.0,
            // The feed-forward network: gate, up and down, or up and down of the experts.
            Some(10 | 11) if dense => 40_000.0,
            Some(13) if dense => 44_000.0,
            Some(11 | 12) if !dense => 60_000.0,
            _ => 2_000.0,
        };
        let slower = if self.slow_op && dense && in_layer == Some(11) { SLOWER } else { 1.0 };
        let second = if thread == 1 { self.soc.second } else { 1.0 };
        let of = self.soc.time * self.model.time * self.board * slower * second * f64::from(width).sqrt();
        (kind * of * (0.98 + 0.04 * noise.next())) as u64
    }
}

/// Every tenth board has a program that takes the CPU away. Large weights do not fit into the memory of the small
/// boards. Returns the number of faults with I/O.
fn interrupted(
    s: &mut Synth<File>,
    board: u64,
    model: &Model,
    from: i64,
    to: i64,
    chance: &mut Chance,
) -> u64 {
    let span = (to - from).max(10);
    let at = |share: f64| from + (share * span as f64) as i64;
    if board % 10 == 3 {
        let t = at(0.1 + 0.2 * chance.next());
        s.enc
            .off_cpu(&preempted(1, t, (span as f64 * (0.1 + 0.1 * chance.next())) as u64))
            .expect("an interval");
    }
    if board % 5 != 1 || model.weights != Q8_0_WEIGHTS {
        return 0;
    }
    let t = at(0.5 + 0.1 * chance.next());
    s.enc.off_cpu(&faulted(0, t, (span as f64 * 0.05) as u64)).expect("an interval");
    3
}

/// A layer chooses two of eight experts, the first ones more often.
fn experts(s: &mut Synth<File>, graph: u64, layers: u32, width: u32, chance: &mut Chance) {
    for layer in 0..layers {
        let Some((ids, weights)) = s.expert_tensors(width, layer) else { continue };
        let rows = ExpertRows { graph, ids, weights, used: 2, tokens: width, first: 0, why: "" };
        let mut chosen = Vec::new();
        for _ in 0..width {
            let first = (8.0 * chance.next() * chance.next()) as i32;
            let second = (first + 1 + (7.0 * chance.next()) as i32) % 8;
            chosen.extend([first, second]);
        }
        s.enc.experts(&rows, &chosen).expect("choices");
    }
}

/// Returns when it was read.
fn target_state(s: &mut Synth<File>, at: StateAt, major: u64) -> u64 {
    let mono_ns = s.now;
    let state = TargetState {
        pid: PID,
        at,
        mono_ns,
        affinity: "0-1",
        online: "0-1",
        minor_faults: Some(1000 + 40 * (at as u64)),
        major_faults: Some(major),
        ..TargetState::default()
    };
    s.enc.target_state(&state).expect("a state");
    mono_ns
}

/// A meter at the board's input, read often enough for calls of a millisecond.
fn power(s: &mut Synth<File>, from: u64, watts: f64) {
    let sensor = Sensor {
        id: 0,
        name: "input",
        kind: SensorKind::Power,
        path: "/sys/class/hwmon/hwmon0/power1_input",
        interval_ns: 0,
        cpus: "",
        origin: SensorOrigin::Device,
    };
    s.enc.sensor(&sensor).expect("a sensor");
    let (to, n) = (s.now, 24);
    for i in 0..=n {
        let t = from + (to - from) * i / n;
        // A meter is never quite still.
        let value = (watts * 1e6) as i64 + (i % 3) as i64 * 1000;
        s.enc.sample(t as i64, &[(0, value)]).expect("a sample");
    }
}
