//! `profinfer status`, `dump` and `stop`: control a running service by its socket.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::report::style;
use cli::args::{Args, Command, Flag, FlagGroup, Usage};
use cli::values::whole;
use common::plain::clean;
use service::socket::{AskError, ServiceRequest, ask};

/// Time for an answer, and for one that has to be written to disk first.
const SOON: Duration = Duration::from_secs(5);
const WRITTEN: Duration = Duration::from_secs(15);
/// Time for all recordings to end, and polling interval.
const ENDED: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);
/// After this, it says what it waits for.
const TOLD: Duration = Duration::from_secs(2);
/// Longest status file accepted, bytes.
const LONGEST: u64 = 16 << 20;

const EXITS: &[(&str, &str)] =
    &[("0", "done"), ("1", "no answer from the service, or request refused"), ("2", "wrong usage")];
const NOTES: &str = "A service accepts requests from its own user and root only.";

/// The default socket of a service.
pub(super) const SOCKET: Flag =
    Flag::value("socket", "PATH", "Socket of the service, as set in its configuration")
        .default("/run/profinfer/control.sock");

pub const STATUS: Command = Command {
    name: "status",
    about: "Show service status: runs, recordings, its own cost, its last messages",
    text: "\
Asks the service through its socket. If the socket refuses access, reads the status file that the service writes for other
users, and prints a notice with its time.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FlagGroup {
        title: "Options",
        flags: &[
            Flag::switch("json", "Print JSON: nanoseconds, bytes, ratios (1 = 100 %)"),
            SOCKET,
            Flag::value("file", "FILE", "File to read if the socket refuses access")
                .default("/run/profinfer/status.json"),
        ],
    }],
    notes: NOTES,
    exits: EXITS,
    examples: "\
profinfer status
profinfer status --json | jq '.runs[] | select(.ended == null) | .rate'     tok/s of current runs",
    run: status,
};

pub const DUMP: Command = Command {
    name: "dump",
    about: "Make the service write the runs it keeps in memory to files",
    text: "\
Rules with 'ring' keep the last minutes of their runs in memory. This writes them to the service's directory now and prints
the names of the files, one per line; recording continues.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FlagGroup {
        title: "Options",
        flags: &[
            Flag::value("pid", "PID", "Write only the runs of this process [default: all]").short('p'),
            Flag::switch("json", "Print JSON: directory, files"),
            SOCKET,
        ],
    }],
    notes: NOTES,
    exits: EXITS,
    examples: "\
profinfer dump
profinfer dump -p $(pidof llama-server) | xargs -n 1 profinfer report",
    run: dump,
};

pub const STOP: Command = Command {
    name: "stop",
    about: "Stop the service and complete all recordings",
    text: "\
Waits until the service has stopped. A service manager may restart it: in that case use the manager instead
('systemctl stop profinfer').",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FlagGroup { title: "Options", flags: &[SOCKET] }],
    notes: NOTES,
    exits: EXITS,
    examples: "\
profinfer stop
profinfer stop --socket /data/profinfer/control.sock",
    run: stop,
};

pub(super) fn socket(args: &Args) -> Result<PathBuf, Usage> {
    args.path("socket")?.ok_or_else(|| args.missing("socket"))
}

fn status(args: &Args) -> anyhow::Result<ExitCode> {
    let path = socket(args)?;
    let state = match ask(&path, ServiceRequest::Status, SOON) {
        Err(e @ AskError::Refused(_)) => by_file(args, e)?,
        asked => asked?,
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        render::json::write(&mut out, &state)?;
    } else {
        render::service::write(&mut out, &state, &style())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The status file, for users whom the socket does not accept.
fn by_file(args: &Args, refused: AskError) -> anyhow::Result<Value> {
    let path = args.path("file")?.ok_or_else(|| args.missing("file"))?;
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    if let Err(e) = read {
        bail!("{refused}; and {}: {e}", path.display());
    }
    let state: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not a status file", path.display()))?;
    let now = render::service::word(&state, "now");
    // On standard error, because the answer must remain JSON if requested.
    let told = format!("{refused}: showing {} as of {now}", path.display());
    eprintln!("profinfer: {}", clean(&told));
    Ok(state)
}

fn dump(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.option("pid", whole(1, u32::MAX.into()))?;
    let answer = ask(&socket(args)?, ServiceRequest::Dump(pid), WRITTEN)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        render::json::write(&mut out, &answer)?;
    } else {
        let directory = render::service::word(&answer, "directory");
        for file in
            answer.get("files").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
        {
            writeln!(out, "{}", clean(&Path::new(&directory).join(file).to_string_lossy()))?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn stop(args: &Args) -> anyhow::Result<ExitCode> {
    let path = socket(args)?;
    ask(&path, ServiceRequest::Stop, SOON)?;
    let begin = Instant::now();
    let mut told = false;
    // A service removes its socket when it ends.
    while UnixStream::connect(&path).is_ok() {
        let waited = begin.elapsed();
        if waited > TOLD && !std::mem::replace(&mut told, true) {
            let most = (ENDED - TOLD).as_secs();
            writeln!(
                std::io::stderr(),
                "profinfer: recorders remove their probes and complete their files: {most} s more at most"
            )?;
        }
        if waited > ENDED {
            bail!("the service was asked to stop but is still running after {} s", ENDED.as_secs());
        }
        std::thread::sleep(LOOK);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use service::rules::settings::ServiceSettings;

    #[test]
    fn a_service_is_looked_for_where_it_is_by_itself() {
        let settings = ServiceSettings::default();
        let default = |command: &Command, name: &str| {
            let flag = command.flags().find(|f| f.name == name).expect("a flag");
            PathBuf::from(flag.default)
        };
        for command in [&STATUS, &DUMP, &STOP] {
            assert_eq!(default(command, "socket"), settings.socket, "{}", command.name);
        }
        assert_eq!(default(&STATUS, "file"), settings.status);
    }
}
