//! A listener that answers `GET /metrics`, for scrapers that may be slow or hostile: everything about a connection is
//! bounded, in time, in bytes and in number.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
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
/// Time without a byte taken after which a client gives way to others.
const STALLED: Duration = Duration::from_secs(1);
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
    peer: IpAddr,
    phase: Phase,
    until: Instant,
    /// When the client last took something.
    took: Instant,
    head: Vec<u8>,
    answer: Answer,
    sent: usize,
    after: usize,
}

/// The listener and its connections.
pub struct Server {
    listener: TcpListener,
    /// Only this machine reaches it.
    is_local: bool,
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

/// Lines of a head without their ends. One that is no text is empty.
fn lines(head: &[u8]) -> impl Iterator<Item = &str> {
    let all = head.split(|&b| b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    all.map(|line| std::str::from_utf8(line).unwrap_or_default())
}

/// Whether this host of a request, with its port or without, can only be meant for this machine. A name cannot: whoever
/// owns it may give it the address of this machine, and have a browser here ask in the name of a page of his.
fn is_of_this_machine(host: &str) -> bool {
    let v6 = |host: &str| host.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let is_host = |host: &str| {
        host.eq_ignore_ascii_case("localhost") || host.parse::<Ipv4Addr>().is_ok() || v6(host).is_some()
    };
    let port = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    is_host(host) || host.rsplit_once(':').is_some_and(|(host, p)| port(p) && is_host(host))
}

/// The answer to a request with this head; `text`: the metrics, if there are any yet; `is_local`: only this machine can
/// reach us, so a request for another one is refused.
pub fn answer(head: &[u8], text: Option<&Arc<[u8]>>, is_local: bool) -> Answer {
    let line = lines(head).next().unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    let (method, target) = match words.as_slice() {
        [method, target, "HTTP/1.1" | "HTTP/1.0"] if !method.is_empty() && !target.is_empty() => {
            (*method, *target)
        }
        _ => return Answer::error("400 Bad Request", "", "not a request of HTTP/1.1\n"),
    };
    // A proxy asks for a complete address.
    let complete = target.strip_prefix("http://");
    let (authority, path) =
        complete.map_or(("", target), |rest| rest.find('/').map_or((rest, "/"), |at| rest.split_at(at)));
    let headers = lines(head).skip(1).filter_map(|line| line.split_once(':'));
    let hosts =
        headers.filter(|(name, _)| name.trim().eq_ignore_ascii_case("host")).map(|(_, host)| host.trim());
    let mut hosts = hosts.chain(complete.map(|_| authority));
    if is_local && !hosts.all(is_of_this_machine) {
        return Answer::error("421 Misdirected Request", "", "ask for an address or localhost as the host\n");
    }
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
        let is_local = listener.local_addr()?.ip().to_canonical().is_loopback();
        Ok(Server { listener, is_local, open: Vec::new(), counts: ScrapeCounts::default(), pause: None })
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
        let (counts, is_local) = (&mut self.counts, self.is_local);
        let answer = |head: &[u8]| answer(head, text, is_local);
        self.open.retain_mut(|c| {
            let stays = c.turn(&answer, counts, now).unwrap_or(false);
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
                Ok((stream, peer)) => {
                    let peer = peer.ip().to_canonical();
                    if self.open.len() >= MOST && !self.make_room(peer, now) {
                        self.counts.closed += 1;
                    } else if stream.set_nonblocking(true).is_ok() {
                        self.open.push(Connection {
                            stream,
                            peer,
                            phase: Phase::Asks,
                            until: now + ASK,
                            took: now,
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

    /// Closes a connection for one of this peer: one that has its answer, else the one that has asked for nothing, or taken
    /// nothing, for the longest time, else the oldest of a peer that has more than its share.
    fn make_room(&mut self, peer: IpAddr, now: Instant) -> bool {
        let idle = self.open.iter().position(|c| matches!(c.phase, Phase::Closes));
        let silent = || self.open.iter().position(|c| matches!(c.phase, Phase::Asks));
        let stalls = |c: &Connection| now.saturating_duration_since(c.took) >= STALLED;
        let stalled = || {
            let all = self.open.iter().enumerate().filter(|(_, c)| stalls(c));
            all.min_by_key(|(_, c)| c.took).map(|(at, _)| at)
        };
        let many = || {
            let of = |peer: IpAddr| self.open.iter().filter(|c| c.peer == peer).count();
            let most = self.open.iter().map(|c| of(c.peer)).max().filter(|most| *most > of(peer) + 1)?;
            self.open.iter().position(|c| of(c.peer) == most)
        };
        let Some(at) = idle.or_else(silent).or_else(stalled).or_else(many) else { return false };
        let gone = self.open.remove(at);
        self.counts.closed += u64::from(!matches!(gone.phase, Phase::Closes));
        true
    }
}

impl Connection {
    /// Goes on as far as it can now. False: it is over.
    fn turn(
        &mut self,
        answer: &dyn Fn(&[u8]) -> Answer,
        counts: &mut ScrapeCounts,
        now: Instant,
    ) -> io::Result<bool> {
        if matches!(self.phase, Phase::Asks) && !self.ask(answer, now)? {
            return Ok(now < self.until);
        }
        if matches!(self.phase, Phase::Takes) && !self.take(counts, now)? {
            return Ok(now < self.until);
        }
        Ok(self.is_open()? && now < self.until)
    }

    /// Reads the request. True: there is one, with its answer.
    fn ask(&mut self, answer: &dyn Fn(&[u8]) -> Answer, now: Instant) -> io::Result<bool> {
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
                Some(end) if end <= HEAD => answer(self.head.get(..end).unwrap_or_default()),
                None if self.head.len() <= HEAD => continue,
                _ => Answer::error("431 Request Header Fields Too Large", "", "the request is too long\n"),
            };
            (self.phase, self.until, self.took) = (Phase::Takes, now + TAKE, now);
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
                Ok(n) => (self.sent, self.took) = (self.sent + n, now),
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
    use proptest::prelude::*;

    fn text() -> Arc<[u8]> {
        b"a 1\n".as_slice().into()
    }

    fn of(head: &str, text: Option<&Arc<[u8]>>) -> String {
        let answer = answer(head.as_bytes(), text, false);
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

    #[test]
    fn only_this_machine_is_asked_for_where_only_it_can_ask() {
        let of = |head: String| {
            let answer = answer(head.as_bytes(), Some(&text()), true);
            String::from_utf8_lossy(&answer.head[9..12]).into_owned()
        };
        for host in
            ["127.0.0.1:9464", "127.0.0.1", "[::1]:9464", "[::1]", "localhost:1", "LocalHost", "10.0.0.1:80"]
        {
            assert_eq!(
                of(format!("GET /metrics HTTP/1.1\r\nA: b\r\nhost:  {host}\r\n\r\n")),
                "200",
                "{host}"
            );
            assert_eq!(
                of(format!("GET http://{host}/metrics HTTP/1.1\r\nHost: {host}\r\n\r\n")),
                "200",
                "{host}"
            );
        }
        for host in [
            "rebound.attacker.example:9464",
            "a",
            "",
            "localhost.attacker.example",
            "127.0.0.1.example",
            "::1",
            "[a]",
            "localhost:x",
            "user@localhost",
            "localhost localhost",
            "1",
            "0x7f.1",
            "\u{f6}",
        ] {
            assert_eq!(of(format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n")), "421", "{host}");
            assert_eq!(
                of(format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHOST: {host}\r\n\r\n")),
                "421",
                "{host}"
            );
        }
        assert_eq!(of("GET http://a.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".into()), "421");
        assert_eq!(of("GET /metrics HTTP/1.0\r\n\r\n".into()), "200");
    }

    proptest! {
        #[test]
        fn any_request_has_an_answer(head in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..40) {
            let known = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
            for head in [&head[..], &[&known[..cut.min(known.len())], &head].concat()] {
                let answers = [true, false].map(|is_local| answer(head, Some(&text()), is_local));
                let [local, answer] = answers;
                prop_assert!(local.head == answer.head || local.head.starts_with(b"HTTP/1.1 421 "));
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
            crate::until::until("an answer", || {
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
        for piece in ["GET /met", "rics HT", "TP/1.1\r\n", "Host: localhost\r\n\r", "\n"] {
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

    /// A client that asks for an answer longer than what the system keeps for it, and does not take it.
    fn deaf(played: &mut Played) -> TcpStream {
        let mut client = played.client();
        client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
        let asked = played.server.open.len();
        while !played.server.open.get(asked).is_some_and(|c| matches!(c.phase, Phase::Takes)) {
            played.turn();
        }
        client
    }

    #[test]
    fn who_takes_nothing_gives_way() {
        let mut played = Played::new();
        played.text = vec![b'x'; 8 << 20].into();
        let deaf: Vec<TcpStream> = (0..MOST).map(|_| deaf(&mut played)).collect();
        // All are of one machine, and none is late yet.
        let mut early = played.client();
        assert_eq!(played.answer(&mut early), "");
        assert_eq!((played.server.counts.closed, played.server.open.len()), (1, MOST));
        // The one that has waited for the longest time goes first.
        let oldest = &mut played.server.open[3];
        oldest.took -= Duration::from_millis(1);
        let peer = oldest.stream.peer_addr().expect("connected");
        played.now += STALLED;
        let mut client = played.client();
        client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
        assert!(played.answer(&mut client).len() > 8 << 20);
        assert!(played.server.open.iter().all(|c| c.stream.peer_addr().ok() != Some(peer)));
        assert_eq!((played.server.counts.closed, played.server.counts.served), (2, 1));
        drop(deaf);
    }

    #[test]
    fn who_has_more_than_a_share_gives_way() {
        let mut played = Played::new();
        played.text = vec![b'x'; 8 << 20].into();
        let deaf: Vec<TcpStream> = (0..MOST).map(|_| deaf(&mut played)).collect();
        // They take something now and then, and come from two other machines.
        let [one, two] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse::<IpAddr>().expect("an address"));
        played.server.open.iter_mut().enumerate().for_each(|(i, c)| c.peer = if i < 5 { one } else { two });
        let mut client = played.client();
        client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("sent");
        assert!(played.answer(&mut client).len() > 8 << 20);
        assert_eq!(played.server.open.iter().filter(|c| c.peer == one).count(), 5);
        drop(deaf);
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
