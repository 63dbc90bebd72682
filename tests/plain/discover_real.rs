//! Discovery against real engines: their tables, layouts and probe points, as known from source and measurement.
//! Needs `PROFINFER_ENGINES`, a directory with unpacked engine packages (at any depth); skipped with a message
//! otherwise.

use std::path::{Path, PathBuf};

use crate::common::skips;
use engine::discover::{self, DiscoverError, DiscoveredEngine};
use engine::elf::ElfMachine;
use engine::ladder::{BatchPassing, Ladder, ProbePoint, Rung, RungMethod};
use engine::prologue::InsnHandling;

/// Known properties of a release.
struct Known {
    /// Build id of the file with the base code: identifies the release regardless of directory names.
    build_id: &'static str,
    label: &'static str,
    ops: usize,
    unary: usize,
    glu: usize,
    types: usize,
    mul_mat: u32,
    /// Numbers of UNARY and GLU that the accessors' code compares with.
    unary_op: u32,
    glu_op: Option<u32>,
    layout: &'static str,
    modules: usize,
    op_rungs: &'static [&'static str],
    fused: bool,
}

const NEW: &str = "tensor size=336 type@0 ne@16 nb@48 op@80 op_params@84 flags@148 src@152x10 view_src@232 data@248 \
name@256x64; params ith@0 nth@4 pool@24; cgraph n_nodes@4 nodes@16";

const KNOWN: &[Known] = &[
    Known {
        build_id: "285f2394ed1baef30ee82aadf1b911d22e89444e",
        label: "node-llama-cpp 3.1.1 (b3889)",
        ops: 81,
        unary: 14,
        glu: 0,
        types: 34,
        mul_mat: 26,
        unary_op: 69,
        glu_op: None,
        layout: "tensor size=336 type@0 ne@16 nb@48 op@80 op_params@84 flags@148 src@160x10 view_src@240 data@256 \
name@264x64; params ith@0 nth@4 pool@24; cgraph n_nodes@4 nodes@16; cplan n_threads@16; backend guid@0 \
graph_compute@96; batch n_tokens@0 token@8",
        modules: 2,
        op_rungs: &["ggml_compute_forward"],
        fused: false,
    },
    Known {
        build_id: "fa83fdffa61184ea3f6bc06accb9f27bed94910b",
        label: "node-llama-cpp 3.6.0 (b4753)",
        ops: 83,
        unary: 14,
        glu: 0,
        types: 31,
        mul_mat: 26,
        unary_op: 71,
        glu_op: None,
        layout: "; cplan n_threads@16; backend guid@0 graph_compute@88; batch n_tokens@0 token@8",
        modules: 8,
        op_rungs: &["ggml_compute_forward", "ggml_cpu_extra_compute_forward"],
        fused: false,
    },
    Known {
        build_id: "33578072540b69eb81e5ba2d314abfc04b767404",
        label: "node-llama-cpp 3.16.2 (b8121)",
        ops: 95,
        unary: 22,
        glu: 6,
        types: 32,
        mul_mat: 29,
        unary_op: 85,
        glu_op: Some(94),
        layout: "; cplan n_threads@16; backend guid@0 graph_compute@88; batch n_tokens@0 token@8",
        modules: 16,
        op_rungs: &["ggml_cpu_extra_compute_forward"],
        fused: false,
    },
    Known {
        build_id: "a1082c427a231d613bf0927d11a588737db2d250",
        label: "node-llama-cpp 3.22.1 (v0.5.0) x64",
        ops: 101,
        unary: 22,
        glu: 7,
        types: 35,
        mul_mat: 29,
        unary_op: 91,
        glu_op: Some(100),
        layout: " uid@88; cplan n_threads@16; backend guid@0 graph_compute@104; batch n_tokens@0 token@8",
        modules: 16,
        op_rungs: &["ggml_cpu_extra_compute_forward"],
        fused: true,
    },
    Known {
        build_id: "6732e1a9339654fbd521b39c83952850c679ee30",
        label: "node-llama-cpp 3.22.1 (v0.5.0) arm64",
        ops: 101,
        unary: 22,
        glu: 7,
        types: 35,
        mul_mat: 29,
        unary_op: 91,
        glu_op: Some(100),
        layout: " uid@88; cplan n_threads@16; backend guid@0 graph_compute@104; batch n_tokens@0 token@8",
        modules: 10,
        op_rungs: &["ggml_cpu_extra_compute_forward"],
        fused: true,
    },
    Known {
        build_id: "8aedfa31af1c52fe94168556eb93295be603e89e",
        label: "xllamacpp 2026.10.11549 (b11549)",
        ops: 101,
        unary: 22,
        glu: 7,
        types: 35,
        mul_mat: 29,
        unary_op: 91,
        glu_op: Some(100),
        layout: " uid@88; cplan n_threads@16; backend guid@0 graph_compute@104; batch n_tokens@0 token@8",
        modules: 1,
        op_rungs: &["ggml_cpu_extra_compute_forward"],
        fused: true,
    },
];

