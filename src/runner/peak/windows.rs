//! Work on several cores at once, timed in windows.

use super::super::pool::pin;
use super::Effort;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

/// Calls `work(thread, 0)`, `work(thread, 1)` and so on, on one thread for each of `cpus`; it returns the units it did. The result
/// is units a second of all threads together, in the best of the windows.
pub(super) fn best_rate(cpus: &[usize], effort: Effort, work: impl Fn(usize, usize) -> f64 + Sync) -> f64 {
    let barrier = Barrier::new(cpus.len());
    let rates = Mutex::new(vec![0.0; effort.windows]);
    std::thread::scope(|scope| {
        for (thread, cpu) in cpus.iter().enumerate() {
            let (barrier, rates, work) = (&barrier, &rates, &work);
            scope.spawn(move || {
                // Where pinning is refused, the scheduler places the threads.
                pin::stay_on(*cpu);
                // Brings memory, code and clock frequency up.
                work(thread, 0);
                let mut step = 1;
                for window in 0..effort.windows {
                    barrier.wait();
                    let rate = rate(effort, || {
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

/// Units a second over one window.
fn rate(effort: Effort, mut work: impl FnMut() -> f64) -> f64 {
    let start = Instant::now();
    let mut units = 0.0;
    loop {
        units += work();
        let elapsed = start.elapsed();
        if elapsed >= effort.window {
            return units / elapsed.as_secs_f64();
        }
    }
}
