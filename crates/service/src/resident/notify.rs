//! Reports the service's state to the service manager with the protocol of sd_notify(3). Does nothing without a
//! manager.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use common::plain::hides;
use machine::usage;

/// The address to notify, and how often.
#[derive(Debug, Default)]
pub struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// The watchdog's timeout.
    watchdog: Option<Duration>,
    managed: Option<Instant>,
    status: String,
}

impl Notify {
    /// The manager named by the environment.
    pub fn new() -> Notify {
        Notify::of(
            env::var_os("NOTIFY_SOCKET"),
            env::var("WATCHDOG_USEC").ok(),
            env::var("WATCHDOG_PID").ok(),
        )
    }

    fn of(socket: Option<OsString>, usec: Option<String>, pid: Option<String>) -> Notify {
        let Some(address) = socket.and_then(|path| address(&path)) else { return Notify::default() };
        let ours = pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let usec = usec.and_then(|n| n.parse().ok()).filter(|n| ours && *n > 0);
        // A manager that does not read must not block us.
        let socket = UnixDatagram::unbound().and_then(|s| s.set_nonblocking(true).map(|()| s));
        let to = socket.ok().map(|socket| (socket, address));
        Notify { to, watchdog: usec.map(Duration::from_micros), managed: None, status: String::new() }
    }

    /// The service has started, or has reloaded its configuration.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// The configuration is being reloaded.
    pub fn reloading(&self) {
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", usage::now() / 1000));
    }

    /// The service ends.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// A one-line status; sent when it has changed.
    pub fn status(&mut self, text: &str) {
        if self.to.is_some() && self.status != text {
            text.clone_into(&mut self.status);
            self.tell(&format!("STATUS={}", text.replace(hides, " ")));
        }
    }

    /// Maximum interval between calls of [`Notify::alive`]; None: there is no watchdog.
    pub fn due(&self) -> Option<Duration> {
        self.watchdog.map(|every| every / 2)
    }

    /// The service is alive. Notifies the watchdog after half of its timeout.
    pub fn alive(&mut self) {
        let Some(every) = self.due() else { return };
        if self.managed.is_none_or(|managed| managed.elapsed() >= every) {
            self.managed = Some(Instant::now());
            self.tell("WATCHDOG=1");
        }
    }

    fn tell(&self, text: &str) {
        if let Some((socket, address)) = &self.to {
            // A missing manager is no reason to end.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}

/// A path, or an abstract name after '@'. Other addresses are not supported.
fn address(path: &OsStr) -> Option<SocketAddr> {
    match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        [b'/', ..] => SocketAddr::from_pathname(path).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(manager: &UnixDatagram) -> String {
        let mut text = [0; 512];
        match manager.recv(&mut text) {
            Ok(n) => String::from_utf8_lossy(&text[..n]).into_owned(),
            Err(_) => "nothing".into(),
        }
    }

    fn says_all(manager: &UnixDatagram, socket: OsString) {
        manager.set_nonblocking(true).expect("a socket");
        let us = std::process::id().to_string();
        let mut notify = Notify::of(Some(socket), Some("20000000".into()), Some(us));
        assert_eq!(notify.due(), Some(Duration::from_secs(10)));
        notify.ready();
        assert_eq!(next(manager), "READY=1");
        notify.status("recording \nREADY=0\u{1b}");
        assert_eq!(next(manager), "STATUS=recording  READY=0 ");
        notify.status("recording \nREADY=0\u{1b}");
        assert_eq!(next(manager), "nothing");
        notify.alive();
        notify.alive();
        assert_eq!((next(manager), next(manager)), ("WATCHDOG=1".into(), "nothing".into()));
        notify.managed = Instant::now().checked_sub(Duration::from_secs(11));
        notify.alive();
        assert_eq!(next(manager), "WATCHDOG=1");
        let before = usage::now() / 1000;
        notify.reloading();
        let said = next(manager);
        let usec = said.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").and_then(|n| n.parse().ok());
        assert!(usec.is_some_and(|n| (before..=usage::now() / 1000).contains(&n)), "{said}");
        notify.stopping();
        assert_eq!(next(manager), "STOPPING=1");
    }

    #[test]
    fn a_manager_hears_all_of_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        says_all(&UnixDatagram::bind(&path).expect("a socket"), path.into());
        let name = format!("profinfer-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        says_all(&UnixDatagram::bind_addr(&address).expect("a socket"), format!("@{name}").into());
    }

    #[test]
    fn without_a_manager_or_a_watchdog_nothing_is_told() {
        for none in [None, Some("".into()), Some("vsock:2:1234".into()), Some("relative".into())] {
            let mut notify = Notify::of(none, Some("1000".into()), None);
            assert!(notify.to.is_none() && notify.due().is_none());
            notify.ready();
            notify.alive();
            notify.status("x");
        }
        let socket = || Some("/nowhere/at/all".into());
        let watched = |usec: &str, pid: &str| Notify::of(socket(), Some(usec.into()), Some(pid.into())).due();
        assert_eq!((watched("1000", "1"), watched("0", "x"), watched("x", "")), (None, None, None));
        Notify::of(socket(), None, None).ready();
    }
}
