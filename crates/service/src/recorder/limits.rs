//! Limits on a recorder's CPU time and memory.

use std::time::{Duration, Instant};

/// Interval between checks.
const LOOK: Duration = Duration::from_secs(1);
/// Consecutive checks above the limit that end a recorder: its start or a burst may take more.
const PATIENCE: u32 = 10;

/// The limit that a recorder exceeds. Memory in bytes, CPU time as a share of a core.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Exceeded {
    #[error("it uses {} MB of memory, the limit is {} MB (memory)", used >> 20, limit >> 20)]
    Memory { used: u64, limit: u64 },
    #[error(
        "it uses {:.0} % of a core, the limit is {:.0} % (cpu): record less, or less often",
        used * 100.0,
        limit * 100.0
    )]
    Cpu { used: f64, limit: f64 },
}

/// The limits, and the last values.
pub struct ServiceLimits {
    cpu: f64,
    memory: u64,
    looked: Instant,
    cpu_us: u64,
    above: u32,
}

impl ServiceLimits {
    /// `cpu`: share of a core; `memory`: bytes.
    pub fn new(cpu: f64, memory: u64) -> ServiceLimits {
        ServiceLimits { cpu, memory, looked: Instant::now(), cpu_us: 0, above: 0 }
    }

    /// Given the process's CPU time (user and system, µs) and memory (bytes): the exceeded limit.
    pub fn exceeded(&mut self, cpu_us: (u64, u64), memory: impl FnOnce() -> u64) -> Option<Exceeded> {
        let passed = self.looked.elapsed();
        if passed < LOOK {
            return None;
        }
        self.look(passed, cpu_us.0 + cpu_us.1, memory())
    }

    fn look(&mut self, passed: Duration, cpu_us: u64, memory: u64) -> Option<Exceeded> {
        let share = cpu_us.saturating_sub(self.cpu_us) as f64 / 1e6 / passed.as_secs_f64().max(1e-9);
        (self.looked, self.cpu_us) = (Instant::now(), cpu_us);
        self.above = if share > self.cpu { self.above + 1 } else { 0 };
        if memory > self.memory {
            return Some(Exceeded::Memory { used: memory, limit: self.memory });
        }
        (self.above >= PATIENCE).then_some(Exceeded::Cpu { used: share, limit: self.cpu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_a_habit_is_not() {
        let mut limits = ServiceLimits::new(0.25, 100);
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
        assert!(look(0.3, 1).expect("a habit").to_string().contains("30 % of a core, the limit is 25 %"));
        assert!(look(0.0, 101).expect("memory").to_string().contains("memory"));
    }
}