/// One library per directory; discovery finds those next to it.
fn entries(dir: &Path, depth: usize, out: &mut Vec<PathBuf>) {
    let Ok(list) = std::fs::read_dir(dir) else { return };
    let mut paths: Vec<PathBuf> = list.flatten().map(|e| e.path()).collect();
    paths.sort();
    let is_library =
        |p: &&PathBuf| p.is_file() && p.file_name().is_some_and(|n| n.to_string_lossy().contains(".so"));
    out.extend(paths.iter().find(is_library).cloned());
    if depth > 0 {
        paths.iter().filter(|p| p.is_dir()).for_each(|p| entries(p, depth - 1, out));
    }
}

fn engines() -> Option<Vec<DiscoveredEngine>> {
    let Some(dir) = std::env::var_os("PROFINFER_ENGINES") else {
        skips::skipped("PROFINFER_ENGINES is not set");
        return None;
    };
    let mut files = Vec::new();
    entries(Path::new(&dir), 6, &mut files);
    let mut engines = Vec::new();
    for file in files {
        match discover::of_path(&file) {
            Ok(found) => engines.extend(found),
            // Packages also contain other libraries, and directories with backends only.
            Err(DiscoverError::NoEngine { .. } | DiscoverError::NoBase { .. }) => {}
            Err(e) => panic!("{}: {e}", file.display()),
        }
    }
    Some(engines)
}

fn names(rungs: &[Rung]) -> Vec<&str> {
    rungs.iter().map(|r| r.name).collect()
}

#[test]
fn known_releases() {
    let Some(engines) = engines() else { return };
    let mut seen = 0;
    for engine in &engines {
        let base = engine.modules.iter().find(|m| m.roles.base).expect("every engine has a base");
        let Some(known) = KNOWN.iter().find(|k| k.build_id == base.build_id) else { continue };
        seen += 1;
        let (what, t) = (known.label, &engine.tables);
        assert_eq!(
            (t.ops.len(), t.unary.len(), t.glu.len(), t.types.len()),
            (known.ops, known.unary, known.glu, known.types),
            "{what}"
        );
        assert_eq!(t.op("MUL_MAT"), Some(known.mul_mat), "{what}");
        assert_eq!(t.op("MUL_MAT_ID"), Some(known.mul_mat + 1), "{what}");
        assert_eq!((t.op("UNARY"), t.op("GLU")), (Some(known.unary_op), known.glu_op), "{what}");
        let q4_k = t.type_trait(12).expect("q4_K has been 12 since 2023");
        assert_eq!((q4_k.name.as_str(), q4_k.block, q4_k.bytes), ("q4_K", 256, 144), "{what}");
        let i32_type = t.type_trait(26).expect("i32 has been 26 since 2024-03");
        assert_eq!((i32_type.name.as_str(), i32_type.block, i32_type.bytes), ("i32", 1, 4), "{what}");
        let expected = if known.layout.starts_with("tensor") {
            known.layout.to_owned()
        } else {
            format!("{NEW}{}", known.layout)
        };
        assert_eq!(engine.layout.to_string(), expected, "{what}");
        // The device builds have their backend, and perhaps its runtime, next to the same modules.
        let modules = engine.modules.iter().filter(|m| !m.roles.drives && !m.roles.dispatches).count();
        assert_eq!(modules, known.modules, "{what}: {:?}", engine.paths(|_| true));
        check_ladder(engine, known);
    }
    println!("{seen} known of {} engines", engines.len());
    assert!(seen > 0, "none of the {} engines is known to the test", engines.len());
}

fn check_ladder(engine: &DiscoveredEngine, known: &Known) {
    let ladder = Ladder::of(engine);
    let what = known.label;
    assert_eq!(names(&ladder.op), known.op_rungs, "{what}");
    assert_eq!(names(&ladder.op_end), ["ggml_barrier", "interval"], "{what}");
    assert_eq!(ladder.split.last().map(|r| r.how), Some(RungMethod::Vtable), "{what}");
    let cpus = engine.modules.iter().filter(|m| m.roles.cpu).count();
    assert_eq!(ladder.cpu_graph[0].points.len(), cpus, "{what}: one point for each CPU variant");
    let has_fused = ladder.op[0].points.iter().any(|p| p.symbol.contains("fused"));
    assert_eq!(has_fused, known.fused, "{what}");
    let batch =
        if engine.machine == ElfMachine::X86_64 { BatchPassing::Stack(8) } else { BatchPassing::Pointer(1) };
    let decode =
        ladder.token[0].points.iter().find(|p| p.symbol == "llama_decode").expect("all releases have it");
    assert_eq!(decode.batch, Some(batch), "{what}");
    let hot: Vec<&ProbePoint> = [&ladder.token, &ladder.graph, &ladder.cpu_graph, &ladder.op]
        .into_iter()
        .flatten()
        .flat_map(|r| &r.points)
        .collect();
    for p in hot {
        assert!(p.entry.cost <= InsnHandling::Emulated, "{what}: {} is dear: {}", p.symbol, p.entry.why);
    }
}
