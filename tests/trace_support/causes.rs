//! One or a few records of each attribution kind.

use std::io::Write;

use pfi::record::*;
use pfi::*;

use super::PID;

pub fn counter(id: u32, running_ns: u64) -> Counter<'static> {
    Counter {
        id,
        name: ["cycles", "l3d_cache_refill"][id as usize % 2],
        unit: ["events", "bytes"][id as usize % 2],
        scale: 1 + 63 * (id % 2),
        events: "armv8_cortex_a55/0x11 on 0-1",
        state: [Availability::Whole, Availability::Partly][id as usize % 2],
        why: "",
        enabled_ns: 5_000_000_000,
        running_ns,
    }
}

pub fn off_cpu(t: u64, by: u32) -> OffCpu {
    OffCpu {
        pid: PID,
        tid: PID + 1,
        t: t as i64,
        dur: 12_345,
        runnable: (by != 3).then_some(2345),
        state: if by == 3 { 2 } else { 0 },
        io: if by == 3 { Tristate::Yes } else { Tristate::No },
        fault: Tristate::Unknown,
        cpu: 1,
        to_cpu: 0,
        by,
        from: 77,
        waker: 0,
        cut: false,
    }
}

/// Writes records of every attribution kind for graph 0 with plan `plan`, which uses tensors 1 and 2.
pub fn write<W: Write>(e: &mut Encoder<W>, plan: u32, t: u64) {
    for id in [0, 3] {
        e.counter(&counter(id, 0)).unwrap();
    }
    let run = CounterRun { graph: 0, ith: 1, plan, first: 2, counters: 0b1001 };
    e.op_counts(&run, &[Some(1_000_000), Some(0), None, Some(u64::MAX - 1), Some(7), None]).unwrap();
    // The last slice repeats a CPU, and time runs backwards once.
    let cpus =
        [(t, Some(1)), (t + 900, Some(1)), (t + 800, None), (t + 2000, Some(300)), (t + 3000, Some(300))];
    e.op_cpus(PID + 1, cpus).unwrap();
    e.op_cpus(PID + 1, [(t + 4000, Some(300))]).unwrap();
    e.op_cpus(PID, [(t + 5000, Some(0))]).unwrap();
    e.task(77, "kworker/0:1").unwrap();
    e.task(3, "stress").unwrap();
    e.off_cpu(&off_cpu(t, 3)).unwrap();
    e.task(77, "renamed").unwrap();
    e.off_cpu(&off_cpu(t + 100_000, 0)).unwrap();
    let rows = ExpertRows { graph: 0, ids: 1, weights: 2, used: 2, tokens: 3, first: 1, why: "" };
    e.experts(&rows, &[5, 0, -1, 59]).unwrap();
    e.experts(&ExpertRows { why: "device memory", first: 0, ..rows }, &[]).unwrap();
    let what = "tokenize";
    e.phase_call(&PhaseCall { what, pid: PID, tid: PID, t: t as i64 - 500, dur: 400, cut: true }).unwrap();
    let call = SamplerCall {
        sampler: 1,
        pid: PID,
        tid: PID,
        t: t as i64 - 450,
        dur: 300,
        within: 1 << 40,
        accept: false,
    };
    e.sampler_call(&call).unwrap();
    e.sampler_name(&SamplerName { id: 1, name: "top-k", why: "" }).unwrap();
    e.sampler_name(&SamplerName { id: 9, name: "", why: "its process had ended" }).unwrap();
    e.sampler_call(&SamplerCall { sampler: 0, accept: true, within: 0, ..call }).unwrap();
    let setting = "/sys/class/bdi/254:0/read_ahead_kb";
    e.read_file(&ReadFile { id: 0, name: "model.gguf", setting, read_ahead_kb: Some(8192) }).unwrap();
    let read = FileRead {
        pid: PID,
        tid: PID + 1,
        file: 0,
        t: t as i64 - 300,
        dur: 250,
        addr: 1 << 46,
        bytes: 1 << 17,
    };
    e.file_read(&read).unwrap();
    e.file_read(&FileRead { t: t as i64 + 7, dur: 0, addr: 0, ..read }).unwrap();
    e.tensor_data(&TensorData { tensor: 2, addr: 1 << 46 }).unwrap();
    let sensors = [
        (0, SensorKind::Power, SensorOrigin::Rail),
        (1, SensorKind::Temperature, SensorOrigin::Unknown),
        (2, SensorKind::Energy, SensorOrigin::Model),
        (3, SensorKind::Current, SensorOrigin::Device),
        (4, SensorKind::Pressure, SensorOrigin::Unknown),
    ];
    for (id, kind, origin) in sensors {
        let path = "/sys/class/thermal/thermal_zone0/temp";
        let sensor = Sensor { id, name: "soc", kind, path, interval_ns: 50_000_000, cpus: "0-1", origin };
        e.sensor(&sensor).unwrap();
    }
    e.sample(t as i64 + 1, &[(0, 2_500_000), (1, -4_500), (2, 77), (3, 500_000), (4, 1 << 40)]).unwrap();
    let why = "over the budget";
    let (predicted_ppm, measured_ppm) = (Some(9_000), None);
    let change = LevelChange { t: t as i64 + 2, to: Detail::Op, one_in: 4, predicted_ppm, measured_ppm, why };
    e.level_change(&change).unwrap();
    let feature = Feature { name: "scheduler", state: Availability::None, why: "no tracefs" };
    e.feature(&feature).unwrap();
    let run = EnqueueRun { split: 2, pid: PID, tid: PID, plan, first: 1, t: t as i64 + 3 };
    e.enqueued(&run, [(1, 300), (17, 1 << 40), (1, 0)].into_iter()).unwrap();
    let run = DispatchRun { split: 2, pid: PID, tid: PID, t: t as i64 - 1, kernels: 300, graphs: 1 };
    e.dispatches(&run, [1, 290, 0]).unwrap();
    let batches = Batches {
        split: 2,
        pid: PID,
        tid: PID,
        t: t as i64 - 1,
        written: 300,
        answered: 299,
        rpc_ns: 1 << 41,
        busy_ns: 1 << 40,
        npu_ns: 7_000,
        timed: 2,
        unprofiled: 290,
        timeless: 6,
    };
    e.batches(&batches).unwrap();
    for threads in [1, 2] {
        e.peaks(&peaks("all", threads)).unwrap();
    }
    for (at, since) in [(StateAt::Start, 4), (StateAt::Change, 5), (StateAt::End, 6)] {
        e.target_state(&target_state(at, t + since)).unwrap();
    }
    e.target_state(&TargetState { pid: PID + 9, mono_ns: t, ..TargetState::default() }).unwrap();
    e.kernel_name(4, "kernel_mul_mat").unwrap();
    let source = KernelSource::OpenClLayer;
    let run = KernelRun { pid: PID, tid: PID, source, queue: 1 << 40, error_ns: 1500 };
    e.device_kernels(&run, &kernels(t)).unwrap();
    let (source, device) = (SubmissionSource::Msm, "3d00000.gpu");
    e.device_ring(&DeviceRing { id: 2, source, device, name: "ring 0" }).unwrap();
    e.submissions(2, &submitted(t)).unwrap();
    let run = KernelRun { source: KernelSource::CuptiGraph, queue: 1 << 32 | 7, ..run };
    e.device_kernels(&run, &kernels(t)[..1]).unwrap();
    e.counter(&counter(3, 4_000_000_000)).unwrap();
    sequences(e, t);
}

