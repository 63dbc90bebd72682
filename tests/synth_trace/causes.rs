//! Attribution records for synthetic traces, with values known to the nanosecond.

use super::*;

/// Start of the first op in the synthetic engine's first call.
pub const FIRST_OP: u64 = ORIGIN + 3 * LEAD;

/// Start of position `p` in a graph whose first op starts at `first`; `slowest` gives the slowest thread's time.
pub fn start_of(first: u64, p: usize, slowest: impl Fn(usize) -> u64) -> i64 {
    (first + (0..p).map(|p| slowest(p) + SYNC).sum::<u64>()) as i64
}

/// A thread that was preempted by thread 900.
pub fn preempted(ith: u32, t: i64, dur: u64) -> OffCpu {
    OffCpu {
        pid: PID,
        tid: TID + ith,
        t,
        dur,
        runnable: Some(dur),
        state: 0,
        io: Tristate::No,
        fault: Tristate::No,
        cpu: ith as u16,
        to_cpu: ith as u16,
        by: 900,
        from: 900,
        waker: 0,
        cut: false,
    }
}

/// A thread that slept, the last `runnable` ns of it waiting for 901 to release the CPU.
pub fn slept(ith: u32, t: i64, dur: u64, runnable: u64) -> OffCpu {
    OffCpu { state: 1, runnable: Some(runnable), by: 0, from: 901, ..preempted(ith, t, dur) }
}

/// A thread that waited inside a page fault.
pub fn faulted(ith: u32, t: i64, dur: u64) -> OffCpu {
    OffCpu {
        state: 2,
        runnable: Some(0),
        fault: Tristate::Yes,
        io: Tristate::Yes,
        by: 0,
        from: 0,
        ..preempted(ith, t, dur)
    }
}

pub fn feature<'a>(name: &'a str, state: Availability, why: &'a str) -> Feature<'a> {
    Feature { name, state, why }
}

pub fn counter<'a>(id: u32, name: &'a str, unit: &'a str, scale: u32) -> Counter<'a> {
    let (enabled_ns, running_ns) = (1000, 1000);
    Counter {
        id,
        name,
        unit,
        scale,
        events: "cpu/x",
        state: Availability::Whole,
        why: "",
        enabled_ns,
        running_ns,
    }
}

pub fn phase_call(what: &str, t: u64, dur: u64) -> PhaseCall<'_> {
    PhaseCall { what, pid: PID, tid: TID, t: t as i64, dur, cut: false }
}

/// The samplers that [`sampled`] calls, by id.
pub const SAMPLERS: [&str; 3] = ["chain", "top-k", "dist"];

/// A call of a sampler within sampling.
pub fn sampler_call(sampler: u32, t: u64, (dur, within): (u64, u64)) -> SamplerCall {
    SamplerCall { sampler, pid: PID, tid: TID, t: t as i64, dur, within, accept: false }
}

/// A call of sampling of this duration: a chain of two samplers, which take 100 and 150 ns, in 300 ns.
pub fn sampling(s: &mut Synth<Vec<u8>>, t: u64, dur: u64) {
    s.enc.sampler_call(&sampler_call(2, t + 20, (100, 0))).unwrap();
    s.enc.sampler_call(&sampler_call(3, t + 130, (150, 0))).unwrap();
    s.enc.sampler_call(&sampler_call(1, t + 10, (300, 250))).unwrap();
    s.enc.sampler_call(&SamplerCall { accept: true, ..sampler_call(2, t + 320, (40, 0)) }).unwrap();
    for (id, name) in (1..).zip(SAMPLERS) {
        s.enc.sampler_name(&SamplerName { id, name, why: "" }).unwrap();
    }
    s.enc.phase_call(&phase_call("sampling", t, dur)).unwrap();
}

/// The feature of [`file_reads`].
pub const FILE_READS: &str = "file reads";
/// Where the weights of the experts of layer 0 are, once [`file_reads`] has told.
pub const EXPERT_DATA: u64 = 1 << 40;

/// From `t` on, so many bytes of the experts of layer 0 twice, and a page by a system call.
pub fn file_reads(s: &mut Synth<Vec<u8>>, t: i64, bytes: u64) {
    let setting = "/sys/class/bdi/254:0/read_ahead_kb";
    s.enc.read_file(&ReadFile { id: 3, name: "model.gguf", setting, read_ahead_kb: Some(8192) }).unwrap();
    if let Some((_, tensor)) = s.expert_tensors(1, 0) {
        s.enc.tensor_data(&TensorData { tensor, addr: EXPERT_DATA }).unwrap();
    }
    let read = FileRead { pid: PID, tid: TID, file: 3, t, dur: 90, addr: EXPERT_DATA, bytes };
    s.enc.file_read(&read).unwrap();
    s.enc.file_read(&FileRead { t: t + 100, ..read }).unwrap();
    s.enc.file_read(&FileRead { t: t + 200, addr: 0, bytes: 4096, ..read }).unwrap();
}

