//! A thread of the test that disturbs what is recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Runs this thread (0: the calling one) on one CPU only.
pub fn pin(tid: u32, cpu: usize) {
    // SAFETY: an all-zero set is valid; the kernel reads the given number of bytes.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(tid as i32, size_of_val(&set), &raw const set)
    };
    assert_eq!(done, 0, "CPU {cpu} for {tid}");
}

/// A thread that works on a CPU until it is dropped, with pauses. It comes before all threads of normal priority:
/// whoever runs there when a pause ends is preempted by it, whatever else runs on the machine.
pub struct Busy {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    pub fn start(name: &str, cpu: usize, work: Duration, pause: Duration) -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let run = move || {
            pin(0, cpu);
            come_first();
            while !told.load(Ordering::Relaxed) {
                let begin = Instant::now();
                while begin.elapsed() < work {
                    std::hint::spin_loop();
                }
                thread::sleep(pause);
            }
        };
        Busy { stop, thread: Some(thread::Builder::new().name(name.into()).spawn(run).expect("a thread")) }
    }
}

fn come_first() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads one priority.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
    assert_eq!(done, 0, "real-time priority: {}", std::io::Error::last_os_error());
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
