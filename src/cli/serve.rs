//! `profinfer serve`: the resident recorder. Uses `agent::service`, and the configuration.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;

use super::args::{Args, Command, Usage};
use super::conf::service::{GROUPS, settings};
use crate::agent::service::resident::{Service, ServiceError};
use crate::views::table::clean;

pub const COMMAND: Command = Command {
    name: "serve",
    about: "Waits for engines and records each by its rule, as a service",
    text: "\
Finds every process that has a GGML engine in memory, as soon as it has, and records it as the first [[rule]] says that is
for it: at its level, within its budget, all of it, its beginning, or, with a ring, the last minutes before somebody asks or
decoding becomes slow. Without rules everything is recorded at 1 % of its time. Recordings are files of the service's own
directory, within a quota: the oldest are removed, never one that is being written.

Stays in the foreground and says what happens on standard error, a line each. SIGHUP reads the configuration again, without
losing a run; SIGTERM and Ctrl-C end it, with all recordings complete. 'profinfer status', 'dump' and 'stop' talk to it.
Killed, it loses nothing that was recorded: what records ends cleanly by itself.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: GROUPS,
    notes: "\
docs/SERVICE.md tells how it is installed, docs/CONFIG.md all of its configuration; 'profinfer config --print FILE'
shows what a file comes to.",
    exits: &[("0", "told to end, and ended"), ("1", "cannot begin: standard error says why"), ("2", "wrong usage")],
    examples: "\
profinfer serve --conf /etc/profinfer/profinfer.toml
profinfer serve --directory /data/profinfer --quota 200MiB
profinfer config --check FILE                              what is wrong with a configuration
systemctl reload profinfer                                 read it again",
    run,
};

fn run(args: &Args) -> Result<ExitCode> {
    let load = || settings(args);
    let mut log = |text: &str| {
        // A log that nobody takes any more is no reason to end.
        let _ = writeln!(std::io::stderr(), "profinfer: {}", clean(text));
    };
    let file = args.path("conf")?.or_else(|| std::env::var_os("PROFINFER_CONF").map(Into::into));
    let file = file.map(|path| path.display().to_string());
    match Service::begin(crate::VERSION, file, &load, &mut log) {
        Ok(mut service) => {
            service.run();
            Ok(ExitCode::SUCCESS)
        }
        Err(ServiceError::Settings(wrong)) => {
            Usage::none_of(wrong)?;
            Ok(ExitCode::from(2))
        }
        Err(e) => Err(e.into()),
    }
}
