//! The complete path from files to probe points on small libraries compiled at test time: results, messages when
//! nothing is found, and robustness against damaged files. Needs a C compiler (`cc`); skipped with a message
//! otherwise.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::skips;
use engine::discover::{self, DiscoverError, DiscoveredEngine};
use engine::elf::{ElfError, ElfFile};
use engine::ladder::{Ladder, RungMethod};
use engine::layout::Layout;
use engine::search::Launch;
use engine::tables::Tables;
use machine::root::Root;
use proptest::prelude::*;

/// A small version of the base library: name tables, traits and accessors with the names and forms of the real one.
const BASE: &str = r#"
#include <stddef.h>
#include <stdint.h>
#ifndef NAME_LEN
#define NAME_LEN 64
#endif
struct tensor { int type; void *buffer; int64_t ne[4]; size_t nb[4]; int op; int op_params[16]; int flags;
    struct tensor *src[10]; struct tensor *view_src; size_t view_offs; void *data; char name[NAME_LEN]; void *extra; char pad[8]; };
struct graph { int size, n_nodes, n_leafs; struct tensor **nodes; };
struct backend { void *guid; void *iface[12]; };
static const char *OPS[] = { "NONE", "DUP", "ADD", "MUL_MAT", "MUL_MAT_ID", "VIEW", "UNARY", "GLU" };
static const char *UNARY[] = { "ABS", "SGN", "NEG" };
static const char *GLU[] = { "REGLU", "GEGLU" };
struct traits { const char *name; int64_t block, interleave; size_t size; char quantized; void *a, *b; };
static const struct traits TRAITS[] = {
    { "f32", 1, 0, 4, 0, 0, 0 }, { "f16", 1, 0, 2, 0, 0, 0 }, { "q4_0", 32, 0, 18, 1, 0, 0 }, { 0 }, { "q8_0", 32, 0, 34, 1, 0, 0 } };
const char *ggml_op_name(int op) { return OPS[op]; }
const char *ggml_unary_op_name(int op) { return UNARY[op]; }
const char *ggml_glu_op_name(int op) { return GLU[op]; }
const struct traits *ggml_get_type_traits(int t) { return &TRAITS[t]; }
const char *ggml_get_name(const struct tensor *t) { return t->name; }
void *ggml_get_data(const struct tensor *t) { return t->data; }
int64_t ggml_nelements(const struct tensor *t) { return t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; }
size_t ggml_tensor_overhead(void) { return 32 + sizeof(struct tensor); }
#ifndef UNARY_OP
#define UNARY_OP 6
#endif
int ggml_get_unary_op(const struct tensor *t) { if (t->op != UNARY_OP) __builtin_trap(); return t->op_params[0]; }
int ggml_is_view(const struct tensor *t) { return t->view_src != NULL; }
int ggml_graph_n_nodes(struct graph *g) { return g->n_nodes; }
struct tensor **ggml_graph_nodes(struct graph *g) { return g->nodes; }
void *ggml_backend_guid(struct backend *b) { return b ? b->guid : NULL; }
int ggml_backend_graph_compute_async(struct backend *b, struct graph *g) {
    return ((int (*)(struct backend *, struct graph *)) b->iface[11])(b, g); }
int ggml_backend_sched_graph_compute_async(void *s, struct graph *g) { return ggml_backend_graph_compute_async(s, g) + 1; }
"#;

const CPU: &str = r#"
int ggml_op_name_hook;
__attribute__((noinline)) int ggml_cpu_extra_compute_forward(void *params, void *tensor) { return params != tensor; }
void ggml_barrier(int *pool) { __atomic_add_fetch(pool, 1, __ATOMIC_SEQ_CST); }
void *ggml_threadpool_new(void *p) { return p; }
int ggml_graph_compute(void *g, void *plan) { return ggml_cpu_extra_compute_forward(g, plan) + 1; }
"#;

const LLAMA: &str = r#"
struct batch { int n; void *p[6]; };
int ggml_backend_sched_graph_compute_async(void *s, void *g);
int llama_decode(void *ctx, struct batch b) { return ggml_backend_sched_graph_compute_async(ctx, b.p[0]) + b.n; }
"#;

