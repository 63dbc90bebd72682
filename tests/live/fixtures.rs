//! Recordings of the fake engine: each variant's rung, every hit counted by the target itself, every tensor
//! described as the target describes it.

use crate::common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use common::run::{Recorder, Run, Target, record, wait_until};
use common::seen::Seen;
use common::{expect, fixture, live, truth};
use pfi::record::CpuGraph;
use serde_json::Value;

/// The target's counts against those in the trace.
fn counts_agree(seen: &Seen, said: &Value) {
    seen.complete();
    let calls = |name: &str| said["calls"][name].as_u64().expect("a count");
    let tokens = calls("llama_decode") + calls("llama_encode") + calls("llama_process");
    assert_eq!(seen.all.tokens.len() as u64, tokens, "calls of the token functions");
    assert_eq!(seen.all.graphs.len() as u64, calls("sched"), "graphs of the scheduler");
    assert_eq!(seen.all.cpu_graphs.len() as u64, calls("graph_compute"), "CPU graphs");
    assert_eq!(seen.slices(), ops_of(said), "op hits");
    let (expected, got): (u64, u64) = seen
        .all
        .cpu_graphs
        .iter()
        .fold((0, 0), |(e, s), g| (e + u64::from(g.expected.unwrap_or(0)), s + u64::from(g.seen)));
    assert_eq!((expected, got), (ops_of(said), ops_of(said)), "op hits expected and seen");
    assert!(
        seen.all.tokens.iter().all(|t| !t.cut) && seen.all.graphs.iter().all(|g| !g.cut),
        "no call was cut"
    );
}

/// Op hits by the target's own count: the fused function and the one that every other op passes.
fn ops_of(said: &Value) -> u64 {
    let calls = |name: &str| said["calls"][name].as_u64().expect("a count");
    let (extra, fused) = (calls("extra"), calls("fused"));
    if said["fuses"] == 1 { extra + fused } else { calls("forward") }
}

/// Every op, in order, on every thread, as described in the dump.
fn structure_agrees(seen: &Seen, graphs: &[truth::Graph], said: &Value) {
    let pid = said["pid"].as_u64().expect("a pid") as u32;
    let threads = said["threads"].as_u64().expect("threads") as u32;
    let parts = graphs.iter().flat_map(|g| truth::fake_ops(g).into_iter().map(move |ops| (g, ops)));
    let cpu = seen.graphs(pid);
    assert_eq!(cpu.len(), parts.clone().count(), "CPU graphs");
    for (cpu, (graph, ops)) in cpu.into_iter().zip(parts) {
        expect::graph(seen, cpu, graph, &ops, threads);
    }
    let widths: Vec<u32> = seen.all.graphs.iter().map(|g| g.ubatch).collect();
    assert_eq!(widths, graphs.iter().map(|g| g.n_tokens).collect::<Vec<_>>(), "widths of the ubatches");
}

struct Case {
    dump: PathBuf,
    run: Run,
    _dir: tempfile::TempDir,
}

/// Records the fake with `options` of the recorder and `args` of the fake.
fn fake(program: &Path, options: &[&str], args: &[&str]) -> Case {
    let dir = tempfile::tempdir().expect("a directory");
    let dump = dir.path().join("dump");
    let mut all: Vec<String> = options.iter().map(|s| (*s).to_owned()).collect();
    all.extend(["--".into(), program.display().to_string(), "--dump".into(), dump.display().to_string()]);
    all.extend(args.iter().map(|s| (*s).to_owned()));
    Case { run: record(&all), dump, _dir: dir }
}

/// Records the fake; what is in the trace is what it says of itself.
pub fn agrees(program: &Path, options: &[&str], args: &[&str]) -> Seen {
    let case = fake(program, options, args);
    let seen = case.run.seen();
    counts_agree(&seen, &case.run.said());
    structure_agrees(&seen, &truth::read(&case.dump), &case.run.said());
    seen
}

const OP_FUSED: &str = "ggml_compute_forward_rms_norm_mul_fused + ggml_cpu_extra_compute_forward";

/// What a recording of several targets has of one of them, and what that one says.
struct Part {
    seen: Seen,
    said: Value,
    graphs: Vec<truth::Graph>,
}

impl Part {
    fn agrees(&self) {
        counts_agree(&self.seen, &self.said);
        structure_agrees(&self.seen, &self.graphs, &self.said);
    }
}

