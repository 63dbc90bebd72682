//! The control socket of the service: one request line, one line of JSON as the answer, then the connection closes.
//! Both ends.
//!
//! The service never waits for a client: a client that is slow or sends too much is disconnected, and one that
//! occupies a wanted place without asking goes first.

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use rustix::event::{PollFd, PollFlags};
use rustix::net;
use serde::Serialize;
use serde_json::Value;

use crate::place::{OpenDir, PlaceError, us};
use common::plain;
use machine::ready;

/// Maximum concurrent clients; others wait for their turn.
const CLIENTS: usize = 64;
/// Minimum time for each of them, even if others wait.
const GRACE: Duration = Duration::from_millis(100);
/// Maximum watchers at a time, of those clients.
const WATCHERS: usize = 8;
/// Maximum bytes waiting for a watcher that does not read: what comes then is dropped, and counted.
const QUEUE: usize = 64 << 10;
/// Longest request line, bytes.
const LINE: usize = 128;
/// Longest accepted answer, bytes.
const ANSWER: u64 = 16 << 20;
/// Time for a client to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for a deferred answer.
const PROMISE: Duration = Duration::from_secs(10);
/// Time for the listener on an existing socket to respond.
const ALIVE: Duration = Duration::from_secs(2);
/// Longest path of a socket, bytes (unix(7): 108 with the final NUL).
const PATH: usize = 107;

/// Requests to the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceRequest {
    /// Show status.
    Status,
    /// Write out the rings of all runs, or of one process's run.
    Dump(Option<u32>),
    /// Reload the configuration.
    Reload,
    /// Show events, one line of JSON each, until the client or the service ends.
    Watch,
    /// End.
    Stop,
}

impl fmt::Display for ServiceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceRequest::Status => f.write_str("status"),
            ServiceRequest::Dump(None) => f.write_str("dump"),
            ServiceRequest::Dump(Some(pid)) => write!(f, "dump {pid}"),
            ServiceRequest::Reload => f.write_str("reload"),
            ServiceRequest::Watch => f.write_str("watch"),
            ServiceRequest::Stop => f.write_str("stop"),
        }
    }
}

/// Why a line is not a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("'{0}' is not a process ID")]
    Pid(String),
    #[error("unknown request '{0}': give status, dump [PID], watch, reload or stop")]
    Unknown(String),
    #[error("a line may have at most {LINE} bytes")]
    Long,
}

impl ServiceRequest {
    pub(super) fn read(line: &[u8]) -> Result<ServiceRequest, RequestError> {
        let line = String::from_utf8_lossy(line);
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("status"), None, _) => Ok(ServiceRequest::Status),
            (Some("dump"), None, _) => Ok(ServiceRequest::Dump(None)),
            (Some("dump"), Some(pid), None) => {
                let pid = pid.parse().map_err(|_| RequestError::Pid(pid.to_owned()))?;
                Ok(ServiceRequest::Dump(Some(pid)))
            }
            (Some("reload"), None, _) => Ok(ServiceRequest::Reload),
            (Some("watch"), None, _) => Ok(ServiceRequest::Watch),
            (Some("stop"), None, _) => Ok(ServiceRequest::Stop),
            _ => Err(RequestError::Unknown(line.into_owned())),
        }
    }
}

/// The answer: JSON, or why there is none. Only the text of the error is sent.
pub type ServiceResponse = Result<String, Box<dyn Error>>;

/// Why a client cannot watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{WATCHERS} clients watch already: end one of them")]
struct Watched;

/// A deferred answer did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no answer in time: see the service's log")]
struct TooLate;

/// The answer to `dump`: the written files, by name in the service's directory.
pub fn dumped(directory: &Path, files: &[String]) -> ServiceResponse {
    #[derive(Serialize)]
    struct Dumped<'a> {
        directory: String,
        files: &'a [String],
    }
    let answer = Dumped { directory: directory.display().to_string(), files };
    Ok(plain::json(&answer)?)
}

