//! Work on several cores at once, timed in windows that are the same for all.

use super::super::pool::pin;
use super::Effort;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

/// From the last thread's arrival to a window's beginning: time to wake the others.
const LEAD: Duration = Duration::from_micros(100);

/// Calls `work(thread, 0)`, `work(thread, 1)` and so on, on one thread for each of `cpus`; it returns the units it did.
/// The result is units a second of all threads together, in the best of the windows. A thread that comes late or is
/// kept from running counts less: rates of times that do not overlap are never added.
pub(super) fn best_rate(cpus: &[usize], effort: Effort, work: impl Fn(usize, usize) -> f64 + Sync) -> f64 {
    let (barrier, clock) =
        (Barrier::new(cpus.len()), Clock { zero: Instant::now(), start: AtomicU64::new(0) });
    let rates = Mutex::new(vec![0.0; effort.windows]);
    std::thread::scope(|scope| {
        for (thread, cpu) in cpus.iter().enumerate() {
            let (barrier, clock, rates, work) = (&barrier, &clock, &rates, &work);
            scope.spawn(move || {
                // Where pinning is refused, the scheduler places the threads.
                pin::stay_on(*cpu);
                // Brings memory, code and clock frequency up.
                work(thread, 0);
                let mut step = 1;
                for window in 0..effort.windows {
                    if barrier.wait().is_leader() {
                        clock.start_soon();
                    }
                    barrier.wait();
                    let rate = clock.rate(effort.window, || {
                        step += 1;
                        work(thread, step)
                    });
                    if let Ok(mut rates) = rates.lock() {
                        rates[window] += rate;
                    }
                }
            });
        }
    });
    rates.into_inner().unwrap_or_default().into_iter().fold(0.0, f64::max)
}

/// The time that all threads share.
struct Clock {
    zero: Instant,
    /// When the window begins, in nanoseconds from zero.
    start: AtomicU64,
}

impl Clock {
    fn start_soon(&self) {
        let at = self.zero.elapsed() + LEAD;
        self.start.store(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Units a second from the window's beginning to this thread's last step, which begins within it.
    fn rate(&self, window: Duration, mut work: impl FnMut() -> f64) -> f64 {
        let start = Duration::from_nanos(self.start.load(Ordering::Acquire));
        let since = || self.zero.elapsed().saturating_sub(start);
        while since().is_zero() {
            std::hint::spin_loop();
        }
        let mut units = 0.0;
        loop {
            let before = since();
            if before >= window {
                return units / before.as_secs_f64();
            }
            units += work();
        }
    }
}
