//! The user that a command runs as, if it is not the recorder's own. The database of users is the C library's.

use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

/// A user of this machine, with everything that the user's processes inherit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// The user's groups from the system's database, including `gid`.
    pub groups: Vec<libc::gid_t>,
    pub name: OsString,
    pub home: OsString,
    pub shell: OsString,
}

/// Maximum number of bytes of one user's entry, and of groups; both far above normal use.
const MOST_BYTES: usize = 1 << 20;
const MOST_GROUPS: usize = 1 << 16;

impl User {
    /// The user with this id, with this group instead of the one in the database. None: there is no such user.
    ///
    /// # Errors
    /// The system's lists of users and groups cannot be read.
    pub fn find(uid: u32, gid: u32) -> io::Result<Option<User>> {
        User::look_up(uid, Some(gid))
    }

    /// The same with the group in the database.
    ///
    /// # Errors
    /// As for [`User::find`].
    pub fn of(uid: u32) -> io::Result<Option<User>> {
        User::look_up(uid, None)
    }

    /// The same; without an entry in the database, a user who has this number alone.
    ///
    /// # Errors
    /// As for [`User::find`].
    pub fn or_bare(uid: u32) -> io::Result<User> {
        let bare = || User {
            uid,
            gid: uid,
            groups: Vec::new(),
            name: "".into(),
            home: "/".into(),
            shell: "".into(),
        };
        Ok(User::of(uid)?.unwrap_or_else(bare))
    }

    fn look_up(uid: u32, gid: Option<u32>) -> io::Result<Option<User>> {
        let mut text = vec![0 as libc::c_char; 4096];
        loop {
            // SAFETY: all zero is a valid value of the struct; the C library fills it, and the buffer of the given
            // length.
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
                    // SAFETY: the entry's strings end with a zero and are in the buffer, which is still alive.
                    let (name, home, shell) =
                        unsafe { (copy(entry.pw_name), copy(entry.pw_dir), copy(entry.pw_shell)) };
                    let gid = gid.unwrap_or(entry.pw_gid);
                    // SAFETY: as above.
                    let groups = groups(unsafe { CStr::from_ptr(entry.pw_name) }, gid)?;
                    return Ok(Some(User { uid, gid, groups, name, home, shell }));
                }
                libc::ERANGE if text.len() < MOST_BYTES => text.resize(text.len() * 4, 0),
                // "Not found" in some C libraries.
                libc::ENOENT | libc::ESRCH => return Ok(None),
                failed => return Err(io::Error::from_raw_os_error(failed)),
            }
        }
    }

    /// Environment variables of the user's processes.
    pub fn environment(&self) -> [(&'static str, &OsStr); 4] {
        [("HOME", &self.home), ("USER", &self.name), ("LOGNAME", &self.name), ("SHELL", &self.shell)]
    }

    /// Switches this process to the user, permanently. Plain system calls, safe in a child before its exec.
    ///
    /// # Errors
    /// The kernel refuses one of them.
    pub fn enter(&self) -> io::Result<()> {
        // SAFETY: a list of the stated length, and numbers. Groups come first: without root's privileges they can
        // no longer be changed.
        let done = unsafe {
            libc::setgroups(self.groups.len() as _, self.groups.as_ptr()) == 0
                && libc::setresgid(self.gid, self.gid, self.gid) == 0
                && libc::setresuid(self.uid, self.uid, self.uid) == 0
        };
        if done { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A string of the C library; empty if there is none.
///
/// # Safety
/// Null, or a string that ends with a zero.
unsafe fn copy(text: *const libc::c_char) -> OsString {
    if text.is_null() {
        return OsString::new();
    }
    // SAFETY: as the caller states.
    OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()).to_owned()
}

/// All groups of a user, including `gid`: what initgroups(3) would set.
fn groups(name: &CStr, gid: u32) -> io::Result<Vec<libc::gid_t>> {
    let mut room = 64;
    while room <= MOST_GROUPS {
        let mut groups: Vec<libc::gid_t> = vec![0; room];
        let mut n = room as libc::c_int;
        // SAFETY: a string that ends with a zero, and room for the stated number of groups.
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
        assert_eq!(User::of(0).expect("readable").map(|user| user.gid), Some(0));
        let bare = User::or_bare(3_999_999_999).expect("readable");
        assert_eq!((bare.uid, bare.gid, bare.groups.len()), (3_999_999_999, 3_999_999_999, 0));
        assert_eq!(User::or_bare(0).expect("readable").name, "root");
    }
}
