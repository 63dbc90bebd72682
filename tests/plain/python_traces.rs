//! Synthetic traces for tests/python_reader.py, which compares the reader for Python with `profinfer report` and
//! `profinfer export` on them.

use crate::synth_trace;
use crate::trace_golden::summary;

use std::path::PathBuf;

use pfi::Trace;
use synth_trace::causes::one_of_each;
use synth_trace::*;

type Busy = fn(usize, u16) -> u64;

fn even(p: usize, t: u16) -> u64 {
    1000 + 977 * p as u64 + 13 * u64::from(t)
}

/// Times that need every row of a pair.
fn uneven(p: usize, t: u16) -> u64 {
    let x = (p as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(t) << 7;
    1 + (x >> (40 + x % 20))
}

/// A prompt in two parts, and some tokens.
fn calls(spec: Spec, busy: Busy) -> Synth<Vec<u8>> {
    let mut s = Synth::new(Vec::new(), spec);
    s.ubatches(&[4, 3], busy);
    (0..6).for_each(|_| s.call(1, busy));
    s
}

pub fn traces() -> Vec<(&'static str, Synth<Vec<u8>>)> {
    let spec = Spec::default();
    let mut causes = calls(spec, even);
    one_of_each(&mut causes);
    let mut processes = calls(spec, even);
    processes.process(5000);
    processes.call(3, uneven);
    processes.call(1, even);
    let mut contexts = calls(spec, even);
    for _ in 0..3 {
        contexts.context(1, 3);
        contexts.call(1, even);
        contexts.context(0, 2);
        contexts.call(1, uneven);
    }
    let mut cpus = Synth::new(Vec::new(), Spec { clusters: true, threads: 3, ..spec });
    cpus.cpu = |graph, p, ith| (p % 5 != 4).then_some(ith + ((graph + p as u64) % 3) as u16);
    (0..4).for_each(|_| cpus.call(1, even));
    let mut cut = calls(spec, even);
    cut.cut = true;
    cut.call(1, even);
    // Graphs of the scheduler without calls.
    let mut no_calls = Synth::new(Vec::new(), spec);
    let end = no_calls.graph(None, 2, ORIGIN, even);
    no_calls.graph(None, 1, end + PAUSE, uneven);
    vec![
        ("barrier", calls(Spec { threads: 3, ..spec }, uneven)),
        ("interval", calls(Spec { barrier: false, ..spec }, uneven)),
        ("one-thread", calls(Spec { threads: 1, layers: 1, ..spec }, even)),
        ("experts", calls(Spec { experts: true, ..spec }, even)),
        ("no-structure", calls(Spec { structure: false, ..spec }, even)),
        ("no-widths", calls(Spec { widths: false, ..spec }, even)),
        ("causes", causes),
        ("processes", processes),
        ("contexts", contexts),
        ("cpus", cpus),
        ("cut", cut),
        ("no-calls", no_calls),
    ]
}

/// Writes them to the directory `PROFINFER_TRACES`: `NAME.pfi`, and in `NAME.txt` what is in it.
#[test]
#[ignore = "writes into a directory that tests/python_reader.py names"]
fn write_traces() {
    let to = PathBuf::from(std::env::var_os("PROFINFER_TRACES").expect("a directory in PROFINFER_TRACES"));
    for (name, synth) in traces() {
        let bytes = synth.enc.finish(&footer("target exited")).unwrap();
        std::fs::write(to.join(format!("{name}.pfi")), bytes).unwrap();
    }
    // Many blocks: what a block defines is repeated in the next ones.
    let slices = std::env::var("PROFINFER_SLICES").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000);
    for barrier in [false, true] {
        let name = if barrier { "long-barrier.pfi" } else { "long-interval.pfi" };
        generate(&to.join(name), slices, barrier);
    }
    for entry in std::fs::read_dir(&to).unwrap() {
        let path = entry.unwrap().path();
        let lines = summary(&Trace::open(&path).unwrap());
        std::fs::write(path.with_extension("txt"), lines.join("\n") + "\n").unwrap();
    }
}
