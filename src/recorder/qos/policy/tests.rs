//! The policy against thousands of simulated engines: never above the budget for longer than docs/BUDGET.md says,
//! no oscillation, and recovery.

use proptest::prelude::*;

use super::*;

const LEVELS: [Detail; 3] = [Detail::Token, Detail::Graph, Detail::Op];
const S: u64 = 1_000_000_000;

/// A simulated engine, machine and user.
#[derive(Debug, Clone)]
struct World {
    rule: LevelPolicy,
    /// Time of an undisturbed token without probes, ns.
    token_ns: f64,
    /// Op hits per token, and the factor by which that is overestimated before the first token was seen.
    ops: f64,
    expected: f64,
    /// Cost of a hit: actual and calibrated.
    hit_ns: f64,
    calibrated_ns: f64,
    /// Counters are on request: the factor by which they make an op hit more expensive.
    counted: Option<f64>,
    /// The scheduler is requested.
    sched: Option<Sched>,
    /// Noise of a token's time, +- this share.
    noise: f64,
    /// Time until probes are added or removed, ns.
    lag: u64,
    /// (number of tokens, factor on the duration of everything, factor on the rate of context switches)
    load: Vec<(u32, f64, f64)>,
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Sched {
    /// Context switches per second without the load; the factor by which they are overestimated.
    rate: f64,
    expected: f64,
    /// Cost of one: actual and calibrated.
    ns: f64,
    calibrated_ns: f64,
}

/// Results of a run of the policy in a world.
#[derive(Debug, Default)]
struct Shown {
    /// Most consecutive tokens above the budget while one level was recorded in full, from the second token after a
    /// step on.
    over: u32,
    changes: Vec<(u64, DetailStep)>,
    end: u64,
    /// Of the last half: our cost over time.
    cost: f64,
    time: f64,
}

impl World {
    fn levels(&self) -> Vec<Detail> {
        let more = [self.counted.map(|_| Detail::Counters), self.sched.map(|_| Detail::Scheduler)];
        LEVELS.into_iter().chain(more.into_iter().flatten()).collect()
    }

    /// Actual cost of a token that takes `ns`, with `storm` times the usual context switches: hits and switches
    /// times their actual costs.
    fn cost(&self, level: Detail, ns: f64, storm: f64) -> f64 {
        let offcpu = self.sched.filter(|_| level == Detail::Scheduler);
        self.hits(level) * self.hit_ns + offcpu.map_or(0.0, |s| s.rate * storm * ns / 1e9 * s.ns)
    }

    /// The same as far as it can be known: at the calibrated prices.
    fn known(&self, level: Detail, ns: f64, storm: f64) -> f64 {
        let offcpu = self.sched.filter(|_| level == Detail::Scheduler);
        self.hits(level) * self.calibrated_ns
            + offcpu.map_or(0.0, |s| s.rate * storm * ns / 1e9 * s.calibrated_ns)
    }

    /// Without the scheduler.
    fn predicted(&self, level: Detail) -> f64 {
        self.hits(level) * self.calibrated_ns * if level >= Detail::Op { self.expected } else { 1.0 }
    }

    /// Expected cost of the scheduler.
    fn switches(&self, ns: f64, storm: f64) -> f64 {
        self.sched.map_or(0.0, |s| s.rate * storm * s.expected * ns / 1e9 * s.calibrated_ns)
    }

    /// Hits of a token, weighted by their extra cost.
    fn hits(&self, level: Detail) -> f64 {
        match level {
            Detail::Token => 2.0,
            Detail::Graph => 8.0,
            Detail::Op => 8.0 + self.ops,
            _ => 8.0 + self.ops * self.counted.unwrap_or(1.0),
        }
    }