/// A batch of a call in two records, a batch without a call, and changes of memory.
fn sequences<W: Write>(e: &mut Encoder<W>, t: u64) {
    let chunk = |seq, pos, tokens, outputs| Chunk { seq, pos, tokens, outputs };
    let context = 0x7f00_1234_5680;
    let batch = Ubatch {
        token: Some(0),
        pid: PID,
        tid: PID,
        t: t as i64 - 3,
        context,
        tokens: 520,
        unread: 0,
        whole: false,
        data: &[],
    };
    e.ubatch(&batch, [chunk(3, 17, 500, 1), chunk(0, 900, 1, 1)].into_iter()).unwrap();
    let more = Ubatch { tokens: 0, unread: 12, ..batch };
    e.ubatch(&more, [chunk(255, 0, 7, 7)].into_iter()).unwrap();
    let blind = Ubatch { token: None, context: 0, tokens: 4, whole: true, ..batch };
    e.ubatch(&blind, [chunk(0, -1, 4, 1)].into_iter()).unwrap();
    let content = Content { token: 0, pid: PID, t: t as i64, seq: 3, pos: 17, tokens: 20, data: &[] };
    e.content(&content, [5, 7, 0].into_iter()).unwrap();
    let call = MemoryCall {
        pid: PID,
        tid: PID,
        t: t as i64 - 7,
        context,
        what: MemoryChange::Remove,
        seq: 3,
        to: 0,
        from: 17,
        until: -1,
    };
    e.memory(&call).unwrap();
    e.memory(&MemoryCall { what: MemoryChange::Shift, seq: -1, to: -128, from: 256, until: 300, ..call })
        .unwrap();
    let task = ServerTask { pid: PID, tid: PID + 1, t: t as i64 - 9, task: 70, seq: None };
    e.server_task(&task).unwrap();
    e.server_task(&ServerTask { tid: PID, t: t as i64, seq: Some(3), ..task }).unwrap();
    let used = Usage {
        pid: PID,
        t: t as i64 - 2,
        cpu_us: Some(1 << 40),
        team_us: Some(9),
        yields: Some(7),
        preemptions: None,
        anonymous: Some(900 << 20),
        files: Some(4096),
        shared: Some(0),
        swapped: None,
    };
    e.usage(&used).unwrap();
    e.usage(&Usage { pid: PID, t: t as i64, ..Usage::default() }).unwrap();
}

