//! perf events by system call: open, redirect to a ring, enable and disable, count.

use machine::diagnose::{Act, KernelError};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use perf_event_open_sys as sys;
use sys::bindings::{
    PERF_COUNT_SW_DUMMY, PERF_FLAG_FD_CLOEXEC, PERF_SAMPLE_RAW, PERF_SAMPLE_TID, PERF_SAMPLE_TIME,
    PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT, perf_event_attr,
};

/// Contents of a sample, in this order (`ring::parse` reads it): process and thread, time, the event's own bytes.
const SAMPLE: u64 = (PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_RAW) as u64;

fn attr(kind: u32, config: u64) -> perf_event_attr {
    let mut attr = perf_event_attr {
        type_: kind,
        size: size_of::<perf_event_attr>() as u32,
        config,
        sample_type: SAMPLE,
        clockid: libc::CLOCK_MONOTONIC,
        ..Default::default()
    };
    attr.set_use_clockid(1);
    attr
}

fn open(attr: &mut perf_event_attr, cpu: u32) -> io::Result<OwnedFd> {
    let cpu = i32::try_from(cpu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    open_for(attr, -1, cpu)
}

fn open_for(attr: &mut perf_event_attr, pid: libc::pid_t, cpu: libc::c_int) -> io::Result<OwnedFd> {
    let cloexec = libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC);
    // SAFETY: the attributes have the size they state.
    match unsafe { sys::perf_event_open(attr, pid, cpu, -1, cloexec) } {
        // SAFETY: a descriptor that the kernel has just created for us; nothing else owns it.
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An event that counts nothing and reports processes and threads that start and end on a CPU. It owns the CPU's
/// ring. Readers are woken when `watermark` bytes are waiting.
pub fn tasks(cpu: u32, watermark: u32) -> io::Result<OwnedFd> {
    let mut attr = attr(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY.into());
    attr.set_task(1);
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = watermark;
    open(&mut attr, cpu)
}

/// An event that counts nothing and reports executable file mappings by processes on a CPU, and execs. It owns the
/// CPU's ring. Each record ends with process, thread and time. Every record wakes the readers.
pub fn images(cpu: u32) -> io::Result<OwnedFd> {
    let mut attr = attr(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY.into());
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_sample_id_all(1);
    attr.set_exclude_kernel(1);
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = 1;
    open(&mut attr, cpu)
}

/// An event that counts nothing and reports, on one CPU, the context switches of a thread and of all threads and processes
/// that it starts from then on, and their starts and ends. It may own the CPU's ring. Each record ends with process, thread
/// and time. Of one's own processes it needs no privilege up to kernel.perf_event_paranoid 2.
pub fn switches(tid: u32, cpu: u32, watermark: u32) -> io::Result<OwnedFd> {
    let mut attr = attr(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY.into());
    attr.set_context_switch(1);
    attr.set_task(1);
    attr.set_inherit(1);
    attr.set_sample_id_all(1);
    attr.set_exclude_kernel(1);
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = watermark;
    open_for(&mut attr, number(tid)?, number(cpu)?)
}

/// The tracepoint `id` on a CPU. Every hit is a sample; off until [`enable`]. If `urgent`, every hit wakes the
/// reader. Covers all threads, or with `own` only the calling one.
pub fn tracepoint(id: u32, cpu: u32, urgent: bool, own: bool) -> io::Result<OwnedFd> {
    let mut attr = attr(PERF_TYPE_TRACEPOINT, id.into());
    attr.__bindgen_anon_1.sample_period = 1;
    attr.set_disabled(1);
    match urgent {
        true => attr.__bindgen_anon_2.wakeup_events = 1,
        false => {
            attr.set_watermark(1);
            attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        }
    }
    open_for(&mut attr, if own { 0 } else { -1 }, number(cpu)?)
}

/// A probe event, by the number of its definition, in the memory of one process (0: this one), on all CPUs. Only
/// the program attached to the definition reports or counts anything.
pub fn of_process(id: u32, pid: u32) -> io::Result<OwnedFd> {
    let mut attr = perf_event_attr {
        type_: PERF_TYPE_TRACEPOINT,
        size: size_of::<perf_event_attr>() as u32,
        config: id.into(),
        ..Default::default()
    };
    // Allows it for any process that may inspect the target, unless the system restricts this further.
    attr.set_exclude_kernel(1);
    // The breakpoint is set and the program runs whether the event is enabled or not. Disabled, it adds next to
    // nothing to the process's context switches.
    attr.set_disabled(1);
    open_for(&mut attr, number(pid)?, -1)
}

/// A probe at an offset of a file, in the memory of one process only.
pub fn uprobe(file: &Path, offset: u64, ret: bool, pid: u32) -> io::Result<OwnedFd> {
    let source = Path::new("/sys/bus/event_source/devices/uprobe");
    let number_in = |name: &str| {
        let text = std::fs::read_to_string(source.join(name))?;
        // The format of the return probe's bit is `config:0`.
        text.trim()
            .trim_start_matches("config:")
            .parse::<u32>()
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    };
    let ret = if ret { 1 << number_in("format/retprobe")?.min(63) } else { 0 };
    let path = CString::new(file.as_os_str().as_bytes())?;
    let mut attr = perf_event_attr {
        type_: number_in("type")?,
        size: size_of::<perf_event_attr>() as u32,
        config: ret,
        ..Default::default()
    };
    attr.__bindgen_anon_3.config1 = path.as_ptr() as u64;
    attr.__bindgen_anon_4.config2 = offset;
    attr.set_disabled(1);
    let opened: io::Result<OwnedFd> = open_for(&mut attr, number(pid)?, -1);
    // The kernel reads the path while it opens the event.
    drop(path);
    opened
}

fn number(pid: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))
}

