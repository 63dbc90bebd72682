//! Following processes: children of a recorded process are recorded, and exits are noticed. Uses the kernel's
//! task_struct if a BTF describes its layout and a trial confirms that it matches this kernel, otherwise the
//! formats in tracefs.

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject};

use crate::capture::object::Maps;
use crate::capture::skel::process::ProcessSkelBuilder;
use crate::capture::skel::process_tp::ProcessTpSkelBuilder;
use crate::capture::source::CaptureOptions;
use machine::diagnose::{Act, KernelError};
use machine::kernel::btf::{Btf, TaskOffsets};
use machine::kernel::tracepoint;

/// Makes an object use the maps of the recording, whichever object created them.
macro_rules! share {
    ($open:expr, $maps:expr) => {
        (|| {
            $open.events.reuse_fd($maps.events.as_fd())?;
            $open.perf_events.reuse_fd($maps.perf_events.as_fd())?;
            $open.counts.reuse_fd($maps.counts.as_fd())?;
            $open.thread_states.reuse_fd($maps.thread_states.as_fd())?;
            $open.targets.reuse_fd($maps.targets.as_fd())
        })()
    };
}

pub(super) use share;

/// Processes are followed for as long as this lives.
pub struct Following {
    /// The method, for people.
    pub by: String,
    _links: [Link; 2],
}

/// Result of [`follow`].
pub struct FollowOutcome {
    /// The layout of task_struct that a trial confirmed for this kernel.
    pub task: Option<TaskOffsets>,
    pub following: Result<Following, FollowError>,
    /// Why an existing BTF was not used.
    pub passed_over: Vec<String>,
}

/// Why processes cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The recording's maps cannot be shared.
    #[error(transparent)]
    Maps(libbpf_rs::Error),
    #[error("cannot create a memory file: {0}")]
    MemoryFile(#[source] io::Error),
    #[error("cannot start a test thread: {0}")]
    Thread(#[source] io::Error),
    #[error("the test thread died")]
    ThreadDied,
    #[error(
        "it is not of the running kernel (its layout gives wrong IDs for our own thread); use the one from this \
         exact build"
    )]
    OtherKernel,
    #[error("the kernel did not report a fork of our own (are we in a PID namespace?)")]
    Unreported,
    #[error("tracefs has no sched_process_fork event: {0}")]
    NoEvent(#[source] io::Error),
}

/// Follows by the given BTF, otherwise by the kernel's own, otherwise by the formats in tracefs.
pub fn follow(maps: &Maps, options: &CaptureOptions, given: Option<&Btf>) -> FollowOutcome {
    let mut passed_over = Vec::new();
    for btf in given.cloned().map(Ok).into_iter().chain(Btf::of_kernel()) {
        let (name, task) = match &btf {
            Ok(btf) => (btf.path.display(), btf.task),
            Err(why) => {
                passed_over.push(why.to_string());
                continue;
            }
        };
        match by_task(maps, options, task) {
            Ok(links) => {
                let following = Following { by: format!("task_struct as in {name}"), _links: links };
                return FollowOutcome { task: Some(task), following: Ok(following), passed_over };
            }
            Err(why) => passed_over.push(format!("{name} is not used: {why}")),
        }
    }
    let links = by_format(maps, options);
    let following = links.map(|links| Following { by: "formats of tracefs".into(), _links: links });
    FollowOutcome { task: None, following, passed_over }
}