fn fakellama(variant: &str) -> Option<PathBuf> {
    common::fixture_dir(variant).map(|dir| dir.join("fakellama"))
}

/// Targets that wait for a file each, and a recorder that has probed all of their files.
struct Waiting {
    dir: tempfile::TempDir,
    targets: Vec<Target>,
    recorder: Recorder,
}

impl Waiting {
    /// The variants, each with its arguments.
    fn start(options: &[&str], work: &[(&str, &[&str])]) -> Waiting {
        let dir = tempfile::tempdir().expect("a directory");
        let target = |(i, (name, args)): (usize, &(&str, &[&str]))| {
            let path = |ext: &str| dir.path().join(format!("{i}.{ext}")).display().to_string();
            let own = ["--wait-for".to_owned(), path("go"), "--dump".into(), path("dump")];
            let args = args.iter().map(|s| (*s).to_owned()).chain(own).collect::<Vec<_>>();
            Target::start(fakellama(name).expect("it was built"), &args)
        };
        let targets: Vec<Target> = work.iter().enumerate().map(target).collect();
        let pids = targets.iter().map(|t| t.pid().to_string()).collect::<Vec<_>>().join(",");
        let recorder = Recorder::start(&[options, &["-p", &pids]].concat());
        for target in &targets {
            recorder.wait_for_attached(target.pid());
        }
        Waiting { dir, targets, recorder }
    }

    fn go(&self, i: usize) {
        std::fs::write(self.dir.path().join(format!("{i}.go")), "").expect("go");
    }

    /// Lets one after the other run to its end, and the recording with the last.
    fn run(mut self) -> Vec<Part> {
        let said: Vec<Value> = std::mem::take(&mut self.targets)
            .into_iter()
            .enumerate()
            .map(|(i, target)| {
                self.go(i);
                target.said()
            })
            .collect();
        let run = self.recorder.finish();
        assert_eq!(run.seen().footer().end, "target exited");
        let part = |(i, said): (usize, Value)| Part {
            seen: Seen::of(&run.trace, said["pid"].as_u64().expect("a pid") as u32),
            said,
            graphs: truth::read(&self.dir.path().join(format!("{i}.dump"))),
        };
        said.into_iter().enumerate().map(part).collect()
    }
}

/// Both kinds of weights and of layers.
const WORK: [&[&str]; 3] = [
    &["-n", "12", "--moe", "-t", "3"],
    &["-n", "12", "--repack", "--fresh-threads"],
    &["-n", "3", "-t", "1", "--split"],
];

/// A variant's name, and the rungs to which it comes: of ops, of splits and of op ends.
struct Variant {
    name: &'static str,
    op: &'static str,
    split: &'static str,
    op_end: &'static str,
}

/// Variants in one recording, which holds 15 engines.
const TOGETHER: usize = 10;
const N_GROUPS: usize = VARIANTS.len().div_ceil(TOGETHER) + 1;

impl Variant {
    fn by_vtable(&self) -> bool {
        self.split == "backend vtable"
    }

    fn by_interval(&self) -> bool {
        self.op_end == "interval"
    }

    /// Some memory of `late` cannot be read yet when it is found, and the trace counts such failures of all together.
    fn group(&self) -> usize {
        let at = VARIANTS.iter().position(|v| v.name == self.name).expect("it is listed");
        if self.name == "late" { N_GROUPS - 1 } else { at / TOGETHER }
    }
}

