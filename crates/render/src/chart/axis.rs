//! Chart axes: maps values to positions and picks round tick values. Handles numbers only.

/// One direction of a chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis {
    pub low: f64,
    pub high: f64,
    pub log: bool,
    /// Positions of the lowest and the highest value.
    pub from: f64,
    pub to: f64,
}

impl Axis {
    /// From 0 up to `high`, which is rounded up.
    pub fn linear(high: f64, from: f64, to: f64) -> Axis {
        let high = if high.is_finite() && high > 0.0 { high.clamp(1e-300, 1e300) } else { 1.0 };
        let step = step(high);
        Axis { low: 0.0, high: (high / step).ceil() * step, log: false, from, to }
    }

    /// Rounds both ends to powers of ten around the values, which are above 0.
    pub fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let power = |v: f64| if v.is_finite() && v > 0.0 { v.log10().clamp(-30.0, 30.0) } else { 0.0 };
        let (low, high) = (power(low).floor(), power(high).ceil());
        let high = high.max(low + 1.0);
        Axis { low: 10f64.powf(low), high: 10f64.powf(high), log: true, from, to }
    }

    /// Between 1, 2 or 5 times a power of ten below and above the values, which are above 0.
    pub fn close(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let sound = |v: f64| if v.is_finite() && v > 0.0 { v.clamp(1e-30, 1e30) } else { 1.0 };
        let (low, high) = (round_down(sound(low)), round_up(sound(high)));
        Axis { low, high: if high > low * 1.5 { high } else { round_up(low * 1.5) }, log: true, from, to }
    }

    /// From a round value below `low` to one above `high`; from 0 if that is near.
    pub fn around(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let sound = low.is_finite() && high.is_finite() && low.abs() < 1e300 && high.abs() < 1e300;
        if !sound || low >= 0.0 && low <= 0.3 * high || high <= low {
            return Axis::linear(high.max(low), from, to);
        }
        let rounded = |step: f64| ((low / step).floor() * step, (high / step).ceil() * step);
        // Rounding makes the range longer, which may need another step.
        let (rough, far) = rounded(step(high - low));
        let (low, high) = rounded(step(far - rough));
        Axis { low, high, log: false, from, to }
    }

    /// The position of a value; values outside are placed at the end.
    pub fn at(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }

    /// Tick values: a few round ones; powers of ten if logarithmic.
    pub fn ticks(&self) -> Vec<f64> {
        if !self.log {
            let step = step(self.high - self.low);
            let n = ((self.high - self.low) / step).round() as usize;
            return (0..=n.min(12)).map(|i| self.low + i as f64 * step).collect();
        }
        if self.high / self.low < 0.99e3 {
            return self.fine_ticks();
        }
        // Only the powers that are within: a close axis need not begin with one.
        let first = (self.low.log10() - 1e-9).ceil() as i32;
        let last = (self.high.log10() + 1e-9).floor() as i32;
        let each = ((last - first) / 6 + 1).max(1) as usize;
        (first..=last).step_by(each).map(|power| 10f64.powi(power)).collect()
    }
}

impl Axis {
    /// 1, 2 and 5 times each power of ten of a logarithmic axis.
    fn fine_ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        let mut tick = self.low;
        while tick <= self.high * 1.0001 && ticks.len() < 12 {
            ticks.push(tick);
            tick = round_up(tick * 1.01);
        }
        ticks
    }
}

/// The largest of 1, 2 or 5 times a power of ten that is not above a positive value.
fn round_down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let fits = |times: &f64| power * times <= value * (1.0 + 1e-9);
    [10.0, 5.0, 2.0, 1.0].into_iter().find(fits).unwrap_or(1.0) * power
}

/// The smallest that is not below it.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let fits = |times: &f64| power * times >= value * (1.0 - 1e-9);
    [1.0, 2.0, 5.0, 10.0].into_iter().find(fits).unwrap_or(10.0) * power
}

/// 1, 2 or 5 times a power of ten, so that four to ten steps make up `high`.
fn step(high: f64) -> f64 {
    let power = 10f64.powf((high / 4.0).log10().floor());
    let times = high / 4.0 / power;
    power
        * if times < 2.0 {
            1.0
        } else if times < 5.0 {
            2.0
        } else {
            5.0
        }
}

/// The shortest label for a tick value.
pub fn label(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        v if v < 0.0 => format!("-{}", label(-v)),
        v if v >= 1e6 => format!("{v:.0e}"),
        v if v >= 1.0 => format!("{}", (v * 10.0).round() / 10.0),
        v if v >= 1e-3 => format!("{}", (v * 1e4).round() / 1e4),
        v => format!("{v:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_hold_all_values() {
        let a = Axis::linear(13.7, 0.0, 100.0);
        assert_eq!((a.high, a.ticks()), (14.0, vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]));
        assert_eq!((a.at(0.0), a.at(7.0), a.at(14.0), a.at(99.0)), (0.0, 50.0, 100.0, 100.0));
        let a = Axis::logarithmic(0.3, 250.0, 100.0, 0.0);
        assert_eq!(
            a.ticks().iter().map(|t| label(*t)).collect::<Vec<_>>(),
            ["0.1", "1", "10", "100", "1000"]
        );
        assert!((a.at(10.0) - 50.0).abs() < 1e-9);
        let labels = |a: Axis| a.ticks().iter().map(|t| label(*t)).collect::<Vec<_>>().join(" ");
        assert_eq!(labels(Axis::close(0.3, 7.0, 0.0, 9.0)), "0.2 0.5 1 2 5 10");
        assert_eq!(labels(Axis::close(3.0, 70_000.0, 0.0, 9.0)), "10 100 1000 10000 100000");
        assert_eq!(labels(Axis::close(5.0, 5.0, 0.0, 9.0)), "5 10");
        assert_eq!(labels(Axis::around(4010.0, 4095.0, 0.0, 9.0)), "4000 4020 4040 4060 4080 4100");
        assert_eq!(labels(Axis::around(9.0, 95.0, 0.0, 9.0)), "0 20 40 60 80 100");
        assert_eq!(labels(Axis::around(-12.0, 25.0, 0.0, 9.0)), "-20 -10 0 10 20 30");
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE] {
            let all = [
                Axis::linear(odd, 0.0, 9.0),
                Axis::logarithmic(odd, odd, 0.0, 9.0),
                Axis::close(odd, odd, 0.0, 9.0),
                Axis::around(odd, odd, 0.0, 9.0),
                Axis::around(-odd, odd, 0.0, 9.0),
            ];
            for a in all {
                assert!(a.high > a.low && a.ticks().len() <= 13 && a.at(1.0).is_finite(), "{odd} {a:?}");
            }
        }
    }
}
