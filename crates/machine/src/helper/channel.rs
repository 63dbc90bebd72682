//! Between a program and its helper process: complete messages over a socket pair, each end non-blocking.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wake;

/// Maximum message size, bytes.
const MOST: usize = 64 << 10;

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
            .map_err(|_| io::Error::other("a message to a helper process is too long"))?;
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
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Message {
        Text(String),
        Stop,
    }

    /// What is received once the other end is closed. A child that another test is about to start has a copy of it until
    /// its program begins.
    fn end_of(channel: &mut Channel) -> io::Error {
        loop {
            match channel.receive::<Message>() {
                Ok(None) => channel.wait(std::time::Duration::from_secs(1)),
                Ok(Some(message)) => panic!("{message:?} before the end"),
                Err(end) => return end,
            }
        }
    }

    #[test]
    fn messages_arrive_whole_and_an_end_is_told() {
        let (mut here, mut there) = Channel::pair().expect("a pair");
        assert!(there.receive::<Message>().expect("nothing").is_none());
        here.send(&Message::Text("a\nb".into())).expect("sent");
        here.send(&Message::Stop).expect("sent");
        assert_eq!(there.receive().expect("read"), Some(Message::Text("a\nb".into())));
        assert_eq!(there.receive().expect("read"), Some(Message::Stop));
        assert!(there.send(&Message::Text("x".repeat(2 * MOST))).is_err());
        drop(here);
        assert_eq!(end_of(&mut there).kind(), io::ErrorKind::UnexpectedEof);
        assert!(there.send(&Message::Stop).is_err());
    }

    #[test]
    fn last_words_are_heard_of_one_that_did_not_listen() {
        let (mut here, mut there) = Channel::pair().expect("a pair");
        here.send(&Message::Stop).expect("sent");
        there.send(&Message::Text("last words".into())).expect("sent");
        drop(there);
        assert_eq!(here.receive().expect("read"), Some(Message::Text("last words".into())));
        assert_eq!(end_of(&mut here).kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let (here, mut there) = Channel::pair().expect("a pair");
        let junk = [255u8; 9];
        assert_eq!(net::send(&here.socket, &junk, SendFlags::empty()), Ok(9));
        assert_eq!(there.receive::<Message>().expect_err("junk").kind(), io::ErrorKind::InvalidData);
    }
}
