//! How good the search is, on boards whose speed and power follow closed formulas: random ones, and the phones of
//! MNN-AECS by name. All sets without noise are the truth. Nothing is timed.
//!
//! cargo bench -p tune --bench boards -- [--devices N] [--json]
//!
//! The formulas are ours. Threads share the work evenly, so a team is as fast as its slowest core, or take what is left
//! (work stealing), so that speeds add up; memory sets a limit. Power is that of the busy cores, a share for idle cores of a
//! cluster in use, and a floor.

use std::collections::BTreeMap;

use tune::published::aecs;
use tune::search::{Measure, Refused, Stage, search};
use tune::{Candidate, Cluster, Goal, Machine, Options, Sample};

const SLACK: f64 = 0.08;

/// Steele, Lea and Flood's SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Normal, by Box and Muller.
    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Sharing {
    Evenly,
    Stealing,
}

#[derive(Clone)]
struct Kind {
    cores: u32,
    capacity: f64,
    ghz: f64,
    /// A busy core's power, W.
    watts: f64,
    /// How much faster than its capacity says.
    better: f64,
}

#[derive(Clone)]
struct Board {
    kinds: Vec<Kind>,
    sharing: Sharing,
    /// Tokens/s that memory allows, and that one core of capacity 1 computes.
    memory: f64,
    compute: f64,
    idle: f64,
    floor: f64,
    /// How sharply memory's limit sets in, and what each thread costs at barriers.
    sharp: f64,
    barrier: f64,
}

impl Board {
    fn random(random: &mut Random, sharing: Sharing) -> Board {
        loop {
            let n = 2 + (random.next() % 3) as usize;
            let mut kinds = Vec::new();
            let mut capacity = 1.0;
            for _ in 0..n {
                let cores = 1 + (random.next() % 4) as u32;
                let ghz = 3.2 * capacity * random.between(0.9, 1.1);
                let watts = random.between(1.2, 2.8) * capacity.powf(random.between(1.5, 2.5));
                kinds.push(Kind { cores, capacity, ghz, watts, better: random.between(0.9, 1.1) });
                capacity *= random.between(0.35, 0.9);
            }
            let sets: u32 = kinds.iter().map(|k| k.cores + 1).product::<u32>() - 1;
            if (14..=71).contains(&sets) {
                let compute = 8.0;
                return Board {
                    kinds,
                    sharing,
                    memory: compute * random.between(1.3, 3.5),
                    compute,
                    idle: random.between(0.05, 0.3),
                    floor: random.between(0.3, 1.0),
                    sharp: random.between(2.0, 8.0),
                    barrier: random.between(0.0, 0.02),
                };
            }
        }
    }

    fn machine(&self) -> Machine {
        let mut first = 0;
        let cluster = |k: &Kind| {
            let cpus = (first..first + k.cores).collect();
            first += k.cores;
            let capacity = Some((k.capacity * 1024.0) as u64);
            Cluster { cpus, siblings: Vec::new(), capacity, max_khz: Some((k.ghz * 1e6) as u64) }
        };
        Machine { clusters: self.kinds.iter().map(cluster).collect() }
    }

    /// Cores of each kind in a set.
    fn counts(&self, cpus: &[u32]) -> Vec<u32> {
        let mut first = 0;
        let of = |k: &Kind| {
            let range = first..first + k.cores;
            first += k.cores;
            cpus.iter().filter(|cpu| range.contains(cpu)).count() as u32
        };
        self.kinds.iter().map(of).collect()
    }

    /// Tokens/s and joules a token, without noise.
    fn truth(&self, cpus: &[u32]) -> (f64, f64) {
        let counts = self.counts(cpus);
        let used = || self.kinds.iter().zip(&counts).filter(|(_, n)| **n > 0);
        let slowest = used().map(|(k, _)| k.capacity * k.better).fold(f64::MAX, f64::min);
        let cores: f64 = counts.iter().map(|n| f64::from(*n)).sum();
        let compute = self.compute
            * match self.sharing {
                Sharing::Evenly => cores * slowest,
                Sharing::Stealing => used().map(|(k, n)| f64::from(*n) * k.capacity * k.better).sum(),
            };
        // Nearly the smaller of both; each thread more costs a little at barriers.
        let limited = (compute.powf(-self.sharp) + self.memory.powf(-self.sharp)).powf(-1.0 / self.sharp);
        let speed = limited / (1.0 + self.barrier * cores);
        let power = |(k, n): (&Kind, &u32)| k.watts * (f64::from(*n) + self.idle * f64::from(k.cores - n));
        let watts = self.floor + used().map(power).sum::<f64>();
        (speed, watts / speed)
    }

