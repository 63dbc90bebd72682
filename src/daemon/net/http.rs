//! A listener that answers `GET /metrics`, for scrapers that may be slow or hostile: everything about a connection is
//! bounded, in time, in bytes and in number.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use serde::{Deserialize, Serialize};

/// Maximum connections at a time.
const MOST: usize = 16;
/// Longest head of a request, bytes.
const HEAD: usize = 8 << 10;
/// Time for a client to send its request, to take the answer, and to close after it.
const ASK: Duration = Duration::from_secs(5);
const TAKE: Duration = Duration::from_secs(10);
const CLOSE: Duration = Duration::from_secs(1);
/// Pause after the system refused a connection.
const REFUSED: Duration = Duration::from_secs(1);
/// Bytes read after the request that are thrown away.
const AFTER: usize = 64 << 10;

/// Requests so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrapeCounts {
    /// Answered with the metrics.
    pub served: u64,
    /// Answered with an error.
    pub refused: u64,
    /// Closed without an answer: too slow, or too many.
    pub closed: u64,
}

enum Phase {
    Asks,
    Takes,
    /// Everything is sent. What still arrives is read, so that the answer is not lost with it.
    Closes,
}

struct Connection {
    stream: TcpStream,
    phase: Phase,
    until: Instant,
    head: Vec<u8>,
    answer: Answer,
    sent: usize,
    after: usize,
}

/// The listener and its connections.
pub struct Server {
    listener: TcpListener,
    open: Vec<Connection>,
    pub counts: ScrapeCounts,
    /// No connection is accepted before this time.
    pause: Option<Instant>,
}

/// An answer: the head, and a body that many share.
#[derive(Default)]
pub struct Answer {
    head: Vec<u8>,
    body: Arc<[u8]>,
    ok: bool,
}

impl Answer {
    fn bytes(&self, from: usize) -> &[u8] {
        match self.head.get(from..).filter(|rest| !rest.is_empty()) {
            Some(rest) => rest,
            None => self.body.get(from.saturating_sub(self.head.len())..).unwrap_or_default(),
        }
    }

    fn error(status: &str, more: &str, text: &str) -> Answer {
        Answer::new(status, more, "text/plain; charset=utf-8", text.as_bytes().into(), false)
    }

    fn new(status: &str, more: &str, kind: &str, body: Arc<[u8]>, ok: bool) -> Answer {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{more}Connection: close\r\n\r\n",
            body.len()
        );
        Answer { head: head.into_bytes(), body, ok }
    }
}

/// The answer to a request with this head; `text`: the metrics, if there are any yet.
pub fn answer(head: &[u8], text: Option<&Arc<[u8]>>) -> Answer {
    let line = head.split(|&b| b == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)).unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    let (method, target) = match words.as_slice() {
        [method, target, "HTTP/1.1" | "HTTP/1.0"] if !method.is_empty() && !target.is_empty() => {
            (*method, *target)
        }
        _ => return Answer::error("400 Bad Request", "", "not a request of HTTP/1.1\n"),
    };
    // A proxy asks for a complete address.
    let path =
        target.strip_prefix("http://").map_or(target, |rest| rest.find('/').map_or("/", |at| &rest[at..]));
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if path != "/metrics" {
        return Answer::error("404 Not Found", "", "the metrics are at /metrics\n");
    }
    let mut answer = match (method, text) {
        ("GET" | "HEAD", Some(text)) => {
            Answer::new("200 OK", "", "text/plain; version=0.0.4; charset=utf-8", text.clone(), true)
        }
        ("GET" | "HEAD", None) => Answer::error("503 Service Unavailable", "", "the service is starting\n"),
        _ => Answer::error("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "use GET\n"),
    };
    if method == "HEAD" {
        answer.body = Arc::default();
    }
    answer
}

/// Where the head of a request ends.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let blank = |end: &[u8]| bytes.windows(end.len()).position(|w| w == end).map(|at| at + end.len());
    [blank(b"\r\n\r\n"), blank(b"\n\n")].into_iter().flatten().min()
}