/// What was recorded of the variants of a group, by name: a recording for each kind of work, and one in which they work
/// until their rungs have settled. Made by the first test that needs it.
struct Group {
    work: [OnceLock<BTreeMap<&'static str, Part>>; WORK.len()],
    settled: OnceLock<BTreeMap<&'static str, Seen>>,
}

static GROUPS: [Group; N_GROUPS] =
    [const { Group { work: [const { OnceLock::new() }; WORK.len()], settled: OnceLock::new() } }; N_GROUPS];

/// A variant recorded with each kind of work, and long enough for its rungs to settle.
fn variant(name: &str) {
    let _turn = live!(beside others);
    fixture!(name);
    let v = VARIANTS.iter().find(|v| v.name == name).expect("it is listed");
    let group = &GROUPS[v.group()];
    let built = VARIANTS.iter().filter(|other| other.group() == v.group() && fakellama(other.name).is_some());
    let built: Vec<&Variant> = built.collect();
    for (args, made) in WORK.iter().zip(&group.work) {
        let recorded = || {
            let work: Vec<_> = built.iter().map(|v| (v.name, *args)).collect();
            // All work at once: on a busy machine the recorder may get no CPU while they do.
            let waiting = Waiting::start(&["--buffer-size", "64MiB"], &work);
            built.iter().map(|v| v.name).zip(waiting.run()).collect()
        };
        let part = &made.get_or_init(recorded)[name];
        part.agrees();
        if name != "late" {
            assert_eq!(part.seen.footer().read_errors, 0, "failed reads of the target's memory, {args:?}");
        }
    }
    let seen = &group.settled.get_or_init(|| settled(&built))[name];
    for (role, rung) in [("op", v.op), ("split", v.split), ("op-end", v.op_end)] {
        assert_eq!(seen.used(role).map(|r| r.name), Some(rung), "rung of {role}");
    }
    for rung in seen.all.rungs.iter().filter(|r| !r.used) {
        assert!(!rung.why.is_empty(), "{} was left without a reason", rung.name);
    }
    let left = |role: &str| seen.left(role).iter().map(|l| l.0).collect::<Vec<_>>();
    let silent: &[&str] = if v.by_vtable() { &["ggml_backend_graph_compute_async"] } else { &[] };
    assert_eq!(left("split"), silent);
    let dead: &[&str] = if v.by_interval() { &["ggml_barrier"] } else { &[] };
    assert_eq!(left("op-end"), dead);
    // The middle one of each graph's three splits is on the other backend.
    let names: Vec<&str> = seen.all.splits.iter().map(|s| seen.all.backends[&s.backend].name).collect();
    let cuda = names.iter().filter(|n| n.starts_with("CUDA")).count();
    let cpu = names.iter().filter(|n| **n == "CPU").count();
    assert_eq!(cuda + cpu, names.len(), "every split has its backend: {names:?}");
    assert!(cuda > 5 && cpu.abs_diff(2 * cuda) <= 2, "{cuda} splits elsewhere, {cpu} on the CPU");
}

/// Rungs are judged while the target works: each works until the expected judgements were reported, plus some graphs,
/// and is killed.
fn settled(variants: &[&Variant]) -> BTreeMap<&'static str, Seen> {
    const ARGS: &[&str] = &["-n", "1000000", "--layers", "4", "--op-ns", "5000", "--split"];
    let work: Vec<_> = variants.iter().map(|v| (v.name, ARGS)).collect();
    let mut waiting = Waiting::start(&[], &work);
    let mut pids = BTreeMap::new();
    for (i, (v, target)) in variants.iter().zip(std::mem::take(&mut waiting.targets)).enumerate() {
        let recorder = &waiting.recorder;
        let dropped = || recorder.stderr().matches("dropped ggml_barrier").count();
        let found = format!("found through the scheduler of process {}", target.pid());
        let before = dropped();
        waiting.go(i);
        wait_until("the rungs settle", || {
            (!v.by_vtable() || recorder.stderr().contains(&found)) && (!v.by_interval() || dropped() > before)
        });
        let pid = target.pid();
        // Reading the trace takes time from the engine: only when there is more of it.
        let size = || std::fs::metadata(&recorder.trace).map_or(0, |m| m.len());
        let ended = |g: &&CpuGraph| g.pid == pid && !g.cut && (g.barrier || v.by_interval());
        let mut read = 0;
        // Splits as well: where they are found through the scheduler, many graphs come before the first of them.
        wait_until("graphs and splits in which ops end as they will", || {
            size() > read + 200_000 && {
                read = size();
                let all = Seen::damaged(&recorder.trace).all;
                let splits = all.splits.iter().filter(|s| s.pid == pid).count();
                all.cpu_graphs.iter().filter(ended).count() > 20 && splits > 20
            }
        });
        pids.insert(v.name, pid);
    }
    let run = waiting.recorder.finish();
    let seen = run.seen();
    seen.books_close();
    let lost: u64 = seen.footer().kinds.iter().map(|k| k.lost).sum();
    for g in seen.all.cpu_graphs.iter().filter(|g| !g.cut) {
        assert_eq!(Some(g.seen), g.expected, "hits of graph {} ({lost} events lost in all)", g.seq);
    }
    pids.into_iter().map(|(name, pid)| (name, Seen::of(&run.trace, pid))).collect()
}

