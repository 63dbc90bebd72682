//! The file in tests/golden must remain readable and identical to the writer's output; the reader for Python, which shares
//! nothing with ours but docs/FORMAT.md, must read the same content.

use crate::common::skip;
use crate::trace_support;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use pfi::record::*;
use pfi::*;
use trace_support::*;

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(path)
}

/// Sum of the numbers of a call, as encoded.
fn sum_of_fields(record: &Record) -> Option<i128> {
    let some = |v: Option<u64>| v.map_or(0, |v| i128::from(v) + 1);
    let some32 = |v: Option<u32>| some(v.map(u64::from));
    let sum = |v: &[u64]| v.iter().map(|v| i128::from(*v)).sum::<i128>();
    let device = |d: Device| match d {
        Device::Idle => 0,
        Device::Unseen => 1,
        Device::Busy(ns) => i128::from(ns) + 2,
    };
    Some(match record {
        Record::Token(r) => {
            let v = [r.seq, r.pid.into(), r.tid.into(), r.entry as u64, r.t as u64, r.dur, r.cut.into()];
            sum(&v) + some32(r.n_tokens) + device(r.device)
        }
        Record::Graph(r) => {
            let v = [r.seq, r.pid.into(), r.tid.into(), r.cgraph, r.n_nodes.into(), r.ubatch.into()];
            sum(&v) + sum(&[r.t as u64, r.dur, r.cut.into()]) + some(r.token) + device(r.device)
        }
        Record::Split(r) => {
            let v = [r.seq, r.backend.into(), r.pid.into(), r.tid.into(), r.n_nodes.into(), r.t as u64];
            sum(&v) + sum(&[r.dur, r.cut.into()]) + some(r.graph) + device(r.device) + some32(r.plan)
        }
        Record::CpuGraph(r) => {
            let v =
                [r.seq, r.pid.into(), r.tid.into(), r.n_nodes.into(), r.n_threads.into(), r.ubatch.into()];
            let w = [r.t as u64, r.dur, r.seen.into(), r.barrier.into(), r.cut.into()];
            sum(&v) + sum(&w) + some(r.graph) + some(r.split) + some32(r.plan) + some32(r.expected)
        }
        Record::Slices(r) => {
            let v = [r.graph, r.ith.into(), r.tid.into(), r.plan.into(), r.first.into(), r.n.into()];
            sum(&v) + sum(&[r.t as u64, r.barrier.into()])
        }
        _ => return None,
    })
}

