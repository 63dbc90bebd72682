//! Runs work on several cores at the same time, timed in windows common to all.

use super::Effort;
use crate::pin;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Condvar, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Time from the last thread's arrival to the start of a window, for waking the others.
const LEAD: Duration = Duration::from_micros(100);

/// Calls `work(thread, 0)`, `work(thread, 1)` and so on, on one thread for each of `cpus`; `work` returns the
/// units it did. The result is units per second of all threads together, in the best window. A thread that is
/// late or preempted counts less: rates of intervals that do not overlap are never added.
///
/// # Errors
/// That many threads could not be started.
pub(super) fn best_rate(
    cpus: &[usize],
    effort: Effort,
    work: impl Fn(usize, usize) -> f64 + Sync,
) -> io::Result<f64> {
    let gate = Gate::default();
    let (barrier, clock) =
        (Barrier::new(cpus.len()), Clock { zero: Instant::now(), start: AtomicU64::new(0) });
    let rates = Mutex::new(vec![0.0; effort.windows]);
    std::thread::scope(|scope| {
        for (thread, cpu) in cpus.iter().enumerate() {
            let (barrier, clock, rates, work, gate) = (&barrier, &clock, &rates, &work, &gate);
            let started = Builder::new().spawn_scoped(scope, move || {
                // If a thread is missing, the others would wait for it at the barrier.
                if !gate.wait() {
                    return;
                }
                // If pinning is refused, the scheduler places the threads.
                pin::stay_on(*cpu);
                // Warms up memory, code and clock frequency.
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
            if let Err(e) = started {
                gate.open(false);
                return Err(e);
            }
        }
        gate.open(true);
        Ok(())
    })?;
    Ok(rates.into_inner().unwrap_or_default().into_iter().fold(0.0, f64::max))
}

/// Where threads wait until it is known whether all were started.
#[derive(Default)]
struct Gate(Mutex<Option<bool>>, Condvar);

impl Gate {
    fn open(&self, complete: bool) {
        if let Ok(mut state) = self.0.lock() {
            *state = Some(complete);
        }
        self.1.notify_all();
    }

    /// Whether all threads were started.
    fn wait(&self) -> bool {
        let Ok(state) = self.0.lock() else { return false };
        self.1.wait_while(state, |state| state.is_none()).is_ok_and(|state| *state == Some(true))
    }
}

/// The time base shared by all threads.
struct Clock {
    zero: Instant,
    /// Start of the window, in nanoseconds from zero.
    start: AtomicU64,
}

impl Clock {
    fn start_soon(&self) {
        let at = self.zero.elapsed() + LEAD;
        self.start.store(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Units per second from the start of the window to this thread's last step, which begins within it.
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