/// Keeps the tables of [`BASE`] in a program.
const USE_TABLES: &str = "return ggml_op_name(c) == ggml_unary_op_name(c) \
|| ggml_glu_op_name(c) == ggml_get_type_traits(c)->name;";

/// Compiles one source file; `None` if this machine has no compiler.
fn compile(dir: &Path, out: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let src = dir.join(format!("{out}.c"));
    let bin = dir.join(out);
    std::fs::create_dir_all(bin.parent()?).ok()?;
    std::fs::write(&src, source).ok()?;
    let mut cc = Command::new("cc");
    let done = cc.arg("-o").arg(&bin).arg(&src).args(flags).output();
    std::fs::remove_file(src).ok()?;
    match done {
        Ok(o) if o.status.success() => Some(bin),
        Ok(o) => panic!("cc: {}", String::from_utf8_lossy(&o.stderr)),
        Err(_) => {
            skips::skipped("no C compiler");
            None
        }
    }
}

const SHARED: [&str; 3] = ["-shared", "-fPIC", "-O2"];

fn shared(dir: &Path, out: &str, source: &str, more: &[&str]) -> Option<PathBuf> {
    compile(dir, out, source, &[&SHARED[..], more].concat())
}

/// Libraries with neutral names, a program that needs two of them, and CPU variants to be loaded later.
fn install(dir: &Path) -> Option<PathBuf> {
    std::fs::create_dir_all(dir).ok()?;
    let l = format!("-L{}", dir.display());
    shared(dir, "libalpha.so", BASE, &["-Wl,-soname,libalpha.so"])?;
    shared(dir, "libbeta.so", LLAMA, &["-Wl,-soname,libbeta.so", "-Wl,-rpath,$ORIGIN", &l, "-lalpha"])?;
    shared(dir, "backends0/one", CPU, &["-s"])?;
    shared(dir, "backends0/two", CPU, &["-DTWO"])?;
    shared(dir, "libother.so", "int nothing(void) { return 1; }", &[])?;
    std::fs::write(dir.join("README"), "no ELF file").ok()?;
    let main = "#include <unistd.h>\nint llama_decode();\nint main(int c, char **v) { (void)v; if (c > 1) return llama_decode(); write(1, \"in main\\n\", 8); pause(); return 0; }";
    compile(dir, "prog", main, &[&l, "-lbeta", "-lalpha", "-Wl,-rpath,$ORIGIN", "-Wl,-rpath-link,."])
}

/// Starts it; when it says that it is in main, the loader has mapped its libraries.
fn in_main(program: &Path) -> Child {
    let mut child = Command::new(program).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    child
}

fn one(engines: Result<Vec<DiscoveredEngine>, DiscoverError>) -> DiscoveredEngine {
    let mut engines = engines.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(engines.len(), 1);
    engines.remove(0)
}

fn check_engine(engine: &DiscoveredEngine) {
    assert_eq!(engine.tables.ops.last().map(String::as_str), Some("GLU"));
    assert_eq!(engine.tables.op("MUL_MAT"), Some(3));
    assert_eq!(engine.tables.unary, ["ABS", "SGN", "NEG"]);
    assert_eq!(engine.tables.glu, ["REGLU", "GEGLU"]);
    let types: Vec<_> =
        engine.tables.types.iter().map(|t| (t.number, t.name.as_str(), t.block, t.bytes)).collect();
    assert_eq!(types, [(0, "f32", 1, 4), (1, "f16", 1, 2), (2, "q4_0", 32, 18), (4, "q8_0", 32, 34)]);
    let l = &engine.layout;
    assert_eq!(
        (l.tensor_size, l.op_off, l.src_off, l.data_off, l.name_off, l.name_len),
        (336, 80, 152, 248, 256, 64)
    );
    assert_eq!((l.graph_compute_off, l.uid_off, l.guid_off), (Some(96), None, Some(0)));
}