    fn run(&self) -> Shown {
        let levels = self.levels();
        let mut policy = Policy::new(self.rule, &levels, Detail::Graph);
        for level in LEVELS.into_iter().chain([Detail::Counters]) {
            policy.predict(level, self.predicted(level));
        }
        let mut rng = self.seed | 1;
        let mut random = || {
            rng ^= rng << 13;
            rng ^= rng >> 7;
            rng ^= rng << 17;
            (rng >> 11) as f64 / (1u64 << 53) as f64
        };
        let (mut t, mut out, mut over, mut count) = (S, Shown::default(), 0, 0u32);
        // The level of the probes, which follows the policy's with a delay; a sampled level is on for some tokens
        // only.
        let (mut probes, mut due) = (policy.now().level, 0);
        let total: u32 = self.load.iter().map(|l| l.0).sum();
        for (tokens, factor, storm) in &self.load {
            for _ in 0..*tokens {
                if t >= due {
                    probes = match policy.now() {
                        DetailStep { one_in: 1, level } => level,
                        DetailStep { one_in, level } if count.is_multiple_of(one_in) => level,
                        DetailStep { level, .. } => policy.below(level).expect("a level below"),
                    };
                }
                count += 1;
                let bare = self.token_ns * factor * (1.0 + self.noise * (2.0 * random() - 1.0));
                let cost = self.known(probes, bare, *storm);
                let dur = (bare + self.cost(probes, bare, *storm) * (0.9 + 0.2 * random())) as u64;
                t += dur;
                if self.sched.is_some() {
                    policy.predict_more(Detail::Scheduler, self.switches(dur as f64, *storm));
                }
                // A token that began with the previous level's probes may still be running.
                let settled = probes == policy.now().level;
                let change = policy.token(&DecodedToken { t, dur, cost, level: probes });
                // Calls are always recorded.
                let poorest = probes == Detail::Token;
                let whole = policy.now().one_in == 1 && t > due && settled && !poorest;
                let above = self.rule.budget.is_some_and(|b| cost / dur as f64 > b) && whole;
                over = if above { over + 1 } else { 0 };
                out.over = out.over.max(over);
                if let Some(change) = change {
                    out.changes.push((t, change.to));
                    (due, over) = (t + self.lag, 0);
                }
                if count > total / 2 {
                    out.cost += cost;
                    out.time += dur as f64;
                }
            }
        }
        out.end = t;
        out
    }
}

fn world() -> impl Strategy<Value = World> {
    let rule = (
        proptest::option::of((-9.0..-3.0f64).prop_map(f64::exp)),
        // Relative to the speed without probes; above 1 it cannot be maintained.
        proptest::option::of(0.3..1.3f64),
    );
    let storm = prop_oneof![Just(1.0), (0.0..5.0f64).prop_map(f64::exp)];
    let load = proptest::collection::vec((20u32..400, (0.0..1.6f64).prop_map(f64::exp), storm), 1..8);
    let machine = ((13.0..20.0f64).prop_map(f64::exp), 30.0..4000.0f64, (5.0..8.5f64).prop_map(f64::exp));
    let wrong = || 0.7..1.4f64;
    let rate = (3.0..11.0f64).prop_map(f64::exp);
    let sched = (rate, wrong(), 200.0..2000.0f64, wrong()).prop_map(|(rate, expected, ns, wrong)| Sched {
        rate,
        expected,
        ns,
        calibrated_ns: ns * wrong,
    });
    let extras = (proptest::option::of(1.1..4.0f64), proptest::option::of(sched));
    let time = (0.0..0.05f64, 0u64..100_000_000);
    (rule, machine, (wrong(), 1.0..2.0f64), extras, time, load, any::<u64>()).prop_map(
        |(
            (budget, qos),
            (token_ns, ops, hit_ns),
            (wrong, expected),
            (counted, sched),
            (noise, lag),
            load,
            seed,
        )| World {
            rule: LevelPolicy { budget, qos: qos.map(|q| q * 1e9 / token_ns) },
            token_ns,
            ops,
            expected,
            hit_ns,
            calibrated_ns: hit_ns * wrong,
            counted,
            sched,
            noise,
            lag,
            load,
            seed,
        },
    )
}

/// Expected cost of a level in this world, as a share, when undisturbed.
fn share(w: &World, level: Detail) -> f64 {
    let switches = if level == Detail::Scheduler { w.switches(w.token_ns, 1.0) } else { 0.0 };
    let cost = (w.predicted(level) + switches).max(w.known(level, w.token_ns, 1.0));
    cost / (w.token_ns + cost)
}

/// Steps from calls to everything: through each rate of sampled ops, and of sampled counters.
const CLIMB: u64 = 4 + 2 * MAX_ONE_IN.ilog2() as u64;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_budget_is_not_exceeded_for_more_tokens_in_a_row_than_the_law_has_patience(w in world()) {
        let shown = w.run();
        prop_assert!(shown.over <= PATIENCE, "{shown:?}");
    }

    #[test]
    fn under_an_even_load_it_comes_to_rest(mut w in world(), factor in 1.0..3.0f64) {
        w.load = vec![(20_000, factor, 1.0)];
        let shown = w.run();
        // A step up that fails is tried again after 2, 4, 8 ... 128 s of calm, and once sooner for each doubling
        // that is forgiven; each try makes two changes.
        let time = shown.end - S;
        let tries = 1 + u64::from(DOUBLINGS) + time / (CALM_NS << DOUBLINGS) + time / FORGIVEN_NS;
        let changes = shown.changes.len() as u64;
        prop_assert!(changes <= 2 * tries + 2 * CLIMB, "{changes} changes, {tries} tries: {shown:?}");
    }

}

