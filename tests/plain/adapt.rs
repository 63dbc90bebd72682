//! examples/adapt: what it decides from events of `profinfer watch`, and that it leaves an engine as it was.

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::skip;
use serde_json::{Value, json};

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/adapt/adapt.py")
}

/// The event of a second: the shares of the time in calls without a CPU, and at barriers.
fn second(pid: u32, at: u32, waiting: Option<f64>, barrier: Option<f64>) -> String {
    let t = format!("2026-11-29T10:{:02}:{:02}.000Z", at / 60, at % 60);
    let bar = json!({ "computing": 0.5, "barrier": barrier, "waiting_for_cpu": waiting, "gaps": 0.1 });
    let phases = json!([{ "phase": "prefill", "bar": null }, { "phase": "decode", "bar": bar }]);
    json!({ "v": 1, "t": t, "event": "second", "pid": pid, "tok_s": 9.5, "phases": phases }).to_string()
}

struct Loop {
    child: Child,
    events: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Loop {
    fn start(pid: u32, more: &[&str]) -> Option<Loop> {
        let mut command = Command::new("python3");
        command.arg(script()).args(["--pid", &pid.to_string()]).args(more);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (events, said) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        Some(Loop { child, events, said })
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.events, "{line}").expect("it listens");
    }

    /// Its next change; None: it has ended.
    fn change(&mut self) -> Option<Value> {
        let mut line = String::new();
        (self.said.read_line(&mut line).expect("its output") > 0)
            .then(|| serde_json::from_str(&line).expect("JSON"))
    }

    /// Its changes from now on, with the second of each.
    fn rest(mut self) -> Vec<(u32, String)> {
        drop(self.events);
        let change = |line: std::io::Result<String>| {
            let of: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
            let number = |part: &str| part.parse::<u32>().expect("a number");
            let t = of["t"].as_str().expect("a time");
            (
                number(&t[14..16]) * 60 + number(&t[17..19]),
                of["action"].as_str().expect("an action").to_owned(),
            )
        };
        let changes = self.said.lines().map(change).collect();
        assert!(self.child.wait().expect("its end").success());
        changes
    }
}

/// What follows from these seconds: from when to when, waiting for a CPU, at barriers.
fn decided(spans: &[(u32, u32, Option<f64>, Option<f64>)]) -> Option<Vec<(u32, String)>> {
    let pid = std::process::id();
    let mut adapt = Loop::start(pid, &["--dry-run"])?;
    for (from, to, waiting, barrier) in spans {
        for at in *from..*to {
            adapt.tell(&second(pid, at, *waiting, *barrier));
            // Another run's.
            adapt.tell(&second(pid + 1, at, Some(0.9), Some(0.9)));
            adapt.tell(&json!({ "event": "message", "text": "x" }).to_string());
        }
    }
    Some(adapt.rest())
}

const LOADED: (Option<f64>, Option<f64>) = (Some(0.3), Some(0.4));
const CALM: (Option<f64>, Option<f64>) = (Some(0.01), Some(0.1));

#[test]
fn what_follows_from_a_stream_of_events() {
    let change = |at: u32, what: &str| (at, what.to_owned());
    let (raise, lower) = (|at| change(at, "raise"), |at| change(at, "lower"));
    let of = |(waiting, barrier): (Option<f64>, Option<f64>), from, to| (from, to, waiting, barrier);
    let table = [
        ("nothing is lost", vec![of(CALM, 0, 60)], vec![]),
        ("one second is no sign", vec![of(CALM, 0, 9), of(LOADED, 9, 10), of(CALM, 10, 20)], vec![]),
        (
            "a load comes and goes",
            vec![of(CALM, 0, 9), of(LOADED, 9, 30), of(CALM, 30, 60)],
            vec![raise(10), lower(31)],
        ),
        (
            "what is not known is no sign",
            vec![of((None, Some(0.4)), 0, 20), of((Some(0.4), None), 20, 40)],
            vec![],
        ),
        ("less than that is lost", vec![of((Some(0.3), Some(0.02)), 0, 30)], vec![]),
        ("waiting for each other alone is another matter", vec![of((Some(0.05), Some(0.6)), 0, 30)], vec![]),
        ("unknown seconds end nothing", vec![of(LOADED, 0, 9), of((None, None), 9, 40)], vec![raise(1)]),
        (
            "after a change that came too soon the next lasts twice as long",
            vec![of(LOADED, 0, 2), of(CALM, 2, 7), of(LOADED, 7, 12), of(CALM, 12, 40)],
            vec![raise(1), lower(6), raise(9), lower(19)],
        ),
    ];
    for (what, spans, wanted) in table {
        match decided(&spans) {
            Some(said) => assert_eq!(said, wanted, "{what}"),
            None => skip!("no python3"),
        }
    }
}

/// A program that a test ends.
struct Idle(Child);

impl Idle {
    fn start() -> Idle {
        Idle(Command::new("sleep").arg("1000").spawn().expect("sleep"))
    }

    fn nice(&self) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("it runs");
        let after = stat.rsplit_once(')').expect("a name").1;
        after.split_whitespace().nth(16).expect("nice").to_owned()
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_engine_has_its_priority_again_however_it_ends() {
    if !rustix::process::geteuid().is_root() {
        skip!("only root lowers a nice value");
    }
    for end in ["the stream ends", "the run ends", "SIGTERM", "SIGINT"] {
        let engine = Idle::start();
        let pid = engine.0.id();
        let Some(mut adapt) = Loop::start(pid, &["--by", "7"]) else { skip!("no python3") };
        let before = engine.nice();
        [0, 1].iter().for_each(|at| adapt.tell(&second(pid, *at, LOADED.0, LOADED.1)));
        assert_eq!(adapt.change().expect("a change")["action"], "raise");
        assert_eq!(
            engine.nice().parse::<i32>().expect("a number"),
            before.parse::<i32>().expect("a number") - 7
        );
        match end {
            "the stream ends" => {}
            "the run ends" => adapt.tell(&json!({ "event": "end", "pid": pid }).to_string()),
            signal => {
                let signal = if signal == "SIGTERM" { libc::SIGTERM } else { libc::SIGINT };
                common::run::signal_to(adapt.child.id(), signal);
            }
        }
        assert!(adapt.rest().is_empty(), "{end}");
        assert_eq!(engine.nice(), before, "{end}");
    }
}