/// A prompt and so many tokens, whose experts are known, and read from storage during their calls: each time the same bytes,
/// more than a call needs. Between two calls as many are read.
pub fn stored(calls: i32) -> Synth<Vec<u8>> {
    let mut s = Synth::new(Vec::new(), Spec { experts: true, ..Spec::default() });
    s.enc.feature(&feature(FILE_READS, Availability::Whole, "made up")).unwrap();
    let even = |p: usize, t: u16| 1000 + 977 * p as u64 + 13 * u64::from(t);
    s.call(7, even);
    for i in 0..calls {
        let (graph, t) = (s.graphs, s.now as i64);
        s.call(1, even);
        file_reads(&mut s, t + 10, 1 << 16);
        let before = s.now as i64 - 1000;
        file_reads(&mut s, before, 1 << 16);
        for layer in 0..s.spec.layers {
            let (ids, weights) = s.expert_tensors(1, layer).unwrap();
            let rows = pfi::ExpertRows { graph, ids, weights, used: 2, tokens: 1, first: 0, why: "" };
            s.enc.experts(&rows, &[i % 4, 7 - i % 4]).unwrap();
        }
    }
    s
}

/// One of each kind of attribution record, next to the most recently written graph.
pub fn one_of_each(s: &mut Synth<Vec<u8>>) {
    use pfi::{CounterRun, ExpertRows};
    let (graph, t) = (s.graphs - 1, s.now - 10_000);
    for name in ["scheduler", "counters", "experts", "phases", "samplers", "sensors", "budget"] {
        s.enc.feature(&feature(name, Availability::Partly, "made up")).unwrap();
    }
    let names = ["cycles", "instructions", "major-faults"];
    for (id, name) in (0..).zip(names) {
        s.enc.counter(&counter(id, name, "events", 1)).unwrap();
    }
    s.enc.counter(&counter(3, "l3d_cache_refill", "bytes", 64)).unwrap();
    for ith in 0..s.spec.threads {
        let run = CounterRun { graph, ith, plan: 0, first: 0, counters: 0xf };
        let told: Vec<_> = (0..40).map(|i| (i % 7 != 0).then_some(1000 + i)).collect();
        s.enc.op_counts(&run, &told).unwrap();
    }
    s.enc.task(900, "hog").unwrap();
    for (ith, back) in [(0, 9000), (1, 8000), (0, 5000)] {
        s.enc.off_cpu(&preempted(ith, (t - back) as i64, 700)).unwrap();
        s.enc.off_cpu(&slept(ith, (t - back) as i64 + 900, 800, 100)).unwrap();
        s.enc.off_cpu(&faulted(ith, (t - back) as i64 + 1800, 90)).unwrap();
    }
    let rows = ExpertRows { graph, ids: 20, weights: 21, used: 2, tokens: 2, first: 0, why: "" };
    s.enc.experts(&rows, &[1, 2, 3, 4]).unwrap();
    sampling(s, t, 500);
    for (id, kind) in [(0, SensorKind::Power), (1, SensorKind::Energy), (2, SensorKind::Frequency)] {
        s.enc
            .sensor(&Sensor {
                id,
                name: "x",
                kind,
                path: "/x",
                interval_ns: 0,
                cpus: "0-1",
                origin: pfi::record::SensorOrigin::Unknown,
            })
            .unwrap();
    }
    for i in 0..20 {
        s.enc.sample((t - 20_000 + 1000 * i) as i64, &[(0, 5), (1, i as i64), (2, 7)]).unwrap();
    }
    let (predicted_ppm, measured_ppm, why) = (Some(1), Some(2), "");
    let to = Detail::Scheduler;
    let level = LevelChange { t: t as i64, to, one_in: 1, predicted_ppm, measured_ppm, why };
    s.enc.level_change(&level).unwrap();
    let peaks = Peaks { cluster: "all", cpus: "0-1", threads: 1, read: 10_000, ..Peaks::default() };
    s.enc.peaks(&Peaks { measured_s: 1_764_000_000, ..peaks }).unwrap();
    let state = TargetState {
        pid: PID,
        affinity: "0",
        threads: "43:1",
        online: "0-1",
        quota_us: Some(50_000),
        period_us: Some(100_000),
        quota_group: "/g",
        periods: Some(5),
        throttled: Some(3),
        throttled_us: Some(70_000),
        policies: "0-1:powersave:1:2:3",
        ..TargetState::default()
    };
    for (at, mono_ns) in [(StateAt::Start, t), (StateAt::End, t + 5)] {
        let (periods, throttled) = (Some(5 + at as u64), Some(3 + at as u64));
        s.enc.target_state(&TargetState { at, mono_ns, periods, throttled, ..state }).unwrap();
    }
}
