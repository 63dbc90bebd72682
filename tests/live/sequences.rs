//! Which sequences calls compute, on engines that take their batches in different forms. What a server's slots and drafts
//! show is compared with the server's own figures by tests/server/requests.py.

use crate::common;

use std::process::Command;

use analysis::recorded::calls::timeline;
use analysis::recorded::sequences::{CallKind, CallWork};
use common::run::{Recorder, Target};
use common::seen::Seen;
use common::{driver, engine, live, model, skip};
use pfi::record::Availability;

fn feature(seen: &Seen) -> (Availability, &str) {
    let f = seen.all.causes.features.iter().find(|f| f.name == "sequences").expect("told");
    (f.state, f.why)
}

/// A prompt of 7 tokens and 5 tokens after it, by a controlled program.
fn recorded(lib: &std::path::Path, options: &[&str]) -> common::run::Run {
    let mut command = Command::new(driver());
    command.arg("--engine").arg(lib).arg("--model").arg(model("tiny", "q4_0"));
    let mut target = Target::controlled(command.args(["--control", "--ctx", "256"]));
    let pid = target.pid().to_string();
    target.tell("", 1);
    let recorder = Recorder::start(&[options, &["--level", "token", "-p", &pid]].concat());
    recorder.wait_for_probes();
    target.tell("prefill 7\n", 2);
    target.tell("run 5\n", 3);
    drop(target.0.stdin.take());
    target.said();
    recorder.finish()
}

/// b3889 to v0.5.0 take a llama_batch; b11549 has llama_process, whose batch is read in its parts.
#[test]
fn a_request_is_read_from_the_batches_of_all_eras() {
    let _turn = live!(beside others);
    for name in ["b3889", "b4753", "b8121", "v0.5.0", "b11549"] {
        let lib = match engine(name) {
            Ok(path) => path,
            Err(why) => skip!("{why}"),
        };
        let recording = recorded(&lib, &[]);
        let seen = recording.seen();
        seen.complete();
        assert_eq!(feature(&seen).0, Availability::Whole, "{name}: {:?}", feature(&seen));
        let line = timeline(&seen.all);
        let all = line.sequences.as_ref().expect("batches were read");
        let kinds: Vec<_> = all.works.iter().map(|w| w.as_ref().and_then(CallWork::kind)).collect();
        let [first, rest @ ..] = kinds.as_slice() else { panic!("{name}: no calls") };
        assert_eq!(*first, Some(CallKind::Prefill), "{name}");
        assert!(rest.len() == 5 && rest.iter().all(|k| *k == Some(CallKind::Decode)), "{name}: {kinds:?}");
        let [request] = all.requests.as_slice() else { panic!("{name}: {:?}", all.requests) };
        assert_eq!((request.prompt, request.produced(), request.seq), (7, 6, 0), "{name}");
        // What the tokens are is known only as hashes, of all of them.
        let of = |c: &pfi::record::Content| (c.pos, c.tokens, pfi::content_hashes(c).all(|hash| hash != 0));
        let contents: Vec<_> = seen.all.causes.contents.iter().map(of).collect();
        let singles = (7..12).map(|at| (at, 1, true));
        let told: Vec<_> = std::iter::once((0, 7, true)).chain(singles).collect();
        assert_eq!(contents, told, "{name}");
        assert!(request.context != 0 && !request.late && !request.cut, "{name}: {request:?}");
    }
}

#[test]
fn perf_events_say_that_they_carry_no_batch() {
    let _turn = live!(beside others, by perf events);
    let lib = match engine("v0.5.0") {
        Ok(path) => path,
        Err(why) => skip!("{why}"),
    };
    let recording = recorded(&lib, &["--source", "perf"]);
    let seen = recording.seen();
    let (state, why) = feature(&seen);
    assert_eq!(state, Availability::None);
    assert!(why.contains("perf events do not carry"), "{why}");
    assert!(timeline(&seen.all).sequences.is_none());
}
