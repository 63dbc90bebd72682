//! `profinfer watch`: prints what happens to the service's runs, one line of JSON each.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitCode;

use anyhow::bail;

use super::control::{SOCKET, socket};
use cli::args::{Args, Command, FlagGroup};
use serde_json::Value;
use service::socket::watch;

/// Longest line accepted, bytes.
const LONGEST: u64 = 1 << 20;

pub const COMMAND: Command = Command {
    name: "watch",
    about: "Print events of the service's runs, one line of JSON each",
    text: "\
Prints a line for each event: a run begins or ends, its first token, each second's tokens and CPUs, where the time of its calls
went (computing, barriers, waiting for a CPU, page faults), why time was lost, and its energy; a trigger with what may have
caused it, a change of the level of detail or of the CPUs that a rule gives to an engine, recommended threads and CPUs,
a complete recording, a line of the log. docs/EVENTS.md describes the fields. Ends with Ctrl-C, or when the service ends.

The service never waits for a reader: what a reader is too slow for is dropped, and an event 'dropped' says how many there
were. At most eight readers at a time.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FlagGroup { title: "Options", flags: &[SOCKET] }],
    notes: "A service accepts requests from its own user and root only.",
    exits: &[
        ("0", "ended by Ctrl-C, or with the service"),
        ("1", "no answer from the service, request refused, or the service was killed"),
        ("2", "wrong usage"),
    ],
    examples: "\
profinfer watch
profinfer watch | jq -c 'select(.event == \"trigger\")'              only triggers, with their causes
profinfer watch | jq -r 'select(.event == \"second\") | .tok_s'      tokens per second
profinfer watch | jq -c 'select(.phases) | .phases[].bar'          where the time of calls went, each second
profinfer watch | examples/adapt/adapt.py --pid 4711               change an engine's priority as its CPUs get busy
profinfer watch --socket /data/profinfer/control.sock",
    run,
};

extern "C" fn end(_: libc::c_int) {
    // SAFETY: ends the process without running exit handlers; every line is written at once.
    unsafe { libc::_exit(0) }
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stream = watch(&socket(args)?)?;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let handler = end as extern "C" fn(libc::c_int);
        // SAFETY: a handler that only makes one system call.
        unsafe { libc::signal(signal, handler as usize) };
    }
    let (mut lines, mut out) = (BufReader::new(stream), std::io::stdout().lock());
    let mut last = Vec::new();
    loop {
        let mut text = Vec::new();
        let n = (&mut lines).take(LONGEST).read_until(b'\n', &mut text)?;
        if n == 0 || text.last() != Some(&b'\n') {
            break;
        }
        out.write_all(&text)?;
        out.flush()?;
        last = text;
    }
    let last: Value = serde_json::from_slice(&last).unwrap_or_default();
    if last.get("event").and_then(Value::as_str) != Some("stop") {
        bail!("the service has gone without saying so: it was killed, or has crashed");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_for_the_service_where_the_others_do() {
        assert!(COMMAND.flags().any(|flag| flag.name == SOCKET.name && flag.default == SOCKET.default));
    }
}