#[test]
fn a_program_and_what_it_will_load() {
    let dir = tempfile::tempdir().unwrap();
    let Some(prog) = install(dir.path()) else { return };
    for found in [
        discover::of_path(&prog),
        discover::of_command(&[prog.clone().into_os_string(), OsString::from("-x")]),
    ] {
        let engine = one(found);
        check_engine(&engine);
        assert_eq!(engine.layout.pool_off, Some(24), "the CPU module's function counts");
        assert_eq!(engine.paths(|r| r.cpu).len(), 2, "both variants, stripped or not");
        assert_eq!(engine.paths(|r| r.llama).len(), 1);
        let ladder = Ladder::of(&engine);
        assert_eq!(ladder.op.len(), 1);
        assert_eq!(ladder.op[0].points.len(), 2);
        assert_eq!(ladder.op_end.last().map(|r| r.how), Some(RungMethod::Interval));
        for p in [&ladder.token, &ladder.graph, &ladder.cpu_graph, &ladder.op]
            .into_iter()
            .flatten()
            .flat_map(|r| &r.points)
        {
            let module = &engine.modules[p.module];
            let vaddr = module.elf.find([p.symbol])[0].unwrap().vaddr;
            assert_eq!(module.elf.vaddr_of(p.sym_file_offset), Some(vaddr), "{}", p.symbol);
        }
    }
}

#[test]
fn a_running_process() {
    let dir = tempfile::tempdir().unwrap();
    let Some(prog) = install(dir.path()) else { return };
    let mut child = in_main(&prog);
    let found = discover::of_pid(child.id());
    let ids: Vec<_> = found.iter().flatten().flat_map(|e| &e.modules).map(|m| (m.dev, m.inode)).collect();
    let mut strangers = HashSet::new();
    let nothing_new = discover::of_pid_again(child.id(), &|id| ids.contains(&id), &mut strangers);
    let one_new = discover::of_pid_again(child.id(), &|id| ids.first() == Some(&id), &mut strangers);
    std::fs::remove_file(dir.path().join("libalpha.so")).unwrap();
    let deleted = discover::of_pid(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    let engine = one(found);
    check_engine(&engine);
    assert_eq!(engine.modules.len(), 2, "the CPU variants are not loaded in this process");
    assert!(engine.modules.iter().all(|m| m.host_path.starts_with("/proc")));
    assert!(nothing_new.unwrap().is_empty(), "all of it was known");
    check_engine(&one(one_new));
    assert!(!strangers.is_empty() && ids.iter().all(|id| !strangers.contains(id)));
    // A library replaced on disk is reached through map_files, which needs privileges.
    match deleted {
        Ok(engines) => assert_eq!(engines[0].modules.len(), 2),
        Err(e) => println!("deleted library not readable here: {e}"),
    }
}

#[test]
fn cpu_variants_beside_what_is_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let l = format!("-L{}", at.display());
    let Some(_) = shared(at, "libalpha.so", BASE, &["-Wl,-soname,libalpha.so"]) else { return };
    let needs = ["-Wl,--no-as-needed", &l, "-lalpha"];
    for name in ["variant", "backends0/other", "ggml/backends1/third"] {
        shared(at, name, CPU, &needs).unwrap();
    }
    // One that needs another base, one that is not a CPU part, one elsewhere, a link to it.
    shared(at, "stranger", CPU, &[]).unwrap();
    shared(at, "user", "int nothing(void) { return 1; }", &needs).unwrap();
    shared(at, "elsewhere/far", CPU, &needs).unwrap();
    std::os::unix::fs::symlink("elsewhere/far", at.join("link")).unwrap();
    let main = "#include <unistd.h>\nconst char *ggml_op_name(int);\nint main(int c, char **v) { (void)v; if (c > 1) return !ggml_op_name(c); write(1, \"in main\\n\", 8); pause(); return 0; }";
    let prog = compile(at, "prog", main, &[&l, "-lalpha", "-Wl,-rpath,$ORIGIN"]).unwrap();
    let mut child = in_main(&prog);
    let found = discover::of_pid(child.id());
    let parts = |e: &DiscoveredEngine| {
        let mut names: Vec<_> = e
            .modules
            .iter()
            .map(|m| m.path_in_target.strip_prefix(at.canonicalize().unwrap()).unwrap().to_owned())
            .collect();
        names.sort();
        names.into_iter().map(|n| n.display().to_string()).collect::<Vec<_>>()
    };
    let engine = one(found);
    assert_eq!(parts(&engine), ["backends0/other", "ggml/backends1/third", "libalpha.so", "variant"]);
    assert!(engine.modules.iter().all(|m| m.file.is_some()));
    // A second look finds nothing new.
    let ids: Vec<_> = engine.modules.iter().map(|m| (m.dev, m.inode)).collect();
    let again = discover::of_pid_again(child.id(), &|id| ids.contains(&id), &mut HashSet::new());
    assert!(again.is_ok_and(|engines| engines.is_empty()));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A root directory with a loader, an engine that its program needs by RUNPATH, and one in its own directories.
fn other_root(root: &Path) -> Option<PathBuf> {
    let l = format!("-L{}", root.join("opt/engine/lib").display());
    shared(root, "opt/engine/lib/libalpha.so", BASE, &["-Wl,-soname,libalpha.so"])?;
    let more = ["-Wl,-soname,libbeta.so", "-Wl,-rpath,/opt/engine/lib", &l, "-lalpha"];
    shared(root, "usr/lib/libbeta.so", LLAMA, &more)?;
    std::fs::create_dir_all(root.join("usr/lib64")).ok()?;
    std::os::unix::fs::symlink("usr/lib64", root.join("lib64")).ok()?;
    std::os::unix::fs::symlink("/usr/lib", root.join("lib")).ok()?;
    let main =
        "int llama_decode();\nint main(int c, char **v) { (void)v; return c > 1 ? llama_decode() : 0; }";
    let b = format!("-L{}", root.join("usr/lib").display());
    let link = format!("-Wl,-rpath-link,{}", root.join("opt/engine/lib").display());
    compile(root, "usr/bin/prog", main, &[&b, "-lbeta", &link])
}

#[test]
fn libraries_are_those_of_the_program_s_own_root() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap().join("root");
    let Some(prog) = other_root(&root) else { return };
    // Without an indication that it is a root.
    let said = discover::of_path(&prog).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(said.contains("usual directories: libbeta.so") && said.contains("--sysroot"), "{said}");
    let given = Root::given(&root, &prog).unwrap();
    let check = |found: Result<Vec<DiscoveredEngine>, DiscoverError>| {
        let engine = one(found);
        check_engine(&engine);
        let mut paths: Vec<_> = engine.modules.iter().map(|m| m.host_path.clone()).collect();
        paths.sort();
        assert_eq!(paths, [root.join("opt/engine/lib/libalpha.so"), root.join("usr/lib/libbeta.so")]);
    };
    check(discover::of_launch(&Launch::within(&prog, given)));
    std::fs::write(root.join("usr/lib64/ld-linux-x86-64.so.2"), "").unwrap();
    check(discover::of_path(&prog));
    // A link in the root resolves inside the root.
    std::os::unix::fs::symlink("/usr/bin/prog", root.join("opt/link")).unwrap();
    check(discover::of_path(&root.join("opt/link")));
}