    /// Speed of the fastest set, and the least energy of those that are fast enough.
    fn best(&self) -> (f64, f64) {
        let mut all = vec![vec![]];
        let mut first = 0;
        for k in &self.kinds {
            let cpus: Vec<u32> = (first..first + k.cores).collect();
            first += k.cores;
            all = all
                .into_iter()
                .flat_map(|set: Vec<u32>| {
                    let cpus = &cpus;
                    (0..=cpus.len()).map(move |n| [&set[..], &cpus[..n]].concat()).collect::<Vec<_>>()
                })
                .collect();
        }
        let rows: Vec<(f64, f64)> = all.iter().filter(|s| !s.is_empty()).map(|s| self.truth(s)).collect();
        let fastest = rows.iter().map(|r| r.0).fold(0.0, f64::max);
        let enough = rows.iter().filter(|r| r.0 >= (1.0 - SLACK) * fastest);
        (fastest, enough.map(|r| r.1).fold(f64::MAX, f64::min))
    }
}

#[derive(Clone, Copy)]
struct Noise {
    speed: f64,
    energy: f64,
}

struct Measured<'a> {
    board: &'a Board,
    noise: Noise,
    random: Random,
    tests: usize,
}

impl Measure for Measured<'_> {
    fn measure(&mut self, c: &Candidate, _: Stage) -> Result<Sample, Refused> {
        self.tests += 1;
        let (speed, joules) = self.board.truth(&c.cpus);
        let noisy = |value: f64, by: f64, random: &mut Random| value * (1.0 + by * random.normal()).max(0.1);
        Ok(Sample {
            tokens_per_s: noisy(speed, self.noise.speed, &mut self.random),
            scatter: self.noise.speed,
            joules_per_token: Some(noisy(joules, self.noise.energy, &mut self.random)),
        })
    }
}

