//! What a thread's time off the CPU costs it while the scheduler is watched: measured on two threads of our own that take
//! turns on one CPU. Uses `machine`, `road`, `source` and `usage`.

use std::cell::RefCell;
use std::io::{self, Read, Write, pipe};
use std::rc::Rc;
use std::thread::{self, Builder};
use std::time::Duration;

use super::road::Road;
use super::source::{Knobs, Source, Structure};
use super::{machine, usage};
use crate::trace::record::Availability;

/// Rounds of a batch, two switches each, and batches. Of all rounds the quickest tenth is left out and the next one counts:
/// nobody else ran in between, however busy the CPU is.
const ROUNDS: usize = 512;
const BATCHES: usize = 4;
/// Bytes of the buffer, which is emptied after each batch.
const BUFFER: u32 = 1 << 18;

/// Nanoseconds that a switch away and back costs more with the scheduler's programs than without.
///
/// # Errors
/// What is missing, in words.
pub fn price(road: &Road) -> Result<f64, String> {
    let structure = Structure::Off;
    let knobs = Knobs { pbuf: false, buffer: BUFFER, structure, experts: false, sched: true, own: true };
    let mut source = road.open(knobs, None, None, Rc::new(RefCell::new(|_: &[u8]| {})));
    source.add_target(std::process::id());
    let before = round(&mut *source)?;
    source.start().map_err(|e| e.to_string())?;
    if let Some(none) = source.scheduler().filter(|s| s.state == Availability::None) {
        return Err(none.why);
    }
    let watched = round(&mut *source)?;
    source.leave_processes();
    let bare = before.min(round(&mut *source)?);
    match watched.checked_sub(bare) {
        Some(more @ 1..) => Ok(more as f64 / 2.0),
        _ => Err("switches took no longer while they were watched: the machine is too busy to tell".into()),
    }
}

/// Nanoseconds of a round that nobody disturbs.
fn round(source: &mut dyn Source) -> Result<u64, String> {
    let mut all = [0; ROUNDS * BATCHES];
    for batch in all.chunks_mut(ROUNDS) {
        rounds(batch).map_err(|e| format!("two threads that take turns: {e}"))?;
        source.poll(Duration::ZERO);
    }
    all.sort_unstable();
    Ok(all[all.len() / 10])
}

/// Nanoseconds of each of some rounds.
fn rounds(times: &mut [u64]) -> io::Result<()> {
    // SAFETY: takes nothing, gives a number or -1.
    let cpu = u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0);
    let ((mut heard, mut call), (mut answered, mut answer)) = (pipe()?, pipe()?);
    let echo = move || {
        machine::bind(cpu)?;
        while heard.read(&mut [0])? == 1 {
            answer.write_all(&[0])?;
        }
        io::Result::Ok(())
    };
    let ask = move || {
        machine::bind(cpu)?;
        let mut round = || call.write_all(&[0]).and_then(|()| answered.read_exact(&mut [0]));
        for time in times {
            let start = usage::now();
            round()?;
            *time = usage::now() - start;
        }
        Ok(())
    };
    // Whichever fails takes its ends of the pipes with it, and so ends the other.
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
