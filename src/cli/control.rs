//! `profinfer status`, `dump` and `stop`: a service that runs, by its socket. Uses `agent::service` and `views`.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::args::{Args, Command, Flag, Group, Usage};
use super::report::style;
use super::values::whole;
use crate::agent::service::socket::{AskError, Request, ask};
use crate::plain::clean;
use crate::views;

/// Time for an answer, and for one that has to be written to disk first.
const SOON: Duration = Duration::from_secs(5);
const WRITTEN: Duration = Duration::from_secs(15);
/// Time for all recordings to end, and how often it is looked.
const ENDED: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);
/// Longest status file that is read, bytes.
const LONGEST: u64 = 16 << 20;

const EXITS: &[(&str, &str)] =
    &[("0", "done"), ("1", "no service answers, or it refused"), ("2", "wrong usage")];
const NOTES: &str = "A service listens to its own user and to root only.";

/// The socket that a service has if nothing else is said.
const SOCKET: Flag = Flag::value("socket", "PATH", "Socket of the service, as its configuration has it")
    .default("/run/profinfer/control.sock");

pub const STATUS: Command = Command {
    name: "status",
    about: "Says how the service stands: runs, recordings, its own cost, its last messages",
    text: "\
Asks the service at its socket. Where the socket does not take us, the file is read that the service writes for those who
only look; that is said, with its time.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[Group {
        title: "Options",
        flags: &[
            Flag::switch("json", "Write JSON: nanoseconds, bytes, shares of 1"),
            SOCKET,
            Flag::value("file", "FILE", "File that is read where the socket does not take us")
                .default("/run/profinfer/status.json"),
        ],
    }],
    notes: NOTES,
    exits: EXITS,
    examples: "\
profinfer status
profinfer status --json | jq '.runs[] | select(.ended == null) | .rate'     tokens/s of what runs now",
    run: status,
};

pub const DUMP: Command = Command {
    name: "dump",
    about: "Has the service write out what it keeps in memory of runs",
    text: "\
Rules with 'ring' keep the last minutes of their runs in memory. This writes them to the service's directory now, and prints
the files' names, a line each; recording goes on.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[Group {
        title: "Options",
        flags: &[
            Flag::value("pid", "PID", "Only the runs of this process [default: all]").short('p'),
            Flag::switch("json", "Write JSON: directory, files"),
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
    about: "Has the service end, with all recordings complete",
    text: "\
Waits until the service has ended. A service manager that was told to keep it running starts it again: there, use the
manager ('systemctl stop profinfer').",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[Group { title: "Options", flags: &[SOCKET] }],
    notes: NOTES,
    exits: EXITS,
    examples: "\
profinfer stop
profinfer stop --socket /data/profinfer/control.sock",
    run: stop,
};

fn socket(args: &Args) -> Result<PathBuf, Usage> {
    args.path("socket")?.ok_or_else(|| args.missing("socket"))
}

fn status(args: &Args) -> anyhow::Result<ExitCode> {
    let path = socket(args)?;
    let state = match ask(&path, Request::Status, SOON) {
        Err(e @ AskError::Refused(_)) => by_file(args, e)?,
        asked => asked?,
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        views::json::write(&mut out, &state)?;
    } else {
        views::service::write(&mut out, &state, &style())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What the service has written for those that its socket does not take.
fn by_file(args: &Args, refused: AskError) -> anyhow::Result<Value> {
    let path = args.path("file")?.ok_or_else(|| args.missing("file"))?;
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    if let Err(e) = read {
        bail!("{refused}; and {}: {e}", path.display());
    }
    let state: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no status", path.display()))?;
    let now = views::service::word(&state, "now");
    // For people beside the answer, which must stay JSON where that was asked for.
    let told = format!("{refused}: this is what {} said at {now}", path.display());
    eprintln!("profinfer: {}", clean(&told));
    Ok(state)
}

fn dump(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.option("pid", whole(1, u32::MAX.into()))?;
    let answer = ask(&socket(args)?, Request::Dump(pid), WRITTEN)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.flag("json") {
        views::json::write(&mut out, &answer)?;
    } else {
        let directory = views::service::word(&answer, "directory");
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
    ask(&path, Request::Stop, SOON)?;
    let until = Instant::now() + ENDED;
    // A service that ends takes its socket with it.
    while UnixStream::connect(&path).is_ok() {
        if Instant::now() > until {
            bail!("the service was told to stop and is still there after {} s", ENDED.as_secs());
        }
        std::thread::sleep(LOOK);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::service::settings::Settings;

    #[test]
    fn a_service_is_looked_for_where_it_is_by_itself() {
        let settings = Settings::default();
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
