//! Limits on a recorder's CPU time and memory.

use std::time::{Duration, Instant};

/// Interval between checks.
const LOOK: Duration = Duration::from_secs(1);
/// Consecutive checks above the limit that end a recorder: its start or a burst may take more.
const PATIENCE: u32 = 10;

/// The limits, and the last values.
pub struct Limits {
    cpu: f64,
    memory: u64,
    looked: Instant,
    cpu_us: u64,
    above: u32,
}

impl Limits {
    /// `cpu`: share of a core; `memory`: bytes.
    pub fn new(cpu: f64, memory: u64) -> Limits {
        Limits { cpu, memory, looked: Instant::now(), cpu_us: 0, above: 0 }
    }

    /// Given the process's CPU time (user and system, µs) and memory (bytes): the exceeded limit, as text.
    pub fn exceeded(&mut self, cpu_us: (u64, u64), memory: impl FnOnce() -> u64) -> Option<String> {
        let passed = self.looked.elapsed();
        if passed < LOOK {
            return None;
        }
        self.look(passed, cpu_us.0 + cpu_us.1, memory())
    }

    fn look(&mut self, passed: Duration, cpu_us: u64, memory: u64) -> Option<String> {
        let share = cpu_us.saturating_sub(self.cpu_us) as f64 / 1e6 / passed.as_secs_f64().max(1e-9);
        (self.looked, self.cpu_us) = (Instant::now(), cpu_us);
        self.above = if share > self.cpu { self.above + 1 } else { 0 };
        if memory > self.memory {
            return Some(format!(
                "it uses {} MB of memory, the limit is {} MB (memory)",
                memory >> 20,
                self.memory >> 20
            ));
        }
        (self.above >= PATIENCE).then(|| {
            format!(
                "it uses {:.0} % of a core, the limit is {:.0} % (cpu): record less, or less often",
                share * 100.0,
                self.cpu * 100.0
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_a_habit_is_not() {
        let mut limits = Limits::new(0.25, 100);
        let mut cpu = 0;
        let mut look = |share: f64, memory| {
            cpu += (share * 1e6) as u64;
            limits.look(Duration::from_secs(1), cpu, memory)
        };
        for _ in 0..5 {
            assert!((0..9).all(|_| look(0.9, 100).is_none()));
            assert_eq!(look(0.2, 100), None);
        }
        assert!((0..9).all(|_| look(0.3, 1).is_none()));
        assert!(look(0.3, 1).expect("a habit").contains("30 % of a core, the limit is 25 %"));
        assert!(look(0.0, 101).expect("memory").contains("memory"));
    }
}
