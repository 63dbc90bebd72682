//! Between the service and a recorder: complete messages over a socket pair, each end non-blocking.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::run::Run;
use super::totals::ModelTally;
use super::trigger::Fired;
use crate::host::wake;
use crate::recorder::computing::ComputingChange;
use crate::recorder::recording::Calibration;

/// Maximum message size, bytes.
const MOST: usize = 64 << 10;

/// From the service to a recorder.
#[derive(Debug, Serialize, Deserialize)]
pub enum RecorderCommand {
    /// Record this run.
    Follow(Box<Run>),
    /// Stop recording the run of this process.
    Leave(u32),
    /// Write out the ring.
    Dump,
    /// Write this text into the trace, as of this time, CLOCK_MONOTONIC ns.
    Note(u64, String),
    /// End cleanly.
    Stop,
}

/// From a recorder to the service.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerEvent {
    /// The state of some of its runs.
    Runs(Vec<Run>),
    /// Its calibration of the machine, before its first run.
    Calibration(Calibration),
    /// It is attached, attaches to nothing more, and has dropped the privileges for that.
    Attached,
    /// It would have to attach to more for a run, given by its first process and all processes: the run needs
    /// another recorder.
    Declined(u32, Vec<u32>),
    /// A process has an engine with this build id.
    Engine(u32, String),
    /// A process computes something else from now on.
    Computes(ComputingChange),
    /// What was seen of the requests of a model, since the last message about it.
    Observed(Box<ModelTally>),
    /// The rule's trigger has fired.
    Triggered(Fired),
    /// For the log.
    Message(String),
    /// This recording is complete: nothing more is written to the file.
    File(String),
    /// The ring was written to this file, or why not.
    Dumped(Result<String, DumpError>),
    /// It ends; with a reason, unless it was asked to.
    Ends {
        why: Option<String>,
        /// There is no room; this may change later.
        full: bool,
    },
}

/// Why a ring was not written to a file. What the system refused to the recorder comes as its text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum DumpError {
    #[error("its rule has no ring: it is recorded to files")]
    NoRing,
    /// No file could be created.
    #[error("{0}")]
    Create(String),
    /// The file could not be written.
    #[error("{0}")]
    Write(String),
    #[error("its recorder named no file")]
    NoName,
    #[error("its recorder has ended")]
    Ended,
}

impl DumpError {
    /// With the recorder's text changed.
    pub fn map_text(self, change: impl FnOnce(&str) -> String) -> DumpError {
        match self {
            DumpError::Create(text) => DumpError::Create(change(&text)),
            DumpError::Write(text) => DumpError::Write(change(&text)),
            DumpError::NoRing | DumpError::NoName | DumpError::Ended => self,
        }
    }
}

/// One end of the channel.
pub struct Channel {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

impl Channel {
    /// Creates both ends.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let end = |socket| Channel { socket, buffer: vec![0; MOST].into() };
        Ok((end(a), end(b)))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other end is gone, or is not reading (`WouldBlock`), or the message is too long.
    pub fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let bytes = postcard::to_slice(message, &mut self.buffer)
            .map_err(|_| io::Error::other("a message between service and recorder is too long"))?;
        net::send(&self.socket, bytes, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next message; None: none at the moment.
    ///
    /// # Errors
    /// The other end is gone (`UnexpectedEof`), or has sent something else (`InvalidData`).
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let n = match self.take() {
            // The other end closed without reading everything sent to it. The kernel reports that before what the
            // other end has sent.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => self.take(),
            n => n,
        };
        match n {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => postcard::from_bytes(self.buffer.get(..n).unwrap_or_default())
                .map(Some)
                .map_err(|_| io::ErrorKind::InvalidData.into()),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn take(&mut self) -> io::Result<usize> {
        let (n, _) = net::recv(&self.socket, &mut *self.buffer, RecvFlags::empty())?;
        Ok(n)
    }

    /// Waits for a message or for the other end to close, at most this long.
    pub fn wait(&self, most: std::time::Duration) {
        let fd = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        wake::poll(&mut [fd], most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_an_end_is_told() {
        let (mut here, mut there) = Channel::pair().expect("a pair");
        assert!(there.receive::<RecorderCommand>().expect("nothing").is_none());
        let run = Run { pid: 7, exe: "a\nb".into(), ..Run::default() };
        here.send(&RecorderCommand::Follow(Box::new(run.clone()))).expect("sent");
        here.send(&RecorderCommand::Stop).expect("sent");
        assert!(matches!(there.receive().expect("read"), Some(RecorderCommand::Follow(r)) if *r == run));
        assert!(matches!(there.receive().expect("read"), Some(RecorderCommand::Stop)));
        let long = WorkerEvent::Message("x".repeat(2 * MOST));
        assert!(there.send(&long).is_err());
        drop(here);
        assert_eq!(
            there.receive::<RecorderCommand>().expect_err("gone").kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert!(there.send(&WorkerEvent::Dumped(Ok("x".into()))).is_err());
    }

    #[test]
    fn last_words_are_heard_of_one_that_did_not_listen() {
        let (mut here, mut there) = Channel::pair().expect("a pair");
        here.send(&RecorderCommand::Dump).expect("sent");
        there.send(&WorkerEvent::Message("last words".into())).expect("sent");
        drop(there);
        assert!(matches!(here.receive().expect("read"), Some(WorkerEvent::Message(m)) if m == "last words"));
        assert_eq!(here.receive::<WorkerEvent>().expect_err("gone").kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let (here, mut there) = Channel::pair().expect("a pair");
        let junk = [255u8; 9];
        assert_eq!(net::send(&here.socket, &junk, SendFlags::empty()), Ok(9));
        assert_eq!(there.receive::<RecorderCommand>().expect_err("junk").kind(), io::ErrorKind::InvalidData);
    }
}