/// A way to search: returns the choice and the number of measurements.
type Way = fn(&Machine, &mut Measured<'_>) -> (Option<Candidate>, usize);

const WAYS: [(&str, Way); 4] = [
    ("all sets, once", |machine, measured| {
        let options = Options { exhaustive: true, race_rounds: 0, ..options() };
        let found = search(machine, &options, measured);
        (found.chosen, found.tests)
    }),
    ("AECS as published, alpha 0.5", |machine, measured| aecs(machine, SLACK, 0.5, measured)),
    ("AECS as published, alpha 0", |machine, measured| aecs(machine, SLACK, 0.0, measured)),
    ("profinfer", |machine, measured| {
        let found = search(machine, &options(), measured);
        (found.chosen, found.tests)
    }),
];

fn options() -> Options {
    Options { goal: Goal::Energy, slack: SLACK, ..Options::default() }
}

#[derive(Default)]
struct Score {
    exact: usize,
    near: usize,
    slow: usize,
    /// Most that a choice was slower than the slack allows, share.
    worst: f64,
    tests: Vec<usize>,
}

fn score(boards: &[Board], noise: Noise, way: Way) -> Score {
    let mut score = Score::default();
    for (i, board) in boards.iter().enumerate() {
        let mut measured = Measured { board, noise, random: Random(1000 + i as u64), tests: 0 };
        let (chosen, tests) = way(&board.machine(), &mut measured);
        let (fastest, least) = board.best();
        score.tests.push(tests);
        let Some(chosen) = chosen else { continue };
        let (speed, joules) = board.truth(&chosen.cpus);
        let short = 1.0 - SLACK - speed / fastest;
        // A rounding error is no slowness.
        score.slow += usize::from(short > 1e-9);
        score.worst = score.worst.max(short);
        score.exact += usize::from(joules <= least * (1.0 + 1e-9) && short <= 1e-9);
        score.near += usize::from(joules <= 1.03 * least && short <= 1e-9);
    }
    score.tests.sort_unstable();
    score
}

fn phone(clusters: &[(u32, f64, f64, f64)], sharing: Sharing, memory: f64, floor: f64) -> Board {
    let kinds = clusters.iter().map(|(cores, capacity, ghz, watts)| Kind {
        cores: *cores,
        capacity: *capacity,
        ghz: *ghz,
        watts: *watts,
        better: 1.0,
    });
    Board {
        kinds: kinds.collect(),
        sharing,
        memory,
        compute: 8.0,
        idle: 0.15,
        floor,
        sharp: 6.0,
        barrier: 0.01,
    }
}

/// Clusters and clocks of the chips are public; capacities and powers are ours, set so that the best set is the one that
/// the paper found on that phone. (name, board, cores of each cluster that are best)
fn phones() -> Vec<(&'static str, Board, Vec<u32>)> {
    let evenly = Sharing::Evenly;
    vec![
        // Kirin 9000: 1 x 3.13, 3 x 2.54, 4 x 2.05 GHz; the best are 2 x A77 at 2.54.
        (
            "Mate 40 Pro",
            phone(&[(1, 1.0, 3.13, 3.3), (3, 0.95, 2.54, 1.3), (4, 0.5, 2.05, 1.2)], evenly, 9.1, 0.5),
            vec![0, 2, 0],
        ),
        // Kirin 990 5G: 2 x 2.86, 2 x 2.36, 4 x 1.95 GHz; 2 x A76 at 2.36.
        (
            "V30 Pro",
            phone(&[(2, 1.0, 2.86, 3.4), (2, 0.96, 2.36, 1.5), (4, 0.44, 1.95, 1.4)], evenly, 12.1, 0.5),
            vec![0, 2, 0],
        ),
        // Exynos 1580: 1 x 2.9, 3 x 2.6, 4 x 1.95 GHz; 2 x A720 at 2.6.
        (
            "Galaxy A56",
            phone(&[(1, 1.0, 2.9, 3.3), (3, 0.9, 2.6, 1.9), (4, 0.58, 1.95, 1.8)], evenly, 10.9, 0.5),
            vec![0, 2, 0],
        ),
        // Snapdragon 8 Gen 3: 1 x 3.3, 3 x 3.15, 2 x 2.96, 2 x 2.27 GHz; 1 x X4 and 1 x A720 at 2.96.
        (
            "Meizu 21",
            phone(
                &[(1, 1.0, 3.3, 2.0), (3, 0.76, 3.15, 1.9), (2, 0.59, 2.96, 1.4), (2, 0.33, 2.27, 0.9)],
                Sharing::Stealing,
                10.8,
                0.5,
            ),
            vec![1, 0, 1, 0],
        ),
        // Snapdragon 8 Elite: 2 x 4.32, 6 x 3.53 GHz; 2 x Oryon at 4.32.
        ("Xiaomi 15 Pro", phone(&[(2, 1.0, 4.32, 1.5), (6, 0.45, 3.53, 1.4)], evenly, 13.8, 0.5), vec![2, 0]),
    ]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)?.parse().ok());
    let devices: usize = value("--devices").unwrap_or(400);
    let mut json = BTreeMap::new();
    let noises = [
        ("no noise", Noise { speed: 0.0, energy: 0.0 }),
        ("5 % energy, 2 % speed", Noise { speed: 0.02, energy: 0.05 }),
        ("5 % energy, 0.5 % speed", Noise { speed: 0.005, energy: 0.05 }),
    ];
    for (name, sharing) in [("threads share evenly", Sharing::Evenly), ("work stealing", Sharing::Stealing)] {
        let mut random = Random(42);
        let boards: Vec<Board> = (0..devices).map(|_| Board::random(&mut random, sharing)).collect();
        for (noise_name, noise) in noises {
            println!("\n{name}, {noise_name}: {devices} boards");
            println!(
                "  {:32} {:>8} {:>10} {:>10} {:>9} {:>14}",
                "", "exact %", "within 3 %", "too slow %", "worst %", "tests, most"
            );
            for (way_name, way) in WAYS {
                let s = score(&boards, noise, way);
                let pct = |n: usize| 100.0 * n as f64 / devices as f64;
                let (median, most) = (s.tests[s.tests.len() / 2], s.tests[s.tests.len() - 1]);
                println!(
                    "  {way_name:32} {:8.1} {:10.1} {:10.1} {:9.2} {median:9} {most:4}",
                    pct(s.exact),
                    pct(s.near),
                    pct(s.slow),
                    100.0 * s.worst
                );
                json.insert(
                    format!("{name}; {noise_name}; {way_name}"),
                    [pct(s.exact), pct(s.near), pct(s.slow), 100.0 * s.worst, median as f64, most as f64],
                );
            }
        }
    }
    println!("\nPhones of the paper, 100 seeds each, 5 % energy and 2 % speed");
    println!("  {:16} {:>14} {:>18} {:>18}", "", "best", "profinfer %", "as published %");
    for (name, board, best) in phones() {
        let (_, least) = board.best();
        let mut hits = [0; 2];
        for seed in 0..100 {
            let noise = Noise { speed: 0.02, energy: 0.05 };
            for (i, way) in [WAYS[3].1, WAYS[1].1].into_iter().enumerate() {
                let mut measured = Measured { board: &board, noise, random: Random(seed), tests: 0 };
                let chosen = way(&board.machine(), &mut measured).0;
                hits[i] += usize::from(chosen.is_some_and(|c| board.truth(&c.cpus).1 <= 1.03 * least));
            }
        }
        let machine = board.machine();
        let mut quiet =
            Measured { board: &board, noise: Noise { speed: 0.0, energy: 0.0 }, random: Random(0), tests: 0 };
        let exact = search(
            &machine,
            &Options { exhaustive: true, race_rounds: 0, alpha: Some(0.0), ..options() },
            &mut quiet,
        )
        .chosen;
        let is_papers = exact.is_some_and(|c| board.counts(&c.cpus) == best);
        let shown = if is_papers { format!("{best:?}") } else { format!("{best:?} NOT BEST") };
        println!("  {name:16} {shown:>14} {:18} {:18}", hits[0], hits[1]);
        json.insert(
            format!("phone; {name}"),
            [f64::from(u8::from(is_papers)), hits[0] as f64, 0.0, hits[1] as f64, 0.0, 0.0],
        );
    }
    if args.iter().any(|a| a == "--json") {
        println!("{json:?}");
    }
}
