//! How well a model predicts a text: its perplexity, and its divergence from a reference model.
//!
//! The figures are those of llama.cpp's llama-perplexity: the tokens are cut into chunks, each starts with an empty
//! context, and only the second half of a chunk counts, so that every token has some context before it.

use crate::engine::EngineError;
use common::order;
use serde::Serialize;

/// Fewest chunks of a text: with one, the figure would say more about the place in the text than about the model.
const LEAST_CHUNKS: usize = 2;

/// Quantiles of the divergence, in percent.
const QUANTILES: [f64; 9] = [99.9, 99.0, 95.0, 90.0, 50.0, 10.0, 5.0, 1.0, 0.1];

/// A text has too few tokens.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{tokens} tokens are too few: {} are needed for chunks of {context}; give a longer text or a smaller -c",
    .context.saturating_mul(LEAST_CHUNKS)
)]
pub struct TooShort {
    tokens: usize,
    context: usize,
}

/// The tokens of a text in chunks. An incomplete chunk at the end is left out.
#[derive(Debug)]
pub struct TextChunks {
    tokens: Vec<i32>,
    context: usize,
    /// The token that replaces the first one of each chunk, if the model begins a text with one.
    begin: Option<i32>,
    count: usize,
}

/// A chunk to be scored.
#[derive(Debug, PartialEq, Eq)]
pub struct TextChunk<'t> {
    /// Tokens that only fill the context; none of them is scored.
    pub before: Vec<i32>,
    /// Tokens whose successors are predicted, and those successors.
    pub scored: &'t [i32],
    pub next: &'t [i32],
}

impl TextChunks {
    /// Chunks of `context` tokens (at least 4), at most `most` of them.
    ///
    /// # Errors
    /// There are too few tokens.
    pub fn new(tokens: Vec<i32>, context: usize, begin: Option<i32>, most: usize) -> Result<Self, TooShort> {
        let context = context.max(4);
        if tokens.len() / context < LEAST_CHUNKS {
            return Err(TooShort { tokens: tokens.len(), context });
        }
        let count = (tokens.len() / context).min(most.max(1));
        Ok(Self { tokens, context, begin, count })
    }

    /// Number of chunks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tokens of the complete text.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens of a chunk.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The chunks in order.
    pub fn iter(&self) -> impl Iterator<Item = TextChunk<'_>> {
        self.tokens.chunks_exact(self.context).take(self.count).map(|chunk| {
            let (before, rest) = chunk.split_at(self.context / 2);
            let mut before = before.to_vec();
            if let (Some(begin), Some(first)) = (self.begin, before.first_mut()) {
                *first = begin;
            }
            let (scored, next) = (rest.split_last().map_or(&[][..], |(_, scored)| scored), rest.get(1..));
            TextChunk { before, scored, next: next.unwrap_or_default() }
        })
    }
}

/// What the logits of one position say.
#[derive(Debug, Clone, Copy)]
struct LogitRow<'l> {
    logits: &'l [f32],
    /// Logarithm of the sum of their exponentials.
    log_sum: f64,
}

impl<'l> LogitRow<'l> {
    fn new(logits: &'l [f32]) -> Result<Self, EngineError> {
        let most = logits.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        let sum: f64 = logits.iter().map(|v| f64::from((v - most).exp())).sum();
        let log_sum = f64::from(most) + sum.ln();
        if log_sum.is_finite() { Ok(Self { logits, log_sum }) } else { Err(EngineError::NotFinite) }
    }

    /// Negative logarithm of a token's probability.
    fn loss(&self, token: i32) -> Result<f64, EngineError> {
        let at = usize::try_from(token).ok().and_then(|i| self.logits.get(i));
        let vocab = self.logits.len();
        Ok(self.log_sum - f64::from(*at.ok_or(EngineError::Token { token, vocab })?))
    }

    /// The first of the most likely tokens.
    fn top(&self) -> Option<usize> {
        let most = self.logits.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        self.logits.iter().position(|v| *v == most)
    }

    /// Kullback-Leibler divergence of another distribution from this one, nats.
    fn divergence(&self, other: &Self) -> f64 {
        let pairs = self.logits.iter().zip(other.logits);
        pairs
            .map(|(a, b)| {
                let log_p = f64::from(*a) - self.log_sum;
                // An exponential of 32 bits is several times faster, and exact enough as a weight.
                let p = f64::from((log_p as f32).exp());
                if p > 0.0 { p * (log_p - f64::from(*b) + other.log_sum) } else { 0.0 }
            })
            .sum()
    }
}

/// The figures of one position.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PositionScore {
    /// Negative logarithm of the probability of the token that follows.
    loss: f64,
    /// The same of the reference; 0 without one, like the next two.
    reference_loss: f64,
    divergence: f64,
    same_top: bool,
}

