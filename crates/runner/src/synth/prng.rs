//! Random numbers by position: the n-th number of a stream costs the same for every n, so that any division of
//! the work among threads gives the same weights.

/// SplitMix64 (Steele, Lea, Flood 2014): its state is a counter, so it can be addressed by position.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    start: u64,
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Stream {
    /// The stream with this name for this seed (the name is hashed with 64-bit FNV-1a).
    pub fn new(seed: u64, name: &str) -> Self {
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3));
        Self { start: mix(mix(seed.wrapping_add(STEP)) ^ hash) }
    }

    /// The number at `position`.
    pub fn bits(self, position: u64) -> u64 {
        mix(self.start.wrapping_add(position.wrapping_add(1).wrapping_mul(STEP)))
    }

    /// An approximately normal number at `position`: mean 0, deviation 1, at most 4.9 in magnitude. The sum of
    /// the eight bytes of one random word; computed in integers up to the last step, hence equal on every
    /// machine.
    pub fn normal(self, position: u64) -> f32 {
        const PAIRS: u64 = 0x00ff_00ff_00ff_00ff;
        // Each byte is uniform on 0..=255: mean 127.5, variance (256^2-1)/12.
        const MEAN: f32 = 8.0 * 127.5;
        const DEVIATION: f32 = 209.021_53;
        let word = self.bits(position);
        let pairs = (word & PAIRS) + ((word >> 8) & PAIRS);
        let sum = pairs.wrapping_mul(0x0001_0001_0001_0001) >> 48;
        (sum as u32 as f32 - MEAN) * (1.0 / DEVIATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // The published first outputs for seed 1234567.
        let stream = Stream { start: 1_234_567 };
        let first: Vec<u64> = (0..3).map(|i| stream.bits(i)).collect();
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn normals_have_mean_0_deviation_1_and_normal_tails() {
        let stream = Stream::new(1, "x");
        let n = 200_000;
        let values: Vec<f64> = (0..n).map(|i| f64::from(stream.normal(i))).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        let within_one = values.iter().filter(|v| v.abs() < 1.0).count() as f64 / n as f64;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
        assert!((within_one - 0.683).abs() < 0.02, "{within_one}");
    }

    #[test]
    fn name_and_seed_change_the_stream() {
        let a = Stream::new(1, "a").bits(0);
        assert_ne!(a, Stream::new(1, "b").bits(0));
        assert_ne!(a, Stream::new(2, "a").bits(0));
    }
}
