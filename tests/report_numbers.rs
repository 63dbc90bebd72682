//! `report` on traces whose answers are known.

mod synth_trace;
use synth_trace::*;

#[test]
fn first() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.call(8, |p, t| 5000 + 10 * p as u64 + 100 * u64::from(t));
    for _ in 0..10 {
        s.call(1, |p, t| 1000 + p as u64 + 100 * u64::from(t));
    }
    let bytes = s.enc.finish(&footer("target exited")).unwrap();
    std::fs::write("/tmp/analysis-test.pfi", bytes).unwrap();
}
