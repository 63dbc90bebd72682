//! One request to llama-server over the loopback: a prompt of ours, an answer of a given length.

use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{Lengths, prompt_text};

/// Time between two tries to reach a server that still loads its model.
const AGAIN: Duration = Duration::from_millis(100);
/// Maximum size of an answer that is read.
const ANSWER: usize = 16 << 20;
/// Maximum length of a server's reason, characters.
const REASON: usize = 200;

/// What to ask, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub port: u16,
    pub lengths: Lengths,
    /// The key that the server wants.
    pub key: Option<String>,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("the server on port {port} was not ready after {} s: {why}", .after.as_secs())]
    NotReady { port: u16, after: Duration, why: String },
    #[error("the server answered {0}")]
    Refused(String),
    #[error("the request to the server failed: {0}")]
    Io(#[from] io::Error),
    #[error("port {0} is listened on by another program than the server that was started: it gets no key")]
    Stranger(u16),
    #[error("the run was stopped before the server had answered")]
    Stopped,
}

/// A port of the loopback that is free now.
///
/// # Errors
/// There is none.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Waits until the server is ready, and has it answer a prompt once. `is_ours` says whether whoever listens on the port is
/// the server that was started: nobody else gets the key.
///
/// # Errors
/// It does not get ready or refuses, or `stop` says so.
pub fn ask(
    request: &Request,
    within: Duration,
    is_ours: &dyn Fn() -> bool,
    stop: &dyn Fn() -> bool,
) -> Result<(), RequestError> {
    let (port, lengths) = (request.port, request.lengths);
    let begin = Instant::now();
    loop {
        // llama-server asks no key for this.
        let why = match request.exchange("GET /health HTTP/1.1", "", None, within, stop) {
            Ok(answer) if answer.code() == "200" => break,
            // It listens, and will not answer this later either.
            Ok(answer) if answer.code() == "404" => return Err(RequestError::Refused(answer.why())),
            Ok(answer) => answer.why(),
            Err(e) => e.to_string(),
        };
        if stop() {
            return Err(RequestError::Stopped);
        }
        if begin.elapsed() >= within {
            return Err(RequestError::NotReady { port, after: within, why });
        }
        std::thread::sleep(AGAIN);
    }
    if request.key.is_some() && !is_ours() {
        return Err(RequestError::Stranger(port));
    }
    let body = serde_json::json!({
        "prompt": prompt_text(lengths.prompt),
        "n_predict": lengths.tokens,
        "ignore_eos": true,
        "cache_prompt": false,
        "temperature": 0.0,
    });
    let key = request.key.as_deref();
    let answer = request.exchange("POST /completion HTTP/1.1", &body.to_string(), key, within, stop)?;
    match answer.code() {
        "200" => Ok(()),
        "400" => Err(RequestError::Refused(format!(
            "{}; --prompt and --tokens of profinfer tune set how long the request is",
            answer.why()
        ))),
        "401" | "403" => Err(RequestError::Refused(format!(
            "{}; a key is taken from --api-key in the command, or from LLAMA_API_KEY",
            answer.why()
        ))),
        _ => Err(RequestError::Refused(answer.why())),
    }
}

/// A server's answer.
struct ServerAnswer {
    /// `HTTP/1.1 200 OK`.
    status: String,
    body: Vec<u8>,
}

