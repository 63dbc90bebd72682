//! How a layer hands the times of kernels to a recorder: it calls a function that does nothing, where the recorder
//! has a probe. Without a recorder, nothing is kept and nothing is written. For all layers; uses the C library only
//! through functions that each of them has.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(test, allow(clippy::indexing_slicing, reason = "a test program"))]

mod clock;
mod lock;
mod names;
mod process;
mod ticks;

pub use clock::{ClockMap, monotonic};
pub use lock::Lock;
pub use names::{Handles, NAME, Names};
pub use process::is_child;
pub use ticks::Ticks;

use core::sync::atomic::{AtomicU64, Ordering};

/// The times of one kernel, ns of CLOCK_MONOTONIC, as far as the error says. Its layout is that of `struct gpu_kernel` in
/// src/bpf/event.h of the recorder.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelTimes {
    /// When the host called the function that enqueues it.
    pub host: u64,
    pub queued: u64,
    pub submitted: u64,
    pub started: u64,
    pub ended: u64,
    /// Address of its name, zero-terminated; 0: not known. It never changes.
    pub name: u64,
    /// Identifies the queue.
    pub queue: u64,
    /// The thread that enqueued it.
    pub tid: u32,
    /// The times after `host` may be wrong by this much, all by the same amount.
    pub error_ns: u32,
}

/// Maximum number of kernels in one call of [`profinfer_gpu_kernels`]; the recorder reads no more.
pub const BATCH: usize = 256;

/// Kernels handed over. Keeps the function below from being removed or merged with another.
static HANDED: AtomicU64 = AtomicU64::new(0);

/// Where times come from, as the recorder numbers it.
pub const OPENCL: u64 = 0;
pub const VULKAN: u64 = 1;
pub const CUPTI: u64 = 2;
/// CUPTI, of kernels that a CUDA graph has launched: the node that they belong to is not known.
pub const CUPTI_GRAPH: u64 = 3;
/// A name, instead of kernels: its text, as long as a chunk, with its address from the second byte of the source on.
const NAMED: u64 = 4;

/// Why kernels have no times, in the order of the recorder's `REASONS` (src/recorder/device_kernels.rs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The device did not execute them, or the driver does not give their times.
    Failed,
    /// Their queue has no times.
    Untimed,
    /// More were on their way than the layer keeps.
    NoRoom,
    /// The program ended, or gave up the device, before the host had seen their end.
    Unended,
    /// They are in a secondary command buffer.
    Secondary,
    /// Their command buffer was submitted again before the host had seen its end.
    Resubmitted,
}

const REASONS: usize = 6;

/// What a recorder probes: `n` kernels, at most [`BATCH`], and the number whose times were lost since the last call, for
/// the reason whose number, from 1, is the second byte of `source`. If that is [`NAMED`], `kernels` is a name. The memory
/// behind the last kernel can be read up to a multiple of four.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn profinfer_gpu_kernels(kernels: *const KernelTimes, n: u64, lost: u64, source: u64) -> u64 {
    // An instruction that the operating system emulates: the cheapest place for a probe.
    // SAFETY: it does nothing.
    unsafe { core::arch::asm!("nop", options(nomem, nostack, preserves_flags)) };
    core::hint::black_box(kernels);
    HANDED.fetch_add(n.wrapping_add(lost).wrapping_add(source), Ordering::Relaxed)
}

/// Kernels that the recorder reads at once (src/bpf/event.h, KERNELS_CHUNK).
const CHUNK: usize = 4;
const _: () = assert!(CHUNK * size_of::<KernelTimes>() == NAME);

const NONE: KernelTimes = KernelTimes {
    host: 0,
    queued: 0,
    submitted: 0,
    started: 0,
    ended: 0,
    name: 0,
    queue: 0,
    tid: 0,
    error_ns: 0,
};

/// Kernels of one source on the way to the recorder. All zeros at first, so that it takes no room in a file.
pub struct Batch<const SOURCE: u64> {
    kernels: [KernelTimes; BATCH],
    len: usize,
    lost: [u64; REASONS],
    /// Names that were handed over: a program that ends right after its kernels cannot be asked for theirs.
    named: Handles,
}

impl<const SOURCE: u64> Batch<SOURCE> {
    pub const fn new() -> Self {
        Batch { kernels: [NONE; BATCH], len: 0, lost: [0; REASONS], named: Handles::new() }
    }

    /// The kernel's name is 0, or of [`Names`].
    pub fn push(&mut self, kernel: KernelTimes) {
        self.hand_over_name(kernel.name);
        if let Some(place) = self.kernels.get_mut(self.len) {
            *place = kernel;
            self.len += 1;
        }
        if self.len == BATCH {
            self.hand_over();
        }
    }

    /// The times of `n` kernels cannot be had.
    pub fn lose(&mut self, n: usize, why: Reason) {
        if let Some(lost) = self.lost.get_mut(why as usize) {
            *lost = lost.saturating_add(n as u64);
        }
    }

    fn hand_over_name(&mut self, name: u64) {
        if name != 0 && self.named.get(name).is_none() {
            self.named.set(name, 1);
            profinfer_gpu_kernels(name as *const KernelTimes, CHUNK as u64, 0, NAMED | name << 8);
        }
    }

    pub fn hand_over(&mut self) {
        let kernels = self.kernels.as_ptr();
        for (why, lost) in self.lost.iter_mut().enumerate().filter(|(_, lost)| **lost > 0) {
            // The recorder counts in 32 bits.
            let some = (*lost).min(u64::from(u32::MAX));
            profinfer_gpu_kernels(kernels, 0, some, SOURCE | (why as u64 + 1) << 8);
            *lost -= some;
        }
        if self.len > 0 {
            // The recorder cannot read a page that was never written, and it reads whole chunks.
            let end = self.len.next_multiple_of(CHUNK);
            self.kernels.iter_mut().take(end).skip(self.len).for_each(|unused| *unused = NONE);
            profinfer_gpu_kernels(kernels, self.len as u64, 0, SOURCE);
            self.len = 0;
        }
    }
}

impl<const SOURCE: u64> Default for Batch<SOURCE> {
    fn default() -> Self {
        Self::new()
    }
}

/// This thread's number in the kernel.
pub fn tid() -> u32 {
    #[cfg(target_arch = "x86_64")]
    const GETTID: i64 = 186;
    #[cfg(target_arch = "aarch64")]
    const GETTID: i64 = 178;
    unsafe extern "C" {
        fn syscall(number: i64, ...) -> i64;
    }
    // SAFETY: gettid has no argument and cannot fail.
    unsafe { syscall(GETTID) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_recorder_reads_behind_the_last_kernel_has_been_written() {
        let mut batch = Batch::<OPENCL>::new();
        let kernel = KernelTimes { host: 7, ..NONE };
        (0..6).for_each(|_| batch.push(kernel));
        batch.hand_over();
        batch.push(kernel);
        batch.hand_over();
        let hosts: Vec<u64> = batch.kernels.iter().take(6).map(|k| k.host).collect();
        assert_eq!(hosts, [7, 0, 0, 0, 7, 7]);
    }
}
