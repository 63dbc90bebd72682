//! The door at which processes with the library ask (crates/inside): a socket in the abstract namespace, of which
//! nothing is left when the recorder is gone, and the library in a file of memory that names it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

use crate::capture::skel;

/// An engine's own variable for a backend that is not among its own (ggml-backend-reg.cpp).
const BACKEND_PATH: &str = "GGML_BACKEND_PATH";
/// A process answers an order at once, unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no door.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    #[error("no library for this processor")]
    NoLibrary,
    #[error("the profinfer executable is damaged: its library cannot be unpacked")]
    Damaged,
    #[error("the library for the engine's process: {0}")]
    Memory(#[source] io::Error),
    #[error("a socket for the engine's process: {0}")]
    Socket(#[source] io::Error),
}

pub struct Door {
    socket: OwnedFd,
    key: [u8; inside::KEY_BYTES],
    library: File,
}

/// A process that waits for an answer.
pub struct Caller {
    socket: OwnedFd,
    pub pid: u32,
    pub hello: inside::Hello,
}

impl Door {
    /// # Errors
    /// The kernel refuses a socket or a file of memory.
    pub fn open() -> Result<Door, DoorError> {
        let mut library =
            skel::unpacked(inside::PACKED, inside::unpacked_bytes()).ok_or(DoorError::Damaged)?;
        let (mut name, mut key) = ([0; 16], [0; inside::KEY_BYTES]);
        let random = File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut name).and_then(|()| random.read_exact(&mut key)));
        random.map_err(DoorError::Socket)?;
        let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("profinfer-{name}");
        let mark = library.windows(inside::DOOR_MARK.len()).position(|w| w == inside::DOOR_MARK);
        let place = mark.and_then(|at| library.get_mut(at..at + inside::DOOR_BYTES + inside::KEY_BYTES));
        let (room, keys) = place
            .and_then(|place| place.split_at_mut_checked(inside::DOOR_BYTES))
            .ok_or(DoorError::NoLibrary)?;
        room.fill(0);
        room.iter_mut().skip(1).zip(name.bytes()).for_each(|(to, byte)| *to = byte);
        keys.copy_from_slice(&key);
        let socket = listen(&name).map_err(|e| DoorError::Socket(e.into()))?;
        Ok(Door { socket, key, library: in_memory(&library).map_err(DoorError::Memory)? })
    }

    fn path(&self) -> OsString {
        format!("/proc/{}/fd/{}", std::process::id(), self.library.as_raw_fd()).into()
    }

    /// The variables that make a command's loader load the library, before those that it loads already; with `wrapped`,
    /// an engine too to which the first does not come, as far as it loads backends while it runs.
    pub fn variables(&self, wrapped: bool) -> Vec<(&'static str, OsString)> {
        // One library only.
        let second = wrapped && std::env::var_os(BACKEND_PATH).is_none();
        let second = second.then(|| (BACKEND_PATH, self.path()));
        std::iter::once(self.variable()).chain(second).collect()
    }

    pub fn variable(&self) -> (&'static str, OsString) {
        let mut value = self.path();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            value.push(":");
            value.push(others);
        }
        ("LD_PRELOAD", value)
    }

    /// Readable when a process asks.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next process that asks.
    pub fn next(&self) -> Option<Caller> {
        loop {
            let socket = net::accept_with(&self.socket, SocketFlags::CLOEXEC).ok()?;
            if let Some(caller) = Caller::of(socket).filter(|caller| caller.hello.key == self.key) {
                return Some(caller);
            }
        }
    }
}

fn listen(name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    net::listen(&socket, 64)?;
    Ok(socket)
}

fn in_memory(bytes: &[u8]) -> io::Result<File> {
    // SAFETY: a name that ends with a zero; a descriptor that nothing else owns.
    let mut file = unsafe {
        match libc::memfd_create(c"libprofinfer-inside.so".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => return Err(io::Error::last_os_error()),
            fd => File::from_raw_fd(fd),
        }
    };
    file.write_all(bytes)?;
    Ok(file)
}

impl Caller {
    /// None: somebody else, or it is gone.
    fn of(socket: OwnedFd) -> Option<Caller> {
        let peer = net::sockopt::socket_peercred(&socket).ok()?;
        net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Recv, Some(PATIENCE)).ok()?;
        let mut hello = [0; size_of::<inside::Hello>()];
        let (read, _) = net::recv(&socket, &mut hello, net::RecvFlags::empty()).ok()?;
        // SAFETY: as many bytes as the struct has, all of which are integers.
        let hello: inside::Hello = (read == hello.len())
            .then(|| unsafe { hello.as_ptr().cast::<inside::Hello>().read_unaligned() })?;
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
        (hello.magic == inside::MAGIC).then_some(Caller { socket, pid, hello })
    }

    /// Gives an order, and waits until it is done.
    ///
    /// # Errors
    /// The process refuses, with its reason (ESTALE: the code to replace is not as in its file); or it is gone.
    pub fn order(&self, order: &inside::Order, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        match self.ask(order, file)? {
            0 => Ok(()),
            e => Err(io::Error::from_raw_os_error(i32::try_from(-e).unwrap_or(libc::EIO))),
        }
    }

    /// The same, with a number as the answer.
    ///
    /// # Errors
    /// The process is gone.
    pub fn ask(&self, order: &inside::Order, file: Option<BorrowedFd<'_>>) -> io::Result<i64> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let passed: Vec<BorrowedFd<'_>> = file.into_iter().collect();
        if !passed.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&passed));
        }
        net::sendmsg(&self.socket, &[IoSlice::new(inside::bytes(order))], &mut control, SendFlags::NOSIGNAL)?;
        let mut answer = [0; 8];
        let (read, _) = net::recv(&self.socket, &mut answer, net::RecvFlags::empty())?;
        match read == answer.len() {
            true => Ok(i64::from_ne_bytes(answer)),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Lets it go on.
    pub fn go(self) {
        // It goes on as well when the socket is closed.
        let _ = net::send(&self.socket, inside::bytes(&inside::Order::new(inside::GO)), SendFlags::NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_key_is_heard() {
        let door = Door::open().expect("a door");
        let at = net::getsockname(&door.socket).expect("its address");
        let say = |key| {
            let flags = SocketFlags::CLOEXEC;
            let socket =
                net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
            net::connect(&socket, &at).expect("anybody may connect");
            let hello = inside::Hello { magic: inside::MAGIC, key, ..inside::Hello::default() };
            net::send(&socket, inside::bytes(&hello), SendFlags::empty()).expect("sent");
            socket
        };
        let _stranger = say([7; inside::KEY_BYTES]);
        assert!(door.next().is_none());
        let _known = say(door.key);
        assert_eq!(door.next().map(|caller| caller.pid), Some(std::process::id()));
    }

    #[test]
    fn what_is_loaded_before_stays() {
        let door = Door::open().expect("a door");
        let (name, value) = door.variable();
        let text = value.to_string_lossy().into_owned();
        assert!(name == "LD_PRELOAD" && text.starts_with("/proc/"), "{text}");
        let names = |wrapped| door.variables(wrapped).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!((names(false), names(true)), (vec![name], vec![name, BACKEND_PATH]));
    }
}
