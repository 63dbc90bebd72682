//! One POST over plain HTTP/1.1, within a time limit.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::endpoint::OtlpSettings;

/// Longest head of a response, and most of its body that is read, bytes.
const HEAD: usize = 16 << 10;
const BODY: usize = 64 << 10;
/// Interim answers before the final one at most.
const INTERIM: usize = 8;

/// A response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// Header `Retry-After`, as sent.
    pub retry_after: Option<String>,
    /// Its beginning.
    pub body: Vec<u8>,
}

/// Time until a limit.
struct Limit(Instant);

impl Limit {
    fn left(&self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer within the time limit")),
            false => Ok(left),
        }
    }
}

/// Posts a body of JSON.
///
/// # Errors
/// The receiver cannot be reached, is too slow, or answers with something else than HTTP.
pub fn post(settings: &OtlpSettings, body: &[u8]) -> io::Result<Response> {
    let limit = Limit(Instant::now() + settings.timeout);
    let mut stream = connect(settings, &limit)?;
    let mut head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: profinfer/{}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n",
        settings.endpoint.path,
        settings.endpoint.authority(),
        env!("CARGO_PKG_VERSION"),
        body.len()
    );
    settings.headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    head.push_str("\r\n");
    // A receiver may refuse a request before it has read all of it.
    let sent = send(&mut stream, head.as_bytes(), &limit).and_then(|()| send(&mut stream, body, &limit));
    match (receive(&mut stream, &limit), sent) {
        (Err(_), Err(e)) => Err(e),
        (received, _) => received,
    }
}

fn connect(settings: &OtlpSettings, limit: &Limit) -> io::Result<TcpStream> {
    let mut why = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in settings.endpoint.addresses()? {
        match TcpStream::connect_timeout(&address, limit.left()?) {
            Ok(stream) => return Ok(stream),
            Err(e) => why = e,
        }
    }
    Err(why)
}

fn send(stream: &mut TcpStream, mut bytes: &[u8], limit: &Limit) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(limit.left()?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(e) if is_early(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The time of one call is over, or a signal came; the limit decides.
fn is_early(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn receive(stream: &mut TcpStream, limit: &Limit) -> io::Result<Response> {
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        stream.set_read_timeout(Some(limit.left()?))?;
        let ended = match stream.read(&mut bytes) {
            Ok(n) => {
                all.extend_from_slice(bytes.get(..n).unwrap_or_default());
                n == 0
            }
            Err(e) if is_early(&e) => continue,
            // What has come before may be an answer.
            Err(e) if parse(&all, true).is_none() => return Err(e),
            Err(_) => true,
        };
        if let Some(response) = parse(&all, ended || all.len() > HEAD + BODY) {
            return Ok(response);
        }
        if ended || all.len() > HEAD + BODY {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is not one of HTTP/1.1"));
        }
    }
}

/// How a response marks the end of its body.
struct Framing {
    length: Option<usize>,
    chunked: bool,
}

/// Reads a response. None: it is incomplete, or none. `ended`: nothing more comes.
pub fn parse(mut bytes: &[u8], ended: bool) -> Option<Response> {
    for _ in 0..=INTERIM {
        let (response, framing, rest) = head(bytes)?;
        // An interim answer, such as 100: the final one follows.
        if !(100..200).contains(&response.status) {
            return with_body(response, &framing, rest, ended);
        }
        bytes = rest;
    }
    None
}

/// Reads the head of a response. Also returns what comes after it.
fn head(bytes: &[u8]) -> Option<(Response, Framing, &[u8])> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").filter(|end| *end <= HEAD)?;
    let (head, body) = (std::str::from_utf8(bytes.get(..end)?).ok()?, bytes.get(end + 4..)?);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    let mut response = Response { status, ..Response::default() };
    let mut framing = Framing { length: None, chunked: false };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => framing.length = Some(value.parse::<usize>().ok()?),
            "transfer-encoding" => framing.chunked = value.to_ascii_lowercase().ends_with("chunked"),
            "retry-after" => response.retry_after = Some(value.to_owned()),
            _ => {}
        }
    }
    Some((response, framing, body))
}

/// The response with its body, if that is complete, or nothing more comes.
fn with_body(mut response: Response, framing: &Framing, body: &[u8], ended: bool) -> Option<Response> {
    let (body, complete) = match (framing.chunked, framing.length) {
        (true, _) => join(body),
        (false, Some(length)) => (body.get(..length).unwrap_or(body).to_vec(), body.len() >= length),
        (false, None) => (body.to_vec(), false),
    };
    response.body = body.get(..BODY).unwrap_or(&body).to_vec();
    (complete || ended || response.status == 204).then_some(response)
}

