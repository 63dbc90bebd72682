//! uprobe_multi links (kernel 6.6): attach a BPF program to an offset in a file, in one process.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys as sys;

/// Attaches a program to an offset of a file, in one process.
///
/// # Errors
/// The kernel refuses: ESRCH where the process is gone.
pub fn link(program: BorrowedFd<'_>, path: &str, offset: u64, ret: bool, pid: u32) -> io::Result<OwnedFd> {
    let (path, offsets) = (CString::new(path)?, [offset]);
    let mut opts =
        sys::bpf_link_create_opts { sz: size_of::<sys::bpf_link_create_opts>() as _, ..Default::default() };
    opts.__bindgen_anon_1.uprobe_multi = sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
        cnt: 1,
        path: path.as_ptr(),
        offsets: offsets.as_ptr(),
        flags: if ret { sys::BPF_F_UPROBE_MULTI_RETURN } else { 0 },
        pid,
        ..Default::default()
    };
    // SAFETY: path and offsets live through the call; the options are as long as they say.
    let made =
        unsafe { sys::bpf_link_create(program.as_raw_fd(), 0, sys::BPF_TRACE_UPROBE_MULTI, &raw const opts) };
    opened(made)
}

/// Whether the kernel has uprobe_multi links that filter by process. Those of 6.6 to 6.9 filter by thread. A kernel with
/// the fix rejects an invalid PID before it opens the file (the test that libbpf's features.c uses).
pub fn links_work() -> bool {
    let Ok(program) = empty() else { return false };
    let refused = |pid| link(program.as_fd(), "/", 0, false, pid).err().and_then(|e| e.raw_os_error());
    refused(0) == Some(libc::EBADF) && refused(u32::MAX) == Some(libc::EINVAL)
}

/// A program that does nothing and can be attached by such links.
///
/// # Errors
/// The kernel refuses it.
pub fn empty() -> io::Result<OwnedFd> {
    // r0 = 0; exit (BPF_ALU64 | BPF_MOV | BPF_K, BPF_JMP | BPF_EXIT).
    let code = [0xb7, 0x95].map(|code| sys::bpf_insn { code, ..Default::default() });
    let mut opts = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as _,
        expected_attach_type: sys::BPF_TRACE_UPROBE_MULTI,
        ..Default::default()
    };
    let (kind, name, license) = (sys::BPF_PROG_TYPE_KPROBE, c"empty".as_ptr(), c"GPL".as_ptr());
    // SAFETY: strings, instructions and options live through the call and are as long as said.
    let made =
        unsafe { sys::bpf_prog_load(kind, name, license, code.as_ptr(), code.len() as _, &raw mut opts) };
    opened(made)
}

/// A descriptor, or a negative error number.
fn opened(made: i32) -> io::Result<OwnedFd> {
    match made {
        // SAFETY: a descriptor that the kernel has just made for us; nobody else has it.
        fd if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
