//! Sparklines: a row of values, one character each.

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The same where only ASCII can be shown.
const ASCII: [char; 8] = ['_', '.', '-', '~', '=', '+', '*', '#'];

/// The last `width` values from 0 to the largest of them, and that one; a space where there is no value. `None` if
/// there is none at all.
pub fn spark(values: &[Option<f64>], width: usize, unicode: bool) -> Option<(String, f64)> {
    let shown = values.get(values.len().saturating_sub(width)..).unwrap_or_default();
    let most = shown.iter().flatten().copied().filter(|v| v.is_finite()).reduce(f64::max)?;
    let chars = if unicode { BLOCKS } else { ASCII };
    let char_of = |value: &Option<f64>| match value {
        Some(v) if v.is_finite() => {
            let step = if most > 0.0 { (v / most * chars.len() as f64).ceil() } else { 1.0 };
            // Casting saturates.
            chars.get((step as usize).clamp(1, chars.len()) - 1).copied().unwrap_or(' ')
        }
        _ => ' ',
    };
    Some((shown.iter().map(char_of).collect(), most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_drawn_from_zero_to_the_largest() {
        let values: Vec<Option<f64>> = (1..=8).map(|v| Some(f64::from(v))).collect();
        assert_eq!(spark(&values, 99, true), Some(("▁▂▃▄▅▆▇█".into(), 8.0)));
        assert_eq!(spark(&values, 99, false), Some(("_.-~=+*#".into(), 8.0)));
        assert_eq!(spark(&[Some(100.0), Some(50.0)], 99, true), Some(("█▄".into(), 100.0)));
        // Only the last ones, and their own largest.
        assert_eq!(spark(&[Some(100.0), Some(1.0), Some(2.0)], 2, true), Some(("▄█".into(), 2.0)));
    }

    #[test]
    fn no_value_is_a_gap_and_zero_is_not() {
        assert_eq!(spark(&[Some(2.0), None, Some(0.0)], 9, true), Some(("█ ▁".into(), 2.0)));
        assert_eq!(spark(&[Some(0.0)], 9, true), Some(("▁".into(), 0.0)));
        assert_eq!(spark(&[None, Some(f64::NAN)], 9, true), None);
        assert_eq!(spark(&[], 9, true), None);
    }
}
