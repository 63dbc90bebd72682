//! The user who called sudo: a command to record runs as that user, who also owns the recording's file.

use std::ffi::OsString;

use anyhow::{Context, Result, bail};

use cli::args::{Args, Flag};
use machine::user::User;

pub const AS_ROOT: Flag = Flag::switch(
    "as-root",
    "Under sudo, run COMMAND as root and let root own FILE [default: the user who called sudo, for both]",
)
.cli_only();

/// The user and the group that sudo was called by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
}

impl Caller {
    /// None if this is not root through sudo, if root called sudo, or if [`AS_ROOT`] is given.
    ///
    /// # Errors
    /// The variables of sudo contain no user and group.
    pub fn read(args: &Args) -> Result<Option<Caller>> {
        let root = rustix::process::geteuid().is_root();
        if !root || args.flag("as-root") {
            return Ok(None);
        }
        Self::of(std::env::var_os("SUDO_UID"), std::env::var_os("SUDO_GID"))
    }

    fn of(uid: Option<OsString>, gid: Option<OsString>) -> Result<Option<Caller>> {
        let Some(uid) = uid else { return Ok(None) };
        let Some(gid) = gid else { bail!("SUDO_UID is set but SUDO_GID is not: {ADVICE}") };
        let number = |name, text: &OsString| {
            let number = text.to_str().filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
            let number = number.and_then(|t| t.parse().ok()).filter(|n| *n != u32::MAX);
            number.with_context(|| format!("{name} '{}' is not a user or group ID: {ADVICE}", text.display()))
        };
        let caller = Caller { uid: number("SUDO_UID", &uid)?, gid: number("SUDO_GID", &gid)? };
        Ok((caller.uid != 0).then_some(caller))
    }

    /// The user that a command can run as.
    ///
    /// # Errors
    /// This machine does not know the user.
    pub fn user(self) -> Result<User> {
        let Caller { uid, gid } = self;
        let found = User::find(uid, gid)
            .with_context(|| format!("cannot look up user {uid} (SUDO_UID): {ADVICE}"))?;
        found.with_context(|| format!("user {uid} (SUDO_UID) does not exist on this machine: {ADVICE}"))
    }
}

const ADVICE: &str = "--as-root ignores these variables and runs COMMAND as root";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sudo_left_is_two_numbers_or_an_error() {
        let of = |uid: Option<&str>, gid: Option<&str>| {
            Caller::of(uid.map(Into::into), gid.map(Into::into)).map_err(|e| e.to_string())
        };
        assert_eq!(of(None, None), Ok(None));
        assert_eq!(of(None, Some("1000")), Ok(None));
        assert_eq!(of(Some("0"), Some("0")), Ok(None));
        assert_eq!(of(Some("1000"), Some("100")), Ok(Some(Caller { uid: 1000, gid: 100 })));
        for (uid, gid) in [
            ("", "1"),
            ("x", "1"),
            ("-1", "1"),
            ("+1", "1"),
            ("1", "1 "),
            ("4294967295", "1"),
            ("1", "4294967296"),
        ] {
            assert!(of(Some(uid), Some(gid)).is_err_and(|e| e.contains("--as-root")), "{uid} {gid}");
        }
        assert!(of(Some("1000"), None).is_err_and(|e| e.contains("SUDO_GID is not")));
        assert!(Caller { uid: 3_999_999_999, gid: 1 }.user().is_err());
    }
}
