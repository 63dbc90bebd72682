//! `profinfer serve`: the resident recorder.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, ensure};

use super::conf::service::{GROUPS, settings};
use cli::args::{Args, Argument, Command, Usage};
use engine::search::Launch;
use machine::kernel::namespaces;
use machine::tracing;
use render::table::clean;
use service::resident::{Service, ServiceError};
use service::supervisor::command::CommandEnd;

pub const COMMAND: Command = Command {
    name: "serve",
    about: "Run as a service: wait for engines and record each by its rule",
    text: "\
Detects every process that loads a GGML engine and records it according to the first [[rule]] that matches: at its level and
within its budget, either the complete run, its beginning, or, with a ring, the last minutes before a dump is requested or
decoding becomes slow. Without rules, everything is recorded with a budget of 1 %. Recordings are stored in the service's
own directory within a quota: the oldest are removed first, never one that is being written.

Stays in the foreground and logs to standard error, one line per event. SIGHUP reloads the configuration without losing a
run; SIGTERM and Ctrl-C stop it and complete all recordings. Use 'profinfer status', 'dump' and 'stop' to control it. If
it is killed, recorded data is not lost: each recorder completes its file by itself.

Metrics of requests, recordings and the machine can be scraped (--listen), written to a file for node_exporter (--metrics),
and pushed by OpenTelemetry's protocol (--otlp-endpoint). Nothing of this is on by default.

With COMMAND it needs no root, and runs in a container: where the kernel's probes are not allowed, COMMAND is recorded from
inside its own process, and the log says what is then missing. SIGTERM and SIGINT are passed on to COMMAND; when it ends,
its recording is completed, and the exit status is COMMAND's. The first rule that matches COMMAND's program applies until
then. --status and --socket are files in --directory by default: status.json and control.sock.",
    usage: &["[OPTIONS]", "[OPTIONS] -- COMMAND..."],
    arguments: &[],
    behind: Some(Argument {
        name: "COMMAND",
        help: "Command to run: it and what it starts is recorded, and nothing else; the service ends with it",
    }),
    groups: GROUPS,
    notes: "\
docs/INSTALL.md describes the installation, docs/CONFIG.md the configuration; 'profinfer config --print FILE' shows the
settings in effect.",
    exits: &[("0", "stopped on request"), ("1", "cannot start: the reason is on standard error"), ("2", "wrong usage"), ("4", "the kernel's tracing does not answer: only a reboot helps"), ("N", "COMMAND failed: its exit status")],
    examples: "\
profinfer serve --conf /etc/profinfer/profinfer.toml
profinfer serve --directory /data/profinfer --quota 200MiB
profinfer serve --listen 127.0.0.1:9464                    and offer metrics at http://127.0.0.1:9464/metrics
profinfer serve --otlp-endpoint http://127.0.0.1:4318      and push them to a collector on this machine
profinfer serve --directory /data/profinfer --listen 127.0.0.1:9464 -- llama-server -m model.gguf
profinfer config --check FILE                              check a configuration
systemctl reload profinfer                                 reload it",
    run,
};

fn run(args: &Args) -> Result<ExitCode> {
    // A command can be recorded without the kernel's probes.
    match args.behind().first() {
        None => {
            tracing::answers()?;
            namespaces::are_initial()?;
        }
        Some(name) => {
            let found = Launch::of_command(args.behind()).is_some_and(|launch| launch.program.is_file());
            ensure!(found, "cannot start {}: there is no such program", clean(&name.to_string_lossy()));
        }
    }
    let load = || settings(args);
    let mut log = |text: &str| {
        // A closed log is no reason to end.
        let _ = writeln!(std::io::stderr(), "profinfer: {}", clean(text));
    };
    let file = args.path("conf")?.or_else(|| std::env::var_os("PROFINFER_CONF").map(Into::into));
    let file = file.map(|path| path.display().to_string());
    match Service::begin(crate::identity::VERSION, file, &load, &mut log) {
        Ok(mut service) => Ok(match service.run() {
            None => ExitCode::SUCCESS,
            Some(CommandEnd::Code(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
            Some(CommandEnd::Unknown | CommandEnd::NotStarted) => ExitCode::FAILURE,
        }),
        Err(ServiceError::Settings(wrong)) => {
            Usage::none_of(wrong)?;
            Ok(ExitCode::from(2))
        }
        Err(e) => Err(e.into()),
    }
}