impl PositionScore {
    fn new(logits: &[f32], reference: Option<&[f32]>, next: i32) -> Result<Self, EngineError> {
        let row = LogitRow::new(logits)?;
        let loss = row.loss(next)?;
        let Some(reference) = reference else { return Ok(Self { loss, ..Self::default() }) };
        let reference = LogitRow::new(reference)?;
        let divergence = reference.divergence(&row);
        if !divergence.is_finite() {
            return Err(EngineError::NotFinite);
        }
        let same_top = row.top() == reference.top();
        Ok(Self { loss, reference_loss: reference.loss(next)?, divergence, same_top })
    }
}

/// Appends the figures of consecutive positions, whose logits are one row after the other, computed by `threads`
/// threads.
///
/// # Errors
/// A logit is not finite, or a token that follows is not in the vocabulary.
pub fn score(
    logits: &[f32],
    reference: Option<&[f32]>,
    next: &[i32],
    threads: usize,
    out: &mut Vec<PositionScore>,
) -> Result<(), EngineError> {
    let vocab = (logits.len() / next.len().max(1)).max(1);
    let share = next.len().div_ceil(threads.max(1)).max(1);
    let of = |i: usize, token: i32| {
        let part = |all| part_of(all, i, vocab);
        PositionScore::new(part(logits), reference.map(part), token)
    };
    let work = |n: usize, part: &[i32]| {
        part.iter().enumerate().map(|(i, token)| of(n * share + i, *token)).collect::<Result<Vec<_>, _>>()
    };
    let work = &work;
    let parts: Vec<Result<Vec<PositionScore>, EngineError>> = std::thread::scope(|scope| {
        let mut parts = next.chunks(share).enumerate();
        let own = parts.next();
        let others: Vec<_> = parts
            .map(|(n, part)| {
                // Without another thread this one does its work.
                let started = std::thread::Builder::new().spawn_scoped(scope, move || work(n, part));
                started.map_err(|_| (n, part))
            })
            .collect();
        let own = own.map(|(n, part)| work(n, part));
        let joined = others.into_iter().map(|started| match started {
            Ok(thread) => thread.join().unwrap_or(Err(EngineError::Empty)),
            Err((n, part)) => work(n, part),
        });
        own.into_iter().chain(joined).collect()
    });
    for part in parts {
        out.append(&mut part?);
    }
    Ok(())
}

fn part_of(all: &[f32], row: usize, vocab: usize) -> &[f32] {
    let from = row.saturating_mul(vocab);
    all.get(from..from.saturating_add(vocab)).unwrap_or_default()
}

/// A mean and its standard error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeanError {
    pub mean: f64,
    pub error: f64,
}

impl MeanError {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count().max(1) as f64;
        let mean = values.clone().sum::<f64>() / count;
        let variance = values.map(|v| (v - mean) * (v - mean)).sum::<f64>() / count;
        Self { mean, error: if count > 1.0 { (variance / (count - 1.0)).sqrt() } else { 0.0 } }
    }

    /// The exponential of this mean.
    fn exp(self) -> Self {
        Self { mean: self.mean.exp(), error: self.mean.exp() * self.error }
    }
}

/// Perplexity of a text.
pub fn perplexity(scores: &[PositionScore]) -> MeanError {
    MeanError::of(scores.iter().map(|s| s.loss)).exp()
}

/// How far a model is from its reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Divergence {
    /// Kullback-Leibler divergence of a position's distribution from that of the reference, nats.
    pub kl: MeanError,
    pub kl_least: f64,
    pub kl_most: f64,
    pub kl_quantiles: Vec<DivergenceQuantile>,
    /// Share of the positions at which both find the same token most likely.
    pub same_top: MeanError,
    pub perplexity: MeanError,
    pub reference_perplexity: MeanError,
    /// The model's perplexity over that of the reference.
    pub perplexity_ratio: MeanError,
}

/// The value that `percent` of the positions do not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DivergenceQuantile {
    pub percent: f64,
    pub kl: f64,
}

/// Summarises positions that were scored with a reference.
pub fn divergence(scores: &[PositionScore]) -> Divergence {
    let mut sorted: Vec<f64> = scores.iter().map(|s| s.divergence).collect();
    order::by_key(&mut sorted, |kl| (order::fraction(*kl), 0));
    let quantile = |percent: f64| DivergenceQuantile { percent, kl: quantile(&sorted, percent / 100.0) };
    Divergence {
        kl: MeanError::of(scores.iter().map(|s| s.divergence)),
        kl_least: quantile(0.0).kl,
        kl_most: quantile(100.0).kl,
        kl_quantiles: QUANTILES.map(quantile).into(),
        same_top: MeanError::of(scores.iter().map(|s| f64::from(u8::from(s.same_top)))),
        perplexity: perplexity(scores),
        reference_perplexity: MeanError::of(scores.iter().map(|s| s.reference_loss)).exp(),
        perplexity_ratio: MeanError::of(scores.iter().map(|s| s.loss - s.reference_loss)).exp(),
    }
}

