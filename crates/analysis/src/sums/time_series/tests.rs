//! Tests the statistics against tables, against their definitions, and on synthetic noise with a known truth.
#![allow(clippy::disallowed_methods, reason = "a test")]

use proptest::prelude::*;

use super::*;

/// Reproducible noise (SplitMix64).
pub struct Noise(pub u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Mean 0, standard deviation 1.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (2.0 * PI * self.uniform()).cos()
    }

    /// A series with autocorrelation `alike` and occasional stalls.
    pub fn series(&mut self, n: usize, alike: f64, stalls: f64) -> Vec<f64> {
        let mut last = self.normal();
        let mut next = || {
            last = alike * last + (1.0 - alike * alike).sqrt() * self.normal();
            if self.uniform() < stalls { last + 30.0 } else { last }
        };
        (0..n).map(|_| next()).collect()
    }
}

#[test]
fn the_tail_is_that_of_the_tables() {
    let table = [
        (12.706, 1.0, 0.025),
        (4.303, 2.0, 0.025),
        (2.228, 10.0, 0.025),
        (4.587, 10.0, 0.0005),
        (3.646, 30.0, 0.0005),
        (2.042, 30.0, 0.025),
        (1.962, 1000.0, 0.025),
        (3.300, 1000.0, 0.0005),
    ];
    for (t, df, p) in table {
        assert!((tail(t, df) / p - 1.0).abs() < 2e-3, "t {t}, {df}: {}", tail(t, df));
        let e = Estimate { value: 0.0, variance: 4.0, df };
        assert!((e.within(1.0 - 2.0 * p) / (2.0 * t) - 1.0).abs() < 1e-3, "t {t}, {df}");
    }
}

#[test]
fn a_value_within_the_least_that_counts_is_no_surprise() {
    let e = |value| Estimate { value, variance: 1e-4, df: 10.0 };
    assert!(e(0.01).chance(0.01) > 0.5 && e(-0.005).chance(0.01) > 0.6);
    assert!((e(0.01 + 4.587 * 0.01).chance(0.01) - 0.0005).abs() < 5e-5);
    assert!((e(4.587 * 0.01).chance(0.0) - 0.001).abs() < 1e-5);
    assert_eq!(e(0.05).chance(0.01), e(-0.05).chance(0.01));
    let exact = |value| Estimate { variance: 0.0, ..e(value) };
    assert_eq!((exact(0.01).chance(0.01), exact(0.011).chance(0.01)), (1.0, 0.0));
}

#[test]
fn too_few_values_say_nothing() {
    assert_eq!(typical(&[1.0; LEAST - 1]), None);
    let e = typical(&[1.0; LEAST]).unwrap();
    assert_eq!((e.value, e.variance), (1.0, 0.0));
}

/// Anscombe's first quartet ("Graphs in statistical analysis", 1973): intercept 3.00, slope 0.500 with error
/// 0.118, R2 0.67.
#[test]
fn a_line_is_that_of_the_textbook() {
    let x = [10.0, 8.0, 13.0, 9.0, 11.0, 14.0, 6.0, 4.0, 12.0, 7.0, 5.0];
    let y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68];
    let points: Vec<(f64, f64)> = x.into_iter().zip(y).collect();
    let l = line(&points).unwrap();
    let near = |a: f64, b: f64| assert!((a - b).abs() < 0.005, "{a} is not {b}");
    near(l.at_zero, 3.0);
    near(l.slope.value, 0.5);
    near(l.slope.variance.sqrt(), 0.118);
    near(l.r2, 0.667);
    near(l.at(10.0), 8.0);
    assert_eq!((line(&points[..2]), line(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)])), (None, None));
}

#[test]
fn a_point_far_off_does_not_turn_a_steady_line() {
    let mut points: Vec<(f64, f64)> = (0..7).map(|i| (f64::from(i), 2.0 + 3.0 * f64::from(i))).collect();
    points[6].1 = 100.0;
    let (at_zero, slope, r2) = steady_line(&points).unwrap();
    assert_eq!((at_zero, slope), (2.0, 3.0));
    assert!(r2 < 0.5, "{r2}");
    assert_eq!((steady_line(&points[..2]), steady_line(&[(1.0, 1.0); 5])), (None, None));
}

#[test]
fn groups_share_a_slope_and_its_interval_holds() {
    let mut noise = Noise(3);
    let (mut inside, mut rises) = (0, 0);
    const ROUNDS: u32 = 400;
    for _ in 0..ROUNDS {
        let groups = [0.0, 1000.0].map(|base| {
            let of = |(i, e): (usize, f64)| ((i % 7) as f64, base + e);
            noise.series(40, 0.0, 0.02).into_iter().enumerate().map(of).collect::<Vec<_>>()
        });
        let found = steady_slope(groups.iter().map(Vec::as_slice)).unwrap();
        inside += u32::from(found.interval[0] <= 0.0 && 0.0 <= found.interval[1]);
        rises += u32::from(found.deviations.abs() > 2.576);
    }
    // Standard errors of these shares are 1.1 and 0.5 %.
    let share = |n: u32| f64::from(n) / f64::from(ROUNDS);
    assert!((share(inside) - 0.95).abs() < 0.045 && share(rises) < 0.03, "{inside} {rises}");
    assert_eq!(steady_slope([&[(1.0, 1.0), (1.0, 2.0)][..], &[(2.0, 3.0)]].into_iter()), None);
}

