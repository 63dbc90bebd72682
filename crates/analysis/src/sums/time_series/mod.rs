//! Statistics of autocorrelated series, such as the tokens of a run.
//!
//! Sources of the formulas:
//! - trimmed mean, its variance from the winsorised values: Yuen, Biometrika 61 (1974) 165;
//! - variance of the mean of dependent values: equally weighted cosines, Lazarus, Lewis, Stock and Watson, J.
//!   Business & Economic Statistics 36 (2018) 541; before that the autocorrelation is removed (prewhitening,
//!   Andrews and Monahan, Econometrica 60 (1992) 953) with a bias-corrected coefficient (Kendall, Biometrika 41
//!   (1954) 403);
//! - degrees of freedom of a sum of variances: Satterthwaite, Biometrics Bulletin 2 (1946) 110;
//! - multiple tests: Benjamini and Hochberg, J. Royal Statistical Society B 57 (1995) 289.

use std::f64::consts::{FRAC_PI_2, PI};

use common::order;

/// With fewer values, their dependence cannot be estimated.
pub const LEAST: usize = 16;
/// Share cut at each end for a trimmed mean: Yuen's value.
const TRIM: f64 = 0.2;
/// 95 % of a normal distribution are within this many standard deviations.
const NORMAL_95: f64 = 1.959964;
/// Maximum autocorrelation assumed; higher values cannot be distinguished from a drift.
const MOST_ALIKE: f64 = 0.95;
/// Cosines: 0.4 n^(2/3) as recommended, within these limits: only the slowest show correlation that the
/// coefficient missed.
const FEWEST_COSINES: f64 = 4.0;
const MOST_COSINES: f64 = 8.0;

/// A measured value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub value: f64,
    /// Variance of the value: the square of its standard error.
    pub variance: f64,
    /// Degrees of freedom of the variance.
    pub df: f64,
}

impl Estimate {
    /// The same value with additional variance.
    pub fn blurred(self, variance: f64, df: f64) -> Estimate {
        let sum = self.variance + variance;
        let parts = self.variance * self.variance / self.df + variance * variance / df;
        Estimate { variance: sum, df: if parts > 0.0 { sum * sum / parts } else { self.df }, ..self }
    }

    /// Probability of such a value if the true one is within `least` on either side.
    pub fn chance(&self, least: f64) -> f64 {
        let error = self.variance.sqrt();
        let at = |x: f64| match error > 0.0 {
            true => tail(x / error, self.df),
            false => f64::from(u8::from(x <= 0.0)),
        };
        (at(self.value.abs() - least) + at(self.value.abs() + least)).min(1.0)
    }

    /// Half the width of the interval that contains the true value with this confidence.
    pub fn within(&self, confidence: f64) -> f64 {
        let beyond = (1.0 - confidence) / 2.0;
        let (mut low, mut high) = (0.0, 1e3);
        for _ in 0..32 {
            let middle = (low + high) / 2.0;
            if tail(middle, self.df) > beyond { low = middle } else { high = middle }
        }
        high * self.variance.sqrt()
    }
}

/// Probability that Student's t is above `t`. With t = sqrt(df) tan(a) its density is proportional to cos(a)^(df
/// - 1).
pub fn tail(t: f64, df: f64) -> f64 {
    let df = df.clamp(1.0, 1000.0);
    let from = (t.abs() / df.sqrt()).atan();
    let above = area(from, df - 1.0) / area(0.0, df - 1.0) / 2.0;
    if t < 0.0 { 1.0 - above } else { above }
}

/// Integral of cos(a)^power from `from` to a right angle by Simpson's rule; the tail beyond its range is
/// negligible.
fn area(from: f64, power: f64) -> f64 {
    const STEPS: u32 = 64;
    let to = FRAC_PI_2.min(from + 10.0 / (power + 1.0).sqrt());
    let step = (to - from) / f64::from(STEPS);
    let weight = |i: u32| match i {
        0 | STEPS => 1.0,
        i => f64::from(2 + i % 2 * 2),
    };
    let at = |i: u32| (from + f64::from(i) * step).cos().max(0.0).powf(power);
    (0..=STEPS).map(|i| weight(i) * at(i)).sum::<f64>() * step / 3.0
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The values, sorted.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut keys: Vec<u64> = values.iter().map(|v| order::fraction(*v)).collect();
    keys.sort_unstable();
    keys.into_iter().map(order::unfraction).collect()
}

