//! `record` reports when its probes are attached, even if standard error is not a terminal: the program that starts
//! it waits for that line.

use crate::common;

use common::run::{Recorder, Target, wait_until};
use common::{fixture, live};

#[test]
fn it_says_when_it_is_ready_without_a_terminal() {
    let _turn = live!();
    let program = fixture!("modern");
    let engine = program.to_str().expect("UTF-8");
    let target = Target::start(&program, &["-n", "1000000", "--op-ns", "20000", "--sleep"]);
    let pid = target.pid().to_string();
    for (args, what) in [
        (&["-p", &pid][..], format!("process {pid}")),
        (&["--exe", engine], format!("every process that runs or maps {engine}")),
        (&["--", engine, "-n", "1000000", "--op-ns", "20000", "--sleep"], engine.to_owned()),
    ] {
        let mut recorder = Recorder::start(args);
        let line = format!("profinfer: ready: recording {what}; press Ctrl-C to stop");
        wait_until("the line that says so", || {
            let ended = recorder.child.try_wait().expect("our own child");
            assert!(ended.is_none(), "{args:?}: {ended:?}: {}", recorder.stderr());
            recorder.stderr().lines().any(|l| l == line)
        });
        recorder.wait_for_bytes(1000);
        recorder.signal(libc::SIGINT);
        let run = recorder.finish();
        run.seen().books_close();
        assert_eq!(run.stderr.matches("ready: ").count(), 1, "{args:?}: {}", run.stderr);
    }
}
