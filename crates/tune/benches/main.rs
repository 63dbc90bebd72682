//! Quality of the search on closed-form boards: benches/tune.py of the repository says what is measured.
//!
//!     cargo bench --package tune --bench tune -- [--json] [--boards N] [--seed N]
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a benchmark")]

mod boards;
mod phones;
mod published;
mod random;

use boards::{Best, Board, Meter, Sharing};
use random::Random;
use tune::{Goal, Machine, Options, search};

/// Of AECS.
const SLACK: f64 = 0.08;
/// How often each phone is searched.
const REPEATS: u64 = 200;
/// Relative noise of a sample's speed and energy: none, published, and with the speed from the times of single tokens.
const NOISES: [(f64, f64); 3] = [(0.0, 0.0), (0.02, 0.05), (0.005, 0.05)];

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// All sets, once each; the best as measured.
    Once,
    Published,
    Tune,
}

impl How {
    const ALL: [Self; 3] = [Self::Once, Self::Published, Self::Tune];

    fn name(self) -> &'static str {
        match self {
            Self::Once => "all sets once",
            Self::Published => "AECS as published",
            Self::Tune => "tune",
        }
    }

    fn options(self) -> Options {
        let tune = Options { goal: Goal::Energy, slack: SLACK, free: false, ..Options::default() };
        match self {
            Self::Once => Options { exhaustive: true, doubt: 0.0, alpha: Some(0.0), ..tune },
            _ => tune,
        }
    }

    /// The chosen set, and the number of tests.
    fn run(self, machine: &Machine, meter: &mut Meter<'_>) -> (Vec<u32>, u32) {
        let (chosen, tests) = if self == Self::Published {
            let answer = published::aecs(machine, SLACK, meter);
            (answer.chosen, answer.tests)
        } else {
            let answer = search(machine, &self.options(), meter);
            (
                answer.chosen().map(|t| t.candidate.clone()),
                u32::try_from(answer.tests.len()).unwrap_or(u32::MAX),
            )
        };
        (machine.counts(&chosen.expect("all boards can be measured")), tests)
    }
}

/// One way to search, over many boards.
#[derive(Default)]
struct Score {
    exact: u32,
    within: u32,
    slow: u32,
    /// The slowest chosen, relative to the slowest allowed.
    worst: f64,
    /// The best set, or one within 3 %, lies so far above the slowest allowed speed that the noise can tell.
    tellable: u32,
    tests: Vec<u32>,
}

impl Score {
    fn search(&mut self, how: How, board: &Board, sharing: Sharing, noise: (f64, f64), seed: u64) {
        let machine = board.machine();
        let best = Best::of(board, &machine, sharing, SLACK);
        let (speed_noise, energy_noise) = noise;
        let mut meter =
            Meter { board, machine: &machine, sharing, speed_noise, energy_noise, random: Random(seed) };
        let (chosen, tests) = how.run(&machine, &mut meter);
        let (speed, joules) = board.truth(&chosen, sharing);
        let share = speed / ((1.0 - SLACK) * best.fastest);
        let slow = share < 1.0 - 1e-9;
        self.exact += u32::from(chosen == best.counts);
        self.within += u32::from(!slow && joules <= 1.03 * best.joules);
        self.slow += u32::from(slow);
        self.worst = self.worst.max(1.0 - share);
        // Half of 14 tests for each of the two speeds, two standard errors.
        let margin = 2.0 * speed_noise * (2.0f64 / 7.0).sqrt();
        let clear = |counts: &Vec<u32>| {
            let (speed, joules) = board.truth(counts, sharing);
            joules <= 1.03 * best.joules && speed >= (1.0 - SLACK) * (1.0 + margin) * best.fastest
        };
        self.tellable += u32::from(boards::sets(&machine).iter().any(clear));
        self.tests.push(tests);
    }

    fn share(&self, n: u32) -> f64 {
        100.0 * f64::from(n) / self.tests.len() as f64
    }

    fn print(&mut self, json: bool, group: &str, sharing: Sharing, noise: (f64, f64), how: How) {
        self.tests.sort_unstable();
        let (median, most) = (self.tests[self.tests.len() / 2], self.tests[self.tests.len() - 1]);
        let (exact, within, tellable) =
            (self.share(self.exact), self.share(self.within), self.share(self.tellable));
        let (slow, worst, n) = (self.slow, 100.0 * self.worst, self.tests.len());
        let sharing = match sharing {
            Sharing::Evenly => "evenly",
            Sharing::Stealing => "stealing",
        };
        let (speed, energy) = (100.0 * noise.0, 100.0 * noise.1);
        if json {
            println!(
                r#"{{"boards":"{group}","n":{n},"sharing":"{sharing}","speed_noise_percent":{speed},"energy_noise_percent":{energy},"search":"{}","tests_median":{median},"tests_max":{most},"exact_percent":{exact:.1},"within_3_percent":{within:.1},"tellable_percent":{tellable:.1},"too_slow":{slow},"too_slow_by_percent":{worst:.2}}}"#,
                how.name()
            );
        } else {
            println!(
                "{group:<14} {sharing:<8} {speed:>4} {energy:>4}  {:<17} {median:>4} {most:>4} {exact:>6.1} {within:>6.1} {tellable:>8.1} {slow:>5} {worst:>6.2}",
                how.name()
            );
        }
    }
}

fn number(args: &[String], name: &str) -> Option<u64> {
    args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)?.parse().ok())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let boards = number(&args, "--boards").unwrap_or(1600).max(1);
    let seed = number(&args, "--seed").unwrap_or(700_000);
    let json = args.iter().any(|a| a == "--json");
    if !json {
        println!(
            "boards         sharing   noise %   search           tests  max  exact  <=3 % tellable  slow   by %"
        );
    }
    for (group, rough) in [("random", 0.0), ("random, rough", 0.02)] {
        for sharing in [Sharing::Evenly, Sharing::Stealing] {
            for noise in NOISES {
                for how in How::ALL {
                    let mut score = Score::default();
                    for n in 0..boards {
                        let board = Board::random(seed + n, rough);
                        score.search(how, &board, sharing, noise, (seed + n) ^ 0xabcd);
                    }
                    score.print(json, group, sharing, noise, how);
                }
            }
        }
    }
    for phone in phones::all() {
        let machine = phone.board.machine();
        let best = Best::of(&phone.board, &machine, phone.sharing, SLACK);
        assert_eq!(best.counts, phone.published, "{}: the published set is the best", phone.board.name);
        for noise in NOISES {
            for how in [How::Published, How::Tune] {
                let mut score = Score::default();
                for n in 0..REPEATS {
                    score.search(how, &phone.board, phone.sharing, noise, n);
                }
                score.print(json, &phone.board.name, phone.sharing, noise, how);
            }
        }
    }
}