/// The mean of the middle three fifths of a time series, so that single stalls have no influence; `None` for
/// fewer than [`LEAST`] values.
pub fn typical(series: &[f64]) -> Option<Estimate> {
    let n = series.len();
    let sorted = sorted(series);
    let cut = (TRIM * n as f64) as usize;
    let middle = sorted.get(cut..n - cut).filter(|_| n >= LEAST)?;
    let (low, high) = (*middle.first()?, *middle.last()?);
    let winsorised: Vec<f64> = series.iter().map(|v| v.max(low).min(high)).collect();
    let (variance, df) = variance_of_mean(&winsorised);
    let kept = middle.len() as f64 / n as f64;
    Some(Estimate { value: mean(middle), variance: variance / (kept * kept), df })
}

/// Variance of the mean of a time series, and its degrees of freedom.
fn variance_of_mean(series: &[f64]) -> (f64, f64) {
    let n = series.len() as f64;
    let middle = mean(series);
    let (mut both, mut square) = (0.0, 0.0);
    for (before, now) in series.iter().zip(series.iter().skip(1)) {
        both += (before - middle) * (now - middle);
        square += (before - middle) * (before - middle);
    }
    let alike = if square > 0.0 { both / square } else { 0.0 };
    let alike = (alike + (1.0 + 3.0 * alike) / n).clamp(0.0, MOST_ALIKE);
    let left = series.iter().zip(series.iter().skip(1)).map(|(b, v)| (v - middle) - alike * (b - middle));
    let left: Vec<f64> = left.collect();
    let m = left.len().max(1) as f64;
    let cosines = (0.4 * m.powf(2.0 / 3.0)).floor().clamp(FEWEST_COSINES, MOST_COSINES);
    let mut sums = vec![0.0; cosines as usize];
    for (i, value) in left.iter().enumerate() {
        let step = (PI * (i as f64 + 0.5) / m).cos();
        // cos((k + 1) a) = 2 cos(a) cos(k a) - cos((k - 1) a).
        let (mut before, mut now) = (1.0, step);
        for sum in &mut sums {
            *sum += value * now;
            (before, now) = (now, 2.0 * step * now - before);
        }
    }
    let spectrum = sums.iter().map(|s| s * s).sum::<f64>() * 2.0 / m / cosines;
    (spectrum / ((1.0 - alike) * (1.0 - alike)) / n, cosines)
}

/// The value with half of the weight on either side; `None` without weight.
pub fn weighted_median(values: &[(f64, f64)]) -> Option<f64> {
    let mut values = values.to_vec();
    order::by_key(&mut values, |(value, _)| (order::fraction(*value), 0));
    let half = values.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    values.iter().filter(|(_, weight)| *weight > 0.0).find_map(|(value, weight)| {
        sum += weight;
        (sum >= half).then_some(*value)
    })
}

/// For each test, in the given order, the false discovery rate at which it just passes.
pub fn false_discovery(chances: &[f64]) -> Vec<f64> {
    let mut rank: Vec<usize> = (0..chances.len()).collect();
    order::by_key(&mut rank, |i| (order::fraction(chances[*i]), 0));
    let mut out = vec![1.0; chances.len()];
    let mut least: f64 = 1.0;
    for (below, i) in rank.iter().enumerate().rev() {
        least = least.min(chances[*i] * chances.len() as f64 / (below + 1) as f64);
        out[*i] = least;
    }
    out
}

/// A least-squares line fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LineFit {
    pub at_zero: f64,
    /// Its error assumes points that scatter independently around the line.
    pub slope: Estimate,
    /// Share of the points' variance that the line explains.
    pub r2: f64,
}

impl LineFit {
    pub fn at(&self, x: f64) -> f64 {
        self.at_zero + self.slope.value * x
    }
}

