//! One request to llama-server over the loopback: a prompt of ours, an answer of a given length.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::tuner::command::{Lengths, prompt_text};

/// Time between two tries to reach a server that still loads its model.
const AGAIN: Duration = Duration::from_millis(100);
/// Maximum size of an answer that is read.
const ANSWER: u64 = 16 << 20;

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("the server on port {port} was not ready after {} s: {why}", .after.as_secs())]
    NotReady { port: u16, after: Duration, why: String },
    #[error("the server answered {0}")]
    Refused(String),
    #[error("the request to the server failed: {0}")]
    Io(#[from] io::Error),
    #[error("the run was stopped before the server was ready")]
    Stopped,
}

/// A port of the loopback that is free now.
///
/// # Errors
/// There is none.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Waits until the server is ready, and has it answer a prompt once.
///
/// # Errors
/// It does not get ready or refuses, or `stop` says so.
pub fn ask(
    port: u16,
    lengths: Lengths,
    within: Duration,
    stop: &dyn Fn() -> bool,
) -> Result<(), RequestError> {
    let begin = Instant::now();
    loop {
        let why = match exchange(port, "GET /health HTTP/1.1", "", within) {
            Ok(status) if is_ok(&status) => break,
            Ok(status) => status,
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
    let body = serde_json::json!({
        "prompt": prompt_text(lengths.prompt),
        "n_predict": lengths.tokens,
        "ignore_eos": true,
        "cache_prompt": false,
        "temperature": 0.0,
    });
    let status = exchange(port, "POST /completion HTTP/1.1", &body.to_string(), within)?;
    if is_ok(&status) { Ok(()) } else { Err(RequestError::Refused(status)) }
}

fn is_ok(status: &str) -> bool {
    status.split(' ').nth(1) == Some("200")
}

/// Sends a request and reads the answer to its end; returns its status line.
fn exchange(port: u16, what: &str, body: &str, within: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(within))?;
    let head = format!(
        "{what}\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER).read_to_end(&mut answer)?;
    let first = answer.split(|b| *b == b'\r').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(first.get(..200.min(first.len())).unwrap_or_default()).into_owned())
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
                    if let Some(n) = line.strip_prefix("Content-Length: ") {
                        length = n.trim().parse().expect("a number");
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).expect("a body");
                head += &String::from_utf8_lossy(&body);
                asked.push(head);
                let mut stream = stream;
                write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 2\r\n\r\n{{}}").expect("written");
            }
            asked
        });
        (port, thread)
    }

    const LENGTHS: Lengths = Lengths { prompt: 16, tokens: 8 };

    #[test]
    fn the_request_is_sent_when_the_model_is_loaded() {
        let (port, thread) = server(&["503 Service Unavailable", "200 OK", "200 OK"]);
        ask(port, LENGTHS, Duration::from_secs(10), &|| false).expect("answered");
        let asked = thread.join().expect("no panic");
        assert!(asked[0].starts_with("GET /health") && asked[1].starts_with("GET /health"));
        assert!(
            asked[2].starts_with("POST /completion") && asked[2].contains("\"n_predict\":8"),
            "{asked:?}"
        );
    }

    #[test]
    fn a_refusal_and_a_server_that_never_comes_are_told() {
        let (port, thread) = server(&["200 OK", "400 Bad Request"]);
        let refused =
            ask(port, LENGTHS, Duration::from_secs(10), &|| false).expect_err("refused").to_string();
        assert!(refused.contains("400 Bad Request"), "{refused}");
        thread.join().expect("no panic");
        let port = free_port().expect("a port");
        let why = ask(port, LENGTHS, Duration::ZERO, &|| false).expect_err("nobody listens").to_string();
        assert!(why.contains("not ready"), "{why}");
        let stopped = ask(port, LENGTHS, Duration::from_secs(10), &|| true);
        assert!(matches!(stopped, Err(RequestError::Stopped)));
    }
}