/// Sum of the numbers of a cause, the lengths of its texts and the numbers in its data.
fn sum_of_cause(record: &Record) -> Option<i128> {
    let some = |v: Option<u64>| v.map_or(0, |v| i128::from(v) + 1);
    let sum = |v: &[u64]| v.iter().map(|v| i128::from(*v)).sum::<i128>();
    let text = |v: &[&str]| v.iter().map(|v| v.len() as i128).sum::<i128>();
    Some(match record {
        Record::Counter(r) => {
            let v = [r.id.into(), r.scale.into(), r.state as u64, r.enabled_ns, r.running_ns];
            sum(&v) + text(&[r.name, r.unit, r.events, r.why])
        }
        Record::OpCounts(r) => {
            let v = [r.graph, r.ith.into(), r.plan.into(), r.first.into(), r.n.into(), r.counters.into()];
            sum(&v) + counts(r).map(some).sum::<i128>()
        }
        Record::OffCpu(r) => {
            let v = [r.pid.into(), r.tid.into(), r.t as u64, r.dur, r.state.into(), r.io as u64];
            let w = [r.fault as u64, r.cpu.into(), r.to_cpu.into(), r.by.into(), r.from.into()];
            sum(&v) + sum(&w) + some(r.runnable) + sum(&[r.waker.into(), r.cut.into()])
        }
        Record::OpCpus(r) => {
            let mut before = r.t;
            let changes = cpu_changes(r)
                .map(|(t, cpu)| i128::from(t - std::mem::replace(&mut before, t)) + some(cpu.map(u64::from)));
            i128::from(r.tid) + i128::from(r.t) + changes.sum::<i128>()
        }
        Record::Task(r) => i128::from(r.tid) + text(&[r.comm]),
        Record::Experts(r) => {
            let v = [r.graph, r.ids.into(), r.weights.into(), r.used.into(), r.tokens.into(), r.first.into()];
            sum(&v) + i128::from(r.rows) + text(&[r.why]) + expert_ids(r).map(i128::from).sum::<i128>()
        }
        Record::PhaseCall(r) => {
            let v = [r.pid.into(), r.tid.into(), r.t as u64, r.dur, r.cut.into()];
            sum(&v) + text(&[r.what])
        }
        Record::SamplerName(r) => i128::from(r.id) + text(&[r.name, r.why]),
        Record::SamplerCall(r) => {
            let v = [r.sampler.into(), r.pid.into(), r.tid.into(), r.t as u64, r.dur, r.within];
            sum(&v) + i128::from(r.accept)
        }
        Record::FileRead(r) => {
            sum(&[r.pid.into(), r.tid.into(), r.file.into(), r.t as u64, r.dur, r.addr, r.bytes])
        }
        Record::TensorData(r) => sum(&[r.tensor.into(), r.addr]),
        Record::ReadFile(r) => i128::from(r.id) + some(r.read_ahead_kb) + text(&[r.name, r.setting]),
        Record::Sensor(r) => {
            sum(&[r.id.into(), r.kind as u64, r.interval_ns, r.origin as u64])
                + text(&[r.name, r.path, r.cpus])
        }
        Record::Sample(r) => {
            let values = sensor_values(r).map(|(id, v)| i128::from(id) + i128::from(v));
            i128::from(r.t) + values.sum::<i128>()
        }
        Record::LevelChange(r) => {
            let ppm = some(r.predicted_ppm.map(u64::from)) + some(r.measured_ppm.map(u64::from));
            i128::from(r.t) + r.to as i128 + i128::from(r.one_in) + ppm + text(&[r.why])
        }
        Record::Enqueued(r) => {
            let v = [r.split, r.pid.into(), r.tid.into(), r.plan.into(), r.first.into(), r.t as u64];
            let groups = enqueued_groups(r).map(|(nodes, ns)| i128::from(nodes) + i128::from(ns));
            sum(&v) + groups.sum::<i128>()
        }
        Record::Dispatches(r) => {
            let v = [r.split, r.pid.into(), r.tid.into(), r.t as u64, r.kernels.into(), r.graphs.into()];
            sum(&v) + group_kernels(r).map(i128::from).sum::<i128>()
        }
        Record::Batches(r) => {
            let v = [r.split, r.pid.into(), r.tid.into(), r.t as u64, r.rpc_ns, r.busy_ns, r.npu_ns];
            let counts = [r.written, r.answered, r.timed, r.unprofiled, r.timeless];
            sum(&v) + sum(&counts.map(u64::from))
        }
        Record::Peaks(r) => {
            let rates = [r.read_small_pages, r.triad, r.f32, r.int8];
            sum(&[r.threads.into(), r.measured_s, r.read])
                + rates.map(some).iter().sum::<i128>()
                + text(&[r.cluster, r.cpus, r.isa])
        }
        Record::TargetState(r) => {
            let numbers = [r.quota_us, r.period_us, r.periods, r.throttled, r.throttled_us, r.resident];
            let memory = [r.anon_huge, r.file_huge, r.locked, r.swapped, r.mem_total, r.mem_available];
            let faults = [r.minor_faults, r.major_faults, r.memory_limit, r.oom_kills];
            let all = numbers.into_iter().chain(memory).chain(faults).map(some).sum::<i128>();
            let cpus = text(&[r.affinity, r.threads, r.online, r.cpuset]);
            sum(&[r.pid.into(), r.at as u64, r.mono_ns])
                + all
                + cpus
                + text(&[r.quota_group, r.policies, r.huge_pages, r.memory_group])
        }
        Record::KernelName(r) => i128::from(r.id) + text(&[r.name]),
        Record::DeviceKernels(r) => {
            let v = [r.pid.into(), r.tid.into(), r.source as u64, r.queue, r.error_ns, r.t as u64];
            let mut before = r.t as u64;
            let sums = kernel_times(r).map(|k| {
                let since = i128::from(k.ended) - i128::from(std::mem::replace(&mut before, k.host));
                i128::from(k.name) + since
            });
            sum(&v) + sums.sum::<i128>()
        }
        Record::DeviceRing(r) => i128::from(r.id) + r.source as i128 + text(&[r.device]) + text(&[r.name]),
        Record::Submissions(r) => {
            let all = submissions(r).map(|s| {
                let times = [s.queued, s.run, s.started].map(|at| at.map(|at| s.end - at));
                let known = [times.as_slice(), &[s.busy, s.clock]].concat();
                i128::from(s.pid) + i128::from(s.end) + known.into_iter().map(some).sum::<i128>()
            });
            i128::from(r.ring) + i128::from(r.t) + all.sum::<i128>()
        }
        Record::Feature(r) => r.state as i128 + text(&[r.name, r.why]),
        Record::Ubatch(r) => {
            let v = [r.pid.into(), r.tid.into(), r.t as u64, r.context, r.tokens.into(), r.unread.into()];
            let of_chunk = |c: Chunk| i128::from(c.seq) + i128::from(c.pos) + sum(&[c.tokens, c.outputs]);
            some(r.token) + sum(&v) + i128::from(r.whole) + chunks(r).map(of_chunk).sum::<i128>()
        }
        Record::Memory(r) => {
            let places = [r.seq, r.to, r.from, r.until].map(i128::from).iter().sum::<i128>();
            sum(&[r.pid.into(), r.tid.into(), r.t as u64, r.context, r.what as u64]) + places
        }
        Record::Content(r) => {
            let places = i128::from(r.seq) + sum(&[r.pos, r.tokens]);
            sum(&[r.token, r.pid.into(), r.t as u64])
                + places
                + content_hashes(r).map(i128::from).sum::<i128>()
        }
        Record::Usage(r) => {
            let memory = [r.anonymous, r.files, r.shared, r.swapped].map(some).iter().sum::<i128>();
            let times = [r.cpu_us, r.team_us, r.yields, r.preemptions].map(some).iter().sum::<i128>();
            sum(&[r.pid.into(), r.t as u64]) + memory + times
        }
        Record::ServerTask(r) => {
            sum(&[r.pid.into(), r.tid.into(), r.t as u64]) + i128::from(r.task) + some(r.seq)
        }
        _ => return None,
    })
}

