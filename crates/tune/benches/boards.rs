//! Boards whose speed and power follow a closed formula, so that the best set is known.
//!
//! Speed: threads that share evenly go at the pace of the slowest, k * min(r_i); threads that steal work add up, sum(r_i).
//! Both saturate at the memory's limit L with a sharpness p (1/v^p = 1/cores^p + 1/L^p), and each further thread adds a
//! cost c per token. Power: a selected core its own power at full clock (it spins while it waits), an idle core of the same
//! chip a share b, a selected cluster its uncore, the memory per token, and a base. If the largest selected cluster is
//! smaller than the largest, the others' clocks fall on some boards (factor s^g). The search's own laws are not these: they
//! have no uncore, no memory, other exponents. A rough board lies off its formula by 2 % a set besides.

use tune::{Candidate, Cluster, Machine, Measure, Refused, Sample, Stage};

use super::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    Evenly,
    Stealing,
}

/// One cluster of a board.
#[derive(Clone)]
pub struct Cores {
    pub count: u32,
    pub capacity: u64,
    pub max_khz: u64,
    /// Tokens per second of one core alone, if memory had no limit.
    pub rate: f64,
    /// Watts of a busy core, of an idle one, and of the cluster when a core of it is busy.
    pub busy: f64,
    pub idle: f64,
    pub uncore: f64,
}

#[derive(Clone)]
pub struct Board {
    pub name: String,
    pub clusters: Vec<Cores>,
    /// Tokens per second that the memory allows.
    pub limit: f64,
    pub sharpness: f64,
    /// Seconds per token that each further thread costs.
    pub each: f64,
    pub base: f64,
    /// Joules per token in memory.
    pub memory: f64,
    /// Exponent g of s.
    pub clock: f64,
    /// Relative deviation of each set from the formula, and its seed.
    pub rough: f64,
    pub seed: u64,
}

impl Board {
    pub fn machine(&self) -> Machine {
        let mut next = 0;
        let mut take = |n: u32| {
            next += n;
            (next - n..next).collect()
        };
        let cluster = |c: &Cores| Cluster {
            cpus: take(c.count),
            siblings: Vec::new(),
            capacity: Some(c.capacity),
            max_khz: Some(c.max_khz),
        };
        Machine { clusters: self.clusters.iter().map(cluster).collect() }
    }

    /// True tokens per second and joules per token.
    pub fn truth(&self, counts: &[u32], sharing: Sharing) -> (f64, f64) {
        let taken = || self.clusters.iter().zip(counts).filter(|(_, n)| **n > 0);
        let threads = f64::from(counts.iter().sum::<u32>());
        let cores = match sharing {
            Sharing::Evenly => threads * taken().map(|(c, _)| c.rate).fold(f64::INFINITY, f64::min),
            Sharing::Stealing => taken().map(|(c, n)| c.rate * f64::from(*n)).sum(),
        };
        let p = self.sharpness;
        let time = (cores.powf(-p) + self.limit.powf(-p)).powf(1.0 / p) + self.each * (threads - 1.0);
        let largest = |cores: &mut dyn Iterator<Item = u64>| cores.max().unwrap_or(1) as f64;
        let s = largest(&mut taken().map(|(c, _)| c.capacity))
            / largest(&mut self.clusters.iter().map(|c| c.capacity));
        let idle: f64 =
            self.clusters.iter().zip(counts).map(|(c, n)| f64::from(c.count - n) * c.idle).sum::<f64>()
                * s.powf(self.clock);
        let busy: f64 = taken().map(|(c, n)| f64::from(*n) * c.busy + c.uncore).sum();
        let mut own =
            Random(counts.iter().fold(self.seed, |h, n| (h ^ u64::from(*n)).wrapping_mul(0x100_0000_01b3)));
        own.draw();
        let (speed, watts) = (1.0 / time * (self.rough * own.normal()).exp(), self.base + idle + busy);
        (speed, (watts / speed + self.memory) * (self.rough * own.normal()).exp())
    }

    pub fn random(seed: u64, rough: f64) -> Self {
        let mut r = Random(seed);
        let counts = loop {
            let counts: Vec<u32> = (0..r.count(2, 4)).map(|_| r.count(1, 6)).collect();
            let sets: u32 = counts.iter().map(|n| n + 1).product::<u32>() - 1;
            if (14..=71).contains(&sets) {
                break counts;
            }
        };
        let mut clusters = Vec::new();
        let (mut capacity, mut khz) = (1024.0, r.between(2.2e6, 3.4e6));
        let (steep, share) = (r.between(1.3, 2.6), r.between(0.02, 0.25));
        for count in counts {
            let part = capacity / 1024.0;
            // Capacities are of another program than decode: cores are faster or slower in it than they say.
            let rate = 10.0 * part * (0.12 * r.normal()).exp();
            let busy = 2.5 * f64::powf(part, steep) * (0.2 * r.normal()).exp();
            let uncore = busy * r.between(0.0, 0.3);
            clusters.push(Cores {
                count,
                capacity: capacity as u64,
                max_khz: khz as u64,
                rate,
                busy,
                idle: busy * share,
                uncore,
            });
            capacity *= r.between(0.35, 0.92);
            khz *= r.between(0.65, 0.95);
        }
        Self {
            name: format!("random {seed}"),
            clusters,
            limit: 10.0 * r.between(1.1, 2.5),
            sharpness: r.between(3.0, 8.0),
            each: r.between(0.001, 0.005),
            base: r.between(0.4, 3.0),
            memory: r.between(0.0, 0.1),
            clock: if r.count(0, 3) == 0 { 0.0 } else { r.between(0.5, 2.5) },
            rough,
            seed,
        }
    }
}

/// All sets of a machine as counts.
pub fn sets(machine: &Machine) -> Vec<Vec<u32>> {
    machine.space().iter().map(|c| machine.counts(c)).collect()
}

/// The best by truth.
pub struct Best {
    pub fastest: f64,
    /// Least joules of a set that is fast enough, and that set.
    pub joules: f64,
    pub counts: Vec<u32>,
}

impl Best {
    pub fn of(board: &Board, machine: &Machine, sharing: Sharing, slack: f64) -> Self {
        let all: Vec<_> = sets(machine).into_iter().map(|c| (board.truth(&c, sharing), c)).collect();
        let fastest = all.iter().map(|((speed, _), _)| *speed).fold(0.0, f64::max);
        let able = all.into_iter().filter(|((speed, _), _)| *speed >= (1.0 - slack) * fastest);
        let ((_, joules), counts) = able.min_by(|a, b| a.0.1.total_cmp(&b.0.1)).unwrap_or_default();
        Self { fastest, joules, counts }
    }
}

/// Measures a board with noise.
pub struct Meter<'a> {
    pub board: &'a Board,
    pub machine: &'a Machine,
    pub sharing: Sharing,
    pub speed_noise: f64,
    pub energy_noise: f64,
    pub random: Random,
}

impl Measure for Meter<'_> {
    fn measure(&mut self, candidate: &Candidate, _: Stage) -> Result<Sample, Refused> {
        let (speed, joules) = self.board.truth(&self.machine.counts(candidate), self.sharing);
        let mut off = |sd: f64| (1.0 + sd * self.random.normal()).max(0.1);
        let (tokens_per_s, joules) = (speed * off(self.speed_noise), joules * off(self.energy_noise));
        let joules_per_token = Some(joules);
        Ok(Sample { tokens_per_s, scatter: self.speed_noise.max(1e-6), joules_per_token })
    }
}
