//! A device's clock that counts in ticks of its own, and starts again from 0 after the largest.

/// Such a clock.
#[derive(Debug, Clone, Copy)]
pub struct Ticks {
    /// ns of one tick.
    period: f32,
    /// The bits that count.
    mask: u64,
}

impl Ticks {
    /// A clock with ticks of `period` ns, that wraps at this many bits; 0 bits: no clock.
    pub fn new(period: f32, bits: u32) -> Ticks {
        Ticks { period, mask: u64::MAX.checked_shr(64 - bits.min(64)).unwrap_or(0) }
    }

    /// Whether there is a clock.
    pub fn count(&self) -> bool {
        self.mask != 0
    }

    /// A time in ns.
    pub fn ns(&self, tick: u64) -> u64 {
        let ticks = tick & self.mask;
        if self.period == 1.0 { ticks } else { (ticks as f64 * f64::from(self.period)) as u64 }
    }

    /// ns from one tick to a later one, between which the clock may have started again. None: the other one is not later.
    pub fn between(&self, from: u64, to: u64) -> Option<u64> {
        let ticks = to.wrapping_sub(from) & self.mask;
        (ticks <= self.mask / 2).then(|| self.ns(ticks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bits_that_count_do() {
        let ticks = Ticks::new(2.0, 36);
        assert_eq!((ticks.ns(5), ticks.ns(5 | 1 << 36)), (10, 10));
        assert_eq!(Ticks::new(1.0, 64).ns(u64::MAX), u64::MAX);
        assert!(ticks.count() && !Ticks::new(1.0, 0).count());
    }

    #[test]
    fn a_clock_that_starts_again_keeps_durations() {
        for bits in [32, 36, 64] {
            let last = u64::MAX >> (64 - bits);
            let ticks = Ticks::new(1.0, bits);
            assert_eq!((ticks.between(last - 9, last), ticks.between(last - 9, 5)), (Some(9), Some(15)));
            assert_eq!(ticks.between(5, 4), None);
        }
    }

    #[test]
    fn without_a_clock_nothing_passes() {
        assert_eq!(Ticks::new(1.0, 0).between(3, 900), Some(0));
    }
}