fn by_task(maps: &Maps, options: &CaptureOptions, task: TaskOffsets) -> Result<[Link; 2], FollowError> {
    let failed = |act| move |e| KernelError::libbpf(act, e);
    let types = anonymous_file(&task.to_btf()).map_err(FollowError::MemoryFile)?;
    let mut storage = MaybeUninit::<OpenObject>::uninit();
    let mut builder = ProcessSkelBuilder::default();
    let path = format!("/proc/self/fd/{}", types.as_raw_fd());
    builder.obj_builder.btf_custom_path(path).map_err(failed(Act::Load))?;
    let mut open = builder.open(&mut storage).map_err(failed(Act::Load))?;
    // SAFETY: takes no argument and cannot fail.
    let own_tid = unsafe { libc::gettid() } as u32;
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        (data.k.pbuf, data.k.wake_bytes, data.k.own_tid) = (options.pbuf.into(), options.wake(), own_tid);
    }
    share!(open.maps, maps).map_err(failed(Act::Map))?;
    let skel = open.load().map_err(failed(Act::Load))?;
    let attached = || Ok([skel.progs.task_fork.attach()?, skel.progs.task_exit.attach()?]);
    let links = attached().map_err(failed(Act::Probe))?;
    let fact = Trial { parent: [own_tid, std::process::id()], child: [fork_a_thread()?, std::process::id()] };
    let read = skel.maps.trials.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).map_err(failed(Act::Map))?;
    judge(fact, read.as_deref().and_then(Trial::of_bytes)).map(|()| links)
}

/// Starts and ends a thread. Returns its id.
fn fork_a_thread() -> Result<u32, FollowError> {
    // SAFETY: takes no argument and cannot fail.
    let thread = std::thread::Builder::new().spawn(|| unsafe { libc::gettid() } as u32);
    let number = thread.map_err(FollowError::Thread)?.join();
    number.map_err(|_| FollowError::ThreadDied)
}

/// What was read of one of our own forks (struct trial in src/bpf/process.bpf.c), or the true values: thread and
/// process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trial {
    parent: [u32; 2],
    child: [u32; 2],
}

impl Trial {
    /// `None` if no fork was seen.
    fn of_bytes(bytes: &[u8]) -> Option<Trial> {
        let (words, _) = bytes.as_chunks::<4>();
        let [1, a, b, c, d] =
            words.iter().map(|w| u32::from_ne_bytes(*w)).collect::<heapless::Vec<_, 5>>()[..]
        else {
            return None;
        };
        Some(Trial { parent: [a, b], child: [c, d] })
    }
}

fn judge(fact: Trial, read: Option<Trial>) -> Result<(), FollowError> {
    match read {
        Some(read) if read == fact => Ok(()),
        Some(_) => Err(FollowError::OtherKernel),
        None => Err(FollowError::Unreported),
    }
}

fn by_format(maps: &Maps, options: &CaptureOptions) -> Result<[Link; 2], FollowError> {
    let failed = |act| move |e| KernelError::libbpf(act, e);
    let child_off = tracepoint::fork_child().map_err(FollowError::NoEvent)?;
    let mut storage = MaybeUninit::<OpenObject>::uninit();
    let mut open = ProcessTpSkelBuilder::default().open(&mut storage).map_err(failed(Act::Load))?;
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        (data.k.pbuf, data.k.wake_bytes, data.k.child_off) = (options.pbuf.into(), options.wake(), child_off);
    }
    share!(open.maps, maps).map_err(failed(Act::Map))?;
    let skel = open.load().map_err(failed(Act::Load))?;
    let attached = || Ok([skel.progs.event_fork.attach()?, skel.progs.event_exit.attach()?]);
    Ok(attached().map_err(failed(Act::Probe))?)
}

/// An in-memory file with these bytes, which exists while it is open.
fn anonymous_file(bytes: &[u8]) -> io::Result<File> {
    // SAFETY: the name is a C string and is only read.
    let fd = unsafe { libc::memfd_create(c"btf".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel has just created for us; nothing else owns it.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_truth_passes() {
        let fact = Trial { parent: [10, 10], child: [12, 10] };
        judge(fact, Some(fact)).expect("the truth");
        assert!(matches!(judge(fact, None), Err(FollowError::Unreported)));
        for wrong in [Trial { child: [10, 12], ..fact }, Trial { parent: [0, 10], ..fact }] {
            assert!(matches!(judge(fact, Some(wrong)), Err(FollowError::OtherKernel)));
        }
        let bytes = [1u32, 10, 10, 12, 10].map(u32::to_ne_bytes);
        assert_eq!(Trial::of_bytes(bytes.as_flattened()), Some(fact));
        assert_eq!(Trial::of_bytes(&[0; 20]), None);
        assert_eq!(Trial::of_bytes(&bytes.as_flattened()[..19]), None);
    }
}
