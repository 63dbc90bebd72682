//! Programs of uprobes use the stack of the thread that they run on: one of the CPU, as kernels from 6.13 on may give to
//! them, is overwritten where a preemptible kernel lets another thread's run of the same program come between. Needs root
//! and BPF.
#![cfg(target_arch = "x86_64")]

use crate::common;

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};

use common::run::Recorder;
use common::{fixture, live};

/// `add r9, gs:[...]`: the kernel's compiler finds the stack of the CPU so (emit_priv_frame_ptr in
/// arch/x86/net/bpf_jit_comp.c).
const STACK_OF_CPU: [u8; 5] = [0x65, 0x4c, 0x03, 0x0c, 0x25];

/// Ids of the BPF programs that a process holds.
fn programs(pid: u32) -> Vec<u32> {
    let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("a process").flatten();
    let texts = infos.filter_map(|info| std::fs::read_to_string(info.path()).ok());
    texts
        .filter_map(|text| text.lines().find_map(|l| l.strip_prefix("prog_id:"))?.trim().parse().ok())
        .collect()
}

#[test]
fn programs_of_uprobes_keep_to_the_stack_of_their_thread() {
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    let engine = engine.to_str().expect("a path");
    let recorder = Recorder::start(&["--", engine, "-n", "40", "--op-ns", "1000000", "--sleep"]);
    recorder.wait_for_event("attached");
    let own = programs(recorder.child.id());
    let query = ProgInfoQueryOptions::default().include_jited_prog_insns(true);
    let infos = ProgInfoIter::with_query_opts(query).filter(|info| own.contains(&info.id));
    let of_uprobes: Vec<_> = infos.filter(|info| info.ty == libbpf_rs::ProgramType::Kprobe).collect();
    assert!(of_uprobes.len() > 20, "{} programs", of_uprobes.len());
    let bad = of_uprobes.iter().filter(|info| {
        assert!(!info.jited_prog_insns.is_empty(), "{:?} is not shown", info.name);
        info.jited_prog_insns.windows(STACK_OF_CPU.len()).any(|at| at == STACK_OF_CPU)
    });
    let bad: Vec<_> = bad.map(|info| &info.name).collect();
    assert!(bad.is_empty(), "have a stack of the CPU: {bad:?}");
}