proptest! {
    // These runs take long.
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn when_the_load_ends_it_recovers(mut w in world()) {
        // Enough quiet tokens for all calms to pass, each at its longest.
        let calm = (CALM_NS << DOUBLINGS) as f64 * (1 + CLIMB) as f64;
        let quiet = (calm / w.token_ns) as u32 + (2 + CLIMB as u32) * (CALM_TOKENS as u32) * (1 << DOUBLINGS);
        prop_assume!(quiet < 300_000);
        w.load.push((quiet, 1.0, 1.0));
        let shown = w.run();
        let last = shown.changes.last().map_or(Detail::Graph, |c| c.1.level);
        let whole = shown.changes.last().is_none_or(|c| c.1.one_in == 1);
        for level in w.levels() {
            let budget = w.rule.budget.is_none_or(|b| share(&w, level) < 0.7 * b);
            let switches = if level == Detail::Scheduler { w.switches(w.token_ns, 1.0) } else { 0.0 };
            let cost = (w.predicted(level) + switches).max(1.1 * w.cost(level, w.token_ns, 1.0));
            let slowest = (w.token_ns + cost) * (1.0 + w.noise);
            let qos = w.rule.qos.is_none_or(|q| slowest * q < 0.9e9);
            if budget && qos {
                prop_assert!(last > level || (last == level && whole), "{level:?} fits: {shown:?}");
            }
        }
        // In the long run the cost stays within the budget, including tries and bursts.
        if let Some(budget) = w.rule.budget.filter(|_| shown.time > 0.0) {
            let calls = share(&w, Detail::Token).max(w.known(Detail::Token, 1.0, 1.0) / w.token_ns);
            let least = budget.max(calls);
            prop_assert!(shown.cost / shown.time <= least * 1.05 + 1e-6, "{}: {shown:?}", shown.cost / shown.time);
        }
    }
}

/// A policy at `level`, with tokens of 100 ms.
fn at(level: Detail, rule: LevelPolicy) -> (Policy, u64) {
    let mut policy = Policy::new(rule, &LEVELS, level);
    policy.looked = true;
    let mut t = S;
    for _ in 0..3 {
        t += S / 10;
        assert_eq!(policy.token(&DecodedToken { t, dur: S / 10, cost: 1000.0, level }), None);
    }
    (policy, t)
}

#[test]
fn two_slow_tokens_lower_the_level_and_calm_raises_it() {
    let (mut policy, mut t) = at(Detail::Op, LevelPolicy { budget: None, qos: Some(5.0) });
    let mut token = |policy: &mut Policy, dur: u64| {
        t += dur;
        let level = policy.now().level;
        (policy.token(&DecodedToken { t, dur, cost: 1000.0, level }), t)
    };
    assert_eq!(token(&mut policy, S / 4).0, None);
    let (change, fell) = token(&mut policy, S / 4);
    let change = change.expect("the second slow token lowers the level");
    assert_eq!(change.to, DetailStep { level: Detail::Graph, one_in: 1 });
    assert_eq!(change.why, ChangeReason::Slow(4.0));
    let rose = loop {
        if let (Some(change), t) = token(&mut policy, S / 10) {
            assert_eq!((change.to.level, change.why), (Detail::Op, ChangeReason::Calm));
            break t;
        }
    };
    assert!((CALM_NS..CALM_NS + S).contains(&(rose - fell)), "after {} ns", rose - fell);
}

#[test]
fn one_slow_token_is_let_pass() {
    let (mut policy, t) = at(Detail::Op, LevelPolicy { budget: None, qos: Some(5.0) });
    let mut slow = |i: u64| {
        let dur = if i.is_multiple_of(2) { S / 4 } else { S / 10 };
        policy.token(&DecodedToken { t: t + i * S / 4, dur, cost: 1000.0, level: Detail::Op })
    };
    assert!((0..20).all(|i| slow(i).is_none()));
}

#[test]
fn ops_that_cost_too_much_whole_are_sampled() {
    let mut policy = Policy::new(LevelPolicy { budget: Some(0.01), qos: None }, &LEVELS, Detail::Graph);
    policy.predict(Detail::Op, 3e6);
    let token = |t| DecodedToken { t: t * S / 10, dur: S / 10, cost: 1000.0, level: Detail::Graph };
    assert_eq!(policy.token(&token(1)), None);
    let change = policy.token(&token(2)).expect("a first look");
    assert_eq!((change.to, change.why), (DetailStep { level: Detail::Op, one_in: 4 }, ChangeReason::Fits));
    let predicted = change.predicted.expect("predicted");
    assert!((0.0070..0.0080).contains(&predicted), "{predicted}");
}