/// The line through points (x, y); `None` for fewer than three points, or if all x are equal.
pub fn line(points: &[(f64, f64)]) -> Option<LineFit> {
    let n = points.len() as f64;
    let x_mean = points.iter().map(|(x, _)| x).sum::<f64>() / n;
    let y_mean = points.iter().map(|(_, y)| y).sum::<f64>() / n;
    let sum =
        |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| of(x - x_mean, y - y_mean)).sum::<f64>();
    let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
    if points.len() < 3 || xx <= 0.0 {
        return None;
    }
    let value = xy / xx;
    let left = sum(&|x, y| (y - value * x) * (y - value * x));
    let slope = Estimate { value, variance: left / (n - 2.0) / xx, df: n - 2.0 };
    let r2 = if yy > 0.0 { 1.0 - left / yy } else { 1.0 };
    Some(LineFit { at_zero: y_mean - value * x_mean, slope, r2 })
}
/// The median of the values; 0 if there are none.
pub fn median(values: &[f64]) -> f64 {
    sorted(values).get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The slope of lines that share it, robust against outliers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SteadySlope {
    pub value: f64,
    /// Contains the true value with a confidence of 95 %.
    pub interval: [f64; 2],
    /// How far from no trend: Kendall's S in its standard deviations.
    pub deviations: f64,
}

/// The slope that is common to the lines through the points of each group: the median of the slopes between all pairs of a group
/// (Theil and Sen; Sen, J. American Statistical Association 63 (1968) 1379, with the interval of its section 3). `None` if
/// all x of each group are equal. Takes quadratic time.
pub fn steady_slope<'p>(groups: impl Iterator<Item = &'p [(f64, f64)]>) -> Option<SteadySlope> {
    let (mut slopes, mut variance) = (Vec::new(), 0.0);
    for points in groups {
        for (i, (x, y)) in points.iter().enumerate() {
            let others = points.get(i + 1..).unwrap_or(&[]).iter();
            slopes.extend(others.filter(|(u, _)| u != x).map(|(u, v)| (v - y) / (u - x)));
        }
        let all = sorted(&points.iter().map(|(x, _)| *x).collect::<Vec<f64>>());
        let tied: f64 = all.chunk_by(|a, b| a == b).map(|same| kendall(same.len())).sum();
        variance += kendall(all.len()) - tied;
    }
    let slopes = sorted(&slopes);
    let balance = slopes.iter().map(|s| if *s == 0.0 { 0.0 } else { s.signum() }).sum::<f64>();
    let (pairs, error) = (slopes.len() as f64, variance.max(0.0).sqrt());
    let at = |rank: f64| slopes.get((rank.max(0.0) as usize).min(slopes.len().saturating_sub(1))).copied();
    Some(SteadySlope {
        value: at((slopes.len() / 2) as f64)?,
        interval: [at((pairs - NORMAL_95 * error) / 2.0)?, at((pairs + NORMAL_95 * error) / 2.0)?],
        deviations: if error > 0.0 { balance / error } else { 0.0 },
    })
}

/// Variance of Kendall's S of `n` values without a trend, all different.
fn kendall(n: usize) -> f64 {
    let n = n as f64;
    n * (n - 1.0) * (2.0 * n + 5.0) / 18.0
}

/// A line fit robust against outliers. Returns its value at zero, its slope as [`steady_slope`], and the share of the points'
/// variance that it explains. `None` for fewer than three points, or if all x are equal. Takes quadratic time.
pub fn steady_line(points: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    if points.len() < 3 {
        return None;
    }
    let slope = steady_slope(std::iter::once(points))?.value;
    let at_zero = median(&points.iter().map(|(x, y)| y - slope * x).collect::<Vec<f64>>());
    let middle = points.iter().map(|(_, y)| y).sum::<f64>() / points.len() as f64;
    let squares = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| of(*x, *y).powi(2)).sum::<f64>();
    let (left, all) = (squares(&|x, y| y - at_zero - slope * x), squares(&|_, y| y - middle));
    Some((at_zero, slope, if all > 0.0 { 1.0 - left / all } else { 1.0 }))
}

#[cfg(test)]
pub mod tests;
