//! Work in progress at the end of a recording has no end time: it counts towards no op, and later work is not
//! recorded. Needs no root: the events are synthetic, with the layout of the fake engine.

use crate::common;

use std::fs::File;
use std::process::Command;

use agent::capture::structure::Reading;
use agent::recorder::drain::Drain;
use common::events::{Fake, MS, footer};
use engine::discover;
use pfi::{Encoder, EncoderConfig};

const END: u64 = 10 * MS;

#[test]
fn an_op_under_way_at_the_end_has_no_time() {
    let Some(dir) = common::fixture_dir("modern") else { common::skip!("no gcc for the fixture") };
    let engine = discover::of_path(&dir.join("fakellama")).expect("an engine").remove(0);
    let place = tempfile::tempdir().expect("a directory");
    let trace = place.path().join("end.pfi");
    let out = File::create(&trace).expect("a file");
    let mut drain =
        Drain::new(Encoder::new(out, EncoderConfig::default(), &common::made::header()).expect("written"));
    drain.add_engine(Reading::new(0, engine.layout.clone(), &engine.tables));
    let mut fake = Fake(drain);
    for (ms, kind) in [(1, "token-enter"), (1, "sched-enter"), (2, "graph-enter")] {
        fake.call(ms, kind);
    }
    fake.op(3, 1);
    fake.op(5, 2);
    // The recording ends; removing the probes takes six seconds.
    fake.0.end_at(END);
    fake.op(6000, 3);
    for (ms, kind) in [(6500, "graph-exit"), (6500, "sched-exit"), (6500, "token-exit")] {
        fake.call(ms, kind);
    }
    fake.0.close(None, END).expect("written");
    fake.0.enc.finish(&footer(END)).expect("written");

    let seen = common::seen::Seen::damaged(&trace);
    let graph = seen.all.cpu_graphs.first().expect("a graph");
    assert!(graph.cut && graph.t + graph.dur as i64 == END as i64, "{graph:?}");
    assert!(seen.all.tokens.iter().all(|t| t.cut && t.t + t.dur as i64 == END as i64));
    assert_eq!(seen.slices(), 2, "what came later is not there");
    let out =
        Command::new(common::profinfer()).args(["report", "--json"]).arg(&trace).output().expect("runs");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    // The first op ended where the second began; the end of the second is unknown.
    let phases = report["phases"].as_array().expect("phases");
    let op_ns: u64 = phases.iter().map(|p| p["op_ns"].as_u64().expect("a number")).sum();
    assert_eq!(op_ns, 2 * MS, "{report}");
}
