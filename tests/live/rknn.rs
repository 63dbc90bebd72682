//! A Rockchip NPU, which is not there: a fake engine opens a fake backend (tests/gpu/fake_rknn.c) that computes on the CPU
//! and has the functions of ggml-rknn. Its function for one node is recognised without `--op-probe`.

use crate::common;

use std::process::Command;

use common::reported::{on_backend, report, seen_whole};
use common::run::Recorder;
use common::{fixture, live};

#[test]
fn each_node_is_enqueued_once() {
    let _turn = live!(beside others);
    let engine = fixture!("modern");
    // Beside the engine, as in a release: there it is found with it.
    let dir = tempfile::tempdir().expect("a directory");
    for file in std::fs::read_dir(engine.parent().expect("a directory")).expect("its files").flatten() {
        std::fs::copy(file.path(), dir.path().join(file.file_name())).expect("a copy");
    }
    let program = dir.path().join("fakellama");
    let library = dir.path().join("libggml-rknn.so");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(common::source("gpu/fake_rknn.c"));
    assert!(cc.status().expect("a compiler").success());
    let (program, library) = (program.display().to_string(), library.display().to_string());
    let go = dir.path().join("go").display().to_string();
    let recorder =
        Recorder::start(&["--", &program, "--split", "--rknn", &library, "-n", "12", "--hold-for", &go]);
    // The library is opened before the first token, and the engine must be found with it.
    recorder.wait_for_probe_in("libggml-rknn.so");
    std::fs::write(&go, "").expect("go");
    let run = recorder.finish();
    run.seen().books_close();
    let probes = run.seen().all.probes.clone();
    assert!(probes.iter().any(|p| p.symbol == "ggml_rk_compute_forward"), "{probes:?}");
    let report = report(&run);
    ["prefill", "decode"].iter().for_each(|phase| seen_whole(on_backend(&report, phase, "RKNN")));
}
