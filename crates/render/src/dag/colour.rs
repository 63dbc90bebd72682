//! Colours for values: from pale to deep, readable in print and with red colour blindness.

use std::fmt;

use analysis::questions::dag::{Dag, Metric};

/// Ends and middle of the scale, from low to high; lightness decreases evenly.
pub const STOPS: [[f64; 3]; 3] = [[255.0, 247.0, 220.0], [253.0, 150.0, 60.0], [140.0, 20.0, 30.0]];

/// A colour, shown as `#rrggbb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour([u8; 3]);

impl From<[f64; 3]> for Colour {
    fn from(rgb: [f64; 3]) -> Colour {
        Colour(rgb.map(|part| part.round() as u8))
    }
}

impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [r, g, b] = self.0;
        write!(f, "#{r:02x}{g:02x}{b:02x}")
    }
}

impl Colour {
    /// Text colour that is readable on it.
    pub fn ink(self) -> &'static str {
        let [r, g, b] = self.0.map(f64::from);
        if 0.3 * r + 0.6 * g + 0.1 * b < 110.0 { "#ffffff" } else { "#000000" }
    }
}

/// The range of values in a graph.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    pub low: f64,
    pub high: f64,
    /// Logarithmic: the values are amounts that span more than a factor of ten.
    pub log: bool,
}

impl Scale {
    /// None if no node has a value.
    pub fn of(dag: &Dag, metric: Metric) -> Option<Scale> {
        Scale::over(&[dag], metric)
    }

    /// One scale for several graphs.
    pub fn over(dags: &[&Dag], metric: Metric) -> Option<Scale> {
        let nodes = || dags.iter().flat_map(|dag| &dag.nodes);
        let values = || nodes().filter_map(|n| n.figures[metric as usize]).map(|s| s.median);
        let low = values().reduce(f64::min)?;
        let high = values().reduce(f64::max)?;
        let amount = matches!(
            metric,
            Metric::Median | Metric::Time | Metric::Bytes | Metric::Flops | Metric::Faults | Metric::Counted
        );
        Some(Scale { low, high, log: amount && low > 0.0 && high > 10.0 * low })
    }

    /// The value at a share of the scale, 0 to 1.
    pub fn value(&self, share: f64) -> f64 {
        match self.log {
            true => self.low * (self.high / self.low).powf(share),
            false => self.low + (self.high - self.low) * share,
        }
    }

    pub fn colour(&self, value: f64) -> Colour {
        let on = |v: f64| if self.log { v.max(f64::MIN_POSITIVE).ln() } else { v };
        let (low, high) = (on(self.low), on(self.high));
        let share = if high > low { ((on(value) - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
        let [a, b] = if share < 0.5 { [STOPS[0], STOPS[1]] } else { [STOPS[1], STOPS[2]] };
        let part = (share * 2.0) % 1.0 + if share == 1.0 { 1.0 } else { 0.0 };
        Colour::from(std::array::from_fn(|i| a[i] + (b[i] - a[i]) * part))
    }
}

/// The colour of a change of a time, as a share: blue is faster, red slower, from a factor of two on the deepest.
pub fn change(share: f64) -> Colour {
    const NONE: [f64; 3] = [247.0, 247.0, 247.0];
    const ENDS: [[f64; 3]; 2] = [[33.0, 102.0, 172.0], [178.0, 24.0, 43.0]];
    let factor = (1.0 + share).max(f64::MIN_POSITIVE).log2().clamp(-1.0, 1.0);
    let end = ENDS[usize::from(factor > 0.0)];
    Colour(std::array::from_fn(|i| (NONE[i] + (end[i] - NONE[i]) * factor.abs()).round() as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_is_red_and_faster_is_blue() {
        let shown = |share: f64| change(share).to_string();
        assert_eq!(
            [0.0, 1.0, 9.0, -0.5, -1.0].map(shown),
            ["#f7f7f7", "#b2182b", "#b2182b", "#2166ac", "#2166ac"]
        );
        assert_eq!(change(1.0).ink(), "#ffffff");
    }

    #[test]
    fn from_pale_to_deep() {
        let s = Scale { low: 1.0, high: 100.0, log: true };
        let shown = |v| s.colour(v).to_string();
        assert_eq!([shown(1.0), shown(10.0), shown(100.0)], ["#fff7dc", "#fd963c", "#8c141e"]);
        assert_eq!(shown(0.0), shown(1.0));
        assert_eq!(s.colour(1.0).ink(), "#000000");
        assert_eq!(s.colour(100.0).ink(), "#ffffff");
        assert_eq!([0.0, 0.5, 1.0].map(|share| s.value(share).round()), [1.0, 10.0, 100.0]);
        assert_eq!(Scale { low: 1.0, high: 3.0, log: false }.value(0.5), 2.0);
        let all_equal = Scale { low: 5.0, high: 5.0, log: false };
        assert_eq!(all_equal.colour(5.0).to_string(), "#fd963c");
    }
}
