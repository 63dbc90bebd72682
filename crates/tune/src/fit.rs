//! Least squares of a nonlinear law with a few parameters and a prior for each (maximum a posteriori, Levenberg-Marquardt),
//! with the uncertainty of a prediction.

/// What is known of a parameter beforehand: mean and standard deviation.
#[derive(Clone, Copy)]
pub struct Prior(pub f64, pub f64);

/// A value seen at a point, and its variance.
pub struct Seen<'a, P> {
    pub at: &'a P,
    pub value: f64,
    pub variance: f64,
}

/// Parameters, and the Cholesky factor of their inverse covariance.
pub struct Fit {
    pub parameters: Vec<f64>,
    pub cost: f64,
    factor: Vec<Vec<f64>>,
}

const ROUNDS: usize = 25;
const STEP: f64 = 1e-5;

/// Fits `law(parameters, point)` to what was seen, from `start`.
pub fn fit<P>(law: impl Fn(&[f64], &P) -> f64, priors: &[Prior], start: &[f64], seen: &[Seen<'_, P>]) -> Fit {
    let cost = |p: &[f64]| {
        let misfit: f64 = seen.iter().map(|s| (s.value - law(p, s.at)).powi(2) / s.variance).sum();
        misfit + priors.iter().zip(p).map(|(Prior(mean, sd), x)| ((x - mean) / sd).powi(2)).sum::<f64>()
    };
    let mut parameters = start.to_vec();
    let mut best = cost(&parameters);
    let mut damping = 1e-3;
    for _ in 0..ROUNDS {
        let (normal, gradient) = normal(&law, priors, &parameters, seen);
        let mut damped = normal;
        for (i, row) in damped.iter_mut().enumerate() {
            row[i] *= 1.0 + damping;
        }
        let Some(factor) = cholesky(damped) else { break };
        let step = solve(&factor, &gradient);
        let next: Vec<f64> = parameters.iter().zip(&step).map(|(p, s)| p + s).collect();
        let then = cost(&next);
        if then.is_finite() && then < best {
            let gain = best - then;
            (parameters, best) = (next, then);
            damping = (damping / 5.0).max(1e-9);
            if gain < 1e-4 {
                break;
            }
        } else {
            damping *= 8.0;
            if damping > 1e6 {
                break;
            }
        }
    }
    // Where the data leave no positive matrix, what was known beforehand is all that is known.
    let known = || cholesky(normal(&law, priors, &parameters, &[]).0);
    let factor = cholesky(normal(&law, priors, &parameters, seen).0).or_else(known).unwrap_or_default();
    Fit { parameters, cost: best, factor }
}

impl Fit {
    /// How a prediction moves with what is uncertain of the parameters, in independent steps of one standard deviation: its
    /// variance is the squared length, that of a difference of two predictions the squared distance.
    pub fn steps<P>(&self, law: impl Fn(&[f64], &P) -> f64, at: &P) -> Vec<f64> {
        // J C J^T with C = (L L^T)^-1 is the squared length of L^-1 J.
        forward(&self.factor, &slope(&law, &self.parameters, at))
    }
}

fn slope<P>(law: &impl Fn(&[f64], &P) -> f64, parameters: &[f64], at: &P) -> Vec<f64> {
    let here = law(parameters, at);
    let mut moved = parameters.to_vec();
    (0..moved.len())
        .map(|i| {
            moved[i] = parameters[i] + STEP;
            let there = law(&moved, at);
            moved[i] = parameters[i];
            (there - here) / STEP
        })
        .collect()
}

/// Normal equations: J^T V^-1 J and J^T V^-1 residual, with the priors as further rows.
fn normal<P>(
    law: &impl Fn(&[f64], &P) -> f64,
    priors: &[Prior],
    parameters: &[f64],
    seen: &[Seen<'_, P>],
) -> (Vec<Vec<f64>>, Vec<f64>) {
    let n = parameters.len();
    let mut matrix = vec![vec![0.0; n]; n];
    let mut gradient = vec![0.0; n];
    for (i, Prior(mean, sd)) in priors.iter().enumerate() {
        matrix[i][i] += sd.powi(-2);
        gradient[i] += (mean - parameters[i]) / (sd * sd);
    }
    for s in seen {
        let residual = s.value - law(parameters, s.at);
        let slope = slope(law, parameters, s.at);
        for i in 0..n {
            gradient[i] += slope[i] * residual / s.variance;
            for j in 0..n {
                matrix[i][j] += slope[i] * slope[j] / s.variance;
            }
        }
    }
    (matrix, gradient)
}

/// The lower factor of a symmetric positive matrix.
fn cholesky(mut m: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    for i in 0..m.len() {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| m[i][k] * m[j][k]).sum();
            let rest = m[i][j] - dot;
            if i == j {
                if !(rest > 0.0 && rest.is_finite()) {
                    return None;
                }
                m[i][i] = rest.sqrt();
            } else {
                m[i][j] = rest / m[j][j];
            }
        }
    }
    Some(m)
}

/// L x = b.
fn forward(factor: &[Vec<f64>], b: &[f64]) -> Vec<f64> {
    let mut x = vec![0.0; factor.len()];
    for i in 0..x.len() {
        let dot: f64 = (0..i).map(|k| factor[i][k] * x[k]).sum();
        x[i] = (b[i] - dot) / factor[i][i];
    }
    x
}

/// L L^T x = b.
fn solve(factor: &[Vec<f64>], b: &[f64]) -> Vec<f64> {
    let y = forward(factor, b);
    let n = b.len();
    let mut x = vec![0.0; n];
    for i in (0..n).rev() {
        let dot: f64 = (i + 1..n).map(|k| factor[k][i] * x[k]).sum();
        x[i] = (y[i] - dot) / factor[i][i];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variance(steps: &[f64]) -> f64 {
        steps.iter().map(|x| x * x).sum()
    }

    #[test]
    fn finds_the_parameters_of_a_nonlinear_law() {
        let law = |p: &[f64], x: &f64| p[0].exp() / (1.0 + p[1].exp() * x);
        let points: Vec<f64> = (0..8).map(f64::from).collect();
        let truth = [1.5, -0.7];
        let seen: Vec<_> =
            points.iter().map(|x| Seen { at: x, value: law(&truth, x), variance: 1e-6 }).collect();
        let found = fit(law, &[Prior(0.0, 5.0), Prior(0.0, 5.0)], &[0.0, 0.0], &seen);
        assert!(
            found.parameters.iter().zip(truth).all(|(a, b)| (a - b).abs() < 1e-3),
            "{:?}",
            found.parameters
        );
        assert!(variance(&found.steps(law, &3.0)) < 1e-5);
    }

    #[test]
    fn without_data_the_prior_stays() {
        let law = |p: &[f64], x: &f64| p[0] * x;
        let found = fit(law, &[Prior(2.0, 0.5)], &[0.0], &[]);
        assert!((found.parameters[0] - 2.0).abs() < 1e-6);
        assert!((variance(&found.steps(law, &2.0)) - 1.0).abs() < 1e-3);
    }
}
