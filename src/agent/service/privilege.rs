//! Gives up what the service needs at no time: capabilities beyond those of docs/SERVICE.md, and the way to new ones. Uses
//! nothing of this crate.

use std::io;

/// What it keeps where it has it (include/uapi/linux/capability.h): CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_ADMIN,
/// CAP_SYS_RESOURCE, CAP_PERFMON, CAP_BPF.
const KEPT: u64 = 1 << 2 | 1 << 19 | 1 << 21 | 1 << 24 | 1 << 38 | 1 << 39;
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

/// Keeps of this process's capabilities those of the service alone, also in what it might run. Gives how many were given up.
///
/// # Errors
/// The system refuses; nothing or part has been given up then.
pub fn give_up() -> io::Result<u32> {
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // What the process could still get by running a program; without CAP_SETPCAP there is no dropping, and nothing to get.
    for cap in (0..=MOST).filter(|cap| KEPT & (1 << cap) == 0) {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) };
    }
    let mut header = Header { version: VERSION, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 has one header and two parts of data, as given.
    if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let had = |data: &[Data; 2]| data.iter().map(|d| d.permitted.count_ones()).sum::<u32>();
    let before = had(&data);
    for (part, kept) in data.iter_mut().zip([KEPT as u32, (KEPT >> 32) as u32]) {
        part.permitted &= kept;
        (part.effective, part.inheritable) = (part.permitted, 0);
    }
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(before - had(&data))
}
