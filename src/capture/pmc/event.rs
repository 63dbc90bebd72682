//! Counters by system call: open, read, test.

use std::hint::black_box;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use perf_event_open_sys as sys;
use sys::bindings::{
    PERF_FLAG_FD_CLOEXEC, PERF_FORMAT_TOTAL_TIME_ENABLED, PERF_FORMAT_TOTAL_TIME_RUNNING, perf_event_attr,
};

use super::resolve::{PerfEventAttr, PmuEvent};
use machine::diagnose::{Act, KernelError};
use machine::hardware;

/// A reading: the count, the time the counter was enabled, and the time it had a slot, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterReading {
    pub count: u64,
    pub enabled: u64,
    pub running: u64,
}

fn open(event: &PerfEventAttr, cpu: u32, group: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    let mut attr = perf_event_attr {
        type_: event.kind,
        size: size_of::<perf_event_attr>() as u32,
        config: event.config[0],
        read_format: u64::from(PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING),
        ..Default::default()
    };
    attr.__bindgen_anon_3.config1 = event.config[1];
    attr.__bindgen_anon_4.config2 = event.config[2];
    attr.set_exclude_user((!event.user).into());
    attr.set_exclude_kernel((!event.kernel).into());
    attr.set_exclude_hv((!event.kernel).into());
    let cpu = i32::try_from(cpu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let group = group.map_or(-1, AsRawFd::as_raw_fd);
    let flags = libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC);
    // SAFETY: the attributes have the size they state.
    match unsafe { sys::perf_event_open(&raw mut attr, -1, cpu, group, flags) } {
        // SAFETY: a descriptor that the kernel has just created for us; nothing else owns it.
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens an event that counts everything on a CPU from now on.
pub fn on_cpu(event: &PerfEventAttr, cpu: u32) -> Result<OwnedFd, CountError> {
    Ok(open(event, cpu, None)?)
}

pub fn read(event: &OwnedFd) -> io::Result<CounterReading> {
    let mut words = [0u64; 3];
    // SAFETY: the buffer has the stated size.
    let n = unsafe { libc::read(event.as_raw_fd(), words.as_mut_ptr().cast(), size_of_val(&words)) };
    match n {
        24 => Ok(CounterReading { count: words[0], enabled: words[1], running: words[2] }),
        0.. => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Why an event cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    #[error("the PMU does not know this event (EINVAL)")]
    Unknown(#[source] io::Error),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error("all counter slots of the PMU are in use")]
    NoSlot,
    #[error("we may not run on its CPUs")]
    NoCpu,
    #[error(transparent)]
    Thread(io::Error),
    #[error("the trial failed")]
    ThreadDied,
}

impl From<io::Error> for CountError {
    fn from(e: io::Error) -> CountError {
        match e.raw_os_error() {
            Some(libc::EINVAL) => CountError::Unknown(e),
            _ => KernelError::system(Act::Count, e).into(),
        }
    }
}

/// Rounds of work in a trial before it gives up.
const TURNS: u32 = 20;

/// Result of a trial.
#[derive(Debug)]
pub enum Tried {
    Counts(CounterReading),
    /// It ran and stayed 0: nothing here counts this event.
    Zero(CounterReading),
    Refused(CountError),
}

/// Opens each place's event on one of its CPUs and keeps that CPU busy for about a millisecond.
pub fn try_each(places: &[PmuEvent]) -> Vec<Tried> {
    places
        .iter()
        .map(|p| on_its_cpu(p, |cpu| try_one(&p.event, cpu)).unwrap_or_else(Tried::Refused))
        .collect()
}

/// Runs `run` on a CPU of the place, in its own thread.
fn on_its_cpu<T: Send>(place: &PmuEvent, run: impl FnOnce(u32) -> T + Send) -> Result<T, CountError> {
    let cpus = &place.cpus;
    std::thread::scope(|s| {
        let bound = move || {
            // If some CPUs may not be used (a cpuset), another one of the same kind gives the same result.
            let bound = cpus.iter().find(|c| hardware::bind(**c).is_ok());
            bound.ok_or(CountError::NoCpu).map(|cpu| run(*cpu))
        };
        let thread = std::thread::Builder::new().spawn_scoped(s, bound).map_err(CountError::Thread)?;
        thread.join().map_err(|_| CountError::ThreadDied)?
    })
}

fn try_one(event: &PerfEventAttr, cpu: u32) -> Tried {
    let run = || {
        let fd = open(event, cpu, None)?;
        // Others may be using the PMU right now; it rotates between users every few milliseconds.
        for _ in 0..TURNS {
            busy();
            let reading = read(&fd)?;
            if reading.running > 0 {
                return Ok(reading);
            }
        }
        Ok(read(&fd)?)
    };
    match run() {
        Ok(r) if r.running == 0 => Tried::Refused(CountError::NoSlot),
        Ok(r) if r.count == 0 => Tried::Zero(r),
        Ok(r) => Tried::Counts(r),
        Err(e) => Tried::Refused(e),
    }
}

/// How many of `n` counters a place's PMU can run at the same time: as accepted by the kernel, and as they really
/// count. A virtual machine's PMU may advertise more than its host provides; the last ones then silently stay 0.
/// None: could not be tested.
pub fn slots(place: &PmuEvent, n: usize) -> Option<(usize, usize)> {
    let run = |cpu| {
        let mut group: Vec<OwnedFd> = Vec::with_capacity(n);
        while group.len() < n {
            match open(&place.event, cpu, group.first()) {
                Ok(fd) => group.push(fd),
                Err(_) => break,
            }
        }
        busy();
        let counts: Vec<u64> = group.iter().map(|fd| read(fd).map_or(0, |r| r.count)).collect();
        let most = counts.iter().copied().max().filter(|c| *c > 0)?;
        Some((counts.len(), counts.iter().filter(|c| **c > most / 2).count()))
    };
    on_its_cpu(place, run).ok().flatten()
}

/// Every kind of work that counters count: loads and stores that miss the caches, unpredictable branches, additions.
fn busy() {
    const WORDS: usize = 1 << 19;
    let mut memory = vec![0u32; WORDS];
    let (mut x, mut sum) = (0x2545_f491_u32, 0.0f32);
    for _ in 0..1 << 16 {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        let at = x as usize % WORDS;
        let old = memory[at];
        memory[at] = old.wrapping_add(x);
        if black_box(x) & 1 == 0 {
            sum = sum.mul_add(0.5, old as f32);
        }
    }
    let total: f32 = memory.iter().map(|w| *w as f32).sum();
    black_box(total + sum);
}
