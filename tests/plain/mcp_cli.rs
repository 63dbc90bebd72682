//! `profinfer mcp`: the protocol, hostile lines, what is refused, and the public SDK as its client.

use crate::common::python;
use crate::synth_trace::{Spec, Synth, footer};

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

/// A server, and its ends.
struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(dir: &Path, args: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profinfer"));
        command.arg("mcp").args(args).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Server { input: child.stdin.take(), output, child }
    }

    fn send(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).and_then(|()| input.write_all(b"\n")).unwrap();
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    /// The answer to a request; it has its id.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params });
        self.send(request.to_string().as_bytes());
        let answer = self.next();
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&"2.0".into(), &method.into()), "{answer}");
        answer
    }

    /// The result of a tool.
    fn call(&mut self, name: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({ "name": name, "arguments": arguments }));
        answer.get("result").unwrap_or_else(|| panic!("{answer}")).clone()
    }

    /// Why a tool was not carried out.
    fn refused(&mut self, name: &str, arguments: Value) -> String {
        let result = self.call(name, arguments.clone());
        assert_eq!(result["isError"], true, "{name} {arguments}: {result}");
        said(&result)
    }

    /// It is there and answers.
    fn lives(&mut self) {
        assert_eq!(self.ask("ping", json!({}))["result"], json!({}));
    }

    /// After the end of its input.
    fn end(mut self) -> ExitStatus {
        drop(self.input.take());
        self.child.wait().unwrap()
    }
}

