//! How the next token is chosen: the flags --temp and --seed of the commands that generate tokens.

use super::random::Random;
use anyhow::Result;
use cli::args::{Args, Flag, Usage};
use cli::values::{parsed, whole};
use runner::engine::greedy;

pub const TEMPERATURE: Flag = Flag::value(
    "temp",
    "X",
    "Sampling temperature: 0 selects the most likely token, higher values are more random",
)
.default("0");

/// Chooses tokens.
#[derive(Debug, Clone)]
pub struct Sampling {
    temperature: f64,
    random: Random,
}

impl Sampling {
    /// From --temp and --seed.
    ///
    /// # Errors
    /// A temperature that is none.
    pub fn read(args: &Args) -> Result<Self> {
        let temperature: f64 = args.needed("temp", parsed)?;
        if !temperature.is_finite() || temperature < 0.0 {
            return Err(Usage::new("--temp must be 0 or more").into());
        }
        Ok(Self { temperature, random: Random(args.needed("seed", whole(0, u64::MAX))?) })
    }

    /// The next token: the most likely one, or one drawn from softmax(logits / temperature).
    pub fn choose(&mut self, logits: &[f32]) -> Result<i32> {
        let likeliest = greedy(logits)?;
        if self.temperature == 0.0 {
            return Ok(likeliest);
        }
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: &f32| (f64::from(logit - largest) / self.temperature).exp();
        let mut left = self.random.unit() * logits.iter().map(weight).sum::<f64>();
        for (id, logit) in (0..).zip(logits) {
            left -= weight(logit);
            if left < 0.0 {
                return Ok(id);
            }
        }
        // Rounding left a remainder.
        Ok(likeliest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperature_draws_in_proportion() {
        let logits = [0.0f32, 2.0f32.ln(), f32::MIN, 1.0f32.ln()];
        let at = |temperature| Sampling { temperature, random: Random(1) };
        assert_eq!(at(0.0).choose(&logits).expect("finite"), 1);
        let (mut counts, mut sampling) = ([0; 4], at(1.0));
        for _ in 0..4000 {
            counts[sampling.choose(&logits).expect("finite") as usize] += 1;
        }
        assert!(counts[2] == 0 && (1800..2200).contains(&counts[1]), "{counts:?}");
        assert!((800..1200).contains(&counts[0]) && (800..1200).contains(&counts[3]), "{counts:?}");
        assert!(sampling.choose(&[0.0, f32::NAN]).is_err());
    }
}