#[test]
fn a_directory_is_searched() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let Some(_) = install(&at.join("deep/er")) else { return };
    let engine = one(discover::of_path(at));
    check_engine(&engine);
    assert_eq!((engine.paths(|r| r.cpu).len(), engine.paths(|r| r.llama).len()), (2, 1));
    let empty = at.join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(matches!(discover::of_path(&empty), Err(DiscoverError::NoEngine { looked: 0, .. })));
}

#[test]
fn unoptimised_code_and_longer_names() {
    let dir = tempfile::tempdir().unwrap();
    let Some(debug) = compile(dir.path(), "debug", BASE, &["-shared", "-fPIC", "-O0"]) else { return };
    check_engine(&one(discover::of_path(&debug)));
    let Some(long) = shared(dir.path(), "long", BASE, &["-DNAME_LEN=128"]) else { return };
    let mut elf = ElfFile::open(&long).unwrap();
    let layout = Layout::read(&elf, &|_| false).unwrap();
    assert_eq!((layout.name_len, layout.tensor_size, layout.pool_off), (128, 400, Some(24)));
    assert!(Tables::read(&mut elf).is_ok());
    let Some(wrong) = shared(dir.path(), "alone/wrong", BASE, &["-DUNARY_OP=7"]) else { return };
    let error = discover::of_path(&wrong).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(
        error.contains("check of op UNARY failed: the names say number 6, the code compares with 7"),
        "{error}"
    );
    let odd = BASE.replace("int flags;", "int flags; void *more[2];");
    let Some(odd) = shared(dir.path(), "odd", &odd, &[]) else { return };
    let error = Layout::read(&ElfFile::open(&odd).unwrap(), &|_| false).unwrap_err().to_string();
    assert!(
        error.contains("no known GGML layout has name at 272, data at 264, a tensor of 352 (bytes)"),
        "{error}"
    );
}