/// 10 GB/s, 50 GFLOP/s and 200 Gop/s a thread.
pub fn peaks(cluster: &str, threads: u32) -> Peaks<'_> {
    let n = u64::from(threads);
    Peaks {
        cluster,
        cpus: "0-1",
        threads,
        measured_s: 1_764_000_000,
        read: 10_000 * n,
        read_small_pages: Some(9_000 * n),
        triad: None,
        f32: Some(50_000 * n),
        int8: Some(200_000 * n),
        isa: "avx2",
    }
}

/// A process that may use CPU 0 of two, at half its time, and was throttled since the start.
pub fn target_state(at: StateAt, mono_ns: u64) -> TargetState<'static> {
    let n = at as u64;
    TargetState {
        pid: PID,
        at,
        mono_ns,
        affinity: "0",
        threads: "4243:1;4244:0-1",
        online: "0-1",
        cpuset: "0-1",
        quota_us: Some(50_000),
        period_us: Some(100_000),
        quota_group: "/system.slice/llama.service",
        periods: Some(100 + 40 * n),
        throttled: Some(7 + 30 * n),
        throttled_us: Some(1_000_000 * n),
        policies: "0:powersave:800000:1200000:2400000;1::800000:2400000:2400000",
        huge_pages: "madvise",
        resident: Some(3 << 30),
        anon_huge: Some(0),
        file_huge: None,
        locked: Some(0),
        swapped: Some(4096),
        mem_total: Some(8 << 30),
        mem_available: Some(1 << 30),
        minor_faults: Some(5000),
        major_faults: Some(9 + 3 * n),
        memory_limit: Some(4 << 30),
        memory_group: "/engines/a",
        oom_kills: Some(n),
    }
}

/// A submission of which all is known, and one of which nothing is, that ended before it.
fn submitted(t: u64) -> [Submission; 2] {
    let all = Submission {
        pid: PID,
        queued: Some(t + 5),
        run: Some(t + 9),
        started: Some(t + 12),
        end: t + 900,
        busy: Some(888),
        clock: Some(710_000_000),
    };
    [all, Submission { end: t + 30, ..Submission::default() }]
}

/// Two kernels that were enqueued in the wrong order; the clock of the second was set back.
fn kernels(t: u64) -> [KernelTimes; 2] {
    let first = KernelTimes {
        name: 4,
        host: t + 9,
        queued: t + 11,
        submitted: t + 20,
        started: t + 40,
        ended: t + 90,
    };
    [first, KernelTimes { name: 5, host: t + 7, queued: t + 5, ..first }]
}
