//! Messages of JSON-RPC 2.0, a line each: what a client sends, and what it gets.

use std::io::{self, BufRead, Write};

use serde_json::{Map, Value, json};

use common::plain;

/// Longest line that is read, bytes.
pub const LONGEST: usize = 1 << 20;

// Codes of JSON-RPC 2.0, section 5.1.
pub const PARSE_ERROR: i32 = -32700;
pub const INVALID_REQUEST: i32 = -32600;
pub const METHOD_NOT_FOUND: i32 = -32601;
pub const INVALID_PARAMS: i32 = -32602;

/// An error of the protocol: its code, and what is wrong.
#[derive(Debug, PartialEq)]
pub struct RpcError {
    pub code: i32,
    pub message: String,
}

impl RpcError {
    pub fn new(code: i32, message: impl Into<String>) -> RpcError {
        RpcError { code, message: message.into() }
    }
}

/// A message of the client.
#[derive(Debug, PartialEq)]
pub enum Message {
    Request {
        id: Value,
        method: String,
        params: Map<String, Value>,
    },
    Notification {
        method: String,
        params: Map<String, Value>,
    },
    /// An answer, though nothing is ever asked here, or an empty line.
    Nothing,
}

impl Message {
    /// Reads a line.
    ///
    /// # Errors
    /// It is no message; with its id if that can be read, else null.
    pub fn read(line: &[u8]) -> Result<Message, (Value, RpcError)> {
        if line.trim_ascii().is_empty() {
            return Ok(Message::Nothing);
        }
        let wrong = |id: &Value, what: &str| (id.clone(), RpcError::new(INVALID_REQUEST, what));
        let mut fields = match serde_json::from_slice(line) {
            Ok(Value::Object(fields)) => fields,
            Ok(Value::Array(_)) => return Err(wrong(&Value::Null, "batches are not supported")),
            Ok(_) => return Err(wrong(&Value::Null, "a message is an object")),
            Err(e) => {
                return Err((Value::Null, RpcError::new(PARSE_ERROR, format!("not a line of JSON: {e}"))));
            }
        };
        let given = fields.remove("id");
        let id = given.clone().filter(|id| id.is_string() || id.is_i64() || id.is_u64()).unwrap_or_default();
        if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return Err(wrong(&id, "jsonrpc is not \"2.0\""));
        }
        let method = match fields.remove("method") {
            Some(Value::String(method)) => method,
            None if fields.contains_key("result") || fields.contains_key("error") => {
                return Ok(Message::Nothing);
            }
            _ => return Err(wrong(&id, "method is not a string")),
        };
        if given.is_some() && id.is_null() {
            return Err(wrong(&id, "id is neither a string nor an integer"));
        }
        let params = match fields.remove("params") {
            Some(Value::Object(params)) => params,
            None => Map::new(),
            Some(_) => return Err((id, RpcError::new(INVALID_PARAMS, "params is not an object"))),
        };
        Ok(match given {
            Some(_) => Message::Request { id, method, params },
            None => Message::Notification { method, params },
        })
    }
}

/// Writes an answer as a line; a result is JSON.
///
/// # Errors
/// The client does not read any more.
pub fn answer(out: &mut dyn Write, id: &Value, answer: Result<String, RpcError>) -> io::Result<()> {
    let (name, what) = match answer {
        Ok(result) => ("result", result),
        Err(RpcError { code, message }) => {
            ("error", plain::json(&json!({ "code": code, "message": message }))?)
        }
    };
    writeln!(out, r#"{{"jsonrpc":"2.0","id":{},"{name}":{what}}}"#, plain::json(id)?)?;
    out.flush()
}

/// A line of the input.
pub enum Line {
    Whole(Vec<u8>),
    /// Longer than [`LONGEST`]; it was skipped.
    TooLong,
    End,
}

/// Reads the next line, with at most [`LONGEST`] bytes of it in memory. An error of the input is its end.
pub fn next_line(input: &mut dyn BufRead) -> Line {
    let mut line = Vec::new();
    let mut too_long = false;
    loop {
        let some = match input.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Line::End,
            Ok(some) => some,
        };
        let newline = some.iter().position(|&byte| byte == b'\n');
        let taken = newline.map_or(some.len(), |at| at + 1);
        too_long |= line.len() + taken > LONGEST;
        if too_long {
            line = Vec::new();
        } else {
            line.extend_from_slice(some.get(..taken).unwrap_or_default());
        }
        input.consume(taken);
        match (newline, taken, too_long) {
            (Some(_), _, true) => return Line::TooLong,
            (Some(_), _, false) => return Line::Whole(line),
            // The last line may have no end.
            (None, 0, false) if !line.is_empty() => return Line::Whole(line),
            (None, 0, _) => return Line::End,
            (None, ..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(line: &str) -> (Value, i32) {
        let (id, error) = Message::read(line.as_bytes()).expect_err("no message");
        (id, error.code)
    }

    #[test]
    fn requests_are_told_from_notifications_and_answers() {
        let request = Message::read(br#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#);
        assert_eq!(
            request,
            Ok(Message::Request { id: "a".into(), method: "ping".into(), params: Map::new() })
        );
        let note = Message::read(br#"{"jsonrpc":"2.0","method":"notifications/x","params":{}}"#);
        assert_eq!(note, Ok(Message::Notification { method: "notifications/x".into(), params: Map::new() }));
        for nothing in ["", " \r\n", r#"{"jsonrpc":"2.0","id":1,"result":{}}"#] {
            assert_eq!(Message::read(nothing.as_bytes()), Ok(Message::Nothing), "{nothing}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused_with_its_id_if_it_has_one() {
        for (line, id, code) in [
            ("{", Value::Null, PARSE_ERROR),
            ("\u{0}", Value::Null, PARSE_ERROR),
            ("[]", Value::Null, INVALID_REQUEST),
            ("7", Value::Null, INVALID_REQUEST),
            (r#"{"id":1,"method":"ping"}"#, 1.into(), INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1}"#, 1.into(), INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1,"method":2}"#, 1.into(), INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, Value::Null, INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":[],"method":"ping"}"#, Value::Null, INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, Value::Null, INVALID_REQUEST),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#, 1.into(), INVALID_PARAMS),
        ] {
            assert_eq!(refused(line), (id, code), "{line}");
        }
        assert_eq!(refused(&"[".repeat(100_000)).1, PARSE_ERROR);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_read() {
        let text = format!("a\n{}\n{}\nlast", "x".repeat(LONGEST), "y".repeat(LONGEST - 1));
        let mut input = io::BufReader::new(text.as_bytes());
        let mut next = || match next_line(&mut input) {
            Line::Whole(line) => Some(line.len()),
            Line::TooLong => None,
            Line::End => Some(0),
        };
        let lengths = [next(), next(), next(), next(), next(), next()];
        assert_eq!(lengths, [Some(2), None, Some(LONGEST), Some(4), Some(0), Some(0)]);
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Message::read(&line);
            let mut input = line.as_slice();
            while !matches!(next_line(&mut input), Line::End) {}
        }
    }
}
