use super::*;
use crate::machine::Cluster;
use proptest::prelude::*;
use std::collections::HashMap;

fn machine(sizes: &[(usize, u64)]) -> Machine {
    let mut first = 0;
    let cluster = |(n, capacity): &(usize, u64)| {
        let cpus = (first..first + *n as u32).collect();
        first += *n as u32;
        Cluster { cpus, siblings: Vec::new(), capacity: Some(*capacity), max_khz: Some(capacity * 3000) }
    };
    Machine { clusters: sizes.iter().map(cluster).collect() }
}

type Answer = Result<(f64, Option<f64>), Refused>;

/// Answers by a function of the candidate, and counts.
struct Fake<F: FnMut(&Candidate) -> Answer> {
    answer: F,
    asked: HashMap<Candidate, usize>,
}

impl<F: FnMut(&Candidate) -> Answer> Measure for Fake<F> {
    fn measure(&mut self, c: &Candidate, stage: Stage) -> Result<Sample, Refused> {
        assert!(c.threads as usize <= c.cpus.len() && c.threads > 0, "{c:?}");
        let before = self.asked.entry(c.clone()).or_default();
        assert!(stage.is_repeat() || *before == 0, "{c:?} was measured");
        *before += 1;
        (self.answer)(c).map(|(tokens_per_s, joules_per_token)| Sample {
            tokens_per_s,
            scatter: 0.001,
            joules_per_token,
        })
    }
}

fn run(machine: &Machine, options: &Options, answer: impl FnMut(&Candidate) -> Answer) -> Outcome {
    search(machine, options, &mut Fake { answer, asked: HashMap::new() })
}

fn energy() -> Options {
    Options { goal: Goal::Energy, ..Options::default() }
}

/// Three large cores are fastest, two take the least energy within the slack.
fn phone(c: &Candidate) -> Answer {
    let large = c.cpus.iter().filter(|cpu| **cpu < 4).count();
    let small = c.cpus.len() - large;
    if small > 0 {
        return Ok((10.0, Some(0.9)));
    }
    Ok(match large {
        1 => (12.0, Some(0.30)),
        2 => (19.5, Some(0.28)),
        3 => (20.0, Some(0.40)),
        _ => (19.0, Some(0.60)),
    })
}

#[test]
fn the_thriftiest_that_is_fast_enough_is_chosen() {
    let machine = machine(&[(4, 1024), (4, 300)]);
    let found = run(&machine, &energy(), phone);
    assert_eq!(found.fastest.map(|c| c.cpus), Some(vec![0, 1, 2]));
    assert_eq!(found.chosen.map(|c| c.cpus), Some(vec![0, 1]));
    assert!(found.complete && found.tests <= 22, "{}", found.tests);
    let strict = Options { slack: 0.01, ..energy() };
    assert_eq!(run(&machine, &strict, phone).chosen.map(|c| c.cpus), Some(vec![0, 1, 2]));
    let speed = run(&machine, &Options::default(), phone);
    assert_eq!(speed.chosen.map(|c| c.cpus), Some(vec![0, 1, 2]));
}

#[test]
fn one_failure_does_not_end_the_growth() {
    // The third core is slower, the fourth fastest.
    let speeds = [10.0, 20.0, 19.0, 30.0];
    let found = run(&machine(&[(4, 1024)]), &Options::default(), |c| Ok((speeds[c.cpus.len() - 1], None)));
    assert_eq!(found.chosen.map(|c| c.threads), Some(4));
}

#[test]
fn of_equals_the_one_with_fewer_threads_is_chosen() {
    let speeds = [10.0, 20.0, 20.02, 20.03];
    let found =
        run(&machine(&[(4, 1024)]), &Options::default(), |c| Ok((speeds[(c.threads - 1) as usize], None)));
    let chosen = found.chosen.expect("a choice");
    assert_eq!((chosen.threads, chosen.free), (2, true), "and it need not be pinned");
    assert_eq!(found.fastest.map(|c| c.threads), Some(4));
    assert!(found.sure.contains("within the scatter"), "{}", found.sure);
}

