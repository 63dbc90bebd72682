//! Reading another process's memory. rustix has no process_vm_readv(2).

use std::io;

/// Fills `buf` from the target's memory at `addr`; an error if not all of it could be read.
pub fn read(pid: u32, addr: u64, buf: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: buf.len() };
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: `local` describes `buf`, which we may write for its full length; the kernel checks the remote side.
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

/// Maximum number of pieces per call (UIO_MAXIOV, include/uapi/linux/uio.h).
const PIECES: usize = 1024;

/// Reads `len` bytes at each of `at` into `buf`, one after another. Returns for each whether it could be read.
pub fn read_each(pid: u32, at: &[u64], len: usize, buf: &mut [u8]) -> Vec<bool> {
    let mut read = vec![false; at.len()];
    let Ok(target) = libc::pid_t::try_from(pid) else { return read };
    let mut next = 0;
    while next < at.len() && len > 0 {
        let piece = at.get(next..at.len().min(next + PIECES)).unwrap_or_default();
        let remote: Vec<libc::iovec> =
            piece.iter().map(|&at| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: len }).collect();
        let Some(room) = buf.get_mut(next * len..(next + piece.len()) * len) else { return read };
        let local = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: `local` describes a part of `buf`, which we may write; the kernel checks the remote side.
        let n = unsafe {
            libc::process_vm_readv(
                target,
                &raw const local,
                1,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        if n < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) {
            // The process is gone, or we may not read it.
            return read;
        }
        let whole = usize::try_from(n).unwrap_or(0) / len;
        read.iter_mut().skip(next).take(whole).for_each(|r| *r = true);
        // The call stops at the first unreadable piece: that one is skipped.
        next += whole + usize::from(whole < piece.len());
    }
    read
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

    #[test]
    fn a_hole_among_many_is_passed_over() {
        let (a, b) = ([1u8; 8], [2u8; 8]);
        let at = [a.as_ptr() as u64, 8, b.as_ptr() as u64, 16];
        let mut buf = [0; 32];
        assert_eq!(read_each(std::process::id(), &at, 8, &mut buf), [true, false, true, false]);
        assert_eq!((buf[0], buf[16]), (1, 2));
    }
}