/// The base and the CPU part with this prefix on the names of GGML's functions.
fn prefixed(prefix: &str) -> String {
    format!("{BASE}{CPU}").replace("ggml_", &format!("{prefix}ggml_"))
}

#[test]
fn names_of_any_length() {
    let dir = tempfile::tempdir().unwrap();
    for len in [1, 8, 48, 80, 81, 200, 1000] {
        let flag = format!("-DNAME_LEN={len}");
        let Some(file) = shared(dir.path(), "any", BASE, &[&flag]) else { return };
        let layout = Layout::read(&ElfFile::open(&file).unwrap(), &|_| false).unwrap();
        let room: u32 = u32::div_ceil(len, 8) * 8;
        assert_eq!((layout.name_off, layout.name_len, layout.tensor_size), (256, room, 272 + room), "{len}");
    }
}

#[test]
fn ggml_under_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let Some(lm) = shared(at, "one/liblm", &prefixed("lm_"), &["-s"]) else { return };
    let wsp = shared(at, "two/libwsp", &prefixed("wsp_"), &[]).unwrap();
    for (file, prefix) in [(lm, "lm_"), (wsp, "wsp_")] {
        let engine = one(discover::of_path(&file));
        check_engine(&engine);
        let module = &engine.modules[0];
        assert!(module.roles.base && module.roles.cpu && !module.roles.llama);
        assert_eq!(module.elf.prefix(), prefix);
        assert_eq!(module.elf.name_of("ggml_barrier"), format!("{prefix}ggml_barrier"));
        let ladder = Ladder::of(&engine);
        assert_eq!((ladder.op.len(), ladder.op_end.len(), ladder.cpu_graph.len()), (1, 2, 1));
        assert_eq!(ladder.op[0].points.len(), 1);
    }
    // One function alone is a wrapper; a file with GGML's own names is GGML.
    let wrapper = "const char *my_ggml_op_name(int op) { return op ? \"a\" : \"b\"; }";
    let wrapper = shared(at, "three/wrapper", wrapper, &[]).unwrap();
    assert!(matches!(discover::of_path(&wrapper), Err(DiscoverError::NoEngine { .. })));
    let both = format!("{BASE}{CPU}\nvoid my_ggml_barrier(void) {{}}\nvoid my_ggml_op_name(void) {{}}");
    let both = shared(at, "four/both", &both, &[]).unwrap();
    assert_eq!(one(discover::of_path(&both)).modules[0].elf.prefix(), "");
}

#[test]
fn two_engines_of_different_names_keep_their_parts() {
    let dir = tempfile::tempdir().unwrap();
    let base = |prefix: &str| BASE.replace("ggml_", &format!("{prefix}ggml_"));
    let cpu = |prefix: &str| CPU.replace("ggml_", &format!("{prefix}ggml_"));
    let Some(first) = shared(dir.path(), "a.so", &base("lm_"), &[]) else { return };
    shared(dir.path(), "b.so", &base("wsp_"), &[]).unwrap();
    shared(dir.path(), "c.so", &cpu("wsp_"), &[]).unwrap();
    shared(dir.path(), "d.so", &cpu("lm_"), &["-s"]).unwrap();
    let engines = discover::of_path(&first).unwrap_or_else(|e| panic!("{e}"));
    let of = |e: &DiscoveredEngine| e.modules.iter().map(|m| m.elf.prefix().to_owned()).collect::<Vec<_>>();
    let mut parts: Vec<_> = engines.iter().map(of).collect();
    parts.sort();
    assert_eq!(parts, [["lm_", "lm_"], ["wsp_", "wsp_"]]);
}

