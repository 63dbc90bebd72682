//! Verdicts on made-up runs: nothing changed, the machine changed, an op changed.

use super::*;
use crate::analysis::stats::tests::Noise;
use crate::analysis::tables::OpKey;

/// Of the ops: time of a call, ns, and whether it streams.
const OPS: [(f64, bool); 13] = [
    (960e3, true),
    (900e3, true),
    (895e3, true),
    (868e3, true),
    (230e3, true),
    (228e3, true),
    (78e3, false),
    (81e3, false),
    (12e3, false),
    (10e3, false),
    (9e3, false),
    (5e3, false),
    (3e3, false),
];

/// How two runs differ beside chance.
#[derive(Clone, Copy, Default)]
struct Truth {
    /// Of ops that stream, of the others.
    drift: [f64; 2],
    /// An op and its own change.
    slow: Option<(usize, f64)>,
}

/// A pair of runs of `n` tokens: what all ops share from token to token, what each has on its own, stalls, and what each
/// start of a program gives an op for as long as it runs.
fn columns(noise: &mut Noise, n: usize, truth: Truth) -> Vec<Column> {
    let common = [0, 1].map(|_| noise.series(n, 0.9, 0.0));
    let mut column = |op: usize| {
        let (time, streams) = OPS[op];
        let mut run = |b: bool| -> Vec<f64> {
            let drift = if b { truth.drift[usize::from(!streams)] } else { 0.0 };
            let own = truth.slow.filter(|(slow, _)| b && *slow == op).map_or(0.0, |(_, change)| change);
            let start = 0.003 * noise.normal();
            let calls = noise.series(n, 0.6, 0.03);
            let together = &common[usize::from(b)];
            let log = |(own_noise, common): (&f64, &f64)| 0.01 * own_noise + 0.03 * common + start + drift;
            calls.iter().zip(together).map(|both| time * log(both).exp() * (1.0 + own)).collect()
        };
        let times = [run(false), run(true)];
        Column::of(streams, times, [1.0; 2])
    };
    (0..OPS.len()).map(&mut column).collect()
}

fn judged(columns: &[Column]) -> Vec<OpChange> {
    let field = Field::new(columns);
    let named = |(i, c): (usize, &Column)| OpChange { name: i.to_string(), ..field.row(c, &[i]) };
    let mut rows: Vec<OpChange> = columns.iter().enumerate().map(named).collect();
    let options = Options {
        phase: crate::analysis::calls::Phase::Decode,
        by: OpKey::Name,
        false_discovery: 0.05,
        least: 0.01,
    };
    tell(&mut rows, &options);
    rows
}

/// Of so many pairs of runs, those in which something was told.
fn alarms(rounds: u32, truth: Truth) -> u32 {
    let mut noise = Noise(3);
    let told = |noise: &mut Noise| judged(&columns(noise, 128, truth)).iter().any(|r| r.verdict.is_some());
    (0..rounds).map(|_| u32::from(told(&mut noise))).sum()
}

#[test]
fn of_two_thousand_pairs_of_equal_runs_no_more_than_stated_are_told() {
    let told = alarms(2000, Truth::default());
    println!("{told} of 2000");
    // The stated rate is one in twenty.
    assert!(told <= 100, "{told} of 2000");
}

#[test]
fn a_machine_that_is_slower_is_no_ops_change() {
    for drift in [[0.1, 0.1], [0.08, 0.0], [-0.05, 0.03]] {
        let told = alarms(300, Truth { drift, slow: None });
        assert!(told <= 15, "{told} of 300 with {drift:?}");
    }
}

#[test]
fn an_op_that_is_five_percent_slower_is_found_and_stands_first() {
    for (slow, drift) in [(1, [0.0; 2]), (3, [-0.06, 0.02]), (6, [0.05, 0.05])] {
        let mut noise = Noise(11);
        let found = |noise: &mut Noise| {
            let rows = judged(&columns(noise, 128, Truth { drift, slow: Some((slow, 0.05)) }));
            rows[0].name == slow.to_string() && rows[0].verdict == Some(Verdict::Slower)
        };
        let found = (0..100).filter(|_| found(&mut noise)).count();
        println!("op {slow}, drift {drift:?}: {found} of 100");
        assert!(found >= 80, "op {slow}, drift {drift:?}: {found} of 100");
    }
}

#[test]
fn an_interval_holds_the_true_change() {
    let mut noise = Noise(5);
    let holds = |noise: &mut Noise| {
        let rows = judged(&columns(noise, 128, Truth { drift: [0.04, 0.04], slow: Some((2, 0.05)) }));
        let row = rows.iter().find(|r| r.name == "2").unwrap();
        row.own_interval.is_some_and(|[from, to]| from <= 0.05 && 0.05 <= to)
    };
    let held = (0..300).filter(|_| holds(&mut noise)).count();
    assert!(held >= 273, "{held} of 300");
}

#[test]
fn few_ops_have_nothing_to_be_held_against() {
    let few: Vec<Column> = columns(&mut Noise(1), 64, Truth::default()).into_iter().take(3).collect();
    let rows = judged(&few);
    assert!(rows.iter().all(|r| r.own.is_none() && r.q.is_none() && r.verdict.is_none()));
    assert!(rows.iter().all(|r| r.total.change.is_some()));
}

#[test]
fn what_runs_more_often_is_a_change_of_structure() {
    let mut columns = columns(&mut Noise(1), 64, Truth::default());
    columns[4].times_a_call = [4.0, 5.0];
    columns[4].raw = None;
    let rows = judged(&columns);
    let row = rows.iter().find(|r| r.name == "4").unwrap();
    assert_eq!((row.verdict, row.q, row.own), (Some(Verdict::Recounted), None, None));
}