/// The expected output of python/tests/test_counts.py, from our reader.
pub fn summary(trace: &Trace) -> Vec<String> {
    let (mut count, mut tensors) = (BTreeMap::<String, i128>::new(), BTreeMap::new());
    let mut add = |key: String, n: i128| *count.entry(key).or_default() += n;
    for i in 0..trace.blocks().len() {
        add("blocks".into(), 1);
        let (mut ops, mut ids, mut plans) = (HashMap::new(), HashMap::new(), HashMap::new());
        for r in trace.block(i).unwrap().records().map(Result::unwrap) {
            assert!(format!("{r:?}").starts_with(KIND_NAMES[r.kind()]));
            add(format!("kind {}", r.kind()), 1);
            if let Some(sum) = sum_of_fields(&r).or_else(|| sum_of_cause(&r)) {
                add(format!("sum of kind {}", r.kind()), sum);
            }
            match r {
                Record::Header(h) => add(format!("source {}", h.source as u32), 1),
                Record::OpDef(d) => {
                    ops.insert(d.id, d.desc);
                }
                Record::Tensor(TensorRecord { id, tensor: t }) => {
                    let op = if t.known { ops.get(&t.op).copied().unwrap_or("?") } else { "?" };
                    ids.insert(id, op);
                    let coded = |s: &Option<u32>| s.map_or(0, |s| s.wrapping_add(1));
                    let (src, view) = (t.src.iter().map(coded).collect::<Vec<_>>(), coded(&t.view_src));
                    let nb = t.nb.map_or(Vec::new(), |nb| nb.to_vec());
                    let Tensor { addr, name, ne, .. } = &t;
                    let text = format!("tensor {id} {addr:x} {name} {op} {ne:?} {nb:?} {src:?} {view}");
                    tensors.insert(id, text);
                }
                Record::Plan(p) => {
                    plans.insert(p.id, plan_hits(&p).collect::<Vec<_>>());
                }
                Record::Slices(s) => {
                    for (k, slice) in slice_iter(&s).enumerate() {
                        let hit: PlanHit = plans[&s.plan][s.first as usize + k];
                        let op = ids.get(&hit.tensor).copied().unwrap_or("?");
                        add(format!("slices {op}"), 1);
                        add(format!("busy {op}"), slice.busy.unwrap_or(0).into());
                        add("sum of starts".into(), slice.start.into());
                    }
                }
                _ => {}
            }
        }
    }
    let mut lines: Vec<String> = count.iter().map(|(k, v)| format!("{k}: {v}")).collect();
    lines.extend(tensors.into_values());
    lines.sort();
    lines
}