/// The asking client, for a deferred answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientId(u64);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("{} is not a socket: remove it, or give the socket another name", .0.display())]
    NoSocket(PathBuf),
    #[error("a service already answers at {}: stop it ('profinfer stop'), or give this one another socket", .0.display())]
    Second(PathBuf),
    #[error("{} cannot be a socket path: it must have a file name and at most {PATH} bytes", .0.display())]
    Path(PathBuf),
    #[error("cannot create the socket {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// The service's end.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    place: OpenDir,
    name: String,
    /// Device and inode of the socket's file, and the process that made it.
    made: (u64, u64),
    maker: u32,
    clients: Vec<Client>,
    next: u64,
    patience: Duration,
    /// After an error, no client is accepted before this time.
    pause: Option<Instant>,
}

#[derive(Debug)]
struct Client {
    token: u64,
    stream: UnixStream,
    stage: Stage,
    /// It sends nothing more, but may still read.
    ended: bool,
    /// Received bytes, or bytes to send and how many of them are sent.
    bytes: Vec<u8>,
    gone: usize,
    since: Instant,
    until: Instant,
    /// A watcher's events that found no room since it was last told.
    dropped: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Asks,
    Waits,
    Takes,
    Watches,
}

impl Control {
    /// Creates the socket, mode 0600, in a directory of our own, which is created if missing. The socket of a dead
    /// service is replaced.
    ///
    /// # Errors
    /// A service answers there, something else has the name, others can write to the directory, or the system
    /// refuses.
    pub fn bind(path: &Path) -> Result<Control, SocketError> {
        let wrong = || SocketError::Path(path.to_owned());
        let name = path.file_name().and_then(|n| n.to_str()).ok_or_else(wrong)?.to_owned();
        if path.as_os_str().len() > PATH {
            return Err(wrong());
        }
        let above = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let place = OpenDir::open(above)?;
        look(&place, &name, path)?;
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        let listener = listen(&place, &name).map_err(failed)?;
        let found = fs::symlink_metadata(place.at(&name)).map_err(failed)?;
        Ok(Control {
            listener,
            place,
            name,
            made: (found.dev(), found.ino()),
            maker: std::process::id(),
            clients: Vec::new(),
            next: 0,
            patience: PATIENCE,
            pause: None,
        })
    }

    /// The descriptors to wait for, with their poll(2) events; call [`Control::poll`] after any of them, and also
    /// now and then.
    pub fn fds<'a>(&'a self, add: &mut dyn FnMut(BorrowedFd<'a>, PollFlags)) {
        let room = self.clients.len() < CLIENTS || self.idle(Instant::now()).is_some();
        if room && self.pause.is_none() {
            add(self.listener.as_fd(), PollFlags::IN);
        }
        for client in &self.clients {
            let takes =
                client.stage == Stage::Takes || client.stage == Stage::Watches && !client.bytes.is_empty();
            // The end of what a client sends stays readable: only its going is waited for then, which needs no flag.
            let events = match (takes, client.ended) {
                (true, _) => PollFlags::OUT,
                (false, true) => PollFlags::empty(),
                (false, false) => PollFlags::IN,
            };
            add(client.stream.as_fd(), events);
        }
    }

    /// Continues everything that can continue. `take` gets each request, and answers immediately, or returns None
    /// to answer later.
    pub fn poll(&mut self, take: &mut dyn FnMut(ServiceRequest, ClientId) -> Option<ServiceResponse>) {
        let now = Instant::now();
        self.accept(now);
        for client in &mut self.clients {
            if client.stage == Stage::Asks
                && let Some(asked) = client.asked()
            {
                match asked.map(|request| take(request, ClientId(client.token))) {
                    Ok(Some(answer)) => client.answer(&answer, now + self.patience),
                    Ok(None) => (client.stage, client.until) = (Stage::Waits, now + PROMISE),
                    Err(why) => client.answer(&Err(why.into()), now + self.patience),
                }
            }
            if client.stage == Stage::Waits && now > client.until {
                client.answer(&Err(TooLate.into()), now + self.patience);
            }
        }
        self.clients.retain_mut(|client| client.goes_on(now));
    }