/// A guest's results for a variant: NAME.pfi, NAME.dump, and in NAME.json the target's own account.
fn recorded(dir: &Path, name: &str, op: &str) {
    let at = |ext: &str| dir.join(format!("{name}.{ext}"));
    let said = std::fs::read_to_string(at("json")).unwrap_or_else(|e| panic!("{name}.json: {e}"));
    let said = said.lines().rfind(|l| l.starts_with('{')).and_then(|l| serde_json::from_str(l).ok());
    let said: Value = said.unwrap_or_else(|| panic!("{name}.json: no JSON"));
    let seen = Seen::read(&at("pfi"));
    counts_agree(&seen, &said);
    structure_agrees(&seen, &truth::read(&at("dump")), &said);
    assert_eq!(seen.used("op").map(|r| r.name), Some(op), "rung of ops of {name}");
    let lost: u64 = seen.footer().kinds.iter().map(|k| k.lost).sum();
    println!("hits {name} {} {} {lost}", ops_of(&said), seen.slices());
}

macro_rules! variants {
    ($($test:ident: $name:literal, $op:expr, $split:literal, $end:literal;)*) => {
        $(
            #[test]
            fn $test() {
                variant($name);
            }
        )*

        const VARIANTS: &[Variant] = &[$(Variant { name: $name, op: $op, split: $split, op_end: $end }),*];

        #[test]
        #[ignore = "judges recordings that a guest made: tests/kernels/checks/fixtures.py"]
        fn recorded_elsewhere() {
            let dir = std::env::var_os("PROFINFER_RECORDINGS").expect("PROFINFER_RECORDINGS names a directory");
            $(recorded(Path::new(&dir), $name, $op);)*
        }
    };
}

variants! {
    modern: "modern", OP_FUSED, "ggml_backend_graph_compute_async", "ggml_barrier";
    modern_clang: "modern-clang", OP_FUSED, "ggml_backend_graph_compute_async", "ggml_barrier";
    stripped: "stripped", OP_FUSED, "ggml_backend_graph_compute_async", "ggml_barrier";
    local_forward: "local-forward", "ggml_compute_forward", "ggml_backend_graph_compute_async", "ggml_barrier";
    dead_barrier: "dead-barrier", OP_FUSED, "backend vtable", "interval";
    dead_barrier_stripped: "dead-barrier-stripped", OP_FUSED, "backend vtable", "interval";
    relative_tables: "reltable", OP_FUSED, "ggml_backend_graph_compute_async", "ggml_barrier";
    old: "old", "ggml_compute_forward", "ggml_backend_graph_compute_async", "ggml_barrier";
    ancient: "ancient", "ggml_compute_forward", "ggml_backend_graph_compute_async", "ggml_barrier";
    long_names: "name128", OP_FUSED, "ggml_backend_graph_compute_async", "ggml_barrier";
    old_long_names: "old-name128", "ggml_compute_forward", "ggml_backend_graph_compute_async", "ggml_barrier";
    names_of_80: "name80", OP_FUSED, "ggml_backend_graph_compute_async", "ggml_barrier";
    names_of_45: "name45", OP_FUSED, "ggml_backend_graph_compute_async", "ggml_barrier";
    old_names_of_80: "old-name80", "ggml_compute_forward", "ggml_backend_graph_compute_async", "ggml_barrier";
    prefixed: "prefixed", OP_FUSED, "ggml_backend_graph_compute_async", "ggml_barrier";
    prefixed_old: "prefixed-old", "ggml_compute_forward", "ggml_backend_graph_compute_async", "ggml_barrier";
    late: "late", OP_FUSED, "ggml_backend_graph_compute_async", "ggml_barrier";
    static_exe: "static", OP_FUSED, "backend vtable", "interval";
    static_pie: "static-pie", OP_FUSED, "backend vtable", "interval";
}

/// Functions that nobody calls were left out, or were made local under another name.
#[test]
fn linked_programs_say_the_same() {
    let _turn = live!(beside others, from inside);
    for name in ["linked", "lto"] {
        let program = fixture!(name);
        for source in ["bpf", "inside"] {
            println!("{name} {source}");
            agrees(&program, &["--source", source], &["-n", "12", "--moe", "-t", "3"]);
        }
    }
}

