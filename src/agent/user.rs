//! The user that a command runs as, where that is not the recorder's own. Uses nothing of this crate.

use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

/// A user of this machine, with all that a process of his has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// The groups that the machine's files say, `gid` among them.
    pub groups: Vec<libc::gid_t>,
    pub name: OsString,
    pub home: OsString,
    pub shell: OsString,
}

/// Most bytes of one user's entry, and most groups; both far beyond what is in use.
const MOST_BYTES: usize = 1 << 20;
const MOST_GROUPS: usize = 1 << 16;

impl User {
    /// The user of this number, with this group in place of the one that is entered. None: there is no such user.
    ///
    /// # Errors
    /// The system's lists of users and groups cannot be read.
    pub fn find(uid: u32, gid: u32) -> io::Result<Option<User>> {
        let mut text = vec![0 as libc::c_char; 4096];
        loop {
            // SAFETY: all zero is a value of the struct; the C library fills it, and the buffer of the length said.
            let (failed, found, entry) = unsafe {
                let mut entry = std::mem::zeroed::<libc::passwd>();
                let mut found = std::ptr::null_mut();
                let failed =
                    libc::getpwuid_r(uid, &raw mut entry, text.as_mut_ptr(), text.len(), &raw mut found);
                (failed, !found.is_null(), entry)
            };
            match failed {
                0 if !found => return Ok(None),
                0 => {
                    // SAFETY: the entry's texts end with a zero and are in the buffer, which is still there.
                    let (name, home, shell) =
                        unsafe { (copy(entry.pw_name), copy(entry.pw_dir), copy(entry.pw_shell)) };
                    // SAFETY: as above.
                    let groups = groups(unsafe { CStr::from_ptr(entry.pw_name) }, gid)?;
                    return Ok(Some(User { uid, gid, groups, name, home, shell }));
                }
                libc::ERANGE if text.len() < MOST_BYTES => text.resize(text.len() * 4, 0),
                // "Not found", as some C libraries say it.
                libc::ENOENT | libc::ESRCH => return Ok(None),
                failed => return Err(io::Error::from_raw_os_error(failed)),
            }
        }
    }

    /// What his processes have in their environment.
    pub fn environment(&self) -> [(&'static str, &OsStr); 4] {
        [("HOME", &self.home), ("USER", &self.name), ("LOGNAME", &self.name), ("SHELL", &self.shell)]
    }

    /// Makes this process one of his, for good. Plain system calls, fit for a child before its exec.
    ///
    /// # Errors
    /// The kernel refuses one of them.
    pub fn enter(&self) -> io::Result<()> {
        // SAFETY: a list of the length said, and numbers. Groups come first: without root's power they stay as they are.
        let done = unsafe {
            libc::setgroups(self.groups.len() as _, self.groups.as_ptr()) == 0
                && libc::setresgid(self.gid, self.gid, self.gid) == 0
                && libc::setresuid(self.uid, self.uid, self.uid) == 0
        };
        if done { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A text of the C library's; empty where there is none.
///
/// # Safety
/// Null, or a text that ends with a zero.
unsafe fn copy(text: *const libc::c_char) -> OsString {
    if text.is_null() {
        return OsString::new();
    }
    // SAFETY: as the caller says.
    OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()).to_owned()
}

/// All groups of a user, `gid` among them: what initgroups(3) would set.
fn groups(name: &CStr, gid: u32) -> io::Result<Vec<libc::gid_t>> {
    let mut room = 64;
    while room <= MOST_GROUPS {
        let mut groups: Vec<libc::gid_t> = vec![0; room];
        let mut n = room as libc::c_int;
        // SAFETY: a text that ends with a zero, and room for as many groups as said.
        let got = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut n) };
        if got >= 0 {
            groups.truncate(usize::try_from(n).unwrap_or(0));
            return Ok(groups);
        }
        room *= 4;
    }
    Err(io::Error::other("the user is in too many groups"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_a_number_of_nobody_is_not() {
        let root = User::find(0, 7).expect("readable").expect("root");
        assert_eq!((root.uid, root.gid, root.name.to_str()), (0, 7, Some("root")));
        assert!(root.groups.contains(&7), "{:?}", root.groups);
        assert_eq!(User::find(3_999_999_999, 0).expect("readable"), None);
    }
}