impl ServerAnswer {
    fn of(bytes: &[u8]) -> ServerAnswer {
        let first = bytes.split(|b| *b == b'\r').next().unwrap_or_default();
        let status =
            String::from_utf8_lossy(first.get(..200.min(first.len())).unwrap_or_default()).into_owned();
        let head = bytes.windows(4).position(|end| end == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
        ServerAnswer { status, body: bytes.get(head..).unwrap_or_default().to_vec() }
    }

    fn code(&self) -> &str {
        self.status.split(' ').nth(1).unwrap_or_default()
    }

    /// The status, with the reason that llama-server gives.
    fn why(&self) -> String {
        let status = self.status.split_once(' ').map_or(&*self.status, |(_, status)| status);
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        match body.pointer("/error/message").and_then(Value::as_str) {
            Some(text) => format!("{status}: {}", text.chars().take(REASON).collect::<String>()),
            None => status.to_owned(),
        }
    }
}

impl Request {
    /// Sends a request and reads the answer to its end, which must come `within` that time.
    fn exchange(
        &self,
        what: &str,
        body: &str,
        key: Option<&str>,
        within: Duration,
        stop: &dyn Fn() -> bool,
    ) -> io::Result<ServerAnswer> {
        let (port, begin) = (self.port, Instant::now());
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(AGAIN))?;
        // A key with such characters would be another header.
        let key = key.filter(|key| !key.chars().any(char::is_control));
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!(
            "{what}\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Type: application/json\r\n{key}\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let (mut answer, mut part) = (Vec::new(), vec![0; 1 << 16]);
        while answer.len() < ANSWER {
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(n) => answer.extend_from_slice(part.get(..n).unwrap_or_default()),
                // The first two: nothing came within the read timeout.
                Err(e) if matches!(e.kind(), TimedOut | WouldBlock | Interrupted) => {}
                Err(e) => return Err(e),
            }
            if begin.elapsed() >= within || stop() {
                return Err(io::Error::new(TimedOut, "its answer did not come to an end"));
            }
        }
        Ok(ServerAnswer::of(&answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;

    /// Answers requests with these status lines, and returns what was asked.
    fn server(answers: &'static [&'static str]) -> (u16, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let thread = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (stream, _) = listener.accept().expect("a client");
                let mut reader = io::BufReader::new(stream.try_clone().expect("cloned"));
                let (mut line, mut length) = (String::new(), 0);
                reader.read_line(&mut line).expect("a line");
                let mut head = line.clone();
                while line.trim() != "" {
                    line.clear();
                    reader.read_line(&mut line).expect("a line");
                    head += &line;
                    if let Some(n) = line.strip_prefix("Content-Length: ") {
                        length = n.trim().parse().expect("a number");
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).expect("a body");
                head += &String::from_utf8_lossy(&body);
                asked.push(head);
                let mut stream = stream;
                let body = r#"{"error":{"message":"too long"}}"#;
                write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
                    .expect("written");
            }
            asked
        });
        (port, thread)
    }

    fn request(port: u16) -> Request {
        Request { port, lengths: Lengths { prompt: 16, tokens: 8 }, key: Some("secret".into()) }
    }

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn the_request_is_sent_when_the_model_is_loaded() {
        let (port, thread) = server(&["503 Service Unavailable", "200 OK", "200 OK"]);
        ask(&request(port), LONG, &|| true, &|| false).expect("answered");
        let asked = thread.join().expect("no panic");
        assert!(asked[0].starts_with("GET /health") && asked[1].starts_with("GET /health"));
        assert!(
            asked[2].starts_with("POST /completion") && asked[2].contains("\"n_predict\":8"),
            "{asked:?}"
        );
        assert!(asked[2].contains("\r\nAuthorization: Bearer secret\r\n"), "{asked:?}");
        assert!(!asked[0].contains("secret") && !asked[1].contains("secret"), "{asked:?}");
    }

    #[test]
    fn whoever_took_the_port_gets_no_key() {
        let (port, thread) = server(&["200 OK"]);
        let stranger = ask(&request(port), LONG, &|| false, &|| false).expect_err("refused");
        assert!(matches!(stranger, RequestError::Stranger(at) if at == port), "{stranger}");
        assert!(!thread.join().expect("no panic").concat().contains("secret"));
    }

    #[test]
    fn an_answer_that_does_not_end_is_given_up() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let port = listener.local_addr().expect("an address").port();
        // It drips until nobody listens any more.
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            while stream.write_all(b"x").is_ok() {}
        });
        let said =
            ask(&request(port), Duration::from_millis(300), &|| true, &|| false).expect_err("no answer");
        assert!(said.to_string().contains("did not come to an end"), "{said}");
        thread.join().expect("no panic");
    }

    #[test]
    fn a_refusal_and_a_server_that_never_comes_are_told() {
        let (port, thread) = server(&["200 OK", "400 Bad Request"]);
        let refused = ask(&request(port), LONG, &|| true, &|| false).expect_err("refused").to_string();
        assert!(refused.contains("answered 400 Bad Request: too long; --prompt"), "{refused}");
        thread.join().expect("no panic");
        let (port, thread) = server(&["404 Not Found"]);
        let refused = ask(&request(port), LONG, &|| true, &|| false).expect_err("refused").to_string();
        assert!(refused.contains("404 Not Found"), "{refused}");
        thread.join().expect("no panic");
        let port = free_port().expect("a port");
        let why =
            ask(&request(port), Duration::ZERO, &|| true, &|| false).expect_err("nobody listens").to_string();
        assert!(why.contains("not ready"), "{why}");
        assert!(matches!(ask(&request(port), LONG, &|| true, &|| true), Err(RequestError::Stopped)));
    }
}
