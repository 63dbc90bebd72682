//! What reading from storage takes: reads at random places of a file, around the page cache or through it, by several threads.
//! Uses rustix.

use std::path::Path;

#[cfg(target_os = "linux")]
use crate::reading::with_bar_of;
use analysis::questions::experts::simulate::ReadTimes;
#[cfg(target_os = "linux")]
use analysis::recorded::load::LoadProgress;

/// What to read at the same time.
pub struct Batches<'m> {
    /// Bytes of each matrix of an expert; every matrix is a read of its own.
    pub matrices: &'m [u64],
    /// One expert, two, up to this number.
    pub most: usize,
    /// Threads that read.
    pub readers: usize,
    /// Read through the page cache, after its pages of the file were dropped, instead of with O_DIRECT.
    pub cached: bool,
}

/// Measures reads of whole experts from a file that is at least twice as large as a matrix.
///
/// # Errors
/// The file cannot be read, around the page cache if so asked, or is too small.
#[cfg(target_os = "linux")]
pub fn read_times(file: &Path, batches: &Batches<'_>) -> anyhow::Result<ReadTimes> {
    let progress = LoadProgress::default();
    with_bar_of(&progress, "measuring reads", || measured::read_times(file, batches, &progress))
}

/// Measures reads of whole experts from a file.
///
/// # Errors
/// Always: not on this system.
#[cfg(not(target_os = "linux"))]
pub fn read_times(_: &Path, _: &Batches<'_>) -> anyhow::Result<ReadTimes> {
    anyhow::bail!("reads are measured on Linux only: give --read-time")
}

#[cfg(target_os = "linux")]
mod measured {
    use crate::storage::Batches;
    use analysis::questions::experts::simulate::ReadTimes;
    use analysis::recorded::load::LoadProgress;
    use anyhow::Context;
    use rustix::fs::{Advice, Mode, OFlags, fadvise, open};
    use std::fs::File;
    use std::io;
    use std::num::NonZeroU64;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::{Duration, Instant};

    /// Rounds of all numbers of experts, until either is reached.
    const LONGEST: Duration = Duration::from_secs(3);
    const MOST: usize = 64;
    /// What O_DIRECT wants addresses, places and sizes to be multiples of, on any device with sectors of at most this.
    const BLOCK: usize = 4096;

    /// A read: its place, and its bytes.
    type Job = (u64, usize);

    /// `progress` is in ms of the time that it takes at most.
    pub fn read_times(
        file: &Path,
        batches: &Batches<'_>,
        progress: &LoadProgress,
    ) -> anyhow::Result<ReadTimes> {
        let longest = LONGEST.as_millis() as u64;
        progress.total.store(longest, Ordering::Relaxed);
        let shown = file.display();
        let around = if batches.cached { OFlags::empty() } else { OFlags::DIRECT };
        let fd = open(file, OFlags::RDONLY | OFlags::CLOEXEC | around, Mode::empty()).with_context(|| {
            format!(
                "cannot read {shown} around the page cache: give --read-time, or a file on the disk that has the model"
            )
        })?;
        let opened = File::from(fd);
        let size = opened.metadata().with_context(|| format!("cannot read {shown}"))?.len();
        let lengths = lengths(batches.matrices, size).with_context(|| {
            let bytes: u64 = batches.matrices.iter().sum();
            format!("{shown}: {size} bytes are too few to measure reads of {bytes}: give the model's file")
        })?;
        std::thread::scope(|scope| {
            let (done, results) = channel();
            let most = lengths.iter().copied().max().unwrap_or(BLOCK);
            let workers: Vec<Sender<Job>> = (0..batches.readers.max(1))
                .map(|_| {
                    let (jobs, queue) = channel();
                    let (done, opened) = (done.clone(), &opened);
                    scope.spawn(move || work(opened, most, &queue, &done));
                    jobs
                })
                .collect();
            let mut places = Places { random: 0x9e37_79b9_7f4a_7c15, size };
            let mut times = vec![Vec::with_capacity(MOST); batches.most.max(1)];
            let begin = Instant::now();
            // In turn, since a disk may get faster or slower meanwhile.
            for round in 0..MOST {
                if round > 0 && begin.elapsed() > LONGEST {
                    break;
                }
                let passed = (begin.elapsed().as_millis() as u64).max(longest * round as u64 / MOST as u64);
                progress.done.store(passed, Ordering::Relaxed);
                for (experts, times) in (1..).zip(&mut times) {
                    let jobs: Vec<Job> = (0..experts)
                        .flat_map(|_| &lengths)
                        .map(|length| (places.next(*length), *length))
                        .collect();
                    if batches.cached {
                        jobs.iter().for_each(|(at, length)| forget(&opened, *at, *length));
                    }
                    let before = Instant::now();
                    for (job, worker) in jobs.iter().zip(workers.iter().cycle()) {
                        worker.send(*job).context("a thread that reads has ended")?;
                    }
                    for _ in &jobs {
                        let read: io::Result<()> = results.recv().context("a thread that reads has ended")?;
                        read.with_context(|| format!("cannot read {shown}"))?;
                    }
                    times.push(before.elapsed().as_nanos() as f64);
                }
            }
            let ns = times.into_iter().map(|times| common::order::median(times).context("no read was made"));
            Ok(ReadTimes { ns: ns.collect::<anyhow::Result<_>>()? })
        })
    }

    /// Has the kernel drop clean pages. It may keep some: those are read faster.
    fn forget(file: &File, at: u64, length: usize) {
        let _ = fadvise(file, at, NonZeroU64::new(length as u64), Advice::DontNeed);
    }

    /// Bytes of each read: whole blocks.
    fn lengths(matrices: &[u64], size: u64) -> Option<Vec<usize>> {
        let whole = |bytes: &u64| usize::try_from(*bytes).ok()?.checked_next_multiple_of(BLOCK);
        let fits = |length: &usize| *length > 0 && *length as u64 <= size / 2;
        let all: Option<Vec<usize>> = matrices.iter().map(|bytes| whole(bytes).filter(fits)).collect();
        all.filter(|lengths| !lengths.is_empty())
    }

    fn work(file: &File, most: usize, queue: &Receiver<Job>, done: &Sender<io::Result<()>>) {
        let mut buffer = vec![0u8; most + BLOCK];
        let aligned = buffer.as_ptr().align_offset(BLOCK);
        for (at, length) in queue {
            let into = buffer.get_mut(aligned..).and_then(|b| b.get_mut(..length));
            let read =
                into.map_or(Err(io::ErrorKind::OutOfMemory.into()), |into| file.read_exact_at(into, at));
            if done.send(read).is_err() {
                return;
            }
        }
    }

    /// Places that no read-ahead expects: Numerical Recipes' 64-bit generator.
    struct Places {
        random: u64,
        size: u64,
    }

    impl Places {
        fn next(&mut self, length: usize) -> u64 {
            self.random =
                self.random.wrapping_mul(3_935_559_000_370_003_845).wrapping_add(2_691_343_689_449_507_681);
            let places = (self.size - length as u64) / BLOCK as u64 + 1;
            (self.random >> 11) % places * BLOCK as u64
        }
    }
}
