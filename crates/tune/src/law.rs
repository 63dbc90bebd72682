//! Two laws that are fitted to what was measured, to tell which sets are worth a test: speed that adds up from cores and
//! saturates, and power as in AECS's h.
//!
//! Power is h = sum_i a_i (n_i + (C_i - n_i) b) (f_i s)^2 + P_s, for n_i of the C_i cores of cluster i, s = the largest
//! selected capacity / the largest capacity (the clock of an unused cluster falls). The paper publishes none of a_i, b,
//! P_s. The rule here, before anything is measured: a core at its clock takes power with the square of its capacity
//! (a_i f_i^2 = (capacity / largest)^2; device trees of SoCs give exponents of 1.3 to 2.9), b = 0.1, P_s = 0.3 of the
//! largest core. With a meter all of them, and the exponent of s, are fitted to the samples, the rule as the prior; so h is
//! in watts. Without a meter h is the rule, in multiples of the largest core.

use crate::fit::{Fit, Prior, Seen, fit};
use crate::ln::Ln;
use crate::machine::{Candidate, Machine};

/// b of the rule.
const IDLE_SHARE: f64 = 0.1;
/// P_s of the rule, relative to the largest core.
const BASE: f64 = 0.3;
/// What a second thread of a core adds to it.
const SIBLING: f64 = 0.25;
/// How sharply speed is expected to saturate at the memory's limit: 1/speed^p = 1/cores^p + 1/limit^p.
const SHARPNESS: f64 = 4.0;

/// What the laws see of a candidate.
#[derive(Clone)]
pub struct Point {
    /// Cores taken of each cluster, and how many of them with both threads.
    cores: Vec<f64>,
    doubled: Vec<f64>,
    threads: f64,
    /// s: largest weight among the clusters taken, relative to the largest.
    top: f64,
}

/// The machine as the laws see it.
pub struct Terrain {
    weights: Vec<f64>,
    sizes: Vec<f64>,
    /// Whether weights are known at all.
    known: bool,
}

/// A law with fitted parameters. Values are logarithms: errors are relative.
pub struct Law {
    fit: Fit,
    kind: Kind,
    /// How far single sets lie from the law, beyond noise (variance).
    pub misfit: f64,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Speed,
    Power,
}

impl Terrain {
    pub fn new(machine: &Machine) -> Self {
        let sizes = machine.clusters.iter().map(|c| c.cpus.len() as f64).collect();
        let weights = machine.weights();
        let known = weights.is_some();
        // Unknown: the order tells that later clusters are not faster.
        Self { weights: weights.unwrap_or_else(|| vec![1.0; machine.clusters.len()]), sizes, known }
    }

    pub fn point(&self, machine: &Machine, candidate: &Candidate) -> Point {
        let mut cores: Vec<f64> = machine.counts(candidate).into_iter().map(f64::from).collect();
        if candidate.is_free() {
            // A scheduler that knows its cores gives busy threads the largest.
            let mut left = f64::from(candidate.threads);
            for c in &mut cores {
                *c = c.min(left);
                left -= *c;
            }
        }
        let threads = f64::from(candidate.threads);
        let doubled: Vec<f64> = cores.iter().zip(&self.sizes).map(|(n, size)| (n - size).max(0.0)).collect();
        let cores: Vec<f64> = cores.iter().zip(&doubled).map(|(n, more)| n - more).collect();
        let taken = self.weights.iter().zip(&cores).filter(|(_, n)| **n > 0.0).map(|(w, _)| *w);
        let top = taken.fold(1e-3, f64::max);
        Point { cores, doubled, threads, top }
    }

    /// ln h by the rule alone, in multiples of the largest core's power.
    pub fn ln_h(&self, at: &Point) -> f64 {
        let means: Vec<f64> = self.priors(Kind::Power).iter().map(|p| p.0).collect();
        self.power(&means, at)
    }

    fn priors(&self, kind: Kind) -> Vec<Prior> {
        let loose = if self.known { 1.0 } else { 2.0 };
        let each = self.weights.len();
        match kind {
            // ln of: scale; limit and cost of a further thread, relative to the largest core; logit of stealing; ln of:
            // sharpness; cores.
            Kind::Speed => {
                let mut all = vec![
                    Prior(0.0, 10.0),
                    Prior(0.8, 0.6),
                    Prior(-4.5, 1.0),
                    Prior(0.0, 2.0),
                    Prior(SHARPNESS.ln(), 0.4),
                ];
                all.extend(
                    (0..each).map(|i| if i == 0 { Prior(0.0, 0.01) } else { Prior(0.0, 0.3 * loose) }),
                );
                all
            }
            // ln of: scale; P_s; b; the exponent of s itself; ln of the clusters' a.
            Kind::Power => {
                let mut all = vec![
                    Prior(0.0, 10.0),
                    Prior(BASE.ln(), 0.7),
                    Prior(IDLE_SHARE.ln(), 0.8),
                    Prior(2.0, 1.0),
                ];
                all.extend((0..each).map(|_| Prior(0.0, 0.4 * loose)));
                all
            }
        }
    }

