//! A lock without an operating system's help. A child that was forked while another thread held it takes it over: that thread
//! is not in the child.

use crate::{clock, process};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

/// Tries until a thread sleeps, and for how long.
const PATIENCE: u32 = 100;
const SLEEP_NS: i64 = 50_000;

/// A value that one thread at a time may use, for moments only.
pub struct Lock<T> {
    /// Number of the process whose thread holds it; 0: none does.
    held: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `held` admits one thread of a process at a time to the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock { held: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// None: another thread has it.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        let own = process::number();
        let take = |from| self.held.compare_exchange(from, own, Ordering::Acquire, Ordering::Relaxed);
        let taken = take(0).or_else(|holder| if holder == own { Err(holder) } else { take(holder) });
        // Made only where the lock was taken: to drop it gives the lock back.
        taken.is_ok().then(|| Held { lock: self })
    }

    pub fn lock(&self) -> Held<'_, T> {
        unsafe extern "C" {
            fn sched_yield() -> i32;
        }
        let mut tries = 0u32;
        loop {
            if let Some(held) = self.try_lock() {
                return held;
            }
            // To yield is not enough where the holder has a lower real-time priority than this thread.
            if tries < PATIENCE {
                // SAFETY: it has no argument and cannot fail.
                unsafe { sched_yield() };
            } else {
                clock::sleep(SLEEP_NS);
            }
            tries = tries.saturating_add(1);
        }
    }
}

/// The value, until this is dropped.
pub struct Held<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: only the holder of the lock has a reference.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.lock.held.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_try_in_vain_leaves_the_lock_with_its_holder() {
        let lock = Lock::new(1);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_child_of_a_fork_takes_over_what_its_parents_threads_held() {
        static LOCK: Lock<u32> = Lock::new(7);
        let held = LOCK.lock();
        // SAFETY: the child only takes the lock, asks which process it is, and exits.
        let (child, status) = unsafe {
            unsafe extern "C" {
                fn fork() -> i32;
                fn _exit(code: i32) -> !;
                fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
            }
            let child = fork();
            if child == 0 {
                let first = LOCK.try_lock().is_some_and(|value| *value == 7);
                let held = LOCK.lock();
                let second = LOCK.try_lock().is_none();
                drop(held);
                _exit(i32::from(!(first && second && process::is_child())));
            }
            let mut status = -1;
            (waitpid(child, &raw mut status, 0), status)
        };
        assert!(child > 0);
        assert_eq!(status, 0, "the child did not get the lock");
        assert!(LOCK.try_lock().is_none() && !process::is_child(), "the parent still has it");
        drop(held);
        assert!(LOCK.try_lock().is_some());
    }

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let lock = Lock::new((0u64, 0u64));
        std::thread::scope(|all| {
            for _ in 0..4 {
                all.spawn(|| {
                    for _ in 0..20_000 {
                        let mut held = lock.lock();
                        let (a, b) = *held;
                        assert_eq!(a, b);
                        held.0 = a + 1;
                        held.1 = core::hint::black_box(b + 1);
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (80_000, 80_000));
    }
}