/// With counters and the scheduler, and tokens of 100 ms whose cost at level op is 1 us.
fn extras(counters: f64, switches: f64) -> Option<LevelDecision> {
    let all = [Detail::Graph, Detail::Op, Detail::Counters, Detail::Scheduler];
    let mut policy = Policy::new(LevelPolicy { budget: Some(0.01), qos: None }, &all, Detail::Op);
    policy.predict(Detail::Counters, counters);
    policy.predict_more(Detail::Scheduler, switches);
    let token = |t| DecodedToken { t: t * S / 10, dur: S / 10, cost: 1000.0, level: Detail::Op };
    assert_eq!(policy.token(&token(1)), None);
    policy.token(&token(2))
}

#[test]
fn counters_and_scheduler_come_on_as_far_as_they_fit() {
    let to = |level, one_in| Some(DetailStep { level, one_in });
    let found = |counters, switches| extras(counters, switches).map(|c| c.to);
    assert_eq!(found(2000.0, 3000.0), to(Detail::Scheduler, 1));
    // The scheduler is never sampled, counters are; a level with unknown or too high a cost stays off.
    assert_eq!(found(2000.0, 2e6), to(Detail::Counters, 1));
    assert_eq!(found(2000.0, f64::INFINITY), to(Detail::Counters, 1));
    assert_eq!(found(3e6, 3000.0), to(Detail::Counters, 4));
    assert_eq!(found(f64::INFINITY, 3000.0), None);
    let change = extras(2000.0, 3000.0).and_then(|c| c.predicted).expect("predicted");
    assert!((5e-5..5.1e-5).contains(&change), "{change}");
}

#[test]
fn a_storm_of_switches_turns_the_scheduler_off_until_it_is_over() {
    let all = [Detail::Op, Detail::Scheduler];
    let mut policy = Policy::new(LevelPolicy { budget: Some(0.01), qos: None }, &all, Detail::Scheduler);
    policy.looked = true;
    let mut t = S;
    let mut token = |policy: &mut Policy, switches: f64| {
        t += S / 10;
        policy.predict_more(Detail::Scheduler, switches);
        let level = policy.now().level;
        let more = if level == Detail::Scheduler { switches } else { 0.0 };
        policy.token(&DecodedToken { t, dur: S / 10, cost: 1000.0 + more, level })
    };
    policy.predict(Detail::Op, 1000.0);
    assert!((0..10).all(|_| token(&mut policy, 1e4).is_none()));
    assert_eq!(token(&mut policy, 5e6), None);
    assert_eq!(token(&mut policy, 5e6).map(|c| c.to.level), Some(Detail::Op));
    assert!((0..100).all(|_| token(&mut policy, 5e6).is_none()), "it does not fit while the storm goes on");
    assert_eq!(
        token(&mut policy, 1e4).map(|c| (c.to.level, c.why)),
        Some((Detail::Scheduler, ChangeReason::Calm))
    );
}

#[test]
fn a_level_that_is_not_to_be_had_is_forgone() {
    let all = [Detail::Op, Detail::Scheduler];
    let mut policy = Policy::new(LevelPolicy::default(), &all, Detail::Scheduler);
    policy.forgo(Detail::Scheduler);
    assert_eq!((policy.now().level, policy.has(Detail::Scheduler)), (Detail::Op, false));
}

#[test]
fn calls_are_recorded_whatever_they_cost() {
    let (mut policy, t) = at(Detail::Graph, LevelPolicy { budget: Some(1e-3), qos: None });
    let token = |i: u64, level| DecodedToken { t: t + i, dur: S / 10, cost: 5e7, level };
    assert_eq!(policy.token(&token(1, Detail::Graph)), None);
    let change = policy.token(&token(2, Detail::Graph)).expect("too dear");
    assert_eq!((change.to.level, change.measured), (Detail::Token, Some(0.5)));
    assert!((3..100).all(|i| policy.token(&token(i, Detail::Token)).is_none()));
}

#[test]
fn a_service_level_that_the_engine_itself_misses_still_leaves_tokens() {
    let (mut policy, t) = at(Detail::Op, LevelPolicy::default());
    policy.rule.qos = Some(50.0);
    for i in 1..100 {
        let level = policy.now().level;
        policy.token(&DecodedToken { t: t + i * S, dur: S / 10, cost: 1000.0, level });
    }
    assert_eq!(policy.now().level, Detail::Token);
}