/// Without a readable tensor layout, calls and graphs are recorded, and the reason for the missing ops is given.
#[test]
fn a_layout_that_nothing_shows_leaves_graphs() {
    let _turn = live!(beside others, from inside);
    let program = fixture!("linked-bare");
    let program = program.to_str().expect("UTF-8");
    for source in ["bpf", "inside"] {
        for level in ["op", "token"] {
            let run = record(&["--source", source, "--level", level, "--", program, "-n", "12"]);
            let (seen, said) = (run.seen(), run.said());
            seen.complete();
            assert_eq!(seen.all.tokens.len() as u64, said["calls"]["llama_decode"]);
            let graphs = if level == "op" { &said["calls"]["graph_compute"] } else { &Value::from(0) };
            assert_eq!((&Value::from(seen.all.cpu_graphs.len()), seen.slices()), (graphs, 0));
            let told =
                run.stderr.contains("ops are not recorded: ") && run.stderr.contains("ggml_tensor_overhead");
            assert_eq!(told, level == "op", "{}", run.stderr);
        }
    }
}

/// As when OpenMP has fewer threads than the plan asked for: none of their hits is missing.
#[test]
fn threads_that_take_no_part_are_not_expected() {
    let _turn = live!(beside others, by perf events);
    let program = fixture!("modern");
    let program = program.to_str().expect("UTF-8");
    for source in ["bpf", "inside", "perf"] {
        let args = ["-n", "12", "-t", "3", "--most-threads", "2"];
        let seen = record(&[&["--source", source, "--", program][..], &args].concat()).seen();
        let threads: Vec<u32> = seen.all.cpu_graphs.iter().map(|g| g.n_threads).collect();
        assert_eq!(threads, [2; 13], "{source}");
        // By perf events, the nodes of the first graphs are not known.
        let expected = |g: &CpuGraph| g.expected.map_or(source == "perf", |expected| expected == g.seen);
        assert!(seen.all.cpu_graphs.iter().all(|g| expected(g) && g.seen > 0), "{source}");
    }
}

#[test]
fn stripped_old_engine_leaves_graphs() {
    let _turn = live!(beside others);
    let case = fake(&fixture!("old-stripped"), &[], &["--split"]);
    let (seen, said) = (case.run.seen(), case.run.said());
    seen.complete();
    assert_eq!(seen.all.tokens.len() as u64, said["calls"]["llama_decode"]);
    assert_eq!(seen.all.cpu_graphs.len() as u64, said["calls"]["graph_compute"]);
    assert_eq!(seen.all.splits.len() as u64, said["calls"]["async"]);
    assert_eq!(seen.slices(), 0);
    assert!(seen.used("op").is_none());
    assert!(seen.rungs("op").iter().all(|r| !r.why.is_empty()), "{:?}", seen.rungs("op"));
}

#[test]
fn statically_linked_and_stripped_is_refused() {
    let _turn = live!(beside others);
    let program = fixture!("static-stripped");
    let run = record(&["--", program.to_str().expect("a path")]);
    // The command's own output goes to standard output and is not checked here.
    expect::one_line_error(&run, &["statically linked and stripped", "with symbols"]);
}

#[test]
fn a_32_bit_target_is_refused() {
    let _turn = live!(beside others);
    let program = fixture!("bare32");
    let target = Target::start::<&str>(&program, &[]);
    expect::one_line_error(&record(&["-p", &target.pid().to_string()]), &["32-bit"]);
    expect::one_line_error(&record(&["--exe", program.to_str().expect("a path")]), &["32-bit"]);
    expect::one_line_error(&record(&["--", program.to_str().expect("a path")]), &["32-bit"]);
}

#[test]
fn every_entry_point_is_a_token() {
    let _turn = live!(beside others);
    fixture!("modern");
    let apis = [("decode", "Decode"), ("encode", "Encode"), ("process", "Process")];
    let args = apis.map(|(api, _)| ["--api", api]);
    let work = args.each_ref().map(|args| ("modern", &args[..]));
    for ((api, entry), part) in apis.into_iter().zip(Waiting::start(&[], &work).run()) {
        part.agrees();
        let seen = part.seen;
        for t in &seen.all.tokens {
            assert_eq!(format!("{:?}", t.entry), entry);
        }
        if api != "process" {
            let widths: Vec<_> = seen.all.tokens.iter().map(|t| t.n_tokens).collect();
            assert_eq!(widths, [4, 1, 1, 1, 1, 1, 1, 1, 1].map(Some), "tokens of the batches");
        }
    }
}