impl Server {
    /// # Errors
    /// The system refuses.
    pub fn new(listener: TcpListener) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        Ok(Server { listener, open: Vec::new(), counts: ScrapeCounts::default(), pause: None })
    }

    /// What to wait for.
    pub fn fds<'a>(&'a self, add: &mut dyn FnMut(BorrowedFd<'a>, PollFlags)) {
        if self.pause.is_none() {
            add(self.listener.as_fd(), PollFlags::IN);
        }
        for c in &self.open {
            let wanted = if matches!(c.phase, Phase::Takes) { PollFlags::OUT } else { PollFlags::IN };
            add(c.stream.as_fd(), wanted);
        }
    }

    /// When to look again at the latest.
    pub fn due(&self) -> Option<Instant> {
        self.open.iter().map(|c| c.until).chain(self.pause).min()
    }

    /// Takes and answers what has come.
    pub fn turn(&mut self, text: Option<&Arc<[u8]>>, now: Instant) {
        if self.pause.is_some_and(|until| now >= until) {
            self.pause = None;
        }
        self.accept(now);
        let counts = &mut self.counts;
        self.open.retain_mut(|c| {
            let stays = c.turn(text, counts, now).unwrap_or(false);
            if !stays && !matches!(c.phase, Phase::Closes) {
                counts.closed += 1;
            }
            stays
        });
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..MOST {
            if self.pause.is_some() {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if self.open.len() >= MOST && !self.make_room() {
                        self.counts.closed += 1;
                    } else if stream.set_nonblocking(true).is_ok() {
                        self.open.push(Connection {
                            stream,
                            phase: Phase::Asks,
                            until: now + ASK,
                            head: Vec::new(),
                            answer: Answer::default(),
                            sent: 0,
                            after: 0,
                        });
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                // No more descriptors.
                Err(_) => self.pause = Some(now + REFUSED),
            }
        }
    }

    /// Closes the connection that has asked for nothing for the longest time, or has its answer.
    fn make_room(&mut self) -> bool {
        let idle = self.open.iter().position(|c| matches!(c.phase, Phase::Closes));
        let silent = || self.open.iter().position(|c| matches!(c.phase, Phase::Asks));
        let Some(at) = idle.or_else(silent) else { return false };
        let gone = self.open.remove(at);
        self.counts.closed += u64::from(matches!(gone.phase, Phase::Asks));
        true
    }
}

impl Connection {
    /// Goes on as far as it can now. False: it is over.
    fn turn(
        &mut self,
        text: Option<&Arc<[u8]>>,
        counts: &mut ScrapeCounts,
        now: Instant,
    ) -> io::Result<bool> {
        if matches!(self.phase, Phase::Asks) && !self.ask(text, now)? {
            return Ok(now < self.until);
        }
        if matches!(self.phase, Phase::Takes) && !self.take(counts, now)? {
            return Ok(now < self.until);
        }
        Ok(self.is_open()? && now < self.until)
    }

    /// Reads the request. True: there is one, with its answer.
    fn ask(&mut self, text: Option<&Arc<[u8]>>, now: Instant) -> io::Result<bool> {
        let mut bytes = [0; 2048];
        loop {
            let n = match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            self.head.extend_from_slice(bytes.get(..n).unwrap_or_default());
            self.answer = match end_of_head(&self.head) {
                Some(end) if end <= HEAD => answer(self.head.get(..end).unwrap_or_default(), text),
                None if self.head.len() <= HEAD => continue,
                _ => Answer::error("431 Request Header Fields Too Large", "", "the request is too long\n"),
            };
            (self.phase, self.until) = (Phase::Takes, now + TAKE);
            return Ok(true);
        }
    }

