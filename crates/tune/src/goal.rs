//! What a goal prefers, and which candidate it chooses.

use crate::estimate::Estimate;
use crate::ln::Ln;
use crate::options::{Goal, Options};
use crate::outcome::Basis;

/// A difference of as many standard errors is scatter.
const TIE: f64 = 2.0;

/// A candidate with what is known or foretold of it.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Index in the list that it came from.
    pub at: usize,
    pub threads: u32,
    pub free: bool,
    pub estimate: Estimate,
}

/// Goal, slack and doubt.
#[derive(Clone, Copy)]
pub struct Judge {
    goal: Goal,
    /// ln(1 - slack).
    least: f64,
    doubt: f64,
}

impl Judge {
    pub fn new(options: &Options, basis: Basis) -> Self {
        let goal = if matches!(basis, Basis::Speed | Basis::SpeedOnly) { Goal::Speed } else { options.goal };
        let slack = if options.slack.is_finite() { options.slack.clamp(0.0, 0.99) } else { 0.0 };
        Self { goal, least: (1.0 - slack).ln(), doubt: options.doubt }
    }

    /// Logarithm of what is minimised.
    pub fn objective(&self, e: &Estimate) -> Option<Ln> {
        match self.goal {
            Goal::Speed => Some(e.speed.plus(-1.0, &Ln::default(), 0.0)),
            Goal::Energy => e.energy.clone(),
            Goal::Balance => Some(e.energy.as_ref()?.plus(1.0, &e.speed, -1.0)),
        }
    }

    /// How far a speed lies above the slowest allowed, and the standard error of that. None if every speed is allowed.
    pub fn above(&self, e: &Estimate, fastest: &Estimate) -> Option<(f64, f64)> {
        let (over, se) = e.speed.over(&fastest.speed);
        (self.goal == Goal::Energy).then_some((over - self.least, se))
    }

    /// Chance that it is truly fast enough.
    pub fn chance(&self, e: &Estimate, fastest: &Estimate) -> f64 {
        self.above(e, fastest).map_or(1.0, |(over, se)| cumulative(over / se.max(1e-12)))
    }

    /// Whether nothing shows that it is too slow.
    fn able(&self, e: &Estimate, fastest: &Estimate) -> bool {
        self.above(e, fastest).is_none_or(|(over, se)| over >= -self.doubt * se)
    }

    /// The chosen one. For speed, among those as fast as the best within scatter, the one with the fewest threads, and one
    /// that needs no pinning before one that does.
    pub fn choose(&self, judged: &[Judged], fastest: &Judged) -> Option<Judged> {
        let able = judged.iter().filter(|j| self.able(&j.estimate, &fastest.estimate));
        let able: Vec<(&Judged, Ln)> = able.filter_map(|j| Some((j, self.objective(&j.estimate)?))).collect();
        let best = able.iter().min_by(|a, b| a.1.mean.total_cmp(&b.1.mean))?;
        if self.goal != Goal::Speed {
            return Some(best.0.clone());
        }
        let tied = able.iter().filter(|(_, own)| {
            let (behind, se) = own.over(&best.1);
            behind <= TIE * se
        });
        tied.min_by(|a, b| {
            (a.0.threads, !a.0.free).cmp(&(b.0.threads, !b.0.free)).then(a.1.mean.total_cmp(&b.1.mean))
        })
        .map(|(j, _)| (*j).clone())
    }

    /// How much better than `best` a candidate is expected to turn out, where it does (expected improvement, relative).
    pub fn promise(&self, e: &Estimate, best: &Estimate, fastest: &Estimate) -> f64 {
        let (Some(own), Some(than)) = (self.objective(e), self.objective(best)) else { return 0.0 };
        let (better, sd) = than.over(&own);
        improvement(better, sd) * self.chance(e, fastest)
    }
}

/// E[max(x, 0)] of a normal variable.
pub fn improvement(mean: f64, sd: f64) -> f64 {
    if sd <= 1e-12 {
        return mean.max(0.0);
    }
    let z = mean / sd;
    mean * cumulative(z) + sd * (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// The normal distribution (Abramowitz and Stegun 26.2.17, error below 1e-7).
pub fn cumulative(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let tail = series.iter().rev().fold(0.0, |sum, c| (sum + c) * t) * (-z * z / 2.0).exp()
        / (2.0 * std::f64::consts::PI).sqrt();
    if z < 0.0 { tail } else { 1.0 - tail }
}