#[test]
fn calls_nest_whoever_makes_them() {
    let _turn = live!(beside others);
    let seen = agrees(&fixture!("modern"), &[], &["--roam", "--split", "-n", "20", "--fresh-threads"]);
    for (i, t) in seen.all.tokens.iter().enumerate() {
        assert_eq!(seen.all.graphs[i].token, Some(t.seq), "graph {i}");
    }
    for s in &seen.all.splits {
        let graph = seen.all.graphs.iter().find(|g| Some(g.seq) == s.graph).expect("a split lies in a graph");
        assert!(s.t >= graph.t && s.t as u64 + s.dur <= graph.t as u64 + graph.dur, "split inside its graph");
    }
    for c in &seen.all.cpu_graphs {
        let split =
            seen.all.splits.iter().find(|s| Some(s.seq) == c.split).expect("a CPU graph lies in a split");
        assert_eq!(seen.all.backends[&split.backend].name, "CPU");
        assert_eq!(c.graph, split.graph);
    }
}

#[test]
fn perf_buffers_carry_the_same() {
    let _turn = live!(beside others);
    fixture!("modern");
    let work = ["modern", "old", "late"]
        .map(|name| (name, &["-n", "30", "--moe", "--split", "--fresh-threads"][..]));
    for part in Waiting::start(&["--pbuf"], &work).run() {
        part.agrees();
        let seen = part.seen;
        assert_eq!(format!("{:?}", seen.all.header.as_ref().map(|h| h.transport)), "Some(Perf)");
    }
}

#[test]
fn levels_leave_out_what_lies_below() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let token = fake(&program, &["--level", "token"], &[]).run.seen();
    token.complete();
    assert_eq!(token.all.tokens.len(), 9);
    assert_eq!((token.all.graphs.len(), token.all.cpu_graphs.len(), token.slices()), (0, 0, 0));
    let graph = fake(&program, &["--level", "graph"], &["--split"]).run.seen();
    graph.complete();
    assert_eq!((graph.all.tokens.len(), graph.all.graphs.len(), graph.all.splits.len()), (9, 9, 27));
    assert_eq!((graph.all.cpu_graphs.len(), graph.slices()), (18, 0));
    let probed = |seen: &Seen, symbol: &str| seen.all.probes.iter().any(|p| p.symbol == symbol);
    assert!(probed(&graph, "ggml_graph_compute") && !probed(&graph, "ggml_cpu_extra_compute_forward"));
    assert!(probed(&token, "llama_decode") && !probed(&token, "ggml_graph_compute"));
}

#[test]
fn without_structure_ops_keep_their_places() {
    let _turn = live!(beside others);
    let case = fake(&fixture!("modern"), &["--no-str"], &["-n", "12", "--moe"]);
    let (seen, said) = (case.run.seen(), case.run.said());
    seen.complete();
    assert_eq!(seen.slices(), ops_of(&said));
    assert_eq!((seen.kind("tensor").seen, seen.kind("nodes").seen), (0, 0));
    assert!(seen.all.tensors.values().all(|t| !t.known && t.name.is_empty()));
    let graphs = truth::read(&case.dump);
    for (cpu, graph) in seen.graphs(said["pid"].as_u64().expect("a pid") as u32).into_iter().zip(&graphs) {
        let want: Vec<u64> = truth::fake_ops(graph)[0].iter().map(|o| graph.nodes[o.0].addr).collect();
        for hits in seen.hits(cpu).values() {
            assert_eq!(hits.iter().map(|h| seen.tensor(h.0).addr).collect::<Vec<_>>(), want);
        }
    }
}

