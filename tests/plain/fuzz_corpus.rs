//! The fuzz targets on their corpora and on some mutations of each file, always the same: checks that the targets
//! compile and pass, and that the readers accept the corpora. `make fuzz` searches further.

use crate::dag_support;
use crate::html_support;
use crate::synth_trace;
#[path = "../../fuzz/src/targets.rs"]
mod targets;
use crate::trace_support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ggml::quant::TensorType;
use pfi::record::*;
use pfi::{Encoder, EncoderConfig};
use runner::synth::presets::{Arch, ExpertPreset, ExpertRouting, Preset};
use runner::synth::{self, DEFAULT_SEED, GraphForm, ModelSpec};
use synth_trace::causes::{one_of_each, stored};
use synth_trace::*;
use targets::{TARGETS, Target};

/// Mutated inputs per corpus file; few for views, because each input runs all of them.
const CHANGES: usize = 40;
const CHANGES_OF_VIEWS: usize = 6;

fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target.name)
}

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder(target)).unwrap_or_else(|e| panic!("{}: {e}", target.name));
    let mut files: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Deterministic numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Some bytes changed, removed, duplicated, or replaced with limits of their range.
    fn change(&mut self, input: &[u8]) -> Vec<u8> {
        let mut out = input.to_vec();
        for _ in 0..=self.below(4) {
            let (at, len) = (self.below(out.len()), 1 + self.below(16));
            let end = (at + len).min(out.len());
            match self.below(5) {
                0 => out[at..end].iter_mut().for_each(|b| *b = self.next() as u8),
                1 => drop(out.drain(at..end)),
                2 => {
                    let part = out[at..end].to_vec();
                    let to = self.below(out.len());
                    out.splice(to..to, part);
                }
                3 => out[at..end].fill([0, 0xff, 0x7f, 0x80][self.below(4)]),
                _ => out.iter_mut().skip(at).take(1).for_each(|b| *b ^= 1 << self.below(8)),
            }
            if out.is_empty() {
                break;
            }
        }
        out
    }
}

#[test]
fn every_target_holds_on_its_corpus_and_beside_it() {
    for target in &TARGETS {
        let files = corpus(target);
        assert!(!files.is_empty(), "{}: no corpus", target.name);
        let mut numbers = Numbers(1);
        for (path, bytes) in &files {
            assert!((target.valid)(bytes), "{} is refused at once", path.display());
            assert!(bytes.len() <= 64 << 10, "{}: {} bytes: too large", path.display(), bytes.len());
            (target.run)(bytes);
            for _ in 0..if target.name == "views" { CHANGES_OF_VIEWS } else { CHANGES } {
                (target.run)(&numbers.change(bytes));
            }
        }
    }
}

/// Reads from storage are in the files by name: `views` has those of experts, too.
#[test]
fn the_traces_have_every_kind_of_record() {
    for target in TARGETS.iter().filter(|t| ["trace", "views"].contains(&t.name)) {
        let files = corpus(target);
        let all: BTreeSet<usize> = files.iter().flat_map(|(_, bytes)| trace_support::kinds(bytes)).collect();
        let missing: Vec<&str> =
            (0..KIND_NAMES.len()).filter(|k| !all.contains(k)).map(|k| KIND_NAMES[k]).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", target.name);
        let of_reads = files.iter().find(|(path, _)| path.ends_with("reads")).map(|(_, bytes)| bytes);
        let found = trace_support::kinds(of_reads.expect("a file of reads"));
        for kind in ["FileRead", "TensorData", "ReadFile", "Experts"] {
            assert!(found.iter().any(|k| KIND_NAMES[*k] == kind), "{}: {kind}", target.name);
        }
    }
}

#[test]
fn every_corpus_has_a_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for entry in fs::read_dir(root).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(TARGETS.iter().any(|t| name == t.name), "{name:?}");
    }
}

#[test]
#[ignore = "writes what is made in fuzz/corpus; those of target elf come from a compiler (fuzz/README.md)"]
fn write_corpora() {
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let target = TARGETS.iter().find(|t| t.name == target).unwrap();
        fs::create_dir_all(folder(target)).unwrap();
        fs::write(folder(target).join(name), bytes).unwrap();
    };
    let made = [
        ("small", trace_support::small_file()),
        ("mixed", mixed()),
        ("page", html_support::rich(2)),
        ("graph", dag_support::run(dag_support::LLAMA, 1)),
        ("splits", with_splits()),
        ("reads", stored(2).enc.finish(&footer("signal")).unwrap()),
    ];
    for (name, bytes) in made {
        write("trace", name, &bytes);
        write("views", name, &bytes);
    }
    for (name, head) in models() {
        write("gguf", name, &head);
    }
    write("config", "example.toml", include_bytes!("../../conf/profinfer.toml"));
    write("config", "rules.toml", RULES.as_bytes());
    write("merge", "timeline", &perfetto());
    for (name, line) in [("status", "status"), ("dump", "dump 4242"), ("reload", "reload"), ("stop", "stop")]
    {
        write("socket", name, line.as_bytes());
    }
    write("socket", "state.json", STATE.as_bytes());
    write("events", "token", &token());
    for (name, text) in PROC {
        write("proc", name, text.as_bytes());
    }
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/tracepoints")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        write("tracepoint", path.file_stem().unwrap().to_str().unwrap(), &tracepoints(&text));
    }
}

