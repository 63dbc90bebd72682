//! Waiting that is fast on an idle machine and cheap on a busy one: spin briefly, then sleep in the kernel.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use rustix::thread::futex;

/// How long to spin before sleeping: about the cost of one sleep and wake-up, so that a wrong guess costs at most
/// twice the better choice.
const SPIN: Duration = Duration::from_micros(20);

/// A value on its own cache line, so that threads waiting for it do not slow down writers of its neighbours.
#[repr(align(128))]
#[derive(Default)]
pub struct CachePadded<T>(pub T);

/// Rounds of `spin_loop` that last about `SPIN` on this machine.
pub fn measure_spins() -> u32 {
    const ROUNDS: u32 = 512;
    let lap = || {
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| spin_loop());
        start.elapsed()
    };
    // The fastest lap is one that nothing interrupted.
    let best = (0..8).map(|_| lap()).min().unwrap_or(SPIN).max(Duration::from_nanos(1));
    let spins = SPIN.as_nanos() * u128::from(ROUNDS) / best.as_nanos();
    u32::try_from(spins).unwrap_or(u32::MAX).clamp(1, 1 << 20)
}

/// A number that some threads wait for and others change.
#[derive(Default)]
pub struct Futex {
    value: CachePadded<AtomicU32>,
    /// Threads that sleep or are about to.
    sleepers: CachePadded<AtomicU32>,
}

impl Futex {
    /// The current number.
    pub fn get(&self) -> u32 {
        self.value.0.load(Ordering::Acquire)
    }

    /// Changes the number and wakes all threads that sleep until it changes.
    pub fn set(&self, value: u32) {
        // Sequentially consistent here and in `wait_while`: either this thread sees the sleeper, or the sleeper
        // sees the new number before it sleeps.
        self.value.0.store(value, Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            wake_all(&self.value.0);
        }
    }

    /// Returns once the number is not `old`. Spins for `spins` rounds before sleeping.
    #[inline]
    pub fn wait_while(&self, old: u32, spins: u32) {
        for _ in 0..spins {
            if self.get() != old {
                return;
            }
            spin_loop();
        }
        self.sleep_while(old);
    }

    #[cold]
    fn sleep_while(&self, old: u32) {
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        while self.value.0.load(Ordering::SeqCst) == old {
            wait(&self.value.0, old);
        }
        self.sleepers.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sleeps while the number is `old`; may return early.
#[cfg(target_os = "linux")]
fn wait(word: &AtomicU32, old: u32) {
    // Any failure (changed number, signal) means: check again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, old, None);
}

#[cfg(target_os = "linux")]
fn wake_all(word: &AtomicU32) {
    // Fails only for an address without memory.
    let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
}

#[cfg(not(target_os = "linux"))]
fn wait(_: &AtomicU32, _: u32) {
    std::thread::sleep(Duration::from_micros(50));
}

#[cfg(not(target_os = "linux"))]
fn wake_all(_: &AtomicU32) {}

/// A barrier at which all threads of a group wait for each other.
#[derive(Default)]
pub struct Barrier {
    arrived: CachePadded<AtomicU32>,
    phase: Futex,
}

impl Barrier {
    /// Waits for the `n` threads of the group; the last one to arrive runs `last` before any continues.
    #[inline]
    pub fn wait(&self, n: u32, spins: u32, last: impl FnOnce()) {
        let phase = self.phase.get();
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 < n {
            return self.phase.wait_while(phase, spins);
        }
        self.arrived.0.store(0, Ordering::Relaxed);
        last();
        self.phase.set(phase.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn nobody_passes_a_barrier_before_all_have_come() {
        const THREADS: u32 = 5;
        const ROUNDS: usize = 300;
        // With and without sleeping in between, on few cores and many.
        for spins in [0, 1 << 16] {
            let (barrier, came, lasts) = (Barrier::default(), AtomicUsize::new(0), AtomicUsize::new(0));
            std::thread::scope(|s| {
                for _ in 0..THREADS {
                    s.spawn(|| {
                        for round in 1..=ROUNDS {
                            came.fetch_add(1, Ordering::Relaxed);
                            barrier.wait(THREADS, spins, || {
                                lasts.fetch_add(1, Ordering::Relaxed);
                            });
                            assert!(came.load(Ordering::Relaxed) >= round * THREADS as usize);
                            assert!(lasts.load(Ordering::Relaxed) >= round);
                        }
                    });
                }
            });
            assert_eq!(lasts.into_inner(), ROUNDS);
        }
    }
}