#[test]
fn op_ends_as_asked() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let busy = |seen: &Seen| seen.all.runs.iter().filter(|r| r.barrier).count();
    let interval = agrees(&program, &["--op-end", "interval"], &["-n", "200"]);
    assert_eq!((busy(&interval), interval.all.runs.is_empty()), (0, false));
    assert_eq!(interval.used("op-end").map(|r| r.name), Some("interval"));
    let barrier = agrees(&program, &["--op-end", "barrier"], &["-n", "200"]);
    assert_eq!(barrier.used("op-end").map(|r| r.name), Some("ggml_barrier"));
    assert!(
        busy(&barrier) * 10 > barrier.all.runs.len() * 9,
        "{} of {}",
        busy(&barrier),
        barrier.all.runs.len()
    );
}

#[test]
fn a_limit_in_tokens_ends_the_recording() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let target = Target::start(&program, &["-n", "1000000", "--op-ns", "50000"]);
    let run = record(&["-p", &target.pid().to_string(), "--tokens", "10"]);
    let seen = run.seen();
    seen.books_close();
    assert_eq!(seen.footer().end, "tokens");
    let whole = seen.all.tokens.iter().filter(|t| !t.cut).count();
    assert!((10..1000).contains(&whole), "{whole} tokens");
}

#[test]
fn a_limit_in_time_ends_the_recording() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let mut target = Target::start(&program, &["-n", "1000000", "--op-ns", "50000"]);
    let run = record(&["-p", &target.pid().to_string(), "--duration", "300ms"]);
    let seen = run.seen();
    seen.books_close();
    assert_eq!(seen.footer().end, "duration");
    assert!(!seen.all.tokens.is_empty() && seen.slices() > 0);
    assert!(target.running(), "the target goes on");
}

#[test]
fn a_running_process_is_recorded_from_its_next_graph() {
    let _turn = live!(beside others);
    for name in ["modern", "stripped", "static-pie", "old"] {
        let mut target = Target::start(fixture!(name), &["-n", "1000000", "--op-ns", "20000"]);
        let pid = target.pid().to_string();
        let seen = record(&["-p", &pid, "--tokens", "20"]).seen();
        seen.books_close();
        let whole: Vec<_> = seen.all.cpu_graphs.iter().filter(|g| !g.cut).collect();
        assert!(whole.len() >= 20, "{name}: {} whole graphs", whole.len());
        for g in whole {
            assert_eq!(Some(g.seen), g.expected, "{name}: hits of graph {}", g.seq);
        }
        assert!(target.running());
    }
}

#[test]
fn a_file_is_probed_before_any_process_runs() {
    let _turn = live!(beside others);
    for name in ["modern", "static-pie"] {
        let dir = tempfile::tempdir().expect("a directory");
        let program = fixture!(name, dir.path().join("own"));
        let go = dir.path().join("go");
        let recorder = Recorder::start(&["--exe", program.to_str().expect("a path")]);
        recorder.wait_for_probes();
        let target = Target::start(&program, &["--hold-for", go.to_str().expect("a path")]);
        recorder.wait_for_attached(target.pid());
        std::fs::write(&go, "").expect("go");
        let said = target.said();
        recorder.signal(libc::SIGINT);
        let seen = recorder.finish().seen();
        assert_eq!(seen.footer().end, "signal");
        counts_agree(&seen, &said);
    }
}

#[test]
fn a_process_that_waits_is_recorded_whole() {
    let _turn = live!(beside others);
    fixture!("modern");
    let none: &[&str] = &[];
    let work = ["modern", "late"].map(|name| (name, none));
    Waiting::start(&[], &work).run().iter().for_each(Part::agrees);
}

#[test]
fn a_command_is_recorded_whole() {
    let _turn = live!(beside others);
    for name in ["late", "static", "dead-barrier-stripped"] {
        agrees(&fixture!(name), &[], &["-n", "12", "--moe", "-t", "3"]);
    }
}

#[test]
fn variants_are_probed_before_they_are_loaded() {
    let _turn = live!(beside others);
    let program = fixture!("late");
    let dir = tempfile::tempdir().expect("a directory");
    let go = dir.path().join("go");
    let target = Target::start(&program, &["--wait-for", go.to_str().expect("a path")]);
    let recorder = Recorder::start(&["-p", &target.pid().to_string()]);
    recorder.wait_for_probe_in("libfakeggml-cpu.so");
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("it runs");
    assert!(!maps.contains("libfakeggml-cpu.so"), "it is mapped already");
    std::fs::write(&go, "").expect("go");
    let said = target.said();
    counts_agree(&recorder.finish().seen(), &said);
}