/// A file of tests/tracepoints as the target reads it.
fn tracepoints(text: &str) -> Vec<u8> {
    let mut formats = String::new();
    let mut events = vec![u8::MAX];
    for line in text.lines() {
        match line.strip_prefix("event ").and_then(|event| event.rsplit(' ').next()) {
            Some(hex) => {
                events.push((hex.len() / 2) as u8);
                let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
                events.extend((0..hex.len()).step_by(2).map(byte));
            }
            // The same in each of them, and not read.
            None if line.contains("common_") || line.starts_with('#') => {}
            None => formats.extend([line, "\n"]),
        }
    }
    [formats.into_bytes(), events].concat()
}

/// Every kind of record, a few of each.
fn mixed() -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), Spec { experts: true, layers: 1, ..Spec::default() });
    s.call(4, |p, _| 1000 + p as u64);
    for i in 0..2 {
        s.backend = if i % 2 == 0 { ([7; 16], "CPU") } else { ([9; 16], "AMX") };
        s.call(1, |p, t| 1000 + 10 * p as u64 + u64::from(t) + i);
    }
    one_of_each(&mut s);
    s.process(7);
    s.call(1, |p, _| 1000 + p as u64);
    s.enc.finish(&footer("signal")).unwrap()
}

fn with_splits() -> Vec<u8> {
    let mut e = Encoder::new(Vec::new(), EncoderConfig::default(), &header(true)).unwrap();
    let backend = e.backend([7; 16], "OpenCL");
    let t = ORIGIN as i64;
    let split = Split {
        seq: 0,
        graph: None,
        backend,
        pid: PID,
        tid: TID,
        n_nodes: 2,
        t,
        dur: 50_000,
        cut: false,
        device: Device::Idle,
        plan: None,
    };
    e.split(&split).unwrap();
    e.finish(&footer("signal")).unwrap()
}

/// The part before the data of the smallest possible models.
fn models() -> Vec<(&'static str, Vec<u8>)> {
    const MICRO: Preset = Preset {
        name: "micro",
        about: "for fuzzing",
        arch: Arch::Llama,
        layers: 1,
        embd: 32,
        ff: 32,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        vocab: 300,
        context: 64,
        tied: true,
        rope_base: 10_000.0,
        experts: None,
    };
    static EXPERTS: Preset = Preset {
        arch: Arch::Qwen2Moe,
        experts: Some(ExpertPreset {
            count: 4,
            used: 2,
            ff: 32,
            shared_ff: 64,
            routing: ExpertRouting::Even,
        }),
        ..MICRO
    };
    static LLAMA: Preset = MICRO;
    let head = |preset: &'static Preset| {
        let order = ModelSpec {
            preset,
            ty: TensorType::F32,
            graph: GraphForm::Llama,
            seed: DEFAULT_SEED,
            threads: 1,
        };
        let file = synth::write(&order, Vec::new(), |_| ()).unwrap();
        let data = ggml::gguf::reader::Gguf::parse(&file).unwrap().data_offset as usize;
        file[..data].to_vec()
    };
    vec![("llama", head(&LLAMA)), ("experts", head(&EXPERTS))]
}

fn perfetto() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("run.pfi"), with_splits()).unwrap();
    let out = html_support::profinfer(dir.path(), &["export", "run.pfi", "--perfetto", "run.pftrace"]);
    assert!(out.status.success(), "{}", html_support::text(&out.stderr));
    fs::read(dir.path().join("run.pftrace")).unwrap()
}

const RULES: &str = "level = \"graph\"\nsched = true\n\n[service]\ndirectory = \"/data/p\"\nquota = \"2GiB\"\n\
keep = '7d'\ncpu = \"5%\"\n\n[[rule]]\nname = \"server\"\nexe = \"/usr/bin/llama-*\"\nuser = 0\n\
cgroup = \"/system.slice/**\"\nring = \"5min\"\ntrigger-below = \"5tok/s\"\npmc = [\"cycles\"]\nbudget = \"2%\"\n\n\
[[rule]]\nexe = \"llama-bench\"\nignore = true\n";