/// Joins chunks (RFC 9112, 7.1). True: the last one was there.
fn join(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    let mut next = || -> Option<bool> {
        let end = bytes.windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(bytes.get(..end)?).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        let chunk = bytes.get(end + 2..)?;
        all.extend_from_slice(chunk.get(..size)?);
        bytes = chunk.get(size.checked_add(2)?..)?;
        Some(size == 0)
    };
    loop {
        match next() {
            Some(false) => {}
            last => return (all, last == Some(true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_answer_is_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..300), chunked: bool, length: u64) {
            let _ = parse(&body, true);
            let how = if chunked { "Transfer-Encoding: chunked".into() } else { format!("Content-Length: {length}") };
            let all = [format!("HTTP/1.1 200 OK\r\n{how}\r\n\r\n").as_bytes(), &body].concat();
            prop_assert!(parse(&all, true).is_none_or(|r| r.status == 200 && r.body.len() <= body.len()));
        }

        /// As long as an answer may be: one of these parts, again and again, with any body behind.
        #[test]
        fn any_long_answer_is_read_or_refused(part in "(HTTP/1.[01] [1-5]0[0-9]\r\n(a: b\r\n)?\r\n|[0-9a-f]{1,3}\r\n|\r\n|: |.)",
            chunked: bool, body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let head = if chunked { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" } else { "" };
            let mut all = head.as_bytes().to_vec();
            all.extend(part.bytes().cycle().take(HEAD + BODY - head.len()));
            all.extend(&body);
            prop_assert!(parse(&all, true).is_none_or(|r| r.status >= 200 && r.body.len() <= BODY));
        }
    }

    #[test]
    fn interim_answers_without_end_are_none() {
        let interim = "HTTP/1.1 100\r\n\r\n";
        let after = |n: usize| [interim.repeat(n).as_str(), "HTTP/1.1 204 No Content\r\n\r\n"].concat();
        assert_eq!(parse(after(INTERIM).as_bytes(), false).map(|r| r.status), Some(204));
        assert_eq!(parse(after(INTERIM + 1).as_bytes(), true), None);
        // As many as are read: a call for each of them would take more stack than a thread has.
        let all = interim.repeat((HEAD + BODY) / interim.len());
        let few =
            std::thread::Builder::new().stack_size(256 << 10).spawn(move || parse(all.as_bytes(), true));
        assert_eq!(few.expect("a thread").join().expect("it ends"), None);
    }

    #[test]
    fn responses_of_all_forms_are_read() {
        let of = |text: &str, ended| {
            parse(text.as_bytes(), ended).map(|r| (r.status, String::from_utf8(r.body).expect("text")))
        };
        let some = |status, body: &str| Some((status, body.to_owned()));
        assert_eq!(of("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", false), some(200, "{}"));
        assert_eq!(of("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", false), None);
        assert_eq!(of("HTTP/1.0 200 OK\r\n\r\n{}", false), None);
        assert_eq!(of("HTTP/1.0 200 OK\r\n\r\n{}", true), some(200, "{}"));
        let chunked =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a=b\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
        assert_eq!(of(chunked, false), some(200, "{}"));
        assert_eq!(of(&chunked[..chunked.len() - 5], false), None);
        assert_eq!(of(&format!("HTTP/1.1 100 Continue\r\n\r\n{chunked}"), false), some(200, "{}"));
        assert_eq!(of("HTTP/1.1 204 No Content\r\n\r\n", false), some(204, ""));
        let throttled = parse(b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n", false);
        assert_eq!(throttled.and_then(|r| r.retry_after).as_deref(), Some("7"));
        for wrong in ["", "HTTP/1.1 200 OK\r\n", "SSH-2.0\r\n\r\n", "HTTP/1.1 x\r\n\r\n", "HTTP/1.1\r\n\r\n"]
        {
            assert_eq!(of(wrong, true), None, "{wrong:?}");
        }
        let endless = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &vec![b'x'; 2 * BODY]].concat();
        assert_eq!(parse(&endless, true).map(|r| r.body.len()), Some(BODY));
        let huge = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n";
        assert_eq!(of(huge, true), some(200, ""));
    }
}
