//! The threads that read experts into slots, in the order in which they are asked. Uses the source and the buffers.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::buffer::SlotBuffer;
use super::source::{ExpertSource, ReadRoom};

/// Experts could not be read. Nothing can be computed after that, because slots do not hold what they should.
#[derive(Debug, Clone, thiserror::Error)]
#[error("read {bytes} bytes of an expert at offset {offset} of the model file: {why}")]
pub struct ExpertReadError {
    offset: u64,
    bytes: u64,
    why: String,
}

/// A part of an expert to read.
pub struct PartRead {
    pub buffer: Arc<SlotBuffer>,
    /// Bytes of the file.
    pub range: Range<u64>,
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<PartRead>,
    stop: bool,
    /// The first one.
    failure: Option<ExpertReadError>,
}

struct SharedQueue {
    source: ExpertSource,
    queue: Mutex<Queue>,
    /// There is something to read.
    work: Condvar,
    /// Something has been read.
    done: Condvar,
}

/// The threads. They end when this is dropped.
pub struct Readers {
    shared: Arc<SharedQueue>,
    threads: Vec<JoinHandle<()>>,
    /// Time in [`Self::wait`], ns.
    waited: AtomicU64,
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread(&self, mut room: ReadRoom) {
        let _end = EndOnPanic;
        let mut queue = self.lock();
        while !queue.stop {
            let Some(read) = queue.reads.pop_front() else {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            let failure = self.read(&read, &mut room).err();
            queue = self.lock();
            if queue.failure.is_none() {
                queue.failure = failure;
            }
            read.buffer.set_pending(false);
            self.done.notify_all();
        }
    }

    fn read(&self, read: &PartRead, room: &mut ReadRoom) -> Result<(), ExpertReadError> {
        let range = read.range.clone();
        let failed =
            |why| ExpertReadError { offset: range.start, bytes: range.end.saturating_sub(range.start), why };
        let filled = self.source.read(range.clone(), room, |bytes| read.buffer.fill(bytes));
        filled.map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))
    }
}

/// Ends the program if its thread panics, because others wait for that thread.
struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Readers {
    /// Starts `count` threads for ranges of up to `most` bytes.
    ///
    /// # Errors
    /// Not enough memory or threads.
    pub fn start(source: ExpertSource, count: usize, most: u64) -> io::Result<Self> {
        let (queue, work, done) = (Mutex::default(), Condvar::new(), Condvar::new());
        let shared = Arc::new(SharedQueue { source, queue, work, done });
        let mut readers = Self { shared, threads: Vec::with_capacity(count), waited: AtomicU64::new(0) };
        for i in 0..count {
            let (shared, room) = (Arc::clone(&readers.shared), ReadRoom::new(most)?);
            let thread = std::thread::Builder::new().name(format!("experts-{i}"));
            readers.threads.push(thread.spawn(move || shared.thread(room))?);
        }
        Ok(readers)
    }

    /// How the experts are read.
    pub fn source(&self) -> &ExpertSource {
        &self.shared.source
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.threads.len()
    }

    /// Asks for a part. If the buffer still waits for an earlier one, this returns when it is there: two threads could read
    /// the two in the other order.
    pub fn read(&self, read: PartRead) {
        self.wait(&read.buffer);
        read.buffer.set_pending(true);
        self.shared.lock().reads.push_back(read);
        self.shared.work.notify_one();
    }

    /// Returns when the buffer holds what was last asked for.
    pub fn wait(&self, buffer: &SlotBuffer) {
        if buffer.is_pending() {
            let start = Instant::now();
            let mut queue = self.shared.lock();
            while buffer.is_pending() {
                queue = self.shared.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            drop(queue);
            let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.waited.fetch_add(ns, Ordering::Relaxed);
        }
    }

    /// Time spent waiting since the last call of this.
    pub fn take_waited(&self) -> Duration {
        Duration::from_nanos(self.waited.swap(0, Ordering::Relaxed))
    }

    /// What could not be read.
    ///
    /// # Errors
    /// The first failure since the beginning.
    pub fn check(&self) -> Result<(), ExpertReadError> {
        self.shared.lock().failure.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended the program.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::buffer::PartShape;
    use super::super::source::ExpertsFrom;
    use super::*;
    use crate::kernels::Isa;
    use crate::parts::KernelParts;
    use ggml::quant::TensorType;

    #[test]
    fn what_can_not_be_read_is_an_error_that_stays() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(10_000).expect("room");
        // SAFETY: nobody truncates the file.
        let map = Arc::new(unsafe { memmap2::Mmap::map(&file) }.expect("a mapping"));
        let shape = PartShape::new(TensorType::F32, [16, 4], 256, KernelParts::default(), Isa::Scalar);
        let buffer = Arc::new(SlotBuffer::new(shape).expect("memory"));
        for from in [ExpertsFrom::Disk, ExpertsFrom::Memory] {
            let source = ExpertSource::new(file.try_clone().expect("a copy"), &map, from, 0);
            let readers = Readers::start(source.expect("a source"), 2, 256).expect("threads");
            // More for one buffer than there are threads, one after the other.
            for start in [0, 256, 512, 9900, 1024] {
                readers.read(PartRead { buffer: Arc::clone(&buffer), range: start..start + 256 });
            }
            readers.wait(&buffer);
            for _ in 0..2 {
                let said = readers.check().expect_err("it ends before").to_string();
                assert!(
                    said.starts_with("read 256 bytes of an expert at offset 9900 of the model file: "),
                    "{said}"
                );
            }
        }
    }
}
