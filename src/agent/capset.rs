//! Gives up capabilities that are not needed (any more), and the way to new ones. The system has them by thread: what is
//! done here holds for the thread that does it and for those that it begins later. Uses nothing of this crate.

use std::io;

/// include/uapi/linux/capability.h
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;
/// To look at processes and files of others: CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE.
pub const READ: u64 = 1 << 2 | 1 << 19;
/// CAP_SYS_ADMIN: also to open a file by where it is mapped.
const SYS_ADMIN: u64 = 1 << 21;
/// What the service keeps where it has it; beyond those above CAP_SYS_RESOURCE.
const SERVICE: u64 = READ | SYS_ADMIN | 1 << 24 | PERFMON | BPF;
/// _LINUX_CAPABILITY_VERSION_3.
const VERSION: u32 = 0x2008_0522;
/// Capabilities that a kernel may have.
const MOST: libc::c_ulong = 63;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// What this thread may do, and what it could.
#[derive(Clone, Copy)]
struct Sets {
    effective: u64,
    permitted: u64,
}

fn get() -> io::Result<Sets> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 has one header and two parts of data, as given.
    if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let whole = |part: fn(&Data) -> u32| u64::from(part(&data[1])) << 32 | u64::from(part(&data[0]));
    Ok(Sets { effective: whole(|d| d.effective), permitted: whole(|d| d.permitted) })
}

/// What is in effect and not permitted is left out. Nothing is passed on to programs.
fn set(to: Sets) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    let part = |shift: u32| Data {
        effective: ((to.effective & to.permitted) >> shift) as u32,
        permitted: (to.permitted >> shift) as u32,
        inheritable: 0,
    };
    let data = [part(0), part(32)];
    // SAFETY: as in `get`.
    match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Keeps those of the service alone, also in what it might run, and of them only [`READ`] in effect: the others are for its
/// recorders, and for [`raised`].
///
/// # Errors
/// The system refuses; nothing or part has been given up then.
pub fn give_up() -> io::Result<()> {
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // What the process could still get by running a program; without CAP_SETPCAP there is no dropping, and nothing to get.
    for cap in (0..=MOST).filter(|cap| SERVICE & (1 << cap) == 0) {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) };
    }
    set(Sets { effective: READ, permitted: get()?.permitted & SERVICE })
}

/// Keeps these of what it has, all in effect.
///
/// # Errors
/// The system refuses; nothing has changed then.
pub fn keep(caps: u64) -> io::Result<()> {
    let permitted = get()?.permitted & caps;
    set(Sets { effective: permitted, permitted })
}

/// Keeps what opening and reading others' mapped files takes; only [`READ`] of it in effect.
///
/// # Errors
/// The system refuses; nothing has changed then.
pub fn keep_looking() -> io::Result<()> {
    set(Sets { effective: READ, permitted: get()?.permitted & (READ | SYS_ADMIN) })
}

/// Keeps what a recorder needs that attaches to nothing more; with `counting`, also what counters take on CPUs that come on.
///
/// # Errors
/// As those of [`keep`]; part may have been given up.
pub fn keep_attached(counting: bool) -> io::Result<()> {
    let kept = READ | if counting { PERFMON } else { 0 };
    keep(kept | BPF)?;
    let all = get()?;
    set(Sets { effective: kept, ..all })?;
    if maps_are_free() { keep(kept) } else { set(all) }
}

/// Whether this kernel lets whoever has a map's descriptor use it (since 5.19, before that where
/// kernel.unprivileged_bpf_disabled is 0): else it refuses before it looks at the descriptor.
fn maps_are_free() -> bool {
    const LOOK_UP: libc::c_long = 1;
    let mut attributes = [0u32; 32];
    attributes[0] = u32::MAX;
    // SAFETY: a block of the size that is said, of which the kernel reads a part; there is no such descriptor.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, LOOK_UP, attributes.as_mut_ptr(), size_of_val(&attributes)) };
    done < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF)
}

/// Leaves of what is in effect only [`READ`] until it is dropped: for work on what others have written. Where the system
/// refuses, nothing changes.
pub fn reading() -> Raised {
    let before = get().ok();
    before.into_iter().for_each(|sets| drop(set(Sets { effective: sets.effective & READ, ..sets })));
    Raised(before)
}

/// What was in effect before comes back when it is dropped.
pub struct Raised(Option<Sets>);

/// Puts all that is permitted in effect. Where the system refuses, so it will what was to be done.
pub fn raised() -> Raised {
    let before = get().ok();
    before.into_iter().for_each(|sets| drop(set(Sets { effective: sets.permitted, ..sets })));
    Raised(before)
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.into_iter().for_each(|before| drop(set(before)));
    }
}