/// The base and the CPU part without these accessors, as a linker leaves out what nobody calls.
fn without(accessors: &[&str]) -> String {
    let all = format!("{BASE}{CPU}");
    let lines = all.lines().filter(|line| !accessors.iter().any(|name| line.contains(&format!("{name}("))));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn any_of_the_accessors_are_enough_that_leave_one_layout() {
    let dir = tempfile::tempdir().unwrap();
    const ALL: [&str; 3] = ["ggml_get_name", "ggml_get_data", "ggml_tensor_overhead"];
    let others = ["ggml_is_view", "ggml_nelements", "ggml_get_unary_op", "ggml_backend_guid"];
    for left in 1..8_usize {
        let out: Vec<&str> = (0..3).filter(|bit| left >> bit & 1 == 0).map(|bit| ALL[bit]).collect();
        let source = without(&[&out[..], &others].concat());
        let Some(file) = shared(dir.path(), "some", &source, &[]) else { return };
        println!("without {out:?}");
        check_engine(&one(discover::of_path(&file)));
    }
    // Without the function that came with the newest layout, a size alone is that of two.
    let old = without(&[&ALL[..2], &others].concat()).replace("ggml_cpu_extra_compute_forward", "other");
    let file = shared(dir.path(), "alone/old", &old, &[]).unwrap();
    let said = discover::of_path(&file).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(said.contains("none of ggml_get_name, ggml_get_data, ggml_tensor_overhead shows it"), "{said}");
}

#[test]
fn without_a_layout_calls_and_graphs_remain() {
    let dir = tempfile::tempdir().unwrap();
    let bare = without(&["ggml_get_name", "ggml_get_data", "ggml_tensor_overhead"]);
    let Some(file) = shared(dir.path(), "bare", &bare, &["-Wno-unused-function"]) else { return };
    let said = discover::of_path(&file).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(said.contains("none of ggml_get_name") && said.contains("link-dead-code"), "{said}");
    let llama = LLAMA.replace("int ggml_backend_sched_graph_compute_async(void *s, void *g);", "");
    // GGML's own function, or none: an engine from before it gives its graphs to no scheduler.
    for graphs in [true, false] {
        let source = format!("{bare}{llama}");
        let source = if graphs { source } else { source.replace("sched_graph_compute_async", "compute") };
        let file = shared(dir.path(), "whole/bare", &source, &[]).unwrap();
        let engine = one(discover::of_path(&file));
        assert!(engine.layout_told().contains("none of ggml_get_name"), "{}", engine.layout_told());
        let ladder = Ladder::of(&engine);
        assert_eq!((ladder.token.len(), ladder.op.len(), ladder.op_end.len()), (1, 0, 0));
        assert_eq!((ladder.graph.len(), ladder.cpu_graph.len()), (usize::from(graphs), usize::from(graphs)));
    }
    // Its names were inlined too.
    let source = format!(
        "{CPU}{llama}int ggml_backend_sched_graph_compute_async(void *s, void *g) {{ return s == g; }}"
    );
    let file = shared(dir.path(), "inlined/bare", &source, &[]).unwrap();
    let engine = one(discover::of_path(&file));
    assert!(engine.unread.is_some_and(|why| why.contains("not its base library")));
}

#[test]
fn functions_that_link_time_optimisation_made_local() {
    let dir = tempfile::tempdir().unwrap();
    let cpu = CPU
        .replace("ggml_cpu_extra_compute_forward(void", "ggml_compute_forward(void")
        .replace("ggml_cpu_extra_compute_forward(g", "ggml_compute_forward(g");
    let named =
        "int ggml_compute_forward(void *params, void *tensor) __asm__(\"ggml_compute_forward.lto_priv.3\");";
    let Some(file) = shared(dir.path(), "lto", &format!("{BASE}{named}{cpu}"), &[]) else { return };
    let ladder = Ladder::of(&one(discover::of_path(&file)));
    assert_eq!(ladder.op.iter().map(|r| r.name).collect::<Vec<_>>(), ["ggml_compute_forward"]);
}

/// Programs beside the target, and libraries of other packages, are none of its engine.
#[test]
fn what_is_only_beside_the_target_is_not_its_engine() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let program = format!("{BASE}\n{CPU}\nint main(int c, char **v) {{ (void)v; {USE_TABLES} }}");
    let Some(_) = compile(at, "bin/engine", &program, &["-O2"]) else { return };
    let other = compile(at, "bin/other", "int main(void) { return 0; }", &[]).unwrap();
    assert!(matches!(discover::of_path(&other), Err(DiscoverError::NoEngine { .. })));
    // A script may start it.
    std::fs::write(at.join("bin/script"), "#!/bin/sh\n").unwrap();
    assert!(discover::of_path(&at.join("bin/script")).is_ok());
    let nothing = "int nothing(void) { return 1; }";
    // Copies of a library under its other names.
    let engine = shared(at, "copies/libengine.so.0.1", &format!("{BASE}{CPU}"), &["-Wl,--build-id"]).unwrap();
    std::fs::copy(&engine, at.join("copies/libengine.so")).unwrap();
    assert_eq!(one(discover::of_path(&engine)).modules.len(), 1);
    // From when its names were not told.
    let old =
        format!("{BASE}{CPU}int ggml_nbytes(void *t) {{ return t != 0; }}").replace("ggml_op_name(", "name(");
    let old = shared(at, "old/libold.so", &old, &[]).unwrap();
    let said = discover::of_path(&old).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(said.contains("a GGML that is too old"), "{said}");
    for (place, found) in [("site-packages", false), ("site-packages/package", true)] {
        let own = shared(at, &format!("{place}/_own.so"), nothing, &[]).unwrap();
        shared(at, &format!("{place}/libengine.so"), &format!("{BASE}{CPU}"), &[]).unwrap();
        assert_eq!(discover::of_path(&own).is_ok(), found, "{place}");
    }
}