/// Attaches a BPF program to a probe event's definition; it runs at every hit.
pub fn bind(event: &impl AsFd, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open; the kernel checks what they are.
    done(unsafe { sys::ioctls::SET_BPF(event.as_fd().as_raw_fd(), program.as_raw_fd() as u32) })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Passes only those hits of a tracepoint that match `what`, a kernel event filter. Call it before the tracepoint
/// is enabled.
pub fn filter(event: &impl AsFd, what: &str) -> io::Result<()> {
    let what = CString::new(what)?;
    // SAFETY: the descriptor is open; the kernel reads a zero-terminated string.
    done(unsafe { sys::ioctls::SET_FILTER(event.as_fd().as_raw_fd(), what.as_ptr().cast_mut()) })
}

/// Redirects the event's samples to another event's ring.
pub fn join(event: &impl AsFd, ring: &impl AsFd) -> io::Result<()> {
    // SAFETY: both descriptors are open; the kernel checks what they are.
    done(unsafe { sys::ioctls::SET_OUTPUT(event.as_fd().as_raw_fd(), ring.as_fd().as_raw_fd()) })
}

pub fn enable(event: &impl AsFd) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    done(unsafe { sys::ioctls::ENABLE(event.as_fd().as_raw_fd(), 0) })
}

pub fn disable(event: &impl AsFd) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    done(unsafe { sys::ioctls::DISABLE(event.as_fd().as_raw_fd(), 0) })
}

/// Hits so far, lost samples included.
pub fn count(event: &impl AsFd) -> io::Result<u64> {
    let mut value = [0u8; 8];
    // SAFETY: reads into a buffer of eight bytes, as stated.
    let n = unsafe { libc::read(event.as_fd().as_raw_fd(), value.as_mut_ptr().cast(), value.len()) };
    match usize::try_from(n) {
        Ok(n) if n == value.len() => Ok(u64::from_ne_bytes(value)),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Raises the open file limit to the maximum for this process: one file is needed per probe and CPU.
pub fn allow_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills, then reads, one rlimit. If it refuses, the limit stays and opening reports it.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Online CPUs, from the kernel's list (`0-3,6`).
pub fn online() -> Vec<u32> {
    cpus(&std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default())
}

fn cpus(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (last < 65536).then_some(first..=last)
    };
    let found: Vec<u32> = list.trim().split(',').filter_map(range).flatten().collect();
    if found.is_empty() { vec![0] } else { found }
}

/// What an error from the kernel means for probe events.
pub fn failed(e: io::Error) -> KernelError {
    KernelError::system(Act::Probe, e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_have_ranges() {
        assert_eq!(cpus("0-3,6\n"), [0, 1, 2, 3, 6]);
        assert_eq!(cpus("0\n"), [0]);
        assert_eq!(cpus("x"), [0]);
    }
}
