//! A kernel without certain system calls, simulated with a seccomp filter around one command.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes each of `calls` fail with `errno` for the command.
pub fn refuse(command: &mut Command, errno: i32, calls: &[libc::c_long]) {
    let step = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    // Load the system call number; if it is one of these, fail it, otherwise allow it.
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for &call in calls {
        filter.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1));
        filter.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0));
    }
    filter.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    // SAFETY: between fork and exec only prctl is called, on memory that the closure owns.
    unsafe {
        command.pre_exec(move || {
            let rules = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            let mode = libc::SECCOMP_MODE_FILTER;
            match libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const rules) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    };
}
