//! Gives up capabilities that are not or no longer needed, and the means to gain new ones. Capabilities are per
//! thread: the functions here affect the calling thread and those that it starts later.

use std::io;

use rustix::thread::{self, CapabilitySet, CapabilitySets};

/// include/uapi/linux/capability.h
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;
/// To inspect processes and files of others: CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE.
pub const READ: u64 = 1 << 2 | 1 << 19;
/// CAP_SYS_ADMIN: also to open a file through its mapping.
const SYS_ADMIN: u64 = 1 << 21;
/// To become another user: CAP_SETGID, CAP_SETUID.
pub const BECOME: u64 = 1 << 6 | 1 << 7;
/// That, and to kill that user's processes: CAP_KILL.
pub const ACT: u64 = 1 << 5 | BECOME;
/// CAP_SYS_NICE: to set the CPUs of other users' processes.
pub const NICE: u64 = 1 << 23;
/// What the service keeps if it has it: the above but the last, and CAP_SYS_RESOURCE.
const SERVICE: u64 = READ | SYS_ADMIN | 1 << 24 | PERFMON | BPF;
/// Highest capability that a kernel may have.
const MOST: u32 = 63;

/// The capabilities that this thread uses, and those it could use.
#[derive(Clone, Copy)]
struct Sets {
    effective: u64,
    permitted: u64,
}

fn get() -> io::Result<Sets> {
    let sets = thread::capabilities(None)?;
    Ok(Sets { effective: sets.effective.bits(), permitted: sets.permitted.bits() })
}

/// Effective capabilities that are not permitted are omitted. None are passed on to executed programs.
fn set(to: Sets) -> io::Result<()> {
    let sets = CapabilitySets {
        effective: CapabilitySet::from_bits_retain(to.effective & to.permitted),
        permitted: CapabilitySet::from_bits_retain(to.permitted),
        inheritable: CapabilitySet::empty(),
    };
    Ok(thread::set_capabilities(None, sets)?)
}

/// Whether all of these capabilities are permitted.
pub fn has(caps: u64) -> bool {
    get().is_ok_and(|sets| sets.permitted & caps == caps)
}

/// Keeps only the service's capabilities, also for programs that it might run, with only [`READ`] in effect: the
/// others are for its recorders, and for [`raised`]. `also`: further ones to keep, for [`nice`] and the network's process.
///
/// # Errors
/// The system refuses; nothing or only a part has been given up.
pub fn give_up(also: u64) -> io::Result<()> {
    let kept = SERVICE | also;
    thread::set_no_new_privs(true)?;
    // Capabilities that the process could still gain by running a program. Without CAP_SETPCAP none can be dropped,
    // and none gained.
    for cap in (0..=MOST).map(|cap| 1 << cap).filter(|cap| kept & cap == 0) {
        let _ = thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(cap));
    }
    set(Sets { effective: READ, permitted: get()?.permitted & kept })
}

/// Keeps those of its capabilities that are in `caps`, all in effect.
///
/// # Errors
/// The system refuses; nothing has changed.
pub fn keep(caps: u64) -> io::Result<()> {
    let permitted = get()?.permitted & caps;
    set(Sets { effective: permitted, permitted })
}

/// Keeps what is needed to open and read files mapped by others, with only [`READ`] in effect.
///
/// # Errors
/// The system refuses; nothing has changed.
pub fn keep_looking() -> io::Result<()> {
    set(Sets { effective: READ, permitted: get()?.permitted & (READ | SYS_ADMIN) })
}

/// Keeps what a recorder needs that will not attach to anything more; with `counting`, also what counters need on
/// CPUs that come online.
///
/// # Errors
/// As for [`keep`]; a part may have been given up.
pub fn keep_attached(counting: bool) -> io::Result<()> {
    let kept = READ | if counting { PERFMON } else { 0 };
    keep(kept | BPF)?;
    let all = get()?;
    set(Sets { effective: kept, ..all })?;
    if maps_are_free() { keep(kept) } else { set(all) }
}

/// Whether this kernel allows any owner of a map's descriptor to use the map (since 5.19; before that if
/// kernel.unprivileged_bpf_disabled is 0). Otherwise it refuses before it checks the descriptor.
fn maps_are_free() -> bool {
    const LOOK_UP: libc::c_long = 1;
    let mut attributes = [0u32; 32];
    attributes[0] = u32::MAX;
    // SAFETY: bpf(2) has no safe interface: a block of the stated size, of which the kernel reads a part; there is no
    // such descriptor.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, LOOK_UP, attributes.as_mut_ptr(), size_of_val(&attributes)) };
    done < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
}

/// Reduces the effective capabilities to [`READ`] until it is dropped: for work on untrusted data. If the system
/// refuses, nothing changes.
pub fn reading() -> Raised {
    let before = get().ok();
    before.into_iter().for_each(|sets| drop(set(Sets { effective: sets.effective & READ, ..sets })));
    Raised(before)
}

/// Restores the effective capabilities when it is dropped.
pub struct Raised(Option<Sets>);

/// Makes all permitted capabilities effective. If the system refuses this, it will also refuse the action that
/// needs them.
pub fn raised() -> Raised {
    let before = get().ok();
    before.into_iter().for_each(|sets| drop(set(Sets { effective: sets.permitted, ..sets })));
    Raised(before)
}

/// Makes [`NICE`] effective in addition, if it is permitted, until it is dropped.
pub fn nice() -> Raised {
    let before = get().ok();
    before.into_iter().for_each(|sets| drop(set(Sets { effective: sets.effective | NICE, ..sets })));
    Raised(before)
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.into_iter().for_each(|before| drop(set(before)));
    }
}