#[test]
fn what_cannot_be_measured_does_not_end_the_search() {
    let machine = machine(&[(2, 1024), (4, 300)]);
    let found = run(&machine, &energy(), |c| match c.cpus.as_slice() {
        [0, 1] => Err(Refused::Candidate("its threads ran elsewhere".to_owned())),
        _ => phone(c),
    });
    let refused = found.tried.iter().find(|t| t.candidate.cpus == [0, 1]).expect("it was tried");
    assert_eq!((refused.samples.len(), refused.refused.is_some()), (0, true));
    assert!(found.complete && found.chosen.is_some_and(|c| c.cpus != [0, 1]));
}

#[test]
fn a_stop_keeps_the_best_so_far() {
    let mut left = 2;
    let found = run(&machine(&[(4, 1024)]), &Options::default(), |c| {
        left -= 1;
        if left < 0 { Err(Refused::Stop("time is over".to_owned())) } else { phone(c) }
    });
    assert!(!found.complete);
    assert_eq!((found.ended.as_str(), found.tried.len()), ("time is over", 2));
    assert_eq!(found.chosen.map(|c| c.threads), Some(2));
    let none = run(&machine(&[(4, 1024)]), &Options::default(), |_| Err(Refused::Stop("no".to_owned())));
    assert_eq!((none.chosen, none.tried.len()), (None, 0));
}

#[test]
fn impossible_values_are_refused() {
    for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let found = run(&machine(&[(2, 1024)]), &Options::default(), |_| Ok((speed, None)));
        assert_eq!(found.chosen, None, "{speed}");
        assert!(found.tried.iter().all(|t| t.refused.is_some()));
    }
}

#[test]
fn without_a_meter_cores_are_judged_by_what_is_known_of_them() {
    // The small cores are nearly as fast.
    let speed = |c: &Candidate| match c.cpus.as_slice() {
        [2, 3] => Ok((19.5, None)),
        [cpu, ..] if *cpu < 2 => Ok((20.0, None)),
        _ => Ok((10.0, None)),
    };
    let found = run(&machine(&[(2, 1024), (2, 300)]), &energy(), speed);
    assert_eq!(found.chosen.map(|c| c.cpus), Some(vec![2, 3]));
    assert!(found.sure.contains("no meter"), "{}", found.sure);
    let alike = run(&machine(&[(4, 1024)]), &energy(), |c| Ok((f64::from(c.threads), None)));
    assert_eq!(alike.chosen.map(|c| c.threads), Some(4));
    assert!(alike.sure.contains("chosen for speed"), "{}", alike.sure);
}

#[test]
fn one_cpu_is_one_choice() {
    let found = run(&machine(&[(1, 1024)]), &energy(), |_| Ok((5.0, Some(1.0))));
    assert_eq!((found.tests, found.chosen.map(|c| c.cpus)), (1, Some(vec![0])));
    let none = run(&Machine::default(), &energy(), |_| Ok((5.0, None)));
    assert_eq!((none.tests, none.chosen), (0, None));
}

#[test]
fn exhaustive_tries_all() {
    let machine = machine(&[(2, 1024), (2, 300)]);
    let found = run(&machine, &Options { exhaustive: true, ..energy() }, phone);
    assert_eq!(found.tried.len(), 8);
}

#[test]
fn the_front_has_what_nothing_beats() {
    let found = run(&machine(&[(4, 1024), (4, 300)]), &energy(), phone);
    let front: Vec<Vec<u32>> = found.pareto.into_iter().map(|c| c.cpus).collect();
    assert_eq!(front, [vec![0, 1], vec![0, 1, 2]]);
}

proptest! {
    #[test]
    fn whatever_is_measured_the_search_ends(
        sizes in prop::collection::vec((1usize..6, 1u64..1024), 1..5),
        values in prop::collection::vec((0.0f64..100.0, 0.0f64..10.0, 0u8..10), 1..200),
        exhaustive: bool,
    ) {
        let mut next = values.iter().cycle();
        let options = Options { exhaustive, ..energy() };
        let found = run(&machine(&sizes), &options, |_| match next.next() {
            Some((_, _, 0)) => Err(Refused::Candidate("no".to_owned())),
            Some((speed, joules, _)) => Ok((*speed, Some(*joules))),
            None => Err(Refused::Stop("end".to_owned())),
        });
        let fastest = found.fastest.clone();
        prop_assert_eq!(fastest.is_some(), found.chosen.is_some());
        prop_assert!(exhaustive || found.tests <= 24 + 4 * 3 + 6);
    }
}