#[test]
fn children_of_the_command_are_recorded() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let dir = tempfile::tempdir().expect("a directory");
    let go = dir.path().join("go");
    let engine = format!("{} --hold-for {} -n 50", program.display(), go.display());
    let recorder = Recorder::start(&["--", "sh", "-c", &format!("({engine} & {engine}; wait)")]);
    recorder.wait_for_two_attached();
    std::fs::write(&go, "").expect("go");
    let run = recorder.finish();
    let seen = run.seen();
    seen.complete();
    let said: Vec<Value> = run.stdout.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!(said.len(), 2);
    for one in &said {
        let pid = one["pid"].as_u64().expect("a pid") as u32;
        let got: u64 = seen.graphs(pid).iter().map(|g| u64::from(g.seen)).sum();
        assert_eq!(got, ops_of(one), "op hits of process {pid}");
        assert_eq!(seen.all.tokens.iter().filter(|t| t.pid == pid).count(), 51);
        assert!(seen.all.processes.iter().any(|p| p.pid == pid));
    }
}

#[test]
fn two_targets_at_once() {
    let _turn = live!(beside others);
    fixture!("modern");
    let mut waiting = Waiting::start(&[], &["modern", "old"].map(|name| (name, &["-n", "30"][..])));
    (0..2).for_each(|i| waiting.go(i));
    let said: Vec<Value> = std::mem::take(&mut waiting.targets).into_iter().map(Target::said).collect();
    let seen = waiting.recorder.finish().seen();
    seen.complete();
    assert_eq!(seen.all.engines.len(), 2);
    for one in &said {
        let pid = one["pid"].as_u64().expect("a pid") as u32;
        let got: u64 = seen.graphs(pid).iter().map(|g| u64::from(g.seen)).sum();
        assert_eq!(got, ops_of(one), "op hits of process {pid}");
    }
}

#[test]
fn a_target_in_a_chroot() {
    let _turn = live!(beside others);
    let program = fixture!("modern");
    let root = tempfile::tempdir().expect("a directory");
    let from = program.parent().expect("a directory");
    // Like ldd.
    let libs = Command::new(&program).env("LD_TRACE_LOADED_OBJECTS", "1").output().expect("its loader runs");
    let mut files: Vec<PathBuf> = String::from_utf8_lossy(&libs.stdout)
        .split_whitespace()
        .filter(|w| w.starts_with('/'))
        .map(PathBuf::from)
        .collect();
    files.retain(|f| !f.starts_with(from));
    for file in files {
        let to = root.path().join(file.strip_prefix("/").expect("absolute"));
        std::fs::create_dir_all(to.parent().expect("a directory")).expect("made");
        std::fs::copy(&file, &to).expect("copied");
    }
    for name in ["fakellama", "libfakeggml.so"] {
        std::fs::create_dir_all(root.path().join("engine")).expect("made");
        std::fs::copy(from.join(name), root.path().join("engine").join(name)).expect("copied");
    }
    let path = root.path().to_str().expect("a path");
    // As the command: chroot execs the engine, which is found in the maps of the process.
    let mut chroot = Command::new("chroot");
    chroot.args([path, "/engine/fakellama", "-n", "1000000", "--op-ns", "20000"]);
    // Without /proc in the chroot, its loader cannot find the program's location.
    let mut target = Target::spawn(chroot.env("LD_LIBRARY_PATH", "/engine"));
    wait_until("chroot has become the engine", || {
        assert!(target.running(), "it did not start");
        std::fs::read_link(format!("/proc/{}/exe", target.pid())).is_ok_and(|p| p.ends_with("fakellama"))
    });
    let seen = record(&["-p", &target.pid().to_string(), "--tokens", "20"]).seen();
    seen.books_close();
    assert!(seen.all.tokens.len() >= 20);
    let whole: Vec<_> = seen.all.cpu_graphs.iter().filter(|g| !g.cut).collect();
    assert!(!whole.is_empty() && whole.iter().all(|g| Some(g.seen) == g.expected));
    let module =
        seen.all.modules.iter().find(|m| m.path.ends_with("libfakeggml.so")).expect("the engine's module");
    assert!(module.path.ends_with("/engine/libfakeggml.so"), "{}", module.path);
}
