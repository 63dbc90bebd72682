//! From samples to figures: repeats combined, their scatter, and the fitted laws beside them.

use crate::law::{Kind, Law, Point, Terrain};
use crate::ln::Ln;
use crate::machine::{Candidate, Machine};
use crate::outcome::{Basis, Tried};
use crate::sample::Sample;
use common::order::median;

/// Scatter of speed that is assumed where no sample tells its own, and the least believed.
const SPEED_SCATTER: f64 = 0.02;
const LEAST_SCATTER: f64 = 0.003;
/// Weight of an assumed scatter, in repeats.
const ASSUMED: f64 = 4.0;

/// Speed and energy of a candidate, measured or foretold.
#[derive(Clone, Debug)]
pub struct Estimate {
    pub speed: Ln,
    /// E_h, joules or relative; None if nothing tells.
    pub energy: Option<Ln>,
    pub alpha: f64,
}

/// Everything that follows from the samples so far.
pub struct View {
    terrain: Terrain,
    speed_law: Law,
    power_law: Option<Law>,
    pub speed_noise: f64,
    pub energy_noise: f64,
    pub basis: Basis,
    alpha: Option<f64>,
    /// Whether the law may correct a measured speed by as much as it has proven itself.
    smooth: bool,
}

fn logs(tried: &Tried, of: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
    tried.samples.iter().filter_map(of).map(f64::ln).collect()
}

pub fn speeds(tried: &Tried) -> Vec<f64> {
    logs(tried, |s| Some(s.tokens_per_s))
}

pub fn joules(tried: &Tried) -> Vec<f64> {
    logs(tried, |s| s.joules_per_token)
}

/// Variance of one sample: of repeats within candidates, together with what was assumed.
fn noise(groups: &[Vec<f64>], assumed: f64) -> f64 {
    let (mut squares, mut free) = (ASSUMED * assumed * assumed, ASSUMED);
    for group in groups.iter().filter(|g| g.len() > 1) {
        let mean = group.iter().sum::<f64>() / group.len() as f64;
        squares += group.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        free += group.len() as f64 - 1.0;
    }
    squares / free
}

/// The mean of those within three standard deviations of the median: nearly as sure as the mean of all (a median alone is
/// as sure as the mean of two thirds of them), and one disturbed run does not move it.
fn of_repeats(values: &[f64], noise: f64) -> Option<Ln> {
    let middle = median(values.to_vec())?;
    let far = 3.0 * noise.sqrt();
    let kept: Vec<f64> = values.iter().copied().filter(|v| (v - middle).abs() <= far).collect();
    let n = kept.len() as f64;
    let mean = if kept.is_empty() { middle } else { kept.iter().sum::<f64>() / n };
    Some(Ln { mean, own: noise / n.max(1.0), ..Ln::default() })
}

impl View {
    /// Of `tried`, those with a sample; `energy` says whether the goal needs energy at all.
    pub fn new(
        machine: &Machine,
        tried: &[Tried],
        energy: bool,
        alpha: Option<f64>,
        energy_scatter: f64,
        smooth: bool,
    ) -> Self {
        let terrain = Terrain::new(machine);
        let points: Vec<Point> = tried.iter().map(|t| terrain.point(machine, &t.candidate)).collect();
        let all: Vec<Vec<f64>> = tried.iter().map(speeds).collect();
        let told: Vec<f64> =
            tried.iter().flat_map(|t| &t.samples).map(|s| s.scatter).filter(|s| *s > 0.0).collect();
        let assumed = median(told).unwrap_or(SPEED_SCATTER).max(LEAST_SCATTER);
        let speed_noise = noise(&all, assumed);
        let rows: Vec<(&Point, f64, f64)> = points
            .iter()
            .zip(&all)
            .filter_map(|(p, v)| of_repeats(v, speed_noise).map(|l| (p, l.mean, l.own)))
            .collect();
        let speed_law = terrain.fit(Kind::Speed, &rows);
        let meters: Vec<Vec<f64>> = tried.iter().map(joules).collect();
        let energy_noise = noise(&meters, energy_scatter);
        let basis = match (energy, meters.iter().any(|m| !m.is_empty())) {
            (false, _) => Basis::Speed,
            (true, true) => Basis::Meter,
            (true, false) if machine.unequal() => Basis::Heuristic,
            (true, false) => Basis::SpeedOnly,
        };
        let power_law = (basis == Basis::Meter).then(|| {
            let watts: Vec<(&Point, f64, f64)> = points
                .iter()
                .zip(all.iter().zip(&meters))
                .filter_map(|(p, (speed, joules))| {
                    let (s, e) = (of_repeats(speed, speed_noise)?, of_repeats(joules, energy_noise)?);
                    Some((p, s.mean + e.mean, s.own + e.own))
                })
                .collect();
            terrain.fit(Kind::Power, &watts)
        });
        Self { terrain, speed_law, power_law, speed_noise, energy_noise, basis, alpha, smooth }
    }

    fn heuristic(&self, at: &Point, speed: &Ln) -> Option<Ln> {
        let watts = match (&self.power_law, self.basis) {
            (Some(law), _) => {
                let mut watts = law.predict(&self.terrain, at);
                // What is uncertain of power has nothing to do with what is of speed.
                watts.shared.splice(0..0, vec![0.0; self.speed_law.parameters()]);
                watts
            }
            (None, Basis::Heuristic) => Ln { mean: self.terrain.ln_h(at), ..Ln::default() },
            _ => return None,
        };
        Some(watts.plus(1.0, speed, -1.0))
    }

    /// A candidate with samples. None without one.
    pub fn measured(&self, machine: &Machine, tried: &Tried) -> Option<Estimate> {
        let speed = of_repeats(&speeds(tried), self.speed_noise)?;
        let at = self.terrain.point(machine, &tried.candidate);
        let law = self.speed_law.predict(&self.terrain, &at);
        let speed = if self.smooth { law.told(&speed).0 } else { speed };
        let h = self.heuristic(&at, &speed);
        let (energy, alpha) = match (self.basis, of_repeats(&joules(tried), self.energy_noise), h) {
            (Basis::Meter, Some(own), Some(h)) => {
                let (e, share) = match self.alpha {
                    Some(alpha) => (h.plus(alpha, &own, 1.0 - alpha), 1.0 - alpha),
                    None => h.told(&own),
                };
                (Some(e), 1.0 - share)
            }
            (Basis::Heuristic, _, h) => (h, 1.0),
            // Where there is a meter, a set that it did not measure is not judged.
            _ => (None, 1.0),
        };
        Some(Estimate { speed, energy, alpha })
    }

    /// A candidate without a sample, as the fitted laws predict it.
    pub fn foretold(&self, machine: &Machine, candidate: &Candidate) -> Estimate {
        let at = self.terrain.point(machine, candidate);
        let speed = self.speed_law.predict(&self.terrain, &at);
        let energy = self.heuristic(&at, &speed);
        Estimate { speed, energy, alpha: 1.0 }
    }
}