/// Without extension: `.pfi` is the file, `.txt` its content. The newest comes last.
const GOLDEN: [&str; 14] = [
    "golden/small",
    "golden/small-1.1",
    "golden/small-1.2",
    "golden/small-1.3",
    "golden/small-1.4",
    "golden/small-1.5",
    "golden/small-1.6",
    "golden/small-1.7",
    "golden/small-1.8",
    "golden/small-1.9",
    "golden/small-1.10",
    "golden/small-1.11",
    "golden/small-1.12",
    "golden/small-1.13",
];
const NEWEST: &str = GOLDEN[GOLDEN.len() - 1];

fn golden(name: &str) -> Trace {
    Trace::open(&at(&format!("{name}.pfi"))).unwrap()
}

/// Rows that are otherwise equal keep their order from one run to the next.
#[test]
fn views_are_the_same_each_time() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/small.pfi");
    for args in [&["stat", "--json", file][..], &["diff", "--json", file, file], &["report", "--json", file]]
    {
        let shown = || {
            let out = std::process::Command::new(env!("CARGO_BIN_EXE_profinfer")).args(args).output();
            let out = out.expect("it runs");
            assert!(out.status.success(), "{args:?}");
            out.stdout
        };
        let first = shown();
        assert!((0..8).all(|_| shown() == first), "{args:?}");
    }
}

#[test]
fn the_golden_files_stay_readable() {
    for name in GOLDEN {
        let trace = golden(name);
        assert!(trace.verify().is_empty(), "{name}: {:?}", trace.verify());
        let expected = std::fs::read_to_string(at(&format!("{name}.txt"))).unwrap();
        assert_eq!(summary(&trace), expected.lines().collect::<Vec<_>>(), "{name}");
    }
}

/// A change here is allowed when a minor version adds to the format: then a new golden file is added.
#[test]
fn the_writer_still_makes_the_golden_file() {
    assert!(std::fs::read(at(&format!("{NEWEST}.pfi"))).unwrap() == golden_file());
}

fn python_reader(file: &Path) -> Option<Vec<String>> {
    let run = Command::new("python3")
        .arg("-B")
        .arg(at("../python/tests/test_counts.py"))
        .arg(file)
        .output()
        .ok()?;
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Some(String::from_utf8(run.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn the_reader_for_python_sees_the_same() {
    for name in GOLDEN {
        let Some(seen) = python_reader(&at(&format!("{name}.pfi"))) else {
            skip!("no python3 on this machine");
        };
        assert_eq!(seen, summary(&golden(name)), "{name}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("larger.pfi");
    let mut e =
        Encoder::new(Vec::new(), EncoderConfig { block_bytes: 8192, ..Default::default() }, &header())
            .unwrap();
    setup(&mut e);
    let plan = model(&mut e, 4);
    decode(&mut e, plan, 73, 0..20, Times::Even);
    let (plan, _) = odd_tensors(&mut e, 900);
    e.cpu_graph(&cpu_graph(0, plan, 1, 2)).unwrap();
    std::fs::write(&path, e.finish(&footer()).unwrap()).unwrap();
    assert_eq!(python_reader(&path).unwrap(), summary(&Trace::open(&path).unwrap()));
}

/// Writes the golden files; run by hand (`--ignored`) when a new one is needed.
#[test]
#[ignore = "writes into the source tree"]
fn write_golden_file() {
    std::fs::write(at(&format!("{NEWEST}.pfi")), golden_file()).unwrap();
    std::fs::write(at(&format!("{NEWEST}.txt")), summary(&golden(NEWEST)).join("\n") + "\n").unwrap();
}