/// ik_llama.cpp: nine more pointers in each record of the table of types.
#[test]
fn records_of_types_have_any_known_size() {
    let dir = tempfile::tempdir().unwrap();
    let wider = BASE.replace("void *a, *b; };", "void *a, *b, *more[9]; };").replace(", 0, 0 }", " }");
    let Some(file) = shared(dir.path(), "ik", &wider, &[]) else { return };
    check_engine(&one(discover::of_path(&file)));
    let odd = BASE.replace("void *a, *b; };", "void *a, *b, *more[7]; };").replace(", 0, 0 }", " }");
    let file = shared(dir.path(), "alone/odd", &odd, &[]).unwrap();
    let said = discover::of_path(&file).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(said.contains("has no table of GGML types"), "{said}");
}

#[test]
fn fixed_addresses_need_no_relocations() {
    let dir = tempfile::tempdir().unwrap();
    let source = format!("{BASE}\n{CPU}\nint main(int c, char **v) {{ (void)v; {USE_TABLES} }}");
    let Some(exe) = compile(dir.path(), "fixed", &source, &["-no-pie", "-fno-pie", "-O2"]) else { return };
    let engine = one(discover::of_path(&exe));
    assert_eq!(engine.tables.op("MUL_MAT"), Some(3));
    assert!(engine.modules[0].roles.base && engine.modules[0].roles.cpu);
}

