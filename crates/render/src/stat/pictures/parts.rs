//! What several pictures need: the reason for a missing one, units, lines, fewer points.

/// Why there is no picture, and what to record for one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoPicture(pub String);

pub(super) fn none<T>(why: &str) -> Result<T, NoPicture> {
    Err(NoPicture(why.to_owned()))
}

/// Keeps one of every few rows, so that at most `most` remain.
pub(super) fn thinned<T>(rows: &[T], most: usize) -> impl Iterator<Item = &T> {
    rows.iter().step_by(rows.len().div_ceil(most.max(1)).max(1))
}

/// The tensor in the name of an op, which begins with the op's kind.
pub(super) fn tensor(name: &str) -> &str {
    name.split_once("  ").map_or(name, |(_, tensor)| tensor)
}

/// The unit of a time axis up to `high` ns: its name, and its ns.
pub(super) fn time_unit(high: f64) -> (&'static str, f64) {
    match high {
        h if h < 2e3 => ("ns", 1.0),
        h if h < 2e6 => ("us", 1e3),
        h if h < 2e9 => ("ms", 1e6),
        _ => ("s", 1e9),
    }
}

/// Places on a straight line over x, close enough to one another for a logarithmic axis.
pub(super) fn sampled(from: f64, to: f64, at: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    const STEPS: u32 = 48;
    if !(from > 0.0 && to > from && to.is_finite()) {
        return Vec::new();
    }
    let place = |i: u32| from * (to / from).powf(f64::from(i) / f64::from(STEPS));
    (0..=STEPS).map(place).map(|x| (x, at(x))).filter(|(_, y)| y.is_finite() && *y > 0.0).collect()
}