    /// Lets a client watch from now on, beginning with this event. False: it has gone, or was refused.
    pub fn watch(&mut self, token: ClientId, first: &str) -> bool {
        let watching = self.watchers();
        let until = Instant::now() + self.patience;
        let found = self.clients.iter_mut().find(|c| c.token == token.0 && c.stage == Stage::Waits);
        found.is_some_and(|client| {
            if watching >= WATCHERS {
                client.answer(&Err(Watched.into()), until);
                client.put();
                return false;
            }
            (client.stage, client.bytes, client.gone) = (Stage::Watches, Vec::new(), 0);
            client.show(first);
            true
        })
    }

    /// Clients that watch.
    pub fn watchers(&self) -> usize {
        self.clients.iter().filter(|c| c.stage == Stage::Watches).count()
    }

    /// Shows an event, one line of JSON, to those who watch. Never waits: for one who does not read it is dropped.
    pub fn show(&mut self, event: &str) {
        self.clients.iter_mut().filter(|c| c.stage == Stage::Watches).for_each(|client| client.show(event));
    }

    /// Sends a deferred answer. False: the client has gone.
    pub fn answer(&mut self, token: ClientId, answer: &ServiceResponse) -> bool {
        let until = Instant::now() + self.patience;
        let found = self.clients.iter_mut().find(|c| c.token == token.0 && c.stage == Stage::Waits);
        found.is_some_and(|client| {
            client.answer(answer, until);
            client.put();
            true
        })
    }

    /// Position of the client that has been idle longest: does not ask, or does not take its answer.
    fn idle(&self, now: Instant) -> Option<usize> {
        let idle = |c: &Client| {
            !matches!(c.stage, Stage::Waits | Stage::Watches)
                && now.saturating_duration_since(c.since) >= GRACE
        };
        let all = self.clients.iter().enumerate().filter(|(_, c)| idle(c));
        all.min_by_key(|(_, c)| c.since).map(|(place, _)| place)
    }

    /// Disconnects an idle client if another one wants its place.
    fn make_place(&mut self, now: Instant) -> bool {
        let wanted = ready::wait(&mut [PollFd::new(&self.listener, PollFlags::IN)], Duration::ZERO);
        let idle = self.idle(now).filter(|_| wanted);
        idle.map(|place| self.clients.remove(place)).is_some()
    }