#[test]
fn errors_say_what_and_what_next() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let Some(plain) = compile(dir.path(), "plain", "int main(void) { return 0; }", &[]) else { return };
    let text = |r: Result<Vec<DiscoveredEngine>, DiscoverError>| match r {
        Ok(_) => panic!("found an engine"),
        Err(e) => e.to_string(),
    };
    assert!(text(discover::of_path(&plain)).contains("no GGML in"));
    let bare = compile(dir.path(), "sub/bare", "int main(void) { return 0; }", &["-static", "-s"]).unwrap();
    assert!(text(discover::of_path(&bare)).contains("no GGML in"), "static and stripped, but not an engine");
    let inside = format!("{BASE}\nint main(int c, char **v) {{ (void)v; {USE_TABLES} }}");
    for flags in [&["-static", "-s"][..], &["-s", "-pie", "-fPIE"][..]] {
        let engine = compile(dir.path(), "sub/inside", &inside, flags).unwrap();
        let said = text(discover::of_path(&engine));
        assert!(said.contains("linked and stripped") && said.contains("use a build with symbols"), "{said}");
    }
    assert!(text(discover::of_path(&at("missing"))).contains("cannot read"));
    assert!(text(discover::of_command(&["no-such-command-anywhere".into()])).contains("not found in PATH"));
    assert!(text(discover::of_command(&[])).contains("not found in PATH"));
    assert!(text(discover::of_pid(u32::MAX)).contains("cannot be inspected"));
    std::fs::write(at("text"), "hello").unwrap();
    assert!(matches!(ElfFile::open(&at("text")), Err(ElfError::NotElf { .. })));
    assert!(matches!(ElfFile::open(dir.path()), Err(ElfError::NotElf { .. })));
    let mut bytes = std::fs::read(&plain).unwrap();
    bytes[18] = 243;
    let other = ElfFile::from_bytes(bytes.clone(), "riscv").err().unwrap().to_string();
    assert!(other.contains("ELF machine 243"), "{other}");
    bytes[4] = 1;
    assert!(matches!(ElfFile::from_bytes(bytes, "old"), Err(ElfError::Class32 { .. })));
}

#[test]
fn compact_relocations_and_no_section_headers() {
    let dir = tempfile::tempdir().unwrap();
    let source = format!("{BASE}{CPU}");
    let Some(plain) = shared(dir.path(), "plain/lib", &source, &[]) else { return };
    let mut bytes = std::fs::read(plain).unwrap();
    // A file whose section headers were removed: e_shoff, e_shnum and e_shstrndx are zero.
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let bare = ElfFile::from_bytes(bytes, "no sections").unwrap();
    assert!(bare.is_stripped());
    check_engine(&discover::of_file(bare).unwrap());
    // RELR stores the target instead of an addend; linkers before 2022 do not support it.
    let relr = || shared(dir.path(), "relr/lib", &source, &["-Wl,-z,pack-relative-relocs"]);
    match std::panic::catch_unwind(relr) {
        Ok(Some(lib)) => check_engine(&one(discover::of_path(&lib))),
        _ => skips::lacking("this linker has no compact relocations"),
    }
}

/// Runs all processing steps on one file's bytes.
fn whole_pipeline(bytes: Vec<u8>) {
    let Ok(mut elf) = ElfFile::from_bytes(bytes, "mutant") else { return };
    if let (Ok(tables), Ok(layout)) = (Tables::read(&mut elf), Layout::read(&elf, &|_| true)) {
        assert!(tables.ops.len() <= 512 && layout.name_len <= 4096);
    }
    assert!(elf.pointers().len() <= 1 << 20, "a small file cannot have many pointers");
    if let Ok(engine) = discover::of_file(elf) {
        let ladder = Ladder::of(&engine);
        assert!(ladder.op.len() <= 2);
        assert!(!engine.layout.to_string().is_empty());
    }
}

#[test]
fn damaged_files_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let Some(file) = shared(dir.path(), "all", &format!("{BASE}{CPU}"), &[]) else { return };
    let good = std::fs::read(file).unwrap();
    assert!(discover::of_file(ElfFile::from_bytes(good.clone(), "good").unwrap()).is_ok());
    for len in (0..good.len()).step_by(97).chain(0..256) {
        whole_pipeline(good[..len.min(good.len())].to_vec());
    }
    // Headers, tables and code are in the first pages and at the end; single bytes there matter most.
    let config = ProptestConfig { failure_persistence: None, cases: 3000, ..ProptestConfig::default() };
    let spot = prop_oneof![0..64usize, 64..1024usize, 0..good.len()];
    let value = prop_oneof![any::<u8>(), Just(0u8), Just(0xff), Just(0x80)];
    proptest!(config, |(changes in proptest::collection::vec((spot, value, 1..9usize), 1..12))| {
        let mut bytes = good.clone();
        for (at, value, run) in changes {
            for b in bytes.iter_mut().skip(at).take(run) {
                *b = value;
            }
        }
        whole_pipeline(bytes);
    });
}
