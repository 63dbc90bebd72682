//! The cost of an off-CPU interval to a thread while the scheduler is watched, measured on two of our own threads
//! that alternate on one CPU.

use std::cell::RefCell;
use std::io::{self, Read, Write, pipe};
use std::rc::Rc;
use std::thread::{self, Builder};
use std::time::Duration;

use crate::capture::backend::CaptureBackend;
use crate::capture::error::RecordError;
use crate::capture::source::{CaptureOptions, FeatureStatus, GpuDetail, Source, Structure};
use machine::{hardware, usage};
use pfi::record::Availability;

/// Rounds per batch, with two switches each, and number of batches. The result is the 10th percentile of all
/// rounds: no other thread ran during such a round, however busy the CPU is.
const ROUNDS: usize = 512;
const BATCHES: usize = 4;
/// Buffer size, bytes. The buffer is emptied after each batch.
const BUFFER: u64 = 1 << 18;

/// Why the cost is unknown.
#[derive(Debug, thiserror::Error)]
pub enum SchedCostError {
    #[error(transparent)]
    Source(#[from] RecordError),
    #[error("{}", .0.why)]
    Unwatched(FeatureStatus),
    #[error("cannot measure two alternating threads: {0}")]
    Threads(#[from] io::Error),
    #[error("context switches took no longer while traced: the machine is too busy to measure")]
    Busy,
}

/// Additional nanoseconds of a switch-out and switch-in with the scheduler's programs.
///
/// # Errors
/// What is missing.
pub fn price(backend: &CaptureBackend) -> Result<f64, SchedCostError> {
    let structure = Structure::Off;
    let options = CaptureOptions {
        pbuf: false,
        buffer_bytes: BUFFER,
        structure,
        gpu: GpuDetail::Off,
        experts: false,
        sched: true,
        own: true,
        phases_at_once: false,
        few: true,
    };
    let mut source = backend.open(options, None, None, Rc::new(RefCell::new(|_: &[u8]| {})));
    source.add_target(std::process::id());
    let before = round(&mut *source)?;
    source.start()?;
    // Only intervals of processes with an engine are sent.
    source.admit(std::process::id(), 0);
    if let Some(none) = source.scheduler().filter(|s| s.state == Availability::None) {
        return Err(SchedCostError::Unwatched(none));
    }
    let watched = round(&mut *source)?;
    source.leave_processes();
    let bare = before.min(round(&mut *source)?);
    match watched.checked_sub(bare) {
        Some(more @ 1..) => Ok(more as f64 / 2.0),
        _ => Err(SchedCostError::Busy),
    }
}

/// Nanoseconds of an undisturbed round.
fn round(source: &mut dyn Source) -> io::Result<u64> {
    let mut all = [0; ROUNDS * BATCHES];
    for batch in all.chunks_mut(ROUNDS) {
        rounds(batch)?;
        source.poll(Duration::ZERO);
    }
    all.sort_unstable();
    Ok(all[all.len() / 10])
}

/// Measures some rounds, nanoseconds each.
fn rounds(times: &mut [u64]) -> io::Result<()> {
    // SAFETY: takes no argument, returns a number or -1.
    let cpu = u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0);
    let ((mut heard, mut call), (mut answered, mut answer)) = (pipe()?, pipe()?);
    let echo = move || {
        hardware::bind(cpu)?;
        while heard.read(&mut [0])? == 1 {
            answer.write_all(&[0])?;
        }
        io::Result::Ok(())
    };
    let ask = move || {
        hardware::bind(cpu)?;
        let mut round = || call.write_all(&[0]).and_then(|()| answered.read_exact(&mut [0]));
        for time in times {
            let start = usage::now();
            round()?;
            *time = usage::now() - start;
        }
        Ok(())
    };
    // If either thread fails, its ends of the pipes are closed, which ends the other.
    let died = |_| io::Error::other("a thread died");
    thread::scope(|s| {
        let echo = Builder::new().spawn_scoped(s, echo)?;
        let asked = Builder::new().spawn_scoped(s, ask)?.join().map_err(died)?;
        echo.join().map_err(died)?.and(asked)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_take_turns() {
        let mut times = [0; 50];
        rounds(&mut times).expect("threads and pipes");
        assert!(times.iter().all(|t| *t > 0));
    }
}