/// A quantile of sorted values, between two of them in proportion; 0 without values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * sorted.len().saturating_sub(1) as f64;
    let at = |i: usize| sorted.get(i).or(sorted.last()).copied().unwrap_or(0.0);
    let (below, above) = (at(place as usize), at(place as usize + 1));
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_score_their_second_half_and_begin_as_the_model_does() {
        let text = TextChunks::new((10..29).collect(), 8, Some(1), usize::MAX).expect("long enough");
        assert_eq!((text.count(), text.tokens(), text.context()), (2, 19, 8));
        let chunks: Vec<_> = text.iter().collect();
        let second = TextChunk { before: vec![1, 19, 20, 21], scored: &[22, 23, 24], next: &[23, 24, 25] };
        assert_eq!((chunks.len(), &chunks[1]), (2, &second));
        let plain = TextChunks::new((10..29).collect(), 8, None, 1).expect("long enough");
        assert_eq!((plain.count(), plain.iter().next().expect("one").before[0]), (1, 10));
        let odd = TextChunks::new((0..10).collect(), 5, None, 9).expect("long enough");
        let first = TextChunk { before: vec![0, 1], scored: &[2, 3], next: &[3, 4] };
        assert_eq!(odd.iter().next(), Some(first));
    }

    #[test]
    fn too_few_tokens_are_refused_with_the_number_needed() {
        let why = TextChunks::new(vec![7; 1023], 512, None, 9).expect_err("one is missing").to_string();
        assert!(why.starts_with("1023 tokens are too few: 1024 are needed"), "{why}");
        assert!(TextChunks::new(vec![7; 1024], 512, None, 9).is_ok());
    }

    /// Two positions, three tokens; probabilities 1/2, 1/4, 1/4 and 1/8, 1/8, 3/4.
    fn logits(shift: f32) -> Vec<f32> {
        [0.5f32, 0.25, 0.25, 0.125, 0.125, 0.75].iter().map(|p| p.ln() + shift).collect()
    }

    fn scored(logits: &[f32], reference: Option<&[f32]>, next: &[i32], threads: usize) -> Vec<PositionScore> {
        let mut out = Vec::new();
        score(logits, reference, next, threads, &mut out).expect("finite");
        out
    }

    #[test]
    fn perplexity_is_the_inverse_of_the_mean_probability() {
        for threads in [1, 2, 5] {
            let scores = scored(&logits(30.0), None, &[0, 1], threads);
            let found = perplexity(&scores);
            // The geometric mean of 2 and 8; the standard error of two values is half their difference.
            assert!((found.mean - 4.0).abs() < 1e-5, "{found:?}");
            assert!((found.error - 4.0 * 2f64.ln()).abs() < 1e-5, "{found:?}");
        }
    }

    #[test]
    fn divergence_is_that_of_the_definition() {
        let even = [1.0f32; 6];
        let scores = scored(&even, Some(&logits(-3.0)), &[0, 1], 2);
        let d = divergence(&scores);
        let kl = |p: [f64; 3]| p.iter().map(|p| p * (p * 3.0).ln()).sum::<f64>();
        let (first, second) = (kl([0.5, 0.25, 0.25]), kl([0.125, 0.125, 0.75]));
        assert!((d.kl.mean - (first + second) / 2.0).abs() < 1e-6, "{d:?}");
        assert!((d.kl_least - first).abs() < 1e-6 && (d.kl_most - second).abs() < 1e-6, "{d:?}");
        assert!((d.kl_quantiles[4].kl - (first + second) / 2.0).abs() < 1e-6, "{d:?}");
        // The first of equal tokens counts as the top: the same at the first position only.
        assert_eq!(d.same_top, MeanError { mean: 0.5, error: 0.5 });
        assert!((d.perplexity.mean - 3.0).abs() < 1e-6 && (d.reference_perplexity.mean - 4.0).abs() < 1e-5);
        assert!((d.perplexity_ratio.mean - 0.75).abs() < 1e-6, "{d:?}");
        let same = divergence(&scored(&even, Some(&even), &[0, 1], 1));
        assert!(same.kl_most.abs() < 1e-7 && same.same_top.mean == 1.0, "{same:?}");
    }

    #[test]
    fn damaged_logits_and_foreign_tokens_are_errors() {
        let mut out = Vec::new();
        for wrong in [f32::NAN, f32::INFINITY] {
            assert!(matches!(score(&[0.0, wrong], None, &[0], 1, &mut out), Err(EngineError::NotFinite)));
        }
        let unlikely = [0.0, f32::NEG_INFINITY];
        let reference = score(&unlikely, Some(&[0.0, 0.0]), &[0], 1, &mut out);
        assert!(matches!(reference, Err(EngineError::NotFinite)));
        for token in [2, -1] {
            assert!(score(&[0.0, 1.0], None, &[token], 1, &mut out).is_err(), "{token}");
        }
        assert!(out.is_empty());
    }
}