    /// Writes the answer. True: all of it is sent.
    fn take(&mut self, counts: &mut ScrapeCounts, now: Instant) -> io::Result<bool> {
        loop {
            let rest = self.answer.bytes(self.sent);
            if rest.is_empty() {
                break;
            }
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        (self.phase, self.until) = (Phase::Closes, now + CLOSE);
        match self.answer.ok {
            true => counts.served += 1,
            false => counts.refused += 1,
        }
        self.stream.shutdown(Shutdown::Write)?;
        Ok(true)
    }

    /// Reads what comes after the request. False: the client has closed, or sends too much.
    fn is_open(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 2048];
        while self.after < AFTER {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(false),
                Ok(n) => self.after += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::wake;
    use proptest::prelude::*;

    fn text() -> Arc<[u8]> {
        b"a 1\n".as_slice().into()
    }

    fn of(head: &str, text: Option<&Arc<[u8]>>) -> String {
        let answer = answer(head.as_bytes(), text);
        let (mut all, mut from) = (Vec::new(), 0);
        while !answer.bytes(from).is_empty() {
            all.extend_from_slice(answer.bytes(from));
            from = all.len();
        }
        String::from_utf8(all).expect("text")
    }

    #[test]
    fn requests_and_answers() {
        let text = text();
        let begins = |head: &str, wanted: &str| {
            let answer = of(head, Some(&text));
            assert!(answer.starts_with(wanted), "{head:?}: {answer:?}");
            answer
        };
        let got = begins("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\n");
        assert!(got.contains("\r\nContent-Length: 4\r\n") && got.ends_with("\r\n\r\na 1\n"), "{got}");
        let head = begins("HEAD /metrics?x=y HTTP/1.0\n\n", "HTTP/1.1 200 OK\r\n");
        assert!(head.contains("\r\nContent-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        begins("GET http://a:1/metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 200 ");
        begins("GET http://a:1 HTTP/1.1\r\n\r\n", "HTTP/1.1 404 ");
        begins("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 ");
        begins("GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", "HTTP/1.1 404 ");
        assert!(
            begins("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 ").contains("\r\nAllow: GET, HEAD\r\n")
        );
        for wrong in [
            "",
            "\r\n\r\n",
            "GET",
            "GET /metrics",
            "GET  /metrics HTTP/1.1",
            "GET /metrics HTTP/2",
            "\u{1}\u{2}",
        ] {
            begins(wrong, "HTTP/1.1 400 ");
        }
        assert!(of("GET /metrics HTTP/1.1\r\n\r\n", None).starts_with("HTTP/1.1 503 "));
    }

    proptest! {
        #[test]
        fn any_request_has_an_answer(head in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..40) {
            let known = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
            for head in [&head[..], &[&known[..cut.min(known.len())], &head].concat()] {
                let answer = answer(head, Some(&text()));
                prop_assert!(answer.head.starts_with(b"HTTP/1.1 ") && answer.head.ends_with(b"\r\n\r\n"));
                prop_assert!(end_of_head(head).is_none_or(|end| end <= head.len()));
            }
        }
    }

    struct Played {
        server: Server,
        text: Arc<[u8]>,
        now: Instant,
    }

    impl Played {
        fn new() -> Played {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
            Played { server: Server::new(listener).expect("a server"), text: text(), now: Instant::now() }
        }

        fn client(&self) -> TcpStream {
            let client =
                TcpStream::connect(self.server.listener.local_addr().expect("bound")).expect("connected");
            client.set_nonblocking(true).expect("set");
            client
        }

        /// Turns until the client has the complete answer or is closed.
        fn answer(&mut self, client: &mut TcpStream) -> String {
            let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
            wake::until("an answer", || {
                self.server.turn(Some(&self.text), self.now);
                let read = client.read(&mut bytes);
                all.extend_from_slice(&bytes[..*read.as_ref().unwrap_or(&0)]);
                read.map_or_else(|e| e.kind() != io::ErrorKind::WouldBlock, |n| n == 0)
            });
            String::from_utf8_lossy(&all).into_owned()
        }

        fn turn(&mut self) {
            self.server.turn(Some(&self.text), self.now);
        }
    }

    #[test]
    fn a_request_in_pieces_is_answered() {
        let mut played = Played::new();
        let mut client = played.client();
        for piece in ["GET /met", "rics HT", "TP/1.1\r\n", "Host: a\r\n\r", "\n"] {
            client.write_all(piece.as_bytes()).expect("sent");
            played.turn();
        }
        assert!(played.answer(&mut client).ends_with("a 1\n"));
        drop(client);
        while !played.server.open.is_empty() {
            played.turn();
        }
        assert_eq!(played.server.counts, ScrapeCounts { served: 1, ..ScrapeCounts::default() });
    }

    #[test]
    fn a_large_answer_goes_out_as_the_client_takes_it() {
        let mut played = Played::new();
        played.text = vec![b'x'; 8 << 20].into();
        let mut client = played.client();
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\nmore that nobody reads").expect("sent");
        assert!(played.answer(&mut client).len() > 8 << 20);
        // One that takes nothing is closed when its time is over.
        let mut slow = played.client();
        slow.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("sent");
        while !played.server.open.iter().any(|c| matches!(c.phase, Phase::Takes)) {
            played.turn();
        }
        played.now += TAKE;
        while !played.server.open.is_empty() {
            played.turn();
        }
        assert_eq!((played.server.counts.served, played.server.counts.closed), (1, 1));
    }

    #[test]
    fn what_is_hostile_is_bounded() {
        let mut played = Played::new();
        let mut long = played.client();
        let mut head = b"GET /metrics HTTP/1.1\r\n".to_vec();
        head.resize(HEAD + 1, b'a');
        long.write_all(&head).expect("sent");
        assert!(played.answer(&mut long).starts_with("HTTP/1.1 431 "));
        drop(long);
        // Silent clients do not keep others out.
        let silent: Vec<TcpStream> = (0..3 * MOST).map(|_| played.client()).collect();
        let mut client = played.client();
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("sent");
        assert!(played.answer(&mut client).ends_with("a 1\n"));
        assert!(played.server.open.len() <= MOST);
        played.now += ASK;
        while !played.server.open.is_empty() {
            played.turn();
        }
        assert_eq!(played.server.counts.served, 1);
        assert_eq!(played.server.counts.closed, silent.len() as u64);
        assert!(played.server.due().is_none());
    }
}