const PROC: [(&str, &str); 4] = [
    (
        "maps",
        "5581c0a00000-5581c0a02000 r--p 00000000 fe:00 1311                       /opt/llama/llama-server\n\
         5581c0a02000-5581c0a06000 r-xp 00002000 fe:00 1311                       /opt/llama/llama-server\n\
         7f2a10000000-7f2a10021000 rw-p 00000000 00:00 0 \n\
         7f2a14a00000-7f2a14b00000 r-xp 00001000 fe:00 77 /opt/llama/libggml\\012 cpu.so (deleted)\n\
         7ffd3c9e0000-7ffd3ca01000 rw-p 00000000 00:00 0                          [stack]\n\
         ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n",
    ),
    (
        "stat",
        "4242 (llama (x) 1) S 1 4242 4242 0 -1 4194304 2000 0 3 0 17 5 0 0 20 0 9 0 81234 734003200 9000 \
         18446744073709551615 94013423 94013999 140725603 0 0 0 0 4096 16384 0 0 0 17 1 0 0 0 0 0\n",
    ),
    ("status", "Name:\tllama-server\nTgid:\t4242\nUid:\t1000\t1001\t1002\t1003\nGid:\t100\t100\t100\t100\n"),
    ("cgroup", "1:name=systemd:/x\n0::/system.slice/llama server.service\n"),
];

const STATE: &str = r#"{"version":"0.1.0","pid":42,"since":"2026-11-21T20:41:43.123Z","state":"recording","finder":{"backend":"exec and mmap events","why":null},
"configuration":{"file":"/etc/profinfer/profinfer.toml","read":"2026-11-21T20:41:43.123Z","errors":["line 3: no such key"]},
"rules":[{"name":"chat","runs":2,"recorder":4712}],"counts":{"seen":3,"recorded":2,"sample_one_in":1},"directory":"/var/lib/profinfer",
"store":{"files":3,"writing":1,"bytes":1048576,"counted":3145728,"quota":536870912,"removed":9},"own":{"resident_bytes":4300800,"cpu_seconds":1.25},
"runs":[{"pid":42,"processes":[42],"exe":"/opt/llama-server","rule":"chat","level":"op","file":"x.pfi","tokens":1234,"ttft_ns":1500000000,
"rate":27.5,"tpot_ns":[36000000,37000000,48500000],"lost":3,"seen":1000,"cost":0.008,"ended":null}],"messages":[{"at":"x","text":"run 42 began"}]}"#;

/// Events of a token of three nodes on two threads, as the programs in the kernel send them.
fn token() -> Vec<u8> {
    use agent::capture::event::{Call, Head, KIND_NAMES, Nodes, Op, Tensor};
    fn put<T: Copy>(out: &mut Vec<u8>, event: &T) {
        // SAFETY: the events are plain structs of integers without padding, and the borrow keeps them alive.
        let bytes =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(event).cast::<u8>(), size_of::<T>()) };
        out.extend((bytes.len() as u16).to_le_bytes());
        out.extend(bytes);
    }
    let (mut out, mut ts) = (Vec::new(), 1_000_000);
    let mut head = |kind: &str, thread: u16| {
        ts += 700;
        let kind = KIND_NAMES.iter().position(|k| *k == kind).unwrap() as u16;
        Head { ts, tgid: 77, tid: 77 + u32::from(thread), kind, engine: 0, ith: thread, flags: 0 }
    };
    let call = |h, a, b, n| Call {
        h,
        a,
        b,
        n,
        threads: 2,
        width: 1,
        nodes_changed: 0,
        kernels: 0,
        launches: 0,
        guid: [7; 16],
    };
    let address = |node: u64| 0x10_0000 + 336 * node;
    put(&mut out, &call(head("token-enter", 0), 1, 1, 1));
    put(&mut out, &call(head("sched-enter", 0), 2, 0x2000, 3));
    put(&mut out, &call(head("split-enter", 0), 3, 0x2000, 3));
    let mut nodes =
        Nodes { h: head("nodes", 0), cgraph: 0x2000, first: 0, total: 3, node: [0; 48], info: [0; 48] };
    (0..3).for_each(|i| (nodes.node[i], nodes.info[i]) = (address(i as u64), 0x8000_0002));
    put(&mut out, &nodes);
    put(&mut out, &call(head("graph-enter", 0), 0x2000, 1, 3));
    for node in 0..3 {
        let mut tensor = Tensor { h: head("tensor", 0), addr: address(node), raw: [0; 448] };
        tensor.raw[..4].copy_from_slice(&0u32.to_le_bytes());
        tensor.raw[16..24].copy_from_slice(&8u64.to_le_bytes());
        put(&mut out, &tensor);
        for thread in 0..2 {
            let h = head("op", thread);
            put(&mut out, &Op { h, tensor: address(node), tensor2: 0, pool: 0x3000, prev_end: h.ts - 300 });
        }
    }
    let h = head("thread-end", 1);
    put(&mut out, &Op { h, tensor: address(2), tensor2: 0, pool: 0x3000, prev_end: 0 });
    for kind in ["graph-exit", "split-exit", "sched-exit", "token-exit"] {
        put(&mut out, &call(head(kind, 0), 0, 0, 0));
    }
    out
}