#[test]
fn stalls_do_not_move_the_typical_value() {
    let calm = typical(&Noise(1).series(200, 0.0, 0.0)).unwrap();
    let e = typical(&Noise(1).series(200, 0.0, 0.05)).unwrap();
    assert!(e.value.abs() < 0.4 && e.variance < 3.0 * calm.variance, "{e:?} {calm:?}");
}

/// The share of series of mean 0 whose mean is reported as different from 0 at 5 %.
fn wrongly_told(alike: f64, n: usize, stalls: f64) -> f64 {
    let mut noise = Noise(7);
    let mut told = 0;
    const ROUNDS: u32 = 2000;
    for _ in 0..ROUNDS {
        let both = [noise.series(n, alike, stalls), noise.series(n, alike, stalls)];
        let between: Vec<f64> = both[0].iter().zip(&both[1]).map(|(a, b)| b - a).collect();
        told += u32::from(typical(&between).unwrap().chance(0.0) < 0.05);
    }
    f64::from(told) / f64::from(ROUNDS)
}

#[test]
fn the_rate_of_false_alarms_holds_for_tokens_that_are_alike() {
    for (alike, n, stalls) in
        [(0.0, 64, 0.0), (0.0, 128, 0.05), (0.5, 128, 0.02), (0.8, 128, 0.0), (0.9, 200, 0.02)]
    {
        let rate = wrongly_told(alike, n, stalls);
        println!("alike {alike}, {n} values, stalls {stalls}: {rate}");
        assert!((0.02..0.08).contains(&rate), "alike {alike}, {n} values, stalls {stalls}: {rate}");
    }
}

proptest! {
    #[test]
    fn the_tail_falls_and_both_tails_make_one(t in 0.0f64..50.0, more in 0.01f64..5.0, df in 1.0f64..500.0) {
        prop_assert!(tail(t + more, df) <= tail(t, df));
        prop_assert!((tail(t, df) + tail(-t, df) - 1.0).abs() < 1e-12);
        prop_assert!(tail(t, df) <= 0.5 + 1e-12);
    }

    #[test]
    fn a_series_moves_and_scales_with_its_values(
        values in prop::collection::vec(-1e3f64..1e3, LEAST..80), by in -10.0f64..10.0, times in 0.1f64..10.0,
    ) {
        let e = typical(&values).unwrap();
        let other: Vec<f64> = values.iter().map(|v| v * times + by).collect();
        let o = typical(&other).unwrap();
        prop_assert!((o.value - (e.value * times + by)).abs() < 1e-6);
        prop_assert!((o.variance - e.variance * times * times).abs() <= 1e-6 * (1.0 + o.variance));
        let (least, most) = (sorted(&values)[0], sorted(&values)[values.len() - 1]);
        prop_assert!(e.variance >= 0.0 && least <= e.value + 1e-9 && e.value <= most + 1e-9);
    }

    #[test]
    fn sorting_is_the_standard_librarys(values in prop::collection::vec(any::<f64>(), 0..40)) {
        let mut want = values.clone();
        want.sort_by(f64::total_cmp);
        let bits = |v: &[f64]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&sorted(&values)), bits(&want));
    }

    #[test]
    fn a_median_has_at_most_half_of_the_weight_on_each_side(
        values in prop::collection::vec((-9f64..9.0, 0.0f64..5.0), 1..20),
    ) {
        let all: f64 = values.iter().map(|(_, w)| w).sum();
        let Some(m) = weighted_median(&values) else { return Ok(()) };
        let beyond = |side: fn(f64, f64) -> bool| -> f64 {
            values.iter().filter(|(v, _)| side(*v, m)).map(|(_, w)| w).sum()
        };
        prop_assert!(beyond(|v, m| v < m) <= all / 2.0 + 1e-9 && beyond(|v, m| v > m) <= all / 2.0 + 1e-9);
    }

    #[test]
    fn points_on_a_line_give_that_line(
        x in prop::collection::vec(-1e3f64..1e3, 3..30), slope in -10f64..10.0, at_zero in -1e3f64..1e3,
    ) {
        prop_assume!(sorted(&x)[0] + 1.0 < sorted(&x)[x.len() - 1]);
        let points: Vec<(f64, f64)> = x.iter().map(|x| (*x, at_zero + slope * x)).collect();
        let l = line(&points).unwrap();
        prop_assert!((l.slope.value - slope).abs() < 1e-6 && (l.at_zero - at_zero).abs() < 1e-3);
        prop_assert!(l.r2 > 0.999 || slope.abs() < 1e-3);
        let (zero, steady, _) = steady_line(&points).unwrap();
        prop_assert!((steady - slope).abs() < 1e-6 && (zero - at_zero).abs() < 1e-3);
    }

    /// Benjamini and Hochberg's rule as stated: of the sorted p-values, all up to the last p(k) <= k/m q pass.
    #[test]
    fn false_discovery_is_the_step_up_rule(chances in prop::collection::vec(0.0f64..1.0, 1..30), q in 0.0f64..1.0) {
        let order = sorted(&chances);
        let m = chances.len() as f64;
        let last = order.iter().enumerate().rev().find(|(k, p)| **p <= (k + 1) as f64 / m * q);
        let passes: Vec<bool> = chances.iter().map(|p| last.is_some_and(|(_, most)| p <= most)).collect();
        let near = |x: f64| (x - q).abs() < 1e-12;
        let rates = false_discovery(&chances);
        for (rate, passes) in rates.iter().zip(passes) {
            prop_assert!(near(*rate) || (*rate <= q) == passes);
        }
    }
}