fn said(result: &Value) -> String {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

/// Two recordings of one model.
fn recordings(dir: &Path) -> [String; 2] {
    [("run.pfi", 0), ("slow.pfi", 700)].map(|(name, more)| {
        let mut s = Synth::new(Vec::new(), Spec { layers: 1, ..Spec::default() });
        s.call(4, |p, t| 2000 + 10 * p as u64 + 5 * u64::from(t));
        (0..40).for_each(|i| s.call(1, |p, t| 1000 + more + 10 * p as u64 + 5 * u64::from(t) + i % 3));
        let path = dir.join(name);
        std::fs::write(&path, s.enc.finish(&footer("target exited")).unwrap()).unwrap();
        path.canonicalize().unwrap().into_os_string().into_string().unwrap()
    })
}

fn printed(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_profinfer")).args(args).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn the_revision_is_the_clients_if_it_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &[]);
    for (asked, given) in [
        (json!("2024-11-05"), "2024-11-05"),
        (json!("2025-06-18"), "2025-06-18"),
        (json!("2025-11-25"), "2025-11-25"),
        (json!("1999-01-01"), "2025-11-25"),
        (json!(7), "2025-11-25"),
        (Value::Null, "2025-11-25"),
    ] {
        let params = json!({ "protocolVersion": asked, "capabilities": {}, "clientInfo": { "name": "a", "version": "1" } });
        let began = server.ask("initialize", params);
        assert_eq!(began["result"]["protocolVersion"], given, "{asked}");
        assert_eq!(began["result"]["serverInfo"]["name"], "profinfer");
        assert!(began["result"]["capabilities"]["tools"].is_object());
    }
    server.send(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    let tools = server.ask("tools/list", json!({}));
    let names: Vec<_> = tools["result"]["tools"].as_array().unwrap().iter().map(|t| &t["name"]).collect();
    assert_eq!(names, ["list_engines", "record", "verdict", "compare", "table"]);
    assert!(server.end().success());
}

#[test]
fn hostile_lines_get_an_error_each_and_harm_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &[]);
    let long = "x".repeat(3 << 20);
    let deep = "[".repeat(200_000);
    let call =
        |params: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    let lines: Vec<(Vec<u8>, i64)> = vec![
        (b"{".to_vec(), PARSE_ERROR),
        (b"\xff\xfe\x00".to_vec(), PARSE_ERROR),
        (deep.clone().into_bytes(), PARSE_ERROR),
        (
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{deep}"#).into_bytes(),
            PARSE_ERROR,
        ),
        (long.clone().into_bytes(), INVALID_REQUEST),
        (format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{long}"}}"#).into_bytes(), INVALID_REQUEST),
        (br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#.to_vec(), INVALID_REQUEST),
        (br#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#.to_vec(), INVALID_REQUEST),
        (br#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#.to_vec(), INVALID_REQUEST),
        (br#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}"#.to_vec(), INVALID_PARAMS),
        (br#"{"jsonrpc":"2.0","id":1,"method":"tools/burn"}"#.to_vec(), METHOD_NOT_FOUND),
        (br#"{"jsonrpc":"2.0","id":1,"method":"resources/list"}"#.to_vec(), METHOD_NOT_FOUND),
        (call("{}").into_bytes(), INVALID_PARAMS),
        (call(r#"{"name":7}"#).into_bytes(), INVALID_PARAMS),
        (call(r#"{"name":"erase"}"#).into_bytes(), INVALID_PARAMS),
        (call(r#"{"name":"table","arguments":[]}"#).into_bytes(), INVALID_PARAMS),
    ];
    for (line, code) in &lines {
        server.send(line);
        let answer = server.next();
        let line = String::from_utf8_lossy(&line[..line.len().min(80)]);
        assert_eq!(answer["error"]["code"], *code, "{line}: {answer}");
        server.lives();
    }
    // No answer to these.
    for line in ["", r#"{"jsonrpc":"2.0","method":"ping"}"#, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#] {
        server.send(line.as_bytes());
        server.lives();
    }
    server.send(br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}"#);
    server.lives();
    assert!(server.end().success());
}

#[test]
fn tools_say_what_the_subcommands_do() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = &recordings(dir.path());
    let mut server = Server::start(dir.path(), &[]);
    // A relative path begins in the server's directory.
    let verdict = server.call("verdict", json!({ "file": "run.pfi" }));
    let text = printed(&["diagnose", one, "--json"]);
    assert_eq!((said(&verdict), verdict.get("isError")), (text.clone(), None));
    assert_eq!(verdict["structuredContent"], serde_json::from_str::<Value>(&text).unwrap());
    for (arguments, args) in [
        (json!({ "file": one, "table": "op" }), vec!["report", one, "--by=op"]),
        (
            json!({ "file": one, "table": "layer", "phase": "decode", "top": 1 }),
            vec!["report", one, "--by=layer", "--phase=decode", "--top=1"],
        ),
    ] {
        assert_eq!(said(&server.call("table", arguments)), printed(&args));
    }
    let compared = server.call("compare", json!({ "before": one, "after": other, "by": "op" }));
    assert_eq!(said(&compared), printed(&["diff", one, other, "--by=op"]));
    let engines = server.call("list_engines", json!({}));
    assert!(engines["structuredContent"]["engines"].is_array(), "{engines}");
    assert!(server.end().success());
}

#[test]
fn nothing_but_recordings_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("secret"), "secret").unwrap();
    std::fs::write(at("text.pfi"), "secret").unwrap();
    symlink(at("secret"), at("link.pfi")).unwrap();
    symlink("/dev/zero", at("zero.pfi")).unwrap();
    std::fs::create_dir(at("dir.pfi")).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, at("pipe.pfi"), FileType::Fifo, mode, 0).unwrap();
    let mut server = Server::start(dir.path(), &[]);
    for (file, why) in [
        (json!("secret"), "ends in .pfi"),
        (json!("-"), "ends in .pfi"),
        (json!("--force"), "ends in .pfi"),
        (json!("/etc/passwd"), "ends in .pfi"),
        (json!("link.pfi"), "is not a recording"),
        (json!("zero.pfi"), "is not a recording"),
        (json!("dir.pfi"), "is not a recording"),
        (json!("pipe.pfi"), "is not a recording"),
        (json!("none.pfi"), "No such file"),
        (json!("a\u{0}.pfi"), "none"),
        (json!("text.pfi"), "not a profinfer trace"),
        (json!(7), "expected a path"),
        (json!(["run.pfi"]), "expected a path"),
    ] {
        let said = server.refused("verdict", json!({ "file": file }));
        assert!(said.contains(why) || why == "none", "{file}: {said}");
        assert!(!said.contains("secret\""), "{said}");
    }
    server.lives();
}

#[test]
fn wrong_arguments_are_told_to_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let [one, _] = &recordings(dir.path());
    let mut server = Server::start(dir.path(), &["--allow-record"]);
    for (tool, arguments, why) in [
        ("verdict", json!({}), "the argument file is required"),
        ("verdict", json!({ "file": one, "top": 3 }), "verdict has no argument top"),
        ("table", json!({ "file": one }), "the argument table is required"),
        ("table", json!({ "file": one, "table": "gold" }), "expected one of op, name"),
        ("table", json!({ "file": one, "table": "op", "top": 0 }), "an integer from 1 to 1000"),
        ("table", json!({ "file": one, "table": "op", "top": "9" }), "an integer from 1 to 1000"),
        ("table", json!({ "file": one, "table": "op", "phase": {} }), "expected one of prefill, decode"),
        ("record", json!({ "seconds": 301 }), "an integer from 1 to 300"),
        ("record", json!({ "pid": -1 }), "the argument pid"),
        ("record", json!({ "command": ["true"] }), "--allow-command"),
    ] {
        let said = server.refused(tool, arguments.clone());
        assert!(said.contains(why), "{tool} {arguments}: {said}");
    }
    let mut server = Server::start(dir.path(), &["--allow-record", "--allow-command"]);
    for command in [json!("true"), json!([]), json!([""]), json!([1]), json!(["a\u{0}"])] {
        let said = server.refused("record", json!({ "command": command }));
        assert!(said.contains("expected the words of a command"), "{command}: {said}");
    }
}

#[test]
fn it_records_only_if_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &[]);
    for arguments in [json!({}), json!({ "pid": 1 }), json!({ "command": ["touch", "made"] })] {
        let said = server.refused("record", arguments);
        assert!(said.contains("profinfer mcp --allow-record"), "{said}");
    }
    assert!(server.end().success());
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing was written");
    let out =
        Command::new(env!("CARGO_BIN_EXE_profinfer")).args(["mcp", "--allow-command"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_signal_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &[]);
    server.lives();
    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn a_client_that_does_not_read_any_more_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let Server { mut child, mut input, output } = Server::start(dir.path(), &[]);
    drop(output);
    input.as_mut().unwrap().write_all(b"{\n").unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_public_sdk_is_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let [one, other] = &recordings(dir.path());
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/mcp/client.py");
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", python::package("mcp")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.current_dir(&dir).arg(script).arg(env!("CARGO_BIN_EXE_profinfer")).args([one, other]);
    let Some(all) = python::json(&mut command) else { return };
    assert_eq!((&all["protocol"], &all["name"]), (&"2025-11-25".into(), &"profinfer".into()));
    assert!(all["instructions"].as_str().is_some_and(|text| text.contains("list_engines")));
    assert_eq!(all["structured"], json!(["record", "verdict"]));
    assert_eq!(all["tools"]["table"]["required"], json!(["file", "table"]));
    let verdict: Value = serde_json::from_str(&printed(&["diagnose", one, "--json"])).unwrap();
    for name in ["verdict", "discovered"] {
        assert_eq!((&all[name]["object"], &all[name]["failed"]), (&verdict, &false.into()), "{name}");
    }
    assert_eq!(all["compare"]["text"], printed(&["diff", one, other, "--by=op"]));
    assert_eq!(all["table"]["text"], printed(&["report", one, "--by=layer", "--top=2"]));
    assert_eq!((&all["record"]["failed"], &all["missing"]["failed"]), (&true.into(), &true.into()));
    assert!(all["engines"]["object"]["engines"].is_array());
    assert_eq!(all["unknown"], INVALID_PARAMS);
}
