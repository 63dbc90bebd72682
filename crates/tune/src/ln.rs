//! Logarithms of figures, with what is uncertain of them.

/// A logarithm that is known about.
#[derive(Clone, Debug, Default)]
pub struct Ln {
    pub mean: f64,
    /// Variance of what is uncertain of it alone.
    pub own: f64,
    /// What is uncertain of it together with others, in independent steps of one standard deviation.
    pub shared: Vec<f64>,
}

impl Ln {
    pub fn sd(&self) -> f64 {
        self.sum(1.0, &Self::default(), 0.0).1
    }

    /// How much larger it is than another, and the standard deviation of that.
    pub fn over(&self, other: &Self) -> (f64, f64) {
        self.sum(1.0, other, -1.0)
    }

    fn sum(&self, a: f64, other: &Self, b: f64) -> (f64, f64) {
        let both = self.plus(a, other, b);
        (both.mean, (both.own + both.shared.iter().map(|x| x * x).sum::<f64>()).sqrt())
    }

    /// `a` times this and `b` times the other.
    pub fn plus(&self, a: f64, other: &Self, b: f64) -> Self {
        let at = |all: &[f64], i: usize| all.get(i).copied().unwrap_or(0.0);
        let steps = 0..self.shared.len().max(other.shared.len());
        Self {
            mean: a * self.mean + b * other.mean,
            own: a * a * self.own + b * b * other.own,
            shared: steps.map(|i| a * at(&self.shared, i) + b * at(&other.shared, i)).collect(),
        }
    }

    /// With what was measured of it, weighted by what is uncertain of it alone; and the share of the measured.
    pub fn told(&self, measured: &Self) -> (Self, f64) {
        let share = self.own / (self.own + measured.own);
        (self.plus(1.0 - share, measured, share), share)
    }
}
