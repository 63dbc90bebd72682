//! Reading another process's memory. Uses nothing of this crate.

use std::io;

/// Fills `buf` from the target's memory at `addr`; an error if not all of it could be read.
pub fn read(pid: u32, addr: u64, buf: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: buf.len() };
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: `local` describes `buf`, which is ours to write for its whole length; the kernel checks the remote side.
    let n = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    match usize::try_from(n) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(n) if n < buf.len() => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(()),
    }
}

/// A pointer in the target's memory.
pub fn read_u64(pid: u32, addr: u64) -> io::Result<u64> {
    let mut b = [0; 8];
    read(pid, addr, &mut b)?;
    Ok(u64::from_le_bytes(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_itself_and_refuses_a_hole() {
        let (value, pid) = (0x1122_3344_5566_7788u64, std::process::id());
        assert_eq!(read_u64(pid, &raw const value as u64).expect("own memory"), value);
        assert!(read_u64(pid, 8).is_err());
    }
}
