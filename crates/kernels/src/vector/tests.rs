//! Compares every instruction set with the plain versions over lengths with ragged ends.

use super::*;
use crate::Isa;
use proptest::prelude::*;

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available() && *isa != Isa::Scalar)
}

fn numbers(range: std::ops::Range<f32>) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(range, 0..150)
}

/// Equal within `relative` of the larger magnitude, or within `absolute`.
fn close(got: &[f32], want: &[f32], relative: f32, absolute: f32) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let allowed = absolute.max(relative * g.abs().max(w.abs()));
        prop_assert!((g - w).abs() <= allowed || g == w, "element {}: {} instead of {}", i, g, w);
    }
    Ok(())
}

/// Compares a function of `isa` with the scalar one; both fill a slice of length `n`.
macro_rules! compare {
    ($n:expr, $relative:expr, $absolute:expr, $name:ident($($arg:expr),*)) => {
        for isa in isas() {
            let (mut got, mut want) = (vec![9.0f32; $n], vec![9.0f32; $n]);
            $name(isa, $($arg,)* &mut got);
            scalar::$name($($arg,)* &mut want);
            close(&got, &want, $relative, $absolute)?;
        }
    };
}

proptest! {
    #[test]
    fn activations(x in numbers(-120.0..120.0)) {
        let n = x.len();
        compare!(n, 1e-6, 1e-35, silu(&x));
        compare!(n, 1e-6, 1e-35, sigmoid(&x));
        compare!(n, 1e-6, 0.0, tanh(&x));
        let small: Vec<_> = x.iter().map(|x| x / 1000.0).collect();
        compare!(n, 1e-6, 0.0, tanh(&small));
    }

    #[test]
    fn gelu_rounds_as_the_table(x in numbers(-14.0..14.0)) {
        // A value near the midpoint between two f16 values may round the other way.
        compare!(x.len(), 1.0 / 1024.0, 6e-8, gelu(&x));
        compare!(x.len(), 1.0 / 1024.0, 1e-6, glu(Glu::Gelu, &x, &x));
        compare!(x.len(), 1e-6, 1e-35, glu(Glu::Silu, &x, &x));
    }

    #[test]
    fn arithmetic(x in numbers(-9.0..9.0), factor in -3.0f32..3.0) {
        let b: Vec<_> = x.iter().map(|x| x * 0.7 + 11.0).collect();
        let n = x.len();
        compare!(n, 0.0, 0.0, add(&x, &b));
        compare!(n, 0.0, 0.0, mul(&x, &b));
        compare!(n, 0.0, 0.0, div(&x, &b));
        compare!(n, 0.0, 0.0, sqr(&x));
        compare!(n, 1e-6, 1e-6, scale(&x, factor, 0.5));
        for isa in isas() {
            prop_assert!((sum(isa, &x) - scalar::sum(&x)).abs() <= 1e-5 * n as f32);
            let mean_of = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n.max(1) as f64;
            prop_assert!((f64::from(mean(isa, &x)) - mean_of).abs() <= 1e-5);
        }
    }

    #[test]
    fn a_norm_from_its_parts_is_the_norm(x in numbers(-9.0..9.0)) {
        let n = x.len();
        for isa in isas().chain([Isa::Scalar]) {
            let (mut squares, mut root, mut parts, mut norm) = (vec![0.0; n], [0.0], vec![0.0; n], vec![0.0; n]);
            sqr(isa, &x, &mut squares);
            sqrt(&[mean(isa, &squares) + 1e-5], &mut root);
            parts.iter_mut().zip(&x).for_each(|(y, x)| *y = x / root[0]);
            rms_norm(isa, &x, None, 1e-5, &mut norm);
            // Squares are rounded, and so is the reciprocal.
            close(&parts, &norm, 2e-6, 1e-12)?;
        }
    }

    #[test]
    fn roots_are_rounded_to_the_nearest(x in numbers(0.0..9e9)) {
        let mut got = vec![9.0; x.len()];
        sqrt(&x, &mut got);
        for (x, y) in x.iter().zip(got) {
            prop_assert_eq!(y, f64::from(*x).sqrt() as f32);
        }
    }

    #[test]
    fn norms_and_softmax(x in numbers(-9.0..9.0), factor in 0.1f32..3.0, closed in prop::bits::u64::ANY) {
        let n = x.len();
        let weight: Vec<_> = x.iter().map(|x| 1.0 - x / 8.0).collect();
        compare!(n, 1e-5, 1e-6, rms_norm(&x, None, 1e-5));
        compare!(n, 1e-5, 1e-6, rms_norm(&x, Some(&weight), 1e-5));
        compare!(n, 2e-6, 1e-12, softmax(&x, None, factor));
        let open = |i: usize| closed >> (i % 64) & 1 == 0;
        let mask: Vec<_> = (0..n).map(|i| if open(i) { 0.0 } else { f32::NEG_INFINITY }).collect();
        compare!(n, 2e-6, 1e-12, softmax(&x, Some(&mask), factor));
    }

    #[test]
    fn rotations(x in numbers(-9.0..9.0), pos in 0i32..100_000, turned in 0usize..80, neox: bool) {
        let pairs = turned.min(x.len() / 2);
        let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
        let angles = RopeAngles { n_dims: 2 * pairs, freq_base: 1e4, freq_scale: 1.0, attn_factor: 1.0, freq_factors: None };
        angles.at(pos, &mut cos, &mut sin);
        let kind = if neox { Rope::Neox } else { Rope::Norm };
        compare!(x.len(), 1e-5, 2e-6, rope(kind, &cos, &sin, &x));
    }

    #[test]
    fn conversions_are_exact(x in prop::collection::vec(-70000.0f32..70000.0, 0..100), small: bool) {
        let x: Vec<_> = x.iter().map(|x| if small { x * 1e-9 } else { *x }).collect();
        let (mut want, mut got) = (vec![0u16; x.len()], vec![0u16; x.len()]);
        let (mut wide, mut wide_want) = (vec![0.0f32; x.len()], vec![0.0f32; x.len()]);
        scalar::f32_to_f16(&x, &mut want);
        for isa in isas() {
            f32_to_f16(isa, &x, &mut got);
            prop_assert_eq!(&got, &want);
            f16_to_f32(isa, &want, &mut wide);
            scalar::f16_to_f32(&want, &mut wide_want);
            prop_assert_eq!(&wide, &wide_want);
            bf16_to_f32(isa, &want, &mut wide);
            scalar::bf16_to_f32(&want, &mut wide_want);
            prop_assert!(wide.iter().zip(&wide_want).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn sorted_indices(x in numbers(-3.0..3.0)) {
        let x: Vec<_> = x.iter().map(|x| x.round()).collect();
        let mut ids = vec![-1; x.len()];
        argsort_descending(&x, &mut ids);
        for pair in ids.windows(2) {
            let (a, b) = (pair[0] as usize, pair[1] as usize);
            prop_assert!(x[a] > x[b] || (x[a] == x[b] && a < b));
        }
    }
}

#[test]
fn exponentials_of_extremes() {
    let x = [f32::NEG_INFINITY, -1e30, -88.0, 0.0];
    for isa in isas() {
        let mut y = [9.0; 4];
        softmax(isa, &x, None, 1.0, &mut y);
        assert_eq!(y, [0.0, 0.0, 0.0, 1.0]);
        softmax(isa, &x[..1], None, 1.0, &mut y[..1]);
        assert_eq!(y[0], 0.0);
    }
}

#[test]
fn gelu_by_hand() {
    // GELU(1) = 0.841192 in the tanh form; the nearest f16 is 0.84130859375.
    for isa in isas().chain([Isa::Scalar]) {
        let mut y = [9.0; 4];
        gelu(isa, &[1.0, -10.0, 10.5, 0.0], &mut y);
        assert_eq!(y, [0.841_308_6, 0.0, 10.5, 0.0]);
    }
}

#[test]
fn rope_by_hand() {
    // Position 1, base 10000, four dimensions: angles 1 and 0.01.
    let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
    let angles =
        RopeAngles { n_dims: 4, freq_base: 1e4, freq_scale: 1.0, attn_factor: 1.0, freq_factors: None };
    angles.at(1, &mut cos, &mut sin);
    assert_eq!((cos[0], sin[0]), (1f32.cos(), 1f32.sin()));
    assert!((sin[1] - 0.01f32.sin()).abs() < 1e-8);
    let angles = RopeAngles { freq_scale: 0.5, freq_factors: Some(&[2.0, 1.0]), ..angles };
    angles.at(4, &mut cos, &mut sin);
    assert_eq!(cos[0], 1f32.cos());
    let mut y = [0.0; 5];
    rope(Isa::best(), Rope::Norm, &[0.0, 1.0], &[1.0, 0.0], &[1.0, 2.0, 3.0, 4.0, 5.0], &mut y);
    assert_eq!(y, [-2.0, 1.0, 3.0, 4.0, 5.0]);
    rope(Isa::best(), Rope::Neox, &[0.0, 1.0], &[1.0, 0.0], &[1.0, 2.0, 3.0, 4.0, 5.0], &mut y);
    assert_eq!(y, [-3.0, 2.0, 1.0, 4.0, 5.0]);
}