    fn accept(&mut self, now: Instant) {
        if self.pause.is_some_and(|until| now < until) {
            return;
        }
        self.pause = None;
        while self.clients.len() < CLIENTS || self.make_place(now) {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    // The file's mode already keeps out others; this is for clients that came another way.
                    let allowed = peer(&stream).is_ok_and(|uid| uid == 0 || uid == us());
                    if allowed && stream.set_nonblocking(true).is_ok() {
                        let (token, until) = (self.next, now + self.patience);
                        self.next += 1;
                        let (stage, bytes, ended) = (Stage::Asks, Vec::new(), false);
                        let (gone, dropped, since) = (0, 0, now);
                        self.clients.push(Client {
                            token,
                            stream,
                            stage,
                            ended,
                            bytes,
                            gone,
                            since,
                            until,
                            dropped,
                        });
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    // Without free descriptors the socket would stay ready, and we would spin.
                    self.pause = Some(now + Duration::from_secs(1));
                    break;
                }
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // A process forked from the service drops it too, and another service may have replaced this one.
        let path = self.place.at(&self.name);
        let ours = fs::symlink_metadata(&path).is_ok_and(|f| (f.dev(), f.ino()) == self.made);
        if ours && self.maker == std::process::id() {
            let _ = fs::remove_file(path);
        }
    }
}

impl Client {
    /// Its request, once the line is complete.
    fn asked(&mut self) -> Option<Result<ServiceRequest, RequestError>> {
        let mut room = [0; LINE];
        while self.bytes.len() <= LINE && !self.bytes.contains(&b'\n') {
            match (&self.stream).read(&mut room) {
                Ok(0) => {
                    // Nobody is there to take an answer.
                    (self.stage, self.bytes) = (Stage::Takes, Vec::new());
                    return None;
                }
                Ok(n) => self.bytes.extend_from_slice(room.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        match self.bytes.iter().position(|b| *b == b'\n').filter(|end| *end <= LINE) {
            Some(end) => Some(ServiceRequest::read(self.bytes.get(..end).unwrap_or_default())),
            None => Some(Err(RequestError::Long)),
        }
    }

    fn answer(&mut self, answer: &ServiceResponse, until: Instant) {
        let line = match answer {
            // It is JSON already.
            Ok(json) => format!("{{\"ok\":true,\"answer\":{json}}}\n"),
            Err(why) => {
                let why = plain::json(&why.to_string()).unwrap_or_default();
                format!("{{\"ok\":false,\"error\":{why}}}\n")
            }
        };
        (self.bytes, self.gone, self.stage, self.until) = (line.into_bytes(), 0, Stage::Takes, until);
    }

    /// Puts an event into a watcher's queue, after a count of those that found no room.
    fn show(&mut self, event: &str) {
        self.put_some();
        let told = match self.dropped {
            0 => String::new(),
            n => format!("{{\"v\":{},\"event\":\"dropped\",\"dropped\":{n}}}\n", crate::watch::VERSION),
        };
        if self.bytes.len() + told.len() + event.len() >= QUEUE {
            self.dropped += 1;
            return;
        }
        self.dropped = 0;
        self.bytes.extend_from_slice(told.as_bytes());
        self.bytes.extend_from_slice(event.as_bytes());
        self.bytes.push(b'\n');
        self.put_some();
    }

    /// Sends what can be sent, and forgets it. False: the client has gone.
    fn put_some(&mut self) -> bool {
        let all = self.put();
        let goes = !all || self.gone == self.bytes.len();
        self.bytes.drain(..self.gone);
        self.gone = 0;
        goes
    }

    /// Sends what can be sent. True: everything is sent, or never will be.
    fn put(&mut self) -> bool {
        loop {
            let rest = self.bytes.get(self.gone..).unwrap_or_default();
            if rest.is_empty() {
                return true;
            }
            match (&self.stream).write(rest) {
                Ok(n) => self.gone += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return e.kind() != ErrorKind::WouldBlock,
            }
        }
    }

    /// False: it must be disconnected.
    fn goes_on(&mut self, now: Instant) -> bool {
        match self.stage {
            Stage::Asks => now <= self.until,
            Stage::Waits => !self.left(),
            Stage::Watches => self.put_some() && !self.left(),
            Stage::Takes => !self.put() && now <= self.until,
        }
    }

    /// True if a client that waits for an answer has closed the connection. Anything it sends meanwhile is ignored, and one
    /// that sends nothing more may still read.
    fn left(&mut self) -> bool {
        let mut room = [0; LINE];
        match (&self.stream).read(&mut room) {
            Ok(n) => self.ended |= n == 0,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return true,
        }
        let mut fd = [PollFd::new(&self.stream, PollFlags::empty())];
        // Asked for nothing, the system tells only of a connection that is closed in both directions, or broken.
        self.ended && ready::wait(&mut fd, Duration::ZERO)
    }
}

/// What exists under the socket's name: nothing, or the socket of a dead service.
fn look(place: &OpenDir, name: &str, path: &Path) -> Result<(), SocketError> {
    let there = place.at(name);
    match fs::symlink_metadata(&there) {
        Ok(found) if !found.file_type().is_socket() => Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) if answers(&there) => Err(SocketError::Second(path.to_owned())),
        _ => Ok(()),
    }
}

/// True if anything responds on a socket. A recorder of a killed service may still have it open, but does not
/// respond.
fn answers(path: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(path) else { return false };
    let asked = stream.set_read_timeout(Some(ALIVE)).and_then(|()| stream.write_all(b"status\n"));
    asked.is_ok() && stream.read(&mut [0]).is_ok_and(|n| n > 0)
}

/// Listens on a new socket that replaces the existing name once it has its mode.
fn listen(place: &OpenDir, name: &str) -> io::Result<UnixListener> {
    let new = format!(".{name}{}", crate::replace::SUFFIX);
    place.remove(&new)?;
    let listener = UnixListener::bind(place.at(&new))?;
    listener.set_nonblocking(true)?;
    fs::set_permissions(place.at(&new), fs::Permissions::from_mode(0o600))?;
    fs::rename(place.at(&new), place.at(name))?;
    Ok(listener)
}

/// The user at the other end (SO_PEERCRED in unix(7)). By the C library: rustix does not expect the process 0, which is
/// one of another PID namespace.
fn peer(stream: &UnixStream) -> io::Result<u32> {
    let mut of = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let fd = stream.as_raw_fd();
    // SAFETY: the kernel fills the struct, whose size it gets; the descriptor is open.
    let done = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut of).cast(), &raw mut len)
    };
    if done == 0 { Ok(of.uid) } else { Err(io::Error::last_os_error()) }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no service answers at {}: start one with 'profinfer serve', or give its socket with --socket", .0.display())]
    Nobody(PathBuf),
    #[error("the service at {} listens to its own user and to root only", .0.display())]
    Refused(PathBuf),
    #[error("the service at {} did not answer within {} s: it is busy, or stopped", path.display(), wait.as_secs())]
    Late { path: PathBuf, wait: Duration },
    #[error("{} did not answer like a profinfer service: {why}", path.display())]
    Strange { path: PathBuf, why: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The service's error message.
    #[error("{0}")]
    Said(String),
}

/// Begins to watch the service at this socket. The stream has lines of JSON, each an event; the first is `hello`.
///
/// # Errors
/// There is no service, it does not accept us, or too many watch already.
pub fn watch(path: &Path) -> Result<UnixStream, AskError> {
    let here = || path.to_owned();
    let failed = |source: io::Error| asking(path, PATIENCE, source);
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(format!("{}\n", ServiceRequest::Watch).as_bytes()).map_err(failed)?;
    // Without taking it: what is peeked at is read again as the first line.
    let mut begin = [0; 4096];
    let n = loop {
        let n = match net::recv(&stream, &mut begin, net::RecvFlags::PEEK) {
            Ok((n, _)) => n,
            // It was stopped, and continues.
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(failed(e.into())),
        };
        match n {
            0 => return Err(AskError::Refused(here())),
            n if begin.get(..n).unwrap_or_default().contains(&b'\n') || n == begin.len() => break n,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let line = begin.get(..n).unwrap_or_default().split(|b| *b == b'\n').next().unwrap_or_default();
    let answer: Value = serde_json::from_slice(line).unwrap_or_default();
    if let Some(why) = answer.get("error").and_then(Value::as_str) {
        return Err(AskError::Said(why.to_owned()));
    }
    stream.set_read_timeout(None).map_err(failed)?;
    Ok(stream)
}

/// Why a service could not be asked, by the error of the system.
fn asking(path: &Path, wait: Duration, source: io::Error) -> AskError {
    let here = || path.to_owned();
    match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => AskError::Nobody(here()),
        ErrorKind::PermissionDenied | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            AskError::Refused(here())
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => AskError::Late { path: here(), wait },
        _ => AskError::Io { path: here(), source },
    }
}

/// Sends a request to the service at this socket.
///
/// # Errors
/// There is no service, it does not accept us, or it answers with an error.
pub fn ask(path: &Path, request: ServiceRequest, wait: Duration) -> Result<Value, AskError> {
    let (here, strange) = (|| path.to_owned(), |why| AskError::Strange { path: path.to_owned(), why });
    let failed = |source: io::Error| asking(path, wait, source);
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(wait)).map_err(failed)?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(failed)?;
    let mut line = Vec::new();
    stream.take(ANSWER).read_to_end(&mut line).map_err(failed)?;
    if line.is_empty() {
        return Err(AskError::Refused(here()));
    }
    let mut answer: Value = serde_json::from_slice(&line).map_err(|e| strange(e.to_string()))?;
    match (answer.get("ok").and_then(Value::as_bool), answer.get("error").and_then(Value::as_str)) {
        (Some(true), _) => Ok(answer.get_mut("answer").map(Value::take).unwrap_or_default()),
        (Some(false), Some(why)) => Err(AskError::Said(why.to_owned())),
        _ => Err(strange("it is neither a result nor an error".into())),
    }
}

#[cfg(test)]
mod tests;