    /// Logarithm of the tokens per second.
    fn speed(&self, p: &[f64], at: &Point) -> f64 {
        let (limit, each, stealing) = (p[1].exp(), p[2].exp(), 1.0 / (1.0 + (-p[3]).exp()));
        let mut sum = 0.0;
        let mut least = f64::INFINITY;
        for (i, weight) in self.weights.iter().enumerate() {
            let (cores, doubled) = (at.cores[i], at.doubled[i]);
            if cores > 0.0 {
                let rate = weight * p[5 + i].exp();
                sum += rate * (cores + SIBLING * doubled);
                least = least.min(if doubled > 0.0 { rate * (1.0 + SIBLING) / 2.0 } else { rate });
            }
        }
        // Shared evenly, all wait for the slowest thread.
        let cores = stealing * sum.ln() + (1.0 - stealing) * (least * at.threads).ln();
        let sharp = p[4].exp();
        let bound = (-sharp * cores).exp() + limit.powf(-sharp);
        let time = bound.powf(1.0 / sharp) + each * (at.threads - 1.0);
        p[0] - time.ln()
    }

    /// Logarithm of h.
    fn power(&self, p: &[f64], at: &Point) -> f64 {
        let (base, idle, clock) = (p[1].exp(), p[2].exp().min(1.0), at.top.powf(p[3]));
        let clusters = self.weights.iter().zip(&self.sizes).enumerate().map(|(i, (weight, size))| {
            let busy = at.cores[i] + SIBLING * at.doubled[i];
            p[4 + i].exp() * weight * weight * clock * (busy + (size - at.cores[i]).max(0.0) * idle)
        });
        p[0] + (base + clusters.sum::<f64>()).ln()
    }

    fn value(&self, kind: Kind, p: &[f64], at: &Point) -> f64 {
        match kind {
            Kind::Speed => self.speed(p, at),
            Kind::Power => self.power(p, at),
        }
    }

    /// Fits a law to (point, logarithm, variance of the noise).
    pub fn fit(&self, kind: Kind, seen: &[(&Point, f64, f64)]) -> Law {
        let mut priors = self.priors(kind);
        if let Some((_, value, _)) = seen.first() {
            priors[0].0 = *value;
        }
        let at_start: Vec<f64> = priors.iter().map(|p| p.0).collect();
        let law = |p: &[f64], at: &Point| self.value(kind, p, at);
        let mut misfit = MISFIT.powi(2);
        let mut best: Option<Fit> = None;
        for _ in 0..2 {
            let rows: Vec<Seen<'_, Point>> = seen
                .iter()
                .map(|(at, value, noise)| Seen { at: *at, value: *value, variance: noise + misfit })
                .collect();
            // Threads that share evenly and those that steal work are two valleys: both are tried.
            let starts: &[f64] = if kind == Kind::Speed { &[-1.5, 1.5] } else { &[2.0] };
            let fits = starts.iter().map(|s| {
                let mut start =
                    best.as_ref().map_or_else(|| at_start.clone(), |b: &Fit| b.parameters.clone());
                start[3] = *s;
                fit(law, &priors, &start, &rows)
            });
            best = fits.min_by(|a, b| a.cost.total_cmp(&b.cost));
            if let Some(best) = &best {
                let beyond: f64 = seen
                    .iter()
                    .map(|(at, value, noise)| (value - law(&best.parameters, at)).powi(2) - noise)
                    .sum();
                let free = (seen.len() as f64 - 0.7 * priors.len() as f64).max(1.0);
                misfit =
                    ((SURE * MISFIT.powi(2) + beyond.max(0.0)) / (SURE + free)).max(LEAST_MISFIT.powi(2));
            }
        }
        let fit = best.unwrap_or_else(|| fit(law, &priors, &at_start, &[]));
        Law { fit, kind, misfit }
    }
}

/// Expected distance of a set from the law before anything is known, and the weight of that (in sets).
const MISFIT: f64 = 0.02;
const SURE: f64 = 6.0;
/// No law is believed better than this.
const LEAST_MISFIT: f64 = 0.008;

impl Law {
    pub fn parameters(&self) -> usize {
        self.fit.parameters.len()
    }

    /// The logarithm at a point, and what is uncertain of it: alone, the misfit, and together with other points.
    pub fn predict(&self, terrain: &Terrain, at: &Point) -> Ln {
        let law = |p: &[f64], at: &Point| terrain.value(self.kind, p, at);
        Ln { mean: law(&self.fit.parameters, at), own: self.misfit, shared: self.fit.steps(law, at) }
    }
}
